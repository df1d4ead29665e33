-- dist with one process, and the wrappers of nn.parallel.
local lm = require "luminary"
local dist, nn, optim = lm.dist, lm.nn, lm.optim

local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

-- f with these environment variables, whose former values come back.
local function with_environment(values, f)
  local before = {}
  for name, value in pairs(values) do
    before[name] = lm.getenv(name) or false
    lm.setenv(name, value)
  end
  local ok, err = pcall(f)
  for name, value in pairs(before) do lm.setenv(name, value or nil) end
  assert(ok, err)
end

local function leave() if dist.is_initialized() then dist.destroy_process_group() end end

describe("a process group of one", function()
  after_each(leave)

  it("starts and ends", function()
    assert.is_true(dist.is_available())
    assert.is_false(dist.is_initialized())
    dist.init_process_group()
    assert.is_true(dist.is_initialized())
    assert.same({ 0, 1 }, { dist.get_rank(), dist.get_world_size() })
    assert.is_string(dist.get_backend())
    assert.equal("cpu", dist.local_device())
    dist.destroy_process_group()
    assert.is_false(dist.is_initialized())
    assert.matches("init_process_group", message(dist.destroy_process_group))
    dist.init_process_group("gloo") -- and again
  end)

  it("is what its own environment says", function()
    with_environment({ RANK = "0", WORLD_SIZE = "1", LOCAL_RANK = "0" }, function()
      dist.init_process_group { init_method = "env://", timeout = 30 }
      assert.equal(1, dist.get_world_size())
    end)
    leave()
    dist.init_process_group("gloo", { world_size = 1, rank = 0, init_method = "tcp://127.0.0.1:29500" })
  end)

  it("refuses several processes, naming who asked for them", function()
    for _, launcher in ipairs {
      { { WORLD_SIZE = "2", RANK = "1" }, "WORLD_SIZE" },
      { { OMPI_COMM_WORLD_SIZE = "4", OMPI_COMM_WORLD_RANK = "1" }, "mpirun" },
      { { SLURM_STEP_NUM_TASKS = "3", SLURM_PROCID = "0" }, "srun" },
    } do
      with_environment(launcher[1], function()
        local text = message(dist.init_process_group)
        assert.matches(launcher[2], text)
        assert.matches("several processes come in a later version", text)
      end)
    end
    assert.matches("world_size = 2", message(dist.init_process_group, { world_size = 2 }))
    assert.is_false(dist.is_initialized())
    with_environment({ WORLD_SIZE = "2", RANK = "1" }, function()
      dist.init_process_group { world_size = 1, rank = 0 } -- what is given wins
    end)
  end)

  it("names wrong arguments", function()
    assert.matches("gloo", message(dist.init_process_group, "golo"))
    assert.matches("did you mean 'gloo'", message(dist.init_process_group, "golo"))
    assert.matches("env://", message(dist.init_process_group, { init_method = "http://x" }), 1, true)
    assert.matches("rank 1 is outside a world of 1", message(dist.init_process_group, { world_size = 1, rank = 1 }))
    assert.matches("did you mean 'rank'", message(dist.init_process_group, { rnk = 1 }))
    with_environment({ WORLD_SIZE = "many" }, function()
      assert.matches("'many' is no number of processes", message(dist.init_process_group))
    end)
    dist.init_process_group()
    assert.matches("there already", message(dist.init_process_group))
  end)

  it("is needed by whoever asks", function()
    for _, name in ipairs { "get_rank", "get_world_size", "get_backend", "barrier", "all_reduce", "broadcast",
      "all_gather" } do
      assert.matches(name .. ": no process group; call dist.init_process_group() first",
        message(dist[name], lm.ones { 1 }), 1, true)
    end
  end)

  it("has collectives that work in place", function()
    dist.init_process_group()
    local t = lm.tensor { 1, 2 }
    assert.is_true(dist.all_reduce(t) == t)
    dist.all_reduce(t, { op = "mean" })
    assert.is_true(dist.broadcast(t, 0) == t)
    assert.same({ 1, 2 }, t:totable())
    local outputs = { lm.zeros { 2 } }
    dist.all_gather(outputs, t)
    assert.same({ 1, 2 }, outputs[1]:totable())
    dist.barrier()
    assert.matches("did you mean 'mean'", message(dist.all_reduce, t, { op = "maen" }))
    assert.matches("{op = \"sum\"}", message(dist.all_reduce, t, "sum"), 1, true)
    assert.matches("rank 1 is outside a world of 1", message(dist.broadcast, t, 1))
    assert.matches("tensor", message(dist.all_reduce, 3))
    assert.matches("2 outputs for a world of 1", message(dist.all_gather, { t, t }, t))
    assert.matches("output 1", message(dist.all_gather, { lm.zeros { 3 } }, t))
  end)

  it("is what a DistributedSampler shares by", function()
    dist.init_process_group()
    local set = lm.data.TensorDataset(lm.arange(5))
    assert.same({ 1, 2, 3, 4, 5 }, lm.data.DistributedSampler(set, { shuffle = false }):indices():totable())
  end)
end)

