--- Checks arguments, with options in one trailing table, and raises errors at the caller's own line.
local debug = require "debug"
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local truncate_text = require "luminary.base.truncate_text"
local load_module = require "luminary.base.load_module"
local numbers = require "luminary.base.number_kinds"

-- Errors name the first line outside the library's folder.
core.own_files(debug.getinfo(1, "S").source:match "^(@.*)base/options%.lua$" or "@luminary/")

local options = {}

--- Raises an error at the first line outside luminary's own files.
function options.fail(format, ...) core.error_at_caller(select("#", ...) > 0 and format:format(...) or format) end
local fail = options.fail

--- Returns the text of an error without the file and line at its start.
function options.without_position(problem) return (tostring(problem):gsub("^[^\n]-:%d+: ", "")) end

--- Returns the record of an instance of a class of the library or its users (class.lua), nil for other values.
function options.record(v)
  local record = debug.getmetatable(v)
  return type(record) == "table" and rawget(record, "values") and rawget(record, "class") and record or nil
end

--- Returns true if v is a plain table: without a metatable, or a list of the library, whose metatable has __plain.
function options.is_plain(v)
  if type(v) ~= "table" then return false end
  local metatable = getmetatable(v)
  return metatable == nil or type(metatable) == "table" and rawget(metatable, "__plain") == true
end
local is_plain = options.is_plain

--- Returns true if v is the report that a loader of weights returns after the net. In f(lm.models.gpt2 {weights = …}),
--- the report becomes f's last argument and is ignored there.
function options.is_report(v)
  local metatable = type(v) == "table" and getmetatable(v)
  return type(metatable) == "table" and rawget(metatable, "__report") == true
end

--- Returns the metatable of a class or of one of the library's modules; nil for other values.
function options.stands_for_code(v)
  local mt = type(v) == "table" and getmetatable(v)
  return type(mt) == "table" and (rawget(mt, "instance") or rawget(mt, "__library")) and mt or nil
end
local stands_for_code = options.stands_for_code

--- Returns the key of a list's entry that has no number as key, or nil. Such a key is an option in the wrong braces.
function options.named_field(list)
  for key in pairs(list) do
    if type(key) ~= "number" then return key end
  end
end

--- Returns list; fails if it has an entry at 0, which ipairs and # would skip.
function options.list(who, name, list)
  core.check_start(who, name, list)
  return list
end

-- Returns a text of at most `most` bytes as messages show it: on one line, without what a terminal obeys.
local function on_one_line(text, most) return (core.printable(truncate_text(text, most)):gsub("%c", "?")) end

--- Describes a value as messages show it: "3", "string 'x'", "a tensor [2, 3]", "a DataLoader".
options.describe = core.describe
local describe = options.describe

-- The functions below raise errors; each words one form of message. `who` is the public name of the called function,
-- `name` the argument's name in the public signature. `remedy`, or nil, says what the caller can do; it may be a
-- format, whose values follow.

-- Raises text and remedy. status: of lm_status, which the C interface returns; nil: an invalid argument.
local function raise_as(status, text, remedy, ...)
  if remedy then text = text .. "; " .. (select("#", ...) > 0 and remedy:format(...) or remedy) end
  core.error_at_caller(text, status)
end
local function raise(...) raise_as(nil, ...) end
local SHAPE, DTYPE, MISSING = 2, 3, 9

--- Raises "WHO: NAME must be BOUND, got VALUE".
function options.must_be(who, name, bound, value, remedy, ...)
  raise(("%s: %s must be %s, got %s"):format(who, name, bound, describe(value)), remedy, ...)
end

--- Raises "WHO: NAME is missing or nil; expected BOUND". Lua functions cannot tell an absent argument from nil.
function options.absent(who, name, bound) raise(("%s: %s is missing or nil; expected %s"):format(who, name, bound)) end

--- Raises "WHO: expected WHAT, got VALUE", for values without a name, such as a list's entries.
function options.expected(who, what, value, remedy, ...)
  raise(("%s: expected %s, got %s"):format(who, what, describe(value)), remedy, ...)
