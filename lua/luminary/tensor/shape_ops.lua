--- Permutes, joins and splits tensors, by other ops. Dims count from 1.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local index_ops = require "luminary.tensor.indexing"
local shapes = require "luminary.tensor.shapes"
local tensor_list = require "luminary.tensor.tensor_list"

local ops, methods, arg, describe, fail = core.ops, core.methods, options.arg, options.describe, options.fail
local shape_ops = {}

local function at_least(who, x, n)
  if arg(who, "x", x, "tensor").ndim < n then
    options.must_be(who, "x", ("a tensor of at least %d dim%s"):format(n, n == 1 and "" or "s"), x)
  end
  return x
end

-- Reads a call f(a, b, …, {options}) or f({a, b, …}, {options}): returns the list of tensors and the options' values.
local function list_of(text, ...)
  local list, n, who = {...}, select("#", ...), text:match "^[%w_]+"
  local given = n > 1 and options.is_plain(list[n]) and table.remove(list) or nil
  if #list == 1 and options.is_plain(list[1]) then list = options.list(who, "tensors", list[1]) end
  if #list == 0 or options.named_field(list) then
    options.expected(who, "tensors or a list of them", (n > 0 and ... or nil))
  end
  for i, x in ipairs(list) do arg(who, "tensor " .. i, x, "tensor") end
  return list, signature.read(text, who, given)
end

-- ---- broadcasting

--- lm.broadcast_tensors(a, b, …): Broadcasts tensors to one shape.
function shape_ops.broadcast_tensors(...)
  return tensor_list(shapes.broadcast("broadcast_tensors", (list_of("broadcast_tensors()", ...))))
end

