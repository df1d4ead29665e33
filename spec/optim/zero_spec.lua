-- ZeroRedundancyOptimizer over several ranks, which are processes here, against the plain optimizer in each of them.
local ranks = require "spec.support.ranks"
local several = require "spec.support.several"
local temp = require "spec.support.temp"
local lm = require "luminary"
local within = require("spec.support.time").within
local optim = lm.optim

local prelude = [[
local Zero, schedules = optim.ZeroRedundancyOptimizer, optim.lr_scheduler
local function same(what, a, b, tolerance)
  assert(a.dtype == b.dtype and table.concat(a.shape, ",") == table.concat(b.shape, ","), what)
  local off = a:numel() == 0 and 0 or (a:detach():double() - b:detach():double()):abs():max():item()
  if not (off <= (tolerance or 0)) then error(what .. " differs by " .. off, 2) end
end
-- Expects the same values, keys and tensors, to the bit.
local function alike(path, a, b)
  if lm.is_tensor(a) then
    assert(lm.is_tensor(b), path)
    return same(path, a, b)
  end
  if type(a) ~= "table" then return assert(a == b, path) end
  for key in pairs(b) do assert(a[key] ~= nil, path .. "." .. key .. " is not there") end
  for key in pairs(a) do alike(path .. "." .. key, a[key], b[key]) end
end
-- Parameters of several sizes, dtypes and layouts: the same on all ranks.
local function parameters(seed)
  lm.manual_seed(seed or 1)
  local list = {}
  for i, shape in ipairs { { 7, 5 }, { 5 }, { 3, 4, 2, 2 }, { 1 }, { 11, 3 }, { 6 }, { 2, 3 } } do
    local t = lm.randn(shape, { dtype = "float64" })
    if i == 3 then t = t:contiguous { memory_format = "channels_last" } end
    if i == 5 then t = t:float() end
    list[i] = nn.Parameter(t)
  end
  return list
end
-- Returns the parameters as matrices, which Muon takes.
local function matrices(list)
  for i, p in ipairs(list) do list[i] = nn.Parameter(p:detach():contiguous():reshape { p.shape[1], -1 }) end
  return list
end
local function set_grads(step, ...)
  for _, list in ipairs { ... } do
    lm.manual_seed(100 + step)
    for _, p in ipairs(list) do p.grad = lm.randn(p.shape, { dtype = p.dtype }) end
  end
end
local function all_same(what, a, b)
  for i, p in ipairs(a) do same(what .. " " .. i, p, b[i]) end
end
local function options(class, opts)
  local all = { optimizer_class = optim[class] }
  for key, value in pairs(opts) do all[key] = value end
  return all
end
]]

local on = several(prelude)
local run, succeeds = on.run, on.succeeds

-- Every optimizer, in two groups with a schedule, a group that comes later, and a consolidated state at the end.
local steps = [[
for _, case in ipairs {
  { "SGD", { lr = 0.1 } }, { "SGD", { lr = 0.1, momentum = 0.9, nesterov = true } }, { "Adam", { lr = 0.01 } },
  { "Adam", { lr = 0.01, amsgrad = true, weight_decay = 0.1 } }, { "AdamW", { lr = 0.02, betas = { 0.8, 0.9 } } },
  { "NAdam", {} }, { "ASGD", { t0 = 2 } }, { "RMSprop", { centered = true, momentum = 0.9 } },
  { "LAMB", { lr = 0.02 } }, { "Adafactor", { weight_decay = 0.1 } }, { "Muon", { lr = 0.02 } },
} do
  local class, opts = unpack(case)
  local mine, its = parameters(), parameters()
  if class == "Muon" then mine, its = matrices(mine), matrices(its) end
  local function groups(list)
    return { { params = { unpack(list, 1, 3) } }, { params = { unpack(list, 4, 6) }, lr = 0.5 } }
  end
  local zero, plain = Zero(groups(mine), options(class, opts)), optim[class](groups(its), opts)
  local slow, fast = schedules.StepLR(zero, 2, { gamma = 0.5 }), schedules.StepLR(plain, 2, { gamma = 0.5 })
  for step = 1, 6 do
    zero:zero_grad()
    plain:zero_grad()
    assert(mine[1].grad == nil)
    set_grads(step, mine, its)
    if step < 3 then mine[2].grad, its[2].grad = nil, nil end -- parameter 2 starts later
    if step == 4 then
      zero:add_param_group { params = { mine[7] }, lr = 0.3 }
      plain:add_param_group { params = { its[7] }, lr = 0.3 }
    end
    if step == 5 then zero.param_groups[1].lr, plain.param_groups[1].lr = 0.07, 0.07 end
    local got = zero:step(function() return step end)
    assert(got == step)
    plain:step()
    slow:step()
    fast:step()
    all_same(class .. " parameter", mine, its)
    assert(zero.param_groups[2].lr == plain.param_groups[2].lr)
  end
  for _, to in ipairs { 0, size - 1 } do
    zero:consolidate_state_dict(to)
    if rank == to then alike(class, zero:state_dict(), plain:state_dict()) end
  end
  zero:load_state_dict(plain:state_dict())
  set_grads(7, mine, its)
  zero:step()
  plain:step()
  all_same(class .. " parameter after load_state_dict", mine, its)
end
]]