end

--- Raises "WHO: expected NAME to have shape [..], got [..]". `shape` is a list of sizes and letters, or text.
function options.wrong_shape(who, name, x, shape, remedy, ...)
  if type(shape) == "table" then shape = "[" .. table.concat(shape, ", ") .. "]" end
  local got = core.is_tensor(x) and "[" .. table.concat(x.shape, ", ") .. "]" or describe(x)
  raise_as(SHAPE, ("%s: expected %s to have shape %s, got %s"):format(who, name, shape, got), remedy, ...)
end

--- Raises "WHO: shapes of A and B must match, got [..] and [..]". `relation` replaces "match".
function options.shapes_differ(who, a, x, b, y, relation)
  raise_as(SHAPE, ("%s: shapes of %s and %s must %s, got [%s] and [%s]"):format(who, a, b, relation or "match",
    table.concat(x.shape, ", "), table.concat(y.shape, ", ")))
end

--- Raises "WHO: NAME must be BOUND, got DTYPE". By default, the remedy is the method that converts to such a dtype.
function options.wrong_dtype(who, name, bound, x, remedy, ...)
  local got = core.is_tensor(x) and x.dtype or describe(x)
  raise_as(DTYPE, ("%s: %s must be %s, got %s"):format(who, name, bound, got), remedy, ...)
end

--- Raises "WHO: dtype mismatch: A is float32, B is int64; convert one with :to()".
function options.dtypes_differ(who, a, x, b, y)
  local text = "%s: dtype mismatch: %s is %s, %s is %s; convert one with :to()"
  raise_as(DTYPE, text:format(who, a, x.dtype, b, y.dtype))
end

--- Raises "WHO: NAME (V) must be divisible by NAME2 (V2)", unless V is.
function options.divisible(who, name, value, divisor_name, divisor)
  if value % divisor == 0 then return end
  raise(("%s: %s (%d) must be divisible by %s (%d)"):format(who, name, value, divisor_name, divisor))
end

--- Raises "WHO: index I is out of range for N THINGS (indices start at 1)".
function options.out_of_range(who, index, n, things)
  raise(("%s: index %s is out of range for %d %s (indices start at 1)"):format(who, tostring(index), n, things))
end

--- Raises "WHO: NAME must have N entries, one for each EACH, got M".
function options.wrong_length(who, name, n, each, got, remedy, ...)
  raise(("%s: %s must have %d %s, one for each %s, got %d"):format(who, name, n, n == 1 and "entry" or "entries", each,
    got), remedy, ...)
end

--- Raises "WHO: A and B are mutually exclusive".
function options.exclusive(who, a, b, remedy, ...)
  raise(("%s: %s and %s are mutually exclusive"):format(who, a, b), remedy, ...)
end

-- The errors about files have the wording of base/message.h.

--- Returns a path as messages show it: on one line, a long path without its middle.
function options.shown_path(path) return on_one_line(path, 600) end

--- Raises "'PATH': REASON". The reason is a format, whose values follow.
function options.fail_in_file(path, reason, ...)
  raise(("'%s': %s"):format(options.shown_path(path), select("#", ...) > 0 and reason:format(...) or reason))
end

--- Raises "'PATH': REASON" for a valid file that needs a feature this version lacks.
function options.unsupported_file(path, reason, ...)
  raise_as(MISSING, ("'%s': %s"):format(options.shown_path(path), reason:format(...)))
end

--- Raises "'PATH': malformed PART: REASON". PART is "zip archive", "GGUF header", ...
function options.malformed_file(path, part, reason, ...)
  options.fail_in_file(path, "malformed %s: %s", part, select("#", ...) > 0 and reason:format(...) or reason)
end

--- Raises "cannot VERB 'PATH': REASON". VERB is "open", "read", "write", ...
function options.fail_file(verb, path, reason)
  raise(("cannot %s '%s': %s"):format(verb, options.shown_path(path), reason))
end

