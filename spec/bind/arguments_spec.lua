-- Wrong arguments to what is written in Lua: errors in words, at the caller's line, never a stumble inside
-- the library.
local lm = require "luminary"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist
local temp = require "spec.support.temp"

local LONG = os.getenv "LM_TEST_LONG" ~= nil

local function values()
  local dropped = lm.rand { 2 }
  dropped:free()
  return {
    { nil }, { true }, { false }, { 0 }, { -1 }, { 1 }, { 2 }, { 1.5 }, { 1e300 }, { 0 / 0 }, { math.huge }, { 2 ^ 53 },
    { "" }, { "text" }, { "cpu" }, { "float32" }, { {} }, { { 1, 2 } }, { { 1, "x" } }, { { stride = 2 } },
    { { lr = 0.1 } }, { { bias = 3 } }, { { [1.5] = 1 } }, { { { {} } } }, { function() end },
    { coroutine.create(print) },
    { io.stdout }, { lm.rand { 2, 3 } }, { dropped }, { lm.ones({ 2 }, { dtype = "int64" }) }, { lm.zeros { 0, 3 } },
    { lm.ones {} }, { lm.rand({ 2 }, { requires_grad = true }) }, { nn.Linear(2, 2) }, { nn.Linear },
    { data.TensorDataset(lm.ones { 3 }) }, { setmetatable({}, { __index = function() error("looked into") end }) },
    { 5LL }, { lm.tensor({ 1 }, { device = "cpu:1" }) },
  }
end

local function check(name, f, ...)
  local ok, err = pcall(f, ...)
  if ok then return end
  assert(type(err) == "string", name .. ": an error that is no text")
  if not err:find("looked into", 1, true) then
    assert(not err:find("attempt to", 1, true) and not err:find("bad argument", 1, true), name .. ": " .. err)
    assert(not err:find("^[^\n]*lua/luminary/"), name .. " blames the library's line: " .. err)
  end
end

-- Calls f with every value, and with pairs and triples of them.
local function abuse(name, f, first)
  local list = values()
  local n = #list
  local function call(...)
    if first ~= nil then return check(name, f, first(), ...) end
    return check(name, f, ...)
  end
  call()
  for i = 1, n do call(list[i][1]) end
  for i = 1, n do
    for j = 1, n do
      if LONG or (i * 7 + j) % 3 == 0 then call(list[i][1], list[j][1]) end
    end
  end
  for k = 1, LONG and 3000 or 150 do
    call(list[k * 7 % n + 1][1], list[k * 11 % n + 1][1], list[k * 13 % n + 1][1], list[k * 17 % n + 1][1])
  end
end

-- Expects an error that blames this file for a problem, a pattern.
local function refused(problem, try)
  local ok, message = pcall(try)
  assert(not ok, problem)
  assert.matches("arguments_spec.lua:%d+: " .. problem, message)
end

