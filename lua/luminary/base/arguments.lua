--- What a constructor takes, told once: from it come its checks and their errors, the object's fields, and the call
--- that help shows.
---
---   local takes = arguments.of({{"kernel_size", "size"}}, {{"stride", "size", from = "kernel_size"}})
---   MaxPool2d.init = takes:constructor("MaxPool2d")
---
--- Two lists of rows {name, kind [, default]}: arguments that stand by place, or by name in the table at the end; and
--- options, which stand there alone. Kinds are those of options.arg. An argument by place has to be given, unless it
--- has a default or its kind, a word, ends in "?". `from` names another field whose value is the default, `says` is
--- what help calls the default; none = true lets false stand for none.
local options = require "luminary.base.options"

local arguments = {}

local Takes = {}
Takes.__index = Takes

local function is_optional(row) return row.optional or row[3] ~= nil or row.from ~= nil end

-- The row, with the question mark of its kind as a field.
local function read_row(row)
  local kind = row[2]
  local word = type(kind) == "string" and kind:match "^(.*)%?$" or nil
  return {row[1], word or kind, row[3], from = row.from, says = row.says, optional = word ~= nil}
end

--- The rows of arguments by place and of options, either of which may be nil.
function arguments.of(places, named)
  local takes = setmetatable({places = {}, named = {}, spec = {}, every = {}, parameters = {"self"}}, Takes)
  for i, row in ipairs(places or {}) do
    takes.places[i] = read_row(row)
    takes.every[row[1]] = true
    takes.parameters[i + 1] = row[1]
  end
  for i, row in ipairs(named or {}) do
    takes.named[i] = read_row(row)
    takes.every[row[1]] = true
    takes.spec[row[1]] = {takes.named[i][2], row[3], row.none}
  end
  takes.first = takes.named[1] and takes.named[1][1]
  if takes.first or #takes.places == 0 then table.insert(takes.parameters, "opts") end
  return takes
end

-- Whether a table in an argument's place can only be one of options.
local function takes_options(row)
  return is_optional(row) or type(row[2]) == "string" and row[2] ~= "table" and row[2] ~= "any"
end

local function is_named(v) return options.is_plain(v) and (next(v) == nil or type(next(v)) == "string") end

--- Checks the values of a call of `who` and puts them into a table or object under their names.
function Takes:fill(into, who, ...)
  local n, values, places = select("#", ...), {...}, self.places
  local given = values[#places + 1]
  if n > 0 and n <= #places and takes_options(places[n]) and is_named(values[n]) then
    given, values[n] = values[n], nil -- in the place of what is left out
  end
  for name in pairs(is_named(given) and given or {}) do
    if not self.spec[name] then options.unknown(who, name, self.every) end
  end
  for i, row in ipairs(places) do
    local value = values[i]
    if value == nil then value = row[3] end
    if value ~= nil or not is_optional(row) then into[row[1]] = options.arg(who, row[1], value, row[2]) end
  end
  local checked = options.check(who, given, self.spec, self.first)
  for _, rows in ipairs {self.named, places} do
    for _, row in ipairs(rows) do
      local name = row[1]
      if rows == self.named then into[name] = checked[name] end
      if into[name] == nil and row.from then into[name] = into[row.from] end
    end
  end
end

--- The options alone, checked, of a function `who`: a table of all of them.
function Takes:options(who, given) return options.check(who, given, self.spec, self.first) end

--- An `init` that fills the object's fields so, and then calls made(object), if it is given.
function Takes:constructor(who, made)
  local init
  function init(object, ...)
    self:fill(object, who, options.by_name(who, init, 1, ...))
    if made then made(object) end
  end
  options.set_parameters(init, self.parameters)
  return init
end

--- A function `who` that calls body(values by name); its arguments stand by place or by name.
function Takes:caller(who, body)
  local f
  function f(...)
    local values = {}
    self:fill(values, who, options.by_name(who, f, 1, ...))
    return options.all(body(values))
  end
  options.set_parameters(f, self.parameters)
  return options.call_it(who, f)
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
