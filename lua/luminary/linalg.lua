--- lm.linalg: norms and products under the names of torch.linalg. Dims count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local products = require "luminary.tensor.products"

local ops, arg, fail, describe = core.ops, options.arg, options.fail, options.describe
local linalg = {multi_dot = products.multi_dot}

local function in_dtype(x, dtype) return dtype and x:to(dtype) or x end

-- The arguments ord, dim and keepdim of a call, which may stand by name in the table that comes last.
local function read(who, x, first, spec, ...)
  arg(who, "x", x, "tensor")
  local places, n = {...}, select("#", ...)
  local given = {}
  local last = places[n]
  if n > 0 and options.is_plain(last) and (next(last) == nil or type(next(last)) == "string") then
    given, n = last, n - 1
  end
  local all = {}
  for key, value in pairs(given) do all[key] = value end
  for i, name in ipairs {first, "dim", "keepdim"} do
    if i <= n and places[i] ~= nil then all[name] = places[i] end
  end
  spec.dim, spec.keepdim, spec.dtype = {"any"}, {"boolean", false}, {"string"}
  return options.check(who, all, spec, first)
end

--- linalg.vector_norm(x [, ord = 2 [, dim [, keepdim = false]]] [, {dtype}]): the ord-norm over dim, a number or a
--- list, or over all of x; ord is any number.
function linalg.vector_norm(x, ...)
  local o = read("vector_norm", x, "ord", {ord = {"number", 2}}, ...)
  return ops.norm(in_dtype(x, o.dtype), o.ord, o.dim, {keepdim = o.keepdim})
end

local function matrix_norm(who, x, ord, dim, keepdim)
  if x.ndim < 2 then fail("%s: x is %s; it has to have 2 dims or more", who, describe(x)) end
  if not options.is_plain(dim) or #dim ~= 2 then
    fail("%s: dim has to be a list of two dims, got %s", who, describe(dim))
  end
  local rows, columns = dim[1], dim[2]
  for _, d in ipairs(dim) do
    if type(d) ~= "number" or d % 1 ~= 0 or d == 0 or d < -x.ndim or d > x.ndim then
      fail("%s: there is no dim %s in %s", who, tostring(d), describe(x))
    end
  end
  if rows < 0 then rows = x.ndim + 1 + rows end
  if columns < 0 then columns = x.ndim + 1 + columns end
  if rows == columns then fail("%s: dim has dim %d twice", who, rows) end
  if ord == "fro" then return ops.norm(x, 2, {rows, columns}, {keepdim = keepdim}) end
  if ord ~= 1 and ord ~= -1 and ord ~= math.huge and ord ~= -math.huge then
    fail("%s: ord %s is not in this version; there are 'fro', 1, -1, math.huge and -math.huge", who, describe(ord))
  end
  if math.abs(ord) ~= 1 then rows, columns = columns, rows end -- sums of rows, not of columns
  local sums = ops.norm(x, 1, rows, {keepdim = true})
  local y = (ord > 0 and ops.amax or ops.amin)(sums, columns, {keepdim = true})
  return keepdim and y or ops.squeeze(y, {rows, columns})
end

--- linalg.matrix_norm(x [, ord = "fro" [, dim = {-2, -1} [, keepdim = false]]] [, {dtype}]): of the matrices in two
--- dims: "fro", the root of the sum of squares; 1 (-1), the largest (smallest) sum of a column's absolute values;
--- math.huge (-math.huge), that of a row.
function linalg.matrix_norm(x, ...)
  local o = read("matrix_norm", x, "ord", {ord = {"any", "fro"}}, ...)
  return matrix_norm("matrix_norm", in_dtype(x, o.dtype), o.ord, o.dim or {-2, -1}, o.keepdim)
end

--- linalg.norm(x [, ord [, dim [, keepdim = false]]] [, {dtype}]): without ord the 2-norm over dim, or over all of x;
--- else vector_norm where dim is a number or x a vector, matrix_norm for two dims or a matrix.
function linalg.norm(x, ...)
  local o = read("norm", x, "ord", {ord = {"any"}}, ...)
  x = in_dtype(x, o.dtype)
  local dims = o.dim ~= nil and (type(o.dim) == "number" and 1 or #o.dim) or x.ndim
  if o.ord == nil then return ops.norm(x, 2, o.dim, {keepdim = o.keepdim}) end
  if dims == 2 then return matrix_norm("norm", x, o.ord, o.dim or {1, 2}, o.keepdim) end
  if dims ~= 1 then fail("norm: with ord, x has to have 1 or 2 dims, or dim to name as many; x is %s", describe(x)) end
  return ops.norm(x, arg("norm", "ord", o.ord, "number"), o.dim, {keepdim = o.keepdim})
end

--- linalg.vecdot(x, other [, {dim = -1}]): the sums of products along dim; the others broadcast.
function linalg.vecdot(x, other, opts)
  arg("vecdot", "x", x, "tensor")
  arg("vecdot", "other", other, "tensor")
  local o = options.check("vecdot", opts, {dim = {"integer", -1}}, "dim")
  return ops.sum(x * other, o.dim)
end

--- linalg.cross(x, other [, {dim = -1}]): the vector product along dim, of size 3; lm.cross.
function linalg.cross(x, other, opts) return ops.cross(x, other, opts or {}) end

return options.strict("linalg", linalg)
