-- einsum and the products made of it, lm.linalg's norms, distances.
local lm = require "luminary"
local F = lm.nn.functional
local work = require "spec.support.work"
local message = require "spec.support.error_of"

local function close(what, got, want)
  local near = lm.allclose(got, want, { rtol = 1e-5, atol = 1e-5 })
  assert(near, ("%s: %s instead of %s"):format(what, tostring(got), tostring(want)))
  assert.equal(table.concat(want.shape, ","), table.concat(got.shape, ","), what)
end
describe("einsum", function()
  local a, b, c, v, batch = nil, nil, nil, nil, nil
  before_each(function()
    a, b, c, v, batch = lm.randn(3, 4), lm.randn(4, 5), lm.randn(5, 2), lm.randn(4), lm.randn(2, 3, 4)
  end)
  after_each(function() a, b, c, v, batch = nil, nil, nil, nil, nil end)

  it("of one tensor permutes, sums and takes diagonals", function()
    close("transposed", lm.einsum("ij->ji", a), a:t())
    close("without an arrow", lm.einsum("ba", a), a:t())
    close("summed", lm.einsum("ij->", a), a:sum())
    close("a dim", lm.einsum("i j -> j", a), a:sum(1))
    local square = lm.tensor { { 1, 2, 3 }, { 4, 5, 6 }, { 7, 8, 9 } }
    close("trace", lm.einsum("ii", square), lm.tensor(15))
    close("diagonal", lm.einsum("ii->i", square), lm.tensor { 1, 5, 9 })
    close("of integers", lm.einsum("ij->i", square:long()), lm.tensor({ 6, 15, 24 }, { dtype = "int64" }))
    local three = lm.randn(2, 3, 2)
    close("among others", lm.einsum("iji->ji", three), lm.stack({ three[1]:select(2, 1), three[2]:select(2, 2) }, 2))
  end)

  it("of two is a product of matrices, batched or not, outer or elementwise", function()
    close("matrices", lm.einsum("ij,jk", a, b), a:matmul(b))
    close("in a list", lm.einsum("ij,jk->ki", { a, b }), a:matmul(b):t())
    close("a vector", lm.einsum("ij,j->i", a, v), a:matmul(v))
    close("outer", lm.einsum("i,j->ij", v, v), v:outer(v))
    close("elementwise", lm.einsum("i,i->i", v, v), v * v)
    close("dot", lm.einsum("i,i", v, v), v:dot(v))
    close("batches", lm.einsum("bij,jk->bik", batch, b), batch:matmul(b))
    close("ellipsis", lm.einsum("...ij,...kj->...ik", batch, a), batch:matmul(a:t()))
    close("ellipsis summed", lm.einsum("...j->j", batch), batch:sum { 1, 2 })
    close("size 1", lm.einsum("ij,ij->i", a, v:unsqueeze(1)), a:matmul(v))
    close("empty", lm.einsum("ij,jk->ik", lm.zeros(2, 0), lm.zeros(0, 3)), lm.zeros(2, 3))
  end)

  it("of more takes the cheapest pairs first", function()
    close("three", lm.einsum("ij,jk,kl->il", a, b, c), a:matmul(b):matmul(c))
    -- From the left, the first product alone has 64 million elements.
    local long, short = lm.ones(8000), lm.ones(8000)
    close("vectors", lm.einsum("i,j,j,i->", long, short, short, long), lm.tensor(64e6))
    local chain = {}
    for i = 1, 8 do chain[i] = lm.eye(3) * i end
    close("eight", lm.einsum("ab,bc,cd,de,ef,fg,gh,hi->ai", chain), lm.eye(3) * 40320)
  end)

  it("of many takes work in proportion to them, or to their pairs where no two have the same subscripts", function()
    local function shared(n)
      local list = {}
      for i = 1, n do list[i] = lm.full({ 2 }, i % 2 == 0 and 2 or 0.5) end
      return function() return lm.einsum(("a,"):rep(n - 1) .. "a->a", list) end
    end
    local function chain(n)
      local list = {}
      for i = 1, n do list[i] = lm.eye(2) * (i % 2 == 0 and 2 or 0.5) end
      return function() return lm.linalg.multi_dot(list) end
    end
    for _, case in ipairs { { shared, lm.ones(2), 2.5 }, { chain, lm.eye(2), 5 } } do
      local make, want, most = unpack(case)
      local few, many = (work(make(60))), (work(make(120)))
      close("value", make(120)(), want)
      assert(many <= most * few + 2, ("%d and %d thousand instructions"):format(few, many))
    end
  end)

  it("has gradients", function()
    local x = lm.randn({ 2, 3 }, { dtype = "float64" }):requires_grad_()
    local y = lm.randn({ 3, 2 }, { dtype = "float64" }):requires_grad_()
    assert(lm.autograd.gradcheck(function(p, q) return lm.einsum("ij,jk,kj->ik", p, q, p) end, { x, y }))
    assert(lm.autograd.gradcheck(function(p, q) return lm.einsum("ij,jk->i", p, q) end, { x, y }))
  end)

  it("names the subscript that is wrong", function()
    local cases = {
      { "subscript 'j' has size 4 in operand 1 and 3 in operand 2", "ij,jk", a, a },
      { "'ij,j' expects 2 tensors, got 1", "ij,j", a },
      { "'ij' expects 1 tensors, got 2", "ij", a, a },
      { "operand 1 has the subscripts 'ijk', 3 letters, and is a tensor %[3, 4%]", "ijk", a },
      { "operand 1 has the subscripts 'i', 1 letters", "i", a },
      { "subscript 'k' of the output 'ik' is not in any operand", "ij->ik", a },
      { "subscript 'i' appears twice in the output 'ii'", "ij->ii", a },
      { "unexpected '2' in 'i2'", "i2", a },
      { "subscript 'i' of operand 1, 'ii', has sizes 3 and 4", "ii", a },
      { "has more than one ellipsis", "...i...", a },
      { "operand 2 must be a tensor, got 3", "i,", v, 3 },
    }
    for _, case in ipairs(cases) do assert.matches(case[1], message(lm.einsum, unpack(case, 2))) end
    assert.matches("einsum: equation must be a string, got a tensor %[3, 4%]$", message(lm.einsum, a))
  end)
end)