describe("local_device and try_gpu", function()
  it("are the CPU without CUDA", function()
    if lm.cuda.is_available() then return end
    assert.equal("cpu", dist.local_device())
    assert.equal(0, lm.cuda.device_count())
    assert.equal("cpu", lm.try_gpu())
    assert.equal("cpu:2", lm.try_gpu(2))
    assert.matches("try_gpu", message(lm.try_gpu, -1))
  end)
end)

describe("DistributedDataParallel", function()
  before_each(function() dist.init_process_group() end)
  after_each(leave)

  it("is a wrapper with .module and the bare model's keys", function()
    local net = nn.Linear(3, 2)
    local wrapped = nn.parallel.DistributedDataParallel(net)
    assert.is_true(rawequal(net, wrapped.module))
    assert.is_true(wrapped:is(nn.parallel.DistributedDataParallel))
    local keys = {}
    for key in pairs(wrapped:state_dict()) do keys[#keys + 1] = key end
    table.sort(keys)
    assert.same({ "bias", "weight" }, keys)
    assert.equal(2, #wrapped:parameters())
    local other = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    other:load_state_dict(wrapped:state_dict())
    net:load_state_dict(wrapped:state_dict())
    local prefixed = {}
    for key, t in pairs(net:state_dict()) do prefixed["module." .. key] = t end
    other:load_state_dict(prefixed)
    assert.is_true(other.module.weight:detach():equal(net.weight:detach()))
    assert.matches("DistributedDataParallel%(\n  %(module%): Linear", tostring(wrapped))
  end)

  it("trains as the bare model", function()
    local function train(wrap)
      lm.manual_seed(2)
      local net = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
      local opt = optim.SGD(net:parameters(), { lr = 0.1 })
      local x, y = lm.randn { 6, 4 }, lm.randint(1, 4, { 6 })
      local loss
      for _ = 1, 3 do
        loss = lm.nn.functional.cross_entropy(net(x), y)
        opt:zero_grad()
        loss:backward()
        opt:step()
      end
      return loss:item()
    end
    assert.equal(train(function(net) return net end), train(nn.parallel.DistributedDataParallel))
    assert.equal(train(function(net) return net end), train(nn.parallel.DataParallel))
  end)

  it("has no_sync and join, which take functions", function()
    local net = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    assert.same({ 1, 2 }, { net:no_sync(function(a, b) return a, b end, 1, 2) })
    assert.equal(3, net:join(function() return 3 end))
    assert.matches("function", message(net.no_sync, net))
    assert.matches("function", message(net.join, net, 3))
  end)

  it("passes modes and devices on", function()
    local net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1)))
    net:eval()
    assert.is_false(net.module[1].training)
    net:to("float64")
    assert.equal("float64", net.module[2].weight.dtype)
  end)

  it("names wrong arguments", function()
    local ddp = nn.parallel.DistributedDataParallel
    assert.matches("module wanted, got a tensor", message(ddp, lm.ones { 1 }))
    assert.matches("requires a gradient", message(ddp, nn.ReLU()))
    assert.matches("did you mean 'find_unused_parameters'",
      message(ddp, nn.Linear(1, 1), { find_unused_parameter = true }))
    assert.matches("one device a process", message(ddp, nn.Linear(1, 1), { device_ids = { 0, 1 } }))
    dist.destroy_process_group()
    assert.matches("no process group", message(ddp, nn.Linear(1, 1)))
  end)
end)

describe("DataParallel", function()
  it("without CUDA runs the module where it is", function()
    local net = nn.Linear(2, 2)
    local wrapped = nn.parallel.DataParallel(net)
    assert.is_true(wrapped.module == net)
    local x = lm.ones { 1, 2 }
    assert.is_true(wrapped(x):detach():equal(net(x):detach()))
    assert.truthy(wrapped:state_dict().weight)
    assert.matches("module wanted", message(nn.parallel.DataParallel, 3))
    assert.matches("{device_ids = 0}", message(nn.parallel.DataParallel, net, 0), 1, true)
  end)
end)
