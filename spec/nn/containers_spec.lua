-- ModuleDict, ParameterDict, ParameterList, and parts of Sequential.
local lm = require "luminary"
local within = require("spec.support.time").within
local message = require "spec.support.error_of"
local nn = lm.nn

local function keys(dict) return table.concat(require("luminary.base.lists").sorted_keys(dict), " ") end

describe("containers", function()
  it("take a net that was loaded, whose report comes along", function()
    local state = lm.models.lenet():state_dict()
    local net = lm.nn.Sequential(lm.models.lenet {weights = state})
    assert.equal(1, #net)
    assert.equal(1, #lm.nn.ModuleList {lm.models.lenet {weights = state}})
    local _, report = lm.models.lenet {weights = state}
    assert.error_matches(function() lm.nn.Sequential(report) end,
      "^Sequential: argument 1 must be a module, got a table; unpack%(list%) passes those of a list$")
    assert.error_matches(function() lm.nn.Sequential(net, report, net) end,
      "^Sequential: argument 2 must be a module, got a table; unpack%(list%) passes those of a list$")
  end)
end)

describe("nn.ModuleDict", function()
  it("holds modules by name", function()
    local d = nn.ModuleDict { b = nn.ReLU(), a = nn.Linear(2, 2) }
    assert.same({ "a", "b" }, d:keys())
    assert.equal(2, #d)
    assert.equal(d.a, d["a"])
    d.c = nn.Tanh()
    assert.equal("a.bias a.weight", keys(d:state_dict()))
    local seen = {}
    for name, module in d:items() do seen[#seen + 1] = name .. "=" .. module.__name end
    assert.equal("a=Linear b=ReLU c=Tanh", table.concat(seen, " "))
    assert.equal("Tanh", d:pop("c").__name)
    assert.is_false(d:contains("c"))
    assert.equal("ModuleDict(\n  (a): Linear(in_features=2, out_features=2, bias=True)\n  (b): ReLU()\n)", tostring(d))
    d:clear()
    assert.equal(0, #d)
  end)
  it("keeps the order of a list", function()
    assert.same({ "z", "a" }, nn.ModuleDict({ { "z", nn.ReLU() }, { "a", nn.ReLU() } }):keys())
  end)
  it("refuses what is none", function()
    assert.matches("ModuleDict: 'x' must be a module, got 3$", message(nn.ModuleDict, { x = 3 }))
    assert.matches("ModuleDict: a child module cannot be named 'keys': the class has a field of that name$",
      message(nn.ModuleDict, { keys = nn.ReLU() }))
    assert.matches("ModuleDict: no entry 'x'; entries are y$",
      message(function() nn.ModuleDict({ y = nn.ReLU() }):pop("x") end))
  end)
end)

describe("nn.ParameterDict and nn.ParameterList", function()
  it("make tensors parameters", function()
    local d = nn.ParameterDict { x = lm.ones(2) }
    d.y = lm.zeros(3)
    assert.is_true(nn.is_parameter(d.x) and nn.is_parameter(d.y))
    assert.same({ "x", "y" }, d:keys())
    local list = nn.ParameterList { lm.ones(2), nn.Parameter(lm.zeros(3)) }
    list[3] = lm.ones(1)
    assert.equal(3, #list)
    assert.same({ 1 }, list[-1].shape)
    assert.equal("0 1 2", keys(list:state_dict()))
    list[3] = nil
    assert.equal(2, #list:parameters())
    local n = 0
    for i, p in list:iter() do n = n + i * p:numel() end
    assert.equal(8, n)
    local twin = list:clone()
    assert.equal(2, #twin)
    assert.is_true(twin[1]:equal(list[1]) and twin[1] ~= list[1])
  end)
  it("refuse what is none", function()
    assert.matches("ParameterList: 3 must be a tensor, got string 'x'$", message(function()
      nn.ParameterList { lm.ones(1), lm.ones(1), "x" }
    end))
    assert.matches("ParameterList: index 2 is out of range for 1 parameters %(indices start at 1%)$",
      message(function() return nn.ParameterList({ lm.ones(1) })[2] end))
    assert.matches("ParameterList: only the last parameter, 2, can be removed$", message(function()
      nn.ParameterList({ lm.ones(1), lm.ones(1) })[1] = nil
    end))
  end)
end)

describe("nn.Sequential", function()
  it("names its children", function()
    local net = nn.Sequential { { "fc", nn.Linear(2, 3) }, { "act", nn.ReLU() } }
    assert.equal("fc.bias fc.weight", keys(net:state_dict()))
    assert.equal("Linear", net.fc.__name)
    assert.same({ 3 }, net(lm.ones(2)).shape)
    assert.equal("fc", (net[{ 1, 1 }]:named_children()()))
    assert.matches("entry 2 must be {name, module},", message(nn.Sequential, { { "a", nn.ReLU() }, { 3 } }), 1, true)
  end)
  it("is cut, joined and added to", function()
    local a, b, c = nn.Linear(2, 2), nn.ReLU(), nn.Tanh()
    local net = nn.Sequential(a, c)
    assert.equal(net, net:insert(2, b))
    assert.equal(b, net[2])
    local part = net[{ 2, -1 }]
    assert.equal(2, #part)
    assert.equal(c, part[2])
    assert.equal(a, net:slice(-3, 1)[1])
    assert.equal(c, net:pop())
    assert.equal(a, net:pop(1))
    assert.equal(3, #net:append_all { a, c })
    assert.equal("ModuleList", nn.ModuleList({ a, b }):slice(2).__name)
    assert.matches("Sequential%.slice: modules 1 to 4 are out of range; there are 3$", message(net.slice, net, 1, 4))
    assert.matches("Sequential%.insert: position must be from 1 to 4, got 9$", message(net.insert, net, 9, a))
  end)
  it("takes thousands of modules, one after the other, without a look at all of them for each", function()
    local list, n = {}, 4000
    for i = 1, n do list[i] = nn.ReLU() end
    local started = os.clock()
    local nets = {nn.ModuleList(list), nn.Sequential(unpack(list)), nn.ModuleList():append_all(list), nn.Sequential(),
      nn.ModuleList()}
    for i = 1, n do
      nets[4]:append(list[i])
      nets[5][i] = list[i]
    end
    within(os.clock() - started, 5) -- 12 for each, where all were looked at
    for _, net in ipairs(nets) do
      local names = {}
      for name in net:named_children() do names[#names + 1] = name end
      assert.same({n, n, "0", tostring(n - 1)}, {#net, #names, names[1], names[n]})
    end
  end)
  it("names what is added after its children have changed", function()
    local function names_of(net)
      local names = {}
      for name in net:named_children() do names[#names + 1] = name end
      return table.concat(names, " ")
    end
    local net = nn.Sequential(nn.ReLU(), nn.ReLU())
    net:add_module("tail", nn.Tanh())
    net:append(nn.ReLU())
    assert.equal("0 1 tail 2", names_of(net))
    net.tail = nil
    assert.equal("0 1 2 3", names_of(net:append(nn.ReLU())))
    table.remove(net, 1)
    net[#net + 1] = nn.Tanh()
    assert.equal("0 1 2 3", names_of(net))
    net[2] = nil
    assert.equal("0 1 2 3", names_of(net:append(nn.ReLU())))
    assert.equal("0 1 2 3 4", names_of(net:clone():append(nn.ReLU())))
    assert.matches("cannot contain itself", message(net.append, net, nn.ModuleList { net }))
    assert.equal(4, net:len())
  end)
end)
