--- What a function or a constructor takes, told once: from it come its checks and their errors, an object's fields, and
--- the call that help shows.
---
---   local x, n, dim = arguments.read("diff", {{"x", "tensor"}, {"n", "natural", 1}, {"dim", "integer", -1}}, ...)
---   local takes = arguments.of({{"kernel_size", "size"}}, {{"stride", "size", from = "kernel_size"}})
---   MaxPool2d.init = takes:constructor("MaxPool2d")
---
--- A row is {name, kind [, default]}; kinds are those of options.arg. Rows stand in PyTorch's order: each may be given
--- by place, or by name in a table that comes last. One has to be given, unless it has a default or its kind, a word,
--- ends in "?". `from` names another row whose value is the default, `says` is what help calls the default; none = true
--- lets false stand for none. In `of` the rows of the second list may all be left out.
local core = require "luminary.core"
local options = require "luminary.base.options"

local arguments = {}

local fail, is_plain = options.fail, options.is_plain

local Takes = {}
Takes.__index = Takes

-- Kinds with a question mark, without it.
local optional_kinds = setmetatable({}, {__index = function(t, kind)
  t[kind] = kind:match "^(.*)%?$" or false
  return t[kind]
end})

local function kind_of(row)
  local kind = row[2]
  local word = type(kind) == "string" and optional_kinds[kind]
  return word or kind, word and true or row.optional
end

local function is_optional(row)
  local _, optional = kind_of(row)
  return optional or row[3] ~= nil or row.from ~= nil
end

local function names_of(rows)
  local names = {}
  for i, row in ipairs(rows) do names[i] = row[1] end
  return names
end

local function check_names(who, rows, named, n)
  for key in pairs(named) do
    local at
    for i, row in ipairs(rows) do at = at or row[1] == key and i end
    if not at then options.unknown(who, key, names_of(rows)) end
    if at <= n then fail("%s: %s is given twice, by place and by name", who, key) end
  end
end

local function value_of(who, row, value, may_lack)
  local kind, optional = kind_of(row)
  local default = row[3]
  if value == nil and default ~= nil then
    if type(kind) == "function" then return kind(who, row[1], default) end
    return type(default) == "table" and {unpack(default)} or default
  end
  if value == nil and (optional or may_lack or row.from) then return nil end
  if value == false and row.none then return false end
  return options.arg(who, row[1], value, kind)
end

local of_dims = {dim = true, ["dim?"] = true, ["dims?"] = true}

-- The checked values of a call, a list with holes, by the rows' places; those after the first `least` may be left out.
-- -1: they are options, after arguments that are read elsewhere.
local function collect(who, rows, least, ...)
  local n, values, named = select("#", ...), {...}, nil
  while n > 0 and (values[n] == nil or options.is_report(values[n])) do n, values[n] = n - 1, nil end
  local last = values[n]
  if n > 0 and is_plain(last) then
    local key = next(last)
    if type(key) == "string" or key == nil and (n > least or is_optional(rows[n])) then
      named, values[n], n = last, nil, n - 1
    end
  end
  if n > #rows then options.too_many(who, #rows, names_of(rows), n, least < 0 and "option" or nil) end
  if named then check_names(who, rows, named, n) end
  for i, row in ipairs(rows) do
    local value = values[i]
    if named and i > n then value = named[row[1]] end
    if value == 1 and of_dims[row[2]] then core.look_at_dim(who, row[1], values[1]) end
    values[i] = value_of(who, row, value, i > least)
  end
  return values
end

--- The arguments of a call of `who`, checked, in the order of their rows.
function arguments.read(who, rows, ...) return unpack(collect(who, rows, #rows, ...), 1, #rows) end

--- Options, which stand last in a call of `who`, by place or in one table: a table of their values by name.
function arguments.options(who, rows, ...)
  local values, by_name = collect(who, rows, -1, ...), {}
  for i, row in ipairs(rows) do by_name[row[1]] = values[i] end
  return by_name
end

--- The rows of arguments that have to be given, and of those that may be left out; either may be nil.
function arguments.of(places, named)
  local takes = setmetatable({places = places or {}, named = named or {}, rows = {}}, Takes)
  for _, rows in ipairs {takes.places, takes.named} do
    for _, row in ipairs(rows) do table.insert(takes.rows, row) end
  end
  return takes
end

--- Checks the values of a call of `who` and puts them into a table or object under their names.
function Takes:fill(into, who, ...)
  local values = collect(who, self.rows, #self.places, ...)
  for i, row in ipairs(self.rows) do into[row[1]] = values[i] end
  for _, row in ipairs(self.rows) do
    if row.from and into[row[1]] == nil then into[row[1]] = into[row.from] end
  end
end

--- The options alone, checked, of a function `who`: a table of all of them.
function Takes:options(who, ...) return arguments.options(who, self.named, ...) end

--- An `init` that fills the object's fields so, and then calls made(object), if it is given.
function Takes:constructor(who, made)
  return function(object, ...)
    self:fill(object, who, ...)
    if made then made(object) end
  end
end

--- A function `who` that calls body(values by name); its arguments stand by place or by name.
function Takes:caller(who, body)
  return function(...)
    local values = {}
    self:fill(values, who, ...)
    return body(values)
  end
end

local function number_text(v) return (tostring(v):gsub("e%-0", "e-")) end

local function default_text(row)
  if row.says or row.from then return row.says or row.from end
  local value = row[3]
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return number_text(value) end
  local parts = {}
  for i, part in ipairs(value) do parts[i] = number_text(part) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function row_text(row)
  local has_default = row[3] ~= nil or row.from or row.says
  return row[1] .. (has_default and " = " .. default_text(row) or "")
end

--- What help shows: nn.LeakyReLU([negative_slope = 0.01] [, {inplace = false}]): `about`, whose lines are joined.
function Takes:help(path, about)
  local text, named = "", {}
  local function add(part, optional)
    if text ~= "" then part = ", " .. part end
    if optional then part = (text ~= "" and " [" or "[") .. part .. "]" end
    text = text .. part
  end
  for _, row in ipairs(self.places) do add(row_text(row), is_optional(row)) end
  for i, row in ipairs(self.named) do named[i] = row_text(row) end
  if #named > 0 then add("{" .. table.concat(named, ", ") .. "}", true) end
  return ("%s(%s): %s"):format(path, text, (about:gsub("%s*\n%s*", " ")))
end

return arguments
