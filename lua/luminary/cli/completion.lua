--- Completes words at the prompt by Tab. It runs no code of the user's: it reads values as rawget does, and follows
--- __index of metatables if that is a table.
local core = require "luminary.core"
local class = require "luminary.base.class"
local help = require "luminary.help"
local lists = require "luminary.base.lists"
local paths = require "luminary.paths"
local commands = require "luminary.cli.prompt_commands"
local load_module = require "luminary.base.load_module"

local getmetatable_of, sort = require("debug").getmetatable, table.sort
local next, rawget, type, pcall = next, rawget, type, pcall
local match, gmatch, sub, find = string.match, string.gmatch, string.sub, string.find

local complete = {}

local KEYWORDS = lists.set [[
  and break do else elseif end false for function goto if in local nil not or repeat return then true until while]]
local DEEPEST = 20 -- levels of metatables

-- Returns the table of a value's names, and true for an object, whose methods take a colon.
local function names_of(value)
  local record = class.record(value)
  if record then return record.values, true end
  if type(value) == "table" then return value, false end
  local mt = getmetatable_of(value)
  local behind = type(mt) == "table" and rawget(mt, "__index")
  return type(behind) == "table" and behind or nil, true
end

-- Calls visit(table) for a table and the tables behind it, until it returns a value other than nil. Returns that.
local function each_table(t, visit)
  for _ = 1, DEEPEST do
    if type(t) ~= "table" then return nil end
    local result = visit(t)
    if result ~= nil then return result end
    local mt = getmetatable_of(t)
    t = type(mt) == "table" and rawget(mt, "__index")
  end
end

-- Calls visit(name, value) for each name of a table and of the tables behind it.
local function each_name(t, visit)
  each_table(t, function(names)
    for name, value in next, names do visit(name, value) end
  end)
end

local makes_tensor = {grad = true, data = true, T = true, mT = true}

-- Returns value[key], or nil.
local function field(value, key)
  if core.is_tensor(value) then
    local ok, found = pcall(function() return makes_tensor[key] and value[key] end)
    return ok and found or nil
  end
  if type(value) == "table" and type(key) == "number" then return rawget(value, key) end
  local lazy = help.lazy(value)
  if lazy and lazy[key] then return value[key] end
  return each_table(names_of(value), function(names) return rawget(names, key) end)
end

-- Returns the value of the path at the end of the text.
local function resolve(text, globals)
  local rest, index = match(text, "^(.*)%[%s*(%-?%d+)%s*%]$")
  index = index and tonumber(index)
  if not rest then rest, index = match(text, "^(.*)%[%s*[\"']([^\"'%]]*)[\"']%s*%]$") end
  if not rest then
    rest, index = match(text, "^(.-)([%a_][%w_]*)$")
    if not rest then return nil end
    local before = match(rest, "^(.*)%.$")
    if not before then return field(globals, index) end
    rest = before
  end
  local of = resolve(rest, globals)
  if of == nil then return nil end
  return field(of, index)
end

--- Returns the value of a path such as net.blocks[2].weight; nil if there is none.
function complete.value(path, globals)
  local ok, value = pcall(resolve, path, globals)
  return ok and value or nil
end

local function is_called(value)
  local mt = getmetatable_of(value)
  return type(value) == "function" or type(mt) == "table" and rawget(mt, "__call") ~= nil
end

-- Offers the names of a table of tensors' methods or fields.
local function offer_of_tensors(names, offer)
  for name in next, names do
    if not help.is_inner(name) then offer(name) end
  end
end

-- Calls offer(name) for each name that may follow the value and a dot or a colon.
local function members(value, separator, offer)
  local methods_only = separator == ":"
  if core.is_tensor(value) then return offer_of_tensors(methods_only and core.methods or core.tensor_fields, offer) end
  local names, is_object = names_of(value)
  each_name(names, function(name, v)
    local called = type(v) == "function"
    if methods_only and (called or is_called(v)) or not methods_only and not (is_object and called) then offer(name) end
  end)
  if not methods_only then
    for name in next, help.lazy(value) or {} do offer(name) end
  end
end

-- Returns the path at the end of a text, "optim.SGD" or "net:to"; nil for a keyword.
local function path_before(text)
  local path = match(text, "([%a_][%w_%.:%[%]]*)%s*$")
  return not KEYWORDS[path] and path or nil
end

