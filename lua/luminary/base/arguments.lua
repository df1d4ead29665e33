--- Declarations of the arguments of functions and constructors, for checks and their errors, an object's fields, and
--- the call in help.
---
---   local x, n, dim = arguments.read("diff", {{"x", "tensor"}, {"n", "natural", 1}, {"dim", "integer", -1}}, ...)
---   local takes = arguments.of({{"kernel_size", "size"}}, {{"stride", "size", from = "kernel_size"}})
---   MaxPool2d.init = takes:constructor("MaxPool2d")
---
---   DataLoader.init = arguments.takes("DataLoader", {{"batch_size", "count"}, …}, function(self, dataset, opts) … end)
---
--- A row is {name, kind [, default]}; kinds are those of options.arg. Rows are in PyTorch's positional order, as in
--- help. Each argument is passed by position, or by name in a table at the end. A table with names at the end is always
--- that table. A row is required, unless it has a default or its kind is a word that ends in "?".
--- named = true: only by name, for rows at the end, where PyTorch has other arguments in these positions.
--- list = true: an empty table in that position is the value, not a table of options.
--- `from` names another row whose value is the default; `says` is the text of the default in help; none = true accepts
--- false for none. {name, [default,] lacks = true} keeps the position of an argument of PyTorch that this library
--- lacks: nil and the default are accepted there. In `of` all rows of the second list are optional.
local core = require "luminary.core"
local options = require "luminary.base.options"

local arguments = {}

local fail, is_plain = options.fail, options.is_plain

local Takes = {}
Takes.__index = Takes

-- Kinds with a question mark, and the kinds without it.
local optional_kinds = setmetatable({}, {__index = function(t, kind)
  t[kind] = kind:match "^(.*)%?$" or false
  return t[kind]
end})

local function kind_of(row)
  local kind = row[2]
  local word = type(kind) == "string" and optional_kinds[kind]
  return word or kind, word and true or row.optional
end

--- The kind of a row, and whether it may be left out without a default.
arguments.kind_of = kind_of

local function is_optional(row)
  local _, optional = kind_of(row)
  return optional or row[3] ~= nil or row.from ~= nil or row.lacks ~= nil
end

