-- dist with one process, and the wrappers of nn.parallel. Real ranks are in ranks_spec.lua.
local lm = require "luminary"
local message = require "spec.support.error_of"
local dist, nn, optim = lm.dist, lm.nn, lm.optim

-- Calls f with these environment variables, then restores their former values.
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
    assert.is_nil(dist.group.WORLD)
    dist.init_process_group()
    assert.is_true(dist.is_initialized())
    assert.same({ 0, 1, 0 }, { dist.get_rank(), dist.get_world_size(), dist.get_local_rank() })
    assert.equal("solo", dist.get_backend())
    assert.equal("cpu", dist.local_device())
    assert.equal("ProcessGroup(solo, rank 0 of 1)", tostring(dist.group.WORLD))
    dist.destroy_process_group()
    assert.is_false(dist.is_initialized())
    assert.matches("init_process_group", message(dist.destroy_process_group))
    dist.init_process_group("gloo") -- init works again after an error
  end)

  it("is what its own environment says", function()
    with_environment({ RANK = "0", WORLD_SIZE = "1", LOCAL_RANK = "0" }, function()
      dist.init_process_group { init_method = "env://", timeout = 30 }
      assert.equal(1, dist.get_world_size())
    end)
    leave()
    dist.init_process_group("gloo", { world_size = 1, rank = 0, init_method = "tcp://127.0.0.1:29500" })
    leave()
    dist.init_process_group { init_method = "tcp://127.0.0.1:29500?rank=0&world_size=1" }
    leave()
    with_environment({ WORLD_SIZE = "2", RANK = "1" }, function()
      dist.init_process_group { world_size = 1, rank = 0 } -- arguments win
    end)
  end)

  it("says what is wrong with where it stands", function()
    for _, case in ipairs {
      { { WORLD_SIZE = "many" }, "WORLD_SIZE = 'many' is not a valid number of processes" },
      { { WORLD_SIZE = "0", RANK = "0" }, "WORLD_SIZE = '0' is not a valid number of processes" },
      { { WORLD_SIZE = "2", RANK = "-1" }, "RANK = '-1' is not a valid rank" },
      { { WORLD_SIZE = "2" }, "WORLD_SIZE = 2, but the rank of this process is unknown" },
      { { RANK = "1" }, "RANK = 1, but the number of processes is unknown" },
      { { WORLD_SIZE = "2", RANK = "2" }, "rank 2 is out of range for 2 ranks (WORLD_SIZE = 2, RANK = 2)" },
      { { LOCAL_RANK = "1" }, "LOCAL_RANK = '1' means several ranks" },
      { { OMPI_COMM_WORLD_SIZE = "4", OMPI_COMM_WORLD_RANK = "1" }, "mpirun has 4 processes but no address to meet" },
      { { SLURM_STEP_NUM_TASKS = "3", SLURM_PROCID = "0" }, "srun has 3 processes but no address to meet at" },
      { { WORLD_SIZE = "2", RANK = "1", MASTER_PORT = "x" }, "MASTER_PORT = 'x' is not a valid port" },
      { { WORLD_SIZE = "2", RANK = "1", MASTER_PORT = "70000" }, "MASTER_PORT = '70000' is not a valid port" },
      { { WORLD_SIZE = "2", RANK = "0", TORCHELASTIC_USE_AGENT_STORE = "True", MASTER_ADDR = "127.0.0.1",
        MASTER_PORT = "1" }, "cannot reach torchrun's store at 127.0.0.1:1: Connection refused" },
      { { WORLD_SIZE = "2", RANK = "1", LM_HEARTBEAT_TIMEOUT = "x" }, "LM_HEARTBEAT_TIMEOUT = 'x' must be a number" },
      { {}, "rank 1 is out of range for 1 ranks (world_size = 1, rank = 1)", { world_size = 1, rank = 1 } },
      { {}, "world_size = 2, but the rank of this process is unknown; pass rank", { world_size = 2 } },
      { {}, "rank = 1, but the number of processes is unknown; pass world_size", { rank = 1 } },
      { { RANK = "3", WORLD_SIZE = "4" }, "rank 3 is out of range for 2 ranks (world_size = 2, RANK = 3)",
        { world_size = 2 } },
    } do
      with_environment(case[1], function()
        assert.matches("init_process_group: " .. case[2], message(dist.init_process_group, case[3]), 1, true)
      end)
    end
    assert.is_false(dist.is_initialized())
    with_environment({ SLURM_PROCID = "0", SLURM_NTASKS = "2" }, function() -- an sbatch script is no step
      dist.init_process_group()
      assert.equal(1, dist.get_world_size())
    end)
  end)

  it("names wrong arguments", function()
    assert.matches("did you mean 'gloo'", message(dist.init_process_group, "glooo"))
    assert.matches("did you mean 'nccl'", message(dist.init_process_group, "ncll"))
    assert.matches("unknown backend 'hccl'; did you mean 'nccl'%? Available: solo, ",
      message(dist.init_process_group, "hccl"))
    assert.matches("env://", message(dist.init_process_group, { init_method = "http://x" }), 1, true)
    assert.matches("did you mean tcp://", message(dist.init_process_group, { init_method = "tpc://x:1" }), 1, true)
    assert.matches("only rank=N and", message(dist.init_process_group, { init_method = "tcp://x:1?rnk=1" }), 1, true)
    for _, odd in ipairs { "x", "rank", "rank=0&&", "" } do
      assert.matches("only rank=N", message(dist.init_process_group, { init_method = "file:///x?" .. odd }), 1, true)
    end
    assert.matches("did you mean 'rank'", message(dist.init_process_group, { rnk = 1 }))
    assert.matches("init_method must be a string, got true", message(dist.init_process_group, "gloo", true), 1, true)
    assert.matches("timeout", message(dist.init_process_group, { timeout = 0 }))
    assert.matches("rank 3 is out of range for 2", -- PyTorch's order: backend, init_method, timeout, world_size, rank
      message(dist.init_process_group, "gloo", nil, 5, 2, 3), 1, true)
    assert.matches("unknown option 'store'", message(dist.init_process_group, "gloo", nil, 5, 2, 0, "x"), 1, true)
    dist.init_process_group()
    assert.matches("already initialized", message(dist.init_process_group))
  end)

  it("says which backends there are", function()
    assert.is_true(dist.is_available())
    assert.is_true(dist.is_gloo_available())
    assert.is_true(dist.is_backend_available("cpu:gloo,cuda:GLOO"))
    assert.is_false(dist.is_backend_available("gloo,cuda:gloo"))
    assert.is_false(dist.is_backend_available("no such"))
    assert.is_true(dist.is_backend_available("GLOO"))
    dist.init_process_group("GLOO")
    assert.matches("the backend must be a string, got 3", message(dist.is_backend_available, 3))
  end)

  it("is needed by whoever asks", function()
    for _, name in ipairs { "get_rank", "get_world_size", "get_backend", "new_group", "barrier", "monitored_barrier",
      "all_gather_object" } do
      assert.matches(name .. ": no process group; call dist.init_process_group() first",
        message(dist[name], name == "all_gather_object" and {} or nil), 1, true)
    end
    for _, name in ipairs { "all_reduce", "broadcast", "reduce", "gather", "scatter", "send", "recv", "isend" } do
      assert.matches(name .. ": no process group; call dist.init_process_group() first",
        message(dist[name], lm.ones { 1 }), 1, true)
    end
  end)

  it("has collectives that work in place", function()
    dist.init_process_group()
    local t = lm.tensor { 1, 2 }
    assert.is_true(dist.all_reduce(t) == t)
    for _, op in ipairs { "sum", "mean", "product", "min", "max" } do dist.all_reduce(t, { op = op }) end
    dist.all_reduce(lm.ones({ 2 }, { dtype = "int64" }), { op = dist.ReduceOp.BAND })
    assert.is_true(dist.broadcast(t, 0) == t)
    assert.is_true(dist.reduce(t, 0, { op = "max" }) == t)
    assert.same({ 1, 2 }, t:totable())
    local outputs = { lm.zeros { 2 } }
    assert.equal(outputs, dist.all_gather(outputs, t))
    assert.same({ 1, 2 }, outputs[1]:totable())
    local whole = lm.zeros { 2 }
    assert.is_true(dist.all_gather_into_tensor(whole, t) == whole)
    assert.same({ 1, 2 }, whole:totable())
    whole = lm.zeros { 1, 2 }
    dist.all_gather_into_tensor(whole, t)
    assert.same({ { 1, 2 } }, whole:totable())
    for _, gather in ipairs {
      function(list) return dist.gather(t, list) end,
      function(list) return dist.gather(t, list, 0) end,
      function(list) return dist.gather(t, { gather_list = list, dst = 0 }) end,
      function(list) return dist.gather(t, list, { group = dist.group.WORLD }) end,
    } do
      local list = { lm.zeros { 2 } }
      assert.equal(list, gather(list))
      assert.same({ 1, 2 }, list[1]:totable())
    end
    local s = lm.zeros { 2 }
    dist.scatter(s, { t }, 0)
    dist.scatter(s, { scatter_list = { t } })
    assert.same({ 1, 2 }, s:totable())
    dist.reduce_scatter(s, { lm.tensor { 3, 4 } })
    assert.same({ 3, 4 }, s:totable())
    dist.reduce_scatter_tensor(s, lm.tensor { 5, 6 })
    assert.error_matches(function() dist.all_gather_into_tensor(lm.ones { 3 }, lm.ones { 2 }) end,
      "all_gather_into_tensor: expected output to have shape %[2%], got %[3%]$")
    assert.error_matches(function() dist.reduce_scatter_tensor(lm.ones { 2 }, lm.ones({ 2 }, { dtype = "int64" })) end,
      "reduce_scatter_tensor: dtype mismatch: input is int64, output is float32; convert one with :to%(%)$")
    assert.same({ 5, 6 }, s:totable())
    dist.all_to_all({ s }, { t })
    assert.same({ 1, 2 }, s:totable())
    dist.all_to_all_single(s, lm.tensor { 7, 8 })
    assert.same({ 7, 8 }, s:totable())
    dist.barrier()
    dist.monitored_barrier { timeout = 5, wait_all_ranks = true }
  end)

  it("has works", function()
    dist.init_process_group()
    local t = lm.ones { 3 }
    local work = dist.all_reduce(t, { async_op = true })
    assert.is_true(work:wait())
    assert.is_true(work:wait(1))
    assert.is_true(work:is_completed())
    assert.matches("Work%(all_reduce, completed%)", tostring(work))
    assert.is_nil(work:source_rank())
    assert.matches("wait: seconds must be at least 0, got %-1", message(work.wait, work, -1))
    assert.matches("work:wait%(%)", message(work.wait))
    local pending = { dist.barrier { async_op = true }, dist.broadcast(t, { async_op = true }) }
    dist.destroy_process_group()
    for _, w in ipairs(pending) do
      assert.is_true(w:is_completed())
      assert.is_true(w:wait())
    end
  end)

  it("names wrong arguments of collectives", function()
    dist.init_process_group()
    local t = lm.tensor { 1, 2 }
    assert.matches("did you mean 'mean'", message(dist.all_reduce, t, { op = "maen" }))
    assert.equal(t, dist.all_reduce(t, "sum", nil, false))
    assert.matches("did you mean 'mean'", message(dist.all_reduce, t, "maen"))
    assert.matches("did you mean 'async_op'", message(dist.barrier, { asyncop = true }))
    assert.matches("broadcast: rank 1 is not in this group of 1", message(dist.broadcast, t, 1))
    assert.matches("src is passed twice, by position and by name", message(dist.broadcast, t, 0, { src = 0 }))
    assert.matches("tensor", message(dist.all_reduce, 3))
    assert.matches("outputs must have 1 entry, one for each rank,", message(dist.all_gather, { t, t }, t))
    assert.matches("%[3%]", message(dist.all_gather, { lm.zeros { 3 } }, t))
    assert.matches("group must be a result of dist%.new_group, got 3", message(dist.all_reduce, t, { group = 3 }))
    assert.matches("is not in the group", message(dist.all_reduce, t, { group = dist.NON_MEMBER }))
    assert.matches("rank 0 is the root and needs gather_list, a list of 1 tensors", message(dist.gather, t))
    assert.matches("dst, the receiving rank, is required", message(dist.send, t))
    assert.matches("timeout", message(dist.barrier, { timeout = 0 }))
    assert.matches("int64", message(dist.all_reduce, lm.ones({ 1 }, { dtype = "int64" }), { op = "mean" }))
  end)

  it("checks what the core is given", function()
    dist.init_process_group()
    local handle = dist.group.WORLD.handle
    for _, name in ipairs { "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
      "send", "recv" } do
      assert.matches(name .. ": tensor must be a tensor, got nil", message(lm.core.dist_run, name, handle))
      assert.matches(name, message(lm.core.dist_run, name, handle, true))
    end
    assert.matches("all_to_all", message(lm.core.dist_run, "all_to_all", handle))
    for _, name in ipairs { "all_gather", "gather", "scatter", "reduce_scatter" } do
      assert.matches(name, message(lm.core.dist_run, name, handle, false, nil, nil, 0, nil, lm.ones { 2 }))
    end
    lm.core.reducer_fail(handle, "nobody waits for it")
  end)

  it("ends groups in one order on all ranks, the opposite of their making", function()
    dist.init_process_group()
    local close, made, closed = lm.core.dist_close, {}, {}
    finally(function() lm.core.dist_close = close end)
    for i = 1, 20 do made[i] = dist.new_group({ 0 }).handle end
    lm.core.dist_close = function(handle)
      closed[#closed + 1] = handle
      return close(handle)
    end
    dist.destroy_process_group()
    assert.equal(21, #closed)
    for i = 1, 20 do assert(closed[i] == made[21 - i], "another order") end
  end)

  it("has groups of one", function()
    dist.init_process_group()
    local group = dist.new_group { 0 }
    assert.same({ 0, 1, "solo" }, { dist.get_rank(group), dist.get_world_size(group), dist.get_backend(group) })
    assert.same({ 0 }, dist.get_process_group_ranks(group))
    assert.equal(0, dist.get_global_rank(group, 0))
    assert.equal(0, dist.get_group_rank(group, 0))
    dist.all_reduce(lm.ones { 1 }, { group = group })
    assert.same({ -1, -1 }, { dist.get_rank(dist.NON_MEMBER), dist.get_world_size(dist.NON_MEMBER) })
    assert.matches("rank 1 is out of range for 1 ranks %(ranks start at 0%)", message(dist.new_group, { 0, 1 }))
    assert.matches("rank 0 is listed twice", message(dist.new_group, { 0, 0 }))
    assert.matches("ranks must not be empty", message(dist.new_group, {}))
    assert.matches("ranks must be a list of ranks", message(dist.new_group, { 0, timeout = 60 }))
    assert.matches("timeout must be more than 0 seconds, got 0", message(dist.new_group, { 0 }, { timeout = 0 }))
    assert.matches("did you mean 'gloo'", message(dist.new_group, { ranks = { 0 }, backend = "gloo2" }))
    dist.destroy_process_group(group)
    assert.matches("was destroyed", message(dist.barrier, { group = group }))
    assert.equal("ProcessGroup(destroyed)", tostring(group))
    assert.is_true(dist.is_initialized())
    dist.destroy_process_group(dist.group.WORLD)
    assert.is_false(dist.is_initialized())
  end)

  it("has collectives of plain values", function()
    dist.init_process_group()
    local value = { 1, -0.5, 1 / 0, "a\0b", { deep = { true, false } }, [2 ^ 60] = "x" }
    local list = dist.all_gather_object({}, value)
    assert.same({ value }, list)
    assert.same({ 3, "x" }, dist.broadcast_object_list({ 3, "x" }, 0))
    assert.same({ value }, dist.gather_object(value))
    local out = {}
    assert.same(value, dist.scatter_object_list(out, { value }, 0))
    assert.same({ value }, out)
    assert.same({}, dist.all_gather_object({}, nil))
    assert.matches("all_gather_object: outputs must be a list, got a table; call all_gather_object({}, "
      .. "value)", message(dist.all_gather_object, { rank = 0 }), 1, true)
    assert.matches("inputs must have 1 entry, one for each rank,", message(dist.scatter_object_list, {}, { 1, 2 }))
    assert.matches("value.net.f is a function", message(dist.all_gather_object, {}, { net = { f = print } }), 1, true)
    assert.matches("list[2] is a module", message(dist.broadcast_object_list, { 1, lm.nn.Linear(1, 1) }), 1, true)
    local loop = {}
    loop.again = loop
    local gathered = dist.gather_object(loop)[1]
    assert.is_true(gathered ~= loop and gathered.again == gathered)
  end)

  it("is what a DistributedSampler shares by", function()
    dist.init_process_group()
    local set = lm.data.TensorDataset(lm.arange(5))
    assert.same({ 1, 2, 3, 4, 5 }, lm.data.DistributedSampler(set, { shuffle = false }):indices():totable())
  end)
end)

describe("values as text", function()
  local serializer = require "luminary.mp.serialization"
  local function encode(v) return (serializer.encode("spec", v, { plain = "value" })) end
  local names = { tensor = function(_, dtype, shape) return dtype .. table.concat(shape, "x") end }
  local function decode(text) return serializer.decode(text, {}, {}, names) end

  it("come back exactly", function()
    for _, v in ipairs { 0, 1.5, -2 ^ 53, 0.1, 5e-324, 1 / 0, -1 / 0, true, false, "", "5:x", ("x"):rep(70000) } do
      assert.equal(v, decode(encode(v)))
      assert.same({ v, k = v }, decode(encode { v, k = v }))
    end
    assert.is_nil(decode(encode(nil)))
    local nan = decode(encode(0 / 0))
    assert.is_true(nan ~= nan)
    local zero = 0
    assert.equal(-1 / 0, 1 / decode(encode(-zero)))
    local loop = { name = "loop" }
    loop.again = { loop, loop }
    local again = decode(encode(loop))
    assert.is_true(again.again[1] == again and again.again[2] == again and again.name == "loop")
  end)

  it("are data alone: an error names what is none", function()
    for words, v in pairs {
      ["spec: value.net.f is a function; only nil, booleans, numbers, strings, tensors and plain"] = {
        net = { f = print },
      },
      ["spec: value.o is "] = { o = lm.nn.Linear(1, 1) }, ["spec: value's key is a function"] = { [print] = 1 },
      ["spec: value[1] is "] = { require "ffi".new "int[1]" },
      ["spec: value.m is "] = { m = setmetatable({}, { __index = {} }) },
    } do
      assert.error_matches(function() encode(v) end, words, 1, true)
    end
    for _, v in ipairs { print, { lm.ones(2) }, { lm.mp.Queue() }, setmetatable({}, { __index = {} }) } do
      assert.is_false((pcall(decode, (serializer.encode("spec", v, {})))))
    end
  end)

  it("that are damaged are errors, and never more than data", function()
    local shared = { true }
    local text = encode { 1, "two", "two", { x = shared, ["y z"] = -1e300 }, shared, -5LL, lm.ones(2, 3) }
    assert.same({ -5LL, "float322x3" }, { unpack(decode(text), 6) })
    math.randomseed(7)
    local function is_data(v)
      assert(type(v) ~= "table" or not getmetatable(v))
      return type(v) ~= "function" and type(v) ~= "userdata"
    end
    for _ = 1, 20000 do
      local bytes = { text:byte(1, -1) }
      for _ = 1, math.random(3) do bytes[math.random(#bytes)] = math.random(0, 255) end
      local ok, value = pcall(decode, string.char(unpack(bytes)))
      assert.is_true(ok or type(value) == "string")
      assert(not ok or is_data(value))
    end
    for n = 0, #text - 1 do assert.is_false((pcall(decode, text:sub(1, n)))) end
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
    assert.same({ "bias", "weight" }, require("luminary.base.lists").sorted_keys(wrapped:state_dict()))
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
    assert.matches("module must be a module, got a tensor %[1%]", message(ddp, lm.ones { 1 }))
    assert.matches("at least one parameter of the module must require a gradient", message(ddp, nn.ReLU()))
    assert.matches("DistributedDataParallel: this LazyLinear has no weight before its first forward pass; call the net",
      message(ddp, nn.Sequential(nn.LazyLinear(2))))
    assert.matches("did you mean 'find_unused_parameters'",
      message(ddp, nn.Linear(1, 1), { find_unused_parameter = true }))
    assert.matches("device_ids must have at most 1 entry,", message(ddp, nn.Linear(1, 1), { device_ids = { 0, 1 } }))
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
    assert.matches("module must be a module, got 3", message(nn.parallel.DataParallel, 3))
    assert.matches("device_ids must be a table, got 0", message(nn.parallel.DataParallel, net, 0), 1, true)
  end)
end)
