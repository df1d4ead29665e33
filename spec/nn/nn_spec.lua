-- nn.Module: registering, walking, modes, conversion, state, hooks, classes, printing.
local lm = require "luminary"
local nn, optim = lm.nn, lm.optim
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"

local function names(iterator)
  local list = {}
  for name in iterator do list[#list + 1] = name end
  return table.concat(list, " ")
end

local function shapes(list)
  local texts = {}
  for i, t in ipairs(list) do texts[i] = table.concat(t.shape, "x") end
  return table.concat(texts, " ")
end

local function close(a, b) assert(a:allclose(b), tostring(a) .. "\n" .. tostring(b)) end

-- Builds the block of scripts/dev/golden/gen_golden.py.
local Block = nn.Module:extend("Block")
function Block:init(cin, cout, stride)
  stride = stride or 1
  self.conv1 = nn.Conv2d(cin, cout, 3, { padding = 1, stride = stride })
  self.bn1 = nn.BatchNorm2d(cout)
  if stride ~= 1 then
    self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, { stride = stride, bias = false }), nn.BatchNorm2d(cout))
  end
  self.tail = nn.ModuleList { nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2) }
end

local function plain() return nn.Module() end

describe("names that are loaded at first use", function()
  -- The tables whose files have nothing but public names.
  local libraries = {nn = nn, functional = nn.functional, optim = optim}
  local partly = {
    ["tensor.products"] = true, ["nn.attention"] = true, ["nn.recurrent"] = true, ["nn.positional_encoding"] = true,
    ["nn.parallel.data_parallel"] = true, ["nn.int8"] = true, ["optim.swa"] = true, ["nn.lora"] = true,
  }

  it("are all that their files have", function()
    for what, library in pairs(libraries) do
      local listed = {}
      for name, source in pairs(getmetatable(library).lazy()) do
        if source[2] then
          assert.equal(require("luminary." .. source[1])[source[2]], library[name], what .. "." .. name)
          listed[source[1]] = listed[source[1]] or {}
          listed[source[1]][name] = true
        end
      end
      for file, known in pairs(listed) do
        for name in pairs(partly[file] and {} or require("luminary." .. file)) do
          assert.is_true(known[name], ("%s lacks %s of %s"):format(what, name, file))
        end
      end
    end
  end)

  it("load no file that a small network does without", function()
    local code = [[local lm = require "luminary"
      local nn, F = lm.nn, lm.nn.functional
      local net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
      local opt = lm.optim.SGD(net:parameters(), {lr = 0.1})
      local set = lm.data.TensorDataset(lm.rand(2, 4), lm.ones({2}, {dtype = "int64"}))
      for x, y in lm.data.DataLoader(set):iter() do
        F.cross_entropy(net(x), y):backward()
        opt:step()
      end
      for name in pairs(package.loaded) do print(name) end]]
    local folder = temp.folder()
    local _, text = temp.run(folder, ("luajit -e '%s' 2>&1"):format(code))
    temp.remove(folder)
    assert.matches("luminary%.nn%.linear\n", text)
    for _, name in ipairs {
      "distributed", "mp.serialization", "tensor.einsum", "nn.pooling", "nn.norm", "nn.functional.convolution",
      "optim.lamb_muon_adafactor", "cuda.stream",
    } do
      assert.is_nil(text:find("luminary." .. name .. "\n", 1, true), name)
    end
  end)
end)

describe("calling a layer with more than its forward takes", function()
  it("is an error, which Lua's calls are not", function()
    local x = lm.ones { 2, 2 }
    local function try() nn.Linear(2, 2)(x, x) end
    assert.matches("nn_spec.lua:%d+: Linear: forward takes 1 argument, got 2", message(try))
    assert.matches("MSELoss: forward takes 2 arguments, got 3$", message(nn.MSELoss(), x, x, x))
    assert.matches("Sequential: forward takes 1 argument, got 3$", message(nn.Sequential(nn.ReLU()), x, nil, x))
    assert.matches("forward takes 1 argument, got 2; if they are the results of another call,", message(try))
    assert.not_matches("another call", message(nn.Linear(2, 2), x, 3))
    local Colon = nn.Module:extend("Colon")
    function Colon:init() self.fc = nn.Linear(2, 2) end
    function Colon:forward(a) return self:fc(a) end
    assert.matches("Linear: forward takes 1 argument, got 2; call a module in a field with a dot: self.NAME(x)",
      message(Colon(), x), 1, true)
    assert.matches("requires_grad_: x must be a tensor, got true (as a method it is x:requires_grad_(…), with a colon)",
      message(function() return (x.requires_grad_(true)) end), 1, true)
    local Mine = nn.Linear:extend("Mine")
    function Mine:forward(a, b) return self.super.forward(self, a) + b end
    assert.same({ 2, 2 }, Mine(2, 2)(x, x).shape)
    local net = nn.ReLU()
    net.forward = function(_, a, b) return a + b end
    assert.equal(8, net(x, x):sum():item())
  end)
end)

