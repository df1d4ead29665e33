-- Linear algebra beside spec/op/op_cases.lua: factors multiply to what they are of, gradients of what is only defined
-- for some matrices, lm.linalg's and lm's own functions, messages that name the matrix of a batch.
local lm = require "luminary"
local message = require "spec.support.error_of"
local near = require "spec.support.near"
local la = lm.linalg

local double = { dtype = "float64" }
local function random(...) return lm.randn({ ... }, double) end
local function turned(x) return x:transpose(-1, -2) end
local function eye(n) return lm.eye(n, n, double) end
local function positive(x) return x:matmul(turned(x)) + eye(x.shape[x.ndim]) end
local rank_one_less = { { 1, 2, 3 }, { 4, 5, 6 }, { 5, 7, 9 } }
local function check(f, ...)
  local inputs = { ... }
  for i, x in ipairs(inputs) do inputs[i] = x:detach():clone():requires_grad_() end
  lm.autograd.gradcheck(f, inputs)
  lm.autograd.gradgradcheck(f, inputs)
end
describe("linear algebra", function()
  before_each(function() lm.manual_seed(7) end)

  local sizes = { { 3, 3 }, { 4, 2 }, { 2, 4 } }

  it("factors matrices of every shape, in batches", function()
    for _, size in ipairs(sizes) do
      for _, batch in ipairs { {}, { 2 }, { 2, 3 } } do
        local shape = { batch[1], batch[2] }
        shape[#shape + 1], shape[#shape + 2] = size[1], size[2]
        local a = lm.randn(shape, double)
        local q, r = la.qr(a)
        near(a, q:matmul(r))
        near(eye(q.shape[q.ndim]):expand(turned(q):matmul(q).shape), turned(q):matmul(q))
        q, r = la.qr(a, "complete")
        near(a, q:matmul(r))
        near(r, select(2, la.qr(a, { mode = "complete" })))
        local _
        local u, s, vh = la.svd(a, { full_matrices = false })
        near(a, (u * s:unsqueeze(-2)):matmul(vh))
        near(s, la.svdvals(a))
        local v
        u, s, v = lm.svd(a)
        near(a, (u * s:unsqueeze(-2)):matmul(turned(v)))
        u, _, vh = la.svd(a)
        near(eye(u.shape[u.ndim]):expand(u.shape), u:matmul(turned(u)))
        near(eye(vh.shape[vh.ndim]):expand(vh.shape), vh:matmul(turned(vh)))
        local p, l
        p, l, u = la.lu(a)
        near(a, p:matmul(l):matmul(u))
        near(a, a:matmul(la.pinv(a)):matmul(a))
      end
    end
    local a = positive(random(3, 4, 4))
    local l, v = la.eigh(a)
    near(a, (v * l:unsqueeze(-2)):matmul(turned(v)))
    near(l, la.eigvalsh(a))
    near(a, la.cholesky(a):matmul(turned(la.cholesky(a))))
    local u = la.cholesky(a, true)
    near(a, turned(u):matmul(u))
  end)

  it("reads one triangle of symmetric matrices", function()
    local a = positive(random(3, 3))
    local other = a + lm.tensor({ { 0, 5, 5 }, { 0, 0, 5 }, { 0, 0, 0 } }, double)
    near(la.eigvalsh(a), la.eigvalsh(other))
    near(la.eigvalsh(a), la.eigvalsh(turned(other), "U"))
    near(la.cholesky(a), la.cholesky(other))
    near(la.pinv(a), la.pinv(other, { hermitian = true }))
    assert.equal(3, la.matrix_rank(other, { hermitian = true }):item())
  end)

  it("has the gradients of factors", function()
    local function symmetric(x) return x + turned(x) end
    check(function(x) return la.cholesky(positive(x)) end, random(2, 2, 2))
    check(function(x) return la.cholesky(positive(x), true) end, random(2, 2))
    check(function(x) return la.eigvalsh(symmetric(x)) end, random(3, 3))
    -- absolute values, since the signs of vectors are anybody's choice
    check(function(x) local l, v = la.eigh(symmetric(x)) return l, v:abs() end, random(3, 3))
    for _, upper in ipairs { false, true } do
      check(function(x, b) return lm.cholesky_solve(b, lm.cholesky(positive(x), upper), upper) end, random(2, 2),
        random(2, 1))
    end
    check(function(x) return lm.cholesky_inverse(lm.cholesky(positive(x))) end, random(2, 2))
    for _, s in ipairs { { 2, 2 }, { 3, 2 }, { 2, 3 } } do
      check(function(x) local u, d, vh = la.svd(x, false) return u:abs(), d, vh:abs() end, random(s[1], s[2]))
    end
    check(function(x) return (la.qr(x)) end, random(2, 3)) -- Q alone of a wide matrix
    assert.matches("mode 'r' has no gradient", message(function()
      local x = random(2, 2):requires_grad_()
      local _, r = la.qr(x, "r")
      r:sum():backward()
    end))
  end)

  it("has eigenvectors of large symmetric matrices, the same bits with any number of threads", function()
    local before = lm.get_num_threads()
    finally(function() lm.set_num_threads(before) end)
    for _, dtype in ipairs { "float32", "float64" } do
      local error_of_one = dtype == "float32" and 1e-6 or 1e-14
      for _, case in ipairs {
        { 127, 1, "L" }, { 128, 1, "U" }, { 128, 1e18, "L" }, { 161, 1e-18, "L" }, { 161, 1, "L" }, { 290, 1, "L" },
      } do
        local n, scale, triangle = unpack(case)
        local a = lm.randn({ 2, n, n }, { dtype = dtype })
        a = (a + turned(a)) * scale
        local values, vectors = la.eigh(a, triangle)
        local off = (a:matmul(vectors) - vectors * values:unsqueeze(-2)):abs():max():item()
        assert.is_true(off <= 100 * error_of_one * scale, ("%s %d %s: %g"):format(dtype, n, triangle, off))
        near(lm.eye(n, n, { dtype = dtype }):expand(2, n, n), turned(vectors):matmul(vectors), 20 * error_of_one)
        near(la.eigvalsh(a) / scale, values / scale, 1000 * error_of_one)
        for threads = 1, n == 161 and 3 or 0 do
          lm.set_num_threads(threads)
          assert.is_true(lm.equal(vectors[1], select(2, la.eigh(a[1], triangle))), n .. " on " .. threads)
        end
        lm.set_num_threads(before)
      end
    end
  end)

  it("has no NaN in the gradient of a determinant where there is no inverse", function()
    local x = lm.tensor({ { 1, 2 }, { 2, 4 } }, double):requires_grad_()
    lm.det(x):backward()
    near(lm.tensor({ { 4, -2 }, { -2, 1 } }, double), x.grad)
  end)

  it("has cofactors as the gradient of every determinant", function()
    local cofactors = { { 3, -6, 3 }, { 3, -6, 3 }, { -3, 6, -3 } }
    local list = {
      { rank_one_less, cofactors }, { { { 0 } }, { { 1 } } }, { { { 0, 0 }, { 0, 0 } }, { { 0, 0 }, { 0, 0 } } },
      { { { 0, 0 }, { 0, 7 } }, { { 7, 0 }, { 0, 0 } } },
      { { { 1, 1, 1 }, { 1, 1, 1 }, { 1, 1, 1 } }, { { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } } },
      { { { 1e200, 3e199 }, { 2e199, 1e200 } }, { { 1e200, -2e199 }, { -3e199, 1e200 } }, 1e188 },
      { { { 1e-200, 0 }, { 0, 2e-200 } }, { { 2e-200, 0 }, { 0, 1e-200 } }, 1e-212 },
      { { { 1e200, 0, 0 }, { 0, 1e200, 0 }, { 0, 0, 0 } }, { { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, math.huge } }, "inf" },
    }
    for _, case in ipairs(list) do
      for _, create_graph in ipairs { false, true } do
        local x = lm.tensor(case[1], double):requires_grad_()
        local grad = lm.autograd.grad(lm.det(x) * 2, x, { create_graph = create_graph })
        grad = lm.is_tensor(grad) and grad or grad[1]
        if case[3] == "inf" then
          assert.equal(math.huge, grad:detach()[{ 3, 3 }])
        else
          near(lm.tensor(case[2], double) * 2, grad:detach(), case[3] or 1e-13)
        end
      end
    end
    local good = random(3, 3)
    local batch = lm.stack { good, lm.tensor(rank_one_less, double), lm.full({ 3, 3 }, 0 / 0, double), positive(good) }
    batch:requires_grad_()
    lm.dot(lm.det(batch), lm.tensor({ 1, 2, 3, 4 }, double)):backward()
    near(la.inv(good):t() * la.det(good), batch.grad[1], 1e-11)
    near(lm.tensor(cofactors, double) * 2, batch.grad[2], 1e-12)
    assert.is_true(batch.grad[3]:isnan():all():item())
    near(la.inv(positive(good)):t() * la.det(positive(good)) * 4, batch.grad[4], 1e-9)
  end)

  it("has second gradients of determinants that are 0, and of others beside them", function()
    check(lm.det, lm.tensor(rank_one_less, double))
    check(lm.det, lm.stack { lm.tensor(rank_one_less, double), eye(3), random(3, 3) })
    local nearly = lm.tensor(rank_one_less, double)
    nearly[{ 3, 3 }] = nearly[{ 3, 3 }] + 1e-15
    check(lm.det, nearly)
  end)

  it("solves for vectors and from either side", function()
    local a, b = random(2, 3, 3), random(2, 3)
    near(b, a:matmul(la.solve(a, b):unsqueeze(-1)):squeeze(-1))
    near(b[1], a:matmul(la.solve(a, b[1]):unsqueeze(-1)):squeeze(-1)[1])
    local row = random(2, 1, 3)
    near(row, la.solve(a, row, { left = false }):matmul(a))
    local lu, pivots = la.lu_factor(a)
    assert.equal("int32", pivots.dtype)
    near(row, la.lu_solve(lu, pivots, row, { left = false }):matmul(a))
    near(b:unsqueeze(-1), turned(a):matmul(la.lu_solve(lu, pivots, b:unsqueeze(-1), { adjoint = true })))
    near(b:unsqueeze(-1), a:matmul(lm.lu_solve(b:unsqueeze(-1), lm.lu(a))))
    local x, residuals, rank = la.lstsq(a, b)
    near(la.solve(a, b), x)
    assert.equal(0, residuals:numel())
    assert.same({ 3, 3 }, rank:totable())
  end)

  it("factors matrices of every small size into P L U", function()
    for _, m in ipairs { 1, 2, 5, 8, 9, 16, 17, 31, 32, 33, 40 } do
      for _, n in ipairs { 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33 } do
        for dtype, bound in pairs { float32 = 1e-4, float64 = 1e-12 } do
          local a = lm.randn({ 3, m, n }, { dtype = dtype })
          a[2]:copy_(a[2]:round()) -- equal candidates for a pivot
          if m > 2 and n > 2 then a[3]:narrow(2, 2, 1):zero_() end
          local p, l, u = lm.lu_unpack(lm.linalg_lu_factor(a, { check = false }))
          local what = ("%s %d x %d"):format(dtype, m, n)
          assert.is_true((p:matmul(l):matmul(u) - a):abs():max():item() < bound, what)
          assert.is_true(l:abs():max():item() <= 1, what .. ": pivots must be the largest")
          assert.is_true(lm.equal(u, u:triu()), what)
        end
      end
    end
  end)

  it("takes powers, exponentials, ranks and conditions", function()
    local a = random(2, 3, 3)
    near(a:matmul(a):matmul(a), lm.matrix_power(a, 3))
    near(lm.inverse(a):matmul(lm.inverse(a)), a:matrix_power(-2), 1e-6)
    near(eye(3):expand { 2, 3, 3 }, la.matrix_power(a, 0))
    local l, v = la.eigh(positive(a))
    near((v * l:exp():unsqueeze(-2)):matmul(turned(v)), lm.matrix_exp(positive(a)),
      1e-11 * l:max():exp():item())
    near(eye(2), lm.matrix_exp(lm.zeros({ 2, 2 }, double)))
    check(lm.matrix_exp, random(2, 2) * 2)
    assert.same({ 1, 2 }, la.matrix_rank(lm.tensor { { { 1, 2 }, { 2, 4 } }, { { 1, 2 }, { 2, 5 } } }):totable())
    assert.equal(1, la.matrix_rank(lm.tensor { { 1, 0 }, { 0, 0.1 } }, 0.2):item())
    assert.equal(1, la.matrix_rank(lm.tensor { { 1, 0 }, { 0, 0.1 } }, { atol = lm.tensor(0.2) }):item())
    near(lm.tensor(4, double), la.cond(lm.tensor({ { 4, 0 }, { 0, 1 } }, double)))
    near(lm.tensor(5 * 1.25, double), la.cond(lm.tensor({ { 4, 0 }, { 0, 1 } }, double), "nuc"))
    local two = lm.tensor({ { { 4, 0 }, { 0, 1 } }, { { 1, 0 }, { 0, 1 } } }, double)
    near(lm.tensor({ 5, 2 }, double), la.norm(two, "nuc", { 2, 3 }))
    assert.same({ { 1, 2, 4 }, { 1, 3, 9 } }, la.vander(lm.tensor { 2, 3 }, 3):totable())
    assert.same({ { 4, 2, 1 }, { 9, 3, 1 } }, lm.vander(lm.tensor { 2, 3 }, 3):totable())
    local t = random(2, 3, 6)
    near(eye(6), lm.tensordot(la.tensorinv(t), t):reshape(6, 6))
    local b = random(2, 3)
    near(b, lm.tensordot(t, la.tensorsolve(t, b), 1))
    near(lm.tensor(1, double), la.matrix_norm(lm.tensor({ { 4, 0 }, { 0, 1 } }, double), -1LL))
    local ok, problem = pcall(la.tensorsolve, t, b, { { 1 } })
    assert.is_false(ok)
    assert.matches("linalg_spec.lua:%d+: tensorsolve: dims.* must be an integer", problem)
  end)

  it("takes whatever is empty", function()
    assert.equal(1, lm.det(lm.zeros(0, 0)):item())
    assert.same({ 0, 3, 3 }, lm.inverse(lm.zeros(0, 3, 3)).shape)
    local u, s, vh = la.svd(lm.zeros(0, 3))
    assert.same({ { 0, 0 }, { 0 }, { 3, 3 } }, { u.shape, s.shape, vh.shape })
    near(lm.eye(3), vh)
    local x = la.lstsq(lm.zeros(0, 3), lm.zeros(0, 2))
    near(lm.zeros(3, 2), x)
    near(lm.eye(3), (la.qr(lm.zeros(3, 0), "complete")))
  end)

  it("names the matrix of a batch that will not do", function()
    local a = lm.eye(2):expand { 2, 3, 2, 2 }:clone()
    a[2][1]:zero_()
    assert.matches("inverse: matrix %[2, 1%] of x is singular: entry 1", message(la.inv, a))
    assert.matches("linalg_solve: matrix %[2, 1%] of A is singular", message(la.solve, a, lm.ones(2, 1)))
    assert.matches("linalg_lu_factor: matrix %[2, 1%] of A is singular", message(la.lu_factor, a))
    assert.matches("cholesky: matrix %[2, 1%] of x is not positive definite", message(la.cholesky, a))
    a[2][1]:fill_(0 / 0)
    for _, name in ipairs { "svd", "svdvals", "eigh", "eigvalsh", "pinv" } do
      assert.matches("matrix %[2, 1%] of A must be finite, got infinite or NaN entries", message(la[name], a), name)
    end
    assert.matches("A must be finite, got infinite or NaN entries", message(la.lstsq, a[2][1], lm.ones(2, 1)))
    assert.matches("inv: A must be float32 or float64, got float16; convert it with :float%(%)$",
      message(la.inv, lm.eye(2):half()))
    assert.matches("solve_triangular: upper is missing or nil; expected true or false$",
      message(la.solve_triangular, lm.eye(2), lm.ones(2, 1)))
    assert.matches("svd: unknown option 'full_matrixes'; did you mean 'full_matrices'%?",
      message(la.svd, lm.eye(2), { full_matrixes = true }))
  end)

  it("names in errors what was called", function()
    local flat, whole, wide = lm.ones(2), lm.ones(2, 2):long(), lm.ones(2, 3)
    for name, x in pairs {
      inv = wide, det = wide, slogdet = wide, solve = wide, eigh = wide, eigvalsh = wide, cholesky = wide, svd = flat,
      svdvals = flat, qr = flat, lu = flat, lu_factor = flat, pinv = flat, cond = flat, matrix_rank = flat,
      lstsq = flat, matrix_norm = whole, vector_norm = whole,
    } do
      local two = name == "solve" or name == "lstsq"
      local text = two and message(la[name], x, flat) or message(la[name], x)
      assert.matches("[ :]" .. name .. ": ", text)
      assert.matches(x == whole and "must be" or "A must be a .*, got a tensor", text)
    end
    for _, name in ipairs { "svd", "qr", "lu", "pinverse" } do
      assert.matches("[ :]" .. name .. ": x must be a .*, got a tensor %[2%]", message(lm[name], flat))
    end
    assert.matches("matrix_norm: x is a tensor %[0, 2%]; ord 2 needs at least one element$",
      message(la.matrix_norm, lm.ones(0, 2), 2))
    assert.matches("matrix_norm: x is a tensor %[2, 0%]; ord 1 needs at least one element$",
      message(la.matrix_norm, lm.ones(2, 0), 1))
    assert.equal(0, la.matrix_norm(lm.ones(0, 2), 1):item())
  end)

  it("gives eigenvectors' gradients as those of a symmetric matrix", function()
    local a = positive(random(3, 3)):requires_grad_()
    local _, v = la.eigh(a)
    ;(v * random(3, 3)):sum():backward()
    near(a.grad.mT, a.grad)
    assert.is_true(a.grad:abs():max():item() > 1e-3)
  end)

  it("factors and solves tiny matrices, which LAPACK has no part in, as large ones", function()
    for _, n in ipairs { 1, 2, 3, 8, 9, 16, 17 } do
      local a, b = random(4, n, n), random(4, n, 2)
      a[1]:select(1, 1):zero_()[n] = 1 -- needs another row
      near(b, a:matmul(la.solve(a, b)), 1e-8)
      near(turned(b), la.solve(a, turned(b), { left = false }):matmul(a), 1e-8)
      near(eye(n):expand { 4, n, n }, a:matmul(la.inv(a)), 1e-8)
      local P, L, U = la.lu(a)
      near(a, P:matmul(L):matmul(U))
      near(U:diagonal(0, -2, -1):prod(-1):abs(), la.det(a):abs(), 1e-6 * math.max(1, la.det(a):abs():max():item()))
    end
    assert.equal(-1, la.det(lm.tensor({ { 0, 1 }, { 1, 0 } }, double)):item())
    assert.equal(0, la.det(lm.tensor({ { 1, 2 }, { 2, 4 } }, double)):item())
  end)

  it("factors and solves by leaves and halves of every size", function()
    for _, n in ipairs { 31, 32, 33, 64, 65, 97, 150 } do
      local x, b = random(n, n), random(n, n + 70)
      local lu, pivots = la.lu_factor(x)
      local p, l, u = lm.lu_unpack(lu, pivots)
      near(x, p:matmul(l):matmul(u), 1e-11)
      near(b, x:matmul(la.solve(x, b)), 1e-8)
      near(turned(b), la.solve(x, turned(b), { left = false }):matmul(x), 1e-8)
      near(turned(x):matmul(la.lu_solve(lu, pivots, b, { adjoint = true })), b, 1e-8)
      near(eye(n), la.inv(x):matmul(x), 1e-8)
      local s = positive(x)
      local lower, upper = la.cholesky(s), lm.cholesky(s, true)
      near(s, lower:matmul(turned(lower)), 1e-11)
      near(turned(lower), upper, 1e-12)
      near(lower:diagonal():log():sum() * 2, lm.logdet(s), 1e-9)
      near(b, lower:matmul(la.solve_triangular(lower, b, { upper = false })), 1e-9)
      near(b, turned(lower):matmul(la.solve_triangular(turned(lower), b, { upper = true })), 1e-8)
      near(turned(b), la.solve_triangular(upper, turned(b), { upper = true, left = false }):matmul(upper), 1e-8)
    end
    local x = eye(100)
    x[{ 71, 71 }] = 0
    assert.matches("entry 71 of the diagonal", message(la.inv, x))
    x[{ 71, 71 }] = -1
    assert.matches("leading minor of order 71", message(la.cholesky, x))
    assert.matches("leading minor of order 71", message(lm.cholesky, x, true))
  end)

  it("takes reflections one by one and by panels, of any length", function()
    for _, size in ipairs { { 8, 8 }, { 9, 9 }, { 40, 7 }, { 7, 40 }, { 33, 32 }, { 100, 70 }, { 70, 100 } } do
      local x = random(2, size[1], size[2])
      for _, mode in ipairs { "reduced", "complete" } do
        local q, r = la.qr(x, mode)
        near(x, q:matmul(r), 1e-12)
        near(eye(q.shape[3]):expand { 2, q.shape[3], q.shape[3] }, turned(q):matmul(q), 1e-12)
        near(r, r:triu())
        local alone = select(2, la.qr(x, "r"))
        near(alone, r:slice(-2, 1, alone.shape[2]))
      end
      local q, r = la.qr(x:float())
      near(x:float(), q:matmul(r), 1e-5)
    end
    local x = random(20, 3)
    for _, factor in ipairs { 1e-170, 1e170, 0 } do -- no number holds the squares
      local q, r = la.qr(x * factor)
      near(x * factor, q:matmul(r), 1e-14 * factor)
      near(eye(3), turned(q):matmul(q), 1e-13)
    end
    x[{ 2, 2 }] = 0 / 0
    assert.is_true(select(2, la.qr(x)):isnan():any():item())
  end)

  it("has the same gradients by factors that were kept as by new ones", function()
    local x, b = positive(random(2, 5, 5)):requires_grad_(), random(2, 5, 3):requires_grad_()
    for _, f in ipairs { la.det, lm.logdet, function(a) return la.solve(a, b) end,
      function(a) return la.solve(a, turned(b), { left = false }) end } do
      local kept = lm.autograd.grad(f(x):sum(), { x })[1]
      local recorded = lm.autograd.grad(f(x):sum(), { x }, { create_graph = true })[1]
      assert(recorded.requires_grad and not kept.requires_grad)
      near(kept, recorded, 1e-10)
    end
  end)

  it("computes a batch on several threads as on one", function()
    local a, before = random(200, 8, 8), lm.get_num_threads()
    lm.set_num_threads(1)
    local one = { la.inv(a), la.det(a), la.cholesky(positive(a)), la.svdvals(a), (la.qr(a)) }
    lm.set_num_threads(4)
    local four = { la.inv(a), la.det(a), la.cholesky(positive(a)), la.svdvals(a), (la.qr(a)) }
    lm.set_num_threads(before)
    for i = 1, #one do near(one[i], four[i], 0) end
  end)

  it("factors a large matrix in panels, and solves for many right sides in chunks, on several threads as on one",
    function()
      local before = lm.get_num_threads()
      for _, size in ipairs { { 300, 300 }, { 260, 400 }, { 400, 260 }, { 192, 70 } } do
        local a = random(size[1], size[2])
        local square, right = positive(random(size[1], size[1])), random(size[1], 300)
        lm.set_num_threads(1)
        local one = { (la.lu_factor(a)), la.det(square / 100), la.solve_triangular(square, right, { upper = true }) }
        local p, l, u = la.lu(a)
        lm.set_num_threads(4)
        local four = { (la.lu_factor(a)), la.det(square / 100), la.solve_triangular(square, right, { upper = true }) }
        lm.set_num_threads(before)
        for i = 1, #one do near(one[i], four[i], 0) end
        near(a, p:matmul(l):matmul(u), 1e-11)
        near(right, square:triu():matmul(one[3]), 1e-7)
      end
    end)
end)

describe("a product with a transposed matrix", function()
  it("is the same where its rows are pages apart and it is computed the other way round", function()
    for _, n in ipairs {70, 300} do
      local a, b = lm.randn(520, 1024), lm.randn(520, n)
      local want = a:double():t():mm(b:double())
      local y = a:t():mm(b)
      assert.same({1024, n}, {y:size(1), y:size(2)})
      assert.is_true(y:is_contiguous())
      assert.near(0, (y:double() - want):abs():max():item(), 1e-3)
      assert.near(0, (lm.addmm(y, a:t(), b, {alpha = -2}):double() + want):abs():max():item(), 3e-3)
      assert.near(0, (lm.addmm(y, a:t(), b, {beta = 0, alpha = -2}):double() + 2 * want):abs():max():item(), 3e-3)
    end
  end)
end)
