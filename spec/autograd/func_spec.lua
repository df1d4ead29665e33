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
    assert.matches("expected tangents%[1%] to have shape %[2%], got %[3%]", message(func.jvp, f, { x }, { lm.ones(3) }))
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

-- Values of torch.func, exact in all dtypes.
describe("lm.func on tables of tensors", function()
  local function quadratic(p) return { u = p.a * p.b, v = { p.a:sum() } } end
  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
    local function T(values) return lm.tensor(values, { dtype = dtype }) end
    local function same(want, t)
      assert.equal(dtype, t.dtype)
      assert.same(want, t:tolist())
    end
    local w, x, s = T { { 1, 2 }, { 3, 4 }, { 5, 6 } }, T { { 1, 0 }, { 2, 1 }, { 1, 3 } }, T { 2, 1, 3 }
    local function weighted(p, a) return (p.w * a):sum() * p.s[1] end
    local p = { a = T { 1, 2 }, b = T { 3, 1 }, l = { T(2) } }

    it("vmap maps their tensors: " .. dtype, function()
      same({ 2, 10, 69 }, func.vmap(weighted)({ w = w, s = { s } }, x))
      same({ 2, 10, 69 }, func.vmap(weighted, { in_dims = { 1, 1 } })({ w = w, s = { s } }, x))
      local turned = w:t():contiguous()
      for _, columns in ipairs { turned, w:t(), lm.stack({ turned, turned }, -1):select(-1, 2) } do
        local dims = { { w = 2, s = false }, false }
        same({ 2, 6, 10 }, func.vmap(weighted, { in_dims = dims })({ w = columns, s = { T(2) } }, x[1]))
        same({ 2, 6, 10 }, func.vmap(weighted, { in_dims = { { w = -1 } } })({ w = columns, s = { T(2) } }, x[1]))
      end
      local g = func.vmap(func.grad(weighted), { in_dims = { false, 1 } })({ w = w[2], s = { T(2) } }, x)
      same({ { 2, 0 }, { 4, 2 }, { 2, 6 } }, g.w)
      same({ 3, 10, 15 }, g.s[1])
    end)
    it("vmap returns them, with out_dims of their fields: " .. dtype, function()
      local function f(a) return { sum = a:sum(), l = { a, a * 2 } } end
      local out = func.vmap(f, { out_dims = { sum = 1, l = { 2, 1 } } })(w)
      same({ 3, 7, 11 }, out.sum)
      same({ { 1, 3, 5 }, { 2, 4, 6 } }, out.l[1])
      same({ { 2, 4 }, { 6, 8 }, { 10, 12 } }, out.l[2])
      same({ { 1, 3, 5 }, { 2, 4, 6 } }, func.vmap(f, { out_dims = { { sum = 1, l = 2 } } })(w).l[1])
      local first, second = func.vmap(function(a) return a, a * 2 end, { out_dims = { 2, 1 } })(w)
      assert.same({ { 2, 3 }, { 3, 2 } }, { first.shape, second.shape })
      local list = func.vmap(function(a) return { a, a * 2 } end, { out_dims = { 2, 1 } })(w)
      assert.same({ { 2, 3 }, { 3, 2 } }, { list[1].shape, list[2].shape })
      assert.same({ 2, 3 }, func.vmap(lm.neg, { out_dims = { 2 } })(w).shape)
    end)
    it("Hessians and Jacobians are tables of tables: " .. dtype, function()
      local h = func.hessian(function(q) return (q.a ^ 3):sum() + (q.a * q.b):sum() * q.l[1] end)(p)
      same({ { 6, 0 }, { 0, 12 } }, h.a.a)
      same({ { 2, 0 }, { 0, 2 } }, h.a.b)
      same({ 3, 1 }, h.a.l[1])
      same({ { 0, 0 }, { 0, 0 } }, h.b.b)
      same({ 1, 2 }, h.l[1].b)
      same(0, h.l[1].l[1])
      same({ { { 6, 0 }, { 0, 0 } }, { { 0, 0 }, { 0, 12 } } }, func.hessian(function(v) return v ^ 3 end)(p.a))
      h = func.hessian(function(a, b) return (a ^ 2 * b):sum() end, { argnums = { 1, 2 } })(p.a, p.b)
      same({ { 2, 0 }, { 0, 4 } }, h[1][2])
      for _, name in ipairs { "jacrev", "jacfwd", "jacobian" } do
        local j, aux = func[name](function(q) return quadratic(q), q.a end, { has_aux = true })(p)
        same({ { 3, 0 }, { 0, 1 } }, j.u.a)
        same({ { 1, 0 }, { 0, 2 } }, j.u.b)
        same({ 1, 1 }, j.v[1].a)
        same({ 0, 0 }, j.v[1].b)
        same({ 1, 2 }, aux)
        local of_first, of_second = func[name](function(q) return q.a, q.b * q.b end)(p)
        same({ { 1, 0 }, { 0, 1 } }, of_first.a)
        same({ { 6, 0 }, { 0, 2 } }, of_second.b)
      end
    end)
    it("products with Jacobians have their form: " .. dtype, function()
      local y, t = func.jvp(quadratic, { p }, { { a = T { 1, -1 }, b = T { 2, 1 }, l = { T(0) } } })
      same({ 3, 2 }, y.u)
      same({ 5, 1 }, t.u)
      same(0, t.v[1])
      local value, pull = func.vjp(quadratic, p)
      same(3, value.v[1])
      local g = pull { u = T { 1, 10 }, v = { T(3) } }
      same({ 6, 13 }, g.a)
      same({ 1, 20 }, g.b)
      same(0, g.l[1])
    end)
  end
  it("an ensemble is one call over stacked states", function()
    local models = {}
    for i = 1, 3 do models[i] = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)) end
    local params, buffers = func.stack_module_state(models)
    local x = lm.randn(3, 8, 2)
    local base = models[1]:clone()
    local y = func.vmap(function(p, b, v) return func.functional_call(base, { p, b }, v) end)(params, buffers, x)
    for i, net in ipairs(models) do
      assert(y[i]:allclose(net(x[i])))
      assert(buffers["1.running_mean"][i]:allclose(net[2].running_mean))
    end
    y:sum():backward()
    assert.same({ 3, 3, 2 }, params["0.weight"].grad.shape)
    assert.equal("int64", buffers["1.num_batches_tracked"].dtype)
    assert.is_nil(next((select(2, func.stack_module_state(nn.ModuleList { nn.Linear(1, 1) })))))
    assert.matches("models must be a list of modules, got a table", message(func.stack_module_state, {}))
    assert.matches("models%[2%] must be a module, got 3", message(func.stack_module_state, { nn.ReLU(), 3 }))
    assert.matches("one class and mode, got Linear and ReLU", message(func.stack_module_state,
      { nn.Linear(1, 1), nn.ReLU() }))
    assert.matches("not all models have 'bias'", message(func.stack_module_state,
      { nn.Linear(1, 1), nn.Linear(1, 1, { bias = false }) }))
  end)
  it("says which part does not fit", function()
    local w, x = lm.ones(3, 2), lm.ones(3, 2)
    local function f(p, a) return (p.w * a):sum() end
    local function of_vmap(in_dims, p, a) return message(func.vmap(f, { in_dims = in_dims }), p, a) end
    local cycle = { w = w }
    cycle.self = cycle
    assert.matches("argument 1.self.self.*contains itself", of_vmap(1, cycle, x))
    assert.matches("grad: argument 1.self.self.*contains itself", message(func.grad(f), cycle, x))
    assert.matches("in_dims has 'v', which argument 1 lacks", of_vmap({ { v = 1 }, 1 }, { w = w }, x))
    assert.matches("each of the 2 arguments; it has 'w'", of_vmap({ w = 1 }, { w = w }, x))
    assert.matches("argument 1.k must be a tensor, got 2", of_vmap({ 1, 1 }, { w = w, k = 2 }, x))
    assert.matches("argument 2 has 2 in dim 1, others 3", of_vmap(1, { w = w }, lm.ones(2, 2)))
    assert.matches("in_dims of argument 2 must be an integer, got a table", of_vmap({ 1, { 1 } }, { w = w }, x))
    assert.matches("result 1.n must be a tensor or a table of tensors, got 3",
      message(func.vmap(function(a) return { n = 3, a = a } end), x))
    assert.matches("out_dims has 'z', which result 1 lacks",
      message(func.vmap(function(a) return { a = a } end, { out_dims = { z = 1 } }), x))
    local n = 0
    assert.matches("result 1 must be a table as that of the first call is, got a tensor",
      message(func.vmap(function(a)
        n = n + 1
        return n == 1 and { a } or a
      end), x))
    assert.matches("argument 1.w must be floating, got int64", message(func.grad(f), { w = w:long() }, x))
    assert.matches("result 2 of f must be a tensor", message(func.jacrev(function(a) return a, "aux" end), x))
    assert.matches("tangents%[1%] must be a table as primals is, got a tensor",
      message(func.jvp, function(p) return p.a end, { { a = w } }, { w }))
    local _, pull = func.vjp(function(a) return { a, a * 2 } end, w)
    assert.matches("v must be a table as the result of f is, got a tensor", message(pull, w))
    assert.matches("expected v%[2%] to have shape %[3, 2%], got %[3%]", message(pull, { w, lm.ones(3) }))
    assert.matches("f must return one value, got 2", message(func.vjp, function(a) return a, a end, w))
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