describe("wrong arguments to", function()
  local folder = temp.during(setup, teardown)

  it("constructors of layers and losses #lua", function()
    for name in pairs(getmetatable(nn).lazy()) do assert(nn[name]) end
    for name, class in pairs(nn) do
      if type(class) == "table" and rawget(class, "__name") then abuse(name, class) end
    end
    abuse("Parameter", nn.Parameter)
  end)

  it("constructors and the like: no option and no argument is dropped in silence", function()
    local net, set = nn.Linear(2, 2), data.TensorDataset(lm.ones { 4 })
    local function opt() return optim.SGD(nn.Linear(2, 2):parameters()) end
    dist.init_process_group()
    finally(function() dist.destroy_process_group() end)
    local list = opt().param_groups[1].params
    for name, case in pairs {
      Linear = { nn.Linear, 2, 2 }, Conv2d = { nn.Conv2d, 1, 1, 1 }, BatchNorm2d = { nn.BatchNorm2d, 2 },
      LayerNorm = { nn.LayerNorm, 2 }, Embedding = { nn.Embedding, 2, 2 }, Dropout = { nn.Dropout, 0.5 },
      Flatten = { nn.Flatten, 2, -1 }, MaxPool2d = { nn.MaxPool2d, 2 }, ReLU = { nn.ReLU }, Softmax = { nn.Softmax, 1 },
      CrossEntropyLoss = { nn.CrossEntropyLoss }, MSELoss = { nn.MSELoss }, SyncBatchNorm = { nn.SyncBatchNorm, 2 },
      ModuleList = { nn.ModuleList, {} }, Parameter = { nn.Parameter, lm.ones { 1 }, true },
      DataParallel = { nn.DataParallel, net }, DistributedDataParallel = { nn.parallel.DistributedDataParallel, net },
      SGD = { optim.SGD, list }, Adam = { optim.Adam, list }, AdamW = { optim.AdamW, list },
      ZeroRedundancyOptimizer = { optim.ZeroRedundancyOptimizer, list }, DiLoCo = { optim.DiLoCo, opt() },
      StepLR = { optim.lr_scheduler.StepLR, opt(), 2 },
      CosineAnnealingLR = { optim.lr_scheduler.CosineAnnealingLR, opt(), 2 },
      MultiStepLR = { optim.lr_scheduler.MultiStepLR, opt(), { 2 } },
      ReduceLROnPlateau = { optim.lr_scheduler.ReduceLROnPlateau, opt() },
      CyclicLR = { optim.lr_scheduler.CyclicLR, opt(), 0.1, 0.2 },
      ChainedScheduler = { optim.lr_scheduler.ChainedScheduler, { optim.lr_scheduler.ConstantLR(opt()) } },
      ["scheduler:step"] = { optim.lr_scheduler.StepLR.step, optim.lr_scheduler.StepLR(opt(), 2) },
      Subset = { data.Subset, set, { 1 } }, random_split = { data.random_split, set, { 2, 2 } },
      SequentialSampler = { data.SequentialSampler, set }, RandomSampler = { data.RandomSampler, set },
      DistributedSampler = { data.DistributedSampler, set }, DataLoader = { data.DataLoader, set },
      FashionMNIST = { data.FashionMNIST }, Timer = { lm.Timer }, Process = { lm.mp.Process, { target = print } },
      ["init.normal_"] = { nn.init.normal_, lm.ones { 2 }, 0, 1 }, ["init.ones_"] = { nn.init.ones_, lm.ones { 2 } },
      clip_grad_norm_ = { nn.utils.clip_grad_norm_, list, 1 }, load = { lm.load, folder .. "/saved" },
      save = { lm.save, folder .. "/saved", { lm.ones { 2 } } }, parameters = { net.parameters, net },
      named_parameters = { net.named_parameters, net }, all_reduce = { dist.all_reduce, lm.ones { 2 } },
      broadcast = { dist.broadcast, lm.ones { 2 }, 0 }, new_group = { dist.new_group, { 0 } },
      gather_object = { dist.gather_object, 1, {}, 0 }, all_gather_object = { dist.all_gather_object, {}, 1 },
      broadcast_object_list = { dist.broadcast_object_list, { 1 }, 0 }, barrier = { dist.barrier },
    } do
      local n = #case
      for _, more in ipairs { { { no_such_option = 1 } }, { {}, 77 } } do
        local arguments = { unpack(case, 2) }
        for i = 1, #more do arguments[n - 1 + i] = more[i] end
        local ok, problem = pcall(case[1], unpack(arguments))
        assert(not ok, name .. " took " .. (#more == 1 and "an unknown option" or "an argument too many"))
        assert.matches("arguments_spec.lua:%d+: ", problem, 1, false, name)
      end
    end
  end)

  it("any but the first may be given by name", function()
    local opt = optim.SGD(nn.Linear(2, 2):parameters(), { lr = 1 })
    assert.equal(7, optim.lr_scheduler.StepLR(opt, { step_size = 7, gamma = 0.5 }).step_size)
    assert.equal("Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))",
      tostring(nn.Conv2d(1, { out_channels = 2, kernel_size = 3, padding = 1 })))
    assert.equal("Linear(in_features=2, out_features=3, bias=False)",
      tostring(nn.Linear { in_features = 2, out_features = 3, bias = false }))
    assert.equal("Flatten(start_dim=2, end_dim=3)", tostring(nn.Flatten(2, { end_dim = 3 })))
    local set = data.TensorDataset(lm.ones { 4 })
    assert.equal(2, #data.Subset(set, { indices = { 1, 3 } }))
    assert.equal(3, #data.random_split(set, { lengths = { 3, 1 } })[1])
    assert.equal(5, nn.init.constant_(lm.zeros { 1 }, { value = 5 }):item())
    assert.equal(0.5, nn.init.uniform_(lm.zeros { 1 }, { b = 0.5, a = 0.5 }):item())
    for problem, try in pairs {
      ["Linear: unknown option 'out_featres'; did you mean 'out_features'?"] = function()
        nn.Linear(2, { out_featres = 3 })
      end,
      ["gaussian_blur: sigma%[2%] must be a number above 0, got string '2'"] = function()
        lm.vision.transforms.functional.gaussian_blur(lm.ones { 3, 4, 4 }, 3, { 1, "2" })
      end,
      ["resnet18: weights: cannot open 'IMAGENET1K_V1': No such file or directory; nothing is downloaded"] = function()
        lm.models.resnet18 { weights = "IMAGENET1K_V1" }
      end,
      ["resnet18: unknown option 'pretrained'; nothing is downloaded; {weights = path} takes"] = function()
        lm.models.resnet18 { pretrained = true }
      end,
      ["DataLoader: generator must be an lm%.Generator, got 1"] =
        function() data.DataLoader(data.TensorDataset(lm.ones { 4 }), { generator = 1 }) end,
      ["Linear: in_features is passed twice, by position and by name"] = function()
        nn.Linear(2, { in_features = 2, out_features = 3 })
      end,
      ["Conv2d: out_channels is missing or nil; expected an integer of at least 1"] = function()
        nn.Conv2d(1, { kernel_size = 3 })
      end,
      ["constant_: unknown option 'size'; options are t, value"] = function()
        nn.init.constant_(lm.zeros { 1 }, { value = 5, size = 3 })
      end,
    } do refused(problem, try) end
  end)

  it("a dot for a colon, and a colon for a dot", function()
    local net = nn.Linear(2, 2)
    local opt = optim.SGD(net:parameters(), { lr = 1 })
    local loader = data.DataLoader(data.TensorDataset(lm.ones { 2 }))
    local Own = nn.Module:extend("Own")
    function Own:forward(x) return self, x:view(-1) end
    function Own:loss(x) return self, x:view(-1) end
    for problem, try in pairs {
      ["Optimizer%.step: call it with a colon: x:step%(…%)"] = function() opt.step() end,
      ["Optimizer%.zero_grad: call it with a colon: x:zero_grad%(…%)"] = function() opt.zero_grad() end,
      ["DataLoader%.iter: call it with a colon: x:iter%(…%)"] = function() loader.iter() end,
      ["Module%.parameters: call it with a colon: x:parameters%(…%)"] = function() net.parameters() end,
      ["Module%.load_state_dict: call it with a colon:"] = function() net.load_state_dict(net:state_dict()) end,
      ["DataLoader.load_state_dict: call it with a colon"] = function()
        loader.load_state_dict(loader:state_dict())
      end,
      ["Module.train: call it with a colon"] = function() net.train(true) end,
      ["Linear.forward: call it with a colon: x:forward%(…%), or x%(…%)$"] = function()
        net.forward(lm.ones { 2 })
      end,
      ["item: x is missing; expected a tensor .as a method it is x:item%(…%), with a colon"] = function()
        lm.ones {}.item()
      end,
      ["backward: x is missing; expected a tensor .as a method it is x:backward"] = function()
        lm.ones {}.backward()
      end,
      ["totable: x is missing; expected a tensor .as a method"] = function() lm.ones {}.tolist() end,
      ["to: x must be a tensor, got string 'cpu' .as a method it is x:to"] = function() lm.ones {}.to "cpu" end,
      ["register_hook: x must be a tensor, got a function .as a method"] = function()
        lm.ones {}.register_hook(print)
      end,
      ["add: other is missing; expected a tensor or a number .as a method it is x:add"] = function()
        local x = lm.ones { 2 }
        x.add(x)
      end,
      ["mm: other is missing; expected a tensor .as a method"] = function() lm.ones(2, 2).mm(lm.ones(2, 2)) end,
      ["pow: exponent is missing; expected a tensor or a number .as a method"] = function()
        lm.ones {}.pow(lm.ones {})
      end,
      ["add: other is missing; expected a tensor or a number$"] = function() lm.ones {}:add() end,
      ["detach: x is missing; expected a tensor .as a method"] = function() lm.ones {}.detach() end,
      ["view: x must be a tensor, got 4 .as a method it is x:view"] = function() lm.ones(4).view(4, -1) end,
      ["cpu: x must be a tensor, got nil"] = function() lm.ones(4).cpu() end,
      ["Own%.forward: call it with a colon: x:forward%(…%), or x%(…%)"] = function() Own().forward(lm.ones { 2 }) end,
      ["Own.loss: call it with a colon: x:loss%(…%)$"] = function() Own().loss(lm.ones { 2 }, 3) end,
      ["Set%.get: call it with a colon: x:get%(…%)"] = function()
        local Set = data.Dataset:extend("Set")
        function Set:get(i) return self.list[i] end
        Set().get(3)
      end,
      ["DataLoader: iter takes 0 arguments, got 1"] = function() loader:iter(2) end,
      ["randn: size must be a list, got the library luminary itself"] = function() lm:randn(2) end,
      ["relu: x must be a value, got the library nn.functional itself"] = function()
        nn.functional:relu(lm.ones { 1 })
      end,
      ["Linear: in_features must be .*, got the library nn itself .its functions are called with a dot"] = function()
        nn:Linear(2, 2)
      end,
      ["cannot concatenate a tensor; x:item%(%) is the number of one element"] = function()
        return "loss " .. lm.ones { 1 }
      end,
    } do refused(problem, try) end
  end)

  it("a colon is no remedy where the argument itself is nil", function()
    for _, try in ipairs { function() nn.Linear(2, 2)(nil) end, function() nn.Linear(2, 2)() end,
      function() nn.ReLU()(nil) end, function() nn.functional.relu(nil) end } do
      local ok, message = pcall(try)
      assert(not ok)
      assert.matches("x must be a tensor, got n", message)
      assert.not_matches("colon", message)
    end
  end)

  it("[0] of a list, which starts at 1", function()
    local net = nn.Linear(2, 2)
    local opt = optim.SGD(net:parameters(), { lr = 1 })
    local groups = "param_groups%[0%]: lists start at 1"
    refused(groups, function() return opt.param_groups[0] end)
    refused(groups, function() opt.param_groups[0].lr = 2 end)
    opt:load_state_dict(opt:state_dict())
    refused(groups, function() return opt.param_groups[0] end)
    local schedule = optim.lr_scheduler.StepLR(opt, 1)
    local rates = "get_last_lr%(%)%[0%]: lists start at 1"
    refused(rates, function() return schedule:get_last_lr()[0] end)
    assert.same({ 1 }, schedule:get_last_lr())
    assert.is_nil(getmetatable(schedule:state_dict().last_lr))
    refused("params%[0%]: lists start at 1", function() return opt.param_groups[1].params[0] end)
    local list = "list%[0%]: lists start at 1; list%[1%] is the first of "
    refused(list .. 2, function() return net:parameters()[0] end)
    refused(list .. 3, function() return lm.ones(3):chunk(3)[0] end)
    assert.is_nil(opt.param_groups[2])
    assert.is_nil(opt.param_groups.lr)
    opt:add_param_group { params = { nn.Parameter(lm.ones(1)) }, lr = 0.5 }
    assert.same({ 2, 1, 0.5 }, { #opt.param_groups, opt.param_groups[1].lr, opt.param_groups[2].lr })
  end)

  it("lists that PyTorch has as iterators or tuples", function()
    local net, qkv = nn.Sequential(nn.Linear(2, 2)), lm.ones { 2, 6 }
    for _, name in ipairs { "parameters", "buffers", "children", "modules" } do
      assert.error_matches(function() for p in net[name](net) do print(p) end end, "a list cannot be called")
    end
    for _, list in ipairs { qkv:chunk(3, 2), qkv:split(2, 2), qkv:t():unbind(2) } do
      assert.error_matches(function() return list:view(-1) end, "list of %d tensors has no 'view'; local a, b = unpack")
      assert.is_nil(list.n)
      assert.is_nil(list[9])
      assert.same({ 2, 6 }, #list == 3 and lm.cat(list, 2).shape or { 2, 6 })
    end
    optim.SGD(net:parameters(), { lr = 1 }):step()
    nn.utils.clip_grad_norm_(net:parameters(), 1)
    local ok = pcall(lm.save, folder .. "/lists", { net:parameters(), qkv:chunk(2, 2) })
    assert(ok and #lm.load(folder .. "/lists")[2] == 2)
  end)

  it("an init that leaves out the library's, and a Function with self", function()
    for name, root in pairs { TensorDataset = data.TensorDataset, Optimizer = optim.Optimizer, Subset = data.Subset,
      DataLoader = data.DataLoader } do
      local Own = root:extend("Own")
      function Own:init(a) self.a = a end
      assert.error_matches(function() Own(3) end, "Own: init must call " .. name .. ".init%(self, …%), which sets '")
    end
    local Exp = lm.autograd.Function:extend("Exp")
    assert.error_matches(function() function Exp:forward(ctx, x) return self, ctx, x end end,
      "Exp: forward takes ctx first")
    function Exp.forward(ctx, x) ctx.save_for_backward(x) end
    assert.error_matches(function() Exp(lm.ones { 1 }) end, "call it with a colon: ctx:save_for_backward%(…%)")
  end)

  it("arguments of a class that takes none", function()
    local Own = nn.Module:extend("Own")
    assert.error_matches(function() Own(3) end, "Own: takes no arguments; define function Own:init%(…%) to accept")
    assert.error_matches(function() nn.Module "Own" end, 'takes no arguments.*Module:extend%("Name"%)')
    assert.error_matches(function() nn.Conv2d(1, 2, 3, 1, 1, 1, 1, true, "zeros", "cpu", nil, 5) end,
      "Conv2d: takes at most 11 arguments, got 12: in_channels, out_channels, kernel_size, stride, padding, dilation, "
        .. "groups, bias, padding_mode, device, dtype")
    assert.error_matches(function() nn.Sequential { nn.ReLU() } end, "got a table; unpack%(list%)")
    assert.error_matches(function() nn.ReLU():load_state_dict "net" end, "lm.load%(path%) reads it")
    assert.error_matches(function() return nn.ReLU():is "ReLU" end, "is: expected a class, such as nn%.Linear, got")
    assert.error_matches(function() return lm.ones(2).shape() end, "sizes are a list, not a function: use x%.shape")
  end)

  it("a class's methods by the names of Python and Lua", function()
    for name, ours in pairs {
      __init = "init", __init__ = "init", __len__ = "len", __getitem__ = "get", __repr__ = "repr", __tostring = "repr",
      __call__ = "forward", __iter__ = "iter",
    } do
      local roots = { nn.Module, nn.Linear, data.Dataset, optim.Optimizer }
      roots = ours == "forward" and { nn.Module, nn.Linear } or ours == "get" and { data.Dataset }
        or ours == "iter" and { data.DataLoader } or roots
      for _, root in ipairs(roots) do
        local Own = root:extend("Own")
        local _, message = pcall(function() Own[name] = function() end end)
        assert.matches(("_spec.lua:%%d+: Own: '%s' is named %s here; define function Own:%s"):format(name, ours,
          ours), message)
      end
    end
  end)

  it("an object where its class stands, and a class where an object", function()
    local Set = data.Dataset:extend("Set")
    for problem, try in pairs {
      ["Sequential: argument 1 must be a module, got the class ReLU itself %(ReLU%(…%) makes an object"] = function()
        nn.Sequential(nn.ReLU)
      end,
      ["DataLoader: expected a dataset, got a list of 2, as random_split returns; write local a, b = unpack%(list%)"] =
        function() data.DataLoader(data.random_split(data.TensorDataset(lm.ones(4)), {2, 2})) end,
      ["tensors have no field or method 'len'; #x is the size of its first dim"] = function() lm.ones(2):len() end,
      ["luminary has no 'len'; #x is the size of a tensor's first dim"] = function() lm.len(lm.ones(2)) end,
      ["DataLoader: expected a dataset, with :get%(i%) and :len%(%), got the"] = function() data.DataLoader(Set) end,
      ["SGD: expected a list of parameters, net:parameters%(%), got the class"] = function() optim.SGD(nn.Linear) end,
      ["all_gather_object: outputs must be a table, got the class Set itself %(Set%(…%)"] = function()
        dist.init_process_group()
        finally(dist.destroy_process_group)
        dist.all_gather_object(Set, 1)
      end,
      ["relu: x must be a tensor, got the class ReLU itself"] = function() lm.relu(nn.ReLU) end,
      ["relu: x must be a tensor, got a module, ReLU"] = function() lm.relu(nn.ReLU()) end,
      ["relu: x must be a tensor, got a module, Sequential"] = function() lm.relu(nn.Sequential()) end,
      ["relu: x must be a tensor, got a userdata"] = function() lm.relu(io.stdout) end,
      ["DataLoader: this object cannot be called; for x, y in loader:iter%(%) do … end walks its"] = function()
        for x in data.DataLoader(data.TensorDataset(lm.ones { 2 })) do lm.relu(x) end
      end,
    } do refused(problem, try) end
  end)

  it("a method of a user's class may be called with more arguments than it names, and on a table", function()
    local Own = nn.Module:extend("Own")
    function Own:add(a) return self.n + a end
    assert.equal(3, Own.add({ n = 1 }, 2, 5))
  end)

  it("names of PyTorch's are told apart from those that are nowhere", function()
    local other = require "luminary.help.pytorch_names"
    local function there(what, name)
      if what == "tensors" then return rawget(lm.core.methods, name) ~= nil or lm.core.tensor_fields[name] ~= nil end
      local at = lm
      if name:match "^lm%." then
        name = name:sub(4)
      elseif what ~= "luminary" then
        name = what .. "." .. name
      end
      for part in name:gmatch "[^.]+" do
        local ok, inner = pcall(function() return at[part] end)
        if not ok then return false end
        at = inner
      end
      return at ~= nil
    end
    for what, names in pairs(other) do
      for theirs, ours in pairs(names) do
        assert(not there(what, theirs), what .. " has " .. theirs)
        assert(not ours or ours:find " " or there(what, ours), what .. " has no " .. tostring(ours))
      end
    end
    local x = lm.ones { 2, 2 }
    for problem, try in pairs {
      ["models has no 'maxvit_t' in this version"] = function() lm.models.maxvit_t() end,
      ["models has no 'get_model'; lm.models%[name%]%(%) makes one"] = function() lm.models.get_model "resnet18" end,
      ["no field 'get_params'; T%.functional has functions of given numbers:"] = function()
        lm.vision.transforms.RandomCrop.get_params(x, { 1, 1 })
      end,
      ["tensors have no field or method 'maskedFill'; it is named 'masked_fill' here"] = function()
        x:maskedFill(x, 1)
      end,
      ["tensors have no field or method 'isPinned'; it is named 'is_pinned' here"] = function() x:isPinned() end,
      ["tensors have no field or method 'solve' in this version"] = function() x:solve(1) end,
      ["tensors have no field or method 'values'; such ops return two results: local values, indices"] = function()
        return x:max(2).values
      end,
      ["nn has no 'RNNBase' in this version"] = function() nn.RNNBase(1, 1) end,
      ["nn has no 'NLLLoss2d'; it is named 'NLLLoss' here"] = function() nn.NLLLoss2d() end,
      ["nn has no 'LinearCrossEntropyOptions'; nn.LinearCrossEntropyLoss takes {chunk_size = n}"] =
        function() nn.LinearCrossEntropyOptions() end,
      ["LinearCrossEntropyLoss: unknown option 'options'; batch_chunk_size is chunk_size here"] =
        function() nn.LinearCrossEntropyLoss(3, 4, { options = {} }) end,
      ["nn.functional has no 'max_pool2d_with_indices'; max_pool2d has {return_indices = true}"] = function()
        nn.functional.max_pool2d_with_indices(lm.ones(1, 2, 2), 2)
      end,
      ["optim has no 'adamw'; it is named 'AdamW' here"] = function() return optim.adamw end,
      ["luminary has no 'float32'; dtypes are strings"] = function() return lm.float32 end,
      ["luminary has no 'jit'; lm%.compile%(f%), f a function or a module, records"] = function() lm.jit.script() end,
      ["luminary has no 'fuse'; lm%.compile%(f%), f a function or a module, records"] = function() lm.fuse() end,
      ["no field 'compile'; lm%.compile%(net%) returns a function"] = function() nn.ReLU():compile() end,
      ["watch has no 'tqdm'; lm%.watch%.progress%.new%(total%) makes a bar"] = function() lm.watch.tqdm(1) end,
      ["luminary has no 'profiler'; lm%.profile%(f%) records"] = function() lm.profiler.profile() end,
      ["watch%.progress is a table of functions, which is not called; it has duration, new, on_terminal"] = function()
        lm.watch.progress(30)
      end,
      ["nn is a table of functions, which is not called; %?nn lists them"] = function() nn(1) end,
      ["luminary has no 'ger'; lm%.outer%(x, y%) is"] = function() lm.ger(x, x) end,
      ["tensors have no field or method 'repeat_'; it is x:repeat_tensor%(2, 3%)"] = function() x:repeat_(2) end,
      ["luminary has no 'vmap'; lm%.func%.vmap%(f%) is"] = function() lm.vmap(print) end,
      ["luminary has no 'sparse_mask' in this version$"] = function() return lm.sparse_mask end, -- as of tensors
      ["luminary has no 'erfcx' in this version$"] = function() return lm.erfcx end, -- erfc is no substitute
      ["luminary has no 'gammainc'; it is named 'igamma' here"] = function() return lm.gammainc end,
      ["luminary has no 'special'; those of its functions that this"] = function() lm.special.erfinv(x) end,
      ["luminary has no 'nextafter'; lm%.finfo"] = function() lm.nextafter(x, x) end,
      ["luminary has no 'device'; devices are strings"] = function() return lm.device "cuda" end,
      ["tensors have no field or method 'solve_' in this version"] = function() x:solve_(1) end,
      ["mp has no 'set_start_method'; each is given its own"] = function() lm.mp.set_start_method "spawn" end,
      ["mp has no 'Manager' in this version"] = function() lm.mp.Manager(2) end,
      ["mp has no 'JoinableQueue'; it is named 'Queue' here"] = function() lm.mp.JoinableQueue() end,
      ["dist has no 'TCPStore'; init_process_group makes the store"] = function() dist.TCPStore() end,
      ["dist has no 'get_node_local_rank'; it is named 'get_local_rank' here"] = function()
        dist.get_node_local_rank()
      end,
      ["dist.ReduceOp has no 'BXOR' in this version"] = function() return dist.ReduceOp.BXOR end,
      ["dist%.group has no 'world'"] = function() return dist.group.world end,
      ["cuda has no 'make_graphed_callables'; it is named 'make_graphed_step' here"] = function()
        return lm.cuda.make_graphed_callables
      end,
      ["autograd has no 'no_grad'; it is named 'lm.no_grad' here"] = function() return lm.autograd.no_grad end,
      ["nn%.utils has no 'clip_grad_norm'; it is named 'clip_grad_norm_' here"] = function()
        return nn.utils.clip_grad_norm
      end,
      ["backends has no 'mps' in this version"] = function() return lm.backends.mps.is_available() end,
      ["backends%.cudnn: unknown option 'benchmrk'"] = function()
        return lm.backends.cudnn.benchmrk
      end,
    } do refused(problem, try) end
    assert.is_nil(rawget(nn, "RNNBase"))
  end)

  it("layers called", function()
    local layers = {
      nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.LayerNorm(3), nn.ReLU(),
      nn.Softmax(1), nn.Dropout(0.5), nn.Flatten(), nn.Embedding(3, 2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1),
      nn.CrossEntropyLoss(), nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.NLLLoss(), nn.Sequential(nn.ReLU()),
    }
    for _, layer in ipairs(layers) do abuse(layer.__name .. "()", layer) end
  end)

  it("methods of modules", function()
    for _, name in ipairs { "register_buffer", "register_parameter", "add_module", "register_forward_hook",
      "apply", "train", "requires_grad_", "zero_grad", "to", "load_state_dict", "is", "extend" } do
      abuse("Module:" .. name, nn.Module[name], function() return nn.Linear(2, 2) end)
    end
    for _, name in ipairs { "append", "insert" } do
      abuse("ModuleList:" .. name, nn.ModuleList[name], function() return nn.ModuleList { nn.ReLU() } end)
    end
  end)

  it("nn.init, nn.utils and nn.functional", function()
    for name, f in pairs(nn.init) do
      if type(f) == "function" and name:sub(1, 1) ~= "_" then abuse("init." .. name, f) end
    end
    for _, name in ipairs { "checkpoint", "checkpoint_sequential" } do abuse(name, lm.autograd[name]) end
    local function abuse_all(where, library)
      for name, f in pairs(library) do
        local is_library = type(f) == "table" and not rawget(f, "__name")
        if is_library then abuse_all(where .. "." .. name, f) else abuse(where .. "." .. name, f) end
      end
    end
    abuse_all("utils", nn.utils)
    for name in pairs(getmetatable(nn.functional).lazy()) do assert(nn.functional[name]) end
    for name, f in pairs(nn.functional) do abuse("F." .. name, f) end
  end)

  it("optimizers and schedules", function()
    for _, name in ipairs { "SGD", "AdamW", "NAdam", "Rprop" } do
      abuse(name, optim[name])
      local function make() return optim[name]({ nn.Parameter(lm.zeros { 2 }) }, { lr = 0.1 }) end
      abuse(name .. " with parameters", function(...) return optim[name]({ nn.Parameter(lm.zeros { 2 }) }, ...) end)
      for _, method in ipairs { "step", "zero_grad", "add_param_group", "load_state_dict" } do
        if method ~= "step" then abuse(name .. ":" .. method, optim[name][method], make) end
      end
    end
    local schedules = optim.lr_scheduler
    local function opt() return optim.SGD({ nn.Parameter(lm.zeros { 2 }) }, { lr = 0.1 }) end
    local function list() return { schedules.ConstantLR(opt()) } end
    local make = {
      StepLR = function() return schedules.StepLR(opt(), 2) end,
      MultiStepLR = function() return schedules.MultiStepLR(opt(), { 2 }) end,
      LambdaLR = function() return schedules.LambdaLR(opt(), math.sin) end,
      CosineAnnealingWarmRestarts = function() return schedules.CosineAnnealingWarmRestarts(opt(), 2) end,
      CyclicLR = function() return schedules.CyclicLR(opt(), 0.1, 0.2) end,
      OneCycleLR = function() return schedules.OneCycleLR(opt(), 0.1, { total_steps = 5 }) end,
      ReduceLROnPlateau = function() return schedules.ReduceLROnPlateau(opt()) end,
      ChainedScheduler = function() return schedules.ChainedScheduler(list()) end,
      SequentialLR = function()
        local schedule = list()[1]
        return schedules.SequentialLR(schedule.optimizer, { schedule }, {})
      end,
    }
    abuse("SWALR:load_state_dict", optim.SWALR.load_state_dict, function() return optim.SWALR(opt(), 0.1) end)
    for name, f in pairs(optim.swa_utils) do
      abuse(name, f)
      abuse(name .. " of an optimizer", f, opt)
      abuse(name .. " of a module", f, function() return nn.BatchNorm1d(2) end)
    end
    abuse("AveragedModel:update", optim.AveragedModel.update, function()
      return optim.AveragedModel(nn.BatchNorm1d(2))
    end)
    for name, class in pairs(schedules) do
      abuse(name, class)
      abuse(name .. " of an optimizer", class, opt)
      if make[name] then
        abuse(name .. ":load_state_dict", class.load_state_dict, make[name])
        abuse(name .. ":step", class.step, make[name])
      end
    end
  end)

  it("datasets, samplers and loaders", function()
    local function set() return data.TensorDataset(lm.ones { 3 }) end
    for name in pairs(getmetatable(data).lazy()) do assert(data[name]) end
    for name, class in pairs(data) do
      if not name:find("MNIST") then abuse(name, class) end
      abuse(name .. " of a set", class, set)
    end
    abuse("TensorDataset:get", data.TensorDataset.get, set)
    abuse("TensorDataset:get_batch", data.TensorDataset.get_batch, set)
    abuse("loader:epoch", data.DataLoader.epoch, function() return data.DataLoader(set()) end)
    abuse("set_epoch", data.DistributedSampler.set_epoch, function() return data.DistributedSampler(set()) end)
  end)

  it("dist and the wrappers", function()
    for _, initialized in ipairs { false, true } do
      for name, f in pairs(dist) do
        if initialized and not dist.is_initialized() then dist.init_process_group() end
        if type(f) == "function" then abuse("dist." .. name, function(...)
          f(...)
          if not initialized and dist.is_initialized() then dist.destroy_process_group() end
        end) end
      end
      for name, f in pairs(nn.parallel) do
        if initialized and not dist.is_initialized() then dist.init_process_group() end
        if type(f) ~= "table" or getmetatable(f) then abuse(name, f) end
      end
      for name, f in pairs(nn.parallel.comm_hooks) do abuse(name, f) end
      if dist.is_initialized() then dist.destroy_process_group() end
    end
  end)

  it("what works on several devices", function()
    local P, two = nn.parallel, { "cpu:0", "cpu:1" }
    for name, f in pairs(P.comm) do abuse("comm." .. name, f) end
    local x = lm.ones { 4, 2 }
    local function linear() return nn.Linear(2, 2) end
    for _, f in ipairs { "DataParallel", "data_parallel", "replicate" } do abuse(f .. " of a module", P[f], linear) end
    abuse("DataParallel()", P.DataParallel(linear(), { device_ids = two }))
    for _, option in ipairs { "device_ids", "output_device", "dim", "shares", "criterion" } do
      abuse("DataParallel " .. option, function(value)
        P.DataParallel(linear(), { device_ids = option ~= "device_ids" and two or nil, [option] = value })(x, x)
      end)
    end
    abuse("scatter of a tensor", P.scatter, function() return x end)
    abuse("scatter to devices", function(a, dim) P.scatter(a, two, dim) end)
    abuse("scatter_kwargs", function(a, b, dim) P.scatter_kwargs(a, b, two, dim) end)
    abuse("gather of tensors", P.gather, function() return { x, x } end)
    abuse("gather of two", function(a, b, dim) P.gather({ a, b }, "cpu:1", dim) end)
    abuse("parallel_apply of one", function(a, b, c, d) P.parallel_apply({ a }, { b }, c and { c }, d and { d }) end)
    abuse("parallel_apply of layers", P.parallel_apply, function() return { nn.ReLU(), nn.ReLU() } end)
    abuse("comm.scatter", function(a, b) P.comm.scatter(x, two, { dim = a, chunk_sizes = b }) end)
    abuse("comm.scatter in sizes", function(a, b, c) P.comm.scatter(x, two, { chunk_sizes = { a, b, c } }) end)
    abuse("comm.gather", function(a, b, c) P.comm.gather({ x, a }, { dim = b, destination = c }) end)
    abuse("register_comm_hook", function(a, b)
      if not dist.is_initialized() then dist.init_process_group() end
      P.DistributedDataParallel(linear()):register_comm_hook(a, b)
    end)
    if dist.is_initialized() then dist.destroy_process_group() end
    abuse("broadcast_coalesced", function(a, b) P.comm.broadcast_coalesced({ x, x }, two, b or a) end)
    abuse("reduce_add_coalesced", function(a, b, c) P.comm.reduce_add_coalesced({ { x }, { a } }, b, c) end)
  end)

  it("save and load", function()
    abuse("save", function(path, ...)
      return lm.save(type(path) == "string" and folder .. "/none/" .. path or path, ...)
    end)
    for _, value in ipairs(values()) do check("save", lm.save, folder .. "/file", value[1]) end
    abuse("load", lm.load)
    abuse("load a file", lm.load, function()
      lm.save(folder .. "/valid", { lm.ones { 2 } })
      return folder .. "/valid"
    end)
  end)
end)

describe("an error", function()
  -- Each line is a separate chunk with an error.
  local wrong = [=[
  lm.zeros("a")
  lm.ones({2, -1})
  lm.full({2})
  lm.arange("x")
  lm.linspace(1)
  lm.eye(2.5)
  lm.rand({2}, {dtpe = "float32"})
  lm.randn({2}, {dtype = "float33"})
  lm.randint(5, 1, {2})
  lm.randperm(-1)
  lm.tensor({{1}, {1, 2}})
  lm.tensor(print)
  lm.cat({})
  lm.cat(x)
  lm.stack({x, lm.ones(1)})
  lm.matmul(x, lm.ones(7, 7))
  lm.where(3)
  lm.add(x)
  lm.einsum("ijk", x)
  lm.manual_seed("a")
  lm.manual_seed(3, 4)
  lm.get_num_threads(3)
  lm.get_rng_state("cpu", 4)
  lm.set_num_threads(0)
  lm.set_default_dtype("int64")
  lm.set_default_device("gpu")
  lm.is_grad_enabled(3)
  lm.get_default_dtype(1)
  lm.get_default_device(1)
  lm.is_autocast_enabled(1)
  lm.set_grad_enabled("on")
  lm.no_grad(3)
  lm.autocast({device = "cpu", dtype = "int64"}, print)
  lm.scope(1)
  lm.memory_allocated("gpu")
  lm.try_gpu(-1)
  lm.help(3)
  lm.load "/nonexistent/file"
  lm.load(3)
  lm.save(3)
  lm.save("/nonexistent/dir/file", {x})
  lm.Timer(3)
  lm.grad(x, x)
  lm.split(x, 0)
  lm.chunk(x, 0)
  lm.unbind(x, 7)
  lm.equal(x, 1)
  lm.allclose(x, x, {rtol = "a"})
  x:view(7)
  x:reshape("a")
  x:permute(1)
  x:transpose(1)
  x:sum(9)
  x:mean(1, {keepdims = true})
  x:max(9)
  x:softmax()
  x:size(9)
  x:narrow(1, 1, 9)
  x:index_select(1, x)
  x:gather(1, x)
  x:to("flot32")
  x:to("cuda:99")
  x:cuda()
  x:item()
  x:backward()
  x:expand(1)
  x:foo()
  x:repeat_tensor(1)
  x:split("a")
  x:copy_(lm.ones(9))
  x:fill_("a")
  x:requires_grad_(3)
  x:register_hook(3)
  x:register_post_accumulate_grad_hook(3)
  x:new_zeros("a")
  x:type_as(3)
  x:view_as(3)
  x:masked_fill(x)
  x:scatter_add(1, x, x)
  x:data_ptr(1, 2)
  x:dim(1)
  x:numel(1)
  x:is_contiguous(3)
  return x[9]
  return x[{9, 9}]
  x[9] = 1
  x[1] = "a"
  x.grad = 3
  x.foo = 3
  x.requires_grad = "yes"
  return x + "a"
  return x + nil
  return x .. "a"
  return -x / {}
  return x < x
  return #lm.ones({})
  nn.Linear(2)
  nn.Linear("a", 3)
  nn.Linear(2, 3, 4)
  nn.Conv2d(1, 2)
  nn.Conv2d(3, 4, 3, {groups = 2})(lm.ones(1, 3, 8, 8))
  nn.BatchNorm2d(2)(x)
  nn.LayerNorm()
  nn.Embedding(3)
  nn.Embedding(3, 2)(lm.tensor({9}, {dtype = "int64"}))
  nn.Dropout(2)
  nn.Sequential(1)
  nn.ModuleList(nn.ReLU())
  nn.Flatten(0)(x)
  nn.Softmax(9)(x)
  nn.MaxPool2d()
  nn.MaxPool2d(2)(x)
  nn.AvgPool2d("a")
  nn.AdaptiveAvgPool2d()
  nn.Linear(2, 2)(x)
  nn.Linear(2, 2)()
  nn.Linear(2, 2)(3)
  nn.CrossEntropyLoss()(x)
  nn.CrossEntropyLoss()(x, x:sum(1))
  nn.CrossEntropyLoss({reduction = "men"})
  nn.MSELoss()(x)
  nn.MSELoss()(x, lm.ones(7))
  nn.NLLLoss()(x, 3)
  nn.BCEWithLogitsLoss()(x, 3, 4)
  nn.Parameter(3)
  nn.init.normal_(3)
  nn.init.xavier_uniform_(lm.ones(2))
  nn.init.kaiming_uniform_(lm.ones(2, 2), {mode = "fan"})
  nn.utils.clip_grad_norm_(3, 1)
  nn.utils.clip_grad_norm_({x})
  nn.Foo()
  F.relu()
  F.softmax(x)
  F.cross_entropy(x, lm.tensor({9, 9}, {dtype = "int64"}))
  F.linear(x, lm.ones(7, 7))
  F.dropout(x, 3)
  F.foo(x)
  net:to(3)
  net:to("int64")
  net:to("flot32")
  net:train(3)
  net:load_state_dict(3)
  net:load_state_dict({})
  net:load_state_dict(net)
  net:register_buffer(3, x)
  net:register_parameter("p", x)
  net:add_module("m", 3)
  net:apply(3)
  net:register_forward_hook(3)
  net:parameters(1)
  net:zero_grad(3)
  net.weight = 3
  return net[1]
  return #net
  nn.Module:extend()
  nn.Module:extend(3)
  nn.Module()(x)
  seq[9] = nn.ReLU()
  return seq[9]
  seq:append(3)
  optim.SGD()
  optim.SGD(net, {lr = 1})
  optim.SGD({x}, {lr = "a"})
  optim.SGD(net:parameters(), "0.1")
  optim.SGD(net:parameters(), {lr = 0.1, momentm = 0.9})
  optim.SGD({}, {lr = 1})
  optim.Adam(net:parameters(), {betas = 3})
  optim.AdamW(net)
  optim.ZeroRedundancyOptimizer(net:parameters())
  opt:step(3)
  opt:zero_grad(3)
  opt:add_param_group(3)
  opt:load_state_dict(3)
  opt:load_state_dict({})
  opt.lr = 3
  return opt[1]
  optim.Foo()
  optim.lr_scheduler.StepLR()
  optim.lr_scheduler.StepLR(opt)
  optim.lr_scheduler.StepLR(opt, "a")
  optim.lr_scheduler.CosineAnnealingLR(opt)
  optim.lr_scheduler.StepLR(opt, 2):step(3)
  optim.lr_scheduler.StepLR(opt, 2):load_state_dict(3)
  data.TensorDataset()
  data.TensorDataset(3)
  data.TensorDataset(lm.ones(2), lm.ones(3))
  set:get(9)
  set:get("a")
  set:get_batch(3)
  return set[1]
  data.Subset(set)
  data.Subset(set, {9})
  data.random_split(set, {9})
  data.random_split(set)
  data.DataLoader()
  data.DataLoader(x)
  data.DataLoader(set, {batch_size = 0})
  data.DataLoader(set, 0)
  data.DataLoader(set, {shufle = true})
  data.DataLoader(set, {num_workers = -4})
  for b in data.DataLoader(set) do end
  data.DataLoader(set):epoch("a")
  data.DataLoader(set):iter(1)
  data.RandomSampler()
  data.SequentialSampler(3)
  data.DistributedSampler(set, {rank = 9, num_replicas = 2})
  data.MNIST({root = "/nonexistent"})
  data.FashionMNIST({trian = true})
  for v in data.DataLoader(bad):iter() do end
  dist.init_process_group("foo")
  dist.init_process_group({rank = 3, world_size = 2})
  dist.init_process_group({init_method = "foo://"})
  dist.init_process_group("gloo", 3)
  dist.all_reduce(x)
  dist.all_reduce(3)
  dist.barrier()
  dist.get_rank(3)
  dist.get_world_size(3)
  dist.broadcast(x)
  dist.new_group(3)
  dist.destroy_process_group()
  dist.send(x)
  dist.get_backend(7)
  nn.parallel.DistributedDataParallel(net)
  nn.parallel.DistributedDataParallel(3)
  nn.DataParallel(3)
  nn.DataParallel(net, {device_ids = {99}})
  nn.SyncBatchNorm(2)(x)
  lm.mp.spawn(3)
  lm.mp.spawn(function() end, {nprocs = 0})
  lm.mp.spawn(function() end, {args = 3})
  lm.mp.spawn(function() end, {method = "fork"})
  lm.mp.spawn(function() error("inner", 0) end, {method = "thread"})
  lm.mp.Process(3)
  lm.mp.Process({target = 3})
  lm.mp.set_executable(3)
  lm.cuda.current_device()
  lm.cuda.set_device(3)
  lm.cuda.synchronize()
  lm.cuda.get_device_name("cpu")
  lm.cuda.Stream()
  lm.cuda.Event(3)
  lm.cuda.stream(3, print)
  lm.cuda.mem_get_info()
  lm.cuda.Graph(3)
  lm.cuda.make_graphed_step(3)
  lm.cuda.foo()
  lm.cuda.FloatTensor(3)
  lm.FloatTensor("a")
  lm.autograd.backward(3)
  lm.autograd.grad(x, x)
  lm.autograd.gradcheck(3)
  lm.autograd.Function:extend()
  lm.autograd.Function:extend("F")(x)
  lm.backends.cudnn.foo = 3
  lm.backends.cudnn.benchmark = 3
  lm.backends.foo()
  lm.watch.foo()
  lm.setenv(3)
  lm.getenv()
  lm.set_warnings(3)
  lm.foo()
  lm.op_list(3)
  lm.synchronize("gpu")
  lm.set_rng_state(3)
  lm.live_tensors(3)
  lm.try_all_gpus(3)
  lm.empty_cache("gpu")
  lm.nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2))(lm.ones(1, 2))
  Own()(x)
  Own():forward()
  ]=]
  local before = [[
local lm, x, net, opt, set, seq, bad, Own = ...
local nn, F, optim, data, dist = lm.nn, lm.nn.functional, lm.optim, lm.data, lm.dist
]]

  it("begins with the line of the script that called, and is of the library's words", function()
    local Own, Bad = nn.Module:extend("Own"), data.Dataset:extend("Bad")
    function Own:init() self.fc = nn.Linear(4, 4) end
    function Bad:len() return self.n or 3 end
    for line in wrong:gmatch "%s*([^\n]+)\n" do
      local net = nn.Linear(2, 2)
      local ok, problem = pcall(assert(loadstring(before .. line, "=user.lua")), lm, lm.ones(2, 3), net,
        optim.SGD(net:parameters(), { lr = 0.1 }), data.TensorDataset(lm.ones(3)), nn.Sequential(nn.ReLU()), Bad(), Own)
      if dist.is_initialized() then dist.destroy_process_group() end
      assert(not ok, line .. " was no error")
      assert.matches("^user.lua:3: ", problem, 1, false, line)
      assert(not problem:find "attempt to" and not problem:find "bad argument", line .. ": " .. problem)
    end
  end)

  it("about an argument too many comes from the C functions, too", function()
    local x = lm.ones { 2 }
    for _, case in ipairs {
      { lm.manual_seed, 3, 4 }, { lm.get_num_threads, 1 }, { lm.get_rng_state, "cpu", 1 }, { lm.is_grad_enabled, 1 },
      { lm.get_default_dtype, "float32" }, { lm.get_default_device, "cpu" }, { lm.setenv, "A", "b", "c" },
    } do
      assert.error_matches(function() case[1](unpack(case, 2)) end, "takes %w[%w%s]* arguments?, got %d")
    end
    for _, name in ipairs { "dim", "numel", "element_size", "get_device", "data_ptr", "detach_", "storage_offset",
      "storage_size" } do
      assert.error_matches(function() x[name](x, 1) end, name .. ": takes no arguments, got 1")
      assert.error_matches(function() x[name](x, nil, 1, nil) end, name .. ": takes no arguments, got 2")
    end
  end)

  it("takes nils at the end for no arguments", function()
    local F, x, net = nn.functional, lm.ones { 2, 2 }, nn.Linear(2, 2)
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    for i, f in ipairs {
      function() return lm.cuda.device_count(nil) end, function() return lm.is_grad_enabled(nil, nil) end,
      function() return lm.manual_seed(3, nil, nil) end, function() return lm.seed(nil) end,
      function() return lm.get_num_threads(nil) end,
      function() return lm.tensor({ 1 }, nil, nil, nil) end,
      function() return lm.tensor({ 1 }, { dtype = "int8" }, nil) end,
      function() return x:numel(nil), x:dim(nil), x:float(nil), x:storage_offset(nil, nil) end,
      function() return x:exp(nil, nil) end,
      function() return x:sum(1, { keepdim = true }, nil) end,
      function() return x:repeat_interleave(2, 1, nil, nil, nil, nil) end,
      function() return F.pixel_shuffle(lm.ones(1, 4, 2, 2), { upscale_factor = 2 }, nil) end,
      function() return F.pixel_shuffle(lm.ones(1, 4, 2, 2), 2, nil, nil) end,
      function() return nn.Linear(2, 2, nil, nil, nil, nil, nil, nil) end, function() return nn.ReLU(nil, nil, nil) end,
      function() return net(x, nil, nil) end, function() return net:train(true, nil, nil) end,
      function() return net:eval(nil) end,
      function() return opt:zero_grad(nil, nil, nil) end, function() return opt:step(nil, nil, nil) end,
      function() return optim.lr_scheduler.StepLR(opt, 7, nil, nil, nil, nil) end,
      function() return optim.lr_scheduler.StepLR(opt, { step_size = 7 }, nil) end,
      function() return data.TensorDataset(x):len(nil) end, function() return lm.Generator(nil, nil, nil) end,
      function() return lm.models.lenet(nil, nil, nil) end, function() return lm.repr(x, nil, nil, nil) end,
    } do
      local ok, problem = pcall(f)
      assert(ok, ("call %d: %s"):format(i, tostring(problem)))
    end
    local _, problem = pcall(lm.cuda.current_device, nil) -- fails where there is no device
    assert.not_matches("takes", tostring(problem))
    -- Options before them are found.
    assert.equal(7, optim.lr_scheduler.StepLR(opt, { step_size = 7 }, nil).step_size)
    assert.same({ 1, 4, 4 }, F.pixel_shuffle(lm.ones(4, 2, 2), { upscale_factor = 2 }, nil).shape)
    assert.equal("int8", lm.tensor({ 1 }, { dtype = "int8" }, nil).dtype)
  end)
end)

describe("a zero byte", function()
  -- C would end the string there, and take another one for it.
  local x = lm.ones { 2, 2 }
  local core = require "luminary.core"
  local safetensors = require "luminary.file_formats.safetensors"
  for what, f in pairs {
    ["a path to save to"] = function() lm.save("/nonexistent/a\0b", { x }) end,
    ["a path to load"] = function() lm.load("/dev/null\0b") end,
    ["an IDX file's path"] = function() require("luminary.file_formats.idx").load("/dev/null\0b") end,
    ["a root"] = function() data.MNIST { root = "/\0" } end,
    ["a tensor's name"] = function() safetensors.write("/nonexistent/x", { ["a\0b"] = x }, {}, { "a\0b" }) end,
    ["metadata"] = function() safetensors.write("/nonexistent/x", { a = x }, { a = "b\0c" }, { "a" }) end,
    ["a key of metadata"] = function()
      safetensors.write("/nonexistent/x", { a = x }, { ["a\0"] = "b" }, { "a" })
    end,
    ["a target"] = function() x:to("float64\0") end, ["a dtype"] = function() lm.zeros(2, { dtype = "float64\0" }) end,
    ["a device"] = function() lm.zeros(2, { device = "cpu\0" }) end,
    ["an option's name"] = function() x:sum(1, { ["keepdim\0"] = true }) end,
    ["an option's name of tensor"] = function() lm.tensor(1, { ["dtype\0"] = "float64" }) end,
    ["a word"] = function() nn.functional.mse_loss(x, x, { reduction = "sum\0" }) end,
    ["a memory format"] = function() x:is_contiguous { memory_format = "channels_last\0" } end,
    ["an index"] = function() return x[{ "...\0", 1 }] end, ["a field"] = function() x["grad\0"] = nil end,
    ["a variable's name"] = function() lm.setenv("LM_SPEC\0X", "1") end,
    ["a variable's value"] = function() lm.setenv("LM_SPEC", "1\0") end,
    ["a variable asked for"] = function() lm.getenv("PATH\0") end,
    ["a kind of device"] = function() core.device_count("cpu\0") end,
    ["an autocast device"] = function() lm.autocast({ device = "cpu\0" }, print) end,
    ["a setting"] = function() core.setting("cudnn.enabled\0") end,
    ["a backend"] = function() dist.init_process_group("gloo\0") end,
    ["an init_method"] = function()
      dist.init_process_group { init_method = "file:///nonexistent\0/x", rank = 0, world_size = 2, timeout = 1 }
    end,
    ["a program"] = function() core.mp_process("/bin/true\0", {}, {}) end,
    ["an argument"] = function() core.mp_process("/bin/true", { "a\0b" }, {}) end,
    ["JSON"] = function() core.json_decode '{"a": "b\0"}' end,
  } do
    it("in " .. what .. " is named", function()
      local ok, problem = pcall(f)
      assert.is_false(ok)
      assert.matches("NUL byte", problem, 1, true)
      assert.is_nil(problem:find "%z")
    end)
  end

  it("in a value is kept", function()
    local folder = temp.folder()
    lm.save(folder .. "/x", { s = "a\0b" })
    assert.equal("a\0b", lm.load(folder .. "/x").s)
    temp.remove(folder)
  end)
end)

describe("a table that has its entries by metatable alone", function()
  it("is an error where only a table's own are read, and a list with methods is a list", function()
    local x, w = lm.ones { 2, 3 }, nn.Linear(3, 2)
    local function behind(t) return setmetatable({}, { __index = t, __len = function() return #t end }) end
    local Methods = { __index = { map = print } }
    for what, case in pairs {
      zeros = { lm.zeros, { 2, 3 } }, reshape = { function(v) return x:reshape(v) end, { 3, 2 } },
      sum = { lm.sum, { 1, 2 }, x }, permute = { lm.permute, { 2, 1 }, x }, cat = { lm.cat, { x, x } },
      tensor = { lm.tensor, { 1, 2 } }, ["a row"] = { function(v) return lm.tensor { v, { 3, 4 } } end, { 1, 2 } },
      FloatTensor = { lm.FloatTensor, { 1, 2 } }, ["x[{}]"] = { function(v) return x[v] end, { 1, 2 } },
      ["x[{}] ="] = { function(v) x:clone()[v] = 5 end, { 1, 2 } },
      options = { function(v) return x:sum(1, v) end, { keepdim = true } },
      ["tensor's options"] = { function(v) return lm.tensor({ 1 }, v) end, { dtype = "int64" } },
      backward = { lm.autograd.backward, { w(x):sum() } },
      ["a gradient"] = { function(v) w(x):sum():backward(v) end, { lm.ones {} } },
      grad = { function(v) return lm.grad(w(x):sum(), v) end, w:parameters() },
    } do
      local f, entries, first = unpack(case)
      local function try(v) if first then return f(first, v) else return f(v) end end
      local text = select(2, pcall(try, behind(entries)))
      assert.matches("arguments_spec.lua:%d+: [^\n]*must be a plain table, got an empty one with a metatable",
        tostring(text), what)
      local ok, problem = pcall(try, setmetatable(entries, Methods))
      assert(ok, what .. ": " .. tostring(problem))
    end
    assert.matches("expected a list of parameters,", select(2, pcall(optim.SGD, behind(w:parameters()), { lr = 1 })))
    assert.same({}, lm.zeros(setmetatable({}, { __call = print })).shape)
  end)
end)

describe("a boolean where a tensor is expected", function()
  it("is answered with the method that compares elements", function()
    local x, y = lm.ones { 2 }, lm.ones { 2 }
    for name, f in pairs {
      where = function() return lm.where(x == y) end,
      masked_fill = function() return x:masked_fill(x == y, 0) end,
      stack = function() return lm.stack(x == y) end,
      ["x%[…%]"] = function() return x[x == y] end,
    } do
      local ok, problem = pcall(f)
      assert.is_false(ok)
      assert.matches(name .. ".*got false; == of tensors .* x:eq%(y%) compares their elements", tostring(problem))
    end
    local _, problem = pcall(lm.sum, x, { keepdim = x }) -- a tensor in place of a boolean gets no such hint
    assert.is_nil(tostring(problem):find("x:eq(y)", 1, true))
  end)
end)

describe("a list that begins at 0", function()
  it("is an error of whatever reads it", function()
    local a, b = lm.ones { 2 }, lm.zeros { 2 }
    local l = function() return nn.Linear(2, 2) end
    for name, f in pairs {
      tensor = function() return lm.tensor { [0] = 1, 2, 3 } end,
      ["tensor: x%[2%]"] = function() return lm.tensor { { 1, 2 }, { [0] = 1, 2, 3 } } end,
      stack = function() return lm.stack { [0] = a, b } end,
      cat = function() return lm.cat { [0] = a, b } end,
      zeros = function() return lm.zeros { [0] = 2, 3 } end,
      permute = function() return lm.ones({ 2, 3 }):permute { [0] = 1, 2, 1 } end,
      ["x%[…%]"] = function() return lm.ones({ 2, 3 })[{ [0] = 1, 2, 1 }] end,
      einsum = function() return lm.einsum("i,i", { [0] = a, a, b }) end,
      meshgrid = function() return lm.meshgrid { [0] = a, a, b } end,
      multi_dot = function() return lm.linalg.multi_dot { [0] = a, lm.eye(2), b } end,
      Sequential = function() return nn.Sequential { [0] = l(), l(), l() } end,
      ["Sequential:"] = function() return nn.Sequential { [0] = { "a", l() }, { "b", l() } } end,
      ModuleList = function() return nn.ModuleList { [0] = l(), l() } end,
      append_all = function() return nn.Sequential():append_all { [0] = l(), l() } end,
      ParameterList = function() return nn.ParameterList { [0] = a, b } end,
      SGD = function() return optim.SGD({ [0] = a, b }, { lr = 0.1 }) end,
      Conv2d = function() return nn.Conv2d(1, 1, { [0] = 3, 3 }) end,
      ModuleDict = function() return nn.ModuleDict { [0] = { "a", l() }, { "b", l() } } end,
      pad_sequence = function() return nn.utils.rnn.pad_sequence { [0] = a, b } end,
      parameters_to_vector = function() return nn.utils.parameters_to_vector { [0] = a, b } end,
      clip_grad_value_ = function() return nn.utils.clip_grad_value_({ [0] = a, b }, 1) end,
      MultiStepLR = function()
        return optim.lr_scheduler.MultiStepLR(optim.SGD({ a }, { lr = 0.1 }), { [0] = 1, 2 })
      end,
      ChainedScheduler = function()
        local opt = optim.SGD({ a }, { lr = 0.1 })
        local function step_lr() return optim.lr_scheduler.StepLR(opt, 1) end
        return optim.lr_scheduler.ChainedScheduler { [0] = step_lr(), step_lr() }
      end,
      Normalize = function() return lm.vision.transforms.Normalize({ [0] = 0.5, 0.5, 0.5 }, { 1, 1 }) end,
      DataParallel = function() return nn.DataParallel(l(), { device_ids = { [0] = "cpu:0", "cpu:1" } }) end,
      ["Pool:map"] = function()
        local pool = lm.mp.Pool { processes = 1, method = "thread" }
        local ok, problem = pcall(pool.map, pool, function(x) return x end, { [0] = 1, 2 })
        pool:terminate()
        if not ok then error(problem, 0) end
      end,
      random_split = function() return data.random_split(data.TensorDataset(lm.ones(5)), { [0] = 2, 3, 2 }) end,
      WeightedRandomSampler = function() return data.WeightedRandomSampler({ [0] = 1, 2 }, 1) end,
      Compose = function() return lm.vision.transforms.Compose { [0] = print, print } end,
      ConcatDataset = function()
        return data.ConcatDataset { [0] = data.TensorDataset(a), data.TensorDataset(b) }
      end,
      ComposeTransform = function()
        local D = lm.distributions
        return D.ComposeTransform { [0] = D.ExpTransform(), D.ExpTransform() }
      end,
    } do
      local ok, problem = pcall(f)
      assert(not ok, name .. " dropped an entry")
      assert.matches(name
        .. ".* must be a list that starts at 1, got one with an entry at 0; write {a, b, c}", tostring(problem))
      assert.matches("^[^\n]*arguments_spec.lua:%d+: ", tostring(problem))
    end
  end)

  it("have no gaps", function()
    local x = lm.ones {2, 3}
    for key, f in pairs {
      [7] = function() return lm.zeros {2, 3, [7] = 9} end, [2] = function() return x:sum {[2] = 1} end,
      [1.5] = function() return x:permute {2, 1, [1.5] = 4} end, [-1] = function() return x:sum {[-1] = 1} end,
      [3] = function() return lm.cat {x, [3] = x} end,
    } do
      local ok, problem = pcall(f)
      assert.is_false(ok)
      assert.matches(("must be a list without gaps, got a list of %%d with an entry at %s"):format(
        (tostring(key):gsub("[-.]", "%%%0"))), problem)
    end
  end)
end)
