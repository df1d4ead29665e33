--- Finds hints for LuaJIT's own errors: one line with the correct form, which `luminary FILE` and the prompt add.
---
--- A row of the table is {pattern of the message, pattern of its line or nil, hint}. The first row whose patterns match
--- wins; if the line is unknown, rows with a pattern for it do not match. A hint is text, or a function(problem) that
--- returns text or nil. problem has `message`, `line` (its text), `captures` of the message's pattern, find(name),
--- which returns the owner of that field and the owner's value, and value(path), a path's value.
local debug = require "debug"
local lists = require "luminary.base.lists"
local read_file = require "luminary.base.read_file"
local frames = require "luminary.base.script_frames"

local find, gmatch, gsub, match, sub = string.find, string.gmatch, string.gsub, string.match, string.sub
local pcall, tonumber, type, rawget, next, ipairs, getfenv = pcall, tonumber, type, rawget, next, ipairs, getfenv
local getinfo, getlocal, getupvalue, getmetatable_of = debug.getinfo, debug.getlocal, debug.getupvalue,
  debug.getmetatable

local hints = {}

--- The texts of chunks that are not files, by their names in messages.
hints.texts = {}

local slices = "slices are tables: x[{{1, 2}}] is Python's x[0:2], x[{{}, {1, 2}}] is x[:, 0:2]"
local steps = "slices are tables: x[{{1, -1, 2}}] is Python's x[::2]"
local equality = "== of tensors is whether both are the same object: x:eq(y) compares their elements"
local python = require "luminary.help.names_page" "Python"
local constants = python.None
local pairs_of_table = "for name, value in pairs(t) do … end walks a table"
local rows_of_tensor = "a tensor is walked by its first dim: for i = 1, #x do local row = x[i] … end"
local lambda = "function(x) return … end"
local returns_list = lists.set [[
  meshgrid split chunk unbind tensor_split hsplit vsplit dsplit split_with_sizes random_split broadcast_tensors]]

-- Hints by the first word of a line that Lua parses as a name without an assignment.
local statements = {
  import = 'local lm = require "luminary"', from = 'local lm = require "luminary"',
  def = "function name(x) … end", class = 'local Net = nn.Module:extend "Net"', elif = "elseif … then",
  with = "a scope takes a function: lm.no_grad(function() … end)", del = "x = nil", raise = 'error("…")',
  assert = "assert(x == 1)", let = "local x = …", const = "local x = …", var = "local x = …",
  pass = "an empty block needs no statement", continue = "Lua has no continue: put the rest into if … then … end",
  print = "print(x)", lambda = lambda, async = "function name(x) … end", yield = "coroutine.yield(x)",
  global = "a name without local is a global", nonlocal = "functions assign to local names around them as to their own",
  ["if"] = "if x == 1 then … end", ["else"] = "if x == 1 then … else … end", try = python.try,
  ["while"] = "while true do … end", ["for"] = "for i = 1, n do … end; for i, v in ipairs(list) do … end",
}

local blocks = lists.set "if elif else while for try def class with async"

--- Returns the hint for a line that begins a block of Python, such as `if a:`; nil for others.
function hints.block(line)
  local bare = gsub(gsub(line, "'[^']*'", "''"), '"[^"]*"', '""')
  local word = match(bare, "^%s*(%a+)%f[%W].*:%f[%s%z]")
  local is_lua = find(bare, "%f[%w]then%f[%W]") or find(bare, "%f[%w]do%f[%W]")
  return blocks[word] and not is_lua and statements[word] or nil
end

-- Globals that PyTorch programs expect; Python's are in help/pytorch_names.md.
local globals = {
  torch = 'local lm = require "luminary"; torch.ones is lm.ones', lm = 'local lm = require "luminary"',
  nn = "local nn = lm.nn", F = "local F = lm.nn.functional", optim = "local optim = lm.optim",
  data = "local data = lm.data", dist = "local dist = lm.dist",
  help = "at the prompt ?name explains; in a script print(lm.help(\"name\"))",
}

-- Functions of Python's module os, and their equivalents.
local of_os = {
  path = "paths are strings; lm.paths has concat, filep, dirp, basename and others", environ = 'os.getenv "NAME"',
  makedirs = "lm.paths.mkdir(folder)", mkdir = "lm.paths.mkdir(folder)", listdir = "lm.paths.dir(folder)",
  getcwd = "lm.paths.cwd()",
}

