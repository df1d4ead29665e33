--- Defines methods of tensors that split and repeat them, norms, and hooks of gradients.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local load_module = require "luminary.base.load_module"
local shapes = require "luminary.tensor.shapes"
local tensor_list = require "luminary.tensor.tensor_list"

local ops, fail, to = core.ops, options.fail, core.methods.to
local methods = {}

local function tensor(who, x) return options.arg(who, "x", x, "tensor") end

--- Returns whether |x - other| <= atol + rtol * |other| holds for all elements.
methods.allclose = signature.of([[allclose(x: tensor, other: tensor, rtol: positive = 1e-5, atol: positive = 1e-8,
  equal_nan = false)]], function(x, other, rtol, atol, equal_nan)
  return core.no_grad(function()
    local a, b = x, other
    if not core.is_floating_point(a) then a = to(a, "float64") end
    if not core.is_floating_point(b) then b = to(b, "float64") end
    local near = ops.le(ops.abs(a - b), ops.abs(b) * rtol + atol)
    local close = ops.logical_or(ops.eq(a, b), ops.logical_and(near, ops.isfinite(b)))
    if equal_nan then close = ops.logical_or(close, ops.logical_and(ops.isnan(a), ops.isnan(b))) end
    return ops.all(close):item()
  end)
end)

local MAX_PARTS = 2 ^ 20 -- tensors in a list

local function check_parts(who, n)
  if n > MAX_PARTS then fail("%s: the result would be %.0f views; a list has at most %d tensors", who, n, MAX_PARTS) end
end

options.kind("size_or_sizes", "integer or list of integers", function(who, name, v)
  return options.arg(who, name, v, type(v) == "number" and "count" or "integers")
end)

