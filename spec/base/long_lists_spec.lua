-- Lists of more entries than Lua's unpack takes, some 7990.
local lm = require "luminary"
local within = require("spec.support.time").within
local nn = lm.nn

local MANY = 10000

local function times(n, f)
  local list = {}
  for i = 1, n do list[i] = f(i) end
  return list
end

describe("a list of thousands", function()
  it("of children is cloned, cut and averaged", function()
    local net = nn.Sequential():append_all(times(MANY, function(i) return i == 1 and nn.Linear(2, 2) or nn.ReLU() end))
    local twin, x = net:clone(), lm.randn(3, 2)
    assert.is_true(lm.equal(net(x), twin(x)))
    assert.equal(MANY, #twin)
    assert.is_true(twin[MANY] ~= net[MANY] and twin[1].weight ~= net[1].weight)
    local started = os.clock()
    local part = net:slice(2, -1)
    within(os.clock() - started, 1) -- 2.3 where each looked at all the others
    assert.same({MANY - 1, net[2], net[MANY]}, {#part, part[1], part[#part]})
    assert.equal(2, #net[{MANY - 1, MANY}])
    assert.equal(MANY, #lm.optim.AveragedModel(net).module)
    assert.equal(MANY, #nn.ModuleList(net:children()):clone())
  end)
  it("of children with names is cut", function()
    local net = nn.Sequential(times(MANY, function(i) return {"m" .. i, nn.ReLU()} end))
    local part = net[{2, MANY}]
    assert.same({MANY - 1, net.m2, nil}, {#part, part.m2, part.m1})
  end)
  it("of parameters and names is cloned and listed", function()
    local list = nn.ParameterList(times(MANY, function(i) return nn.Parameter(lm.full({1}, i)) end)):clone()
    assert.same({MANY, MANY}, {#list, list[MANY]:item()})
    local named = {}
    for i = 1, MANY do named["p" .. i] = nn.Parameter(lm.full({1}, i)) end
    local dict = nn.ParameterDict(named):clone()
    assert.same({MANY, MANY, "p1"}, {#dict:keys(), #dict:values(), dict:keys()[1]})
  end)
  it("of schedules stands one after the other", function()
    local opt = lm.optim.SGD({nn.Parameter(lm.zeros(1))}, {lr = 1})
    local schedule = lm.optim.lr_scheduler.SequentialLR(opt,
      times(MANY, function() return lm.optim.lr_scheduler.ConstantLR(opt, {factor = 1}) end),
      times(MANY - 1, function(i) return i end))
    assert.equal(MANY - 1, #schedule.milestones)
  end)
  it("of parameters has masters", function()
    local net = nn.ParameterList(times(MANY, function() return nn.Parameter(lm.ones(1)) end))
    local opt = lm.optim.SGD(net:parameters(), {lr = 1})
    net, opt = lm.amp.initialize(net, opt, {opt_level = "O2", verbosity = 0})
    assert.equal(MANY, #net)
    assert.equal(MANY, #lm.amp.master_params(opt))
    local state = opt:state_dict()
    assert.equal(MANY, #state.master_weights)
    opt:load_state_dict(state)
  end)
  it("of keys is written as JSON, without a look at all for each", function()
    local object, started = {}, os.clock()
    for i = 1, 3 * MANY do object["k" .. i] = i end
    local text = require("luminary.base.json_encode")(object)
    within(os.clock() - started, 5) -- 0.05, and 20 where all were looked at
    assert.matches('^{"k1":1,"k10":10,"k100":100,', text)
    assert.equal(3 * MANY, lm.core.json_decode(text)["k" .. 3 * MANY])
  end)
end)
