-- SyncBatchNorm over several ranks, which are processes here, against BatchNorm of the whole batch in one.
local several = require "spec.support.several"
local lm = require "luminary"
local within = require("spec.support.time").within
local nn = lm.nn

local prelude = [[
local DDP = nn.parallel.DistributedDataParallel
local function near(what, a, b, tolerance)
  if a:numel() == 0 and b:numel() == 0 then return end
  local off = (a:detach():double() - b:detach():double()):abs():max():item()
  if not (off <= (tolerance or 1e-10)) then error(what .. " differs by " .. off, 2) end
end
local function all_near(what, a, b, tolerance)
  assert(#a == #b)
  for i, p in ipairs(a) do near(what .. " " .. i, p, b[i], tolerance) end
end
-- Returns this rank's rows of x, when rank r has counts[r + 1] of them.
local function rows(x, counts)
  local first = 1
  for r = 1, rank do first = first + counts[r] end
  return x:narrow(1, first, counts[rank + 1])
end
]]

local on = several(prelude)
local run, succeeds = on.run, on.succeeds

-- Three steps of one layer on parts of a batch against the whole.
local layer = [[
local splits = size == 2 and { { 3, 3 }, { 5, 1 }, { 0, 6 } } or { { 2, 2, 1, 1 }, { 3, 1, 0, 2 }, { 1, 1, 1, 1 } }
local function compare(name, shape, opts, format)
  local C = shape[1]
  local norm = nn.SyncBatchNorm(C, opts):double()
  local whole = (#shape == 3 and nn.BatchNorm2d or nn.BatchNorm1d)(C, opts):double()
  lm.manual_seed(5)
  if norm.weight then norm.weight:detach():uniform_(0.5, 2) end
  if norm.bias then norm.bias:detach():normal_() end
  whole:load_state_dict(norm:state_dict())
  for step, counts in ipairs(splits) do
    local n = 0
    for _, count in ipairs(counts) do n = n + count end
    local x = lm.randn({ n, unpack(shape) }, { dtype = "float64" }) * 3 + 7
    local g = lm.randn({ n, unpack(shape) }, { dtype = "float64" })
    if format then x, g = x:contiguous { memory_format = format }, g:contiguous { memory_format = format } end
    local mine = rows(x, counts):contiguous { memory_format = format or "contiguous" }
    mine.requires_grad, x.requires_grad = true, true
    norm:zero_grad()
    whole:zero_grad()
    local y, all = norm(mine), whole(x)
    near(name .. ": y", y, rows(all, counts))
    y:backward(rows(g, counts))
    all:backward(g)
    near(name .. ": dx", mine.grad, rows(x.grad, counts))
    if format and mine:numel() > 0 then
      assert(y:is_contiguous { memory_format = format }, "y")
      assert(mine.grad:is_contiguous { memory_format = format }, "dx")
    end
    for i, p in ipairs(norm:parameters()) do
      near(name .. ": gradient " .. i, dist.all_reduce(p.grad:clone()), whole:parameters()[i].grad)
    end
    all_near(name .. ": running", norm:buffers(), whole:buffers())
  end
  norm:eval()
  whole:eval()
  local x = lm.randn({ 4, unpack(shape) }, { dtype = "float64" })
  near(name .. ": eval", norm(x), whole(x))
end
compare("2 dims", { 5 })
compare("3 dims", { 3, 7 })
compare("4 dims", { 4, 3, 5 })
compare("channels-last", { 4, 3, 5 }, nil, "channels_last")
compare("one value each", { 6, 1, 1 })
compare("mean of all batches", { 4, 2, 2 }, { momentum = false })
compare("large eps", { 4, 2, 2 }, { eps = 0.3, momentum = 0.4 })
compare("no parameters", { 4, 2, 2 }, { affine = false })
compare("no bias", { 4, 2, 2 }, { bias = false })
]]

describe("SyncBatchNorm on several ranks", function()
  for _, n in ipairs { 2, 4 } do
    it(("is BatchNorm of the whole batch, with %d"):format(n), function() succeeds(n, layer) end)
  end

  it("gives PyTorch's values", function()
    succeeds(2, [[
      local golden = lm.load "spec/golden/batch_norm.safetensors"
      for case, counts in ipairs { { 3, 1 }, { 2, 2 }, { 1, 3 }, { 0, 4 }, { 5, 0 } } do
        local function value(key) return golden[case .. ".float32." .. key] end
        local x = value "in.x"
        local norm = nn.SyncBatchNorm(x:size(2), { affine = value "in.weight" ~= nil })
        if norm.weight then
          norm:load_state_dict({ weight = value "in.weight", bias = value "in.bias" }, { strict = false })
        end
        if case == 4 then -- the golden value is evaluation's
          norm.running_mean, norm.running_var = value "in.running_mean", value "in.running_var"
          norm:eval()
        end
        near("case " .. case, norm(rows(x, counts)), rows(value "out.1", counts), 2e-6)
      end
    ]])
  end)

  it("takes every dtype, and autocast", function()
    succeeds(2, [[
      for _, dtype in ipairs { "float16", "bfloat16", "float32" } do
        local tolerance = ({ float16 = 4e-3, bfloat16 = 3e-2, float32 = 2e-6 })[dtype]
        for _, wide in ipairs { true, false } do
          lm.manual_seed(3)
          local norm, whole = nn.SyncBatchNorm(4), nn.BatchNorm2d(4):double()
          norm.weight:detach():uniform_(0.5, 2)
          if not wide then norm:to(dtype) end
          whole:load_state_dict(norm:state_dict())
          local x = (lm.randn { 6, 4, 3, 3 } * 2 + 1):to(dtype)
          local g = (lm.randn { 6, 4, 3, 3 } + 3):to(dtype)
          local mine = rows(x, { 2, 4 }):clone()
          mine.requires_grad = true
          local y = norm(mine)
          y:backward(rows(g, { 2, 4 }))
          assert(y.dtype == dtype and mine.grad.dtype == dtype and norm.weight.grad.dtype == norm.weight.dtype)
          local all = x:double()
          all.requires_grad = true
          local z = whole(all)
          z:backward(g:double())
          near(dtype .. " y", y, rows(z, { 2, 4 }), tolerance * 4)
          near(dtype .. " dx", mine.grad, rows(all.grad, { 2, 4 }), tolerance * 4)
          near(dtype .. " running", norm.running_mean, whole.running_mean, tolerance)
        end
      end
      local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SyncBatchNorm(4))
      local y = lm.autocast({ dtype = "bfloat16", device = "cpu" }, function()
        return net(lm.randn { 2, 2, 5, 5 })
      end)
      assert(y.dtype == "bfloat16" and net[2].running_mean.dtype == "float32")
      y:sum():backward()
      assert(net[2].weight.grad.dtype == "float32" and net[1].weight.grad.dtype == "float32")
    ]])
  end)

  -- DistributedDataParallel weighs ranks by their samples.
  local training = [[
    local function lenet()
      return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 20), nn.BatchNorm1d(20), nn.ReLU(),
        nn.Linear(20, 10)):double()
    end
    local function train(opts, splits)
      lm.manual_seed(1)
      local alone, net = lenet(), lenet()
      net:load_state_dict(alone:state_dict())
      local ddp = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net), opts)
      local mine = optim.SGD(ddp:parameters(), { lr = 0.05, momentum = 0.9 })
      local its = optim.SGD(alone:parameters(), { lr = 0.05, momentum = 0.9 })
      for _, counts in ipairs(splits) do
        local n = 0
        for _, count in ipairs(counts) do n = n + count end
        local x, y = lm.randn({ n, 1, 12, 12 }, { dtype = "float64" }), lm.randint(1, 11, { n })
        mine:zero_grad()
        its:zero_grad()
        F.cross_entropy(ddp(rows(x, counts)), rows(y, counts)):backward()
        F.cross_entropy(alone(x), y):backward()
        for i, p in ipairs(net:parameters()) do near("gradient " .. i, p.grad, alone:parameters()[i].grad) end
        mine:step()
        its:step()
        all_near("parameters", net:parameters(), alone:parameters())
        all_near("buffers", net:buffers(), alone:buffers())
      end
    end
    local function part(...) -- the first of these counts, one for each rank
      local all = { ... }
      for i, counts in ipairs(all) do all[i] = { unpack(counts, 1, size) } end
      return all
    end
    train(nil, part({ 6, 6, 6, 6 }, { 6, 6, 6, 6 }, { 6, 6, 6, 6 }))
    train({ bucket_cap_mb = 0.002 }, part({ 8, 3, 1, 5 }, { 5, 9, 2, 2 }, { 4, 0, 3, 3 }, { 1, 6, 2, 2 }))
    train({ batch_dim = false }, part({ 4, 4, 4, 4 }, { 5, 5, 5, 5 }))
  ]]
  for _, n in ipairs { 2, 4 } do
    it(("trains as one process does under DistributedDataParallel, with %d"):format(n), function()
      succeeds(n, training)
    end)
  end

  it("weighs batches of different sizes in fully_shard, too, by block or whole, in a checkpoint or not", function()
    for _, n in ipairs { 2, 3 } do
      succeeds(n, [[
        local Net = nn.Module:extend "Net"
        function Net:init(way)
          self.first, self.norm, self.last, self.way = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), way
        end
        function Net:forward(x)
          local function f(h) return self.last(self.norm(self.first(h))) end
          if self.way == "checkpoint" then return lm.autograd.checkpoint(f, x) end
          return f(x)
        end
        local function make(way)
          lm.manual_seed(1)
          return Net(way):double()
        end
        local counts = { { 2, 5, 1 }, { 4, 1, 6 }, { 3, 3, 3 } }
        for _, way in ipairs { "whole", "blocks", "checkpoint" } do
          local alone, net = make(), nn.SyncBatchNorm.convert_sync_batchnorm(make(way))
          if way == "blocks" then
            nn.parallel.fully_shard(net.first)
            nn.parallel.fully_shard(net.norm)
          end
          nn.parallel.fully_shard(net)
          local mine, its = optim.SGD(net:parameters(), { lr = 0.1 }), optim.SGD(alone:parameters(), { lr = 0.1 })
          for round, sizes in ipairs(counts) do
            lm.manual_seed(round)
            local total, before = 0, 0
            for r = 1, size do
              total = total + sizes[r]
              if r <= rank then before = before + sizes[r] end
            end
            local x, y = lm.randn(total, 3):double(), lm.randn(total, 2):double()
            local function own(t) return t:narrow(1, before + 1, sizes[rank + 1]) end
            mine:zero_grad()
            its:zero_grad();
            (net(own(x)) - own(y)):square():mean():backward();
            (alone(x) - y):square():mean():backward()
            mine:step()
            its:step()
            local full = nn.parallel.full_state_dict(net)
            for name, p in alone:named_parameters() do near(way .. " " .. name, full[name], p:detach(), 1e-12) end
            if way ~= "checkpoint" then near("running", full["norm.running_var"], alone.norm.running_var, 1e-12) end
          end
        end
      ]])
    end
  end)

  it("does so over links, too", function() succeeds(2, training, { LM_SHM = "0" }) end)

  it("synchronizes within its process group alone", function()
    succeeds(4, [[
      local group
      for first = 0, 2, 2 do
        local made = dist.new_group { first, first + 1 }
        if made ~= dist.NON_MEMBER then group = made end
      end
      local norm = nn.SyncBatchNorm(3, { process_group = group }):double()
      local whole = nn.BatchNorm1d(3):double()
      lm.manual_seed(rank < 2 and 1 or 2)
      local x = lm.randn({ 8, 3 }, { dtype = "float64" })
      local counts = { 5, 3, 5, 3 }
      local first = rank % 2 == 0 and 1 or 6
      near("y", norm(x:narrow(1, first, counts[rank + 1])), whole(x):narrow(1, first, counts[rank + 1]))
      near("running", norm.running_var, whole.running_var)
      local net = lm.parallel.convert_syncbn_model(nn.Sequential(nn.BatchNorm1d(3)), group)
      assert(net[1].process_group == group)
    ]])
  end)

  it("counts a rank by its batch in the wrapper's forward passes alone", function()
    succeeds(2, [[
      local norm = nn.SyncBatchNorm(3)
      local net = DDP(nn.Sequential(norm))
      local x = lm.randn({ 4, 3 }, { requires_grad = true })
      local function gradient() return lm.grad(norm(x):pow(3):sum(), x)[1] end
      local before = gradient()
      net(lm.randn { rank == 0 and 2 or 6, 3 }):sum():backward()
      near("gradient", gradient(), before)
      contains(message(net, lm.randn { 2, 4 }), "SyncBatchNorm: x has 4 channels")
      near("gradient", gradient(), before)
    ]])
  end)

  it("refuses what has no meaning, on every rank", function()
    succeeds(2, [[
      local norm = nn.SyncBatchNorm(3)
      contains(message(norm, lm.ones { 2 }), "SyncBatchNorm: expected x to have shape [N, C, ...], got [2]")
      contains(message(norm, lm.ones { 2, 4 }), "SyncBatchNorm: x has 4 channels, but num_features is 3: x is a")
      contains(message(norm, lm.ones { rank, 3 }), "training needs more than one value per channel over all ranks, x")
      assert(norm.num_batches_tracked:item() == 1)
      local empty = norm(lm.ones { 0, 3 })
      assert(empty:size(1) == 0 and norm.running_mean:abs():max():item() == 0)
      local x = lm.randn({ 2, 3 }, { requires_grad = true })
      contains(message(lm.grad, norm(x):square():sum(), x, { create_graph = true }), "SyncBatchNorm: second")
      local ddp = DDP(nn.Sequential(norm))
      contains(message(ddp.join, ddp, function() end), "join: SyncBatchNorm layers need a batch of every rank in")
      assert(ddp.module[1] == norm and ddp:state_dict()["0.weight"])
      local wrapped = DDP(nn.Sequential(nn.BatchNorm1d(3)))
      for _, net in ipairs { wrapped, nn.Sequential(wrapped) } do
        contains(message(nn.SyncBatchNorm.convert_sync_batchnorm, net),
          "convert_sync_batchnorm: DistributedDataParallel already wraps part of the module; convert it before")
      end
    ]])
  end)

  it("does not leave others waiting for a rank that fails", function()
    local got = run(2, [[
      local norm = nn.SyncBatchNorm(3)
      norm(lm.randn { 2, 3 })
      if rank == 1 then norm(lm.randn { 2, 4 }) end
      norm(lm.randn { 2, 3 })
    ]])
    assert.matches("SyncBatchNorm: x has 4 channels", got[1].output)
    assert.matches("rank 1", got[0].output)
    for rank = 0, 1 do
      assert(got[rank].code ~= 0, got.text)
      within(got[rank].seconds, 10, got.text)
    end
  end)
