--- Finds what a function with its own environment (setfenv) needs of it in another Lua state, where functions have that
--- state's globals.
local debug = require "debug"
local util = require "jit.util"

-- Returns the operation code of an instruction of some source code.
local function operation(code, pc) return bit.band(util.funcbc(loadstring(code), pc), 0xff) end

local GET, SET, NEW = operation("return x", 1), operation("x = nil", 2), operation("return function() end", 1)

-- Finds the first global read or set by f or the functions in it for which needs(name, is_set) is true.
local function find_global(f, needs)
  local pc, instruction = 1, util.funcbc(f, 1)
  while instruction do
    local kind = bit.band(instruction, 0xff)
    if kind == GET or kind == SET or kind == NEW then
      local constant, found = util.funck(f, -bit.rshift(instruction, 16) - 1), nil
      if kind == NEW then
        found = find_global(constant, needs)
      elseif needs(constant, kind == SET) then
        found = constant
      end
      if found then return found end
    end
    pc = pc + 1
    instruction = util.funcbc(f, pc)
  end
end

local function index(env, name) return env[name] end

-- Returns a global's value in an environment, which may raise an error for unknown names.
local function get(env, name)
  local known, value = pcall(index, env, name)
  if known then return value end
end

-- Returns true if an environment can be sent: its lookup does not depend on a function.
local function is_plain(env, depth)
  local meta = debug.getmetatable(env)
  if meta == nil then return true end
  if type(meta) ~= "table" or depth > 100 then return false end
  for key, value in next, meta do
    if key ~= "__index" or type(value) ~= "table" then return false end
  end
  return meta.__index == _G or is_plain(meta.__index, depth + 1)
end

--- Returns the environment to send with f, or nil if the other state's globals suffice. Returns nil and a global's name
--- if f reads a global that only its environment has, and that environment is neither plain nor named by name_of. (Test
--- frameworks have such environments: every state has the globals they replace, and f sets globals there.)
return function(f, name_of)
  local env = debug.getfenv(f)
  if env == _G then return nil end
  if is_plain(env, 1) or name_of(env) then
    local function needs(name, is_set) return is_set or not rawequal(get(env, name), get(_G, name)) end
    return find_global(f, needs) and env
  end
  return nil, find_global(f, function(name, is_set)
    return not is_set and get(_G, name) == nil and get(env, name) ~= nil
  end)
end
