-- lm.func and lm.autograd.functional: gradients, Jacobians and products with them, against formulas.
local lm = require "luminary"
local work = require "spec.support.work"
local message = require "spec.support.error_of"
local func, functional, nn = lm.func, lm.autograd.functional, lm.nn

local function is(want, t)
  assert(lm.tensor(want, { dtype = t.dtype }):allclose(t, { atol = 1e-5 }), tostring(t))
end

describe("lm.func", function()
  it("grad gives gradients of any argument, nested too", function()
    local function cube(x) return (x ^ 3):sum() end
    local x = lm.tensor { 1, 2 }
    local g = func.grad(cube)(x)
    is({ 3, 12 }, g)
    assert.is_false(g.requires_grad or x.requires_grad)
    is({ 6, 12 }, func.grad(function(v) return func.grad(cube)(v):sum() end)(x))
    is(24, func.grad(func.grad(func.grad(function(v) return v ^ 4 end)))(lm.tensor(1)))
    local function f(a, b) return (a * b.w):sum(), "aux" end
    is({ 5, 5 }, func.grad(f)(x, { w = lm.tensor(5) }))
    local grads = func.grad(f, { argnums = { 1, 2 } })(x, { w = lm.tensor(5) })
    is({ 5, 5 }, grads[1])
    is(3, grads[2].w)
    local g2, aux = func.grad(f, { has_aux = true })(x, { w = lm.tensor(5) })
    is({ 5, 5 }, g2)
    assert.equal("aux", aux)
    is({ 0, 0 }, func.grad(function() return lm.tensor(1) end)(x))
    assert.matches("the result of f must be a tensor of one element, got a tensor", message(func.grad(lm.sin), x))
    assert.matches("argument 3 is out of range", message(func.grad(cube, { argnums = 3 }), x))
  end)
  it("records for an outer graph", function()
    local x = lm.tensor({ 1, 2 }, { requires_grad = true })
    func.grad(function(v) return (v ^ 3):sum() end)(x):sum():backward()
    is({ 6, 12 }, x.grad)
    lm.no_grad(function() is({ 3, 12 }, func.grad(function(v) return (v ^ 3):sum() end)(x)) end)
  end)
  it("gives values and gradients in both orders", function()
    local function f(x) return (x * x):sum() end
    local y, g = func.value_and_grad(f)(lm.tensor { 3 })
    is(9, y)
    is({ 6 }, g)
    g, y = func.grad_and_value(f)(lm.tensor { 3 })
    for _, name in ipairs { "value_and_grad", "grad_and_value" } do
      assert.equal(2, select("#", func[name](f)(lm.tensor { 3 })))
      assert.equal(3, select("#", func[name](f, { has_aux = true })(lm.tensor { 3 })))
    end
    is(9, y)
    is({ 6 }, g)
  end)
  it("multiplies with Jacobians from both sides", function()
    local a = lm.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }
    local function f(x) return a:matmul(x) ^ 2 end
    local x = lm.tensor { 1, -1 }
    local y, back = func.vjp(f, x)
    is({ 1, 1, 1 }, y)
    is({ -2, -4 }, back(lm.tensor { 1, 0, 0 }))
    is({ -10, -12 }, back(lm.tensor { 0, 0, 1 }))
    local y2, t = func.jvp(f, { x }, { lm.tensor { 1, 0 } })
    is({ 1, 1, 1 }, y2)
    is({ -2, -6, -10 }, t)
    is({ { -2, -4 }, { -6, -8 }, { -10, -12 } }, func.jacrev(f)(x))
    is({ { -2, -4 }, { -6, -8 }, { -10, -12 } }, func.jacobian(f)(x))
    local _, linear = func.jvp(function(v) return v * 3 end, { x }, { x })
    is({ 3, -3 }, linear)
    assert.matches("tangent 1 must have the shape of its primal, got a", message(func.jvp, f, { x }, { lm.ones(3) }))
  end)
  it("hessian gives second derivatives", function()
    is({ { 0, 2 }, { 2, 2 } }, func.hessian(function(x) return x[1] * x[2] * 2 + x[2] ^ 2 end)(lm.tensor { 1, 2 }))
    is({ { { 0 } } }, func.jacrev(func.jacrev(function(x) return x * 2 end))(lm.tensor { 1 }))
  end)
  it("vmap calls once for each and stacks", function()
    local a, b = lm.randn { 4, 3 }, lm.randn { 3, 4 }
    local dots = func.vmap(function(x, y) return (x * y):sum() end, { in_dims = { 1, 2 } })(a, b)
    assert(dots:allclose((a * b:t()):sum(2), { atol = 1e-6 }))
    local x = lm.randn { 3, 2 }
    local per_sample = func.vmap(func.grad(function(w, v) return (w * v):sum() ^ 2 end), { in_dims = { false, 1 } })
    local w = lm.ones(2)
    assert(per_sample(w, x):allclose(x * (2 * x:sum(2, { keepdim = true })), { atol = 1e-5 }))
    assert.same({ 2, 3 }, func.vmap(lm.sin, { out_dims = 2 })(x).shape)
    assert.matches("mapped dims must have the same size: argument 2 has 5", message(func.vmap(lm.add), x, lm.ones(5)))
    assert.matches("at least one argument must be mapped", message(func.vmap(lm.sin), 3))
  end)
  it("functional_call puts other tensors in a module", function()
    local net = nn.Sequential(nn.Linear(2, 2, { bias = false }), nn.BatchNorm1d(2)):eval()
    local w = net[1].weight
    local values = { ["0.weight"] = lm.eye(2) * 3, ["1.running_mean"] = lm.ones(2) }
    is({ { 2, 5 } }, func.functional_call(net, values, lm.tensor { { 1, 2 } }))
    assert.equal(w, net[1].weight)
    is({ 0, 0 }, net[2].running_mean)
    assert.is_false(pcall(func.functional_call, net, values, "x"))
    local yields = net:register_forward_hook(function() coroutine.yield() end)
    assert.matches("yield across C", message(coroutine.wrap(function()
      func.functional_call(net, values, lm.tensor { { 1, 2 } })
    end)))
    yields:remove()
    for steps = 1, 700 do -- a host's time limit
      pcall(function()
        debug.sethook(function() debug.sethook() error "time limit" end, "", steps)
        func.functional_call(net, values, lm.tensor { { 1, 2 } })
        func.grad(function(x) return x:sum() end)(w:detach())
      end)
      debug.sethook()
      assert.equal(w, net[1].weight)
      assert.is_false(func.grad(function(x) return x:square():sum() end)(w:detach()).requires_grad)
    end
    assert.equal(w, net[1].weight)
    local function loss(params, x) return func.functional_call(net, params, x):sum() end
    local g = func.grad(loss)({ ["0.weight"] = lm.eye(2) }, lm.tensor { { 1, 2 } })
    is({ { 1, 2 }, { 1, 2 } }, g["0.weight"])
    assert.matches("no parameter or buffer '0.wait'", message(func.functional_call, net, { ["0.wait"] = w }, w))
    local tied = nn.Module()
    tied.a = nn.Linear(2, 2, { bias = false })
    tied.b = nn.Linear(2, 2, { bias = false })
    tied.b.weight = tied.a.weight
    function tied.forward(self, x) return self.b(self.a(x)) end
    is({ 4, 4 }, func.functional_call(tied, { ["a.weight"] = lm.eye(2) * 2 }, lm.ones(2)))
    assert.matches("functional_call: '0' has no child module '7'", message(func.functional_call, nn.Sequential(net),
      { ["0.7.weight"] = w }))
  end)
  it("functional_call takes work in proportion to the children of a container", function()
    local function thousands(n)
      local net, values = nn.Sequential(), {}
      for _ = 1, n do net:append(nn.Linear(1, 1, { bias = false })) end
      for name in net:named_parameters() do values[name] = lm.ones(1, 1) end
      local taken, y = work(function() return func.functional_call(net, values, lm.tensor { 5 }) end)
      is({ 5 }, y)
      return taken
    end
    local few, many = thousands(300), thousands(600)
    assert(many < 2.5 * few, ("%d and %d thousand instructions"):format(few, many))
  end)
