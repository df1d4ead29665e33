--- Names values that another Lua state has too: modules, their functions and classes. They are sent by name: a module
--- and the steps from it, which the other state follows in its own copy.
---
--- In luminary's own modules, everything that holds functions has a name, even if only metatables and upvalues lead to
--- it; in others, only what fields lead to. Data in a module has no name: it may have changed since it was loaded.
local debug = require "debug"
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"

local names = {}

local own_files = debug.getinfo(1, "S").source:match("^(@.*)mp/module_references%.lua$") or "\0"

-- The modules of a fresh Lua state that no file defines.
local built_in = lists.set "_G package coroutine table io os string math debug bit jit jit.opt"
local globals = lists.set [[assert collectgarbage dofile error gcinfo getfenv getmetatable ipairs load loadfile
    loadstring module newproxy next pairs pcall print rawequal rawget rawlen rawset require select setfenv setmetatable
    tonumber tostring type unpack xpcall]]

local function is_own_module(name) return name == "luminary" or name:sub(1, 9) == "luminary." end
local function is_c_function(v) return type(v) == "function" and debug.getinfo(v, "S").what == "C" end

-- Returns a module's file: "@path" for Lua, "path" for C, "" for built-in modules; false if require would not find it,
-- as for a module that a script added itself.
local files = {}
local function file_of(name)
  local known = files[name]
  if known == nil then
    if built_in[name] or is_c_function(package.preload[name]) then
      known = ""
    else
      local path = package.searchpath(name, package.path)
      known = path and "@" .. path or package.searchpath(name, package.cpath)
        or package.searchpath(name:match("^[^.]*"), package.cpath) or false
    end
    files[name] = known
  end
  return known
end

-- Returns true for a table that stands for code: a module, a class or a class's metatable. An object does not.
local function stands_for_code(t)
  local metatable = debug.getmetatable(t)
  if metatable and rawget(metatable, "instance") then return true end
  if metatable and (rawget(metatable, "values") or not rawget(metatable, "__call")) then return false end
  if rawget(t, "__index") then return true end
  for _, v in next, t do
    if type(v) == "function" then return true end
  end
  return false
end

