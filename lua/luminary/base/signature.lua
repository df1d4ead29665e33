--- Parses signatures, the texts that describe a function's arguments. Calls are checked by them; errors, help,
--- completion and the reference are made from them.
---
---   F.glu = signature.of("glu(x: tensor, dim: dim = -1)", function(x, dim) … end)
---   F.normalize = signature.of("normalize(x: tensor, {p = 2, dim: dim = 2, eps = 1e-12})", function(x, opts) … end)
---   Linear.init = signature.of("Linear(in_features: count, {bias = true})", function(self, in_features, opts) … end)
---
--- An argument is NAME[: KIND][= DEFAULT], in PyTorch's positional order. Each is passed by position, or by name in a
--- table at the end; a table with names at the end is always that table. Those in braces are optional, and f gets a
--- table of them after the others. A method names self first, which the text omits.
---
--- KIND     a kind of base/options.lua, such as count, count[] (a list) or sizes(2, 1), or choices, "mean" | "sum".
---          With "?" the argument may be nil, with "|false" false. The default kind is that of the default value;
---          without both, f checks the value itself. `lacks` reserves the position of an argument of PyTorch that
---          this library lacks: nil and the default are accepted.
--- DEFAULT  a value, or the name of an argument before it, whose value it then is. A default in parentheses is only
---          shown by help. Of choices without a kind, reduction = "mean" | "sum", it is the first.
--- *        the arguments after it are passed by name alone: PyTorch has others in their positions.
---
--- A text without a name is that of a constructor, whose name is its class's. It is parsed at the first call, or when
--- help first asks.
local debug = require "debug"
local core = require "luminary.core"
local interpreted = require "luminary.base.interpreted"
local options = require "luminary.base.options"

local signature = {}

local fail, is_plain, is_report = options.fail, options.is_plain, options.is_report
local getlocal, source = debug.getlocal, debug.getinfo(1, "S").source -- errors blame no line of this file

local Signature = {}
Signature.__index = Signature

-- ---- from a text to rows

