--- Provides deep learning for LuaJIT: `local lm = require "luminary"`.
-- Check for LuaJIT: other Luas parse this file, but the dynamic linker refuses them the core. Of those with the version
-- 5.1, only LuaJIT knows hexadecimal escapes.
if (_VERSION or "Lua 5.1") ~= "Lua 5.1" or "\x41" ~= "A" then
  error("luminary: expected LuaJIT, got " .. _VERSION .. "; run it with luajit, or in a host linked to LuaJIT", 3)
end
local version = require "luminary.version"
-- A host that has LuaJIT for a plugin alone (Traffic Server) hides its symbols; loading its file again shows them.
local has_core, core = pcall(require, "luminary.core")
if not has_core and tostring(core):find("undefined symbol: lua", 1, true) then
  for line in require("io").lines "/proc/self/maps" do
    local path = line:match "/.*/libluajit[^/]*$"
    if path then require("ffi").load(path, true) end
  end
  has_core, core = pcall(require, "luminary.core")
end
if not has_core then
  local symbol = tostring(core):match "undefined symbol: lm_[%w_]*"
  error(symbol and ("luminary: cannot load the core of version %s beside another one that this process uses (%s); set "
    .. "the same package.path and package.cpath in all Lua states"):format(version, symbol) or core, 0)
end
if (core.version or version) ~= version then
  error(("luminary: the Lua files are of version %s, but the core is of version %s; set package.path and package.cpath "
    .. "to one installation, the same in all Lua states"):format(version, core.version), 0)
end

local methods = require "luminary.tensor.methods"
local options = require "luminary.base.options"

local lm = {version = version, _VERSION = "luminary " .. version, ops = core.ops, core = core, newaxis = "newaxis"}

-- ---- functions that are written in C
--- lm.tensor(values [, {dtype, device, requires_grad = false}]): Returns a new tensor of a number, of nested lists of
--- numbers, or of a tensor's elements.
--- lm.is_tensor(v): Returns whether v is a tensor.
--- lm.is_floating_point(x): Returns whether the dtype of x, or the given dtype, is floating.
--- lm.max(x [, dim or other [, {keepdim = false}]]): Returns the largest element, the largest along dim and their
--- indices, or the larger of each pair.
--- lm.min(x [, dim or other [, {keepdim = false}]]): Returns the smallest element, the smallest along dim and their
--- indices, or the smaller of each pair.
--- lm.grad(outputs, inputs [, {grad_outputs, retain_graph, create_graph = false, allow_unused = false}]): Computes and
--- returns the sum of gradients of outputs with respect to the inputs.
--- lm.live_tensors(): Returns the number of tensors in this process.
--- lm.no_grad(f, ...): Calls f(...) without recording operations for backward.
--- lm.enable_grad(f, ...): Calls f(...) with operations recorded for backward, also inside of lm.no_grad.
--- lm.is_grad_enabled(): Returns whether operations are recorded for backward.
--- lm.set_grad_enabled(on [, f, ...]): Turns the recording of operations on or off, for f or from here on.
--- lm.autocast({device_type, dtype, enabled = true, cache_enabled = true}, f, ...): Calls f(...) with autocast: each op
--- computes in the dtype that suits it.
--- lm.is_autocast_enabled([device]): Returns whether autocast is on, for a kind of device or for any.
--- lm.get_autocast_dtype([device]): Returns the dtype that autocast computes in on a kind of device, nil if it is off.
--- lm.scope(f, ...): Calls f(...), then frees the tensors that f made, except those that it returns and those passed to
--- lm.keep.
--- lm.keep(x): Keeps a tensor, or the tensors of a table, from being freed by lm.scope; returns x.
--- lm.manual_seed(seed): Seeds the random number generators of all devices.
--- lm.get_rng_state([device]): Returns the state of the random number generator of a device, a uint8 tensor.
--- lm.initial_seed([device]): Returns the seed of the random number generator of a device.
--- lm.set_rng_state(state [, device]): Restores the state of the random number generator of a device.
--- lm.memory_allocated([device]): Returns the bytes that tensors occupy on a device.
--- lm.memory_reserved([device]): Returns the bytes that the caching allocator holds on a device.
--- lm.max_memory_allocated([device]): Returns the maximum of lm.memory_allocated since the start or
--- lm.reset_peak_memory_stats.
--- lm.max_memory_reserved([device]): Returns the maximum of lm.memory_reserved since the start or
--- lm.reset_peak_memory_stats.
--- lm.reset_peak_memory_stats([device]): Resets the maxima of lm.max_memory_allocated and lm.max_memory_reserved.
--- lm.empty_cache([device]): Releases all unoccupied memory that the caching allocator holds.
--- lm.set_num_threads(n): Sets the number of threads that ops on the CPU use.
--- lm.get_num_threads(): Returns the number of threads that ops on the CPU use.
--- lm.record_function(name, f, ...): Calls f(...), and names that time in a profile; returns f's results.
--- lm.record_memory_history([on = true]): Records where the memory of tensors is allocated, for lm.memory_snapshot.
--- lm.synchronize([device]): Waits until all work on a device is done.
--- lm.time(): Returns seconds, with fractions, since an arbitrary moment: differences measure time.
--- lm.setenv(name, value): Sets an environment variable of this process; nil removes it.
--- lm.getenv(name): Returns an environment variable, also one that lm.setenv set; nil without it.
--- lm.set_warnings(on): Sets whether warnings are printed; returns the previous setting.
--- lm.set_default_dtype(dtype): Sets the floating dtype of tensors that are made without a dtype.
--- lm.get_default_dtype(): Returns the floating dtype of tensors that are made without a dtype.
--- lm.set_default_device(device): Sets the device of tensors that are made without a device.
--- lm.get_default_device(): Returns the device of tensors that are made without a device.