-- Returns the names of the rows that this library has; `options_only`: without those before the options.
local function names_of(rows, options_only)
  local names = {}
  for _, row in ipairs(rows) do
    if not row.lacks and not (options_only and row.checked_later) then names[#names + 1] = row[1] end
  end
  return names
end

local function unknown(who, key, rows)
  local all = names_of(rows)
  options.unknown(who, key, type(key) == "string" and core.nearest(key, all) and all or names_of(rows, true))
end

local function index_of(rows, name)
  for i, row in ipairs(rows) do
    if row[1] == name then return i end
  end
end

local function check_names(who, rows, named, n)
  for key in pairs(named) do
    local at = index_of(rows, key)
    if not at then unknown(who, key, rows) end
    if at <= n then fail("%s: %s is passed twice, by position and by name", who, key) end
  end
end

-- Whether a table, the n-th value, has options by name. One of the first `n_required` values may be a table by itself.
local function has_options(rows, n_required, n, t)
  local key, row = next(t), rows[n]
  if key == nil then return not row or not row.list and (n > n_required or is_optional(row)) end
  if type(key) ~= "string" then return false end
  if n > n_required or not row.checked_later then return true end
  for name in pairs(t) do
    if index_of(rows, name) then return true end
  end
  return false
end

local function value_of(who, row, value, may_lack, rows)
  if row.checked_later then
    local code = type(value) == "table" and options.stands_for_code(value)
    if code and code.__library then options.must_be(who, row[1], "a value", value) end
    return value
  end
  if row.lacks then
    if value ~= nil and value ~= row[2] then unknown(who, row[1], rows) end
    return nil
  end
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

-- Returns the checked values of a call, a list with holes, in the order of the rows. Those after the first `n_required`
-- may be left out; -1: all are options, after arguments that are read elsewhere.
local function collect(who, rows, n_required, ...)
  local n, values, named = select("#", ...), {...}, nil
  while n > 0 and (values[n] == nil or options.is_report(values[n])) do n, values[n] = n - 1, nil end
  local last = values[n]
  if n > 0 and is_plain(last) and has_options(rows, n_required, n, last) then named, values[n], n = last, nil, n - 1 end
  local max_count = #rows
  while max_count > 0 and rows[max_count].named do max_count = max_count - 1 end
  if n > max_count then
    options.too_many(who, max_count, names_of({unpack(rows, 1, max_count)}), n, n_required < 0 and "option" or nil)
  end
  if named then check_names(who, rows, named, n) end
  for i, row in ipairs(rows) do
    local value = values[i]
    if named and i > n then value = named[row[1]] end
    if value == 1 and of_dims[row[2]] then core.check_ported_dim(who, row[1], values[1]) end
    values[i] = value_of(who, row, value, i > n_required, rows)
  end
  return values
end

-- Stores the declaration of a function: options.parameters(f) has the names, and the fields `rows` and `n_required`.
local function declare(f, rows, n_required, is_method)
  local names = {is_method and "self" or nil}
  for _, row in ipairs(rows) do names[#names + 1] = row[1] end
  names.rows, names.n_required = rows, n_required
  options.set_parameters(f, names)
  return f
end

-- Returns rows for the arguments before the options, without self.
local function leading(names)
  local rows = {}
  for _, name in ipairs(names) do
    if name ~= "self" then rows[#rows + 1] = {name, checked_later = true} end
  end
  return rows
end

--- Declares that f, which reads its arguments itself, takes those of a list of names and then the options `rows`.
--- Returns f.
function arguments.note(f, names, rows)
  local all = leading(names)
  local n_required = #all
  for _, row in ipairs(rows) do all[#all + 1] = row end
  return declare(f, all, n_required, names[1] == "self")
end

--- Returns the arguments of a call of `who`, checked, in the order of their rows.
function arguments.read(who, rows, ...) return unpack(collect(who, rows, #rows, ...), 1, #rows) end

--- Returns the options at the end of a call of `who`, by position or in one table: a table of their values by name.
function arguments.options(who, rows, ...)
  local values, by_name = collect(who, rows, -1, ...), {}
  for i, row in ipairs(rows) do by_name[row[1]] = values[i] end
  return by_name
end

-- Wraps f(leading…, options) so that it takes arguments by position or by name. names[1] is "self" for a method.
local function wrapped(who, names, rows, f)
  local all, is_method = leading(names), names[1] == "self"
  local n_required = #all
  for _, row in ipairs(rows) do all[#all + 1] = row end
  local function read(name, ...)
    local values, opts = collect(name, all, n_required, ...), {}
    for i = n_required + 1, #all do
      local row, value = all[i], values[i]
      if value == nil and row.from then value = opts[row.from] end
      if value == nil and row.from then value = values[index_of(all, row.from)] end
      opts[row[1]], values[i] = value, nil
    end
    values[n_required + 1] = opts
    return unpack(values, 1, n_required + 1)
  end
  local call = is_method and function(self, ...) return f(self, read(who or self.__name, ...)) end
    or function(...) return f(read(who, ...)) end
  return declare(call, all, n_required, is_method)
end

--- Returns f, which takes its arguments by position or by name. f checks its parameters except the last itself; the
--- last is a table of the checked options. `who` is the name in messages, by default that of the object's class. A
--- method names self first.
function arguments.takes(who, rows, f)
  local names = options.parameters(f)
  return wrapped(who, {unpack(names, 1, #names - 1)}, rows, f)
end

--- The same for an f whose parameters have no names, such as a C function: `names` are those before the options.
function arguments.of_names(who, names, rows, f) return wrapped(who, names, rows, f) end

--- Returns a function that calls f(a, b, …) with the checked arguments of these rows.
function arguments.reads(who, rows, f)
  return declare(function(...) return f(arguments.read(who, rows, ...)) end, rows, #rows)
end

--- Returns the rows of these names, separated by spaces, in that order. Names without a row are arguments that this
--- library lacks.
function arguments.in_order(names, rows)
  local by_name, ordered = {}, {}
  for _, row in ipairs(rows) do by_name[row[1]] = row end
  for name in names:gmatch "%S+" do
    ordered[#ordered + 1] = by_name[name] or {name, false, lacks = true}
    by_name[name] = nil
  end
  for _, row in ipairs(rows) do
    if by_name[row[1]] then ordered[#ordered + 1] = row end
  end
  return ordered
end

--- Sets the fields of an object, or of a table, to the options of these names.
function arguments.assign(into, opts)
  for name, value in pairs(opts) do into[name] = value end
end

--- Makes a declaration of rows of required and of optional arguments; either may be nil.
function arguments.of(required, named)
  local takes = setmetatable({required = required or {}, named = named or {}, rows = {}}, Takes)
  for _, rows in ipairs {takes.required, takes.named} do
    for _, row in ipairs(rows) do table.insert(takes.rows, row) end
  end
  return takes
end

--- Checks the values of a call of `who` and puts them into a table or object under their names.
function Takes:fill(into, who, ...)
  local values = collect(who, self.rows, #self.required, ...)
  for i, row in ipairs(self.rows) do into[row[1]] = values[i] end
  for _, row in ipairs(self.rows) do
    if row.from and into[row[1]] == nil then into[row[1]] = into[row.from] end
  end
end

--- Returns a table of the checked options of a function `who`.
function Takes:options(who, ...) return arguments.options(who, self.named, ...) end

--- Returns an `init` that fills the object's fields, and then calls made(object), if it is given.
function Takes:constructor(who, made)
  return declare(function(object, ...)
    self:fill(object, who, ...)
    if made then made(object) end
  end, self.rows, #self.required, true)
end

--- Returns a function `who` that calls body(values by name); its arguments are passed by position or by name.
function Takes:caller(who, body)
  return declare(function(...)
    local values = {}
    self:fill(values, who, ...)
    return body(values)
  end, self.rows, #self.required)
end

--- Returns the rows of a function, of a class's constructor, or of a callable object, and the number of rows before the
--- options; nil if none are declared.
function arguments.declared(value)
  local code = options.stands_for_code(value)
  local metatable = type(value) == "table" and getmetatable(value)
  local f = code and code.instance and value.init or type(metatable) == "table" and rawget(metatable, "takes") or value
  if type(f) ~= "function" then return nil end
  local text = options.signature(f)
  if text then
    local parsed = require("luminary.base.signature").parse(text)
    return parsed.rows, parsed.n_required
  end
  local names = options.parameters(f)
  return names.rows, names.n_required
end

local function number_text(v) return (tostring(v):gsub("e%-0", "e-")) end

--- Returns the default of a row as help shows it, or nil.
function arguments.default_text(row)
  if row.lacks then return nil end
  if row.says or row.from then return row.says or row.from end
  local value = row[3]
  if value == nil then return nil end
  if type(value) == "string" then return ("%q"):format(value) end
  if type(value) ~= "table" then return number_text(value) end
  local parts = {}
  for i, part in ipairs(value) do parts[i] = number_text(part) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function row_text(row)
  local default = arguments.default_text(row)
  return row[1] .. (default and " = " .. default or "")
end

--- Returns the arguments of a call as help shows them: "x, dim [, {keepdim = false}]". `n_required` rows come before
--- the options, which may be given by position too.
function arguments.call(rows, n_required)
  local text, named = "", {}
  local function add(part, optional)
    if text ~= "" then part = ", " .. part end
    if optional then part = (text ~= "" and " [" or "[") .. part .. "]" end
    text = text .. part
  end
  for i, row in ipairs(rows) do
    if i <= n_required then
      add(row_text(row), not (row.checked_later or row.unchecked) and is_optional(row))
    elseif not row.lacks then
      named[#named + 1] = row_text(row)
    end
  end
  if #named > 0 then add("{" .. table.concat(named, ", ") .. "}", true) end
  return text
end

--- Returns the text of help: nn.LeakyReLU([negative_slope = 0.01] [, {inplace = false}]): `about`, with joined lines.
function Takes:help(path, about)
  return ("%s(%s): %s"):format(path, arguments.call(self.rows, #self.required), (about:gsub("%s*\n%s*", " ")))
end

return arguments
