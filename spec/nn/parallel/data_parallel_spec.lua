-- nn.DataParallel: the module's own results and gradients, however a batch is split. The devices are cpu:0, cpu:1, …;
-- with LM_SPEC_DEVICE=cuda they are GPUs, of which LM_CUDA_VIRTUAL=4 makes enough.
local ffi = require "ffi"
local lm = require "luminary"
local temp, pictures = require "spec.support.temp", require "spec.support.images"
local nn, F = lm.nn, lm.nn.functional
local DataParallel = nn.DataParallel

local kind = (os.getenv "LM_SPEC_DEVICE" or "cpu"):match "^%a+"

-- Returns the error's message, with the line of this file that raises it.
local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(problem)
end

local function dev(i) return lm.core.device(kind .. ":" .. i) end
local four = {dev(0), dev(1), dev(2), dev(3)}
local f64 = {dtype = "float64"}

local function lenet()
  return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(54, 20), nn.ReLU(), nn.Linear(20, 10)):double():to(dev(0))
end
local function twins(make)
  local one, two = (make or lenet)(), (make or lenet)()
  two:load_state_dict(one:state_dict())
  return one, two
end
local function batch(n) return lm.randn({n, 1, 12, 12}, f64):to(dev(0)), lm.randint(1, 11, {n}):to(dev(0)) end
local function near(a, b)
  return lm.allclose(a:detach():to("cpu"), b:detach():to("cpu"), {rtol = 1e-10, atol = 1e-11})
end
local function same_grads(one, two)
  local list = two:parameters()
  for i, p in ipairs(one:parameters()) do
    if not p.grad or not list[i].grad or not near(p.grad, list[i].grad) then return false end
  end
  return true
