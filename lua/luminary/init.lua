--- Deep learning for LuaJIT. `local lm = require "luminary"`.
local core = require "luminary.core"

-- Errors are raised at the first line outside the files beside this one.
local own = debug.getinfo(1, "S").source:match("^(@.*)init%.lua$")
if own then core.own_files(own) end

local methods = require "luminary.tensor"
local options = require "luminary.options"

local lm = {version = "0.1.0", _VERSION = "luminary 0.1.0", ops = core.ops, core = core}

-- Every op is a function; so are the functions of the core that users call, and the methods that make tensors.
for name, op in pairs(core.ops) do lm[name] = op end
for _, name in ipairs {
  "tensor", "is_tensor", "max", "min", "grad", "no_grad", "enable_grad", "autocast", "scope", "keep", "time",
} do
  lm[name] = core[name]
end
for name, most in pairs { -- arguments that it takes
  help = 1, op_list = 0, live_tensors = 0, is_floating_point = 1, is_grad_enabled = 0, set_grad_enabled = 1,
  is_autocast_enabled = 0, manual_seed = 1, get_rng_state = 1, set_rng_state = 2, memory_allocated = 1,
  memory_reserved = 1, max_memory_allocated = 1, max_memory_reserved = 1, reset_peak_memory_stats = 1, empty_cache = 1,
  set_num_threads = 1, get_num_threads = 0, synchronize = 1, setenv = 2, getenv = 1, set_warnings = 1,
  set_default_dtype = 1, get_default_dtype = 0, set_default_device = 1, get_default_device = 0,
} do
  lm[name] = options.exact(name, core[name], most)
end
for _, name in ipairs {"split", "chunk", "unbind", "repeat_tensor", "equal", "allclose", "numel"} do
  lm[name] = methods[name]
end

--- The device "cuda:i" if there is one, else the CPU device of that number; i counts from 0.
function lm.try_gpu(i)
  i = i or 0
  if type(i) ~= "number" or i < 0 or i % 1 ~= 0 then
    core.error_at_caller("try_gpu: a device number from 0 expected, got " .. tostring(i))
  end
  return core.device((i < core.device_count("cuda") and "cuda:%d" or "cpu:%d"):format(i))
end

--- All CUDA devices, or the CPU if there is none: a list of names.
function lm.try_all_gpus()
  local list = {}
  for i = 1, core.device_count("cuda") do list[i] = core.device(i - 1) end
  if #list == 0 then list[1] = core.device("cpu") end
  return list
end

-- Loaded when first asked for: a script that only computes starts fast.
local modules = {
  nn = "nn", optim = "optim", data = "data", dist = "dist", mp = "mp", autograd = "autograd",
  checkpoint = "checkpoint", parallel = "parallel", watch = "watch", cuda = "cuda", backends = "backends",
}
local values = { -- name: module and field, or the module itself
  Timer = {"timer"}, repr = {"repr"}, save = {"checkpoint", "save"}, load = {"checkpoint", "load"},
}

return setmetatable(options.exact_all(lm), {
  __library = "luminary",
  __index = function(self, key)
    local value
    if type(key) == "string" and key:sub(1, 2) == "__" then -- as options.strict
      return nil
    elseif modules[key] then
      value = require("luminary." .. modules[key])
    elseif type(key) == "string" and key:find("Tensor$") then -- lm.FloatTensor and the like
      local make = require("luminary.typed")[key]
      value = make and function(...) return make("cpu", ...) end
    elseif values[key] then
      local module, field = unpack(values[key])
      value = require("luminary." .. module)
      if field then value = value[field] end
    end
    if value == nil then
      local known = {}
      for _, names in ipairs {self, modules, values} do
        for name in pairs(names) do known[name] = true end
      end
      options.no_name("luminary", key, known)
    end
    rawset(self, key, value)
    return value
  end,
})