describe("products:", function()
  it("tensordot, inner, kron", function()
    local a, b = lm.randn(2, 3, 4), lm.randn(4, 3, 5)
    close("two lists", lm.tensordot(a, b, { dims = { { 2, 3 }, { 2, 1 } } }), lm.einsum("abc,cbd->ad", a, b))
    close("a number", lm.tensordot(a, lm.ones(4, 2), { dims = 1 }), a:matmul(lm.ones(4, 2)))
    close("none", lm.tensordot(lm.tensor { 1, 2 }, lm.tensor { 3, 4 }, 0), lm.tensor { { 3, 4 }, { 6, 8 } })
    assert.matches("dim 1 of a, a tensor %[2, 3, 4%], and dim 1 of b, a tensor %[4, 3, 5%], must have the same size",
      message(lm.tensordot, a, b, { dims = { { 1 }, { 1 } } }))
    assert.matches("tensordot: dim must be from 1 to 3 or from %-3 to %-1, got 4; x is a tensor %[2, 3, 4%]$",
      message(lm.tensordot, a, b, { dims = { { 4 }, { 1 } } }))
    assert.matches("tensordot: dims must be a number, or two lists of as many dims each, got a table$",
      message(lm.tensordot, a, b, { dims = { { 1 }, {} } }))
    close("inner", lm.tensor({ { 1, 2 }, { 3, 4 } }):inner(lm.tensor { 5, 6 }), lm.tensor { 17, 39 })
    assert.matches("the last dims of a and b must have the same size, got a tensor %[2, 3,", message(lm.inner, a, b))
    close("kron", lm.tensor({ 1, 2 }):kron(lm.eye(2)), lm.tensor { { 1, 0, 2, 0 }, { 0, 1, 0, 2 } })
  end)

  it("multi_dot and chain_matmul", function()
    local a, b, c, v = lm.randn(3, 4), lm.randn(4, 5), lm.randn(5, 2), lm.randn(4)
    close("matrices", lm.linalg.multi_dot { a, b, c }, a:matmul(b):matmul(c))
    close("chain", lm.chain_matmul(a, b, c), a:matmul(b):matmul(c))
    close("vectors", lm.linalg.multi_dot { v, b, c, lm.ones(2) }, v:matmul(b):matmul(c):sum())
    assert.matches("multi_dot: tensor 1, a tensor %[3, 4%], and tensor 2, a tensor %[5, 2%], cannot be multiplied$",
      message(lm.linalg.multi_dot, { a, c }))
    assert.matches("multi_dot: expected a list of at least 2 tensors$", message(lm.linalg.multi_dot, { a }))
  end)

  it("distances", function()
    local x, y = lm.tensor { { 0, 0 }, { 3, 4 } }, lm.tensor { { 0, 0 }, { 0, 4 }, { 3, 0 } }
    close("cdist", lm.cdist(x, y), lm.tensor { { 0, 4, 3 }, { 5, 3, 4 } })
    close("p", lm.cdist(x, y, { p = 1 }), lm.tensor { { 0, 4, 3 }, { 7, 3, 4 } })
    close("dist", x:dist(lm.zeros(2)), lm.tensor(5))
    close("dist by p", x:dist(lm.zeros(2), { p = 1 }), lm.tensor(7))
    close("pdist", lm.pdist(y), lm.tensor { 4, 3, 5 })
    assert.matches("expected x1 %[%.%.%., n, m%] and x2 %[%.%.%., r, m%], got a", message(lm.cdist, x, lm.ones(3)))
    assert.matches("cdist: x1 must be floating, got int64; convert it with :float%(%)$", message(lm.cdist, x:long(), y))
    assert.matches("cdist: dtype mismatch: x1 is float32, x2 is float64; convert one with :to%(%)$",
      message(lm.cdist, x, y:double()))
    assert.matches("pdist: x must be floating, got int64; convert it with :float%(%)$", message(lm.pdist, x:long()))
    local tall = lm.randn(70, 5) -- more than a tile
    for _, p in ipairs { 0, 0.5, 1, 2, 3, 2.5, math.huge } do
      local want = (tall:unsqueeze(2) - tall:unsqueeze(1)):norm(p, -1)
      local got = lm.cdist(tall, tall, { p = p, compute_mode = "donot_use_mm_for_euclid_dist" })
      assert(got:allclose(want, { rtol = 1e-4, atol = 1e-4 }), p)
      close("pairs", lm.pdist(tall, { p = p }), want[lm.triu(lm.ones(70, 70), 1):bool()])
    end
    local other = lm.randn({ 4, 3 }, { dtype = "float64" })
    local many = lm.randn({ 30, 3 }, { dtype = "float64" }):requires_grad_()
    local products = lm.cdist(many, other)
    close("by products", products, lm.cdist(many, other, { compute_mode = "donot_use_mm_for_euclid_dist" }))
    local itself = lm.cdist(many, many:detach(), { compute_mode = "use_mm_for_euclid_dist" })
    itself:sum():backward()
    assert.is_true(many.grad:isfinite():all():item())
  end)

  it("normalize", function()
    close("rows", F.normalize(lm.tensor { { 3, 4 }, { 0, 0 } }), lm.tensor { { 0.6, 0.8 }, { 0, 0 } })
    local columns = F.normalize(lm.tensor { { 3, 4 }, { 1, 4 } }, { p = 1, dim = 1 })
    close("columns", columns, lm.tensor { { 0.75, 0.5 }, { 0.25, 0.5 } })
  end)
end)