-- Returns a list of two from a number or a list of two: sizes, strides and padding of images.
local function pair(v)
  if type(v) == "number" then return {v, v} end
  local good = type(v) == "table" and type(v[1]) == "number" and type(v[2]) == "number" and #v == 2
  if good and not options.named_field(v) then return {v[1], v[2]} end
end

-- Returns a list of integers from an integer or a list.
local function integers(v, who, name)
  if type(v) == "number" then v = {v} end
  if not is_plain(v) or options.named_field(v) then return nil end
  return options.entries(who, name, v, "integer")
end

-- Kinds of arguments: a name for messages, and a function that returns the value to use, or nil to reject it.
local function itself(v) return v end
local function only(kind) return function(v) if type(v) == kind then return v end end end
local function data(v) if type(v) == "table" and not stands_for_code(v) then return v end end
local function callable(v)
  local record = debug.getmetatable(v)
  local calls = type(record) == "table" and rawget(record, "__call") and not options.stands_for_code(v)
  if type(v) == "function" or calls and type(v) ~= "cdata" then return v end
end

local kinds = {
  number = {"a number", only "number"},
  finite = {"a finite number", numbers.finite()[2], help = "number"},
  real = {"a number", only "number"}, -- print shows it as given
  boolean = {"true or false", only "boolean"},
  string = {"a string", only "string"},
  table = {"a table", data},
  list = {"a table", data, help = "list"},
  ["function"] = {"a function", only "function"},
  callable = {"a function, or an object that is called as one", callable},
  dim = numbers.integer(), -- a dim from 1; ops check its range
  dims = {"a value", itself}, -- one dim or a list, which the op checks
  integer = numbers.integer(),
  count = numbers.integer(1),
  natural = numbers.integer(0),
  positive = {"a number of at least 0", function(v) if type(v) == "number" and v >= 0 then return v end end},
  seconds = {"more than 0 seconds", function(v) if type(v) == "number" and v > 0 then return v end end,
    help = "number of seconds"},
  scale = numbers.finite(2 ^ -126, 2 ^ 126), -- losses are multiplied by it, gradients by its inverse, both in float32
  probability = numbers.finite(0, 1),
  module = {"a module", function(v)
    local record = options.record(v)
    if record and record.is_module then return v end
  end},
  scalar = {"a number or a tensor of one element", function(v)
    if core.is_tensor(v) and v:numel() == 1 then return tonumber(v:detach():double():item()) end
    if type(v) == "number" then return v end
  end},
  generator = {"an lm.Generator", function(v) if core.is_generator(v) then return v end end},
  tensor = {"a tensor", function(v) if core.is_tensor(v) then return v end end},
  pair = {"a number or a pair of numbers", pair},
  two = {"a list of two numbers", function(v) if type(v) == "table" then return pair(v) end end},
  size = {"a number or a pair of numbers", function(v) return pair(v) and v end}, -- the value as given
  padding = {"a number, a pair of numbers, 'same' or 'valid'", function(v)
    return (v == "same" or v == "valid") and v or pair(v)
  end},
  integers = {"a number or a list of numbers", integers},
  any = {"a value", itself},
}

-- Functions that make kinds of arguments from parameters, as in integer(0, 8). A suffix [] makes a list: count[].
local makers = lists.copy(numbers)
local function list_of(kind)
  local text = options.kind_text(kind)
  return {help = text and "list of " .. text:gsub("^[%w.]+", "%0s") or "list", read = function(who, name, list)
    return options.entries(who, name, options.arg(who, name, list, "list"), kind)
  end}
end

setmetatable(kinds, {__index = function(_, text)
  local make, arguments = text:match "^([%a_][%w_]*)(%(?.*)$"
  local entry = text:match "^(.+)%[%]$"
  if entry then
    kinds[text] = list_of(entry)
    return kinds[text]
  end
  if not makers[make] then return nil end
  kinds[text] = makers[make](assert(loadstring("return " .. arguments:sub(2, -2)))())
  return kinds[text]
end})

