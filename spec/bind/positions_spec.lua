-- The order in which functions and constructors take their arguments by position is PyTorch's, which
-- spec/golden/positions.lua has. What they declare is what arguments are read by, and what help shows.
local lm = require "luminary"
local aliases = require "luminary.tensor.aliases"
local class = require "luminary.base.class"
local help = require "luminary.help"
local op_text = require "luminary.help.op_text"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local golden = {}
for _, row in ipairs(dofile "spec/golden/positions.lua") do
  for path in row[2]:gmatch "%S+" do golden[path] = row[1] end
end
local core = lm.core
local nn, F, optim, data = lm.nn, lm.nn.functional, lm.optim, lm.data

local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return (tostring(problem):gsub("^[^:\n]+:%d+: ", ""))
end

-- PyTorch's names for options that have another name here: ours.
local renamed = {
  ["data.DataLoader"] = {multiprocessing_context = "worker_type"}, ["lm.mp.spawn"] = {start_method = "method"},
  ["lm.mp.Queue"] = {maxsize = "capacity"},
  ["lm.arange"] = {["end"] = "stop"}, ["lm.concatenate"] = {axis = "dim"},
}

-- Names whose arguments do not stand in PyTorch's order, and why.
local exceptions = {
  ["F.softmax"] = "_stacklevel, by which PyTorch's warnings find their line, does not exist here",
  ["F.log_softmax"] = "_stacklevel", ["F.softmin"] = "_stacklevel",
  ["lm.cuda.graph"] = "a function that captures f, where PyTorch has a context manager",
  ["lm.poisson"] = "the generator is by name in all ops that draw",
  ["lm.load"] = "reads other files by other options",
  ["lm.save"] = "writes GGUF files by options",
  ["Module:to"] = "takes devices, dtypes and tensors in any order",
  ["optim.Optimizer"] = "a class of one's own has its options by name, in its spec",
}

-- Names that no spec can look into: written in C, or read from `…` by themselves. Tests of their options' order are
-- in the specs of each.
local unseen = {}
for name in ([[
  lm.autocast lm.autograd.backward lm.autograd.detect_anomaly lm.autograd.grad lm.autograd.set_detect_anomaly
  lm.enable_grad lm.inference_mode lm.is_tensor lm.max lm.median lm.min lm.nanmedian lm.numel lm.tensor
  lm.autograd.checkpoint lm.column_stack lm.cuda.device lm.cuda.stream lm.dsplit lm.dstack lm.einsum lm.frombuffer
  lm.func.functional_call lm.func.vjp lm.hsplit lm.hstack lm.is_floating_point lm.manual_seed nn.ModuleList
  nn.utils.skip_init lm.norm lm.randint lm.row_stack lm.set_default_device lm.set_default_dtype lm.set_grad_enabled
  lm.set_num_threads lm.set_rng_state lm.tile lm.tril_indices lm.triu_indices vision.read_file vision.write_file
  lm.vsplit lm.vstack F.logsigmoid
]]):gmatch "%S+" do unseen[name] = true end

