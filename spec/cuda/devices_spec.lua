-- Several GPUs from one script, beyond what parallel_spec.lua and data_parallel_spec.lua ask of any devices. Needs two:
-- LM_CUDA_VIRTUAL=2 makes them of one.
local lm = require "luminary"
if lm.core.device_count("cuda") < 2 then return end
local temp = require "spec.support.temp"
local nn, F = lm.nn, lm.nn.functional
local f64 = { dtype = "float64" }

-- Writes the losses of five steps and the final sum of the weights into a row of `out`.
local function train_rank(i, out, kind, store)
  local l = require "luminary"
  local dist, n = l.dist, l.nn
  dist.init_process_group { backend = "gloo", init_method = "file://" .. store, rank = i, world_size = 2 }
  local device = l.core.device(kind .. ":" .. i)
  l.manual_seed(3)
  local net = n.Sequential(n.Linear(5, 8), n.BatchNorm1d(8), n.ReLU(), n.Linear(8, 3)):double():to(device)
  l.manual_seed(11)
  local x, y = l.randn({ 8, 5 }, { dtype = "float64" }), l.randint(1, 4, { 8 })
  x, y = x[{ { i * 4 + 1, i * 4 + 4 } }]:to(device), y[{ { i * 4 + 1, i * 4 + 4 } }]:to(device)
  net = n.parallel.DistributedDataParallel(net, { device_ids = { device } })
  local opt = l.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
  for step = 1, 5 do
    opt:zero_grad()
    local loss = n.functional.cross_entropy(net(x), y)
    loss:backward()
    opt:step()
    assert(net.module[1].weight.grad.device == device)
    out[i + 1][step] = loss:item()
  end
  for _, p in ipairs(net:parameters()) do out[i + 1][6] = out[i + 1][6] + p:sum():item() end
  dist.destroy_process_group()
end

describe("ranks with a GPU each", function()
  local folder
  setup(function()
    folder = temp.folder()
    lm.setenv("LM_TOKEN", "a token for specs")
  end)
  teardown(function()
    temp.remove(folder)
    lm.setenv("LM_TOKEN", nil)
  end)

  it("train as CPU ranks do, as processes and as threads", function()
    local want
    for _, how in ipairs { "cpu thread", "cuda thread", "cuda process" } do
      local kind, method = how:match "^(%a+) (%a+)$"
      local out = lm.zeros({ 2, 6 }, f64):share_memory_()
      lm.mp.spawn(train_rank, { nprocs = 2, method = method, args = { out, kind, folder .. "/" .. how:gsub(" ", "") } })
      want = want or out
      assert.is_true(lm.allclose(want, out, { rtol = 1e-9, atol = 1e-11 }))
      assert.equal(out[1][6], out[2][6])
    end
  end)
end)

describe("a capture on one GPU", function()
  local refusal = "graph: cannot run work on cuda:1 during a capture on cuda:0; a graph is of one device"
  local function refused(f, ...)
    local ok, problem = pcall(f, ...)
    assert.is_false(ok)
    assert.matches(refusal, problem, 1, true)
    assert.matches("devices_spec.lua:%d+: ", problem)
  end

  it("refuses another's work, and leaves both in order", function()
    local x = lm.ones({ 4 }, { device = "cuda:0" })
    local there = lm.ones({ 4 }, { device = "cuda:1" })
    refused(lm.cuda.graph, function() return (x * 2):to("cuda:1") end, { warmup = 0 })
    refused(lm.cuda.graph, function() return there * 2 end, { warmup = 0 })
    refused(lm.cuda.graph, function() return x + there:to("cuda:0") end, { warmup = 0 })
    refused(lm.cuda.graph, function() lm.cuda.current_stream(1):wait_stream(lm.cuda.current_stream(0)) end,
      { warmup = 0 })
    assert.same({ 3, 3, 3, 3 }, (x * 2 + there:to("cuda:0")):totable())
    local g = lm.cuda.graph(function() return there + 1 end, { device = "cuda:1" })
    there:fill_(4)
    g:replay()
    assert.same({ 5, 5, 5, 5 }, g.results[1]:totable())
  end)

  it("refuses DataParallel on several, and takes it on one", function()
    local x, y = lm.randn({ 4, 3 }):cuda(), lm.randint(1, 3, { 4 }):cuda()
    local function step_of(net)
      local opt = lm.optim.SGD(net:parameters(), { lr = 0.1 })
      return function(a, b)
        opt:zero_grad()
        local loss = F.cross_entropy(net(a), b)
        loss:backward()
        opt:step()
        return loss
      end
    end
    local module = nn.Linear(3, 2):to("cuda:0")
    local step = step_of(nn.DataParallel(module, { device_ids = { 0, 1 } }))
    refused(lm.cuda.make_graphed_step, step, { x, y })
    local before = step(x, y):item() -- continues eagerly
    step = lm.cuda.make_graphed_step(step_of(nn.DataParallel(module, { device_ids = { 0 } })), { x, y })
    for _ = 1, 5 do step(x, y) end
    assert.is_true(step(x, y):item() < before)
  end)
end)