--- Adds a kind of arguments: read(who, name, value, ...) returns the value to use, or fails; the further arguments are
--- the kind's parameters, at most three, such as 2 and 1 of sizes(2, 1). `text` is its name in help, or a function of
--- the parameters that returns it. Returns read.
function options.kind(name, text, read)
  kinds[name] = nil
  makers[name] = function(...)
    local a, b, c = ...
    return {help = type(text) == "string" and text or text(...), read = a == nil and b == nil and read
      or function(who, argument, v) return read(who, argument, v, a, b, c) end}
  end
  return read
end

--- Returns true if a kind converts values, so that a default must be converted too.
function options.converts(kind) return type(kind) == "string" and kinds[kind] and kinds[kind].read ~= nil end

--- Returns true if a value is of a kind.
function options.is(kind, value) return value ~= nil and kinds[kind][2](value) ~= nil end

--- Checks one argument: `options.arg("Linear", "in_features", n, "count")` returns the value to use. A kind is one of
--- the words above, a list of strings of which the value must be one, or a function(who, name, value) that returns the
--- value to use or fails.
function options.arg(who, name, value, kind)
  if type(kind) == "table" then return options.choice(who, name, value, kind) end
  if type(kind) == "function" then return kind(who, name, value) end
  local known = kinds[kind]
  if not known then
    local names = lists.sorted_keys(kinds, function(each, row) return not row.read and not each:find "%W" end)
    fail("%s: %s: unknown kind of option %s; kinds are %s", who, name, describe(kind), table.concat(names, ", "))
  end
  if known.read then return known.read(who, name, value) end
  if value == nil then options.absent(who, name, known[1]) end
  local checked = known[2](value, who, name)
  if checked == nil then
    local large = type(value) == "number" and math.abs(value) >= 2 ^ 53 and known[1]:find "^an integer"
      and not known[1]:find " to "
    options.must_be(who, name, known[1] .. (large and " and less than 2^53" or ""), value)
  end
  return checked
end

--- Returns a list after checking that each entry is of a kind; an error names the entry.
function options.entries(who, name, list, kind)
  for i = 1, #options.list(who, name, list) do options.arg(who, ("%s[%d]"):format(name, i), list[i], kind) end
  return list
end

--- Returns a kind's text in help; nil if it has none, as "any" and lists of choices.
function options.kind_text(kind)
  if kind == "any" or kind == "dims" then return nil end
  if kind == "boolean" then return kind end
  local known = type(kind) == "string" and kinds[kind]
  if known and known.help then return known.help end
  return known and (known[1]:gsub("^an? ", ""):gsub(" of at least ", " ≥ ")) or nil
end

--- Fails for an option that `who` does not have; the message lists its options or names the nearest.
function options.unknown(who, key, names)
  if type(key) == "number" and #names > 0 then
    fail("%s: options need names: {%s = …}; options are %s", who, names[1], table.concat(names, ", "))
  end
  local theirs = load_module("luminary.help.pytorch_names").options[key]
  if theirs then fail("%s: unknown option '%s'; %s", who, key, theirs) end
  local near = type(key) == "string" and core.nearest(key, names)
  key = on_one_line(tostring(key), 200)
  if near then fail("%s: unknown option '%s'; did you mean '%s'?", who, key, near) end
  if #names == 0 then fail("%s: unknown option '%s'; it has no options", who, key) end
  fail("%s: unknown option '%s'; options are %s", who, key, table.concat(names, ", "))
end