describe("lm.linalg", function()
  local x = lm.tensor { { 1, -2 }, { -3, 4 } }
  it("has norms", function()
    local linalg, inf = lm.linalg, math.huge
    close("vector", linalg.vector_norm(x, 1), lm.tensor(10))
    close("along a dim", linalg.vector_norm(x, inf, 1, true), lm.tensor { { 3, 4 } })
    close("by name", linalg.vector_norm(x, { ord = 1, dim = 2 }), lm.tensor { 3, 7 })
    close("fro", linalg.matrix_norm(x), lm.tensor(30 ^ 0.5))
    close("columns", linalg.matrix_norm(x, 1), lm.tensor(6))
    close("rows", linalg.matrix_norm(x, inf), lm.tensor(7))
    close("least", linalg.matrix_norm(x, -1, { -2, -1 }, true), lm.tensor { { 4 } })
    close("of all", linalg.norm(x), lm.tensor(30 ^ 0.5))
    close("a matrix", linalg.norm(x, 1), lm.tensor(6))
    close("a vector", linalg.norm(x[1], 1), lm.tensor(3))
    close("vecdot", linalg.vecdot(x, x), lm.tensor { 5, 25 })
    close("cross", linalg.cross(lm.tensor { 1, 0, 0 }, lm.tensor { 0, 1, 0 }), lm.tensor { 0, 0, 1 })
  end)

  it("has norm's words too, as method and function", function()
    close("fro", x:norm("fro"), x:norm())
    close("fro by rows", lm.norm(x, { p = "fro", dim = 2, keepdim = true }), x:norm(2, 2, true))
    close("nuc", x:norm("nuc"), lm.linalg.svdvals(x):sum())
    close("nuc of two dims", x:unsqueeze(1):norm("nuc", { 2, 3 }), lm.linalg.svdvals(x):sum():view(1))
    assert.matches("norm: p must be one of 'fro', 'nuc', got string 'frob'; did you mean 'fro'%?$",
      message(x.norm, x, "frob"))
  end)

  it("says what is wrong", function()
    assert.matches("matrix_norm: ord must be 'fro', 'nuc', 1, %-1, 2, %-2, math%.huge or %-math%.huge, got 3$",
      message(lm.linalg.matrix_norm, x, 3))
    assert.matches("matrix_norm: x must be a tensor of at least 2 dims, got a tensor %[2%]$",
      message(lm.linalg.matrix_norm, x[1]))
    assert.matches("matrix_norm: dim 3 is out of range for a tensor %[2, 2%]$",
      message(lm.linalg.matrix_norm, x, "fro", { 1, 3 }))
    assert.matches("matrix_norm: dim must be two different dims, got dim 1 twice$",
      message(lm.linalg.matrix_norm, x, "fro", { 1, -2 }))
    assert.matches("norm: with ord, x must have 1 or 2 dims, or dim must list 1 or 2; x is a tensor %[1, 1, 1%]$",
      message(lm.linalg.norm, lm.ones(1, 1, 1), 1))
    assert.matches("linalg has no 'svdd'; did you mean 'svd'%?$", message(function() return lm.linalg.svdd end))
  end)
end)

