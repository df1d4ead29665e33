-- Graphs with nodes that read values, such as If and Loop: what is between them runs as plans.
local lm = require "luminary"
local needs = require "spec.support.needs"
local serialization = require "luminary.mp.serialization"
local temp = require "spec.support.temp"
local folder = temp.during(setup, teardown)

local function info(name, dtype) return {name = name, type = {tensor_type = {elem_type = dtype or 1}}} end
local function ints(name, list) return {name = name, type = 7, ints = list} end
local function node(op, inputs, outputs, ...)
  local list = {}
  for word in inputs:gmatch "%S+" do list[#list + 1] = word == "-" and "" or word end
  local outs = {}
  for word in outputs:gmatch "%S+" do outs[#outs + 1] = word end
  return {op_type = op, input = list, output = outs, attribute = {...}}
end
local function graph(nodes, inputs, outputs, initializers)
  return {name = "g", node = nodes, input = inputs, output = outputs, initializer = initializers}
end
local function body(name, nodes, inputs, outputs, initializers)
  return {name = name, type = 5, g = graph(nodes, inputs, outputs, initializers)}
end
local function weight(name, t, element)
  return {name = name, data_type = element or 1, dims = t.shape, raw_data = t}
end
local function load(g)
  local path = folder .. "/parts.onnx"
  lm.core.onnx_write(path, {ir_version = 8, opset_import = {{version = 17}}, graph = g})
  return lm.onnx.load(path)
end

-- Calls f; returns the number of recordings that it made, and of the graph's steps that ran one by one.
local function work_of(f)
  local module, record, recordings, steps = require "luminary.onnx.graph", lm.core.record_ops, 0, 0
  local run_steps = module.run_steps
  lm.core.record_ops = function(...)
    recordings = recordings + 1
    return record(...)
  end
  module.run_steps = function(block, frame, first, last)
    steps = steps + last - first + 1
    return run_steps(block, frame, first, last)
  end
  local ok, problem = pcall(lm.no_grad, f)
  lm.core.record_ops, module.run_steps = record, run_steps
  assert(ok, problem)
  return recordings, steps
end

-- x [N, 4], threshold: y = mean(x) above threshold ? reshape(x @ w) : reshape(-x @ w), of the sizes of x, + w.
local function conditional()
  return load(graph({
    node("Shape", "x", "shape"), node("MatMul", "x w", "p"), node("Exp", "p", "e"), node("ReduceMean", "e", "m",
      {name = "keepdims", type = 2, i = 0}), node("Greater", "m threshold", "c"),
    node("If", "c", "z", body("then_branch", {node("Neg", "e", "n"), node("Reshape", "n shape", "zt")}, {},
        {info "zt"}),
      body("else_branch", {node("Sqrt", "e", "s"), node("Reshape", "s shape", "ze")}, {}, {info "ze"})),
    node("Reshape", "z shape", "r"), node("Add", "r w", "y"),
  }, {info "x", info "threshold"}, {info "y", info("shape", 7)}, {weight("w", lm.randn(4, 4))}))
end

describe("lm.onnx in parts", function()
  if needs.lacks(it, pending, needs.onnx()) then return end
  setup(function() lm.manual_seed(0) end)

  it("runs what is around an If, and its branches, by recordings", function()
    local net = conditional()
    local function expected(x, threshold)
      local e = x:matmul(net.w):exp()
      return (e:mean():item() > threshold and -e or e:sqrt()) + net.w
    end
    local function check(x, threshold)
      local y, shape
      local recordings, steps = work_of(function() y, shape = net(x, lm.tensor(threshold)) end)
      assert.is_true(lm.allclose(expected(x, threshold), y, {rtol = 1e-5}))
      assert.same({x.shape[1], 4}, shape:totable())
      shape:zero_() -- the caller's
      return recordings, steps
    end
    local x = lm.randn(4, 4)
    for _ = 1, 2 do
      for _, threshold in ipairs {-1, 1e3} do check(x, threshold) end
    end
    for _, threshold in ipairs {-1, 1e3, -2} do
      assert.same({0, 1}, {check(x * 0.9, threshold)}) -- the If alone
    end
    assert.is_true(check(lm.randn(1, 4), -1) > 0) -- another shape
    for _, values in ipairs {"in place", "replaced"} do
      lm.no_grad(function()
        if values == "replaced" then net.w = lm.nn.Parameter(lm.randn(4, 4)) else net.w:mul_(0.5) end
      end)
      check(x, -1)
      check(x, 1e3)
    end
    local copy = net:clone()
    lm.no_grad(function() copy.w:zero_() end)
    assert.is_true(lm.no_grad(function() return (copy(x, lm.tensor(1e3))) end):eq(1):all():item())
    check(x, 1e3)
  end)

  it("prepares without a warning", function()
    local net, x = conditional(), lm.randn(4, 4)
    local warn, said = lm.core.warn, {}
    lm.core.warn = function(text) said[#said + 1] = text end
    local run, state = lm.prepare(net, x, lm.tensor(-1))
    local y = run(x, lm.tensor(1e3))
    lm.core.warn = warn
    assert.same({}, said)
    assert.is_nil(state.reason)
    assert.is_true(lm.allclose(net(x, lm.tensor(1e3)), y))
  end)

  it("has the gradients of the nodes", function()
    local net, x = conditional(), lm.randn(4, 4)
    for _ = 1, 3 do lm.no_grad(function() net(x, lm.tensor(-1)) end) end
    net(x, lm.tensor(1e3)):sum():backward()
    local w = net.w:detach():clone():requires_grad_(true)
    local y = (x:matmul(w) / 2):exp() + w
    y:sum():backward()
    assert.is_true(lm.allclose(w.grad, net.w.grad, {rtol = 1e-5}))
  end)

  local function loop(nodes)
    return load(graph({
      node("Tanh", "x", "t"), node("Loop", "n - t", "last all", body("body", nodes,
        {info("i", 7), info("go", 9), info "a"}, {info("more", 9), info "b", info "s"})),
      node("Neg", "last", "y"),
    }, {info "x", info("n", 7)}, {info "y", info "all"}, {weight("w", lm.randn(3, 3) * 0.3)}))
  end

  it("runs the body of a Loop by one recording", function()
    local net = loop({
      node("Identity", "go", "more"), node("MatMul", "a w", "p"),
      node("Cast", "i", "f", {name = "to", type = 2, i = 1}),
      node("Add", "p f", "q"), node("Tanh", "q", "b"), node("Mul", "b t", "s"),
    })
    local function call(x, n)
      local y, all
      local recordings, steps = work_of(function() y, all = net(x, lm.tensor(n, {dtype = "int64"})) end)
      local t, list = x:tanh(), {}
      local a = t
      for i = 0, n - 1 do
        a = (a:matmul(net.w) + i):tanh()
        list[i + 1] = a * t
      end
      assert.is_true(lm.allclose(-a, y, {atol = 1e-6}))
      assert.is_true(lm.allclose(lm.stack(list), all, {atol = 1e-6}))
      return recordings, steps
    end
    local x = lm.randn(2, 3)
    for n = 1, 3 do call(x, n) end
    for n = 4, 7 do assert.same({0, 1}, {call(x * n, n)}) end
  end)

  it("stops recording a body whose shapes grow", function()
    local net = loop({
      node("Identity", "go", "more"), node("Concat", "a t", "b", {name = "axis", type = 2, i = 0}),
      node("ReduceSum", "b", "s"),
    })
    local x = lm.ones(1, 3)
    local first = work_of(function() assert.equal(5, net(x, lm.tensor(4, {dtype = "int64"})).shape[1]) end)
    local recordings = first + work_of(function()
      local y, all = net(x, lm.tensor(200, {dtype = "int64"}))
      assert.equal(201, y.shape[1])
      assert.is_true(math.abs(all[200]:item() - 603 * math.tanh(1)) < 1e-2)
    end)
    assert.is_true(recordings < 40, tostring(recordings))
  end)

  it("runs a Scan, and nodes whose results' shapes depend on values", function()
    local net = load(graph({
      node("NonZero", "x", "at"), node("Transpose", "at", "turned", ints("perm", {1, 0})),
      node("GatherND", "x turned", "v"), node("ReduceSum", "v", "v0", {name = "keepdims", type = 2, i = 0}),
      node("Scan", "v0 x", "last y", {name = "num_scan_inputs", type = 2, i = 1}, body("body", {
        node("ReduceSum", "row", "r", {name = "keepdims", type = 2, i = 0}), node("Add", "a r", "b"),
        node("Identity", "b", "s"),
      }, {info "a", info "row"}, {info "b", info "s"})),
    }, {info "x"}, {info "y"}))
    for _, list in ipairs {{{1, 0}, {2, 3}}, {{1, 1}, {2, 3}}, {{0, 0}, {0, 3}}, {{1, 0}, {2, 3}}} do
      local x, y = lm.tensor(list, {dtype = "float32"}), nil
      work_of(function() y = net(x) end)
      assert.is_true(lm.allclose(x:sum(2):cumsum(1) + x:sum(), y))
    end
  end)

  -- Returns a random graph of x [N, 4], a count n and sizes mm, whose product is N: nodes, branches and loops in one
  -- another, which read values of outer graphs, shapes among them.
  local function random_graph(random)
    local last, fill = 0, nil
    local function fresh()
      last = last + 1
      return "v" .. last
    end
    local function pick(list) return list[random(#list)] end
    local function add(nodes, ...)
      local name = fresh()
      nodes[#nodes + 1] = node((...), select(2, ...), name, select(3, ...))
      return name
    end
    local function copy(scope) return {f = {unpack(scope.f)}, s = {unpack(scope.s)}, c = {unpack(scope.c)}} end
    local function integer(name, v) return {name = name, type = 2, i = v} end
    local function branch(name, scope, depth)
      local nodes, inner = {}, copy(scope)
      fill(nodes, inner, depth, random(0, 3))
      local shape = add(nodes, "Shape", pick(inner.f))
      local result = random(4) == 1 and pick(inner.f) or add(nodes, "Identity", pick(inner.f))
      return body(name, nodes, {}, {info(result), info(shape, 7)})
    end
    -- Adds nodes; scope: names of values [N, 4], of shapes, and of conditions.
    function fill(nodes, scope, depth, count)
      local f, s, c = scope.f, scope.s, scope.c
      for _ = 1, count do
        local kind = random(depth > 0 and 9 or 6)
        if kind == 1 then
          local sum = add(nodes, pick {"Add", "Mul", "Max"}, pick(f) .. " " .. pick(f))
          f[#f + 1] = add(nodes, "Tanh", sum)
        elseif kind == 2 then
          f[#f + 1] = add(nodes, pick {"Tanh", "Identity", "Neg"}, pick(f))
        elseif kind == 3 then
          s[#s + 1] = add(nodes, "Shape", pick(f))
        elseif kind == 4 and s[1] then
          f[#f + 1] = add(nodes, "Reshape", pick(f) .. " " .. pick(s))
        elseif kind == 5 then
          c[#c + 1] = add(nodes, "Greater", add(nodes, "ReduceMean", pick(f), integer("keepdims", 0)) .. " tenth")
        elseif kind == 6 and s[1] then -- a condition that follows from shapes
          c[#c + 1] = add(nodes, "Greater", add(nodes, "Gather", pick(s) .. " none") .. " three")
        elseif kind == 7 and c[1] then
          local names = fresh() .. " " .. fresh()
          nodes[#nodes + 1] = node("If", pick(c), names, branch("then_branch", scope, depth - 1),
            branch("else_branch", scope, depth - 1))
          f[#f + 1], s[#s + 1] = names:match "(%S+) (%S+)"
        elseif kind == 8 then
          local within, inner, i, go, a = {}, copy(scope), fresh(), fresh(), fresh()
          inner.f[#inner.f + 1], inner.c[#inner.c + 1] = a, go
          fill(within, inner, depth - 1, random(1, 4))
          local more = add(within, "Identity", random(3) == 1 and pick(inner.c) or go)
          local b, each, names = add(within, "Tanh", pick(inner.f)), add(within, "Neg", pick(inner.f)), fresh()
          nodes[#nodes + 1] = node("Loop", pick {"n", "two"} .. " - " .. pick(f), names .. " all" .. names,
            body("body", within, {info(i, 7), info(go, 9), info(a)}, {info(more, 9), info(b), info(each)}))
          f[#f + 1] = names
          f[#f + 1] = add(nodes, "ReduceSum", "all" .. names .. " first", integer("keepdims", 0))
        elseif kind == 9 then -- sizes that are values
          local flat = add(nodes, "Reshape", pick(f) .. " " .. add(nodes, "Add", "mm mm"))
          f[#f + 1] = add(nodes, "Reshape", flat .. " rows")
        end
      end
    end
    local nodes, scope = {}, {f = {"x"}, s = {}, c = {}}
    fill(nodes, scope, 2, random(4, 10))
    local outputs = {info(add(nodes, "Identity", pick(scope.f))), info(add(nodes, "Neg", scope.f[#scope.f]))}
    if scope.s[1] then outputs[3] = info(pick(scope.s), 7) end
    local int64 = {dtype = "int64"}
    return graph(nodes, {info "x", info("n", 7), info("mm", 7)}, outputs, {
      weight("tenth", lm.tensor(0.1)), weight("none", lm.tensor(0, int64), 7), weight("three", lm.tensor(3, int64), 7),
      weight("two", lm.tensor(2, int64), 7), weight("first", lm.tensor({0}, int64), 7),
      weight("rows", lm.tensor({-1, 4}, int64), 7),
    })
  end

  it("computes in parts what nodes compute one by one, in random graphs", function()
    local state = 1
    local function random(low, high)
      if not high then low, high = 1, low end
      state = state * 16807 % 2147483647
      return low + state % (high - low + 1)
    end
    for k = 1, 40 do
      local net = load(random_graph(random))
      for call = 1, 8 do
        local rows = ({2, 2, 5, 2, 4})[call % 5 + 1]
        local x, n = lm.randn(rows, 4), lm.tensor(call * 3 % 5 + 1, {dtype = "int64"})
        local sizes = lm.tensor(call % 2 == 0 and {1, rows} or {rows, 1}, {dtype = "int64"})
        local wanted, got = {net(x, n, sizes)}, nil
        lm.no_grad(function() got = {net(x, n, sizes)} end)
        for i, each in ipairs(wanted) do
          assert.same(each.shape, got[i].shape, k)
          assert.is_true(lm.allclose(each:double(), got[i]:double(), {atol = 1e-6}), k .. " " .. call)
        end
        if call % 3 == 0 then got[#got]:zero_() end -- the caller's
      end
    end
  end)

  it("names the node of an error", function()
    local net = conditional()
    for _ = 1, 3 do
      lm.no_grad(function()
        local ok, problem = pcall(net, lm.ones(2, 3), lm.tensor(1))
        assert.is_false(ok)
        assert.matches("%(MatMul%)", tostring(problem))
        pcall(net, lm.ones(4, 4), lm.tensor(1))
      end)
    end
  end)

  it("reads lists that depend on the inputs between parts", function()
    local net = load(graph({
      node("Exp", "x", "e"), node("Add", "k k", "sizes"), node("Reshape", "e sizes", "r"), node("Relu", "r", "y"),
    }, {info "x", info("k", 7)}, {info "y"}))
    local x = lm.randn(8)
    for round = 1, 3 do
      for _, k in ipairs {{1, 2}, {2, 1}} do
        local y
        local _, steps = work_of(function() y = net(x, lm.tensor(k, {dtype = "int64"})) end)
        assert.same({2 * k[1], 2 * k[2]}, {y.shape[1], y.shape[2]})
        if round == 3 then assert.equal(1, steps) end
      end
    end
  end)

  it("returns the sequences that a later node reads, not those on the way", function()
    local nodes = {node("SequenceConstruct", "x", "s1")}
    for i = 2, 30 do nodes[i] = node("SequenceInsert", ("s%d x"):format(i - 1), "s" .. i) end
    nodes[31] = node("ConcatFromSequence", "s30", "y", {name = "axis", type = 2, i = 0})
    local net, x, most, plan_new = load(graph(nodes, {info "x"}, {info "y"})), lm.randn(2), 0, lm.core.plan_new
    function lm.core.plan_new(tape, outputs, like)
      most = math.max(most, #outputs)
      return plan_new(tape, outputs, like)
    end
    local ok, y = pcall(lm.no_grad, function()
      net(x)
      return net(x)
    end)
    lm.core.plan_new = plan_new
    assert.is_true(ok, y)
    assert.is_true(lm.equal(x:tile(30), y))
    assert.is_true(most >= 1 and most <= 31, most)
  end)

  it("sends a model to other threads after calls", function()
    local net, x = load(graph({node("Relu", "x", "y")}, {info "x"}, {info "y"})), lm.tensor {-1, 2}
    local function call(m)
      lm.no_grad(function() m(x) end)
      return lm.no_grad(function() return m(x):totable() end)
    end
    assert.same({0, 2}, call(net))
    for _, each in ipairs {net, net:clone()} do
      assert.same({0, 2}, call(serialization.decode(serialization.encode("spec", each, {}))))
    end
  end)
end)