--- Checks a table of options, which a signature declares: "{stride: pair = {1, 1}}". If they are computed, `spec` has a
--- row for each: `stride = {"pair", {1, 1}}` is its kind and default (nil: none; with a third value `true`, `false`
--- means "none"). Returns a new table of all options. `first` names the option that PyTorch would take as the next
--- positional argument, for the message; by default it is a signature's first.
function options.check(who, given, spec, first)
  if type(spec) == "string" then spec, first = load_module("luminary.base.signature").spec(spec) end
  if options.is_report(given) then given = nil end
  if given ~= nil and not is_plain(given) then
    if first and not core.is_tensor(given) and type(given) ~= "table" then
      fail("%s: options must be in one table at the end: {%s = %s}", who, first,
        type(given) == "string" and ("%q"):format(given) or tostring(given))
    end
    options.must_be(who, "options", "in one table at the end" .. (first and (": {" .. first .. " = …}") or ""), given)
  end
  local out = {}
  for key, value in pairs(given or {}) do
    local row = spec[key]
    if not row then options.unknown(who, key, lists.sorted_keys(spec)) end
    if value == false and row[3] then
      out[key] = false
    else
      out[key] = options.arg(who, key, value, row[1])
    end
  end
  for key, row in pairs(spec) do
    if type(row) ~= "table" then
      options.must_be(who, "the row of option " .. key, 'a list {kind, default}, such as {"number", 0.1}', row)
    end
    local default = row[2]
    if out[key] == nil and type(row[1]) == "function" and default ~= nil then default = row[1](who, key, default) end
    if out[key] == nil then out[key] = type(default) == "table" and {unpack(default)} or default end
  end
  return out
end

-- Maps a function that options.exact returned to the one that it wraps.
local wrapped = setmetatable({}, {__mode = "k"})

-- Names of f's parameters; `more` is true if f takes others after them.
local parameters = setmetatable({}, {__mode = "k", __index = function(t, f)
  local inner = wrapped[f]
  local info = inner and {} or debug.getinfo(f, "u")
  local names = inner and t[inner] or {more = info.isvararg}
  for i = 1, info.nparams or 0 do names[i] = debug.getlocal(f, i) end
  t[f] = names
  return names
end})

--- Returns the names of f's parameters, a list; its field `more` is true if f takes others after them.
function options.parameters(f) return parameters[f] end

--- Sets the names of the parameters of a function that is written with `…` only.
function options.set_parameters(f, names) parameters[f] = names end

-- Maps a function to the text of its signature (base/signature.lua).
local signatures = setmetatable({}, {__mode = "k"})

--- Returns the text of a function's signature; nil if none is declared.
function options.signature(f) return signatures[f] end

--- Sets the text of a function's signature.
function options.set_signature(f, text) signatures[f] = text end

--- Returns the number of arguments without trailing nils, which do not count as too many.
local function count(...)
  local n = select("#", ...)
  while n > 0 and (select(n, ...)) == nil do n = n - 1 end
  return n
end
options.count = count

options.sorted_keys = lists.sorted_keys

--- Returns the arguments as a list, with their number as n.
function options.pack(...) return {n = select("#", ...), ...} end

--- Returns f(...), and calls restore() after it, perhaps twice, also after an error. No yield leaves f.
function options.restoring(restore, f, ...)
  local scope = core.is_grad_enabled() and core.enable_grad or core.no_grad
  local function restored(...)
    restore()
    return ...
  end
  local results = options.pack(pcall(scope, function(...) return restored(f(...)) end, ...))
  restore()
  if not results[1] then error(results[2], 0) end
  return unpack(results, 2, results.n)
end

