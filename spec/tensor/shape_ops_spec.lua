-- Indexing, masks, and functions that permute, join and split tensors, made of other ops.
local lm = require "luminary"


local function shown(v)
  if lm.is_tensor(v) then v = v:totable() end
  if type(v) ~= "table" then return tostring(v) end
  local parts = {}
  for i, each in ipairs(v) do parts[i] = shown(each) end
  return "{" .. table.concat(parts, " ") .. "}"
end
local function gives(what, got, want) assert.equal(want, shown(got), what) end
local function places(...) return lm.tensor({ ... }, { dtype = "int64" }) end
local function counted(...) return lm.arange(lm.empty(...):numel(), { dtype = "float64" }):view { ... } end
local function refused(pattern, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  assert(tostring(why):find(pattern), ("'%s' in: %s"):format(pattern, tostring(why)))
end
-- Gradients, and those of gradients, of f at float64 tensors.
local function differentiable(f, ...)
  local inputs = { ... }
  for i, x in ipairs(inputs) do inputs[i] = (x:double() + lm.rand(x.shape, { dtype = "float64" })):requires_grad_() end
  assert(lm.autograd.gradcheck(f, inputs))
  assert(lm.autograd.gradgradcheck(f, inputs))
end

describe("writing by places", function()
  local x = nil
  before_each(function() x = counted(2, 3) end)
  after_each(function() x = nil end)

  it("copies, fills and folds entries of a dim", function()
    gives("index_copy", x:index_copy(2, places(3, 1), -counted(2, 2)), "{{-1 1 -0} {-3 4 -2}}")
    gives("index_fill", x:index_fill(-1, places(1, 1), 9), "{{9 1 2} {9 4 5}}")
    gives("index_reduce", x:index_reduce(1, places(1, 1), counted(2, 3), "amax"), "{{3 4 5} {3 4 5}}")
    gives("without x", x:index_reduce(1, places(1, 1), counted(2, 3), "mean", { include_self = false }),
      "{{1.5 2.5 3.5} {3 4 5}}")
    gives("0-d", lm.tensor(1):index_copy(1, places(1), lm.tensor { 5 }), "5")
    gives("none", x:index_copy(1, lm.empty(0, { dtype = "int64" }), lm.empty({ 0, 3 }, { dtype = "float64" })),
      "{{0 1 2} {3 4 5}}")
    refused("index_copy: source is a tensor %[2, 3%]", x.index_copy, x, 1, places(1), x)
    refused("index_copy: source is int64", x.index_copy, x, 1, places(1, 2), x:long())
    refused("index_fill: value must be a number, a boolean or a 0%-d tensor, got a tensor %[2, 3%]$",
      x.index_fill, x, 1, places(1), x)
    refused("index_fill: dim must be from 1 to 2 or from %-2 to %-1, got 3; x is a tensor %[2, 3%]$",
      x.index_fill, x, 3, places(1), 1)
    refused("index_reduce: reduce must be one of 'prod', 'mean',", x.index_reduce, x, 1, places(1, 1), x, "max")
    refused("index 7", x.index_copy, x, 1, places(7, 1), x)
    refused("index_copy: index must be a tensor, got 3$", x.index_copy, x, 1, 3, x)
  end)

  it("does so in place, also where x is not contiguous", function()
    local turned = x:t()
    turned:index_fill_(1, places(2), 7):put_(places(1), lm.tensor({ 5 }, { dtype = "float64" }))
    gives("through a view", x, "{{5 7 2} {3 7 5}}")
    x:index_copy_(1, places(2), lm.zeros({ 1, 3 }, { dtype = "float64" })):masked_scatter_(x:eq(0), counted(3) + 1)
    gives("index_copy_, masked_scatter_", x, "{{5 7 2} {1 2 3}}")
    gives("index_reduce_", x:index_reduce_(1, places(1), -counted(1, 3), "amin"), "{{-0 -1 -2} {1 2 3}}")
    gives("scatter_reduce_", x:scatter_reduce_(2, places(3):view(1, 1), counted(1, 1) + 4, "prod"),
      "{{-0 -1 -8} {1 2 3}}")
    gives("fill_diagonal_", x:fill_diagonal_(8), "{{8 -1 -8} {1 8 3}}")
  end)

  it("counts through all elements", function()
    gives("take", x:take(lm.tensor({ { 1, -1 }, { 3, 3 } }, { dtype = "int64" })), "{{0 5} {2 2}}")
    gives("put", x:put(places(1, 6), -counted(2) - 1), "{{-1 1 2} {3 4 -2}}")
    gives("put adds", x:put(places(1, 1), counted(2) + 1, { accumulate = true }), "{{3 1 2} {3 4 5}}")
    gives("take_along_dim", x:take_along_dim(lm.tensor({ { 2 }, { -1 } }, { dtype = "int64" }), 2), "{{1} {5}}")
    gives("of all", x:take_along_dim(places(6, 1)), "{5 0}")
    refused("put: source and index must have the same number of elements, got a tensor %[2, 3%] and a tensor %[1%]$",
      x.put, x, places(1), x)
    refused("index 7", x.take, x, places(7))
  end)

  it("by masks", function()
    local mask = lm.tensor { false, true, true }
    gives("masked_select", x:masked_select(mask), "{1 2 4 5}")
    gives("wider", lm.tensor({ 1, 2, 3 }):masked_select(x:gt(2)), "{1 2 3}")
    gives("masked_scatter", x:masked_scatter(mask, -counted(5)), "{{0 -0 -1} {3 -2 -3}}")
    gives("none", x:masked_select(x:gt(9)), "{}")
    refused("masked_select: mask must be bool, got float64; compare, or convert it with :bool%(%)$",
      x.masked_select, x, x)
    refused("masked_scatter: mask selects 4 elements, but source, a tensor %[3%], has 3$",
      x.masked_scatter, x, mask, counted(3))
    refused("masked_select: a tensor %[2, 3%], a tensor %[2%] do not broadcast: dim 2 is 3 and 2$",
      x.masked_select, x, lm.tensor { true, false })
  end)

  it("into a copy's view", function()
    gives("select_scatter", x:select_scatter(lm.zeros(3, { dtype = "float64" }), 1, -1), "{{0 1 2} {0 0 0}}")
    gives("slice_scatter", x:slice_scatter(-counted(2, 2), 2, 1, -1, 2), "{{-0 1 -1} {-2 4 -3}}")
    gives("diagonal_scatter", x:diagonal_scatter(counted(2) + 7, { offset = 1 }), "{{0 7 2} {3 4 8}}")
    refused("select_scatter: expected src to have shape %[3%], got %[2%]$", x.select_scatter, x,
      counted(2), 1, 1)
  end)

  it("has gradients", function()
    local at, mask = places(2, 1), lm.tensor { true, false, true }
    differentiable(function(a, s) return a:index_copy(1, at, s) end, x, x)
    differentiable(function(a, v) return a:index_fill(2, places(1, 1), v) end, x, lm.tensor(2))
    differentiable(function(a, s) return a:index_reduce(2, places(1, 1, 2), s, "mean") end, x, x)
    differentiable(function(a, s) return a:put(places(1, 4), s) + a:take(places(3, 3)):sum() end, x, counted(2))
    differentiable(function(a, s) return a:masked_scatter(mask, s) * a:masked_select(mask):sum() end, x, counted(4))
    differentiable(function(a, s) return a:diagonal_scatter(s, { offset = -1 }):select_scatter((s * s):expand(2), 2,
      2):sum(1) end, counted(2, 3), counted(1))
    differentiable(function(a, s) return (a * 1):index_add_(1, at, s, { alpha = 2 }):tril_() end, x, x)
  end)
end)

describe("dims", function()
  it("move, come to be more, and broadcast", function()
    local x = counted(2, 3, 4)
    assert.same({ 3, 4, 2 }, x:movedim(1, -1).shape)
    assert.same({ 4, 2, 3 }, lm.moveaxis(x, { 3, 1 }, { 1, 2 }).shape)
    assert.same({ 4, 3, 2 }, x:swapaxes(1, 3).shape)
    assert.same({ 2, 3, 2, 2 }, x:unflatten(3, { 2, -1 }).shape)
    assert.same({ 5, 3 }, lm.broadcast_to(lm.zeros(3), { 5, 3 }).shape)
    local a, b = unpack(lm.broadcast_tensors(lm.zeros(3, 1), lm.zeros(4)))
    assert.same({ { 3, 4 }, { 3, 4 } }, { a.shape, b.shape })
    assert.same({ { 1 }, { 1, 1 }, { 1, 1, 1 } }, { lm.atleast_1d(lm.tensor(1)).shape,
      lm.atleast_2d(lm.tensor(1)).shape, lm.atleast_3d(lm.tensor(1)).shape })
    assert.same({ 1, 3, 1 }, lm.atleast_3d { lm.zeros(3) }[1].shape)
    refused("movedim: source and destination must not repeat a dim$", x.movedim, x, { 1, 1 }, { 2, 3 })
    refused("movedim: dim must be from 1 to 3 or from %-3 to %-1, got 4; x is a tensor %[2, 3, 4%]$",
      x.movedim, x, 4, 1)
    refused("unflatten: dim 3 of a tensor %[2, 3, 4%] has size 4; cannot unflatten it to {3, 2}$",
      x.unflatten, x, 3, { 3, 2 })
    refused("broadcast_tensors: a tensor %[3%], a tensor %[4%] do not broadcast: dim 1 is 3 and 4$",
      lm.broadcast_tensors, lm.zeros(3), lm.zeros(4))
  end)

  it("make grids", function()
    local x, y = places(1, 2, 3), places(4, 5)
    local a, b = unpack(lm.meshgrid { x, y })
    gives("ij", { a, b }, "{{{1 1} {2 2} {3 3}} {{4 5} {4 5} {4 5}}}")
    gives("xy", lm.meshgrid({ x, y }, { indexing = "xy" }), "{{{1 2 3} {1 2 3}} {{4 4 4} {5 5 5}}}")
    gives("cartesian_prod", lm.cartesian_prod(y, y), "{{4 4} {4 5} {5 4} {5 5}}")
    gives("combinations", lm.combinations(x), "{{1 2} {1 3} {2 3}}")
    gives("again", lm.combinations(y, 2, { with_replacement = true }), "{{4 4} {4 5} {5 5}}")
    refused("meshgrid: indexing must be one of 'ij', 'xy', got string 'yx'; did you mean 'xy'%?$",
      lm.meshgrid, { x }, { indexing = "yx" })
    refused("meshgrid: tensor 1 must be 1%-d, got a tensor %[2, 2%]$", lm.meshgrid, lm.zeros(2, 2))
  end)
end)

describe("tensors", function()
  it("are joined and taken apart", function()
    local a, b = places(1, 2), places(3, 4)
    gives("hstack", lm.hstack { a, b }, "{1 2 3 4}")
    gives("vstack", lm.vstack(a, b), "{{1 2} {3 4}}")
    gives("dstack", lm.dstack { a, b }, "{{{1 3} {2 4}}}")
    gives("column_stack", lm.column_stack { a, b }, "{{1 3} {2 4}}")
    gives("block_diag", lm.block_diag(a, b:unsqueeze(2)), "{{1 2 0} {0 0 3} {0 0 4}}")
    local x = lm.arange(1, 8, { dtype = "int64" })
    gives("tensor_split", x:tensor_split(3), "{{1 2 3} {4 5} {6 7}}")
    gives("where parts begin", x:tensor_split { 2, -1 }, "{{1} {2 3 4 5 6} {7}}")
    gives("hsplit", x:view(1, 7):hsplit { 7 }, "{{{1 2 3 4 5 6}} {{7}}}")
    refused("vsplit: size of dim 1 of x %(7%) must be divisible by sections %(2%)$", lm.vsplit, x:view(7, 1), 2)
    refused("dsplit: x must be a tensor of at least 3 dims, got a tensor %[7%]$", lm.dsplit, x, 2)
    refused("tensor_split: the result would be 1099511627776 views; a list has at most 1048576 tensors$",
      lm.tensor_split, x, 2 ^ 40)
    refused("hstack: expected tensors or a list of them, got nil$", lm.hstack)
    refused("hstack: tensor 2 must be a tensor, got 1$", lm.hstack, { a, 1 })
  end)

  it("have their entries turned and repeated", function()
    local x = places(1, 2, 3, 4):view(2, 2)
    gives("fliplr", x:fliplr(), "{{2 1} {4 3}}")
    gives("flipud", x:flipud(), "{{3 4} {1 2}}")
    gives("rot90", { x:rot90(), x:rot90(2), x:rot90(-1), x:rot90(4) },
      "{{{2 4} {1 3}} {{4 3} {2 1}} {{3 1} {4 2}} {{1 2} {3 4}}}")
    gives("tile", x:tile(1, 1, 2), "{{{1 2 1 2} {3 4 3 4}}}")
    gives("repeat_interleave", x:repeat_interleave(2), "{1 1 2 2 3 3 4 4}")
    for _, dtype in ipairs { "bool", "uint8", "bfloat16", "float32", "int64" } do -- dtypes of each width of elements
      local line = lm.randint(0, 2, { 3, 1000 }):to(dtype)
      for _, n in ipairs { 2, 3, 4, 7, 40 } do
        local at = lm.arange(1000 * n, { dtype = "int64" }):floor_divide(n) + 1
        assert.is_true(line:repeat_interleave(n, 2):equal(line:index_select(2, at)))
        local rows = lm.cat { line:t()[{ {}, { 1, 2 } }]:contiguous():view(1, 2000), line:t()[{ {}, { 2, 3 } }]
          :contiguous():view(1, 2000) }
        assert.is_true(rows:view(2, 1000, 2):transpose(1, 2):contiguous():equal(
          rows:index_select(2, lm.arange(2000, { dtype = "int64" }) + 1):view(2, 1000, 2):transpose(1, 2)))
      end
    end
    gives("along a dim", x:repeat_interleave(places(0, 2), 1), "{{3 4} {3 4}}")
    gives("wide", lm.zeros(1, 9):repeat_interleave(2, 1).shape, "{2 9}")
    refused("repeat_interleave: expected repeats to have shape %[%] or %[2%], got %[3%]$",
      x.repeat_interleave, x, { 1, 1, 1 }, 1)
    refused("repeat_interleave: output_size must be the sum of repeats, got 3 for 4$",
      x.repeat_interleave, x, 2, 1, { output_size = 3 })
    refused("repeat_interleave: repeats must not be negative$", x.repeat_interleave, x, { 1, -1 }, 1)
    differentiable(function(a) return a:repeat_interleave(2, 2):roll(1, 1):flip(2) end, counted(2, 2))
    differentiable(function(a) return a:repeat_interleave({ 0, 3 }, 1):rot90() end, counted(2, 2))
  end)

  it("are turned in every dtype, along long and short dims", function()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool" } do
      local x = lm.arange(2 * 3 * 77):remainder(7):to(dtype):view(2, 3, 77)
      local back = { lm.arange(2, 0, -1), lm.arange(3, 0, -1), lm.arange(77, 0, -1) }
      local all = x
      for d = 1, 3 do
        local want = x:index_select(d, back[d]:long())
        assert(x:flip(d):equal(want) and x:flip(d).dtype == dtype, dtype)
        all = all:index_select(d, back[d]:long())
      end
      assert(x:flip(1, 2, 3):equal(all), dtype)
      assert(x:transpose(1, 3):flip(1):equal(x:flip(3):transpose(1, 3)), dtype)
      assert(x:roll(5, 3):equal(lm.cat({ x:narrow(3, 73, 5), x:narrow(3, 1, 72) }, 3)), dtype)
    end
  end)

  it("have diagonals and triangles", function()
    gives("diag", lm.diag(places(1, 2), { diagonal = -1 }), "{{0 0 0} {1 0 0} {0 2 0}}")
    gives("of a matrix", counted(2, 3):diag(1), "{1 5}")
    gives("diag_embed", lm.diag_embed(counted(2, 1), { dim1 = 1, dim2 = 3 }), "{{{0} {1}}}")
    gives("diagflat", lm.diagflat(counted(2, 1) + 1), "{{1 0} {0 2}}")
    gives("tril_indices", lm.tril_indices(2, 3), "{{1 2 2} {1 1 2}}")
    gives("triu_indices", lm.triu_indices(2, 3, 1), "{{1 1 2} {2 3 3}}")
    gives("vander", lm.vander(places(2, 3), 3), "{{4 2 1} {9 3 1}}")
    gives("increasing", lm.vander(places(2, 3), { increasing = true }), "{{1 2} {1 3}}")
    refused("diag: x must be 1%-d or 2%-d, got a tensor %[1, 1, 1%]; use diagonal or diag_embed for more dims$",
      lm.diag, lm.zeros(1, 1, 1))
    refused("diag_embed: dim1 and dim2 must differ, got dim 2 twice$", lm.diag_embed, lm.zeros(2), 0, -1, 2)
    differentiable(function(a) return lm.diag_embed(a, 1) * a:diagflat():sum() end, counted(2, 2))
  end)
end)

describe("strided views", function()
  it("are written through, with gradients", function()
    local x = counted(3, 4)
    x:diagonal(1):fill_(-1)
    x:unfold(2, 2, 2):select(2, 2):select(2, 2):zero_()
    x:as_strided({ 2 }, { 1 }, 1):mul_(2)
    gives("x", x, "{{0 -2 4 0} {4 5 -1 0} {8 9 10 0}}")
    local leaf = counted(3, 4):requires_grad_()
    local y = leaf * 1
    local view = y:unfold(1, 2, 1) -- windows that share entries, made before y is written
    y:diagonal():mul_(3)
    view:sum():backward()
    gives("grad", leaf.grad, "{{3 1 1 1} {2 6 2 2} {1 1 3 1}}")
    refused("share memory", view.zero_, view)
    differentiable(function(a) return (a * 2):as_strided({ 2, 3 }, { 1, 1 }, 1) * a:unfold(2, 3, 1):sum(2) end,
      counted(2, 4))
    differentiable(function(a) return a:t():as_strided({ 3, 2 }, { 2, 1 }) end, counted(2, 4))
    differentiable(function(a) return a:slice(2, 2, 3):as_strided({ 2, 2 }, { 4, 1 }, 1) end, counted(2, 4))
    differentiable(function(a) return a:expand(3, 3):diagonal() * a end, counted(3))
  end)

  it("keep to their storage", function()
    local x = lm.zeros(6):narrow(1, 3, 2)
    assert.same({ 6 }, x:as_strided({ 6 }, { 1 }, 0).shape)
    refused("size and strides must be within a storage of 24 bytes", x.as_strided, x, { 6 }, { 1 })
    refused("size and strides must be within a storage of 24 bytes", x.as_strided, x, { 2, 2 }, { 2 ^ 52, 1 })
    refused("expanded", function() return lm.zeros(1, { requires_grad = true }):expand(3):as_strided({ 2 }, { 1 }) end)
    assert.same({ 0, 2 }, x:as_strided({ 0, 2 }, { 9, 9 }).shape)
  end)
end)

it("a 0-d tensor of integers stands for an integer", function()
  local x = counted(5)
  gives("narrow", x:narrow(1, x:argmax() - 1, 2), "{3 4}")
  gives("select", x:select(1, lm.tensor(2, { dtype = "int64" })), "1")
  refused("narrow: start must be an integer", x.narrow, x, 1, lm.tensor(2.5), 1)
end)

describe("cat", function()
  it("joins many rows of single columns, wide ones and none alike", function()
    for _, dtype in ipairs { "float32", "uint8", "float64" } do
      local a, b, c = lm.arange(600):remainder(100):to(dtype), lm.arange(600):remainder(90):to(dtype),
        lm.arange(1200):remainder(80):to(dtype):view(600, 2)
      local y = lm.cat({ a:view(600, 1), c, b:view(600, 1), lm.zeros({ 600, 0 }, { dtype = dtype }) }, 2)
      assert.same({ 600, 4 }, { y:size(1), y:size(2) })
      assert.is_true(lm.equal(y:select(2, 1), a) and lm.equal(y[{ {}, { 2, 3 } }], c) and lm.equal(y:select(2, 4), b))
      assert.is_true(lm.equal(lm.stack({ a, b }, -1):t(), lm.stack { a, b }))
      assert.equal(0, lm.cat({ a:view(600, 1)[{ {}, { 1, 0 } }], c:half()[{ {}, { 1, 0 } }] }, 2):numel())
    end
  end)
end)
