--- Deep learning for LuaJIT. `local lm = require "luminary"`.
local core = require "luminary.core"

local methods = require "luminary.tensor.methods"
local options = require "luminary.base.options"

local version = require "luminary.version"
local lm = {version = version, _VERSION = "luminary " .. version, ops = core.ops, core = core, newaxis = "newaxis"}

-- ---- functions that are written in C
--- lm.tensor(values [, {dtype, device, requires_grad = false}]): a tensor of a number, or of nested lists of numbers; a
--- copy of a tensor. Numbers are float32 without a dtype (set_default_dtype), booleans bool.
--- lm.is_tensor(v): whether v is a tensor.
--- lm.is_floating_point(x): whether x's dtype, or the dtype of that name, is one of the floating ones.
--- lm.max(x): the largest element; lm.max(x, dim [, {keepdim = false}]): the largest along dim, and where they are,
--- from 1: local values, indices = x:max(2); lm.max(x, other): the larger of each pair.
--- lm.min(x): the smallest element; lm.min(x, dim [, {keepdim = false}]): the smallest along dim, and where they are,
--- from 1: local values, indices = x:min(2); lm.min(x, other): the smaller of each pair.
--- lm.grad(outputs, inputs [, {grad_outputs, retain_graph, create_graph = false, allow_unused = false}]): Computes and
--- returns the sum of gradients of outputs with respect to the inputs.
--- lm.live_tensors(): how many tensors there are in this process.
--- lm.no_grad(f, ...): Calls f(...) without recording operations for backward.
--- lm.enable_grad(f, ...): Calls f(...) with operations recorded for backward, also inside of lm.no_grad.
--- lm.is_grad_enabled(): Returns whether operations are recorded for backward.
--- lm.set_grad_enabled(on [, f, ...]): Turns the recording of operations on or off, for f or from here on.
--- lm.autocast({device_type, dtype, enabled = true, cache_enabled = true}, f, ...): Calls f(...) with autocast: each op
--- computes in the dtype that suits it.
--- lm.is_autocast_enabled([device]): Returns whether autocast is on, for a kind of device or for any.
--- lm.get_autocast_dtype([device]): Returns the dtype that autocast computes in on a kind of device, nil if it is off.
--- lm.scope(f, ...): f(...), after which the tensors that f made are dropped at once, but for those it returns (in
--- tables too) and those given to lm.keep. Gives what f returns.
--- lm.keep(x): no lm.scope drops x, or the tensors in the table x. Gives x.
--- lm.manual_seed(seed): the random numbers of all devices begin anew from an integer.
--- lm.get_rng_state([device]): where a device's random numbers are: a uint8 tensor, for set_rng_state.
--- lm.initial_seed([device]): the seed that a device's random numbers last began from.
--- lm.set_rng_state(state [, device]): goes on with random numbers from what get_rng_state gave.
--- lm.memory_allocated([device]): bytes that tensors take on a device (the default one).
--- lm.memory_reserved([device]): bytes that the allocator holds on a device, for tensors and for later ones.
--- lm.max_memory_allocated([device]): the most that memory_allocated was since the start or reset_peak_memory_stats.
--- lm.max_memory_reserved([device]): the most that memory_reserved was since the start or reset_peak_memory_stats.
--- lm.reset_peak_memory_stats([device]): max_memory_allocated and max_memory_reserved count from here on.
--- lm.empty_cache([device]): gives memory that no tensor takes back to the system or the driver.
--- lm.set_num_threads(n): ops on the CPU use n threads of this process.
--- lm.get_num_threads(): how many threads ops on the CPU use.
--- lm.synchronize([device]): waits until all work on a device is done.
--- lm.time(): seconds, with fractions, from some moment on: differences measure time.
--- lm.setenv(name, value): sets a variable of this process's environment; nil removes it.
--- lm.getenv(name): a variable of the environment as lm.setenv left it; nil where there is none.
--- lm.set_warnings(on): whether warnings are printed: true (at first), false, or "port", which adds warnings of what
--- code ported from PyTorch gets wrong without an error: a dim of 1, which is PyTorch's 0, given for a tensor of 2 dims
--- or more, ids or labels that seem to count from 0, and the globals True, False and None, which are nil in Lua. Each
--- is printed once for each line of the script, and those of ported code once for each function there. Returns the
--- previous setting.
--- lm.set_default_dtype(dtype): the floating dtype of tensors that are made without one: "float32" at first.
--- lm.get_default_dtype(): the floating dtype of tensors that are made without one.
--- lm.set_default_device(device): where tensors are made that are made without a device: "cpu" at first.
--- lm.get_default_device(): where tensors are made that are made without a device.

-- ---- values
--- lm.version: luminary's version, "major.minor.patch".
--- lm.newaxis: in an index a dim of size 1 more: x[{{}, lm.newaxis}] of [n] is [n, 1].