describe("ZeroRedundancyOptimizer on several ranks", function()
  for _, n in ipairs { 1, 2, 4 } do
    it(("makes the plain optimizer's steps, with %d"):format(n), function() succeeds(n, steps) end)
  end

  it("gives PyTorch's parameters", function()
    succeeds(2, [[
      local golden = lm.load "spec/golden/_optim.safetensors"
      for _, case in ipairs {
        { "SGD", { lr = 0.1, momentum = 0.9 }, "sgd_momentum" },
        { "Adam", { lr = 0.05, weight_decay = 0.1 }, "adam_decay" },
        { "AdamW", { lr = 0.05, amsgrad = true, betas = { 0.5, 0.6 } }, "adamw_amsgrad" },
      } do
        local name = case[3]
        local params = {}
        for n = 1, 2 do params[n] = nn.Parameter(golden["start." .. n]:clone()) end
        local opt = Zero(params, options(case[1], case[2]))
        for k = 1, 6 do
          for n = 1, 2 do params[n].grad = golden["grad." .. n][k]:clone() end
          opt:step()
          local flat = lm.cat { params[1]:detach():flatten(), params[2]:detach():flatten() }
          same(name, flat, golden[name .. ".float64"][k], 1e-12)
        end
      end
    ]])
  end)

  it("updates parameters that are frozen but have a gradient on all ranks", function()
    succeeds(2, [[
      for _, case in ipairs { { "AdamW", { lr = 0.1 } }, { "SGD", { lr = 0.1, momentum = 0.9 } } } do
        local mine, its = parameters(), parameters()
        local zero, plain = Zero(mine, options(unpack(case))), optim[case[1] ](its, case[2])
        for step = 1, 5 do
          set_grads(step, mine, its)
          for i = 1, step == 3 and #mine or 0 do
            mine[i]:requires_grad_(i == 2)
            its[i]:requires_grad_(i == 2)
          end
          if step == 4 then mine[3].grad, its[3].grad = nil, nil end
          zero:step()
          plain:step()
          all_same(case[1] .. " step " .. step, mine, its)
        end
      end
    ]])
  end)

  it("trains under DistributedDataParallel as the plain optimizer does", function()
    succeeds(4, [[
      local function net()
        lm.manual_seed(7)
        return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3)):double()
      end
      local mine, its = net(), net()
      local ddp = nn.parallel.DistributedDataParallel(mine)
      local zero = Zero(ddp:parameters(), { optimizer_class = optim.Adam, lr = 0.05, parameters_as_bucket_view = true })
      local plain = optim.Adam(its:parameters(), { lr = 0.05 })
      for step = 1, 5 do
        lm.manual_seed(step)
        local x, y = lm.randn({ 8, 6 }, { dtype = "float64" }), lm.randint(1, 4, { 8 })
        zero:zero_grad()
        plain:zero_grad()
        local first = rank * 2 + 1
        F.cross_entropy(ddp(x:narrow(1, first, 2)), y:narrow(1, first, 2)):backward()
        F.cross_entropy(its(x), y):backward()
        zero:step()
        plain:step()
        for i, p in ipairs(mine:parameters()) do same("parameter " .. i, p, its:parameters()[i], 1e-10) end
      end
    ]])
  end)

  it("resumes from a checkpoint to the same bits, on other numbers of ranks too", function()
    local folder = temp.folder()
    local script = [[
      local path = "]] .. folder .. [[/state.safetensors"
      local function opt(params)
        return Zero({ { params = { unpack(params, 1, 4) } }, { params = { unpack(params, 5) }, lr = 0.2 } },
          { optimizer_class = optim.AdamW, lr = 0.1, amsgrad = true })
      end
      local params = parameters(9)
      local zero, from = opt(params), 1
      local schedule = schedules.StepLR(zero, 2)
      if %s then
        local saved = lm.load(path)
        for i, p in ipairs(params) do p:detach():copy_(saved.params[i]) end
        zero:load_state_dict(saved.optimizer)
        schedule:load_state_dict(saved.schedule)
        from = 4
      end
      for step = from, 6 do
        set_grads(step, params)
        zero:step()
        schedule:step()
        if step == 3 then
          zero:consolidate_state_dict()
          if rank == 0 then
            lm.save(path, { params = params, optimizer = zero:state_dict(), schedule = schedule:state_dict() })
          end
          dist.barrier()
        end
      end
      local last = path .. ".last"
      zero:consolidate_state_dict(size - 1)
      if rank == size - 1 then
        local state = { params = params, optimizer = zero:state_dict() }
        if from == 1 then lm.save(last, state) else alike("after resuming", state, lm.load(last)) end
      end
    ]]
    succeeds(2, script:format "false")
    for _, n in ipairs { 2, 4, 1 } do succeeds(n, script:format "true") end
    temp.remove(folder)
  end)

  it("shares parameters and state out by size", function()
    succeeds(4, [[
      local params, all, most = {}, 0, 0
      lm.manual_seed(2)
      for i = 1, 40 do
        local n = 1 + math.floor((i * 37 % 41) ^ 2 / 7)
        params[i] = nn.Parameter(lm.randn { n })
        params[i].grad = lm.randn { n }
        all, most = all + n, math.max(most, n)
      end
      local zero = Zero(params, { optimizer_class = optim.Adam })
      local before = lm.memory_allocated()
      zero:step()
      local here = 0
      for _, state in pairs(zero.state) do here = here + state.exp_avg:numel() end
      local per_rank = lm.tensor({ here }, { dtype = "int64" })
      assert(here <= all / 4 + most and here >= all / 4 - most, here .. " of " .. all)
      assert(dist.all_reduce(per_rank):item() == all)
      collectgarbage()
      collectgarbage()
      local grown = lm.memory_allocated() - before
      -- two tensors a parameter, in blocks of at least 64 bytes
      assert(grown < 2 * 4 * here * 1.1 + 40 * 256, grown .. " bytes for " .. here)
    ]])
  end)

  it("is measured by a script", function()
    local got = ranks.run { n = 2, file = "scripts/zero_memory.lua", args = "--model mlp --device cpu" }
    assert(got.ok, got.text)
    local most = {}
    for n, mb in got[0].output:gmatch "(%d+) ranks? +([%d.]+) MB at most" do most[tonumber(n)] = tonumber(mb) end
    -- Adam's two tensors for 203,530 parameters, of which the largest has 200,704: it is cut between rows
    assert(most[1] >= 1.62 and most[1] < 1.8 and most[2] >= 0.81 and most[2] < 0.9, got.text)
  end)

  it("works within its process group, and with more ranks than parameters", function()
    succeeds(4, [[
      local group
      for first = 0, 2, 2 do
        local made = dist.new_group { first, first + 1 }
        if made ~= dist.NON_MEMBER then group = made end
      end
      local mine, its = parameters(rank < 2 and 1 or 2), parameters(rank < 2 and 1 or 2)
      local zero, plain = Zero(mine, { optimizer_class = optim.Adam, process_group = group }), optim.Adam(its)
      set_grads(rank < 2 and 1 or 2, mine, its)
      zero:step()
      plain:step()
      all_same("parameter", mine, its)
      local to = rank < 2 and 1 or 3
      zero:consolidate_state_dict(to)
      if rank == to then alike("state", zero:state_dict(), plain:state_dict()) end

      local two = { nn.Parameter(lm.ones { 3 }), nn.Parameter(lm.ones { 4 }) }
      two[2]:requires_grad_(false)
      two[1].grad = lm.ones { 3 }
      local few = Zero(two, { optimizer_class = optim.SGD, lr = 0.5 })
      few:step()
      same("few", two[1], lm.full({ 3 }, 0.5))
      few:load_state_dict(optim.SGD(two, { lr = 0.25 }):state_dict())
      few:step()
      same("few", two[1], lm.full({ 3 }, 0.25))
    ]])
  end)

  it("goes by param_groups as they are at each step", function()
    succeeds(2, [[
      local mine, its = parameters(), parameters()
      local function groups(list)
        return { { params = { unpack(list, 1, 3) } }, { params = { unpack(list, 4, 7) }, lr = 0.5 } }
      end
      local zero, plain = Zero(groups(mine), options("SGD", { lr = 0.1 })), optim.SGD(groups(its), { lr = 0.1 })
      local function compare(change, step)
        for _, opt in ipairs { zero, plain } do change(opt) end
        set_grads(step, mine, its)
        zero:step()
        plain:step()
        all_same("parameter", mine, its)
      end
      compare(function(opt) table.remove(opt.param_groups[1].params, 2) end, 1)
      compare(function(opt) table.remove(opt.param_groups, 1) end, 2)
      compare(function(opt) opt.param_groups = { { params = { opt.param_groups[1].params[1] }, lr = 3,
        momentum = 0, dampening = 0, nesterov = false, weight_decay = 0, maximize = false } } end, 3)
      zero:consolidate_state_dict()
      if rank == 0 then alike("state", zero:state_dict(), plain:state_dict()) end
      table.insert(zero.param_groups[1].params, nn.Parameter(lm.ones { 3 }))
      contains(message(zero.step, zero), "parameter 2 of group 1 is new; add it with opt:add_param_group")
    ]])
  end)

  it("cuts trained parameters between rows, and takes states of whole ones, as earlier versions saved", function()
    succeeds(3, [[
      lm.set_default_dtype "float64"
      local function make()
        lm.manual_seed(4)
        return { nn.Parameter(lm.randn(500, 4)), nn.Parameter(lm.randn(10, 6)), nn.Parameter(lm.tensor(2)),
          nn.Parameter(lm.randn(1, 30)), nn.Parameter(lm.randn(0, 3)) }
      end
      local mine, its = make(), make()
      mine[1]:requires_grad_(false)
      its[1]:requires_grad_(false)
      local zero, plain = Zero(mine, { optimizer_class = optim.Adam }), optim.Adam(its)
      local function grads()
        for i = 2, 5 do
          mine[i].grad = lm.randn(mine[i].shape)
          its[i].grad = mine[i].grad:clone()
        end
      end
      local function loss(list)
        return function()
          for _, p in ipairs(list) do p.grad = nil end
          local sum = (list[2] * 3):square():sum() + list[3] + list[4]:square():sum()
          sum:backward()
          return sum
        end
      end
      for _ = 1, 3 do
        grads()
        zero:step()
        plain:step()
      end
      assert(zero:step(loss(mine)):item() == plain:step(loss(its)):item())
      all_same("parameter", mine, its)
      local held = 0
      for p, state in pairs(zero.state) do
        held = held + state.exp_avg:numel()
        assert(p ~= mine[1] and state.step > 2)
      end
      assert(math.abs(held - 91 / 3) <= 6, held) -- rows of 6 elements, and one of 30
      -- Memory that is replaced, and another dtype.
      local states = { zero.state, plain.state }
      for i, list in ipairs { mine, its } do
        for _, p in ipairs(list) do p.grad = nil end
        for _, state in pairs(states[i]) do
          for key, value in pairs(state) do state[key] = lm.is_tensor(value) and value:float() or value end
        end
        for _, p in ipairs(list) do require("luminary.core").set_data(p, p:detach():float()) end
      end
      lm.set_default_dtype "float32"
      grads()
      zero:step()
      plain:step()
      all_same("float32", mine, its)
      assert(mine[2].dtype == "float32")
      -- Ranks' states of whole parameters, without their rows.
      local dict = plain:state_dict()
      local whole = { { param_groups = dict.param_groups, state = { [2] = dict.state[2] } },
        { param_groups = dict.param_groups, state = { [3] = dict.state[3], [4] = dict.state[4],
          [5] = dict.state[5] } } }
      local i = 0
      local other = Zero(mine, { optimizer_class = optim.Adam })
      other:load_shards(function()
        i = i + 1
        return whole[i]
      end)
      other:consolidate_state_dict(2)
      if rank == 2 then alike("state", other:state_dict(), dict) end
      grads()
      other:step()
      plain:step()
      all_same("after whole states", mine, its)
    ]])
  end)

  it("refuses what cannot be, and says what would work", function()
    succeeds(2, [[
      local params = parameters()
      contains(message(Zero, params), "ZeroRedundancyOptimizer: optimizer_class must be an optimizer class, such as")
      contains(message(Zero, params, 0.1), "optimizer_class must be an optimizer class, such as optim.Adam, got 0.1")
      contains(message(Zero, params, { optimizer_class = Zero }), "such as optim.Adam, got class ZeroRedundancy")
      contains(message(Zero, params, { optimizer_class = optim.Adam(params) }), "optimizer_class must be an optimizer")
      contains(message(Zero, params, { optimizer_class = optim.Adam, momentum = 1 }), "Adam: unknown option 'momentum'")
      contains(message(Zero, params, { optimizer_class = optim.Adam, overlap_with_ddp = true }), "overlap_with_ddp is")
      contains(message(Zero, {}, { optimizer_class = optim.Adam }), "params must not be empty")
      contains(message(Zero, { params[1] }, { optimizer_class = optim.LBFGS }), "LBFGS needs all elements; choose")
      local zero = Zero(params, { optimizer_class = optim.Adam })
      assert(zero:is(optim.Optimizer))
      contains(tostring(zero), "ZeroRedundancyOptimizer (\nParameter Group 1\n")
      contains(message(zero.state_dict, zero), "the state is sharded over 2 ranks; call")
      contains(message(zero.consolidate_state_dict, zero, 5),
        "ZeroRedundancyOptimizer:consolidate_state_dict: to must be one of the group's ranks {0, 1}, got 5")
      zero:consolidate_state_dict(1)
      if rank == 1 then
        assert(#zero:state_dict().param_groups == 1)
      else
        contains(message(zero.state_dict, zero), "the state is sharded over 2 ranks")
      end
      set_grads(1, params)
      zero:step()
      contains(message(zero.state_dict, zero), "the state is sharded over 2 ranks")
      -- State that another rank would hold is checked here as well.
      local plain = optim.Adam(params)
      plain:step()
      for n = 1, #params do
        local dict = plain:state_dict()
        dict.state[n].exp_avg = lm.zeros { 13 }
        contains(message(zero.load_state_dict, zero, dict), "exp_avg of parameter " .. n .. " is a tensor [13]")
      end
    ]])
  end)

  it("names what differs between the ranks' parameters", function()
    for _, change in ipairs {
      "params[3] = nn.Parameter(lm.ones { 2, 9 })", "table.insert(params, table.remove(params, 2))",
      "table.remove(params)", "params[3]:requires_grad_(false)",
    } do
      local got = run(2, ([[
        local params = parameters()
        if rank == 1 then %s end
        Zero({ { params = params } }, { optimizer_class = optim.Adam }) ]]):format(change))
      for rank = 0, 1 do
        assert(got[rank].code ~= 0, got.text)
        within(got[rank].seconds, 10, got.text)
        assert.matches("ZeroRedundancyOptimizer: the parameters differ from rank 0's: here .*; there ",
          got[rank].output)
      end
    end
  end)

  it("refuses, as DiLoCo does, lists of the same parameters in different orders, with names or without", function()
    for _, wrap in ipairs { "", "nn.parallel.DistributedDataParallel(net)" } do
      for _, make in ipairs { "Zero(list, { optimizer_class = optim.SGD, lr = 0.1 })",
        "optim.DiLoCo(optim.SGD(list, { lr = 0.1 }), { sync_every = 2 })" } do
        local got = run(2, ([[
          lm.manual_seed(1)
          local net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
          %s
          local ps, list = net:parameters(), {}
          for i, k in ipairs(rank == 0 and { 1, 2, 3, 4, 5, 6 } or { 5, 6, 3, 4, 1, 2 }) do list[i] = ps[k] end
          %s ]]):format(wrap, make))
        for rank = 0, 1 do
          assert(got[rank].code ~= 0, got.text)
          assert.matches(wrap == "" and "the parameters differ from rank 0's: number 1 has the values of number 5 there"
            or "here group 1, parameter 1, float32 %[4, 4%], '2.weight' of call 1 of DistributedDataParallel; there .*"
            .. "'0.weight'", got[rank].output)
        end
      end
    end
  end)

  it("takes parameters that ranks have not initialized alike, as long as their order can be the same", function()
    succeeds(2, [[
      lm.manual_seed(rank)
      local net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4, { bias = false }))
      Zero(net:parameters(), { optimizer_class = optim.Adam })
    ]])
  end)
end)

describe("ZeroRedundancyOptimizer", function()
  it("needs a process group", function()
    local p = lm.nn.Parameter(lm.ones { 2 })
    assert.matches("ZeroRedundancyOptimizer: no process group; call dist.init_process_group",
      select(2, pcall(optim.ZeroRedundancyOptimizer, { p }, { optimizer_class = optim.Adam })))
  end)
end)