describe("long and short runs of products", function()
  it("dot sums long vectors and batches of rows, the same for any number of threads", function()
    local whole = lm.arange(200001):remainder(7)
    local x, y = whole:float(), (whole + 1):double()
    local want = (whole * (whole + 1)):sum():item()
    for _, dtype in ipairs { "float32", "float64" } do
      assert.equal(tonumber(want), x:to(dtype):dot(y:to(dtype)):item())
      local a, b = x:to(dtype)[{ { 1, 3000 } }]:view(3, 1, 1000), y:to(dtype)[{ { 1, 3000 } }]:view(3, 1000, 1)
      local rows, others = a:flatten(2), b:flatten(2)
      local sums = (rows * others):sum(2):totable()
      assert.same(sums, lm.bmm(a, b):flatten():totable())
      assert.same(sums, lm.einsum("ij,ij->i", rows, others):totable())
    end
    local u, v, threads, sums = lm.randn(100003), lm.randn(100003), lm.get_num_threads(), {}
    for n = 1, 3 do
      lm.set_num_threads(n)
      sums[n] = u:dot(v):item()
    end
    lm.set_num_threads(threads)
    assert.same({ sums[1], sums[1], sums[1] }, sums)
    close("in float64", u:dot(v):double(), u:double():dot(v:double()))
  end)

  it("kron and cross of many rows, and their gradients", function()
    local cases = { { { 5, 6 }, { 7, 3 } }, { { 4 }, { 5 } }, { { 2, 5, 2 }, { 6, 3 } }, { { 5, 6 }, { 4, 300 } },
      { { 40, 50 }, { 6, 3 } }, { { 20, 21 }, { 9, 33 } } }
    for _, sizes in ipairs(cases) do
      local a, b = lm.randn(sizes[1]):requires_grad_(), lm.randn(sizes[2]):requires_grad_()
      local y = lm.kron(a, b)
      local ga, gb = unpack(lm.autograd.grad(y:square():sum(), { a, b }))
      close("gradient of a", ga, a:detach() * (2 * b:detach():square():sum()))
      close("gradient of b", gb, b:detach() * (2 * a:detach():square():sum()))
      local first = {}
      for d = 1, y.ndim do first[d] = { 1, b.ndim - y.ndim + d > 0 and b.shape[b.ndim - y.ndim + d] or 1 } end
      close("a block", y[first]:detach():flatten(), (b * a:flatten()[1]):detach():flatten())
    end
    local x, y = lm.randn(300, 3), lm.randn(300, 3)
    local z = x:cross(y)
    close("apart", (z * x):sum(2), lm.zeros(300))
    close("as columns", z, x:t():contiguous():cross(y:t():contiguous(), 1):t())
    close("parallel", x:cross(x), lm.zeros(300, 3))
  end)

  it("cdist's gradient for p = 1 is of signs, and has one", function()
    local x, y = lm.randn({ 2, 70, 5 }, { dtype = "float64" }), lm.randn({ 9, 5 }, { dtype = "float64" })
    assert.is_true(lm.autograd.gradcheck(function(p, q) return lm.cdist(p, q, 1) end,
      { x[{ {}, { 1, 4 } }]:clone():requires_grad_(), y:clone():requires_grad_() }))
    x:requires_grad_()
    local g = unpack(lm.autograd.grad(lm.cdist(x, y, 1):sum(), { x }))
    close("signs", g, lm.sign(x:detach():unsqueeze(-2) - y):sum(-2))
    local empty = lm.zeros(2, 3):requires_grad_()
    lm.cdist(empty, lm.zeros(0, 3), 1):sum():backward()
    close("of none", empty.grad, lm.zeros(2, 3))
  end)

  it("an op of others with a gradient of its own is one in the graph", function()
    local x = lm.randn(3, 4):requires_grad_()
    assert.matches("gated_halves", tostring(F.glu(x).grad_fn):lower())
    assert.matches("dot", tostring(x[1]:dot(x[2]).grad_fn):lower())
    assert.is_nil(F.glu(x:detach()).grad_fn)
    assert.is_true(lm.is_grad_enabled())
    assert.is_false((pcall(lm.dot, x[1], lm.zeros(2))))
    assert.is_true(lm.is_grad_enabled())
  end)
end)