--- Fails because `who` got more arguments than the `max_count` it takes. The message lists the last max_count of
--- `names`; `what` replaces the word "argument", such as "option".
function options.too_many(who, max_count, names, got, what)
  if max_count == 0 then fail("%s: takes no %ss, got %d", who, what or "argument", got) end
  local list = table.concat(names, ", ", math.max(#names - max_count, 0) + 1):gsub("opts$", "{options}")
  fail("%s: takes at most %d %s%s, got %d%s", who, max_count, what or "argument", max_count == 1 and "" or "s", got,
    list ~= "" and ": " .. list or "")
end

--- Returns f, wrapped so that more arguments than it names are an error; Lua would drop them silently.
--- `max_count` is that number for a function written in C.
function options.exact(who, f, max_count)
  if not max_count then
    local info = debug.getinfo(f, "u")
    if info.isvararg then return f end
    max_count = info.nparams
  end
  local function exact(...)
    if select("#", ...) > max_count and count(...) > max_count then
      options.too_many(who, max_count, parameters[f], count(...))
    end
    return f(...)
  end
  wrapped[exact] = f
  return exact
end

--- Wraps each function of a table that is written in Lua and names all its arguments by options.exact. Returns it.
function options.exact_all(t)
  for _, name in ipairs(core.lua_functions(t)) do t[name] = options.exact(name, t[name]) end
  return t
end

-- Returns masked_fill or masked_fill_ for maskedFill, whichever is known.
local function as_ours(key, known)
  local snake = key:gsub("(%l)(%u)", "%1_%2"):lower()
  return rawget(known, snake) and snake or rawget(known, snake .. "_") and snake .. "_"
end

--- Fails for a name that a table of the library lacks. The message has our name for PyTorch's, or the nearest. `what`
--- names the table, "nn" or "tensors"; the tables after `key` have the known names as keys.
function options.no_name(what, key, ...)
  local known = {}
  for _, table in ipairs {...} do
    for name in pairs(table) do known[name] = true end
  end
  if type(key) ~= "string" then fail("%s has no '%s'", what, tostring(key)) end
  local has = what == "tensors" and "tensors have no field or method" or what .. " has no"
  local shown = on_one_line(key, 60)
  local theirs = load_module "luminary.help.pytorch_names"
  local others = theirs[what] or {}
  local there = others[key]
  if there == nil and what == "luminary" and theirs.tensors[key] == false then there = false end -- x:op and lm.op
  if there == nil then there = as_ours(key, known) or nil end
  if there == nil and others[key:match("^(.*%w)_$") or 1] == false then there = false end -- cumsum_ like cumsum
  if there == false then fail("%s '%s' in this version", has, shown) end
  if there then fail("%s '%s'; %s", has, shown, there:find(" ") and there or "it is named '" .. there .. "' here") end
  local near = core.nearest(key, lists.sorted_keys(known, function(name) return type(name) == "string" end))
  fail("%s '%s'%s", has, shown, near and "; did you mean '" .. near .. "'?" or "")
end

--- Makes reading an absent name of a table of functions an error, which names the nearest; nil would be an absent
--- option. rawget(t, name) tests for a name. The functions fail for more arguments than they name. `later`: names that
--- are loaded at first use, {module [, field]}. Returns t.
function options.strict(who, t, later)
  later = later or {}
  local function missing(_, key)
    -- Absent metamethods are nil, since other libraries test for them.
    if type(key) == "string" and key:sub(1, 2) == "__" then return nil end
    local source = later[key]
    if not source then options.no_name(who, key, t, later) end
    local value = load_module("luminary." .. source[1])
    if source[2] then value = value[source[2]] end
    rawset(t, key, value)
    return value
  end
  local function not_called()
    local names = {}
    for _, known in ipairs {t, later} do
      for name in pairs(known) do names[name] = true end
    end
    names = lists.sorted_keys(names)
    fail("%s is a table of functions, which is not called; %s", who, #names > 8 and "?" .. who .. " lists them"
      or "it has " .. table.concat(names, ", "))
  end
  return setmetatable(options.exact_all(t), {
    __library = who, __index = missing, __call = not_called, lazy = function() return later end,
  })
end

--- Adds names of modules to `later`, for options.strict: {["nn.loss"] = "L1Loss MSELoss"}. Returns it.
function options.at_first_use(modules, later)
  later = later or {}
  for module, names in pairs(modules) do
    for name in names:gmatch "%S+" do later[name] = {module, name} end
  end
  return later
end

--- Loads everything that a library loads at first use, so that pairs lists it. Returns the library.
function options.load_all(library)
  for name in pairs(getmetatable(library).lazy()) do local _ = library[name] end
  return library
end

--- Returns value if it is one of the choices; otherwise fails, lists them and names the nearest.
function options.choice(who, name, value, choices)
  if lists.index_of(choices, value) then return value end
  local near = type(value) == "string" and core.nearest(value, choices)
  options.must_be(who, name, "one of '" .. table.concat(choices, "', '") .. "'", value,
    near and (value:find "%z" and "it contains a NUL byte" or "did you mean '" .. near .. "'?") or nil)
end

return options
