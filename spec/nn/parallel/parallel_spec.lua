-- Several devices from one script: copying, splitting and joining tensors, models over devices, and backward passes
-- with a thread for each device. The devices are cpu:0, cpu:1, …; with LM_SPEC_DEVICE=cuda they are GPUs, of which
-- LM_CUDA_VIRTUAL=4 makes enough.
local lm = require "luminary"
local message = require "spec.support.error_of"
local nn = lm.nn
local P, comm = nn.parallel, nn.parallel.comm

local kind = (os.getenv "LM_SPEC_DEVICE" or "cpu"):match "^%a+"
local function dev(i) return lm.core.device(kind .. ":" .. i) end
local f64 = {dtype = "float64"}
local function same(a, b) return lm.equal(a:to("cpu"), b:to("cpu")) end
local function devices_of(list)
  local names = {}
  for i, t in ipairs(list) do names[i] = t.device end
  return names
end
local function sizes_of(list)
  local sizes = {}
  for i, t in ipairs(list) do sizes[i] = t:size(1) end
  return sizes
end

describe("comm", function()
  it("copies a tensor to devices", function()
    local x = lm.randn({3, 4})
    local copies = comm.broadcast(x, {dev(0), dev(1), dev(2)})
    assert.same({dev(0), dev(1), dev(2)}, devices_of(copies))
    for _, copy in ipairs(copies) do assert.is_true(same(x, copy)) end
  end)

  it("copies many tensors at once, in buckets, with their layout, and adds their gradients up", function()
    local list = {
      lm.randn({3, 4}, f64), lm.randn({5}, f64), lm.randn({2, 3, 4, 4}), lm.arange(1, 7),
      lm.randn({2, 3, 4, 4}):contiguous {memory_format = "channels_last"},
    }
    for i = 1, 3 do list[i].requires_grad = true end
    list[5].requires_grad = true
    for _, bytes in ipairs {1, 64, 10 * 2 ^ 20} do
      local lists = comm.broadcast_coalesced(list, {dev(0), dev(1), dev(2)}, bytes)
      for d, copies in ipairs(lists) do
        assert.equal(5, #copies)
        for i, copy in ipairs(copies) do
          assert.equal(dev(d - 1), copy.device)
          assert.is_true(same(list[i], copy))
          assert.equal(list[i].requires_grad, copy.requires_grad)
        end
        assert.is_true(copies[5]:is_contiguous {memory_format = "channels_last"})
      end
      for _, t in ipairs(list) do t.grad = nil end
      local loss = (lists[1][1] * 2):sum() + (lists[2][1] * 3):sum():to("cpu") + (lists[3][1] * 5):sum():to("cpu")
      loss = loss + (lists[3][5]:to("cpu") * list[5]:detach()):sum()
      loss:backward()
      assert.is_true(same(list[1].grad, lm.full({3, 4}, 10, f64)))
      assert.is_true(same(list[5].grad, list[5]:detach()))
      assert.is_nil(list[2].grad)
    end
  end)

  it("copies without a graph where none is wanted", function()
    local w = lm.randn({4}, {requires_grad = true})
    lm.no_grad(function()
      assert.is_false(comm.broadcast_coalesced({w}, {dev(1)})[1][1].requires_grad)
    end)
    assert.same({{}, {}}, comm.broadcast_coalesced({}, {dev(0), dev(1)}))
  end)

  it("has second derivatives through copies", function()
    local w = lm.randn({3}, {dtype = "float64", requires_grad = true})
    assert.is_true(lm.autograd.gradgradcheck(function(x)
      local there = comm.broadcast_coalesced({x, x * 2}, {dev(1), dev(2)})
      return there[1][1]:to("cpu") ^ 3 + (there[2][2] ^ 2):to("cpu")
    end, {w}))
  end)

  it("adds tensors up on one device", function()
    local list = {}
    for d = 0, 2 do list[d + 1] = lm.full({4}, d + 1, {device = dev(d)}) end
    local sum = comm.reduce_add(list, dev(1))
    assert.equal(dev(1), sum.device)
    assert.is_true(same(sum, lm.full({4}, 6)))
    assert.is_true(same(list[1], lm.full({4}, 1))) -- inputs stay as they were
    assert.is_true(same(comm.reduce_add({list[1]}), list[1]))
  end)

  it("adds many tensors up at once", function()
    for _, bytes in ipairs {1, 40, 2 ^ 20} do
      local lists = {}
      for d = 0, 2 do
        local device = dev(d)
        lists[d + 1] = {
          lm.full({3, 2}, d + 1, {device = device}), lm.full({5}, 10 * d, {device = device, dtype = "float64"}),
          lm.full({}, d, {device = device}),
        }
      end
      local sums = comm.reduce_add_coalesced(lists, dev(0), bytes)
      assert.same({dev(0), dev(0), dev(0)}, devices_of(sums))
      assert.is_true(same(sums[1], lm.full({3, 2}, 6)))
      assert.is_true(same(sums[2], lm.full({5}, 30, f64)))
      assert.equal(3, sums[3]:item())
      lm.no_grad(comm.reduce_add_coalesced, lists, dev(0), bytes)
      assert.is_true(same(lists[1][1], lm.full({3, 2}, 1)))
      assert.is_true(same(lists[1][2], lm.full({5}, 0, f64)))
    end
  end)

  it("splits and joins, with gradients", function()
    local x = lm.randn({5, 3}, {dtype = "float64", requires_grad = true})
    local pieces = comm.scatter(x, {dev(0), dev(1), dev(2)})
    assert.same({dev(0), dev(1), dev(2)}, devices_of(pieces))
    assert.same({2, 2, 1}, sizes_of(pieces))
    local whole = comm.gather(pieces, {destination = dev(1)})
    assert.equal(dev(1), whole.device)
    assert.is_true(same(whole, x:detach()))
    local g = lm.randn({5, 3}, f64)
    whole:backward(g:to(dev(1)))
    assert.is_true(same(x.grad, g))
    assert.same({1, 4}, sizes_of(comm.scatter(x, {dev(0), dev(1)}, {chunk_sizes = {1, 4}})))
    assert.same({2, 1}, (function()
      local columns = comm.scatter(x, {dev(0), dev(1)}, {dim = -1})
      return {columns[1]:size(2), columns[2]:size(2)}
    end)())
    assert.is_true(same(comm.gather {lm.tensor(1), lm.tensor(2)}, lm.tensor {1, 2}))
  end)

  it("says what is wrong", function()
    local x = lm.ones {2}
    assert.matches("broadcast: devices must not be empty", message(comm.broadcast, x, {}), 1, true)
    assert.matches("scatter: x must have at least 1 dim", message(comm.scatter, lm.tensor(1), {"cpu"}), 1, true)
    assert.matches("broadcast_coalesced: device mismatch: tensor 1 is on cpu, tensor 2 is on " .. dev(1),
      message(comm.broadcast_coalesced, {x, x:to(dev(1))}, {dev(2)}), 1, true)
    assert.matches("all devices must have the same number of tensors, got 2 on device 1 and 1 on device 2",
      message(comm.reduce_add_coalesced, {{x, x}, {x}}), 1, true)
    assert.matches("tensor 1 is float32 [2, 3] on device 1 but float32 [3, 2] on device 2",
      message(comm.reduce_add_coalesced, {{lm.ones {2, 3}}, {lm.ones {3, 2}}}), 1, true)
    assert.matches("buffer_size must be an integer of at least 1, got string 'large'",
      message(comm.reduce_add_coalesced, {{x}}, nil, "large"), 1, true)
  end)
end)

describe("scatter and gather", function()
  local four = {dev(0), dev(1), dev(2), dev(3)}

  it("split by PyTorch's sizes", function()
    for n, want in pairs {[1] = {1}, [3] = {1, 1, 1}, [5] = {2, 2, 1}, [6] = {2, 2, 2}, [8] = {2, 2, 2, 2}} do
      assert.same(want, sizes_of(P.scatter(lm.ones {n, 2}, four)))
    end
    assert.equal(1, #P.scatter(lm.ones {0, 2}, four))
  end)

  it("go into tables, and give all else to each", function()
    local mask, step = lm.arange(1, 4), lm.tensor(7)
    local inner = {mask = mask, name = "a"}
    local pieces = P.scatter({lm.ones {3, 2}, {inner, inner}, step, "text", false}, four)
    assert.equal(3, #pieces)
    local second = pieces[2]
    assert.equal(dev(1), second[1].device)
    assert.equal(2, second[2][1].mask[1])
    assert.equal(second[2][1], second[2][2])
    assert.equal("a", second[2][1].name)
    assert.equal(dev(1), second[3].device)
    assert.equal(7, second[3]:item())
    assert.equal("text", second[4])
    assert.is_false(second[5])
    assert.equal(4, #P.scatter({"no tensor"}, four))
  end)

  it("split arguments and their options", function()
    local lists, tables = P.scatter_kwargs(lm.ones {4, 2}, {weight = lm.arange(1, 5), scale = 2}, {dev(0), dev(1)})
    assert.equal(2, #lists)
    assert.equal(dev(1), lists[2][1].device)
    assert.same({3, 4}, tables[2].weight:totable())
    assert.equal(2, tables[2].scale)
  end)

  it("join what is nested", function()
    local function result(device, k)
      return {lm.full({2, 1}, k, {device = device}), {loss = lm.full({}, k, {device = device}), name = "x", k = k}}
    end
    local joined = P.gather({result(dev(0), 1), result(dev(1), 2)}, dev(2))
    assert.equal(dev(2), joined[1].device)
    assert.same({4, 1}, joined[1].shape)
    assert.same({1, 2}, joined[2].loss:totable())
    assert.equal("x", joined[2].name)
    assert.same({1, 2}, joined[2].k)
  end)

  it("say what does not fit", function()
    assert.matches("all tensors must have the same", message(P.scatter, {lm.ones {4}, lm.ones {2}}, four), 1, true)
    assert.matches("scatter: cannot split dim 2 of a tensor [3]", message(P.scatter, lm.ones {3}, four, 2), 1, true)
    assert.matches("replica 1 returned a tensor, replica 2 returned 1",
      message(P.gather, {lm.ones {1}, 1}, "cpu"), 1, true)
    assert.matches("replica 1 returned a field 'a', replica 2 did", message(P.gather, {{a = 1}, {}}, "cpu"), 1, true)
  end)
end)

describe("replicate", function()
  local Tied = nn.Module:extend("Tied")
  function Tied:init()
    self.layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    self.weight = self.layers[1].weight
    self.head = self.layers[1]
    self.seen = 0
  end
  function Tied:forward(x)
    self.seen = self.seen + 1
    return self.layers(x):matmul(self.weight)
  end

  it("keeps the first and copies the rest, shared parts too", function()
    local net = Tied():to(dev(0))
    local replicas = P.replicate(net, {dev(0), dev(1)})
    assert.equal(net, replicas[1])
    local twin = replicas[2]
    assert.is_true(twin:is(Tied))
    assert.equal(twin.head, twin.layers[1])
    assert.equal(twin.weight, twin.head.weight)
    assert.is_true(twin.weight.requires_grad)
    assert.is_false(twin.weight.is_leaf)
    assert.equal(dev(1), twin.layers[2].running_mean.device)
    assert.equal(tostring(net), tostring(twin))
    twin(lm.randn({4, 3}, {device = dev(1)})):sum():backward()
    assert.is_truthy(net.weight.grad)
    assert.equal(dev(0), net.weight.grad.device)
    assert.equal(0, net.seen)
    assert.is_true(same(net.layers[2].running_mean, lm.zeros {3}))
  end)

  it("without gradients", function()
    assert.is_false(P.replicate(nn.Linear(2, 2):to(dev(0)), {dev(0), dev(1)}, true)[2].weight.requires_grad)
    local frozen = nn.Linear(2, 2):requires_grad_(false):to(dev(0))
    assert.is_false(P.replicate(frozen, {dev(0), dev(1)})[2].weight.requires_grad)
  end)

  it("says where the module has to be", function()
    assert.matches("the parameter 'weight' is on cpu, but the first device is " .. dev(1),
      message(P.replicate, nn.Linear(2, 2), {dev(1), dev(2)}), 1, true)
    assert.matches("replicate: expected a module, got a table", message(P.replicate, {}, {dev(1)}), 1, true)
  end)
end)

describe("parallel_apply", function()
  it("calls each with its arguments and options", function()
    local Scale = nn.Module:extend("Scale")
    function Scale.forward(_, x, opts) return x * (opts and opts.by or 1), x.device end
    local devices = {dev(0), dev(1)}
    local inputs = {lm.ones {2}, {lm.ones({2}, {device = dev(1)})}}
    local results = P.parallel_apply({Scale(), Scale()}, inputs, {{by = 3}, {}}, devices)
    assert.same({3, 3}, results[1][1]:totable())
    assert.equal(dev(1), results[2][2])
    assert.same({2}, P.parallel_apply({nn.Linear(3, 2)}, {lm.ones {1, 3}})[1][1].shape)
  end)

  it("names the device and the line of what goes wrong", function()
    local Bad = nn.Module:extend("Bad")
    function Bad.forward(_, x)
      if x.device == dev(1) then error("no good") end
      return x
    end
    local inputs = {lm.ones {2}, lm.ones({2}, {device = dev(1)})}
    local text = message(P.parallel_apply, {Bad(), Bad()}, inputs, nil, {dev(0), dev(1)})
    assert.matches("^parallel_apply: replica 2 on " .. dev(1) .. ": .*parallel_spec.lua:%d+: no good$", text)
    assert.matches("2 modules, but 1 inputs", message(P.parallel_apply, {Bad(), Bad()}, {1}), 1, true)
    assert.matches("modules[1] must be a module or a function, got 3", message(P.parallel_apply, {3}, {1}), 1,
      true)
    assert.matches("options[1] must be a table, got 2", message(P.parallel_apply, {Bad()}, {1}, {2}), 1, true)
  end)
end)

describe("a model over two devices", function()
  local Halves = nn.Module:extend("Halves")
  function Halves:init(first, second)
    self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh()):double():to(first)
    self.second = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)):double():to(second)
  end
  function Halves:forward(x)
    local h = self.first(x:to(self.first[1].weight.device))
    return self.second(h:to(self.second[1].weight.device)):to("cpu")
  end

  it("has the gradients of the model on one", function()
    lm.manual_seed(1)
    local one, two = Halves(dev(0), dev(0)), Halves(dev(1), dev(2))
    two:load_state_dict(one:state_dict())
    local x = lm.randn({5, 6}, f64)
    for _, net in ipairs {one, two} do (net(x) ^ 2):sum():backward() end
    local names = {}
    for name, p in two:named_parameters() do names[name] = p end
    for name, p in one:named_parameters() do
      assert.equal(name:find("^first") and dev(1) or dev(2), names[name].grad.device)
      assert.is_true(lm.allclose(p.grad:to("cpu"), names[name].grad:to("cpu"), {rtol = 1e-12, atol = 1e-12}))
    end
  end)

  it("a model a device in parallel, joined on one", function()
    lm.manual_seed(2)
    local nets, x = {}, lm.randn({4, 3}, f64)
    for d = 0, 3 do nets[d + 1] = nn.Linear(3, 2):double():to(dev(d)) end
    local outputs = P.parallel_apply(nets, comm.broadcast(x, {dev(0), dev(1), dev(2), dev(3)}))
    P.gather(outputs, dev(0), 2):sum():backward()
    for d, net in ipairs(nets) do
      assert.equal(dev(d - 1), net.weight.grad.device)
      assert.is_true(lm.allclose(net.weight.grad:to("cpu"), x:sum(1):expand {2, 3}))
    end
  end)
end)

describe("a backward pass over several devices", function()
  -- Returns a loss of w through a chain on each device, one after the other where `linked`.
  local function graph(w, devices, steps, linked)
    local total, last
    for _, device in ipairs(devices) do
      local there = w:to(device)
      local y = linked and last and last:to(device) or there
      for _ = 1, steps do y = (y:matmul(there) * 0.1):tanh() + y end
      last = y
      local loss = y:mean():to(devices[1])
      total = total and total + loss or loss
    end
    return total
  end
  local three = {dev(0), dev(1), dev(2)}
  local function leaf() return lm.randn({24, 24}, {dtype = "float64", requires_grad = true}) end

  it("gives one device's gradients, and the same bits each time", function()
    lm.manual_seed(5)
    local w = leaf()
    for _, linked in ipairs {false, true} do
      w.grad = nil
      graph(w, {dev(0), dev(0), dev(0)}, 6, linked):backward()
      local want, first = w.grad
      for _ = 1, 30 do
        w.grad = nil
        graph(w, three, 6, linked):backward()
        first = first or w.grad
        assert.is_true(lm.equal(first, w.grad))
      end
      assert.is_true(lm.allclose(want, first, {rtol = 1e-12, atol = 1e-12}))
    end
  end)

  it("runs hooks and functions of one's own on the script's thread", function()
    local w = lm.ones({2, 2}, {dtype = "float64", requires_grad = true})
    local calls = {}
    local Double = lm.autograd.Function:extend("Double")
    function Double.forward(_, x) return x * 2 end
    function Double.backward(_, g)
      calls[#calls + 1] = "Double on " .. g.device
      return g * 2
    end
    local there = w:to(dev(1))
    local y = Double(there) * 3
    y:register_hook(function(g)
      calls[#calls + 1] = "hook on " .. g.device
      return g * 10
    end)
    w:register_post_accumulate_grad_hook(function() calls[#calls + 1] = "leaf" end)
    w:register_hook(function() lm.enable_grad(function() -- a pass within the pass
      local v = lm.ones({2}, {requires_grad = true})
      graph(leaf(), three, 2):backward()
      local square = v:to(dev(2)) * v:to(dev(1)):to(dev(2))
      square:sum():backward()
      assert.same({2, 2}, v.grad:totable())
    end) end)
    y:sum():to("cpu"):backward()
    assert.same({"hook on " .. dev(1), "Double on " .. dev(1), "leaf"}, calls)
    assert.same({{60, 60}, {60, 60}}, w.grad:totable())
  end)

  it("ends with the first error, and goes on afterwards", function()
    local w = leaf()
    local loss = graph(w, three, 4)
    local bad = w:to(dev(2))
    local y = bad * 2
    y:register_hook(function() error("no good") end)
    assert.matches("parallel_spec.lua:%d+: no good$", message(function() (loss + y:sum():to("cpu")):backward() end))
    bad = w:to(dev(2))
    y = bad:exp()
    y:detach():zero_()
    assert.matches("backward: exp needs its saved tensor",
      message(function() (y:sum():to("cpu") + 1):backward() end), 1, true)
    w.grad = nil
    graph(w, three, 4):backward()
    assert.is_truthy(w.grad)
  end)

  it("gives gradients of inputs, twice, and second derivatives", function()
    local w = leaf()
    local loss = graph(w, three, 3)
    local first = lm.grad(loss, {w}, {retain_graph = true})[1]
    local again = lm.grad(loss, {w})[1]
    assert.is_true(lm.equal(first, again))
    assert.is_nil(w.grad)
    local x = lm.randn({3, 3}, {dtype = "float64", requires_grad = true})
    assert.is_true(lm.autograd.gradgradcheck(function(v) return graph(v, three, 2) end, {x}))
  end)

  it("keeps gradients in between, and leaves on other devices", function()
    local w = lm.ones({3}, {device = dev(1), requires_grad = true})
    local y = w * 2
    y:retain_grad()
    local square = y:to(dev(0)) * y:to(dev(2)):to(dev(0))
    square:sum():backward()
    assert.same({4, 4, 4}, y.grad:totable())
    assert.equal(dev(1), w.grad.device)
    assert.same({8, 8, 8}, w.grad:totable())
  end)

  it("of a graph with a recomputed part", function()
    local w = leaf()
    local Part = lm.autograd.Function:extend("Part")
    function Part.forward(ctx, x)
      ctx:save_for_backward(x)
      return x:to(dev(1)):tanh():to(x.device)
    end
    function Part.backward(ctx, g)
      local x = ctx.saved_tensors[1]:detach()
      x.requires_grad = true
      lm.enable_grad(function() x:to(dev(1)):tanh():to(x.device):backward(g) end)
      return x.grad
    end
    local loss = Part(w:to(dev(2))):sum():to("cpu") + graph(w, three, 2)
    loss:backward()
    local got = w.grad
    w.grad = nil
    loss = w:tanh():sum() + graph(w, {"cpu", "cpu", "cpu"}, 2)
    loss:backward()
    assert.is_true(lm.allclose(got, w.grad))
  end)
end)
