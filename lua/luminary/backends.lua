--- lm.backends: Settings of the libraries that compute ops.
local core = require "luminary.core"
local options = require "luminary.base.options"

local function no_setting(of, name, names)
  local near = type(name) == "string" and core.nearest(name, names)
  core.error_at_caller(("backends.%s: there is no setting '%s'%s"):format(of, tostring(name),
    near and (", did you mean '%s'?"):format(near) or ""))
end

-- A table whose fields are settings of the core; `functions` are its other members.
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
        core.error_at_caller(("backends.%s: true or false expected, got %s"):format(known[name], tostring(value)))
      end
      core.setting(known[name], value)
    end,
  })
end

local backends = {}

--- lm.backends.cuda: Settings of CUDA's libraries.
backends.cuda = {
  --- lm.backends.cuda.matmul: Settings of matrix products on a GPU: allow_tf32.
  matmul = settings("cuda.matmul.", {"allow_tf32"}, {}),
  --- Returns whether the CUDA backend is built and can be loaded.
  is_built = function() return core.cuda_version "cuda" ~= nil end,
}

--- lm.backends.cudnn: Settings of cuDNN: allow_tf32, enabled, benchmark and deterministic.
backends.cudnn = settings("cudnn.", {"allow_tf32", "enabled", "benchmark", "deterministic"}, {
  --- Returns cuDNN's version, 91900 for 9.19; nil without cuDNN.
  version = function() return core.cuda_version "cudnn" end,
  --- Returns whether cuDNN is available.
  is_available = function() return core.device_count("cuda") > 0 and core.cuda_version "cudnn" ~= nil end,
})

return options.strict("backends", backends)
