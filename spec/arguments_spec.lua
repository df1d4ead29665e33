-- Wrong arguments to what is written in Lua: errors in words, at the caller's line, never a stumble inside
-- the library.
local lm = require "luminary"
local nn, optim, data, dist = lm.nn, lm.optim, lm.data, lm.dist
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local temp = require "temp"

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

-- f called with every value, and with pairs and triples of them.
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

describe("wrong arguments to", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  it("constructors of layers and losses", function()
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
      ZeroRedundancyOptimizer = { optim.ZeroRedundancyOptimizer, list },
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
      ["Linear: out_features has to be an integer of at least 1, got a table"] = function()
        nn.Linear(2, { out_featres = 3 })
      end,
      ["Linear: no option 'in_features'"] = function() nn.Linear(2, { in_features = 2, out_features = 3 }) end,
      ["Conv2d: out_channels has to be an integer of at least 1, got nil"] = function()
        nn.Conv2d(1, { kernel_size = 3 })
      end,
      ["constant_: no argument 'size'; there are value"] = function()
        nn.init.constant_(lm.zeros { 1 }, { value = 5, size = 3 })
      end,
    } do
      local _, message = pcall(try)
      assert.matches("arguments_spec.lua:%d+: " .. problem, message)
    end
  end)

  it("a dot for a colon, and a colon for a dot", function()
    local net = nn.Linear(2, 2)
    local opt = optim.SGD(net:parameters(), { lr = 1 })
    local loader = data.DataLoader(data.TensorDataset(lm.ones { 2 }))
    for problem, try in pairs {
      ["Optimizer.step: it is called with a colon: x:step"] = function() opt.step() end,
      ["Optimizer.zero_grad: it is called with a colon"] = function() opt.zero_grad() end,
      ["DataLoader.iter: it is called with a colon"] = function() loader.iter() end,
      ["Module.parameters: it is called with a colon"] = function() net.parameters() end,
      ["Module.train: it is called with a colon"] = function() net.train(true) end,
      ["tensors have no .* 'weight'; net.forward%(x%) would be net:forward%(x%)"] = function()
        net.forward(lm.ones { 2 })
      end,
      ["DataLoader:iter: takes 0 arguments, got 1"] = function() loader:iter(2) end,
      ["randn: size: a list expected, got the library luminary itself"] = function() lm:randn(2) end,
      ["relu: x: a tensor expected, got the library nn.functional itself"] = function()
        nn.functional:relu(lm.ones { 1 })
      end,
      ["Linear: in_features has to be .*, got the library nn itself .its functions are called with a dot"] = function()
        nn:Linear(2, 2)
      end,
      ["Net: a constructor is called init here: function Net:init"] = function()
        local Net = nn.Module:extend("Net")
        function Net:__init() self.fc = nn.Linear(1, 1) end
        Net()
      end,
      ["a tensor is no text: x:item%(%) is the number of one element"] = function() return "loss " .. lm.ones { 1 } end,
    } do
      local ok, message = pcall(try)
      assert(not ok, problem)
      assert.matches("arguments_spec.lua:%d+: " .. problem, message)
    end
  end)

  it("names of PyTorch's and Torch7's are told apart from those that are nowhere", function()
    local other = require "luminary.other_names"
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
      ["tensors have no field or method 'cmul'; here it is 'mul'"] = function() x:cmul(x) end,
      ["tensors have no field or method 'maskedFill'; here it is 'masked_fill_'"] = function() x:maskedFill(x, 1) end,
      ["tensors have no field or method 'isPinned'; here it is 'is_pinned'"] = function() x:isPinned() end,
      ["tensors have no field or method 'cumsum' in this version"] = function() x:cumsum(1) end,
      ["tensors have no field or method 'values'; such ops give two results: local values, indices"] = function()
        return x:max(2).values
      end,
      ["nn has no 'SpatialConvolution'; here it is 'Conv2d'"] = function() nn.SpatialConvolution(1, 1, 3) end,
      ["nn has no 'LSTM' in this version"] = function() nn.LSTM(1, 1) end,
      ["optim has no 'sgd'; here it is 'SGD'"] = function() return optim.sgd end,
      ["luminary has no 'float32'; dtypes are strings"] = function() return lm.float32 end,
    } do
      local ok, message = pcall(try)
      assert(not ok, problem)
      assert.matches("arguments_spec.lua:%d+: " .. problem, message)
    end
    assert.is_nil(rawget(nn, "LSTM"))
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
    for name, f in pairs(nn.utils) do abuse("utils." .. name, f) end
    for name, f in pairs(nn.functional) do abuse("F." .. name, f) end
  end)

  it("optimizers and schedules", function()
    for _, name in ipairs { "SGD", "Adam", "AdamW" } do
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

describe("a zero byte", function()
  -- C would end the string there, and take another one for it.
  local x = lm.ones { 2, 2 }
  local core = require "luminary.core"
  for what, f in pairs {
    ["a path to save to"] = function() lm.save("/nonexistent/a\0b", { x }) end,
    ["a path to load"] = function() lm.load("/dev/null\0b") end,
    ["an IDX file's path"] = function() core.read_idx("/dev/null\0b") end,
    ["a root"] = function() data.MNIST { root = "/\0" } end,
    ["a tensor's name"] = function() core.safetensors_save("/nonexistent/x", { ["a\0b"] = x }, nil, { "a\0b" }) end,
    ["metadata"] = function() core.safetensors_save("/nonexistent/x", { a = x }, { a = "b\0c" }, { "a" }) end,
    ["a key of metadata"] = function()
      core.safetensors_save("/nonexistent/x", { a = x }, { ["a\0"] = "b" }, { "a" })
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
    ["JSON"] = function() core.json_decode('{"a": "\\u0000"}') end,
  } do
    it("in " .. what .. " is named", function()
      local ok, problem = pcall(f)
      assert.is_false(ok)
      assert.matches("zero byte", problem, 1, true)
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
      assert.matches("arguments_spec.lua:%d+: [^\n]*metatable stands in for its entries", tostring(text), what)
      local ok, problem = pcall(try, setmetatable(entries, Methods))
      assert(ok, what .. ": " .. tostring(problem))
    end
    assert.matches("a list of parameters wanted", select(2, pcall(optim.SGD, behind(w:parameters()), { lr = 1 })))
    assert.same({}, lm.zeros(setmetatable({}, { __call = print })).shape)
  end)
end)