-- Methods of Python's dicts and lists, and their equivalents.
local of_tables = {
  items = pairs_of_table, keys = pairs_of_table, values = pairs_of_table, len = "#x is the length of a list",
  append = "table.insert(list, v) appends", join = "table.concat(list, separator) joins text",
  split = 'for part in text:gmatch "[^,]+" do … end', strip = 'text:match "^%s*(.-)%s*$"',
  startswith = "text:sub(1, n)", pop = "table.remove(list)",
  extend = "for _, v in ipairs(more) do table.insert(list, v) end",
}

local methods = {["<"] = "lt", [">"] = "gt", ["<="] = "le", [">="] = "ge"}

local function comparison(problem)
  local left, how, right = match(problem.line or "", "([%w_%)%]]+) *([<>]=?) *([%w_]+)")
  if not how then left, how, right = "x", ">", "1" end
  if tonumber(left) then left, how, right = right, (gsub(how, "[<>]", {["<"] = ">", [">"] = "<"})), left end
  if not find(left, "^[%a_][%w_]*$") then left = "x" end
  return ("tensors are compared by methods: %s:%s(%s); of a tensor of one element %s:item() %s %s"):format(left,
    methods[how], right, left, how, right)
end

local function is_tensor(v)
  local core = package.loaded["luminary.core"]
  return core and core.is_tensor(v)
end

-- Returns the value in the nearest assignment to that name above the line, if it matches a pattern.
local function assigned(problem, name, pattern)
  for at = problem.number or 0, (problem.number or 0) - 20, -1 do
    local value = match(problem.lines[at] or "", "%f[%w_]" .. name .. "%s*=%f[^=](.*)")
    if value then return match(value, pattern) end
  end
end

local function has_method(v, name)
  local ok, value = pcall(function() return v[name] end)
  return ok and type(value) == "function"
end

-- Returns how to iterate over a value of the library, in place of pairs and ipairs.
local function walk_of(v)
  local of_module = "net:named_children() walks a module"
  local of_loader = "for x, y in loader:iter() do … end walks a loader"
  if is_tensor(v) then return rows_of_tensor end
  if has_method(v, "named_children") then return of_module end
  if has_method(v, "iter") then return of_loader end
  if has_method(v, "get") then return "for i = 1, #set do local sample = set:get(i) … end walks a set" end
  return rows_of_tensor .. "; " .. of_module .. "; " .. of_loader
end

-- Returns what hint_of(line) returns for the last line that has a hint, up to that of the error; nil without one.
local function hint_above(problem, hint_of)
  for at = problem.number or 0, (problem.number or 0) - 20, -1 do
    local hint = hint_of(problem.lines[at] or "")
    if hint ~= nil then return hint end
  end
end

-- Returns the hint for local a, b = f(…) if f returns one list.
local function several(problem)
  return hint_above(problem, function(line)
    local names, of = match(line, "local%s+([%w_,%s]-)%s*=%s*[%w_%.:]-([%w_]+)%s*[%({]")
    if not names or not find(names, ",%s*" .. problem.captures[1] .. "%f[^%w_]") then return nil end
    return returns_list[of] and ("%s returns one list: local %s = unpack(list)"):format(of, names) or false
  end)
end