end
describe("DataParallel", function()
  for _, n in ipairs {1, 3, 4, 7, 16} do
    it(("gives the gradients of the module itself: %d samples on 4 devices"):format(n), function()
      lm.manual_seed(n)
      local one, two = twins()
      local net = DataParallel(two, {device_ids = four})
      local x, y = batch(n)
      local out = net(x)
      assert.equal(dev(0), out.device)
      assert.is_true(near(one(x), out))
      F.cross_entropy(one(x), y):backward()
      F.cross_entropy(out, y):backward()
      assert.is_true(same_grads(one, two))
    end)
  end

  it("has the loss inside the replicas, weighted by their samples", function()
    local x, y = batch(7)
    for _, shares in ipairs {false, {1, 2, 2, 4}, {5, 1, 1, 0.5}} do
      for _, reduction in ipairs {"mean", "sum"} do
        local one, two = twins()
        local criterion = nn.CrossEntropyLoss {reduction = reduction}
        local net = DataParallel(two, {device_ids = four, criterion = criterion, shares = shares or nil})
        local want, got = criterion(one(x), y), net(x, y)
        assert.same({}, got.shape)
        assert.is_true(near(want, got))
        want:backward()
        got:backward()
        assert.is_true(same_grads(one, two))
      end
    end
  end)

  it("counts labels as the loss does: weights of classes, some ignored", function()
    local x, y = batch(7)
    y[{{1, 2}}] = 3 -- the whole part of the first device
    for _, given in ipairs {{ignore_index = 3}, {weight = lm.rand({10}, f64):to(dev(0))},
      {weight = lm.rand({10}, f64):to(dev(0)), ignore_index = 3, label_smoothing = 0.1}} do
      local one, two = twins()
      local criterion = nn.CrossEntropyLoss(given)
      local want = criterion(one(x), y)
      local got = DataParallel(two, {device_ids = four, criterion = criterion})(x, y)
      assert.is_true(near(want, got))
      want:backward()
      got:backward()
      assert.is_true(same_grads(one, two))
    end
    local all = DataParallel(lenet(), {device_ids = four, criterion = nn.CrossEntropyLoss {ignore_index = 3}})
    local nothing = all(x, lm.full({7}, 3, {dtype = "int64"}):to(dev(0))):item()
    assert.is_true(nothing ~= nothing) -- as the loss itself says of no label at all
  end)

  it("takes soft targets, and losses without any tensor to split", function()
    local one, two = twins()
    local x, soft = batch(5), lm.rand({5, 10}, f64):to(dev(0))
    local net = DataParallel(two, {device_ids = four, criterion = nn.CrossEntropyLoss()})
    assert.is_true(near(F.cross_entropy(one(x), soft), net(x, soft)))
    local Constant = nn.Module:extend("Constant")
    function Constant.forward(_, n) return lm.full({}, n) end
    net = DataParallel(Constant(), {device_ids = {dev(0), dev(1)}, criterion = function(a, b) return a - b end})
    assert.equal(3, net(5, 2):item())
  end)

  it("gives the loss on the output device", function()
    local one, two = twins()
    local x, y = batch(5)
    for _, devices in ipairs {four, {dev(0)}} do
      local net = DataParallel(two, {device_ids = devices, criterion = nn.CrossEntropyLoss(), output_device = dev(2)})
      local loss = net(x, y)
      assert.equal(dev(2), loss.device)
      assert.is_true(near(F.cross_entropy(one(x), y), loss))
      assert.equal(dev(2), DataParallel(two, {device_ids = devices, output_device = dev(2)})(x).device)
    end
  end)

  it("takes any function as the loss, and one without reduction", function()
    local one, two = twins()
    local x, y = batch(6)
    local net = DataParallel(two, {device_ids = four, criterion = function(out, target)
      assert.equal(out.device, target.device)
      return F.cross_entropy(out, target)
    end})
    assert.is_true(near(F.cross_entropy(one(x), y), net(x, y)))
    net = DataParallel(two, {device_ids = four, criterion = nn.CrossEntropyLoss {reduction = "none"}})
    assert.same({6}, net(x, y).shape)
    local weighted = nn.CrossEntropyLoss {weight = lm.rand({10}, f64):to(dev(0)), reduction = "sum"}
    net = DataParallel(two, {device_ids = four, criterion = weighted})
    assert.is_true(near(weighted(one(x), y), net(x, y)))
  end)

  it("gives replicas parameters that kernels can read in packs", function()
    local comm = require "luminary.nn.parallel.comm"
    local home, other = dev(0), dev(1)
    for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
      local list = {}
      for i, n in ipairs { 1, 5, 16, 3, 0, 33 } do
        list[i] = lm.full({ n }, i, { dtype = dtype, device = home })
        if dtype == "float32" then list[i]:requires_grad_() end
      end
      local copies = comm.broadcast_coalesced(list, { home, other })[2]
      local sum = 0
      for i, t in ipairs(copies) do
        assert.equal(other, t.device)
        assert.is_true(t:eq(i):all():item())
        local address = tonumber(ffi.cast("uintptr_t", t:data_ptr()))
        if t:numel() > 0 then assert.equal(0, address % 64, ("%s %d"):format(dtype, i)) end
        sum = sum + (t * i):sum()
      end
      if dtype == "float32" then
        sum:backward()
        for i, t in ipairs(list) do assert.is_true(t.grad:eq(i):all():item()) end
      end
    end
  end)

  it("splits a batch by shares", function()
    local seen = {}
    local Seen = nn.Module:extend("Seen")
    function Seen.forward(_, x)
      seen[x.device] = x:size(1)
      return x
    end
    local net = DataParallel(Seen(), {device_ids = {dev(0), dev(1), dev(2)}, shares = {1, 2, 2}})
    net(lm.ones {10, 2})
    assert.same({[dev(0)] = 2, [dev(1)] = 4, [dev(2)] = 4}, seen)
    seen = {}
    net(lm.ones {1, 2})
    assert.same({[dev(0)] = 1}, seen)
    local whole = lm.randn {256, 2}
    assert.is_true(near(whole, net(whole)))
    assert.equal(256, seen[dev(0)] + seen[dev(1)] + seen[dev(2)])
  end)

  it("joins what is nested, from inputs that are", function()
    local Deep = nn.Module:extend("Deep")
    function Deep:init() self.fc = nn.Linear(3, 2) end
    function Deep:forward(pair, opts)
      local h = self.fc(pair.left + pair.list[1])
      return {out = h * opts.scale, sizes = {h:size(1)}}, h:mean(), opts.name
    end
    local module = Deep():to(dev(0))
    local net = DataParallel(module, {device_ids = four, output_device = dev(1)})
    assert.same(four, net.device_ids)
    local left, right = lm.randn({5, 3}):to(dev(0)), lm.randn({5, 3}):to(dev(0))
    local result, mean, name = net({left = left, list = {right}}, {scale = 2, name = "n"})
    assert.equal(dev(1), result.out.device)
    assert.is_true(lm.allclose(result.out:to(dev(0)), module.fc(left + right) * 2))
    assert.same({{2, 2, 1}}, result.sizes)
    assert.same({3}, mean.shape)
    assert.equal("n", name)
  end)

  it("splits along another dim", function()
    local Cell = nn.Module:extend("Cell")
    function Cell.forward(_, x) return x * 2 end
    local x = lm.randn {3, 7, 2}
    for _, dim in ipairs {2, -1, -3} do
      assert.is_true(near(x * 2, DataParallel(Cell(), {device_ids = four, dim = dim})(x)))
    end
  end)

  it("trains: twenty steps as the module alone, buffers of the first replica", function()
    local function with_norm()
      return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)):double():to(dev(0))
    end
    local module = with_norm()
    local net = DataParallel(module, {device_ids = {dev(0), dev(1)}})
    local opt = lm.optim.SGD(net:parameters(), {lr = 0.1, momentum = 0.9})
    local x, y = lm.randn({8, 6}, f64):to(dev(0)), lm.randint(1, 4, {8}):to(dev(0))
    local first, last
    for _ = 1, 20 do
      local loss = F.cross_entropy(net(x), y)
      opt:zero_grad()
      loss:backward()
      opt:step()
      first, last = first or loss:item(), loss:item()
    end
    assert.is_true(last < first)
    assert.equal(20, module[2].num_batches_tracked:item())
    local twin = with_norm() -- the first replica has seen the first half
    twin:load_state_dict(module:state_dict())
    module[2].running_mean:zero_()
    twin[2].running_mean:zero_()
    net(x)
    twin(x:narrow(1, 1, 4))
    assert.is_true(near(module[2].running_mean, twin[2].running_mean))
    assert.is_true(module[2].running_mean:abs():sum():item() > 0)
    local wanted = net:eval()(x)
    assert.is_true(near(module(x), wanted))
  end)

  it("keeps what replicas do to themselves out of the module, but for the first's", function()
    local Grows = nn.Module:extend("Grows")
    function Grows:init() self:register_buffer("seen", lm.zeros {1}) end
    function Grows:forward(x)
      self.seen = self.seen + x:size(1)
      self.last = x.device
      if x.device ~= dev(0) then
        self:register_buffer("more", x)
        self.child = nn.Linear(1, 1)
      end
      return x
    end
    local module = Grows():to(dev(0))
    DataParallel(module, {device_ids = four})(lm.ones {7, 2})
    assert.equal(2, module.seen[1])
    assert.equal(dev(0), module.last)
    assert.equal(1, #module:buffers())
    assert.is_nil(module.more)
    assert.equal(0, #module:parameters())
  end)

  it("has the module's state, and moves with it", function()
    local module = lenet()
    local net = DataParallel(module, {device_ids = {dev(1), dev(2)}})
    local bare, keys = module:state_dict(), {}
    for key in pairs(net:state_dict()) do keys[#keys + 1] = assert(bare[key]) and key end
    assert.equal(#module:parameters(), #keys)
    assert.equal(module, net.module)
    local x = batch(4)
    local wanted = ("the parameter '0.weight' is on %s, but the first device is %s"):format(dev(0), dev(1))
    assert.matches(wanted, message(net, x), 1, true)
    net:to(dev(1))
    local after = net(x)
    assert.equal(dev(1), after.device)
    assert.is_true(near(module(x:to(dev(1))), after))
    local wrapped_later = DataParallel(lenet():to(dev(1)), {device_ids = {dev(1), dev(2)}})
    assert.equal(dev(1), wrapped_later(x).device)
  end)

  it("has each replica's device as the current one", function()
    local Makes = nn.Module:extend("Makes")
    function Makes.forward(_, x) return x + lm.ones({1}, {device = kind == "cuda" and "cuda" or x.device}) end
    assert.is_true(near(lm.full({4, 2}, 2), DataParallel(Makes(), {device_ids = four})(lm.ones {4, 2})))
  end)

  it("without recording", function()
    local net = DataParallel(lenet(), {device_ids = four})
    lm.no_grad(function() assert.is_false(net((batch(5))).requires_grad) end)
  end)

  it("without several devices is the module", function()
    local module = lenet()
    local x, y = batch(3)
    if lm.core.device_count("cuda") == 0 then
      local net = DataParallel(module)
      assert.equal(module, net.module)
      assert.same({}, net.device_ids)
      assert.is_true(lm.equal(net(x):detach(), module(x):detach()))
      local loss = DataParallel(module, {criterion = nn.CrossEntropyLoss()})(x, y)
      assert.is_true(near(F.cross_entropy(module(x), y), loss))
    end
    local net = DataParallel(module, {device_ids = {dev(0)}})
    assert.is_true(lm.equal(net(x):detach(), module(x):detach()))
  end)

  it("as a function", function()
    local module = lenet()
    local x = batch(5)
    local out = nn.parallel.data_parallel(module, x, {device_ids = {dev(0), dev(1)}, output_device = dev(1)})
    assert.equal(dev(1), out.device)
    assert.is_true(near(module(x), out))
    assert.is_true(near(module(x), nn.parallel.data_parallel(module, {x}, {device_ids = four})))
  end)

  it("names device and line of a replica that raises", function()
    local Bad = nn.Module:extend("Bad")
    function Bad:init() self.fc = nn.Linear(3, 3) end
    function Bad:forward(x)
      if x.device == dev(2) then return self.fc(x:matmul(x)) end
      return self.fc(x)
    end
    local net = DataParallel(Bad():to(dev(0)), {device_ids = four})
    assert.matches("^DataParallel: replica 3 on " .. dev(2) .. ": .*data_parallel_spec.lua:%d+: matmul: ",
      message(net, lm.ones {8, 3}))
    local plain = DataParallel(nn.Linear(4, 3):to(dev(0)), {device_ids = four})
    assert.matches("^DataParallel: replica 1 on " .. dev(0) .. ": .*data_parallel_spec.lua:%d+: ",
      message(plain, lm.ones {8, 3}))
    local thrown = {}
    local Throws = nn.Module:extend("Throws")
    function Throws.forward() error(thrown) end
    local _, problem = pcall(DataParallel(Throws(), {device_ids = four}), lm.ones {8, 3})
    assert.equal(thrown, problem)
  end)

  it("says what is wrong with its options", function()
    local module = nn.Linear(2, 2):to(dev(0))
    for wanted, opts in pairs {
      ["device_ids lists cpu twice, at 1 and 2"] = {device_ids = {"cpu", "cpu:0"}},
      ["shares must have 2 entries, one for each device, got 1"] = {device_ids = {dev(0), dev(1)}, shares = {1}},
      ["shares[2] must be a number above 0, got 0"] = {device_ids = {dev(0), dev(1)}, shares = {1, 0}},
      ["criterion must be a loss such as nn.CrossEntropyLoss(), or a"] = {device_ids = {dev(0)}, criterion = 3},
      ["did you mean 'device_ids'?"] = {device_id = {dev(0)}},
      ["devices must not be empty"] = {device_ids = {}},
    } do
      assert.matches(wanted, message(DataParallel, module, opts), 1, true)
    end
    local net = DataParallel(module, {device_ids = {dev(0), dev(1)}, criterion = nn.MSELoss()})
    assert.matches("with a criterion, pass the inputs and then the targets;", message(net, lm.ones {2, 2}), 1, true)
  end)
end)

describe("the example scripts for several devices", function()
  local out, log, small = os.tmpname(), os.tmpname(), temp.folder()
  setup(function() pictures.write(small, 256, 8) end)
  teardown(function()
    os.remove(out)
    os.remove(log)
    temp.remove(small)
  end)

  local function read(path)
    local f = assert(io.open(path, "rb"))
    local text = f:read("*a")
    f:close()
    return text
  end
  local function run(command)
    local code = os.execute(("luajit scripts/%s >%s 2>&1 </dev/null"):format(command, out))
    return code == 0, read(out)
  end
  local function losses(command)
    local ok, text = run(command .. " --log " .. log)
    assert(ok, text)
    local list = {}
    for line in io.lines(log) do list[#list + 1] = tonumber(line) end
    return list, text
  end

  it("lenet_scratch.lua: two devices have the losses of one, to 1e-9", function()
    local steps, images = 6, 24
    if kind == "cuda" then steps, images = 2, 6 end -- the device may be emulated
    local common = ("lenet_scratch.lua --data %s --max-steps %d --batch-size %d --lr 0.2 --dtype float64 "
      .. "--devices "):format(small, steps, images)
    local one, text = losses(common .. "cpu:0")
    assert.matches("\n%d+%.%d+ s an epoch on cpu\n$", text)
    assert.equal(steps, #one)
    for _, devices in ipairs {dev(0), dev(0) .. "," .. dev(1), dev(3) .. "," .. dev(1)} do
      local several = losses(common .. devices)
      assert.equal(steps, #several)
      for k, loss in ipairs(one) do assert(math.abs(loss - several[k]) < 1e-9, ("step %d"):format(k)) end
    end
  end)

  it("lenet_scratch.lua: fewer samples than devices", function()
    local ok, text = run(("lenet_scratch.lua --data %s --max-steps 2 --batch-size 3 --devices %s"):format(small,
      table.concat(four, ",")))
    assert(ok, text)
  end)

  if kind ~= "cuda" then -- they use the CPU alone
    it("whole epochs, with the accuracy on the test set #unsanitized", function()
      local folder = temp.folder()
      pictures.write(folder, 6, 6)
      for script, rest in pairs {["lenet_scratch.lua"] = "s an epoch", ["resnet_dp.lua"] = "images/s"} do
        local ok, text = run(("%s --epochs 2 --batch-size 4 --data %s --devices cpu:0,cpu:1"):format(script, folder))
        assert(ok, text)
        local line = "epoch %d  loss %d+%.%d+  test accuracy [01]%.%d+  %d+%.%d+ s\n"
        assert.matches("^" .. line .. line .. "%d+%.?%d* " .. rest .. " on cpu, cpu:1\n$", text)
      end
      temp.remove(folder)
    end)

    it("resnet_dp.lua: the loss falls #unsanitized", function()
      local list, text = losses("resnet_dp.lua --devices cpu:0,cpu:1 --batch-size 16 --max-steps 10 --lr 0.02 --data "
        .. small)
      assert.equal(10, #list)
      assert(list[9] + list[10] < 0.9 * (list[1] + list[2]), table.concat(list, " "))
      assert.matches("images/s on cpu, cpu:1\n$", text)
    end)
  end

  it("rosetta.lua: a row and a bar for each number of devices", function()
    local command = ("rosetta.lua --model mlp --devices %s,%s --max-steps 2 --epochs 1 --batch-size 32"):format(dev(0),
      dev(1))
    local ok, text = run(command)
    assert(ok, text)
    assert.matches("\n +2 +%d+%.%d +%d+%.%d%d\n", text)
    assert.matches("images/s", text, 1, true)
    local chart = out .. ".svg"
    ok, text = run(command .. " --plot " .. chart)
    assert(ok, text)
    if text:find("chart in " .. chart, 1, true) then
      assert.matches("<svg", read(chart), 1, true)
    else
      assert.matches("cannot find the program gnuplot", text, 1, true)
    end
    os.remove(chart)
  end)

  it("streams.lua and device_info.lua", function()
    local ok, text = run(("streams.lua --devices %s,%s --epochs 3 --batch-size 64"):format(dev(0), dev(1)))
    assert(ok, text)
    assert.matches("6 sums on a second stream, 0 wrong\n$", text)
    ok, text = run("device_info.lua --devices " .. dev(1))
    assert(ok, text)
    assert.matches("\n" .. dev(1) .. ": 0%.%d+ GiB allocated", text)
    if kind == "cuda" then assert.matches("\n  multiProcessorCount +%d+\n", text) end
  end)

  it("refuse what they do not know", function()
    for command, wanted in pairs {
      ["lenet_scratch.lua --device cpu"] = "lenet_scratch.lua: unrecognized argument '--device'",
      ["resnet_dp.lua --devices cpu:99"] = "--devices: unavailable device 'cpu:99'",
      ["rosetta.lua --model none"] = "rosetta.lua: --model: 'none' is none of lenet, ",
      ["rosetta.lua --plot chart.gif"] = "a name that ends in .png or .svg",
      ["streams.lua --dtype int8"] = "--dtype: 'int8' is none of float32",
      ["device_info.lua --lr 1"] = "device_info.lua: unrecognized argument '--lr'",
      ["resnet_dp.lua --epochs x"] = "--epochs must be an integer of at least 1, got 'x'",
    } do
      local ok, text = run(command)
      assert.is_false(ok)
      assert.matches(wanted, text, 1, true)
    end
  end)
end)
