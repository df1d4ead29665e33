--- load_module(name): Requires a module of luminary at first use. If its file cannot be opened, as without free file
--- descriptors, Lua would report it as not found; load_module reports the cause.
local core = require "luminary.core"

local ENOENT, ENOTDIR = 2, 20

-- Returns the system's error for the module's file, or nil.
local function reason(name)
  local file = name:gsub("%.", "/")
  for template in (package.path .. ";" .. package.cpath):gmatch "[^;]+" do
    local opened, why, code = io.open((template:gsub("%?", (file:gsub("%%", "%%%%")))), "r")
    if opened then opened:close() end
    if not opened and code ~= ENOENT and code ~= ENOTDIR then return why:match "([^:]*)$":match "^%s*(.*)$" end
  end
end

return function(name)
  local known = package.loaded[name]
  if type(known) == "table" or type(known) == "function" then return known end
  local ok, value = pcall(require, name)
  if ok then return value end
  local missing = type(value) == "string" and value:match "module '(luminary%.[%w_.]+)' not found:"
  local why = missing and reason(missing)
  if why then core.error_at_caller(("cannot load module '%s': %s"):format(missing, why)) end
  error(value, 0)
end