local rows = {
  -- ---- syntax errors
  {"expected near", "%f[%w]lambda%f[%W][%w_, ]*:", lambda},
  {"[ld] near '::'", "%[[^%]]*::", steps},
  {"[ld] near ':'", "%[[^%]]*:", slices},
  {"function arguments expected near '%]'", "%[[^%]]*:", slices},
  {"function arguments expected near '='", "^%s*[%w_.]+%s*:", "Lua has no annotations of types: local x = 3"},
  {"'%)' expected near ','", "%([^()]*,", "a tuple is a list in braces: f({a, b}, 1); several results have no "
    .. "parentheses: a, b = f()"},
  {"[ld] near '#'", nil, "comments begin with --"},
  {"attempt to get length of global", "^%s*#%s", "comments begin with --"},
  {"[ld] near '\"", '"""', "a text of several lines is [[…]], a comment --[[…]]"},
  {"[ld] near '@'", "^%s*@", "a decorator is a call: f = decorator(f)"},
  {"expected near 'if'", "%sif%s.*%selse%s", "a if c else b is c and a or b"},
  {"'=' expected near", "%f[%w]pass%f[%W]", statements.pass},
  {"expected near", nil, function(problem) return hint_above(problem, hints.block) end}, -- finds a block of Python
  {"ambiguous syntax", nil, "a line that begins with ( continues the one before: write ;(…), or name the value first: "
    .. "local loss = …"},
  {"[ld] near '/'", "^%s*//", "comments begin with --"},
  {"[ld] near '/'", "//", "a // b is math.floor(a / b) of numbers, a:floor_divide(b) of tensors"},
  {"expected near '[-+*/]'", "[-+*/]=", "x = x + 1; of a tensor in place x:add_(1)"},
  {"expected near '[-+]'", "[-+][-+]", "x = x + 1"},
  {"[ld] near '>'", ">>", "a >> b is bit.rshift(a, b) of numbers, lm.bitwise_right_shift(a, b) of tensors"},
  {"[ld] near '<'", "<<", "a << b is bit.lshift(a, b) of numbers, lm.bitwise_left_shift(a, b) of tensors"},
  {"'<name>' expected near 'repeat'", nil, "repeat is a word of Lua: x:repeat_tensor(2, 1)"},
  {"[ld] near '&'", nil, "a & b is a:logical_and(b) of tensors, `a and b` of conditions, bit.band(a, b) of numbers"},
  {"[ld] near '|'", nil, "a | b is a:logical_or(b) of tensors, `a or b` of conditions, bit.bor(a, b) of numbers"},
  {"[ld] near '!'", "!=", "a != b is a ~= b, of tensors a:ne(b)"},
  {"[ld] near '!'", nil, "!a is `not a`, of tensors a:logical_not()"},
  {"[ld] near '~'", nil, "~a is a:logical_not() of tensors, `not a` of conditions, bit.bnot(a) of numbers"},
  {"[ld] near '%*'", "%*%*", "a ** b is a ^ b"},
  {"[ld] near '@'", "[%w_%)%]]%s*@", "a @ b is a:matmul(b)"},
  {"[ld] near '%['", "[=%(,]%s*%[", "lists have braces: {1, 2}; a tensor is lm.tensor {1, 2}"},
  {"'%]' expected near ','", "%[[^%]]*,", "an index of several dims is a table: x[{1, 2}], x[{{}, 1}]"},
  {"'then' expected near 'else'", "=.+%sif%s", "a if c else b is c and a or b"},
  {"'%)' expected near '='", "[%(,]%s*[%a_][%w_]*%s*=[^=]", "arguments by name stand in a table at the end: "
    .. "f(x, {dim = 2})"},
  {"'}' expected near ':'", nil, 'a dict is {name = value}, or {["a name"] = value}'},
  {"expected near '[isNonet]+'", "%f[%w]is%f[%W]", "x is None is x == nil, x is not None is x ~= nil"},
  {"'%)' expected near '%.'", "[\"']%.%a", 'a method of a text in quotes is ("text"):upper()'},
  {"'=' expected near", "^%s*(%a+)", function(problem) return statements[match(problem.line, "^%s*(%a+)")] end},
  -- ---- runtime errors
  {"attempt to index a boolean value", nil, function(problem)
    for indexed in gmatch(problem.line or "", "(%b())%s*[%.:%[]") do
      if find(indexed, "[=~]=") then return equality end
    end
  end},
  {"attempt to perform arithmetic on a boolean value", "[=~]=", equality},
  {"attempt to compare [%a ]*boolean", "[=~]=", equality},
  {"attempt to [%a ]+ '([%w_]+)' %(a boolean value%)", nil, function(problem)
    return assigned(problem, problem.captures[1], "[=~]=") and equality
  end},
  {"tensor[^\n]*, got [tf][ra][ul]s?e$", nil, equality}, -- true or false
  {"got nil", "%f[%w_][TFN][rao][uln]s?e%f[^%w_]", constants}, -- True, False or None
  {"is missing or nil", "%f[%w_][TFN][rao][uln]s?e%f[^%w_]", constants},
  {"attempt to call %a+ 'f' %(a nil value%)", "%f[%w_]f[\"']", 'f"…" is ("%d: %s"):format(i, name)'},
  {"attempt to perform arithmetic on a string value", "[\"']%s*%%", '"%d" % n is ("%d"):format(n)'},
  {"attempt to perform arithmetic on a string value", "%+", '.. joins texts: "a" .. "b"'},
  {"attempt to compare [%a ]*userdata", nil, comparison},
  {"attempt to call a userdata value", "%f[%w]for%f[%W].*%f[%w]in%f[%W]", rows_of_tensor},
  {"attempt to call %a+ '[^']*' %(a userdata value%)", "%f[%w]for%f[%W].*%f[%w]in%f[%W]", rows_of_tensor},
  {"attempt to call a table value", "%f[%w]for%f[%W].*%f[%w]in%f[%W]", "for i, v in ipairs(list) do … end; "
    .. "pairs(t) walks names"},
  {"attempt to call %a+ '([^']*)' %(a nil value%)", nil, function(problem)
    return of_tables[problem.captures[1]]
  end},
  {"attempt to call method '([^']*)' %(a %a+ value%)", nil, function(problem)
    local name = problem.captures[1]
    local owner = problem.find(name)
    local core = package.loaded["luminary.core"]
    local is_field = core and core.is_tensor(owner) and core.tensor_fields[name]
    if is_field or not find(problem.message, "(a nil value)", 1, true) then
      return (".%s is a field and not a method: write x.%s"):format(name, name)
    end
    return hints.nearest_field(owner, name)
  end},
  {"attempt to call field '([^']*)' %(a userdata value%)", "[%w_]%(%s*%)", function(problem)
    local name = problem.captures[1]
    if not find(problem.line, "%f[%w_]" .. name .. "%(%s*%)") then return nil end
    return (".%s is a field and not a function: write x.%s"):format(name, name)
  end},
  {"attempt to call %a+ '[^']*' %(a userdata value%)", nil, "a tensor is indexed with brackets: x[1]"},
  {"bad argument #%d+ to '[^']*' %(number expected, got userdata%)", "format", "format takes numbers: "
    .. '("%.3f"):format(loss:item())'},
  {"bad argument #%d+ to '[^']*' %(number expected, got userdata%)", nil, "a tensor is no number: x:item() is the "
    .. "number of one element"},
  {"bad argument #%d+ to '[^']*' %(string expected, got userdata%)", nil, "tostring(x) is the text of a tensor, "
    .. "x:item() the number of one element"},
  {"bad argument #1 to '[^']*' %(table expected, got userdata%)", "pairs", function(problem)
    return walk_of(problem.value(match(problem.line, "pairs%s*%(%s*([%a_][%w_%.]*)%s*%)") or ""))
  end},
  {"invalid value %(userdata%) at index %d+ in table for 'concat'", nil, "table.concat takes text: tostring(x)"},
  {"attempt to concatenate .*%(a userdata value%)", nil, "tostring(x) is its text"},
  {"attempt to perform arithmetic on .*%(a table value%)", nil, "a table is no tensor: t[1] is its first entry, "
    .. "lm.tensor(t) makes a tensor of numbers"},
  {"'for' limit must be a number", "size%(%s*%)", "x:size() is a list: x:size(1), or #x, is its first"},
  {"'for' limit must be a number", "%.shape%f[^%w_%[]", "x.shape is a list: x.shape[1], or #x, is its first"},
  {"'for' [%a ]+ must be a number", nil, function(problem)
    local bounds = match(problem.line or "", "%f[%w]for%s+[%w_]+%s*=(.-)%f[%w]do%f[%W]") or ""
    for path in gmatch(bounds, "%f[%w_.][%a_][%w_%.]*") do
      if is_tensor(problem.value(path)) then
        return "a tensor is no number: #x is its first size, x:item() the number of one element"
      end
    end
  end},
  {"attempt to [%a ]+ field 'grad' %(a nil value%)", nil, "x.grad is nil until backward() has come to x, which "
    .. "requires_grad; results of ops keep theirs after x:retain_grad()"},
  {"attempt to [%a ]+ local '([^']*)' %(a nil value%)", nil, several},
  {"attempt to [%a ]+ global '([^']*)' %(a nil value%)", nil, function(problem)
    return globals[problem.captures[1]] or python[problem.captures[1]]
  end},
  {"attempt to [%a ]+ field '([^']*)' %(a nil value%)", "%f[%w_]os%.", function(problem)
    return of_os[problem.captures[1]]
  end},
  {"attempt to [%a ]+ field '([^']*)' %(a nil value%)", nil, function(problem)
    return hints.nearest_field((problem.find(problem.captures[1])), problem.captures[1])
  end},
}