-- Every op is a function; so are the functions of the core that users call, and the methods that make tensors.
for name, op in pairs(core.ops) do lm[name] = op end
for name, op in pairs(require("luminary.tensor.aliases").functions) do lm[name] = op end
for _, name in ipairs {
  "tensor", "is_tensor", "max", "min", "grad", "no_grad", "enable_grad", "scope", "keep", "time",
} do
  lm[name] = core[name]
end
lm.autocast = require "luminary.amp.autocast"
for name, most in pairs { -- arguments that it takes
  live_tensors = 0, is_floating_point = 1, is_grad_enabled = 0,
  is_autocast_enabled = 1, get_autocast_dtype = 1,
  manual_seed = 1, initial_seed = 1, get_rng_state = 1, set_rng_state = 2, memory_allocated = 1,
  memory_reserved = 1, max_memory_allocated = 1, max_memory_reserved = 1, reset_peak_memory_stats = 1, empty_cache = 1,
  set_num_threads = 1, get_num_threads = 0, synchronize = 1, setenv = 2, getenv = 1, set_warnings = 1,
  set_default_dtype = 1, get_default_dtype = 0, set_default_device = 1, get_default_device = 0,
} do
  lm[name] = options.exact(name, core[name], most)
end
-- Ops of which PyTorch's functions have another form than its methods.
function lm.randint(low, high, ...)
  if type(high) == "table" and type(next(high)) ~= "string" then return core.ops.randint(0, low, high, ...) end
  return core.ops.randint(low, high, ...)
end
function lm.polygamma(n, x)
  if core.is_tensor(n) then n, x = x, n end
  return core.ops.polygamma(x, n)
end
--- The random numbers of all devices begin anew from a number that the system draws. Gives it.
function lm.seed(...)
  if options.count(...) > 0 then
    options.fail("seed: takes no argument; lm.manual_seed(%s) begins anew from a number", tostring((...)))
  end
  local seed = core.seed_generator("cpu")
  core.manual_seed(seed)
  return seed
end
--- The names of all ops; luminary ops at the command line says of each what runs where.
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
for _, name in ipairs {"split", "chunk", "unbind", "repeat_tensor", "tile", "equal", "allclose", "numel", "norm"} do
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

-- Loaded when first asked for: a script that only computes starts fast. Names, modules and fields of these.
local later = {
  checkpoint = {"save_load"}, Timer = {"timer"}, repr = {"repr"}, help = {"help", "ask"}, dist = {"distributed"},
  parallel = {"apex_parallel"}, save = {"save_load", "save"}, load = {"save_load", "load"},
  Generator = {"generator", "Generator"}, default_generator = {"generator", "default_generator"},
  GradScaler = {"amp.grad_scaler"}, CmdLine = {"cmd_line"}, quantize = {"nn.int8", "quantize"},
}
for name in ([[
  nn optim data mp autograd watch cuda backends amp models vision text linalg distributions func paths fft
]]):gmatch "%S+" do later[name] = {name} end
for module, names in pairs {
  ["tensor.placing"] = "diagonal_scatter index_copy index_fill index_reduce masked_scatter masked_select put "
    .. "select_scatter slice_scatter take take_along_dim",
  ["tensor.rearranging"] = "atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod column_stack "
    .. "combinations diag diag_embed diagflat dsplit dstack fliplr flipud hsplit hstack meshgrid moveaxis movedim "
    .. "repeat_interleave rot90 row_stack tensor_split tril_indices triu_indices unflatten vsplit vstack",
  ["tensor.products"] = "einsum tensordot inner kron cdist pdist chain_matmul",
  ["tensor.ordering"] = "bincount corrcoef cov diff histc isin median mode nanmedian nanquantile quantile unique "
    .. "unique_consecutive",
  ["tensor.spellings"] = "are_deterministic_algorithms_enabled argwhere as_strided_scatter as_tensor asarray "
    .. "broadcast_shapes clamp_max clamp_max_ clamp_min clamp_min_ constant_pad_nd empty_strided fill frombuffer "
    .. "get_device get_float32_matmul_precision get_printoptions inference_mode is_nonzero is_signed positive "
    .. "resize_as_ scalar_tensor set_float32_matmul_precision set_printoptions split_with_sizes std_mean unravel_index "
    .. "use_deterministic_algorithms var_mean",
  ["tensor.typed_constructors"] = "FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor IntTensor "
    .. "ShortTensor CharTensor ByteTensor BoolTensor",
  ["tensor.dtype_rules"] = "finfo iinfo result_type promote_types can_cast",
  ["tensor.matrices"] = "svd qr lu lu_solve pinverse matrix_power matrix_exp vander",
  ["tensor.integrals_and_histograms"] = "trapezoid trapz cumulative_trapezoid logspace renorm histogram",
  ["tensor.stft"] = "stft istft hann_window hamming_window blackman_window bartlett_window kaiser_window",
  ["nn.functional"] = "conv1d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool3d "
    .. "avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d pixel_shuffle pixel_unshuffle channel_shuffle "
    .. "binary_cross_entropy_with_logits",
} do
  for name in names:gmatch "%S+" do later[name] = {module, name} end
end

return options.strict("luminary", lm, later)
