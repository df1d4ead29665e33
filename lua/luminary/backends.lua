--- lm.backends: Provides settings of the libraries that compute ops.
local core = require "luminary.core"
local options = require "luminary.base.options"

local function no_setting(of, name, names) options.unknown("backends." .. of, name, names) end

-- Returns a table whose fields are settings of the core, with `functions` as its other members.
local function settings(prefix, names, functions)
  local known = {}
  for _, name in ipairs(names) do known[name] = prefix .. name end
  return setmetatable({}, {
    __index = function(_, name)
      if known[name] then return core.setting(known[name]) end
      if functions[name] == nil and not tostring(name):find("^__") then no_setting(prefix:sub(1, -2), name, names) end
      return functions[name]
    end,
    __newindex = function(_, name, value)
      if not known[name] then no_setting(prefix:sub(1, -2), name, names) end
      if type(value) ~= "boolean" then
        options.must_be("backends", known[name], "true or false", value)
      end
      core.setting(known[name], value)
    end,
  })
end

local backends = {}

--- lm.backends.cuda: Provides settings of CUDA's libraries.
backends.cuda = {
  --- lm.backends.cuda.matmul: Settings of matrix products on a GPU: allow_tf32.
  matmul = settings("cuda.matmul.", {"allow_tf32"}, {}),
  --- Returns whether the CUDA backend is built and can be loaded.
  is_built = function() return core.cuda_version "cuda" ~= nil end,
}

--- lm.backends.cudnn: Provides settings of cuDNN: allow_tf32, enabled, benchmark and deterministic.
backends.cudnn = settings("cudnn.", {"allow_tf32", "enabled", "benchmark", "deterministic"}, {
  --- Returns cuDNN's version, 91900 for 9.19; nil without cuDNN.
  version = function() return core.cuda_version "cudnn" end,
  --- Returns whether cuDNN is available.
  is_available = function() return core.device_count("cuda") > 0 and core.cuda_version "cudnn" ~= nil end,
})

return options.strict("backends", backends)