-- ---- owners of fields

local function record_of(v)
  local record = getmetatable_of(v)
  return type(record) == "table" and rawget(record, "values") and rawget(record, "class") and record or nil
end

local function add_names(names, t)
  for name in next, t do
    if type(name) == "string" and not find(name, "^__") and #names < 2000 then names[#names + 1] = name end
  end
end

--- Returns "Net has no field 'wieght'; did you mean 'weight'?" for an object or a table; nil if no name is near.
function hints.nearest_field(owner, name)
  local core, record, names = package.loaded["luminary.core"], record_of(owner), {}
  if not core or not record and type(owner) ~= "table" then return nil end
  if record then
    local class = record.class
    add_names(names, record.values)
    while type(class) == "table" do
      add_names(names, class)
      class = rawget(class, "super")
    end
  else
    add_names(names, owner)
  end
  local near = core.nearest(name, names)
  local who = record and record.class.__name or "the table"
  return near and ("%s has no field '%s'; did you mean '%s'?"):format(who, name, near)
end

-- Returns the variables of the function at that level of the stack: its locals, then upvalues, then globals.
local function variables_at(level)
  local seen = {}
  local f = getinfo(level + 1, "f").func
  for i = 1, 60 do
    local name, value = getupvalue(f, i)
    if not name then break end
    seen[name] = {value}
  end
  for i = 1, 250 do
    local name, value = getlocal(level + 1, i)
    if not name then break end
    seen[name] = {value}
  end
  local globals_of = getfenv(f)
  return function(name)
    if seen[name] then return seen[name][1] end
    return rawget(globals_of, name)
  end
