--- Implements products and distances by other ops.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local einsum = require "luminary.tensor.einsum"
local full_precision = require "luminary.base.full_precision"
local indexing = require "luminary.tensor.indexing"
local shapes = require "luminary.tensor.shapes"

local ops, arg, describe, fail = core.ops, options.arg, options.describe, options.fail
local products = {einsum = einsum.of}

local function floating(who, name, x)
  arg(who, name, x, "tensor")
  if not core.is_floating_point(x) then options.wrong_dtype(who, name, "floating", x, "convert it with :float()") end
end

--- Sums the products of a and b over several dims.
products.tensordot = signature.of("tensordot(a: tensor, b: tensor, dims: any = 2)", function(a, b, dims)
  local who = "tensordot"
  local of_a, of_b = {}, {}
  if type(dims) == "number" then
    arg(who, "dims", dims, "natural")
    if dims > math.min(a.ndim, b.ndim) then
      fail("%s: dims must be at most the number of dims of a and b, got %d, %s and %s", who, dims, describe(a),
        describe(b))
    end
    for i = 1, dims do of_a[i], of_b[i] = a.ndim - dims + i, i end
  elseif options.is_plain(dims) and options.is_plain(dims[1]) and options.is_plain(dims[2])
    and #dims[1] == #dims[2] then
    for i, dim in ipairs(dims[1]) do of_a[i] = shapes.dim_of(who, a, dim, a.ndim) end
    for i, dim in ipairs(dims[2]) do of_b[i] = shapes.dim_of(who, b, dim, b.ndim) end
  else
    options.must_be(who, "dims", "a number, or two lists of as many dims each", dims)
  end
  local labels_a, labels_b, gone = {}, {}, {}
  for d = 1, a.ndim do labels_a[d] = d end
  for d = 1, b.ndim do labels_b[d] = -d end
  for i, dim in ipairs(of_a) do
    if a.shape[dim] ~= b.shape[of_b[i]] and a.shape[dim] ~= 1 and b.shape[of_b[i]] ~= 1 then
      fail("%s: dim %d of a, %s, and dim %d of b, %s, must have the same size", who, dim, describe(a), of_b[i],
        describe(b))
    end
    if gone[dim] then fail("%s: dims lists dim %d of a twice", who, dim) end
    labels_b[of_b[i]], gone[dim] = dim, true
  end
  local kept = lists.filter(lists.joined(labels_a, labels_b), function(label) return not gone[label] end)
  return einsum.product({{x = a, labels = labels_a}, {x = b, labels = labels_b}}, kept)
end)

--- Computes the inner products over the last dims of two tensors.
products.inner = signature.of("inner(a: tensor, b: tensor)", function(a, b)
  if a.ndim == 0 or b.ndim == 0 then return a * b end
  if a.shape[a.ndim] ~= b.shape[b.ndim] then
    fail("inner: the last dims of a and b must have the same size, got %s and %s", describe(a), describe(b))
  end
  return products.tensordot(a, b, {dims = {{-1}, {-1}}})
end)

--- Computes the Kronecker product of two tensors.
products.kron = signature.of("kron(a: tensor, b: tensor)", function(a, b)
  local n, of_a, of_b, shape = math.max(a.ndim, b.ndim), {}, {}, {}
  for d = 1, n do
    local at_a, at_b = d - n + a.ndim, d - n + b.ndim
    local i, j = at_a > 0 and a.shape[at_a] or 1, at_b > 0 and b.shape[at_b] or 1
    of_a[2 * d - 1], of_a[2 * d], of_b[2 * d - 1], of_b[2 * d], shape[d] = i, 1, 1, j, i * j
  end
  if n > 4 then -- too many dims for pairs
    fail("kron: a and b must have at most 4 dims, got %s and %s", describe(a), describe(b))
  end
  a, b = ops.reshape(a, of_a), ops.reshape(b, of_b)
  local i, j = of_a[2 * n - 1], of_b[2 * n] -- the last dim's sizes; many short runs are expanded to it first
  if n > 0 and j < 64 and a:numel() * b:numel() > 10000 and math.min(a:numel() / i, b:numel() / j) >= 4 then
    of_a[2 * n], of_b[2 * n - 1] = j, i
    a, b = ops.contiguous(ops.expand(a, of_a)), ops.contiguous(ops.expand(b, of_b))
    of_a[2 * n - 1], of_a[2 * n], of_b[2 * n - 1], of_b[2 * n] = 1, i * j, 1, i * j
    a, b = ops.reshape(a, of_a), ops.reshape(b, of_b)
  end
  return ops.reshape(a * b, shape)
end)