-- ---- values
--- lm.version: The version of Luminary, "major.minor.patch".
--- lm.newaxis: In an index, adds a dim of size 1.

-- Every op is a function of lm; so are the core's public functions, and the methods that make tensors.
for name, op in pairs(core.ops) do lm[name] = op end
for name, op in pairs(require("luminary.tensor.aliases").functions) do lm[name] = op end
for _, name in ipairs {
  "tensor", "is_tensor", "max", "min", "grad", "no_grad", "enable_grad", "scope", "keep", "time", "record_function",
} do
  lm[name] = core[name]
end
lm.autocast = require "luminary.amp.autocast"
-- The default number of CPU threads is in src/base/parallel.c.
for name, max_count in pairs { -- largest number of arguments
  live_tensors = 0, is_floating_point = 1, is_grad_enabled = 0,
  is_autocast_enabled = 1, get_autocast_dtype = 1,
  manual_seed = 1, initial_seed = 1, get_rng_state = 1, set_rng_state = 2, memory_allocated = 1,
  memory_reserved = 1, max_memory_allocated = 1, max_memory_reserved = 1, reset_peak_memory_stats = 1, empty_cache = 1,
  set_num_threads = 1, get_num_threads = 0, synchronize = 1, setenv = 2, getenv = 1, set_warnings = 1,
  set_default_dtype = 1, get_default_dtype = 0, set_default_device = 1, get_default_device = 0,
} do
  lm[name] = options.exact(name, core[name], max_count)
end
-- Ops whose functions in PyTorch differ from the methods.
function lm.randint(low, high, ...)
  if type(high) == "table" and type(next(high)) ~= "string" then return core.ops.randint(0, low, high, ...) end
  return core.ops.randint(low, high, ...)
end
function lm.polygamma(n, x)
  if core.is_tensor(n) then n, x = x, n end
  return core.ops.polygamma(x, n)
end
--- Seeds the random number generators of all devices with a number from the system, and returns that number.
function lm.seed(...)
  if options.count(...) > 0 then
    options.fail("seed: takes no argument; use lm.manual_seed(%s)", tostring((...)))
  end
  local seed = core.seed_generator("cpu")
  core.manual_seed(seed)
  return seed
end
function lm.record_memory_history(on)
  if on == nil then on = true end
  core.memory_history(options.arg("record_memory_history", "on", on, "boolean"))