end

local function field(of, name)
  local record = record_of(of)
  if record then return record.values[name] end
  if type(of) == "table" then return rawget(of, tonumber(name) or name) end
  local ok, value = pcall(function() return of[name] end)
  return ok and value or nil
end

-- Returns the value at a path of names such as self.fc.
local function value_at(variable, path)
  local value
  for part in gmatch(path, "[^%.]+") do
    if value == nil then value = variable(part) else value = field(value, part) end
    if value == nil then return nil end
  end
  return value
end

-- Returns the path before `.name` or `:name` in the line that failed, such as self.fc, and the value there.
local function owner_of(variable, line, name)
  for path in gmatch(" " .. line, "%f[%w_]([%a_][%w_%.]*)%s*[%.:]%s*" .. name .. "%f[^%w_]") do
    local value = value_at(variable, path)
    if value ~= nil then return value, field(value, name) end
  end
end

-- ---- positions

local LONGEST = 500 -- bytes of a line to search: patterns may be quadratic in its length

local function text_of(path)
  if hints.texts[path] then return hints.texts[path] end
  return require("luminary.core").file_kind(path) == "a regular file" and read_file(path, 1e6)
end

-- Returns what debug.getinfo says of the function that runs there, or of the script's innermost one, and its variables.
local function frame_of(path, number)
  for level = 1, 60 do
    local info = getinfo(level, "Sl")
    if not info then return nil end
    local at_place = info.short_src == path and info.currentline == number
    if at_place or not path and info.currentline > 0 and frames.is_scripts(info.short_src .. ":") then
      return info, variables_at(level)
    end
  end
end

local function place_of(before)
  local path, number = match(before, "([^\n\t]+):(%d+): [^\n\t]*$")
  if not path then return nil end
  path = match(path, "^.*: ([^:]+)$") or path -- DataLoader: worker 0, sample 3 of Set: script.lua
  return path, tonumber(number)
end

-- Adds to `problem` the line that `before` names ("FILE:LINE:"), its file's lines, and functions that read its locals.
local function locate(problem, before)
  local path, number = place_of(before)
  local info, variable = frame_of(path, number)
  if info then path, number = info.short_src, info.currentline end
  local source = info and sub(info.source, 1, 1) == "@" and sub(info.source, 2) or path
  local text, lines = source and text_of(source) or "", {}
  for line in gmatch(text, "([^\n]*)\n?") do lines[#lines + 1] = #line <= LONGEST and line or "" end
  while number and number > 1 and not find(lines[number] or "", "%S") do number = number - 1 end -- at the file's end
  problem.number, problem.lines, problem.line = number, lines, lines[number]
  function problem.value(path_of_names) return variable and value_at(variable, path_of_names) end
  function problem.find(name)
    if variable and problem.line then return owner_of(variable, problem.line, name) end
  end
end

local function hint_of(message)
  local head = match(message, "^(.-)\nstack traceback") or message
  local problem = {message = head}
  for _, row in ipairs(rows) do
    local start = find(head, row[1])
    if start and not problem.find then locate(problem, sub(head, 1, start - 1)) end
    if start and (not row[2] or problem.line and find(problem.line, row[2])) then
      problem.captures = {match(head, row[1])}
      local hint = row[3]
      if type(hint) == "function" then hint = hint(problem) end
      if hint then return hint end
    end
  end
end

--- Returns the hint for a message, called in the handler of the error; nil if there is none.
function hints.of(message)
  local ok, hint = pcall(hint_of, message)
  return ok and hint or nil
end

return hints
