-- Failing the Nth allocation of the core and all after it, for every N in whole programs: a Lua error that says
-- so, nothing leaked, and the same result as ever once memory is back.
local lm = require "luminary"
local core = require "luminary.core"
local tar = require "spec.support.tar"
local temp = require "spec.support.temp"
local nn, optim, F = lm.nn, lm.optim, lm.nn.functional

local function settle()
  collectgarbage()
  core.live_tensors() -- lets go of what graphs that went had held
  collectgarbage()
  return core.live_tensors()
end

local function numbers_of(tensors)
  local list = {}
  for _, t in ipairs(tensors) do
    local flat = t:detach():double():flatten()
    list[#list + 1] = flat:sum():item()
    list[#list + 1] = flat:square():sum():item()
  end
  return list
end

-- Calls run(), whose nth allocation and later ones fail; returns pcall's results and the number of allocations.
local function run_failing(run, n)
  core._fail_alloc_from(n)
  local ok, err = pcall(run)
  local asked = core._alloc_count()
  core._fail_alloc_from(0)
  return ok, err, asked
end

local function check_one(prepare, n, want)
  local run, result = prepare()
  local ok, err, asked = run_failing(run, n)
  if not ok then
    assert(type(err) == "string" and err:find("out of memory", 1, true), ("allocation %d: %s"):format(n, tostring(err)))
    local again, problem = pcall(run)
    assert(again, ("after allocation %d had failed: %s"):format(n, tostring(problem)))
  end
  for k, value in ipairs(numbers_of(result())) do
    assert(value == want[k] or value ~= value and want[k] ~= want[k],
      ("after allocation %d had failed, number %d is %.17g, not %.17g"):format(n, k, value, want[k]))
  end
  return ok, asked
end

-- Fails each allocation in turn. `prepare` returns run(), which can repeat where it failed, and a list of tensors.
local function sweep(prepare)
  local run, result = prepare()
  run()
  local want = numbers_of(result())
  run, result = nil, nil -- luacheck: ignore
  check_one(prepare, 2 ^ 40, want) -- whatever is cached is now
  local live, n, failures = settle(), 0, 0
  local ok, asked
  repeat
    n = n + 1
    ok, asked = check_one(prepare, n, want)
    if not ok then failures = failures + 1 end
    if n % 8 == 0 then
      local now = settle()
      assert(now <= live, ("after allocation %d had failed: %d live tensors instead of %d"):format(n, now, live))
    end
  until asked < n
  assert(failures > 0, "no allocation failed")
end

local function seeded(make)
  lm.manual_seed(4)
  return make()
end

-- Run a training step of a net, by its optimizer, on a batch; `before_step` may do more.
local function training(net, opt, x, y, before_step)
  local value
  return function()
    lm.manual_seed(5)
    opt:zero_grad()
    local loss = F.cross_entropy(net(x), y)
    loss:backward()
    if before_step then before_step(net) end
    value = lm.tensor { loss:item() }
    opt:step()
  end, function() return { value, unpack(net:parameters()) } end
end

local function labels(...) return lm.tensor({ ... }, { dtype = "int64" }) end

describe("running out of memory in", function()
  local threads = lm.get_num_threads()
  setup(function() lm.set_num_threads(1) end) -- thousands of tiny steps: teams of threads would wait for each other
  teardown(function()
    core._fail_alloc_from(0)
    lm.set_num_threads(threads)
  end)

  it("a LeNet training step", function()
    local models = dofile "scripts/models.lua"
    local x, y = lm.rand { 2, 1, 28, 28 }, labels(3, 10)
    sweep(function()
      local net = seeded(models.lenet)
      return training(net, optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 }), x, y)
    end)
  end)

  it("a recording and its replay", function()
    local x = lm.rand { 2, 4 }
    local before = lm.set_warnings(false)
    local ok, err = pcall(sweep, function()
      local net, results = seeded(function() return nn.Linear(4, 3) end), {}
      local run = lm.prepare(function(a, b) return net(a):tanh() * net.bias:exp(), lm.zeros(2), lm.cat({ a, b }) end)
      return function()
        results = { run(x, x) }
        results[4], results[5], results[6] = run(x, x)
      end, function() return results end
    end)
    lm.set_warnings(before)
    assert(ok, err)
  end)

  it("a DataParallel step over three devices", function()
    local x, y = lm.rand { 5, 3 }, labels(3, 1, 2, 2, 1)
    sweep(function()
      local net = seeded(function() return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)) end)
      net = nn.DataParallel(net:eval(), { device_ids = { "cpu:0", "cpu:1", "cpu:2" } })
      return training(net, optim.SGD(net:parameters(), { lr = 0.1 }), x, y)
    end)
  end)

  it("a step with batch norm, dropout, a residual, Adam and clipping", function()
    local x, y = lm.rand { 2, 2, 6, 6 }, labels(1, 3)
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.conv = nn.Conv2d(2, 4, 3, { padding = 1 })
      self.bn = nn.BatchNorm2d(4)
      self.skip = nn.Conv2d(2, 4, 1)
      self.norm = nn.LayerNorm(4)
      self.drop = nn.Dropout(0.5)
      self.head = nn.Linear(4, 3)
    end
    function Net:forward(input)
      local h = F.max_pool2d(F.relu(self.bn(self.conv(input)) + self.skip(input)), 2)
      return self.head(self.drop(self.norm(F.adaptive_avg_pool2d(h, 1):flatten(2))))
    end
    sweep(function()
      local net = seeded(Net)
      return training(net, optim.AdamW(net:parameters(), { lr = 0.1, amsgrad = true }), x, y,
        function() nn.utils.clip_grad_norm_(net:parameters(), 0.1) end)
    end)
  end)

  it("a training step with checkpoints, one within another", function()
    local x, y = lm.randn { 4, 6 }, lm.randint(1, 3, { 4 })
    sweep(function()
      lm.manual_seed(1)
      local net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
      local function forward(v) return lm.autograd.checkpoint(net, v * 2) end
      return function()
        lm.manual_seed(2)
        net:zero_grad()
        F.cross_entropy(lm.autograd.checkpoint(forward, x), y):backward()
      end, function()
        local grads = {}
        for i, p in ipairs(net:parameters()) do grads[i] = p.grad end
        return grads
      end
    end)
  end)

  it("collectives in a group of one, strided and asynchronous", function()
    local dist = lm.dist
    local base = lm.randn { 3, 4 }
    sweep(function()
      local outcome
      return function()
        if dist.is_initialized() then dist.destroy_process_group() end
        dist.init_process_group()
        local t, out, list = base:clone():t(), lm.zeros { 4, 3 }, { lm.zeros({ 3, 4 }):t() }
        local work = dist.all_reduce(t, { op = "mean", async_op = true })
        dist.all_gather(list, t)
        work:wait()
        dist.all_gather_into_tensor(out, t)
        dist.reduce_scatter(t, list)
        dist.all_to_all(list, { t })
        dist.scatter(t, { out }, 0)
        dist.barrier()
        outcome = { t, out, list[1] }
        dist.destroy_process_group()
      end, function() return outcome end
    end)
  end)

  it("double backward, through views, indexing and products", function()
    local data = lm.randn({ 3, 4 }, { dtype = "float64" })
    sweep(function()
      local x = data:clone():requires_grad_()
      local outcome
      return function()
        local y = x[{ { 1, 2 }, {} }]:t():matmul(x:narrow(1, 2, 2)):softmax(1)
        y = lm.cat({ y, y[{ 2, {} }]:unsqueeze(1) }, 1):pow(3):sum() + x:max(2):sum() + x[x:gt(0)]:exp():sum()
        local g = unpack(lm.grad(y, { x }, { create_graph = true }))
        outcome = { y, g, unpack(lm.grad(g:square():sum(), { x })) }
      end, function() return outcome end
    end)
  end)

  it("hooks and functions of one's own", function()
    local Double = lm.autograd.Function:extend("Double")
    function Double.forward(ctx, x)
      ctx:save_for_backward(x)
      return x * 2
    end
    function Double.backward(ctx, g)
      local x = unpack(ctx.saved_tensors)
      return g * 2 + x * 0
    end
    sweep(function()
      local x = lm.tensor({ 1, 2, 3 }, { requires_grad = true })
      return function()
        x.grad = nil
        local y = Double.apply(x * 3)
        local handle = y:register_hook(function(g) return g * 2 end)
        local ok, err = pcall(function() y:sum():backward() end)
        handle:remove()
        if not ok then error(err, 0) end
      end, function() return { x.grad } end
    end)
  end)

  it("making, sorting, comparing and printing tensors", function()
    sweep(function()
      local outcome
      return function()
        lm.manual_seed(9)
        local x = lm.randn { 40, 30 }
        local values, places = x:topk(3, 2)
        outcome = { values, places, lm.randperm(100), x:nonzero(), lm.tensor { { 1, 2 }, { 3, 4 } },
          lm.tensor { #tostring(x), #lm.repr { x, x:t() } }, x:to("bfloat16"):float(), x:var(1), x:logsumexp(2),
          lm.tensor { x:equal(x) and 1 or 0, x:allclose(x) and 1 or 0, #x:totable() } }
        x[{ { 2, 5 }, 3 }] = 7
        x[x:lt(0)] = 0
        outcome[#outcome + 1] = x
      end, function() return outcome end
    end)
  end)

  it("saving, loading and walking a loader", function()
    local folder = temp.folder()
    local set = lm.data.TensorDataset(lm.arange(12):view(6, 2), labels(1, 2, 3, 4, 5, 6))
    local large = lm.arange(5000) -- mapped when loaded, where small ones are copied
    local idx = temp.write(folder .. "/idx", "\0\0\8\1\0\0\0\3abc")
    local ok, err = pcall(sweep, function()
      local outcome
      local path = folder .. "/file"
      return function()
        local loader = lm.data.DataLoader(set, { batch_size = 4,
          sampler = lm.data.DistributedSampler(set, { num_replicas = 2, rank = 1 }) })
        outcome = {}
        for x, y in loader:epoch(2) do
          outcome[#outcome + 1] = x
          outcome[#outcome + 1] = y
        end
        lm.save(path, { list = outcome, step = 3, strided = outcome[1]:t(), large = large })
        local loaded = lm.load(path)
        outcome[#outcome + 1] = loaded.large
        outcome[#outcome + 1] = require("luminary.file_formats.idx").load(idx)
        outcome[#outcome + 1] = loaded.strided
        outcome[#outcome + 1] = loaded.list[2]
      end, function() return outcome end
    end)
    local left = io.popen("ls " .. folder):read("*a")
    temp.remove(folder)
    assert(ok, err)
    assert.equal("file\nidx\n", left)
  end)

  it("reading sets of files", function()
    local folder = temp.folder()
    local function file(name, text) return temp.write(folder .. "/" .. name, text) end
    local csv = file("a.csv", 'x,y,"z"\n1,2,"a ""b"""\n3,4,c\n')
    local lines, tokens = file("a.jsonl", '{"a": 1}\n{"a": [1, 2]}\n'), file("tokens", ("ab"):rep(20))
    local shard = file("a.tar", tar.gnu_member(("n"):rep(120) .. ".txt", "text") .. tar.pax_member("b.cls", "1")
      .. tar.ending)
    os.execute(("mkdir %s/tree %s/tree/a %s/tree/b; touch %s/tree/a/1 %s/tree/b/2; gzip -k %s"):format(folder, folder,
      folder, folder, folder, csv))
    file("test_batch.bin", ("\1"):rep(3073))
    local ok, err = pcall(sweep, function()
      local outcome
      return function()
        local table_ = lm.data.CSVDataset(csv, {text = "z"})
        local packed = lm.data.CSVDataset(csv .. ".gz", {label = "z"})
        local x, y = lm.data.TokenDataset(tokens, {block_size = 4}):get(2)
        local row = lm.data.JSONLinesDataset(lines):get(2)
        local tree = lm.data.DatasetFolder(folder .. "/tree", {loader = function(path) return path end})
        local samples = 0
        for sample in lm.data.WebDataset(shard):iter() do samples = samples + (sample.cls or 5) end
        outcome = {
          table_.features, packed.features, packed.labels, x, y, tree.targets,
          lm.data.CIFAR10({root = folder, train = false}).images,
          lm.tensor {row.a[2], #select(2, table_:get(1)), samples, #tree:get(2) - #folder},
        }
      end, function() return outcome end
    end)
    temp.remove(folder)
    assert(ok, err)
  end)
end)