end
--- Returns the names of all ops.
function lm.op_list()
  local names, is_inner = {}, require("luminary.help.index").is_inner
  for _, name in ipairs(core.op_list()) do
    if not is_inner(name) then names[#names + 1] = name end
  end
  return names
end
function lm.set_grad_enabled(on, f, ...)
  if f == nil or type(on) ~= "boolean" then return core.set_grad_enabled(on) end
  return (on and core.enable_grad or core.no_grad)(f, ...)
end
lm.equal, lm.numel, lm.norm = methods.equal, methods.numel, methods.norm

--- Returns the device "cuda:i" if there is one, else "cpu:i"; i counts from 0.
function lm.try_gpu(i)
  i = i or 0
  if type(i) ~= "number" or i < 0 or i % 1 ~= 0 then
    core.error_at_caller("try_gpu: i must be an integer of at least 0, got " .. tostring(i))
  end
  return core.device((i < core.device_count("cuda") and "cuda:%d" or "cpu:%d"):format(i))
end

--- Returns a list of all CUDA devices, or of the CPU if there is none.
function lm.try_all_gpus()
  local list = {}
  for i = 1, core.device_count("cuda") do list[i] = core.device(i - 1) end
  if #list == 0 then list[1] = core.device("cpu") end
  return list
end

-- Names loaded at first use, so that scripts start fast, with their modules and fields.
local later = {
  checkpoint = {"checkpoint"}, Timer = {"timer"}, repr = {"repr"}, help = {"help", "ask"}, dist = {"distributed"},
  parallel = {"apex_parallel"}, save = {"save_load", "save"}, load = {"save_load", "load"},
  Generator = {"generator", "Generator"}, default_generator = {"generator", "default_generator"},
  GradScaler = {"amp.grad_scaler"}, quantize = {"nn.int8", "quantize"}, summary = {"watch.summary"},
  profile = {"profile"}, memory_snapshot = {"profile.memory_snapshot"}, graph = {"profile.graph"},
  compile = {"cuda.compile", "compile"}, prepare = {"prepare", "prepare"}, async = {"async", "async"},
  set_async = {"async", "set_async"}, poll = {"async", "poll"}, send_part = {"async", "send_part"},
  linear_sum_assignment = {"tensor.assignment"}, chat = {"models.chat"},
}
for name in ([[
  nn optim data mp autograd watch cuda backends amp models vision text linalg distributions func paths fft metrics
  serve onnx
]]):gmatch "%S+" do later[name] = {name} end
options.at_first_use({
  ["tensor.indexing"] = "diagonal_scatter index_copy index_fill index_reduce masked_scatter masked_select put "
    .. "select_scatter slice_scatter take take_along_dim",
  ["tensor.shape_ops"] = "atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod column_stack "
    .. "combinations diag diag_embed diagflat dsplit dstack fliplr flipud hsplit hstack meshgrid moveaxis movedim "
    .. "repeat_interleave rot90 row_stack tensor_split tril_indices triu_indices unflatten vsplit vstack",
  ["tensor.parts_norms_hooks"] = "allclose chunk repeat_tensor split tile unbind",
  ["tensor.products"] = "einsum tensordot inner kron cdist pdist chain_matmul",
  ["tensor.quantiles_and_unique"] = "bincount corrcoef cov diff histc isin median mode nanmedian nanquantile quantile "
    .. "unique unique_consecutive",
  ["tensor.derived_functions"] = "are_deterministic_algorithms_enabled argwhere as_strided_scatter as_tensor asarray "
    .. "broadcast_shapes clamp_max clamp_max_ clamp_min clamp_min_ constant_pad_nd empty_strided fill frombuffer "
    .. "get_device get_float32_matmul_precision get_printoptions inference_mode is_nonzero is_signed positive "
    .. "resize_as_ scalar_tensor set_float32_matmul_precision set_printoptions split_with_sizes std_mean unravel_index "
    .. "use_deterministic_algorithms var_mean",
  ["tensor.typed_constructors"] = "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor "
    .. "ShortTensor CharTensor ByteTensor BoolTensor",
  ["tensor.dtype_info"] = "finfo iinfo result_type promote_types can_cast",
  ["tensor.matrices"] = "svd qr lu lu_solve pinverse matrix_power matrix_exp vander",
  ["tensor.integrals_and_histograms"] = "trapezoid trapz cumulative_trapezoid logspace renorm histogram",
  ["tensor.stft"] = "stft istft hann_window hamming_window blackman_window bartlett_window kaiser_window",
  ["nn.functional"] = "conv1d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool3d "
    .. "avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d pixel_shuffle pixel_unshuffle channel_shuffle "
    .. "binary_cross_entropy_with_logits",
}, later)

return options.strict("luminary", lm, later)