-- Returns the positions of brackets that are open at the end of the text, and the contents of an open string; nil
-- within a comment.
local function open_at_end(text)
  local open, i = {}, 1
  while i <= #text do
    local c = sub(text, i, i)
    if find(c, "[\"']") then
      local quote, from = c, i + 1
      repeat
        i = i + (sub(text, i, i) == "\\" and 2 or 1)
        c = sub(text, i, i)
      until c == quote or c == ""
      if c == "" then return open, sub(text, from) end
    elseif sub(text, i, i + 1) == "--" then
      return nil
    elseif find(c, "[%(%[{]") then
      open[#open + 1] = i
    elseif find(c, "[%)%]}]") then
      open[#open] = nil
    end
    i = i + 1
  end
  return open
end

-- Returns the call in whose table of options the text ends, where a name may begin: the function's path, and the
-- table's text so far; nil elsewhere.
local function options_call(text, open)
  local brace, outer = open[#open], open[#open - 1]
  if not brace or sub(text, brace, brace) ~= "{" then return nil end
  local inside = sub(text, brace + 1)
  if not (find(inside, "^%s*[%w_]*$") or find(inside, "[,;]%s*[%w_]*$")) then return nil end
  local before = sub(text, 1, brace - 1)
  local path = path_before(before) -- nn.CrossEntropyLoss {
  if not path and outer and sub(text, outer, outer) == "(" and find(before, "[%(,]%s*$") then
    path = path_before(sub(text, 1, outer - 1))
  end
  return path, inside
end

-- Calls offer(name) for each option of the function at a path that the table does not have yet.
local function offer_options(path, inside, globals, offer)
  local owner, name = match(path, "^(.*):([%w_]+)$")
  local value = complete.value(owner or path, globals)
  local given = {}
  for key in gmatch(inside, "([%a_][%w_]*)%s*=") do given[key] = true end
  for _, row in ipairs(value ~= nil and load_module("luminary.help.entry").arguments_of(value, name) or {}) do
    if row.optional and not given[row.name] then offer(row.name) end
  end
end

-- Returns the list of candidates that begin with the text. They replace `word`, the end of the text.
local function beginning_with(text, candidates, word)
  local fitting = lists.filter(candidates, function(name) return sub(name, 1, #text) == text end)
  return lists.map(fitting, function(name) return sub(name, #text - #word + 1) end)
end

-- Returns the files that a path begins; folders end in a slash. Hidden files are listed once their dot is typed.
local function files(path, word)
  local folder, beginning = match(path, "^(.-)([^/]*)$")
  local candidates = {}
  for _, name in ipairs(paths.dir(folder == "" and "." or folder) or {}) do
    if name ~= "." and name ~= ".." and (sub(name, 1, 1) ~= "." or sub(beginning, 1, 1) == ".") then
      candidates[#candidates + 1] = paths.dirp(folder .. name) and name .. "/" or name
    end
  end
  return beginning_with(beginning, candidates, word)
end

--- Returns the words that may replace the word at the end of the text. globals: the table of its names. typed: the word
--- as the line editor sees it, the end of the name of a file or module.
function complete.words(before, globals, typed)
  local word = match(before, "[%a_][%w_]*$") or ""
  typed = typed or word
  local command = match(before, "^%s*:(%a*)$")
  if command then return beginning_with(command, commands.names, typed) end
  local kind, argument = commands.argument(before)
  if kind == "file" then return files(argument, typed) end
  if kind == "module" then return beginning_with(argument, commands.modules(), typed) end
  if kind == "chunk" then before = argument end
  local open, in_string = open_at_end(before)
  if in_string then return files(in_string, typed) end
  local rest = sub(before, 1, #before - #word)
  if word == "" and not find(rest, "%S") then return {"  "} end -- at the start of a line Tab indents
  local asks, path, separator = find(before, "^%s*%?") ~= nil, match(rest, "^(.*[^%.:])([%.:])$")
  local found, list = {}, {}
  local function offer_name(name)
    if type(name) == "string" and sub(name, 1, #word) == word and find(name, "^[%a_][%w_]*$") and not found[name]
      and name ~= "super" and (sub(name, 1, 1) ~= "_" or sub(word, 1, 1) == "_") then
      found[name] = true
      list[#list + 1] = name
    end
  end
  local call, inside
  if open then call, inside = options_call(before, open) end
  if call then offer_options(call, inside, globals, offer_name) end
  if list[1] then -- options exclude other names
    sort(list)
    return list
  end
  if separator then
    local value = complete.value(path, globals)
    if value == nil and asks then value = help.class(match(path, "[%w_]+$")) end
    if value ~= nil then
      members(value, separator, offer_name)
    elseif separator == ":" and find(path, "%)$") then -- most calls return tensors
      offer_of_tensors(core.methods, offer_name)
    end
  elseif not find(rest, "%d$") then
    each_name(globals, offer_name)
    if asks then
      for _, name in ipairs(help.words()) do offer_name(name) end
    else
      for name in next, KEYWORDS do offer_name(name) end
    end
  end
  sort(list)
  return list
end

return complete
