--- load_module(name): require, for files of luminary's that are loaded when they are first needed. Lua takes a file
--- that cannot be opened, for want of descriptors, say, for one that is not there; here the error says what failed.
local core = require "luminary.core"

local ENOENT, ENOTDIR = 2, 20

-- Why the module's file cannot be opened, in the system's words; nil where that is not known.
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