end)

describe("lm.autograd.functional", function()
  local function f(x, y) return (x ^ 2 * y):sum() end
  local x, y = lm.tensor { 1, 2 }, lm.tensor { 3, 4 }
  it("has jacobians and hessians", function()
    is({ { 2, 0 }, { 0, 4 } }, functional.jacobian(function(v) return v ^ 2 end, x))
    local both = functional.jacobian(f, { x, y })
    is({ 6, 16 }, both[1])
    is({ 1, 4 }, both[2])
    is({ { 6, 0 }, { 0, 8 } }, functional.hessian(function(v) return f(v, y) end, x))
    local h = functional.hessian(f, { x, y })
    is({ { 6, 0 }, { 0, 8 } }, h[1][1])
    is({ { 2, 0 }, { 0, 4 } }, h[1][2])
    is({ { 0, 0 }, { 0, 0 } }, h[2][2])
  end)
  it("has products", function()
    local value, v = functional.vjp(f, { x, y })
    is(19, value)
    is({ 6, 16 }, v[1])
    local _, t = functional.jvp(f, { x, y }, { lm.tensor { 1, 0 }, lm.tensor { 0, 1 } })
    is(10, t)
    local also, hv = functional.hvp(function(u) return f(u, y) end, x, lm.tensor { 1, 1 })
    is(19, also)
    is({ 6, 8 }, hv)
    is({ 6, 8 }, (select(2, functional.vhp(function(u) return f(u, y) end, x, lm.tensor { 1, 1 }))))
  end)
  it("records with create_graph", function()
    local z = lm.tensor({ 1, 2 }, { requires_grad = true })
    local function square(v) return v ^ 2 end
    assert.is_false(functional.jacobian(square, z).requires_grad)
    functional.jacobian(square, z, { create_graph = true }):sum():backward()
    is({ 2, 2 }, z.grad)
    assert.matches("expected a tensor or a list of tensors, got none", message(functional.jacobian, square, {}))
  end)
end)