local function blank(s) return ("_"):rep(#s) end

-- Splits a text at a character that is outside of quotes and brackets.
local function split_outside_brackets(text, separator)
  local masked = text:gsub('"[^"]*"', blank):gsub("%b()", blank):gsub("%b{}", blank)
  local parts, from = {}, 1
  while true do
    local at = masked:find(separator, from, true)
    parts[#parts + 1] = text:sub(from, (at or 0) - 1):match "^%s*(.-)%s*$"
    if not at then return parts end
    from = at + 1
  end
end

local function value_of_text(text) return assert(loadstring("return " .. text))() end

local function choices_of(text)
  local parts = split_outside_brackets(text, "|")
  if #parts == 1 and not text:find '^"' then return nil end
  for i, part in ipairs(parts) do parts[i] = value_of_text(part) end
  return parts
end

-- Sets the default of a row, and its kind if the text has none.
local function set_default(row, text, rows)
  row.says = text:match "^%((.*)%)$" or text
  local same = rows.index[text]
  local choices = not same and row.says == text and text:find("|", 1, true) and choices_of(text)
  if same then
    row.from, row[2] = text, row[2] or rows[same][2]
  elseif choices then
    row.says, row[2], row[3] = ("%q"):format(choices[1]), choices, choices[1]
  elseif row.says == text then
    row[3] = value_of_text(text)
    row[2] = row[2] or type(row[3])
  end
end

-- Returns the row of an argument: {name, kind, default, optional, none, lacks, named, from, says}. kind is a name of
-- options.kind or a list of choices.
local function row_of(text, rows, optional, named)
  local head, default = unpack(split_outside_brackets(text, "="))
  local name, kind = head:match "^([%a_][%w_]*)%s*:?%s*(.-)$"
  local row = {name, optional = optional, named = named}
  if kind == "lacks" then
    row.lacks, row[2] = true, default and value_of_text(default) -- the value that is accepted
    return row
  end
  kind, row.none = kind:gsub("|false$", "")
  row.none = row.none > 0 or nil
  if kind:find "%?$" then kind, row.optional = kind:sub(1, -2), true end
  if kind ~= "" then row[2] = choices_of(kind) or kind end
  if default then set_default(row, default, rows) end
  if not row[2] then row[2], row.unchecked = "any", not optional or nil end
  return row
end

--- Parses a text into {who, rows with `index` by name, n_required: number of arguments before the braces, in_table:
--- true if there are braces, max_count: number of positional arguments}.
local function parse(text)
  local who, list = text:match "^([%w_.:]*)(%b())$"
  if not list then error(("malformed signature '%s'"):format(text)) end
  local parsed = setmetatable({who = who ~= "" and who or nil, rows = {index = {}}}, Signature)
  local rows, named = parsed.rows, nil
  local function add_parameters(items, optional)
    for _, item in ipairs(split_outside_brackets(items, ",")) do
      if item:find "^{" then
        parsed.in_table, parsed.n_required = true, #rows
        add_parameters(item:sub(2, -2), true)
      elseif item == "*" then
        named = true
      elseif item ~= "" then
        local row = row_of(item, rows, optional, named)
        rows[#rows + 1], rows.index[row[1]] = row, #rows + 1
      end
    end
  end
  add_parameters(list:sub(2, -2))
  parsed.n_required = parsed.n_required or #rows
  parsed.max_count = #rows
  while parsed.max_count > 0 and rows[parsed.max_count].named do parsed.max_count = parsed.max_count - 1 end
  return parsed
end

local parsed_texts = setmetatable({}, {__index = function(t, text)
  t[text] = parse(text)
  return t[text]
end})

--- Returns the parsed signature of a text.
function signature.parse(text) return parsed_texts[text] end

--- Returns the checked arguments of a call; see Signature:read.
function signature.read(text, who, ...) return parsed_texts[text]:read(who, ...) end

local specs = setmetatable({}, {__index = function(t, items)
  local rows, spec = signature.parse("(" .. items .. ")").rows, {}
  for _, row in ipairs(rows) do
    if not row.lacks then spec[row[1]] = {row[2], row[3], row.none} end
  end
  t[items] = {spec, rows[1][1]}
  return t[items]
end})

--- Returns a signature's options, "{lr: positive = 0.001}", as rows for options.check, and the name of the first.
function signature.spec(items) return unpack(specs[items]) end

-- ---- reading a call

-- Returns the names of the arguments that this library has; `options_only` omits arguments that f checks itself.
local function names_of(rows, options_only, last)
  local names = {}
  for i = 1, last or #rows do
    local row = rows[i]
    if not row.lacks and not (options_only and row.unchecked) then names[#names + 1] = row[1] end
  end
  return names
end

local function unknown(who, key, rows)
  local all, named = names_of(rows), names_of(rows, true)
  local is_near = type(key) == "string" and core.nearest(key, all)
  options.unknown(who, key, (is_near or named[1] == nil) and all or named)
end

local function is_optional(row) return row.optional or row[3] ~= nil or row.from ~= nil or row.lacks ~= nil end

local of_tables = {any = true, list = true, table = true}

-- Returns true if table t, the n-th value, holds arguments by name; otherwise t is the n-th argument itself.
local function has_names(self, n, t)
  local key, row = next(t), self.rows[n]
  if key == nil then return not row or row[2] ~= "list" and (n > self.n_required or is_optional(row)) end
  if type(key) ~= "string" then return false end
  if not row or is_optional(row) or not (row.unchecked or of_tables[row[2]]) then return true end
  local all_near, names = true, names_of(self.rows)
  for name in pairs(t) do
    if self.rows.index[name] then return true end
    all_near = all_near and type(name) == "string" and core.nearest(name, names) ~= nil
  end
  return all_near
end

local function check_names(who, rows, named, n)
  for key in pairs(named) do
    local at = rows.index[key]
    if not at then unknown(who, key, rows) end
    if at <= n then fail("%s: %s is passed twice, by position and by name", who, key) end
  end
end

local function checked_argument(who, row, value, rows)
  if row.unchecked then
    local code = type(value) == "table" and options.stands_for_code(value)
    if code and code.__library then options.must_be(who, row[1], "a value", value) end
    return value
  elseif row.lacks then
    if value ~= nil and value ~= row[2] then unknown(who, row[1], rows) end
    return nil
  elseif value == nil then
    value = row[3]
    if value == nil and is_optional(row) then return nil end
    if type(value) == "table" then value = {unpack(value)} end
  elseif value == false and row.none then
    return false
  end
  return options.arg(who, row[1], value, row[2])
end

local of_dims = {dim = true, dims = true}

local nothing = {}

-- Returns the number of a call's positional arguments, and the table of the named ones.
local function positions(self, who, ...)
  local n, named, last = select("#", ...), nothing, nil
  while n > 0 do
    last = (select(n, ...))
    if last ~= nil and not is_report(last) then break end
    n = n - 1
  end
  if n > 0 and is_plain(last) and has_names(self, n, last) then named, n = last, n - 1 end
  if n > self.max_count then options.too_many(who, self.max_count, names_of(self.rows, false, self.max_count), n) end
  if named ~= nothing then check_names(who, self.rows, named, n) end
  return n, named
end

-- Returns the line that checks the i-th argument of a call.
local function check_line(i, row, index)
  local here = ("a%d = "):format(i)
  if row.unchecked then return ('if type(a%d) == "table" then checked(who, rows[%d], a%d) end'):format(i, i, i) end
  local line = here .. ("checked(who, rows[%d], a%d, rows)"):format(i, i)
  local plain = row[3] ~= nil and type(row[3]) ~= "table" and not options.converts(row[2])
  if plain then line = ("if a%d == nil then %srows[%d][3] else %s end"):format(i, here, i, line) end
  if of_dims[row[2]] then
    line = ("if a%d == 1 then ported(who, rows[%d][1], a1, LEVEL, called) end "):format(i, i) .. line
  end
  return row.from and line .. (" if a%d == nil then %sa%d end"):format(i, here, index) or line
end

-- Compiles the reader of a text's calls to Lua code without loops or tables. The reader is a function of the parameters
-- `head` and then the arguments, and ends with the statement `tail`. In it, VALUES are the arguments, with those in
-- braces in a table at the end, or all in one table (`by_name`); FIELDS sets fields of `into` to them. who: Lua code
-- for the name in messages, if the text has none. called: the function that scripts call, at that level of the stack.
local function compiled(parsed, head, tail, how)
  local rows, names, guards, by_names = parsed.rows, {}, {'select("#", ...) > 0'}, {}
  local lines, values, named, fields = {}, {}, {}, {}
  for i, row in ipairs(rows) do
    names[i], guards[#guards + 1] = "a" .. i, ('type(a%d) == "table"'):format(i)
    if row.named then guards[#guards + 1] = ("a%d ~= nil"):format(i) end
    by_names[i] = ("if n < %d then a%d = named[%q] end"):format(i, i, row[1])
    lines[i] = check_line(i, row, rows.index[row.from])
    fields[i] = ("into[%q] = a%d"):format(row[1], i)
    local in_table = how.by_name or i > parsed.n_required
    local into = in_table and named or values
    into[#into + 1] = in_table and ("[%q] = a%d"):format(row[1], i) or "a" .. i
  end
  if how.by_name or parsed.in_table then values[#values + 1] = "{" .. table.concat(named, ", ") .. "}" end
  names[#names + 1] = "..."
  local code = ([[
    local parsed, rows, f, called, checked, ported, positions, own = ...
    return function(HEAD NAMES)
      local who = own or WHO
      if GUARDS then
        local n, named = positions(parsed, who, NAMES)
        BYNAMES
      end
      LINES
      TAIL
    end]]):gsub("LINES", function() return table.concat(lines, "\n") end):gsub("TAIL", tail):gsub("%u%u%u+", {
    HEAD = head, NAMES = table.concat(names, ", "), GUARDS = table.concat(guards, " or "), WHO = how.who or "nil",
    BYNAMES = table.concat(by_names, "\n"), VALUES = table.concat(values, ", "), FIELDS = table.concat(fields, "\n"),
    LEVEL = how.level or "1",
  }):gsub(", %)", ")")
  local chunk = setfenv(assert(loadstring(code, source)), getfenv(1)) -- the globals of this file, not of the thread
  return chunk(parsed, rows, how.f, how.called, checked_argument, core.check_ported_dim, positions, parsed.who)
end

-- ---- calls without a function of their own

local as_values = {who = "given", level = "2"}

--- Returns the checked arguments of a call, in order; those in braces are in one table at the end. `who` is the name in
--- messages if the text has none.
function Signature:read(who, ...)
  if not self.reader then self.reader = compiled(self, "given,", "return VALUES", as_values) end
  return self.reader(who, ...)
end

--- Sets the fields of an object or table to the checked arguments of a call. Returns it.
function Signature:fill(into, who, ...)
  if not self.filler then self.filler = compiled(self, "into, given,", "FIELDS return into", as_values) end
  return self.filler(into, who, ...)
end

-- ---- functions with signatures

local function declared_as(f, text)
  options.set_signature(f, text)
  return f
end

local function reading(text, f, by_name)
  local call, called
  if getlocal(f, 1) == "self" then
    function called(self, ...)
      if not call then
        local how = {f = f, called = called, who = "self.__name"}
        call = compiled(parsed_texts[text], "self,", "return f(self, VALUES)", how)
      end
      return call(self, ...)
    end
  else
    function called(...)
      if not call then
        call = compiled(parsed_texts[text], "", "return f(VALUES)", {f = f, called = called, by_name = by_name})
      end
      return call(...)
    end
  end
  return called
end

--- Returns f with the signature `text`: arguments by position or by name are checked, and defaults filled in.
function signature.of(text, f) return declared_as(reading(text, f), text) end

--- Returns f with the signature `text`, for an f that takes one table of all arguments by name.
function signature.by_name(text, f) return declared_as(reading(text, f, true), text) end

--- Returns an `init` that sets an object's fields to the arguments, and then calls after_init(object), unless nil.
function signature.fields(text, after_init)
  return declared_as(function(self, ...)
    parsed_texts[text]:fill(self, self.__name, ...)
    if after_init then after_init(self) end
  end, text)
end

--- Copies the options to fields of an object.
function signature.assign(object, opts)
  for name, value in pairs(opts) do object[name] = value end
end

--- Returns the text for a function that declares none: its parameters, of any values. nil if it is variadic.
function signature.of_parameters(who, f)
  local names = options.parameters(f)
  if names.more or names[#names] == "opts" then return nil end
  return ("%s(%s)"):format(who, table.concat(names, ", ", names[1] == "self" and 2 or 1))
end

--- Lets the functions of a table that declare no signature take their parameters by name too. Returns the table.
signature.all = interpreted(function(t) -- see load_module.lua
  for name, f in pairs(t) do
    local is_lua = type(f) == "function" and debug.getinfo(f, "S").what ~= "C"
    local text = is_lua and not options.signature(f) and signature.of_parameters(name, f)
    if text then
      t[name] = reading(text, f)
      options.set_parameters(t[name], options.parameters(f))
    end
  end
  return t
end)

--- Declares that f, which reads its arguments itself, takes the arguments of a text. Returns f.
function signature.note(text, f) return declared_as(f, text) end

--- Returns the parsed signature of a function, of a class's constructor, or of a callable object; nil if it has none.
function signature.declared(value)
  local code = options.stands_for_code(value)
  local metatable = type(value) == "table" and getmetatable(value)
  local f = code and code.instance and value.init or type(metatable) == "table" and rawget(metatable, "takes") or value
  local text = options.signature(f)
  return text and parsed_texts[text]
end

-- ---- in help

local function row_text(row) return row[1] .. (row.says and " = " .. row.says or "") end

--- Returns a call's arguments as help shows them, "x, dim [, {keepdim = false}]", from row `first` on.
function Signature:call(first)
  local text, named = "", {}
  local function add_parameter_text(part, optional)
    if text ~= "" then part = ", " .. part end
    if optional then part = (text ~= "" and " [" or "[") .. part .. "]" end
    text = text .. part
  end
  for i = first or 1, #self.rows do
    local row = self.rows[i]
    if i <= self.n_required then
      add_parameter_text(row_text(row), not row.unchecked and is_optional(row))
    elseif not row.lacks then
      named[#named + 1] = row_text(row)
    end
  end
  if #named > 0 then add_parameter_text("{" .. table.concat(named, ", ") .. "}", true) end
  return text
end

--- Maps functions that are made of entries to their help texts, PATH(): ABOUT; classes have them in __help.
signature.texts = setmetatable({}, {__mode = "k"})

--- Sets the help text of a function that is made of an entry. Returns the function.
function signature.explained(path, about, f)
  signature.texts[f] = signature.help(path, about)
  return f
end

--- Returns the help text "PATH(): ABOUT"; help puts the signature's arguments in (). Lines of `about` are joined.
function signature.help(path, about) return ("%s(): %s"):format(path, (about:gsub("%s*\n%s*", " "))) end

return signature