-- Returns the names that an op's help shows: those by position, how many of them must be given, and the others.
local function of_op(name)
  local call = op_text(name):match "^[^\n]-(%b())"
  local positional, rest = call:sub(2, -2):match "^([^{]*){?(.*)$"
  local names, least, by_name = {}, 0, {}
  for part in (positional .. ","):gmatch "%s*([%w_][^,]*)," do
    names[#names + 1] = part:match "^[%w_]+"
    if not part:find "=" then least = #names end
  end
  for word in rest:gmatch "([%w_]+) =" do by_name[word] = true end
  return names, least, by_name
end

-- Returns the same as of_op for any public value; nil and a reason where it is not known.
local function declared(entry)
  local takes = signature.declared(entry.value)
  local names, by_name = {}, {}
  if takes then
    for i, row in ipairs(takes.rows) do
      if row.named then by_name[row[1]] = true else names[i] = row[1] end
    end
    return names, takes.n_required, by_name
  end
  local code = options.stands_for_code(entry.value)
  local f = code and code.instance and entry.value.init or entry.value
  if type(f) ~= "function" then return nil, "no function" end
  local info = debug.getinfo(f, "Su")
  if info.what == "C" then
    local op = aliases.of[entry.name] or entry.name
    if op_text(op) then return of_op(op) end
    return nil, "written in C"
  end
  local parameters = options.parameters(f)
  if parameters.more then return nil, "reads its arguments itself" end
  for i, name in ipairs(parameters) do
    if name == "opts" and i == #parameters then return nil, "its options have names alone" end
    if name ~= "self" then names[#names + 1] = name end
  end
  return names, #names, by_name
end

-- Returns where our order differs from this one of PyTorch's, or nil. The first arguments that must be given are known
-- by their position alone.
local function differs(path, expected, names, least, by_name)
  local i, ours = 0, {}
  for at, name in ipairs(names) do ours[name] = at end
  for theirs in expected:gmatch "%S+" do
    i = i + 1
    local name = renamed[path] and renamed[path][theirs] or theirs
    if names[i] == nil then
      if ours[name] or by_name[name] then return ("%s is no. %d there"):format(theirs, i) end
    elseif i > least and names[i] ~= name then
      return ("no. %d is %s there, %s here"):format(i, theirs, names[i])
    end
  end
end

describe("positions are PyTorch's", function()
  it("in every public function and class", function()
    local wrong, count, unknown, needless = {}, 0, {}, {}
    for _, entry in ipairs(help.entries()) do
      local signatures = golden[entry.path]
      if signatures and not entry.inner then
        local names, least, by_name = declared(entry)
        local problem
        if not names then
          if not unseen[entry.path] and not exceptions[entry.path] then
            unknown[#unknown + 1] = entry.path .. ": " .. least
          end
        else
          count = count + 1
          for expected in signatures:gmatch "[^|]+" do
            problem = differs(entry.path, expected, names, least, by_name)
            if not problem then break end
          end
        end
        if problem and not exceptions[entry.path] then wrong[#wrong + 1] = entry.path .. ": " .. problem end
        if names and not problem and exceptions[entry.path] then needless[#needless + 1] = entry.path end
      end
    end
    table.sort(wrong)
    assert.equal("", table.concat(unknown, "\n"))
    assert.equal("", table.concat(wrong, "\n"))
    assert.equal("", table.concat(needless, " "))
    assert(count > 800, count)
  end)

  it("in help, which shows what is declared", function()
    for path, want in pairs {
      ["data.DataLoader"] = "data.DataLoader(set [, {batch_size = 1, shuffle = false, sampler, batch_sampler, ",
      ["optim.AdamW"] = "optim.AdamW(params [, {lr = 0.001, betas = {0.9, 0.999}, eps = 1e-8, weight_decay = 0.01",
      ["optim.LBFGS"] = "history_size = 100, line_search_fn, maximize = false}])",
      ["F.huber_loss"] = 'F.huber_loss(x, target [, {reduction = "mean", delta = 1}])',
      ["nn.MaxPool2d"] = "dilation = 1, return_indices = false, ceil_mode = false}])",
      ["data.ImageFolder"] = "data.ImageFolder(root [, {transform, target_transform, loader, is_valid_file, ",
    } do
      assert.matches(want, help.text(path), 1, true)
    end
  end)
end)

describe("a call as PyTorch's users write it:", function()
  local set = data.TensorDataset(lm.arange(6))
  local params = function() return nn.Linear(2, 2):parameters() end

  it("loaders and samplers", function()
    local loader = data.DataLoader(set, 4, true)
    assert.same({ 4, 2 }, { loader.batch_size, #loader })
    assert.is_true(class.is(loader.sampler, data.RandomSampler))
    loader = data.DataLoader(set, 4, false, nil, nil, 1, function(samples) return #samples end, false, true)
    assert.same({ 1, true }, { loader.num_workers, loader.drop_last })
    assert.equal(4, loader:iter()())
    local sampler = data.WeightedRandomSampler({ 1, 0, 1 }, 2, false)
    assert.is_false(sampler.replacement)
    assert.equal(3, #data.RandomSampler(set, true, 3))
    assert.equal(1, #data.BatchSampler(sampler, 2, true))
    assert.same({ 3, 3 }, { #data.random_split(set, { 3, 3 }, lm.Generator())[1], #data.DistributedSampler(set, 2, 1) })
  end)

  it("datasets and transforms", function()
    local T = lm.vision.transforms
    local function transform(x) return x * 2 end
    local fake = data.FakeData(3, { 1, 2, 2 }, 5, transform, tostring)
    assert.same({ 3, 5, "string" }, { #fake, fake.num_classes, type(select(2, fake:get(1))) })
    assert.equal(transform, fake.transform)
    assert.equal(0.25, T.RandomApply({ T.Identity() }, 0.25).p)
    assert.same({ 0.25, 0.75 }, T.RandomChoice({ T.Identity(), T.Identity() }, { 0.25, 0.75 }).p)
    local rotation = T.RandomRotation(30, "bilinear", true, nil, 7)
    assert.same({ "bilinear", true, { 7 } }, { rotation.interpolation, rotation.expand, rotation.fill })
    local resize = T.Resize(8, "bicubic", 16, false)
    assert.same({ "bicubic", 16, false }, { resize.interpolation, resize.max_size, resize.antialias })
    assert.same({ 3, 9, 8 }, T.functional.resize(lm.ones(3, 18, 16), { 9, 8 }, "nearest").shape)
    local problem = message(data.FashionMNIST, "/nowhere", true, nil, nil, true)
    assert.matches("FashionMNIST: unknown option 'download'", problem, 1, true)
    problem = message(data.FashionMNIST, "/nowhere", { train = true, download = true })
    assert.matches("FashionMNIST: unknown option 'download'", problem, 1, true)
    assert.matches(" in '/nowhere', '", message(data.CIFAR10, "/nowhere", true, transform), 1, true)
    assert.matches("root must be a folder with one folder", message(data.ImageFolder, "/nowhere", transform), 1, true)
    assert.matches("transform must be a function, or an object", message(data.ImageFolder, "/nowhere", "x"), 1, true)
  end)

  it("optimizers", function()
    local group = optim.SGD(params(), 0.1, 0.9, 0, 0.5, true).param_groups[1]
    assert.same({ 0.1, 0.9, 0.5, true }, { group.lr, group.momentum, group.weight_decay, group.nesterov })
    for name, option in pairs { AdamW = "betas", LAMB = "betas", Rprop = "etas" } do
      assert.equal(("%s: %s must be a list of two numbers, got 0.1"):format(name, option),
        message(optim[name], params(), 1e-3, 0.1))
    end
    group = optim.RMSprop(params(), 0.1, 0.9, 1e-8, 0, 0, true, false, false, true).param_groups[1]
    assert.same({ true, true }, { group.centered, group.maximize }) -- after capturable and foreach
    assert.matches("unknown option 'capturable'", message(optim.RMSprop, params(), 0.1, 0.9, 1e-8, 0, 0, true, true), 1,
      true)
    group = optim.LBFGS(params(), 1, 5, nil, 1e-7, 1e-9, 10, "strong_wolfe").param_groups[1]
    assert.same({ 5, 6, "strong_wolfe" }, { group.max_iter, group.max_eval, group.line_search_fn })
    assert.is_false(optim.LBFGS(params(), { line_search_fn = false }).param_groups[1].line_search_fn)
    local schedule = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD(params(), 0.1), "max", 0.5, 3)
    assert.same({ "max", 0.5, 3 }, { schedule.mode, schedule.factor, schedule.patience })
    local Own = optim.Optimizer:extend("Own")
    Own.spec = { lr = { "number", 1 }, momentum = { "number", 0 } }
    assert.equal(0.5, Own(params(), { momentum = 0.5 }).param_groups[1].momentum)
    assert.equal("Own: options must be in one table at the end: {lr = 0.5}", message(Own, params(), 0.5))
  end)

  it("layers, losses and functions", function()
    local x = lm.tensor { -1, 2 }
    assert.equal(x, F.relu(x, true))
    assert.same({ 0, 2 }, x:totable())
    for name, rest in pairs {
      relu6 = {}, selu = {}, silu = {}, mish = {}, hardswish = {}, hardsigmoid = {}, elu = { 1 }, celu = { 1 },
      leaky_relu = { 0.1 }, hardtanh = { -1, 1 }, threshold = { 0.1, 20 }, rrelu = { 0.1, 0.2, false },
      dropout = { 0.5, true },
    } do
      local n = ({ elu = 1, celu = 1, leaky_relu = 1, hardtanh = 2, threshold = 2, rrelu = 3, dropout = 2 })[name] or 0
      local y, z = lm.tensor { -2, 3 }, lm.tensor { -2, 3 }
      rest[n + 1] = true
      assert(rawequal(y, F[name](y, unpack(rest, 1, n + 1))), name)
      rest[n + 1] = false
      lm.manual_seed(1)
      local other = F[name](z, unpack(rest, 1, n + 1))
      assert(not rawequal(other, z) and lm.equal(z, lm.tensor { -2, 3 }), name)
      if name ~= "dropout" then assert(lm.equal(y, other), name) end
    end
    assert(lm.equal(F.relu(x - 1, { inplace = true }), F.relu(x - 1)))
    local t = lm.tensor { 1, 5 }
    assert.equal(10, F.mse_loss(x, t, nil, nil, "sum"):item())
    assert(lm.equal(F.huber_loss(x, t, "none", 0.5), F.huber_loss(x, t, { reduction = "none", delta = 0.5 })))
    assert(lm.equal(nn.HuberLoss("none", 0.5)(x, t), F.huber_loss(x, t, "none", 0.5)))
    assert.equal("none", nn.CrossEntropyLoss(nil, nil, -1, nil, "none", 0.1).reduction)
    assert.same({ -1, 0.1 }, { nn.CrossEntropyLoss(nil, nil, -1, nil, "none", 0.1).ignore_index,
      nn.CrossEntropyLoss(nil, nil, -1, nil, "none", 0.1).label_smoothing })
    local advice = ": unknown option 'size_average'; reduction = \"mean\" or \"sum\" says it"
    assert.equal("MSELoss" .. advice, message(nn.MSELoss, "sum"))
    assert.equal("l1_loss" .. advice, message(F.l1_loss, x, t, "sum"))
    assert.is_true(nn.MaxPool2d(2, 2, 0, 1, true).return_indices)
    assert.is_false(nn.MaxPool2d(2, 2, 0, 1, true).ceil_mode)
    local norm = nn.BatchNorm2d(3, 1e-3, 0.2, true, true, "cpu", "float64")
    assert.same({ "float64", true }, { norm.weight.dtype, norm.bias ~= nil })
    local lazy = nn.LazyConv2d(5, 3, 2, 1)
    assert.same({ 1, 5, 3, 3 }, lazy(lm.ones(1, 4, 6, 6)).shape)
    local p = nn.Parameter(lm.ones(2))
    p.grad = lm.tensor { 3, 4 }
    assert.equal(7, nn.utils.clip_grad_norm_({ p }, 1, 1):item())
    assert.same({ { 6, 8 } }, { lm.func.grad(function(v) return (v * v):sum() end, 1)(lm.tensor { 3, 4 }):totable() })
  end)

  it("tensors", function()
    lm.manual_seed(0)
    local x = lm.randint(10, { 3, 4 })
    assert.same({ { 3, 4 }, "int64" }, { x.shape, x.dtype })
    assert.is_true(x:ge(0):all():item() and x:lt(10):all():item())
    assert.equal("float32", lm.randint(10, { 3 }, { dtype = "float32" }).dtype)
    assert.is_true(lm.randint(5, 6, { 3 }):eq(5):all():item())
    assert.is_true(lm.randint(1, { 100 }, { device = "cpu" }):eq(0):all():item())
    assert.equal("randint: high must be an integer, got nil", message(lm.randint, 10))
    assert(lm.allclose(lm.polygamma(1, lm.ones(2)), lm.ones(2):polygamma(1)))
    assert.same({ 0, 2 }, lm.arange(0, 4, 2):totable())
    assert.same({ 7, 7 }, lm.full({ 2 }, 7):totable())
  end)

  it("gradients and mixed precision", function()
    local scaler = lm.GradScaler("cpu", 1024)
    assert.equal(1024, scaler:get_scale())
    assert.matches("device", message(lm.GradScaler, "gpu"))
    assert.equal(1, lm.GradScaler("cuda", { enabled = false }):get_scale())
    if core.device_count "cuda" == 0 then assert.is_false(lm.GradScaler("cuda", 1024):is_enabled()) end
    local a = lm.ones(2, 2)
    local function product() return lm.mm(a, a).dtype end
    assert.equal("bfloat16", lm.autocast("cpu", { dtype = "bfloat16" }, product))
    assert.equal("bfloat16", lm.autocast("cpu", "bfloat16", product))
    assert.equal("float32", lm.autocast("cpu", "bfloat16", false, product))
    assert.equal("bfloat16", lm.autocast({ device_type = "cpu" }, product))
    assert.equal("autocast: dtype is given twice, by position and by name",
      message(lm.autocast, "cpu", "bfloat16", { dtype = "float16" }, product))
    assert.equal("autocast: takes at most 4 options, got 5", message(lm.autocast, "cpu", nil, true, true, 1, product))
    local x = lm.ones({ 2 }, { requires_grad = true })
    local y = (x * x):sum()
    y:backward(nil, true)
    y:backward(nil, { retain_graph = true })
    y:backward(nil, false, false)
    assert.same({ 6, 6 }, x.grad:totable())
    assert.same({ 6, 6 }, lm.grad(x * x, x, lm.full({ 2 }, 3), nil, false, true, true)[1]:totable())
    assert.same({ 6, 6 }, lm.grad({ x * x }, { x }, { lm.full({ 2 }, 3) })[1]:totable())
    assert.equal("grad: only_inputs must be true, got false",
      message(lm.grad, (x * x):sum(), x, nil, nil, nil, false))
    assert.equal("backward: retain_graph is given twice, by position and by name",
      message(y.backward, y, nil, true, { retain_graph = true }))
  end)

  it("processes and ranks", function()
    local dist, mp = lm.dist, lm.mp
    dist.init_process_group("gloo", nil, 5)
    finally(function() dist.destroy_process_group() end)
    local t = lm.ones(2)
    assert.equal(t, dist.all_reduce(t, dist.ReduceOp.MAX, dist.group.WORLD, false))
    assert.equal(t, dist.broadcast(t, 0, dist.group.WORLD))
    assert.same({ 1 }, dist.all_gather_object({}, 1))
    assert.same({ 1 }, dist.gather_object(1, {}, 0))
    dist.barrier(nil, false)
    local net = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), nil, nil, nil, false)
    assert.truthy(net.module)
    local seen = mp.Queue()
    mp.spawn(function(i, q) q:put(i) end, { seen }, 2, true)
    assert.equal(1, seen:get() + seen:get())
    local pool = mp.Pool(1, function(n) _G.base = n end, { 10 })
    assert.same({ 11, 12 }, pool:map(function(x) return _G.base + x end, { 1, 2 }, 1))
    pool:terminate()
    assert.equal("Pool: unknown option 'maxtasksperchild'; options are processes, initializer, initargs, method",
      message(mp.Pool, 1, nil, nil, 3))
    local process = mp.Process(nil, function(q) q:put "hello" end, "name", { seen })
    process:start()
    assert.equal("hello", seen:get())
    process:join()
  end)

  it("and a table with names that comes last is always options", function()
    assert.matches("^DataLoader: unknown option 'len'; options are batch_size,", message(data.DataLoader, set, 2, true,
      { len = print }))
  end)
end)
