--- lm.backends: what the libraries under an op may do. Settings are there, and kept, with and without a GPU.
---
---   lm.backends.cuda.matmul.allow_tf32   TF32 in float32 matrix products; false at first
---   lm.backends.cudnn.allow_tf32         TF32 in float32 convolutions and recurrent layers; true at first
---   lm.backends.cudnn.enabled            false: convolutions and attention by plain kernels, recurrent layers step by
---                                        step
---   lm.backends.cudnn.benchmark          try the engines for a new shape, keep the fastest; attention in half
---                                        precision has a plan from a shape's first call on. Without this or
---                                        deterministic a plain kernel computes the first call, since a plan takes
---                                        long to make, and later calls may differ from it in the last bits
---   lm.backends.cudnn.deterministic      only engines that give the same bits in every run; recurrent layers step by
---                                        step, unless CUBLAS_WORKSPACE_CONFIG is set (:4096:2), as in PyTorch;
---                                        attention's backward pass by a plain kernel
local core = require "luminary.core"
local options = require "luminary.base.options"

local function no_setting(of, name, names) options.unknown("backends." .. of, name, names) end

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
        options.must_be("backends", known[name], "true or false", value)
      end
      core.setting(known[name], value)
    end,
  })
end

local backends = {}

--- lm.backends.cuda: lm.backends.cuda.matmul.allow_tf32 allows TF32 in float32 matrix products; false at first.
backends.cuda = {
  --- lm.backends.cuda.matmul: its field allow_tf32 allows TF32 in float32 matrix products; false at first.
  matmul = settings("cuda.matmul.", {"allow_tf32"}, {}),
  --- Whether the CUDA backend was built and can be loaded.
  is_built = function() return core.cuda_version "cuda" ~= nil end,
}

--- lm.backends.cudnn: the settings allow_tf32, enabled, benchmark and deterministic of convolutions, attention
--- and recurrent layers on a GPU, and the functions version and is_available; ?lm.backends says what they do.
backends.cudnn = settings("cudnn.", {"allow_tf32", "enabled", "benchmark", "deterministic"}, {
  --- cuDNN's version, 91900 for 9.19; nil where it is not there.
  version = function() return core.cuda_version "cudnn" end,
  --- Whether convolutions on a GPU can use it.
  is_available = function() return core.device_count("cuda") > 0 and core.cuda_version "cudnn" ~= nil end,
})

return options.strict("backends", backends)