describe("a Module's fields", function()
  it("register in the order of first assignment", function()
    local m = plain()
    m.fc = nn.Linear(2, 3)
    m.scale = nn.Parameter(lm.ones { 4 })
    m:register_buffer("mean", lm.zeros { 2 })
    m.act = nn.ReLU()
    m.shift = nn.Parameter(lm.zeros { 5 })
    m.last = nn.Linear(3, 1, { bias = false })
    assert.equal("scale shift fc.weight fc.bias last.weight", names(m:named_parameters()))
    assert.equal("4 5 3x2 3 1x3", shapes(m:parameters()))
    assert.equal("mean", names(m:named_buffers()))
    assert.equal("2", shapes(m:buffers()))
    assert.equal("fc act last", names(m:named_children()))
    assert.equal(" fc act last", names(m:named_modules()))
    assert.equal(3, #m:children())
    assert.equal(m, m:modules()[1])
  end)

  it("keep their place when replaced, and the new value counts", function()
    local m = plain()
    m.a = nn.Linear(2, 2)
    m.b = nn.Linear(2, 2)
    m.w = nn.Parameter(lm.zeros { 1 })
    m.v = nn.Parameter(lm.zeros { 2 })
    m.a = nn.Linear(5, 7)
    m.w = nn.Parameter(lm.zeros { 3 })
    assert.equal("w v a.weight a.bias b.weight b.bias", names(m:named_parameters()))
    assert.equal("3 2 7x5 7 2x2 2", shapes(m:parameters()))
    local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[2] = nn.Linear(2, 9)
    assert.equal("9", shapes { net(lm.ones { 1, 2 }):squeeze() })
    assert.equal("9x2", shapes { net:state_dict()["1.weight"] })
    assert.equal("2x2 2 9x2 9", shapes(net:parameters()))
  end)

  it("go with nil, of every kind", function()
    local m = plain()
    m.a, m.w = nn.Linear(2, 2), nn.Parameter(lm.zeros { 1 })
    m:register_buffer("b", lm.zeros { 2 })
    m.a, m.w, m.b = nil, nil, nil
    assert.equal("", names(m:named_parameters()) .. names(m:named_buffers()) .. names(m:named_children()))
    assert.is_nil(m.a)
    assert.is_nil(next(m:state_dict()))
    m.w = nn.Linear(1, 1) -- the name is free for another kind
    assert.equal("w", names(m:named_children()))
  end)

  it("change kind: a parameter becomes a child", function()
    local m = plain()
    m.x = nn.Parameter(lm.zeros { 1 })
    m.x = nn.Linear(1, 2)
    assert.equal("x.weight x.bias", names(m:named_parameters()))
  end)

  it("hold plain values and tensors unregistered", function()
    local m = plain()
    m.size, m.table, m.t = 3, { 1, 2 }, lm.ones { 2 }
    assert.equal(3, m.size)
    assert.equal(2, m.table[2])
    assert.equal("", names(m:named_parameters()) .. names(m:named_buffers()))
    m.size = nil
    assert.is_nil(m.size)
  end)

  it("refuse values of the wrong kind, and names that cannot be", function()
    local m = plain()
    m.w, m.fc = nn.Parameter(lm.zeros { 1 }), nn.Linear(1, 1)
    m:register_buffer("b", lm.zeros { 1 })
    assert.matches("parameter 'w' must be an nn%.Parameter or nil, got 3",
      message(function() m.w = 3 end))
    assert.matches("Module: parameter 'w' must be an nn%.Parameter or nil, got a tensor %[1%]$",
      message(function() m.w = lm.zeros { 1 } end))
    assert.matches("Module: child module 'fc' must be a module or nil, got a table$", message(function() m.fc = {} end))
    assert.matches("Module: buffer 'b' must be a tensor or nil, got string 'x'$", message(function() m.b = "x" end))
    assert.matches("dot", message(function() m["a.b"] = nn.Linear(1, 1) end))
    assert.matches("ModuleList", message(function() m[1] = nn.Linear(1, 1) end))
    assert.matches("Module: a child module cannot be named 'forward': the class has a field of that name$",
      message(function() m.forward = nn.Linear(1, 1) end))
    assert.matches("register_buffer: the buffer must be a tensor, got 3$",
      message(function() m:register_buffer("c", 3) end))
    assert.matches("Module:register_parameter: 'c' must be an nn%.Parameter, got a tensor %[1%]$",
      message(function() m:register_parameter("c", lm.zeros { 1 }) end))
    assert.matches("Module:add_module: 'c' must be a module, got 3$", message(function() m:add_module("c", 3) end))
    m.b = lm.ones { 7 } -- a buffer takes another tensor
    assert.equal("7", shapes(m:buffers()))
  end)

  it("also register by add_module, register_parameter, register_buffer", function()
    local m = plain()
    m:add_module("fc", nn.Linear(1, 2))
    m:register_parameter("w", nn.Parameter(lm.zeros { 3 }))
    m:register_buffer("here", lm.zeros { 1 })
    m:register_buffer("gone", lm.zeros { 1 }, { persistent = false })
    m:register_buffer("none", nil)
    assert.equal("w fc.weight fc.bias", names(m:named_parameters()))
    assert.equal("here gone", names(m:named_buffers()))
    local state = m:state_dict()
    assert.truthy(state.here)
    assert.is_nil(state.gone)
  end)

  it("counts what is shared once", function()
    local m, shared = plain(), nn.Linear(2, 2)
    m.a = shared
    m.b = shared
    m.tied = nn.Linear(2, 2)
    m.tied.weight = shared.weight
    assert.equal("a.weight a.bias tied.bias", names(m:named_parameters()))
    assert.equal(" a tied", names(m:named_modules()))
    assert.truthy(m:state_dict()["b.weight"] and m:state_dict()["tied.weight"])
  end)
end)

describe("nn.Parameter", function()
  it("is a leaf over the tensor's memory that wants a gradient", function()
    local t = lm.zeros { 2 }
    local p = nn.Parameter(t)
    assert.is_true(p.requires_grad and p.is_leaf)
    t[1] = 5
    assert.equal(5, p:detach()[1])
    assert.is_false(nn.Parameter(t, false).requires_grad)
    assert.matches("Parameter: t must be a tensor, got 3$", message(nn.Parameter, 3))
  end)
end)

describe("walking", function()
  it("applies to all below first, then to the module", function()
    local seen = {}
    local net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    assert.equal(net, net:apply(function(m) seen[#seen + 1] = m.__name end))
    assert.equal("Linear ReLU Sequential Sequential", table.concat(seen, " "))
  end)

  it("applies init functions", function()
    local net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    net:apply(function(m) if m:is(nn.Linear) then nn.init.constant_(m.weight, 0.5) end end)
    assert.equal(0.5 * 15, net[1].weight:sum():item() + net[3].weight:sum():item())
  end)

  it("switches training and evaluation for all", function()
    local net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(2)))
    assert.is_true(net.training and net[2][1].training)
    assert.equal(net, net:eval())
    assert.is_false(net.training or net[1].training or net[2][1].training)
    net:train()
    assert.is_true(net[2][1].training)
    net:train(false)
    assert.is_false(net[2][1].training)
    assert.matches("train: mode must be true or false, got string 'yes'$", message(net.train, net, "yes"))
  end)

  it("requires_grad_ and zero_grad reach every parameter", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    net(lm.ones { 1, 2 }):sum():backward()
    for _, p in ipairs(net:parameters()) do assert.truthy(p.grad) end
    net:zero_grad { set_to_none = false }
    for _, p in ipairs(net:parameters()) do assert.equal(0, p.grad:abs():sum():item()) end
    net:zero_grad()
    for _, p in ipairs(net:parameters()) do assert.is_nil(p.grad) end
    assert.equal(net, net:requires_grad_(false))
    assert.is_false(net(lm.ones { 1, 2 }).requires_grad)
    net:requires_grad_()
    assert.is_true(net[1].weight.requires_grad)
  end)
end)

describe("to", function()
  it("keeps the tensors' identity, so that an optimizer keeps training them", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    local weight, mean = net[1].weight, net[2].running_mean
    local opt = optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
    assert.equal(net, net:to("float64"))
    assert.is_true(rawequal(weight, net[1].weight) and rawequal(mean, net[2].running_mean))
    assert.equal("float64", weight.dtype)
    assert.equal("float64", mean.dtype)
    assert.equal("int64", net[2].num_batches_tracked.dtype) -- integers keep their dtype
    assert.is_true(weight.requires_grad and weight.is_leaf)
    local before = weight:detach():clone()
    net(lm.rand({ 4, 2 }, { dtype = "float64" })):square():sum():backward()
    opt:step()
    assert.is_false(before:equal(weight:detach()))
  end)

  it("takes a device, a dtype, both, a table, a tensor", function()
    local net = nn.Linear(2, 2)
    assert.equal("cpu:1", net:to("cpu:1").weight.device)
    net:to("cpu", "float64")
    assert.equal("cpu float64", net.weight.device .. " " .. net.weight.dtype)
    net:to { device = "cpu:2", dtype = "float16" }
    assert.equal("cpu:2 float16", net.weight.device .. " " .. net.weight.dtype)
    net:to(lm.zeros { 1 })
    assert.equal("cpu float32", net.weight.device .. " " .. net.weight.dtype)
    assert.equal("float64 float16 bfloat16 float32", table.concat({ net:double().bias.dtype, net:half().bias.dtype,
      net:bfloat16().bias.dtype, net:float().bias.dtype }, " "))
    assert.matches("to: dtype must be floating for a module's parameters, got int64$", message(net.to, net, "int64"))
    assert.matches("float33", message(net.to, net, "float33"))
    assert.matches("cuda", message(net.cuda, net))
    assert.equal("cpu float32", net.weight.device .. " " .. net.weight.dtype) -- as before the errors
  end)

  it("lays weights of convolutions out anew, and nothing else", function()
    local net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.Linear(3, 4))
    local before = net[1].weight:detach():clone()
    net:to { memory_format = "channels_last" }
    assert.is_true(net[1].weight:is_contiguous { memory_format = "channels_last" })
    assert.is_false(net[1].weight:is_contiguous())
    assert.is_true(net[1].weight:detach():equal(before))
    assert.is_true(net[3].weight:is_contiguous())
    assert.is_true(net:to { memory_format = "contiguous" }[1].weight:is_contiguous())
    assert.matches("channels_last", message(net.to, net, { memory_format = "chanels_last" }))
  end)

  it("takes gradients along", function()
    local net = nn.Linear(2, 1)
    net(lm.ones { 1, 2 }):sum():backward()
    net:to("float64")
    assert.equal("float64", net.weight.grad.dtype)
    assert.same({ { 1, 1 } }, net.weight.grad:totable())
  end)
end)

describe("lm.scope", function()
  it("leaves alone what a module holds: children, buffers, fields, running values, conversions", function()
    local m = plain()
    lm.scope(function()
      m.fc = nn.Linear(2, 2)
      m.bn = nn.BatchNorm1d(2)
      m.w = nn.Parameter(lm.ones { 2 })
      m:register_buffer("b", lm.ones { 2 })
      m.note = lm.ones { 2 }
      m.list = { lm.ones { 2 } }
    end)
    lm.scope(function() m.bn(m.fc(lm.randn { 4, 2 })):square():sum():backward() end)
    assert.equal(1, m.bn.num_batches_tracked:item())
    assert.equal(8, (m.w:sum() + m.b:sum() + m.note:sum() + m.list[1]:sum()):item())
    assert.truthy(m.fc.weight.grad:sum():item())
    lm.scope(function() m:to("float64") end)
    assert.equal("float64", m.fc.weight.grad.dtype)
    assert.truthy(m.fc(lm.ones({ 1, 2 }, { dtype = "float64" })):sum():item())
  end)

  it("leaves alone what an optimizer holds", function()
    for _, name in ipairs { "SGD", "Adam" } do
      local net = nn.Linear(2, 1)
      local opt = optim[name](net:parameters(), name == "SGD" and { momentum = 0.9 } or {})
      for _ = 1, 3 do
        lm.scope(function()
          opt:zero_grad()
          net(lm.ones { 1, 2 }):sum():backward()
          opt:step()
        end)
      end
      local saved = lm.scope(function() return opt:state_dict() end)
      lm.scope(function() opt:load_state_dict(saved) end)
      lm.scope(function() opt:step() end)
      assert.equal(4, opt.state[net.weight].step)
    end
  end)
end)

describe("state_dict", function()
  it("has parameters and buffers by dotted name, sharing memory", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    local state, keys = net:state_dict(), {}
    for key in pairs(state) do keys[#keys + 1] = key end
    table.sort(keys)
    assert.equal("0.bias 0.weight 1.bias 1.num_batches_tracked 1.running_mean 1.running_var 1.weight",
      table.concat(keys, " "))
    assert.is_false(state["0.weight"].requires_grad)
    state["0.bias"]:fill_(7)
    assert.equal(21, net[1].bias:sum():item())
  end)

  it("goes from one model into another", function()
    local a, b = Block(2, 3, 2), Block(2, 3, 2)
    a:double()
    local result = b:load_state_dict(a:state_dict()) -- converted to the model's dtype
    assert.same({ {}, {} }, { result.missing_keys, result.unexpected_keys })
    assert.same({ { from = "float64", to = "float32", count = 19 } }, result.converted)
    assert.equal("float32", b.conv1.weight.dtype)
    local x = lm.randn { 2, 2, 6, 6 }
    close(b.conv1(x), a:float().conv1(x))
  end)

  it("loads what was saved from a wrapped model", function()
    local a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    local wrapped = {}
    for key, t in pairs(a:state_dict()) do wrapped["module." .. key] = t end
    b:load_state_dict(wrapped)
    close(a.weight, b.weight)
    local holder = plain() -- a child that is called module keeps its name
    holder.module = nn.Linear(2, 2)
    holder:load_state_dict(wrapped)
    close(a.weight, holder.module.weight)
  end)

  it("has children of any name that is no method's", function()
    local net = plain()
    net.output, net.backward = nn.Linear(2, 3), nn.ReLU()
    assert.same({ "output.weight", "output.bias" }, { net:state_dict()["output.weight"] and "output.weight",
      net:state_dict()["output.bias"] and "output.bias" })
    assert.equal(3, net.output(lm.ones(1, 2)).shape[2])
  end)

  it("names missing, unexpected and mis-shaped keys, and changes nothing", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    local before = net[1].weight:detach():clone()
    local state = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)):state_dict()
    state["1.bias"], state["1.weight"] = nil, lm.zeros { 5, 5 }
    state.extra, state["2.weight"] = lm.zeros { 1 }, lm.zeros { 1 }
    local text = message(net.load_state_dict, net, state)
    assert.matches('missing keys in the state_dict: "1.bias"', text, 1, true)
    local nested = { epoch = 3, model = net:state_dict() }
    assert.matches("for Sequential: no key matches, but 'model' is a table whose keys do",
      message(net.load_state_dict, net, nested), 1, true)
    assert.matches('unexpected keys in the state_dict: "2.weight", "extra"', text, 1, true)
    assert.matches("size mismatch for 1.weight: [5, 5] in the state_dict, [1, 3] in the model", text, 1, true)
    assert.is_true(before:equal(net[1].weight:detach()))
    text = message(net.load_state_dict, net, state, { strict = false }) -- a wrong shape always is an error
    assert.matches("size mismatch", text)
    assert.not_matches("missing", text)
    state["1.weight"] = nil
    local result = net:load_state_dict(state, { strict = false })
    assert.same({ "1.weight", "1.bias" }, result.missing_keys)
    assert.same({ "2.weight", "extra" }, result.unexpected_keys)
    assert.is_true(state["0.weight"]:equal(net[1].weight:detach()))
  end)

  it("refuses what is none", function()
    local net = nn.Linear(1, 1)
    assert.matches("pass its :state_dict()", message(net.load_state_dict, net, nn.Linear(1, 1)), 1, true)
    assert.matches("table of tensors", message(net.load_state_dict, net, "file.safetensors"))
    assert.matches("weight must be a tensor, got 1",
      message(net.load_state_dict, net, { weight = 1, bias = lm.zeros { 1 } }))
    assert.matches("strict must be true or false, got", message(net.load_state_dict, net, net:state_dict(), 3), 1, true)
    assert.same({ "weight" }, net:load_state_dict({ bias = lm.zeros { 1 } }, false).missing_keys)
    assert.matches("load_state_dict: unknown option 'stict'; did you mean 'strict'%?$",
      message(net.load_state_dict, net, net:state_dict(), { stict = false }))
  end)
end)

