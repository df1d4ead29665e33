-- Objects under Lua's own operators and functions: #, ipairs, pairs, [i]. Whatever is asked of them either works or is
-- an error; a loop that does nothing, a length of 0 and a nil would each be taken for an answer.
local lm = require "luminary"
local nn, data, optim, F = lm.nn, lm.data, lm.optim, lm.nn.functional

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return problem
end

local function names(list)
  local out = {}
  for i, module in ipairs(list) do out[i] = module.__name end
  return table.concat(out, " ")
end

local function keys(net)
  local out = {}
  for name in net:named_children() do out[#out + 1] = name end
  return table.concat(out, " ")
end

local Numbers = data.Dataset:extend("Numbers")
function Numbers:init(n) self.n = n end
function Numbers:len() return self.n end
function Numbers:get(i) return i end -- luacheck: ignore self

describe("Sequential and ModuleList are lists", function()
  local function make(kind)
    if kind == "ModuleList" then return nn.ModuleList { nn.Linear(2, 2), nn.ReLU(), nn.Tanh() } end
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh())
  end

  for _, kind in ipairs { "Sequential", "ModuleList" } do
    it(kind .. ": length, ipairs, pairs, unpack", function()
      local net = make(kind)
      assert.equal(3, #net)
      assert.equal(3, net:len())
      assert.equal("Linear ReLU Tanh", names(net))
      local seen = 0
      for i, child in pairs(net) do
        seen = seen + i
        assert.is_true(rawequal(child, net[i]))
      end
      assert.equal(6, seen)
      assert.is_true(rawequal(net[3], (select(3, unpack(net)))))
    end)

    it(kind .. ": what is written as into any list is registered", function()
      local net = make(kind)
      table.insert(net, 1, nn.Flatten())
      table.insert(net, nn.Linear(2, 5))
      net[#net + 1] = nn.Linear(5, 1)
      assert.equal("0 1 2 3 4 5", keys(net))
      assert.equal("Flatten Linear ReLU Tanh Linear Linear", names(net))
      assert.equal(6, #net:parameters())
      assert.equal("Linear", table.remove(net).__name)
      assert.equal("Flatten", table.remove(net, 1).__name)
      assert.equal("0.weight 0.bias 3.weight 3.bias", (function()
        local out = {}
        for name in net:named_parameters() do out[#out + 1] = name end
        return table.concat(out, " ")
      end)())
      net[1], net[2] = net[2], net[1]
      assert.equal("ReLU Linear Tanh Linear", names(net))
      assert.is_true(net["1"]:is(nn.Linear))
      net[2] = nil
      assert.equal("0 1 2", keys(net)) -- keys closes the gap in the list
      assert.equal("ReLU Tanh Linear", names(net))
      assert.is_true(net[-1]:is(nn.Linear))
      net[2] = nn.Identity()
      assert.is_nil(tostring(net):find("Tanh", 1, true))
      assert.is_true(net["1"]:is(nn.Identity))
    end)

    it(kind .. ": places where nothing is are errors, and so is what is no module", function()
      local net = make(kind)
      for _, at in ipairs { 0, 4, 9, -4, 1.5 } do
        assert.matches("index " .. at .. " is out of range for 3", message(function() return net[at] end), 1, true)
      end
      assert.matches(": cannot be indexed with %[table: ", message(function() return net[{ 1, 2, 3 }] end))
      assert.matches("index 9 is out of range", message(function() net[9] = nn.ReLU() end))
      net[2] = 5
      assert.matches("child 2 must be a module, got 5", message(net.parameters, net))
    end)
  end

  it("with named children beside numbered ones", function()
    local net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    net:add_module("head", nn.Tanh())
    table.remove(net, 1)
    assert.equal("1 head", keys(net)) -- names that are there stay
    table.insert(net, 1, nn.Flatten())
    assert.equal("2 1 head", keys(net))
    net.head = nil
    assert.equal("Flatten ReLU", names(net))
    assert.equal("0 1", keys(net))
  end)

  it("cannot be or contain their parent", function()
    local net, inner = nn.Sequential(nn.ReLU()), nn.ModuleList { nn.Tanh() }
    net:append(inner)
    for what, try in pairs {
      ["itself"] = function() net.own = net end, ["by number"] = function() net[3] = net end,
      ["from below"] = function() inner:append(net) end, ["by name"] = function() inner[1].up = inner end,
      ["by add_module"] = function() inner:add_module("up", net) end,
    } do
      assert.matches("is or contains this module", message(try), what)
    end
    table.insert(inner, net)
    assert.matches("ModuleList: the child '1' is or contains", message(net.parameters, net))
    table.remove(inner)
    assert.equal("Sequential(\n  (0): ReLU()\n  (1): ModuleList(\n    (0): Tanh()\n  )\n)", tostring(net))
    local a, b = nn.Sequential(nn.ReLU()), nn.ModuleList()
    table.insert(a, b)
    table.insert(b, a)
    for _, walk in ipairs { tostring, a.parameters, a.state_dict, a.children } do
      assert.matches("objects_spec.lua:%d+: [^\n]* is or contains this module", message(walk, a))
    end
    b[1] = 3
    for _ = 1, 2 do assert.matches("child 1 must be a module, got 3", message(b.children, b)) end
    b[1] = nil
    assert.equal(2, #a:children())
    inner.up = { net } -- nobody walks this cycle
    assert.equal(2, #net)
  end)

  it("put past the end move up, and none is passed over", function()
    local net = nn.Sequential(nn.ReLU(), nn.Tanh())
    table.insert(net, 5, nn.Linear(1, 1))
    assert.equal(2, #net:parameters())
    assert.equal("ReLU Tanh Linear", names(net))
    rawset(net, "head", nn.ReLU())
    assert.matches("Sequential: rawset set %[head%], which the module does not", message(net.parameters, net))
    assert.matches("Sequential: index 9 is out of range for 2 modules %(indices start at", message(function()
      nn.Sequential(nn.ReLU(), nn.Tanh())[9] = nn.ReLU()
    end))
    assert.is_nil(table.remove(nn.Sequential()))
  end)

  it("a model that walks its blocks by ipairs trains them", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.blocks = nn.ModuleList {}
      for _ = 1, 3 do self.blocks:append(nn.Linear(4, 4)) end
    end
    function Net:forward(x)
      for _, block in ipairs(self.blocks) do x = F.relu(block(x)) end
      return x
    end
    local net = Net()
    net(lm.rand { 2, 4 }):sum():backward()
    for name, p in net:named_parameters() do assert(p.grad, name) end
    assert.equal(3, #net.blocks)
  end)

  it("of functions shared and replicated", function()
    local relu = nn.ReLU()
    local net = nn.Sequential(nn.Linear(2, 2), relu, relu)
    table.insert(net, relu)
    assert.equal("0 1 2 3", keys(net))
    local twins = nn.parallel.replicate(net, { "cpu:0", "cpu:1" })
    assert.equal(4, #twins[2])
    assert.equal("Linear ReLU ReLU ReLU", names(twins[2]))
    assert.equal("cpu:1", twins[2][1].weight.device)
  end)

  it("also in another thread", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    table.insert(net, nn.Tanh())
    local loader = data.DataLoader(Numbers(5), { batch_size = 2, shuffle = true })
    local p = lm.mp.spawn(function(_, there, batches)
      assert(#there == 3 and #there:state_dict() == 0 and tostring(there[-1]) == "Tanh()")
      local seen = 0
      for _, module in ipairs(there) do seen = seen + #module:parameters() end
      assert(seen == 2)
      assert(#batches == 3 and #batches.dataset == 5 and batches:iter()().shape[1] == 2)
      assert(not pcall(function() return there[9] end) and not pcall(ipairs, batches))
      table.remove(there)
      assert(there:len() == 2)
    end, { args = { net, loader }, method = "thread", nprocs = 1, join = false })
    assert.is_true(p:join(20))
  end)
end)

describe("other objects", function()
  local set = Numbers(7)
  local loader = data.DataLoader(set, { batch_size = 2 })
  local linear = nn.Linear(2, 3)
  local opt = optim.SGD(linear:parameters(), { lr = 0.1 })
  local Counted = nn.Module:extend("Counted")
  function Counted:len() return 11 end -- luacheck: ignore self

  it("have the length that len gives, or none", function()
    assert.equal(7, #set)
    assert.equal(4, #loader)
    assert.equal(7, #loader.sampler)
    assert.equal(3, #data.Subset(set, { 1, 2, 3 }))
    assert.equal(5, #data.TensorDataset(lm.ones { 5 }))
    assert.equal(11, #Counted())
    assert.matches("Linear has no length; m:named_children", message(function() return #linear end), 1, true)
    assert.matches("SGD has no length", message(function() return #opt end))
    assert.matches("objects_spec.lua:%d+: StepLR has no length",
      message(function() return #optim.lr_scheduler.StepLR(opt, 1) end))
  end)

  it("are not walked in silence", function()
    for _, object in ipairs { set, loader, linear, opt, loader.sampler, lm.Timer() } do
      for _, walk in ipairs { ipairs, pairs } do
        assert.is_false(pcall(walk, object), tostring(object))
      end
      assert.is_false(pcall(next, object))
      -- the metamethods that a LuaJIT with Lua 5.2's metamethods calls
      local record = getmetatable(object)
      assert.matches("pairs and ipairs take tables, and this is an object", message(record.__pairs, object))
      assert.matches("pairs and ipairs take tables, and this is an object", message(record.__ipairs, object))
    end
  end)

  it("have nothing at numbers and tables", function()
    for _, object in ipairs { set, loader, linear, opt, loader.sampler } do
      for _, key in ipairs { 1, 0, -1, 3, { 1, 2 }, true } do
        assert.matches("objects_spec.lua:%d+: %w+: cannot be indexed with", message(function() return object[key] end))
      end
      assert.is_nil(object.no_such_field)
    end
    assert.matches("set:get(i) returns sample i, #set is the number of samples",
      message(function() return set[3] end), 1, true)
  end)

  it("keep the fields that they are given, numbers too", function()
    local Own = data.Dataset:extend("Own")
    function Own:init(...)
      for i = 1, select("#", ...) do self[i] = select(i, ...) end
      self.count = select("#", ...)
    end
    function Own:len() return self.count end
    function Own:get(i) return self[i] end
    local own = Own("a", "b")
    assert.equal("b", own:get(2))
    assert.equal(2, #own)
    assert.matches("cannot be indexed with %[3%]", message(own.get, own, 3))
    local batch = data.DataLoader(own, { batch_size = 2 }):iter()()
    assert.same({ "a", "b" }, batch)
  end)

  it("an optimizer's options are not set where steps would not look", function()
    assert.matches("SGD: lr is set per parameter group: for _, group in", message(function() opt.lr = 1 end))
    assert.matches("betas is set per", message(function() optim.Adam(linear:parameters()).betas = { 0, 0 } end))
    opt.mine = 3
    assert.equal(3, opt.mine)
  end)

  it("are named where they are not what is wanted", function()
    assert.matches("got a module, Linear", message(optim.SGD, linear))
    assert.matches("got a DataLoader", message(lm.nn.Sequential, loader))
    assert.matches("params must not be empty", message(optim.SGD, {}))
  end)
end)

describe("names that are not there", function()
  it("are errors of tensors, which name the nearest", function()
    local x = lm.rand { 2, 3, 4 }
    assert.matches("objects_spec.lua:%d+: tensors have no field or method 'shap'; did you mean 'shape'%?",
      message(function() return x.shap end))
    assert.matches("did you mean 'squeeze'", message(function() return x:sqeeze() end))
    assert.matches("'qqqqqqqq'$", message(function() return x.qqqqqqqq end))
    assert.is_nil(x.__like_a_metamethod)
    assert.is_nil(x.grad)
    assert.same({ 2, 4, 3 }, x.mT.shape)
    assert.is_true(x.mT:equal(x:transpose(2, 3)))
    assert.matches("mT: x must be at least 2-d, got shape [2]",
      message(function() return lm.rand({ 2 }).mT end), 1, true)
  end)

  it("are errors of the library's tables, which name the nearest", function()
    for who, case in pairs {
      luminary = { lm, "zeroes", "zeros" }, nn = { nn, "Liner", "Linear" }, ["nn.functional"] = { F, "rellu", "relu" },
      optim = { optim, "AdamX", "Adam" }, data = { data, "DataLoeader", "DataLoader" },
      dist = { lm.dist, "all_reduc", "all_reduce" }, ["nn.init"] = { nn.init, "nomal_", "normal_" },
    } do
      assert.matches(("%s has no '%s'; did you mean '%s'?"):format(who, case[2], case[3]),
        message(function() return case[1][case[2]] end), 1, true)
      assert.is_nil(rawget(case[1], case[2]))
      assert.is_nil(case[1].__name)
    end
    assert.matches("luminary has no 'int64'", message(function() return lm.zeros({ 2 }, { dtype = lm.int64 }) end))
  end)
end)
