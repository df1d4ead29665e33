--- load_module(name): Requires a module of luminary at first use. If its file cannot be opened, as without free file
--- descriptors, Lua would report it as not found; load_module reports the cause. After an error, such as a host's time
--- limit, a later call loads the module again.
local core = require "luminary.core"
local interpreted = require "luminary.base.interpreted"

local ENOENT, ENOTDIR = 2, 20

-- Returns the system's error for the module's file, or nil.
local function reason(name)
  local file = name:gsub("%.", "/")
  for template in (package.path .. ";" .. package.cpath):gmatch "[^;]+" do
    local opened, why, code = require("io").open((template:gsub("%?", (file:gsub("%%", "%%%%")))), "r")
    if opened then opened:close() end
    if not opened and code ~= ENOENT and code ~= ENOTDIR then return why:match "([^:]*)$":match "^%s*(.*)$" end
  end
end

-- Returns the set of modules whose loading has begun and not ended. package.loaded has LuaJIT's sentinel for them, a
-- light userdata that some of its versions call a number. LuaJIT 2.1.0-beta3 never leaves a compiled loop over a table
-- in a finalizer if the values' types differ.
local unfinished = interpreted(function()
  local names = {}
  for name, value in pairs(package.loaded) do
    local kind = type(value)
    names[name] = kind == "userdata" or kind == "number" or nil
  end
  return names
end)

-- Calls require with the globals that this file has; a host such as Minetest restricts those of its thread.
local function require_here(name)
  local globals = getfenv(0)
  setfenv(0, getfenv(1))
  local ok, value = pcall(require, name)
  setfenv(0, globals)
  return ok, value
end

return function(name)
  local known = package.loaded[name]
  if type(known) == "table" or type(known) == "function" then return known end
  local before = unfinished()
  local ok, value = require_here(name)
  if ok then return value end
  for failed in pairs(unfinished()) do
    if not before[failed] then package.loaded[failed] = nil end
  end
  local missing = type(value) == "string" and value:match "module '(luminary%.[%w_.]+)' not found:"
  local why = missing and (reason(missing) or package.searchpath("luminary.version", package.path)
    and "it is not installed; luminary-inference has only what runs models"
    or "no file of luminary is found now; package.path or the root folder has changed")
  if why then core.error_at_caller(("cannot load module '%s': %s"):format(missing, why)) end
  error(value, 0)
end