--- lm.meshgrid({x, y, …} [, {indexing = "ij"}]): Returns grids of the coordinates in 1-d tensors.
function shape_ops.meshgrid(...)
  local list, indexing = list_of([[meshgrid(indexing = "ij" | "xy")]], ...)
  local exchanged, vectors, sizes = indexing == "xy" and #list > 1, {}, {}
  for i, x in ipairs(list) do
    if x.ndim > 1 then options.must_be("meshgrid", "tensor " .. i, "1-d", x) end
    local at = exchanged and i < 3 and 3 - i or i
    vectors[i] = {x = x, at = at}
    sizes[at] = x:numel()
  end
  local grids = lists.map(vectors, function(v) return ops.expand(shapes.along_dim(v.x, v.at, #list), sizes) end)
  return tensor_list(grids)
end

--- lm.cartesian_prod(a, b, …): Returns the Cartesian product of vectors, as the rows of a matrix.
function shape_ops.cartesian_prod(...)
  local list = list_of("cartesian_prod()", ...)
  if #list == 1 and list[1].ndim == 1 then return list[1] end
  return ops.stack(lists.map(shape_ops.meshgrid(list), function(grid) return ops.flatten(grid) end), 2)
end

--- Returns all combinations of r elements of a vector, as the rows of a matrix.
shape_ops.combinations = signature.of([[combinations(x: tensor, r: natural = 2,
  with_replacement = false)]], function(x, r, again)
  if x.ndim ~= 1 then options.must_be("combinations", "x", "1-d", x) end
  if r == 0 then return ops.empty(0, {dtype = x.dtype, device = x.device}) end
  local indices = ops.arange(x:numel(), {device = x.device, dtype = "int64"})
  local copies = {}
  for i = 1, r do copies[i] = indices end
  local grids, kept = shape_ops.meshgrid(copies), nil
  for i = 2, r do
    local fits = (again and ops.le or ops.lt)(grids[i - 1], grids[i])
    kept = kept and ops.logical_and(kept, fits) or fits
  end
  return ops.stack(lists.map(grids, function(grid)
    return ops.index_select(x, 1, ops.add(kept and index_ops.masked_select(grid, kept) or grid, 1))
  end), 2)
end)

-- ---- dims

--- Moves dims of x to other positions.
shape_ops.movedim = signature.of([[movedim(x: tensor, source: integers,
  destination: integers)]], function(x, source, destination)
  local who = "movedim"
  if #source ~= #destination then
    fail("%s: source and destination must have the same number of dims, got %d and %d", who, #source, #destination)
  end
  local order, taken, n = {}, {}, x.ndim
  for i in ipairs(source) do
    local from, to = shapes.dim_of(who, x, source[i], n), shapes.dim_of(who, x, destination[i], n)
    if taken[from] or order[to] then fail("%s: source and destination must not repeat a dim", who) end
    taken[from], order[to] = true, from
  end
  local next_one = 1
  for to = 1, n do
    while taken[next_one] do next_one = next_one + 1 end
    if not order[to] then order[to], next_one = next_one, next_one + 1 end
  end
  return ops.permute(x, order)
end)

--- Replaces a dim of x by several dims of the given sizes.
shape_ops.unflatten = signature.of("unflatten(x: tensor, dim: dim, sizes: integers)", function(x, dim, sizes)
  local who = "unflatten"
  dim = shapes.dim_of(who, x, dim, x.ndim)
  local shape, all, known, open = x.shape, {}, 1, 0
  if #sizes == 0 then fail("%s: sizes must not be empty", who) end
  for d = 1, dim - 1 do all[#all + 1] = shape[d] end
  for _, n in ipairs(sizes) do
    if n == -1 then open = open + 1 else known = known * n end
    all[#all + 1] = n
  end
  if known < 0 or open > 1 or (open == 0 and known ~= shape[dim])
    or open == 1 and (known == 0 or shape[dim] % known ~= 0) then
    fail("%s: dim %d of %s has size %d; cannot unflatten it to {%s}", who, dim, describe(x), shape[dim],
      table.concat(sizes, ", "))
  end
  for i = dim, dim + #sizes - 1 do
    if all[i] == -1 then all[i] = shape[dim] / known end
  end
  for d = dim + 1, #shape do all[#all + 1] = shape[d] end
  return ops.reshape(x, all)
end)

-- Applies f to one tensor, or to each of a list.
local function each_of(who, f, ...)
  if select("#", ...) == 1 and core.is_tensor((...)) then return f((...)) end
  local results = lists.map((list_of(who .. "()", ...)), function(x) return f(x) end)
  return tensor_list(results)
end

local function to_1d(x) return x.ndim == 0 and ops.reshape(x, {1}) or x end
local function to_2d(x) return x.ndim > 1 and x or ops.unsqueeze(to_1d(x), 1) end
local function to_3d(x) return x.ndim > 2 and x or ops.unsqueeze(to_2d(x), 3) end

--- lm.atleast_1d(x): Returns x with at least 1 dim.
function shape_ops.atleast_1d(...) return each_of("atleast_1d", to_1d, ...) end

--- lm.atleast_2d(x): Returns x with at least 2 dims.
function shape_ops.atleast_2d(...) return each_of("atleast_2d", to_2d, ...) end

--- lm.atleast_3d(x): Returns x with at least 3 dims.
function shape_ops.atleast_3d(...) return each_of("atleast_3d", to_3d, ...) end

-- ---- joining

local function joined(who, form, dim, ...)
  local list = lists.map((list_of(who .. "()", ...)), function(x) return form(x) end)
  return ops.cat(list, list[1].ndim == 1 and 1 or dim)
end

--- lm.hstack(tensors): Joins tensors horizontally, along dim 2; 1-d tensors along dim 1.
function shape_ops.hstack(...) return joined("hstack", to_1d, 2, ...) end

--- lm.vstack(tensors): Joins tensors vertically, along dim 1; 1-d tensors are rows.
function shape_ops.vstack(...) return joined("vstack", to_2d, 1, ...) end

--- lm.row_stack(tensors): Joins tensors vertically, as lm.vstack does.
function shape_ops.row_stack(...) return joined("row_stack", to_2d, 1, ...) end

--- lm.dstack(tensors): Joins tensors along dim 3.
function shape_ops.dstack(...) return joined("dstack", to_3d, 3, ...) end

--- lm.column_stack(tensors): Joins tensors horizontally; 1-d tensors are columns.
function shape_ops.column_stack(...)
  return joined("column_stack", function(x) return x.ndim < 2 and ops.reshape(x, {-1, 1}) or x end, 2, ...)
end

--- lm.block_diag(a, b, …): Returns a matrix with the given matrices on its diagonal.
function shape_ops.block_diag(...)
  local blocks, width, before = {}, 0, 0
  for i, x in ipairs((list_of("block_diag()", ...))) do
    if x.ndim > 2 then options.must_be("block_diag", "tensor " .. i, "at most 2-d", x) end
    blocks[i] = to_2d(x)
    width = width + blocks[i].shape[2]
  end
  for i, x in ipairs(blocks) do
    local n = x.shape[2]
    blocks[i] = ops.pad(x, {before, width - before - n})
    before = before + n
  end
  return ops.cat(blocks, 1)
end

-- ---- splitting

-- Splits dim into views: a number of nearly equal ones, or views that end before each index of a list.
local function tensor_split(who, x, parts, dim)
  dim = shapes.dim_of(who, x, dim, at_least(who, x, 1).ndim)
  if core.is_tensor(parts) then parts = parts:totable() end
  local n, sizes = x.shape[dim], {}
  if type(parts) == "number" then
    if arg(who, "sections", parts, "count") > 2 ^ 20 then
      fail("%s: the result would be %.0f views; a list has at most %d tensors", who, parts, 2 ^ 20)
    end
    for i = 1, parts do sizes[i] = math.floor(n / parts) + (i <= n % parts and 1 or 0) end
    return methods.split(x, sizes, dim)
  end
  local list, begin = {}, 1
  parts = arg(who, "indices", parts, "integers")
  for i = 1, #parts + 1 do
    local stop = parts[i] or n + 1 -- the first index of the next part
    if stop == 0 then options.must_be(who, ("indices[%d]"):format(i), "at least 1", stop, "indices start at 1") end
    stop = math.min(math.max(stop < 0 and n + 1 + stop or stop, 1), n + 1)
    list[i] = ops.narrow(x, dim, math.min(begin, n + 1), math.max(stop - begin, 0))
    begin = stop
  end
  return tensor_list(list)
end

options.kind("parts", "integer, list of integers or tensor", function(who, name, v)
  if type(v) == "number" or options.is_plain(v) or core.is_tensor(v) and v.ndim < 2 then return v end
  options.must_be(who, name, "a number or a list of numbers", v)
end)

--- Splits x along dim into a number of views, or at the given indices.
shape_ops.tensor_split = signature.of([[tensor_split(x: tensor, indices_or_sections: parts,
  dim: dim = 1)]], function(x, parts, dim)
  return tensor_split("tensor_split", x, parts, dim)
end)

local function split_along(who, min_dims, dim, ...)
  local x, parts = signature.read("(x: tensor, indices_or_sections: parts)", who, ...)
  if at_least(who, x, min_dims).ndim == 1 then dim = 1 end
  if type(parts) == "number" then
    arg(who, "sections", parts, "count")
    options.divisible(who, "size of dim " .. dim .. " of x", x.shape[dim], "sections", parts)
  end
  return tensor_split(who, x, parts, dim)
end

--- x:hsplit(sections or {i, …}): Splits x along dim 2, or a 1-d x along dim 1, into views.
function shape_ops.hsplit(...) return split_along("hsplit", 1, 2, ...) end

--- x:vsplit(sections or {i, …}): Splits x along dim 1 into views.
function shape_ops.vsplit(...) return split_along("vsplit", 2, 1, ...) end

--- x:dsplit(sections or {i, …}): Splits x along dim 3 into views.
function shape_ops.dsplit(...) return split_along("dsplit", 3, 3, ...) end

-- ---- entries

--- x:fliplr(): Returns x with its columns in reverse order.
function shape_ops.fliplr(x) return ops.flip(at_least("fliplr", x, 2), 2) end

--- x:flipud(): Returns x with its rows in reverse order.
function shape_ops.flipud(x) return ops.flip(at_least("flipud", x, 1), 1) end

--- Rotates x by k times 90 degrees in the plane of two dims.
shape_ops.rot90 = signature.of("rot90(x: tensor, k: integer = 1, dims: integers = {1, 2})", function(x, k, dims)
  local who = "rot90"
  if #dims ~= 2 then options.must_be(who, "dims", "two dims", #dims) end
  local a, b = shapes.dim_of(who, x, dims[1], at_least(who, x, 2).ndim), shapes.dim_of(who, x, dims[2], x.ndim)
  if a == b then fail("%s: dims must be two different dims, got dim %d twice", who, a) end
  k = k % 4
  if k == 0 then return ops.clone(x) end
  if k == 2 then return ops.flip(x, {a, b}) end
  return ops.transpose(ops.flip(x, k == 1 and b or a), a, b)
end)

-- Returns 1-d indices in which i occurs counts[i] times.
local function repeated_indices(who, counts, size)
  if counts.dtype ~= "int64" and counts.dtype ~= "int32" then
    options.wrong_dtype(who, "repeats", "int64 or int32", counts, "convert it with :long()")
  end
  if counts:numel() == 1 then counts = ops.expand(ops.reshape(counts, {1}), {size}) end
  if counts.ndim ~= 1 or counts:numel() ~= size then
    options.wrong_shape(who, "repeats", counts, ("[] or [%d]"):format(size))
  end
  if size == 0 then return ops.empty(0, {dtype = "int64", device = counts.device}) end
  if ops.amin(counts):item() < 0 then fail("%s: repeats must not be negative", who) end
  -- Entry i begins at begins[i]; the running count of beginnings is the index. An entry repeated 0 times begins at the
  -- next one's position.
  local ends = ops.cumsum(counts, 1)
  local begins, how = ends - counts + 1, {dtype = "int64", device = counts.device}
  local total = tonumber(ops.select(ends, 1, size):item())
  local marks = ops.scatter_add(ops.zeros(total + 1, how), 1, begins, ops.expand(ops.ones(1, how), {size}))
  return ops.cumsum(ops.narrow(marks, 1, 1, total), 1)
end

options.kind("repeats", "integer, list of integers or tensor", function(who, name, v)
  if core.is_tensor(v) then return v end
  if options.is_plain(v) then return core.tensor(v, {dtype = "int64"}) end
  return arg(who, name, v, "natural")
end)

--- Repeats each element of x, or each slice along dim.
shape_ops.repeat_interleave = signature.of([[repeat_interleave(x: tensor, repeats: repeats, dim: dim?,
  output_size: natural?)]], function(x, repeats, dim, size)
  local who = "repeat_interleave"
  if dim == nil then x, dim = ops.flatten(x), 1 end
  if x.ndim == 0 then x = ops.reshape(x, {1}) end
  dim = shapes.dim_of(who, x, dim, x.ndim)
  local y
  if core.is_tensor(repeats) then
    y = ops.index_select(x, dim, repeated_indices(who, repeats:to(x.device), x.shape[dim]))
  else
    local shape, wide = x.shape, {}
    for d = 1, x.ndim + 1 do wide[d] = d == dim + 1 and repeats or shape[d > dim and d - 1 or d] end
    shape[dim] = shape[dim] * repeats
    y = shapes.reshape_copy(ops.expand(ops.unsqueeze(x, dim + 1), wide), shape)
  end
  if size and size ~= y.shape[dim] then
    fail("%s: output_size must be the sum of repeats, got %d for %d", who, size, y.shape[dim])
  end
  return y
end)

-- ---- diagonals and triangles

--- Returns matrices with the vectors in the last dim of x on their diagonals.
shape_ops.diag_embed = signature.of([[diag_embed(x: tensor, offset: integer = 0, dim1: integer = -2,
  dim2: integer = -1)]], function(x, offset, dim1, dim2)
  local who = "diag_embed"
  local n = at_least(who, x, 1).ndim + 1
  dim1, dim2 = shapes.dim_of(who, x, dim1, n), shapes.dim_of(who, x, dim2, n)
  if dim1 == dim2 then fail("%s: dim1 and dim2 must differ, got dim %d twice", who, dim1) end
  local shape, sizes, from = x.shape, {}, 1
  local side = shape[#shape] + math.abs(offset)
  for d = 1, n do
    if d == dim1 or d == dim2 then
      sizes[d] = side
    else
      sizes[d], from = shape[from], from + 1
    end
  end
  local y = ops.zeros(sizes, {dtype = x.dtype, device = x.device})
  ops.copy_(ops.diagonal(y, offset, dim1, dim2), x)
  return y
end)

--- Returns the matrix with a vector on its diagonal, or the diagonal of a matrix.
shape_ops.diag = signature.of("diag(x: tensor, diagonal: integer = 0)", function(x, diagonal)
  if at_least("diag", x, 1).ndim > 2 then
    options.must_be("diag", "x", "1-d or 2-d", x, "use diagonal or diag_embed for more dims")
  end
  if x.ndim == 1 then return shape_ops.diag_embed(x, diagonal) end
  return ops.clone(ops.diagonal(x, diagonal))
end)

--- Returns the matrix with the elements of x on its diagonal.
shape_ops.diagflat = signature.of("diagflat(x: tensor, offset: integer = 0)", function(x, offset)
  return shape_ops.diag_embed(ops.flatten(x), offset)
end)

local index_arguments = [[(row: natural, col: natural, offset: integer = 0, dtype = "int64",
  device: any?)]]
local function indices_of(who, triangle, ...)
  local rows, columns, offset, dtype, device = signature.read(index_arguments, who, ...)
  local mask = triangle(ops.ones({rows, columns}, {dtype = "bool", device = device}), offset)
  return methods.to(ops.contiguous(ops.t(ops.nonzero(mask))), dtype)
end

--- lm.tril_indices(row, col [, offset = 0 [, {dtype, device}]]): Returns the indices of the lower triangle of a [row,
--- col] matrix.
function shape_ops.tril_indices(...) return indices_of("tril_indices", ops.tril, ...) end

--- lm.triu_indices(row, col [, offset = 0 [, {dtype, device}]]): Returns the indices of the upper triangle of a [row,
--- col] matrix.
function shape_ops.triu_indices(...) return indices_of("triu_indices", ops.triu, ...) end

shape_ops.moveaxis = shape_ops.movedim

return options.exact_all(shape_ops)