local function string_keys(t)
  local keys = {}
  for key in next, t do
    if type(key) == "string" then keys[#keys + 1] = key end
  end
  return keys
end

-- Maps a value to {from = value, step = …} or {module = name}, by the shortest path.
local function scan_modules()
  local found, queue = {}, {}
  local function add(value, entry)
    local kind = type(value)
    if found[value] or kind ~= "table" and kind ~= "function" and kind ~= "userdata" then return end
    found[value] = entry
    queue[#queue + 1] = value
  end

  local modules = string_keys(package.loaded)
  table.sort(modules, function(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end)
  local sources -- all modules' Lua files, made when needed
  local function is_from_module(source)
    if not sources then
      sources = {}
      for _, name in ipairs(modules) do sources[file_of(name) or ""] = true end
    end
    return source:sub(1, 1) == "@" and sources[source] == true
  end

  found[package.loaded], found[package.preload] = {from = package, step = "loaded"}, {from = package, step = "preload"}
  for _, name in ipairs(modules) do
    local value = package.loaded[name]
    if file_of(name) then add(value, {module = name, own = is_own_module(name), depth = 0}) end
  end

  local function consider(value, from, step, kind)
    if found[value] then return end
    local entry = found[from]
    local next_entry = {from = from, step = step, kind = kind, own = entry.own, depth = entry.depth + 1}
    if type(value) == "function" then
      local info = debug.getinfo(value, "S")
      if info.what == "C" or entry.own and info.source:sub(1, #own_files) == own_files
        or not entry.own and is_from_module(info.source) then
        add(value, next_entry)
      end
    elseif type(value) == "table" then
      if (entry.own or entry.depth < 3) and stands_for_code(value) then add(value, next_entry) end
    elseif type(value) == "userdata" and from == io then
      add(value, next_entry)
    end
  end

  local at = 1
  while queue[at] do
    local value = queue[at]
    local entry = found[value]
    at = at + 1
    if value == _G then
      for name in pairs(globals) do
        if is_c_function(value[name]) then consider(value[name], value, name) end
      end
    elseif type(value) == "table" then
      local keys = string_keys(value)
      table.sort(keys)
      for _, key in ipairs(keys) do consider(rawget(value, key), value, key) end
      local metatable = entry.own and debug.getmetatable(value)
      if metatable then consider(metatable, value, false, "metatable") end
    elseif type(value) == "function" and entry.own and not is_c_function(value) then
      local i = 1
      while true do
        local name, upvalue = debug.getupvalue(value, i)
        if not name then break end
        if name ~= "call" then consider(upvalue, value, name, "upvalue") end -- signature.lua compiles it when needed
        i = i + 1
      end
    end
  end
  return found
end

-- Returns true for plain data, which has no name; a module never is.
local function is_data(value)
  if type(value) ~= "table" or debug.getmetatable(value) or stands_for_code(value) then return false end
  for _, module in _G.pairs(package.loaded) do -- see load_module.lua
    if module == value then return false end
  end
  return value ~= package.loaded and value ~= package.preload
end

-- Returns a Lua function's name without a scan, if it is a field of the module that its file defines. Returns nil and
-- whether a scan may find a name.
local function name_in_file(value)
  local source = type(value) == "function" and debug.getinfo(value, "S").source or "=[C]"
  local may_have_one = source == "=[C]" or source:sub(1, #own_files) == own_files
  for _, name in ipairs(string_keys(package.loaded)) do
    if source:find((name:gsub("%.", "/")), 1, true) and file_of(name) == source then
      may_have_one = true
      local module = package.loaded[name]
      for key, field in next, type(module) == "table" and module or {} do
        if field == value and type(key) == "string" then return {name, "field", key} end
      end
    end
  end
  return nil, may_have_one
end

--- Returns a function that returns a value's name, a list {module, kind, step, kind, step, …}, or nil. It scans the
--- loaded modules once, at the first value that may have a name which only a scan finds.
function names.finder()
  local found
  return function(value)
    if not found and is_data(value) then return nil end
    if not found then
      local steps, may_have_one = name_in_file(value)
      if steps or not may_have_one then return steps end
      found = scan_modules()
    end
    local entry = found[value]
    if not entry then return nil end
    local steps = {}
    while not entry.module do
      table.insert(steps, 1, entry.step)
      table.insert(steps, 1, entry.kind or "field")
      entry = found[entry.from]
    end
    table.insert(steps, 1, entry.module)
    return steps
  end
end

local function count_modules()
  local n = 0
  for _ in _G.next, package.loaded do n = n + 1 end
  return n
end

local finder, finder_modules

--- Returns this state's cached finder, for frequent encoding; a new one if more modules were loaded.
function names.cached_finder()
  local n = count_modules()
  if not finder or finder_modules ~= n then finder, finder_modules = names.finder(), n end
  return finder
end

local function upvalue(f, wanted)
  for i = 1, 255 do
    local name, value = debug.getupvalue(f, i)
    if name == wanted then return value end
    if not name then return nil end
  end
end

--- Returns the value of that name in this state; loads its module.
function names.resolve(steps)
  local value, text = require(steps[1]), steps[1]
  for i = 2, #steps, 2 do
    local kind, step = steps[i], steps[i + 1]
    if kind == "metatable" then
      value, text = debug.getmetatable(class.filled(value)), text .. "'s metatable"
    elseif kind == "upvalue" then
      value, text = upvalue(value, step), text .. "'s " .. step
    else
      value, text = value[step], text .. "." .. step
    end
    if value == nil then
      core.error_at_caller(("mp: this Lua state has no %s, unlike the sender's"):format(text))
    end
  end
  return value
end

return names