describe("hooks", function()
  it("see and replace outputs and inputs, in order, until removed", function()
    local net, calls = nn.Linear(2, 2), {}
    local x = lm.ones { 1, 2 }
    local plain_y = net(x)
    local first = net:register_forward_hook(function(m, inputs, y)
      assert.equal(net, m)
      assert.is_true(rawequal(x, inputs[1]))
      calls[#calls + 1] = "first"
      return y + 1
    end)
    net:register_forward_hook(function() calls[#calls + 1] = "second" end)
    close(net(x), plain_y + 1)
    assert.equal("first second", table.concat(calls, " "))
    first:remove()
    first:remove()
    close(net(x), plain_y)
    assert.equal("first second second", table.concat(calls, " "))
    local pre = net:register_forward_pre_hook(function(_, inputs) return inputs[1] * 0 end)
    close(net(x), net.bias:unsqueeze(1))
    pre:remove()
    net:register_forward_pre_hook(function() return { lm.zeros { 3, 2 } } end)
    assert.equal("3x2", shapes { net(x) })
    assert.matches("Linear: hook must be a function$", message(net.register_forward_hook, net, 3))
  end)

  it("may remove themselves while running", function()
    local net, count = nn.Identity(), 0
    local handle
    handle = net:register_forward_hook(function()
      count = count + 1
      handle:remove()
    end)
    net:register_forward_hook(function() count = count + 10 end)
    net(1)
    net(1)
    assert.equal(21, count)
  end)
end)

describe("classes", function()
  it("extend, and reach what they extend", function()
    local Base = nn.Module:extend("Base")
    function Base:init(n) self.fc = nn.Linear(n, n) end
    function Base:forward(x) return self.fc(x) end
    local Net = Base:extend("Net")
    function Net:init(n)
      Net.super.init(self, n)
      self.head = nn.Linear(n, 1)
    end
    function Net:forward(x) return self.head(Net.super.forward(self, x)) end
    local net = Net(3)
    assert.equal("2x1", shapes { net(lm.ones { 2, 3 }) })
    assert.equal("fc.weight fc.bias head.weight head.bias", names(net:named_parameters()))
    assert.is_true(net:is(Net) and net:is(Base) and net:is(nn.Module))
    assert.is_false(net:is(nn.Linear) or Base(2):is(Net))
    assert.equal("Net", net.__name)
    assert.matches("extend: name is missing or nil; expected a string$", message(nn.Module.extend, nn.Module))
  end)

  it("extend the library's layers", function()
    local Scaled = nn.Linear:extend("Scaled")
    function Scaled:forward(x) return nn.Linear.forward(self, x) * 2 end
    local net = Scaled(2, 3, { bias = false })
    close(net(lm.ones { 1, 2 }), lm.nn.functional.linear(lm.ones { 1, 2 }, net.weight) * 2)
    assert.is_true(net:is(nn.Linear))
    assert.equal("Scaled(in_features=2, out_features=3, bias=False)", tostring(net))
  end)

  it("without forward say what to define", function()
    local Net = nn.Module:extend("Net")
    assert.matches("define function Net:forward", message(Net()), 1, true)
  end)

  it("forward passes all arguments and results", function()
    local Net = nn.Module:extend("Net")
    function Net:forward(...) return select("#", ...), ... end -- luacheck: ignore self
    local n, a, b, c = Net()(nil, 2, nil)
    assert.same({ 3, 2 }, { n, b })
    assert.is_nil(a or c)
  end)
end)

-- Returns the standard error of a script's lines, which are numbered from 1.
local function warnings(text)
  local folder = temp.folder()
  finally(function() temp.remove(folder) end)
  local path = temp.write(folder .. "/script.lua", text)
  local ok, out = temp.run(folder, "luajit " .. path)
  assert(ok, out)
  return (out:gsub("[^\n]*/script", "script"))
end

describe("a loss of other sizes than its target's", function()
  it("is broadcast with one warning for each line of the script", function()
    local head = "local lm = require 'luminary' local x, y = lm.zeros {4, 1}, lm.ones {4}\n"
    assert.equal("script.lua:2: warning: mse_loss: shapes of x and target should match, got [4, 1] and [4]; they "
      .. "are broadcast, which is probably a mistake\n"
      .. "script.lua:3: warning: mse_loss: shapes of x and target should match, got [4, 1] and [4]; they "
      .. "are broadcast, which is probably a mistake\n",
      warnings(head .. "for _ = 1, 5 do lm.nn.functional.mse_loss(x, y) end\n" .. "lm.nn.MSELoss()(x, y)\n"
        .. "lm.mse_loss(y, y)\n"))
    assert.equal("", warnings(head .. "assert(lm.set_warnings(false)) lm.mse_loss(x, y)\n"
      .. "assert(not lm.set_warnings(true))"))
    assert.matches("shapes of x and target must match",
      message(nn.BCEWithLogitsLoss(), lm.zeros { 4, 1 }, lm.ones { 4 }))
  end)
end)

describe("a sequence of padding alone", function()
  it("is one warning, as its mask is probably the wrong way round", function()
    local attend = "local lm = require 'luminary' local x = lm.ones(2, 3, 4)\n"
      .. "local mha = lm.nn.MultiheadAttention(4, 2, {batch_first = true})\n"
      .. "local function go(third) mha(x, x, x, {key_padding_mask = lm.BoolTensor {{true, true, third}, "
      .. "{false, true, true}}}) end\n"
    assert.equal("", warnings(attend .. "go(false)"))
    assert.matches("^[^\n]*MultiheadAttention: key_padding_mask has a row that is all true[^\n]*\n$",
      warnings(attend .. "go(true) go(true)"))
  end)
end)

describe("dropout between layers", function()
  it("of one layer is a warning, as it has nowhere to drop", function()
    local head = "local nn = require 'luminary'.nn\n"
    for _, name in ipairs { "RNN", "GRU", "LSTM" } do
      assert.equal(("script.lua:2: warning: %s: dropout is between layers, and num_layers is 1: with 0.5 nothing is "
        .. "dropped\n"):format(name), warnings(head .. ("nn.%s(3, 4, {dropout = 0.5})\n"):format(name)))
      assert.equal("", warnings(head .. ("nn.%s(3, 4, 2, {dropout = 0.5}) nn.%s(3, 4)\n"):format(name, name)))
    end
  end)
end)

describe("Softmax without dim", function()
  it("takes PyTorch's default, with one warning for each line", function()
    assert.equal("script.lua:2: warning: Softmax: no dim was given, so it is 2 for an input of 2 dims; say "
      .. "nn.Softmax(2)\n", warnings("local lm = require 'luminary' local x = lm.zeros {1, 4}\n"
        .. "for _ = 1, 3 do assert(lm.nn.Softmax()(x):sum():item() == 1) end"))
    warnings [[
      local lm = require "luminary"
      lm.set_warnings(false)
      for n = 1, 4 do
        local x = lm.randn { unpack({ 2, 3, 4, 5 }, 1, n) }
        assert(lm.equal(lm.nn.LogSoftmax()(x), x:log_softmax((n == 1 or n == 3) and 1 or 2)))
      end
    ]]
    assert.equal("Softmax(dim=None)", tostring(nn.Softmax()))
  end)
end)

describe("modules in a plain table", function()
  it("are warned of where parameters are asked for", function()
    local head = "local lm = require 'luminary' local nn = lm.nn local net = nn.Module:extend('Net')()\n"
    assert.equal("script.lua:3: warning: Net: blocks[2] is in a plain table, so that parameters(), state_dict() and "
      .. "to() skip it; nn.ModuleList holds modules\n",
      warnings(head .. "net.one = nn.Linear(1, 1) net.blocks = {net.one, nn.Linear(1, 1)}\nnet:parameters()\n"))
    assert.equal("", warnings(head .. "net.one = nn.Linear(1, 1) net.all = {net.one, 3, {}, x = 'y'} net:parameters()"))
  end)
end)

describe("what a module of one's own leaves out by mistake", function()
  local head = "local lm = require 'luminary' local nn = lm.nn local Net = nn.Module:extend('Net')\n"
  it("is warned of: a tensor to train that is no parameter", function()
    for _, dtype in ipairs { "float16", "float32" } do
      local init = ("function Net:init() self.w = lm.ones({2}, {requires_grad = true, dtype = %q})\n"):format(dtype)
      assert.equal("script.lua:4: warning: Net: w requires a gradient and is no nn.Parameter, so that parameters(), "
        .. "state_dict() and to() skip it; self.w = nn.Parameter(t) registers it\n", warnings(head .. init
        .. "end local net = nn.Sequential(Net())\nfor _ = 1, 3 do net:parameters() end"))
    end
    assert.equal("", warnings(head .. "function Net:init() self.p = nn.Parameter(lm.ones(2)) self.q = self.p * 2\n"
      .. "self.c = lm.ones(2) self:register_buffer('b', lm.ones({2}, {requires_grad = true})) end Net():parameters()"))
    assert.equal("", warnings(head .. "local net = Net() net.fc = nn.Linear(1, 1) net:named_parameters()\n"
      .. "net.seen = net.fc(lm.ones(1, 1)) net:parameters()"))
  end)
  it("is warned of: a method whose name is nearly forward", function()
    for _, name in ipairs { "foward", "forwad", "froward", "Forward", "formward" } do
      local text = warnings("local lm = require 'luminary' local nn = lm.nn local Net = nn.Linear:extend('Net')\n"
        .. "function Net:" .. name .. "(x) return x end\nfor _ = 1, 2 do\nNet(1, 1)(lm.ones(1, 1)) end")
      assert.equal("script.lua:4: warning: Net: method '" .. name .. "' is never called by the library; "
        .. "did you mean 'forward'?\n", text)
    end
    assert.matches("Net: method 'foward' is never", warnings(head .. "function Net:foward() end Net:extend('B')()"))
    assert.equal("", warnings(head .. "function Net:foward() end local B = Net:extend('B')\n"
      .. "function B:forward() end B()"))
    assert.equal("script.lua:3: warning: Net: method 'intit' is never called by the library; did you mean 'init'?\n",
      warnings(head .. "function Net:intit() end function Net:forward() end\nNet()"))
    for _, name in ipairs { "forward2", "format", "reward", "forward_features", "step", "hit" } do
      assert.equal("", warnings(head .. "function Net:" .. name .. "(x) return x end\nNet()"), name)
      assert.equal("", warnings(head .. "function Net:foward(x) return x end function Net:forward() end\nNet()"))
    end
  end)
end)

describe("containers", function()
  it("lose no child whose name is the next number", function()
    local net = nn.Sequential()
    net:add_module("1", nn.ReLU())
    net:append(nn.Tanh())
    assert.same({2, "ReLU()", "Tanh()"}, {#net, tostring(net[1]), tostring(net[2])})
    local list = nn.ModuleList()
    for i = 1, 3 do list[tostring(i)] = nn.Linear(i, i) end
    list:insert(1, nn.ReLU())
    assert.equal(4, #list)
    assert.matches("in_features=3", tostring(list[4]))
  end)

  it("number their children from 0 in names, from 1 in Lua", function()
    local net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3))
    assert.equal(3, net:len())
    assert.is_true(net[1]:is(nn.Linear) and net[2]:is(nn.ReLU))
    assert.is_true(rawequal(net[3], net[-1]) and rawequal(net[1], net[-3]))
    assert.matches("Sequential: index 4 is out of range for 3 modules %(indices start at 1%)$",
      message(function() return net[4] end))
    assert.equal("0 1 2", names(net:named_children()))
    local seen = {}
    for i, child in net:iter() do seen[i] = child.__name end
    assert.same({ "Linear", "ReLU", "Linear" }, seen)
    assert.equal(net, net:append(nn.Identity()))
    assert.equal(4, net:len())
    net[2] = nil -- the others move up
    assert.equal("0 1 2", names(net:named_children()))
    assert.is_true(net[2]:is(nn.Linear) and net[3]:is(nn.Identity))
    assert.equal("0.weight 0.bias 1.weight 1.bias", names(net:named_parameters()))
    net[-1] = nn.Tanh()
    assert.equal("Tanh", net[3].__name)
    assert.equal("1x3", shapes { net(lm.ones { 1, 1 }) })
  end)

  it("take named children as well", function()
    local net = nn.Sequential(nn.Linear(1, 2))
    net:add_module("head", nn.Linear(2, 3))
    assert.equal("0.weight 0.bias head.weight head.bias", names(net:named_parameters()))
    assert.is_true(rawequal(net.head, net[2]))
    assert.equal("3", shapes { net(lm.ones { 1 }) })
  end)

  it("refuse what is no module", function()
    assert.matches("Sequential: argument 2 must be a module, got 3$", message(nn.Sequential, nn.ReLU(), 3))
    assert.matches("ModuleList: argument 1 must be a module, got 3$", message(nn.ModuleList, { 3 }))
    assert.matches("ModuleList: expected a list of modules, nn%.ModuleList{a, b}, got a module, ReLU$",
      message(nn.ModuleList, nn.ReLU(), nn.ReLU()))
    local net = nn.Sequential(nn.ReLU())
    assert.matches("Sequential%.append: argument 1 must be a module, got 3$", message(net.append, net, 3))
    assert.matches("Sequential: index 3 is out of range for 1 modules %(indices start at 1%)$",
      message(function() net[3] = nn.ReLU() end))
    net[1] = 3 -- a list takes anything; its next use does not
    assert.matches("Sequential: child 1 must be a module, got 3$", message(net, lm.ones { 1 }))
    assert.matches("Sequential: forward takes 1 argument, got 2$", message(net, 1, 2))
  end)

  it("ModuleList holds, inserts, and is walked", function()
    local list = nn.ModuleList { nn.Linear(1, 1), nn.Linear(3, 3) }
    list:insert(2, nn.Linear(2, 2))
    list:append(nn.Linear(4, 4))
    local widths = {}
    for i, child in list:iter() do widths[i] = child.in_features end
    assert.same({ 1, 2, 3, 4 }, widths)
    assert.equal("0 1 2 3", names(list:named_children()))
    assert.matches("ModuleList%.insert: position must be from 1 to 5, got 9$", message(list.insert, list, 9, nn.ReLU()))
  end)
end)

describe("modules print as PyTorch's", function()
  local environment = setmetatable({ nn = nn, Block = Block }, { __index = _G })
  for _, case in ipairs(dofile("spec/golden/modules.lua")) do
    it(case[1]:sub(1, 60), function()
      local make = setfenv(assert(loadstring("return " .. case[1])), environment)
      assert.equal(case[2], tostring(make()))
    end)
  end

  it("with dims that count from 1", function()
    assert.equal("Flatten(start_dim=2, end_dim=-1)", tostring(nn.Flatten()))
    assert.equal("Softmax(dim=2)", tostring(nn.Softmax(2)))
    assert.equal("LogSoftmax(dim=-1)", tostring(nn.LogSoftmax(-1)))
    assert.equal("Embedding(10, 3, padding_idx=1)", tostring(nn.Embedding(10, 3, { padding_idx = 1 })))
  end)
end)

describe("a method that modules lack", function()
  it("is an error with what to use instead", function()
    local net = nn.Linear(3, 2)
    assert.error_matches(function() net:backward(lm.ones(1, 3)) end,
      "^no field 'backward'; loss:backward%(%) computes all gradients$")
  end)
end)

describe("a class of one's own", function()
  it("takes no arguments before it has an init", function()
    local Bare = nn.Module:extend("Bare")
    assert.error_matches(function() Bare(3) end,
      "^Bare: takes no arguments; define function Bare:init%(…%) to accept some$")
    Bare()
  end)
  it("says that its forward is missing, whatever it is called with", function()
    local Misspelt = nn.Module:extend("Misspelt")
    function Misspelt:foward(v) return v end -- luacheck: ignore self
    assert.error_matches(function() Misspelt()(lm.ones(1)) end, "^Misspelt: define function Misspelt:forward%(x%)$")
  end)
  it("does not hide its methods behind fields", function()
    local Hiding = nn.Module:extend("Hiding")
    function Hiding:init(value) self.train = value end
    assert.error_matches(function() Hiding(true) end,
      "^Hiding: 'train' is a method and cannot be assigned; got true$")
    Hiding(function() end) -- another function in its place is what somebody wants
  end)
  it("has no use for functions in Sequential", function()
    assert.error_matches(function() nn.Sequential(lm.relu) end, "argument 1 must be a module, got a function; nn has")
  end)
end)

describe("a layer's class that is called with its inputs", function()
  it("says that the layer is made first", function()
    local x, y = lm.rand(4, 10), lm.ones(4, {dtype = "int64"})
    assert.matches("CrossEntropyLoss: pass tensors to the layer that nn%.CrossEntropyLoss%(…%) makes:",
      message(nn.CrossEntropyLoss, x, y))
    for _, name in ipairs {"MSELoss", "KLDivLoss", "CTCLoss", "BCELoss"} do
      assert.matches(("nn.%s%%(%%)%%(x, y%%)$"):format(name), message(nn[name], x, x))
    end
    assert.matches("nn.MarginRankingLoss%(%)%(x, y, z%)$", message(nn.MarginRankingLoss, x, x, x))
    assert.matches("ReLU: pass tensors to the layer that nn%.ReLU%(…%) makes: nn%.ReLU%(%)%(x%)$",
      message(nn.ReLU, x))
  end)
  it("takes tensors that are options", function()
    assert.same({10}, nn.CrossEntropyLoss(lm.ones(10)).weight.shape)
    assert.same({10}, nn.BCEWithLogitsLoss(lm.ones(10), { pos_weight = lm.ones(10) }).pos_weight.shape)
  end)
end)

describe("a target of classes at each place", function()
  it("against logits whose classes come last says where they belong", function()
    local x, ids = lm.randn(4, 7, 10), lm.ones(4, 7, {dtype = "int64"})
    local text = message(nn.functional.cross_entropy, x, ids)
    assert.matches("to have shape %[N, C, L%] for target of %[4, 7%], got %[4, 7, 10%]; use x:transpose%(2, 3%)", text)
    local loss = nn.functional.cross_entropy(x:transpose(2, 3), ids):item()
    assert.near(loss, nn.functional.cross_entropy(x:flatten(1, 2), ids:flatten()):item(), 1e-5)
    assert.matches("expected target to have shape %[4, 10%]",
      message(nn.functional.cross_entropy, x, lm.ones(4, 8):long()))
  end)
end)