--- Splits x along dim into views of the given size, or of a list of sizes.
methods.split = signature.of("split(x: tensor, size: size_or_sizes, dim: dim = 1)", function(x, sizes, dim)
  dim = shapes.dim_of("split", x, dim, x.ndim)
  local total = x.shape[dim]
  if type(sizes) == "number" then
    local size = sizes
    check_parts("split", total / size)
    sizes = {}
    for first = 1, total, size do sizes[#sizes + 1] = math.min(size, total - first + 1) end
    if total == 0 then sizes[1] = 0 end
  end
  local parts, start, sum = {}, 1, 0
  for i, n in ipairs(sizes) do sum = sum + options.arg("split", "sizes[" .. i .. "]", n, "natural") end
  if sum ~= total then fail("split: sizes add up to %d, but dim %d has size %d", sum, dim, total) end
  for i, n in ipairs(sizes) do
    parts[i] = ops.narrow(x, dim, start, n)
    start = start + n
  end
  return tensor_list(parts)
end)

--- Splits x along dim into at most the given number of views of equal size; the last may be smaller.
methods.chunk = signature.of("chunk(x: tensor, chunks: count, dim: dim = 1)", function(x, chunks, dim)
  dim = shapes.dim_of("chunk", x, dim, x.ndim)
  return methods.split(x, math.max(1, math.ceil(x.shape[dim] / chunks)), dim)
end)

--- Returns the list of the slices of x along dim, without that dim.
methods.unbind = signature.of("unbind(x: tensor, dim: dim = 1)", function(x, dim)
  dim = shapes.dim_of("unbind", x, dim, x.ndim)
  local total, parts = x.shape[dim], {}
  check_parts("unbind", total)
  for i = 1, total do parts[i] = ops.select(x, dim, i) end
  return tensor_list(parts)
end)

-- Repeats y along each dim by counts, up to the third repeated dim, and sets their counts to 1. It copies y once, with
-- a new dim before each repeated dim; dims that are not repeated are merged with others.
local function repeated_once(y, counts)
  local shape, narrow, wide, free_dims = y.shape, {}, {}, 3
  for d, size in ipairs(shape) do
    local n = counts[d]
    if n ~= 1 and free_dims > 0 then
      narrow[#narrow + 1], wide[#wide + 1] = 1, n
      shape[d], counts[d], free_dims = size * n, 1, free_dims - 1
    end
    if (n ~= 1 and counts[d] == 1) or #wide == 0 then
      narrow[#narrow + 1], wide[#wide + 1] = size, size
    else
      narrow[#narrow], wide[#wide] = narrow[#narrow] * size, wide[#wide] * size
    end
  end
  return shapes.reshape_copy(ops.expand(ops.reshape(y, narrow), wide), shape)
end

-- Returns counts that were passed as numbers or as one list.
local function repeated(who, x, fill_up, ...)
  tensor(who, x)
  local times = {...}
  if select("#", ...) == 1 then times = (...) end
  times = options.arg(who, "counts", times, "integers")
  if #times < x.ndim and not fill_up then
    fail("%s: repeats has %d entries; expected at least %d, one for each dim", who, #times, x.ndim)
  end
  local y, before_them, counts, copied = x, math.max(x.ndim - #times, 0), {}, false
  for d = 1, before_them do counts[d] = 1 end
  for i, n in ipairs(times) do
    counts[before_them + i] = options.arg(who, "counts[" .. i .. "]", n, "natural")
    if i > x.ndim then y = ops.unsqueeze(y, 1) end
  end
  for d, n in ipairs(counts) do
    if n == 0 then y, counts[d] = ops.narrow(y, d, 1, 0), 1 end
  end
  for _, n in ipairs(counts) do
    if n ~= 1 then y, copied = repeated_once(y, counts), true end
  end
  return copied and y or ops.clone(y)
end

--- x:repeat_tensor(2, 3, …): Repeats x along each dim, and along new first dims where there are more counts: PyTorch's
--- repeat, a reserved word of Lua, for which `x["repeat"](x, …)` works too.
function methods.repeat_tensor(x, ...) return repeated("repeat_tensor", x, false, ...) end

--- x:tile(2, 3, …): Repeats x along its last dims, and along new first dims where there are more counts.
function methods.tile(x, ...) return repeated("tile", x, true, ...) end

--- Returns the elements of x where condition is true, else those of other.
methods.where = signature.of("where(x: tensor, condition: tensor, other: any)", function(x, condition, other)
  return ops.where(condition, x, other)
end)

--- Returns the p-norm of x - other.
methods.dist = signature.of("dist(x: tensor, other: tensor, p = 2)", function(x, other, p)
  return ops.norm(x - other, p)
end)

local named_norm = [[norm(x: tensor, p: "fro" | "nuc", dim: dims?, keepdim = false)]]

-- Calls the op for p by name.
function methods.norm(...)
  local p = select(2, ...)
  if type(p) == "table" then p = p.p end
  if type(p) ~= "string" then return ops.norm(...) end
  local x, ord, dim, keepdim = signature.read(named_norm, nil, ...)
  if ord == "fro" then return ops.norm(x, 2, dim, {keepdim = keepdim}) end
  return load_module("luminary.linalg").matrix_norm(x, "nuc", dim, keepdim)
end

-- ---- hooks
local Handle = {}
Handle.__index = Handle

--- Removes the hook.
function Handle:remove()
  if not self.id then return end
  core._remove_hook(self.tensor, self.id, self.callback)
  self.id, self.tensor, self.callback = nil, nil, nil
end

local function register(x, hook, accumulate)
  local id, callback = core._register_hook(x, hook, accumulate)
  return setmetatable({tensor = x, id = id, callback = callback}, Handle)
end

--- Registers a function that backward calls with the gradient of x, which it may replace.
function methods.register_hook(x, hook) return register(x, hook, false) end

--- Registers a function that backward calls with x after it added to x.grad.
methods.register_post_accumulate_grad_hook = signature.of([[register_post_accumulate_grad_hook(x,
  hook: function)]], function(x, hook)
  return register(x, function()
    if core.is_alive(x) then hook(x) end
  end, true)
end)

return options.exact_all(methods)
