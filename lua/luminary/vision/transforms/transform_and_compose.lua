--- Defines the base class of all transforms, and transforms made of others.
local core = require "luminary.core"
local class = require "luminary.base.class"
local entries = require "luminary.base.entry_reader"
local lists = require "luminary.base.lists"
local results_as_list = require "luminary.base.results_as_list"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local draw = require "luminary.vision.transforms.random"
local fail = options.fail

--- transforms.Transform: Base class for all transforms. A custom one defines forward:
---
---   local Noise = transforms.Transform:extend("Noise")
---   function Noise:init(scale) self.scale = scale end
---   function Noise:forward(img, ...)
---     return img + lm.randn_like(img) * self.scale, ...
---   end
local Transform = class.root "Transform"
Transform.__missing = {
  get_params = "T.functional has functions of given numbers: T.functional.crop(x, top, left, height, width)",
}

local function python_text(v)
  if type(v) == "boolean" then return v and "True" or "False" end
  if type(v) ~= "table" then return tostring(v) end
  local list = lists.map(v, python_text)
  return #list == 1 and list[1] or "(" .. table.concat(list, ", ") .. ")"
end

--- Returns the transform's text with its parameters (fields, of the signature `shows`), as torchvision prints it.
function Transform:repr()
  local list = {}
  for _, row in ipairs(self.shows and signature.parse(self.shows).rows or {}) do
    if self[row[1]] ~= nil then list[#list + 1] = row[1] .. "=" .. python_text(self[row[1]]) end
  end
  return ("%s(%s)"):format(self.__name, table.concat(list, ", "))
end

-- Transforms of the library define _apply(img [, out]) instead of forward, for one image and, if they draw no random
-- numbers (`draws`), for a batch. `ours`: true if only the caller holds _apply's result, unless it is the argument.

--- t:forward(img, ...): Returns img transformed, and the other arguments. If random numbers are drawn, a batch [N, ...,
--- C, H, W] is transformed one by one, as its images or videos [..., C, H, W] would be.
function Transform:forward(img, ...)
  if not self._apply then fail("%s: define function %s:forward(img, ...)", self.__name, self.__name) end
  checks.check(self.__name, img)
  if self.draws and img.ndim >= 4 then
    return images.each(self.__name, img, function(x, out) return self:_apply(x, out) end), ...
  end
  return self:_apply(img), ...
end

-- The forward methods that transform one image at a time, by _apply; a user's class may have another.
local image_wise = {[Transform.forward] = true}
local function takes_one_image(part)
  return type(part) ~= "function" and class.is(part, Transform) and part._apply ~= nil
    and image_wise[part.forward] == true
end

--- t:takes_batches(): Returns whether t(batch) of a batch [N, C, H, W] equals the results for its images in sequence,
--- random numbers included. Datasets then transform all images of a batch at once. A custom transform may define it.
function Transform:takes_batches() return takes_one_image(self) and self.each_image ~= false end

local transforms = {Transform = Transform}

-- Adds a transform of single images, an entry under its signature, whose arguments become fields: after_init(self) runs
-- once they are set; apply(self, x, out) for an image; draws: true if it draws random numbers; chance: true if it
-- applies with probability self.p; help, one sentence.
local _, add_entry = entries.of("transform", {
  after_init = "function?", apply = "function", draws = "boolean?", chance = "boolean?", help = "string",
})

local function define(text)
  return function(entry)
    add_entry(text)(entry)
    local name = text:match "^%w+"
    local new, apply = class.define(name, Transform), entry.apply
    new.ours, new.draws, new.shows = true, entry.draws or entry.chance or false, text
    new.init = signature.fields(text, entry.after_init)
    rawset(new, "_apply", entry.chance and function(self, x, out) -- raw, since an entry's apply may not take `out`
      if not draw.chance(self.p) then return x end
      return apply(self, x, out)
    end or apply)
    new.__help = signature.help("transforms." .. name, entry.help)
    transforms[name] = new
    return new
  end
end

-- ---- transforms made of others

local function is_callable(v)
  if type(v) == "function" then return true end
  local record = class.record(v)
  return record ~= nil and (record.is_module or class.is(v, Transform)) or false
end

-- Returns the checked list of a container's parts.
local function parts_of(who, list)
  if not options.is_plain(list) or #options.list(who, "transforms", list) == 0 then
    options.expected(who, "a list of transforms", list)
  end
  for i = 1, #list do
    if not is_callable(list[i]) then
      options.must_be(who, ("transform %d"):format(i), "a transform or a function", list[i])
    end
  end
  return lists.copy(list)
end

local Container = class.define("Container", Transform)

function Container:set_parts(list)
  self.transforms = parts_of(self.__name, list)
  self.each_image = lists.every(self.transforms, function(part)
    return takes_one_image(part) and part.each_image ~= false
  end)
  self.of_batch = lists.find(self.transforms, function(part)
    return type(part) ~= "function" and part.of_batch
  end) ~= nil
  self.ours = self.each_image and lists.every(self.transforms, function(part) return part.ours end)
  self.draws = true
end

--- Returns the container's text with its transforms, one a line.
function Container:repr()
  local lines = {self.p and "  p=" .. python_text(self.p)}
  for _, part in ipairs(self.transforms) do lines[#lines + 1] = "  " .. tostring(part):gsub("\n", "\n  ") end
  return self.__name .. "(\n" .. table.concat(lines, "\n") .. "\n)"
end

-- Returns the one value that a part makes of an image.
local function apply_part(part, x, out)
  if takes_one_image(part) then return part:_apply(checks.check(part.__name, x), out) end
  return results_as_list.of_sample(type(part) == "function" and "a function among transforms" or part.__name, part(x))
end

-- Applies one part to its arguments: functions and modules take only the image.
local function whole(part, ...)
  if takes_one_image(part) then return part:forward(...) end
  local alone = type(part) == "function" or not class.is(part, Transform) or select("#", ...) == 1
  if alone then return apply_part(part, (...)), select(2, ...) end
  return part(...)
end

local function each_whole(self, first, ...)
  if first > #self.transforms then return ... end
  return each_whole(self, first + 1, whole(self.transforms[first], ...))
end

--- container:forward(img, ...): Returns img transformed, and the other arguments. If it contains a MixUp or CutMix, it
--- draws once for the whole batch, and passes the batch and the other arguments to the drawn part.
function Container:forward(img, ...)
  if self.of_batch then return self:_whole(img, ...) end
  return Transform.forward(self, img, ...)
end

local function define_container(name)
  local new = class.define(name, Container)
  transforms[name] = new
  return new
end

-- Applies the parts from `first` on in order. An intermediate result that nothing else holds is freed at once, for the
-- next image.
local function chain(self, first, x, out)
  local parts, fused = self.transforms, self.fused
  local last, own, i = #parts, false, first
  while i <= last do
    local part = parts[i]
    local y
    if fused[i] and core.is_tensor(x) and x.dtype == "uint8" then
      i = i + 1
      y = parts[i]:_apply_scaled(x, i == last and out or nil)
    else
      y = apply_part(part, x, i == last and out or nil)
    end
    local ours = takes_one_image(part) and part.ours
    if y ~= x then
      if own and ours and core.is_tensor(y) then x:free() end
      own = ours
    elseif not ours then
      own = false
    end
    x, i = y, i + 1
  end
  return x
end

--- transforms.Compose(list): Composes several transforms together.
local Compose = define_container "Compose"

function Compose:init(list)
  self:set_parts(list)
  self.draws = false
  self.fused = {}
  for i, part in ipairs(self.transforms) do
    self.draws = self.draws or takes_one_image(part) and part.draws or false
    local following = self.transforms[i + 1]
    self.fused[i] = following ~= nil and takes_one_image(part) and part.scales_to == "float32"
      and takes_one_image(following) and following._apply_scaled ~= nil
  end
end

function Compose:_apply(x, out) return chain(self, 1, x, out) end

--- compose:forward(img, ...): Returns img after all transforms, and the other arguments.
function Compose:forward(img, ...)
  if not self.each_image then return each_whole(self, 1, img, ...) end
  return Transform.forward(self, img, ...)
end

image_wise[Container.forward], image_wise[Compose.forward] = true, true

--- compose:from_encoded(encoded [, {mode}]): Decodes as much of a vision.Encoded as the first transform needs, and
--- transforms it.
function Compose:from_encoded(encoded, opts)
  local first = self.transforms[1]
  if takes_one_image(first) and first.from_encoded then
    local x = first:from_encoded(encoded, opts)
    if self.each_image then return chain(self, 2, x) end
    return each_whole(self, 2, x)
  end
  return self:forward(encoded:decode(opts))
end

define "Identity()" {apply = function(_, x) return x end, help = "Returns its input unchanged."}

--- transforms.Lambda(f): Applies a function as a transform.
local Lambda = class.define("Lambda", Transform)
transforms.Lambda = Lambda

function Lambda:init(f)
  if type(f) ~= "function" then options.expected("Lambda", "a function", f) end
  self.f = f
end

--- lambda:forward(img, ...): Returns f(img), a list if f returns several values, and the other arguments.
function Lambda:forward(img, ...) return results_as_list.of_sample("Lambda", self.f(img)), ... end

--- transforms.RandomApply(list [, {p = 0.5}]): Applies a list of transforms with a given probability.
local RandomApply = define_container "RandomApply"

RandomApply.init = signature.of("RandomApply(list, {p: probability = 0.5})", function(self, list, opts)
  self:set_parts(list)
  self.p = opts.p
  self.fused = {}
end)

function RandomApply:_apply(x, out)
  if not draw.chance(self.p) then return x end
  return chain(self, 1, x, out)
end

function RandomApply:_whole(...)
  if not draw.chance(self.p) then return ... end
  return each_whole(self, 1, ...)
end

--- transforms.RandomChoice(list [, {p}]): Applies one transform, drawn from a list.
local RandomChoice = define_container "RandomChoice"

RandomChoice.init = signature.of("RandomChoice(list, {p: table})", function(self, list, opts)
  self:set_parts(list)
  local n = #self.transforms
  local p = opts.p
  self.sums = {}
  local total = 0
  p = p and checks.list("RandomChoice", "p", p, {n}, "finite(0)")
  self.p = p
  for i = 1, n do
    total = total + (p and p[i] or 1)
    self.sums[i] = total
  end
  if total == 0 then fail("RandomChoice: at least one entry of p must be above 0") end
end)

local function chosen(self)
  local at = draw.uniform(0, self.sums[#self.sums])
  local _, i = lists.find(self.sums, function(sum) return at < sum end)
  return self.transforms[i]
end

function RandomChoice:_apply(x, out) return apply_part(chosen(self), x, out) end
function RandomChoice:_whole(...) return whole(chosen(self), ...) end

--- transforms.RandomOrder(list): Applies a list of transforms in a random order.
local RandomOrder = define_container "RandomOrder"
function RandomOrder:init(list) self:set_parts(list) end

function RandomOrder:_apply(x, _)
  for _, i in ipairs(draw.order(#self.transforms)) do x = apply_part(self.transforms[i], x) end
  return x
end

local function apply_in_order(self, order, at, ...)
  if at > #order then return ... end
  return apply_in_order(self, order, at + 1, whole(self.transforms[order[at]], ...))
end

function RandomOrder:_whole(...) return apply_in_order(self, draw.order(#self.transforms), 1, ...) end

return {list = transforms, define = define}