end)

describe("SyncBatchNorm", function()
  it("is BatchNorm without a process group, to the bit", function()
    local norm, plain = nn.SyncBatchNorm(4, { momentum = 0.3 }), nn.BatchNorm2d(4, { momentum = 0.3 })
    for _ = 1, 2 do
      local x = lm.randn { 3, 4, 5, 5 }
      assert(norm(x):equal(plain(x)))
    end
    assert(norm.running_var:equal(plain.running_var) and norm.num_batches_tracked:item() == 2)
    assert.equal("SyncBatchNorm(4, eps=1e-05, momentum=0.3, affine=True, bias=True, track_running_stats=True)",
      tostring(norm))
    assert.matches("SyncBatchNorm: unknown option 'epz'; did you mean 'eps'%?$",
      select(2, pcall(nn.SyncBatchNorm, 4, { epz = 1 })))
    assert.matches("SyncBatchNorm: no process group; call dist%.init_process_group%(%) first$",
      select(2, pcall(nn.SyncBatchNorm, 4, { process_group = {} })))
  end)

  it("takes the place of BatchNorm in a module, keeping its tensors", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.norm = nn.BatchNorm1d(3, { eps = 0.5, momentum = false })
      self.body = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, { affine = false }), nn.BatchNorm2d(2))
      self.again = self.norm
      self.list = nn.ModuleList { self.body, nn.BatchNorm1d(4, { track_running_stats = false }) }
      self.frozen = nn.BatchNorm1d(2, { bias = false }):eval()
    end
    local net = Net()
    net.loop = net.body -- shared, too
    local before, names, keys = net:state_dict(), {}, {}
    for name in net:named_modules() do names[#names + 1] = name end
    for name in net:named_parameters() do keys[#keys + 1] = name end
    local weight = net.norm.weight
    assert(nn.SyncBatchNorm.convert_sync_batchnorm(net) == net)
    for _, norm in ipairs { net.norm, net.body[2], net.body[3], net.list[2], net.frozen } do
      assert(norm:is(nn.SyncBatchNorm))
    end
    assert(net.again == net.norm and net.list[1] == net.body and net.loop == net.body and net.norm.weight == weight)
    assert(net.norm.eps == 0.5 and net.norm.momentum == false)
    assert(net.body[2].weight == nil and net.list[2].running_mean == nil and net.frozen.bias == nil)
    assert(net.frozen.training == false and net.norm.training == true)
    local after, count = net:state_dict(), 0
    for name, t in pairs(before) do
      count = count + 1
      assert(after[name] and after[name]:data_ptr() == t:data_ptr(), name)
    end
    for _ in pairs(after) do count = count - 1 end
    assert.equal(0, count)
    local i = 0
    for name in net:named_modules() do
      i = i + 1
      assert.equal(names[i], name)
    end
    i = 0
    for name in net:named_parameters() do
      i = i + 1
      assert.equal(keys[i], name)
    end
    local alone = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3))
    assert(alone:is(nn.SyncBatchNorm) and nn.SyncBatchNorm.convert_sync_batchnorm(alone) == alone)
    assert.matches("convert_sync_batchnorm: module must be a module, got 3$",
      select(2, pcall(nn.SyncBatchNorm.convert_sync_batchnorm, 3)))
  end)

  it("has apex's names", function()
    assert(lm.parallel.DistributedDataParallel == nn.parallel.DistributedDataParallel)
    assert(lm.parallel.SyncBatchNorm == nn.SyncBatchNorm)
    assert(lm.parallel.convert_syncbn_model(nn.BatchNorm1d(2)):is(nn.SyncBatchNorm))
  end)
end)