local AS_PRODUCT = 25 -- more rows are computed by matrix products, as in PyTorch

-- Returns the distances of all rows; by_products: true to use a matrix product if p is 2.
local distances = full_precision.rounds_once(function(x1, x2, p, by_products)
  local dtype = x1.dtype
  if x1.device == "cpu" and dtype == x2.dtype and (dtype == "float32" or dtype == "float64") then
    return ops.row_distances(x1, x2, p, {by_products = by_products and p == 2})
  end
  if p ~= 2 or not by_products then return ops.norm(ops.unsqueeze(x1, -2) - ops.unsqueeze(x2, -3), p, -1) end
  local squares = ops.sum(ops.square(x1), -1, {keepdim = true}) + ops.unsqueeze(ops.sum(ops.square(x2), -1), -2)
  local squared = squares - ops.matmul(x1, ops.transpose(x2, -1, -2)) * 2
  local none = ops.le(squared, 0) -- sqrt has no gradient there
  return ops.masked_fill(ops.sqrt(ops.masked_fill(squared, none, 1)), none, 0)
end)

--- Computes the p-norm distance between each pair of rows of x1 and x2.
products.cdist = signature.of([[cdist(x1: tensor, x2: tensor, p: positive = 2,
  compute_mode = "use_mm_for_euclid_dist_if_necessary" | "use_mm_for_euclid_dist" | "donot_use_mm_for_euclid_dist")]],
  function(x1, x2, p, mode)
  local who = "cdist"
  floating(who, "x1", x1)
  floating(who, "x2", x2)
  if x1.dtype ~= x2.dtype then options.dtypes_differ(who, "x1", x1, "x2", x2) end
  if core.is_autocast_enabled() then return full_precision.call(products.cdist, x1, x2, p, mode) end
  if x1.ndim < 2 or x2.ndim < 2 or x1.shape[x1.ndim] ~= x2.shape[x2.ndim] then
    fail("%s: expected x1 [..., n, m] and x2 [..., r, m], got %s and %s", who, describe(x1), describe(x2))
  end
  local many = x1.shape[x1.ndim - 1] > AS_PRODUCT or x2.shape[x2.ndim - 1] > AS_PRODUCT
  return distances(x1, x2, p, mode == "use_mm_for_euclid_dist" or mode:find "_if_necessary$" and many)
end)

--- Computes the p-norm distance of every pair of rows.
products.pdist = signature.of("pdist(x: tensor, p: positive = 2)", function(x, p)
  floating("pdist", "x", x)
  shapes.check("pdist", "x", x, {"n", "m"})
  if x.device == "cpu" and (x.dtype == "float32" or x.dtype == "float64") then return ops.pair_distances(x, p) end
  local indices = ops.arange(x.shape[1], {device = x.device})
  return indexing.masked_select(distances(x, x, p), ops.gt(indices, ops.unsqueeze(indices, 2)))
end)

-- Computes lm.linalg.multi_dot, for its caller `who`.
local function multi_dot(who, tensors)
  if not options.is_plain(tensors) or #options.list(who, "tensors", tensors) < 2 then
    fail("%s: expected a list of at least 2 tensors", who)
  end
  local terms, n = {}, #tensors
  for i, x in ipairs(tensors) do
    arg(who, "tensor " .. i, x, "tensor")
    local vector = x.ndim == 1 and (i == 1 or i == n)
    if x.ndim ~= 2 and not vector then
      fail("%s: tensor %d must be a matrix, or a vector if it is first or last, got %s", who, i, describe(x))
    end
    local before = tensors[i - 1]
    if before and before.shape[before.ndim] ~= x.shape[1] then
      fail("%s: tensor %d, %s, and tensor %d, %s, cannot be multiplied", who, i - 1, describe(before), i,
        describe(x))
    end
    terms[i] = {x = x, labels = {i, i + 1}}
    if vector then terms[i].labels = {i == 1 and 2 or n} end
  end
  local kept = {}
  if tensors[1].ndim == 2 then kept[1] = 1 end
  if tensors[n].ndim == 2 then kept[#kept + 1] = n + 1 end
  return einsum.product(terms, kept)
end

--- lm.chain_matmul(a, b, …): Computes the product of matrices in the order with the fewest multiplications.
function products.chain_matmul(...) return multi_dot("chain_matmul", {...}) end

--- lm.linalg.multi_dot(tensors): Computes the product of a list of matrices in the order with the fewest
--- multiplications.
function products.multi_dot(tensors) return multi_dot("multi_dot", tensors) end

return options.exact_all(products)
