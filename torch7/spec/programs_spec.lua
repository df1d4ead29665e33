-- Tests what programs of Torch7 rely on: lenient containers, types of modules, losses that are no numbers, fields of
-- files, values at kinks, packages and relative paths.
local torch = require "luminary.torch7"
local temp = require "spec.support.temp"
local nn, optim = torch.nn, torch.optim

describe("type() of a container", function()
  it("calls the modules' own type, once, and keeps shared memory", function()
    local place, calls = {}, {}
    local Own = torch.class("spec.Typed", "nn.Module", place)
    function Own:type(name, cache)
      if name then calls[#calls + 1] = name end
      return nn.Module.type(self, name, cache)
    end
    local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    b.weight:set(a.weight)
    local net = nn.Sequential():add(nn.Sequential():add(place.Typed())):add(a):add(b)
    net:getParameters()
    net:float()
    assert.same({ "torch.FloatTensor" }, calls)
    assert.equal("torch.FloatTensor", b.weight:type())
    a.weight[1][1] = 7
    assert.equal(7, b.weight[1][1])
    net:getParameters():fill(3)
    assert.equal(3, b.weight[1][1])
    local kept = nn.Sequential():add(nn.DontCast(nn.Linear(2, 2), true)):add(nn.Linear(2, 2)):float()
    assert.equal("torch.DoubleTensor", kept:get(1):get(1).weight:type())
    assert.equal("torch.FloatTensor", kept:forward(torch.FloatTensor(1, 2):fill(1)):type())
    local criterion = nn.MultiCriterion():add(nn.ClassNLLCriterion(torch.ones(3))):float()
    assert.equal("torch.FloatTensor", criterion.criterions[1].weights:type())
    assert.equal("torch.FloatTensor", criterion.criterions[1]:type())
  end)
end)

describe("containers", function()
  it("ignore nil, and need no dims to hold modules", function()
    assert.equal(0, #nn.Container():add(nil).modules)
    for _, name in ipairs { "Parallel", "Concat", "DepthConcat" } do
      assert.equal(6, nn[name]():add(nn.Linear(2, 2)):getParameters():size(1))
    end
    assert.error_matches(function() nn.Concat "2" end, "dimension must be")
  end)
end)

describe("layers and criterions at kinks", function()
  it("have Torch7's gradients", function()
    local x = torch.Tensor { -1, 0, 1 }
    local function gradient(layer) return layer:backward(x, layer:forward(x):clone():fill(1)):totable() end
    assert.same({ -1, 1, 1 }, gradient(nn.Abs()))
    assert.same({ 0.25, 0.25, 1 }, gradient(nn.PReLU()))
    assert.same({ 1, 1, -1 }, (nn.AbsCriterion():backward(x, torch.Tensor { -1, 0, 2 }) * 3):totable())
    local pair = { torch.Tensor { 1, 2, 5 }, torch.Tensor { 1, 3, 4 } }
    for name, first in pairs { CMaxTable = { 1, 0, 1 }, CMinTable = { 1, 1, 0 } } do
      local layer = nn[name]()
      layer:forward(pair)
      assert.same(first, layer:backward(pair, torch.ones(3))[1]:totable())
    end
    local frames = nn.TemporalMaxPooling(2)
    frames:forward(torch.ones(2, 1))
    assert.same({ { 1 }, { 0 } }, frames:backward(torch.ones(2, 1), torch.ones(1, 1)):totable())
    assert.is_true(nn.DistKLDivCriterion(false).sizeAverage)
  end)
  it("WeightNorm adds 1e-4 under the root, along any dim", function()
    local m = nn.WeightNorm(nn.Linear(2, 1, false))
    m.v:copy(torch.Tensor { { 0.03, 0.04 } })
    m.g:fill(1)
    assert.near(4.90290338, m:forward(torch.Tensor { { 3, 4 } })[1][1], 1e-8)
    local turned = nn.WeightNorm(nn.SpatialFullConvolution(3, 2, 2, 2), 2)
    assert.same({ 2, 12 }, turned.v:size():totable())
    local y = turned:forward(torch.ones(1, 3, 2, 2)):clone()
    assert.near(turned.g[2][1], turned:get(1).weight:select(2, 2):norm(), 1e-2)
    assert.near(0, (torch.deserialize(torch.serialize(turned)):forward(torch.ones(1, 3, 2, 2)) - y):abs():max(), 1e-12)
    local linear = nn.LinearWeightNorm(3, 2)
    y = linear:forward(torch.ones(1, 3)):clone()
    assert.near(0, (torch.deserialize(torch.serialize(linear)):forward(torch.ones(1, 3)) - y):abs():max(), 1e-12)
  end)
  it("SpatialConvolutionMap takes more planes than its table has", function()
    local m = nn.SpatialConvolutionMap(torch.Tensor { { 1, 1 }, { 2, 2 } }, 2, 2)
    local x = torch.randn(3, 4, 4)
    local y = m:forward(x):clone()
    assert.near(0, (m:forward(x:narrow(1, 1, 2):clone()) - y):abs():max(), 1e-12)
    m:forward(x)
    assert.equal(0, m:backward(x, y)[3]:norm())
  end)
  it("batch normalization has save_mean and save_std", function()
    local m, x = nn.SpatialBatchNormalization(2), torch.randn(3, 2, 4, 4)
    assert.is_nil(m.save_mean)
    m:forward(x)
    local plane = x:select(2, 1)
    assert.near(plane:mean(), m.save_mean[1], 1e-12)
    assert.near(1 / math.sqrt(plane:var() * 47 / 48 + 1e-5), m.save_std[1], 1e-9)
    assert.equal(2, m.running_mean:size(1))
  end)
end)

describe("SpatialMaxUnpooling", function()
  it("uses the pooling's indices, whatever its input holds now", function()
    local pool, x = nn.SpatialMaxPooling(2, 2), torch.Tensor { { { 1, 2 }, { 4, 3 } } }
    local unpool = nn.SpatialMaxUnpooling(pool)
    local y = pool:forward(x):clone()
    x:zero():narrow(3, 2, 1):fill(9)
    assert.same({ { { 0, 0 }, { 4, 0 } } }, unpool:forward(y):totable())
  end)
end)

describe("small functions", function()
  it("of tensors, files and classes", function()
    assert.same({ 2, 3, 2 }, torch.cat(torch.ones(2, 3), torch.zeros(2, 3), 3):size():totable())
    assert.same({ { 1, 0 }, { 1, 0 } }, torch.cat({ torch.ones(2), torch.zeros(2) }, 2):totable())
    assert.same({ { 1, 1, 1 }, { 2, 1, 1 } }, torch.cat(torch.range(1, 2), torch.ones(2, 2), 2):totable())
    assert.same({ 2, 1, 2 }, torch.cat(torch.ones(2), torch.zeros(2), 3):size():totable())
    assert.same({ 4 }, torch.cat(torch.ones(2), torch.zeros(2), -1):size():totable())
    assert.error_matches(function() torch.cat(torch.ones(2, 3), torch.ones(3, 2), 3) end, "cat: ")
    assert.is_nil(torch.factory "no.such.class")
    assert.equal("torch.FloatTensor", torch.range(1, 3, "torch.FloatTensor"):type())
    assert.same({ 1, 3 }, torch.range(1, 3, 2, "torch.IntTensor"):totable())
    local bytes = torch.CharTensor(torch.serializeToStorage { 3 })
    assert.equal(3, torch.deserializeFromStorage(bytes)[1])
    local storage = torch.DoubleStorage()
    local x = torch.DoubleTensor(storage)
    assert.equal(0, x:storage():size())
    x:storage():resize(5)
    assert.equal(5, x:storage():size())
    assert.is_nil(torch.Tensor():storage())
    local file = torch.MemoryFile("w"):noBuffer()
    for _, v in ipairs { 1, "a", true, {}, torch.ones(1), nn.Linear(1, 1) } do
      assert.is_truthy(file:isWritableObject(v))
    end
    assert.is_nil(file:isWritableObject(print))
    assert.error_matches(function() file:writeObject(print) end, "cannot be written")
  end)
  it("optimizers pass losses on that are no numbers", function()
    local g = torch.ones(2)
    for _, name in ipairs { "sgd", "adam", "rmsprop", "adagrad", "adadelta", "adamax", "nag", "rprop", "asgd" } do
      for _, loss in ipairs { false, { 1 }, torch.ones(1), torch.ones(3), "text" } do
        local x = torch.zeros(2)
        local _, losses = optim[name](function() return loss or nil, g end, x, {})
        assert.equal(loss or nil, losses[1])
        assert.is_true(x[1] < 0)
      end
    end
    assert.error_matches(function() optim.lbfgs(function() return nil, g end, torch.zeros(2)) end, "loss of feval")
  end)
  it("constructors and calls of objects are frames, as nngraph counts them", function()
    local place = {}
    local Node, Holder = torch.class("spec.Node", place), torch.class("spec.Holder", place)
    function Node:__init() self.at = require("debug").getinfo(6, "Sl") end
    function Holder.__call__()
      local node = place.Node()
      return node, 2
    end
    local line = require("debug").getinfo(1, "l").currentline + 1
    local node, two = place.Holder()()
    assert.equal(line, node.at.currentline)
    assert.matches("programs_spec", node.at.short_src)
    assert.equal(2, two)
  end)
  it("torch.CmdLine is a class", function()
    local place = {}
    local Own, parent = torch.class("spec.CmdLine", "torch.CmdLine", place)
    function Own:__init()
      parent.__init(self)
      self:option("-rate", 0.5, "rate")
    end
    function Own:option(key, ...)
      parent.option(self, key, ...)
      self.options[key].meta = 1
    end
    local cmd = place.CmdLine()
    assert.equal("spec.CmdLine", torch.type(cmd))
    cmd:argument("file", "a file")
    assert.equal("-rate", cmd.helplines[1].key)
    assert.same({ rate = 2, file = "a" }, cmd:parse { "a", "--rate=2" })
    local params = {}
    assert.equal(2, cmd:__readOption__(params, { "-rate", "3" }, 1))
    assert.same({ rate = 3 }, params)
    assert.equal("torch.CmdLine", torch.type(torch.CmdLine()))
  end)
end)

describe("torch.save", function()
  it("writes the fields that Torch7's layers need", function()
    local function saved(object)
      object = torch.deserialize(torch.serialize(object))
      return function(name) return rawget(object, name) end
    end
    local relu = saved(nn.ReLU())
    assert.same({ 0, 0 }, { relu "threshold", relu "val" })
    assert.same({ 0, 2, 3 }, saved(nn.Reshape(2, 3)) "batchsize":totable())
    assert.equal("torch.LongStorage", torch.type(saved(nn.JoinTable(1)) "size"))
    assert.same({}, saved(nn.CAddTable()) "gradInput")
    assert.equal(2, #saved(nn.DotProduct()) "gradInput")
    local loss = saved(nn.Sequential():add(nn.Linear(1, 1)):float() and nn.ClassNLLCriterion():float())
    assert.equal("torch.FloatTensor", loss "output_tensor":type())
    assert.equal("torch.LongTensor", loss "target":type())
    assert.equal("nn.Sigmoid", torch.type(saved(nn.MultiLabelSoftMarginCriterion()) "sigmoid"))
    local crelu = saved(nn.CReLU(1):float()) "modules"
    assert.equal("nn.ReLU", torch.type(crelu[3]))
    assert.equal("torch.FloatTensor", crelu[3]:type())
    local norm = nn.SpatialContrastiveNormalization(2, torch.ones(3, 3))
    local x = torch.randn(1, 2, 6, 6)
    local inner = saved(norm) "normalizer"
    assert.near(0, (inner:forward(x) - norm:forward(x)):abs():max(), 1e-12)
    local mean = saved(inner:get(1)) "meanestimator"
    assert.near(x[1]:sub(1, 2, 2, 4, 2, 4):mean(), mean:forward(x)[1][1][1][3][3], 1e-12)
    assert.equal(5, #saved(inner:get(2)) "stdestimator".modules)
    for _, kind in ipairs { "LPPooling" } do
      local pool = nn["Spatial" .. kind](2, 2, 2, 2)
      local net = nn.Sequential()
      for _, m in ipairs(saved(pool) "modules") do net:add(m) end
      assert.near(0, (net:forward(x) - pool:forward(x)):abs():max(), 1e-12)
    end
  end)
end)

describe("scripts", function()
  it("require paths relative to their file, tds, trepl and parts of packages", function()
    local folder = temp.folder()
    os.execute(("mkdir -p %s/sub/model"):format(folder))
    temp.write(folder .. "/a.lua", "return 'parent'")
    temp.write(folder .. "/sub/a.lua", "return 'child'")
    temp.write(folder .. "/sub/get-mnist.lua", "return 'mnist'")
    temp.write(folder .. "/sub/model/convNN.lua", "local a = require '../a' return a")
    temp.write(folder .. "/sub/model/init.lua", "return 'all'")
    temp.write(folder .. "/sub/main.lua", [[
      torch.save(paths.dirname(arg[0]) .. "/net.t7", {3})
      os.rename(paths.dirname(arg[0]) .. "/net.t7", paths.dirname(arg[0]) .. "/net.th")
      print(require "../a", require "./a", require "./get-mnist.lua", require "model/convNN.lua", require "./model",
        require("./net")[1], require "get-mnist")
      print(pcall(require, "./none"))
      local tds, c = require "tds", require "trepl.colorize"
      local v = tds.Vec {1, {3, 4}, {a = {5}}}
      v:insert(9)
      local w = torch.deserialize(torch.serialize(v))
      print(#v, torch.type(w[2]), torch.type(w[3]), w[3].a[1], v:remove(), #tds.Vec(1, 2), c.blue "x")
      print(tds.Vec("a", "b"):concat(","), tds.Vec("a", "b"):concatstorage():string())
      v:resize(1)
      print(#v, require "optim.sgd" == optim.sgd, require "nn.Module" == nn.Module,
        require "torch.Tester" == torch.Tester, type(require "trepl"), pcall(require, "nn.none"))
      local threads = require "threads"
      print(type(threads.Threads.serialization), threads.Threads.serialization "threads.sharedserialize")
    ]])
    local ok, out = temp.run(folder, ("luajit bin/luminary th %s/sub/main.lua"):format(folder))
    assert.is_true(ok, out)
    assert.is_truthy(out:find("parent\tchild\tmnist\tchild\tall\t3\tmnist\n", 1, true), out)
    assert.is_truthy(out:find "false\t.*require: no file '.*none'", out)
    assert.is_truthy(out:find("4\ttds.Vec\ttds.Hash\t5\t9\t2\tx\na,b\tab\n1\ttrue\ttrue\ttrue\tfunction\tfalse", 1,
      true), out)
    assert.is_truthy(out:find("function\tthreads.sharedserialize\n", 1, true), out)
    temp.remove(folder)
  end)
end)
