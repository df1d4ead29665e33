-- nn.MixtureOfExperts: tokens routed to experts, on one process and over ranks.
local several = require "spec.support.several"
local says = require "spec.support.says"
local temp = require "spec.support.temp"
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional

describe("nn.MixtureOfExperts", function()
  local before
  before_each(function()
    before = lm.get_default_dtype()
    lm.set_default_dtype "float64"
    lm.manual_seed(1)
  end)
  after_each(function() lm.set_default_dtype(before) end)

  -- Computes the layer token by token; slots is the capacity of an expert, or nil.
  local function by_token(m, x, slots)
    local n, k = x:size(1), m.top_k
    local weights, chosen = F.softmax(m.gate(x), 2):topk(k, 2)
    if m.norm_topk_prob then weights = weights / weights:sum(2, true) end
    local y, used = lm.zeros_like(x), {}
    for c = 1, k do
      for i = 1, n do
        local e, t = chosen[i][c], x[i]
        used[e] = (used[e] or 0) + 1
        if not slots or used[e] <= slots then
          local h = F[m.experts.activation](m.experts.w1[e]:mv(t))
          if m.experts.w3 then h = h * m.experts.w3[e]:mv(t) end
          y[i] = y[i] + m.experts.w2[e]:mv(h) * weights[i][c]
        end
      end
    end
    return y
  end

  local cases = {
    {}, { top_k = 1 }, { top_k = 1, norm_topk_prob = true }, { top_k = 5, gated = false, activation = "relu" },
    { norm_topk_prob = false, activation = "gelu" }, { capacity_factor = 1 }, { capacity_factor = 0.3 },
  }

  it("is the sum of the chosen experts' results, with fixed slots for tokens if it has a capacity", function()
    for _, opts in ipairs(cases) do
      local m, x = nn.MixtureOfExperts(6, 7, 5, opts), lm.randn(11, 6)
      local slots = opts.capacity_factor and math.ceil(opts.capacity_factor * 11 * m.top_k / 5)
      assert.is_true((m(x) - by_token(m, x, slots)):abs():max():item() < 1e-14)
      assert.same({ 11 * m.top_k }, { m.tokens_per_expert:sum():item() })
      local grouped = m(x:view { 1, 11, 6 })
      assert.same({ 1, 11, 6 }, grouped.shape)
      assert.same({ 0, 6 }, m(lm.zeros(0, 6)).shape)
    end
    local x = lm.randn(4, 6)
    for _, huge in ipairs { 1e300, math.huge } do
      local m = nn.MixtureOfExperts(6, 7, 5, { capacity_factor = huge })
      assert.is_true((m(x) - by_token(m, x)):abs():max():item() < 1e-14)
      assert.same({ 0, 6 }, m(lm.zeros(0, 6)).shape)
    end
  end)

  it("has gradients of inputs, experts and the gate", function()
    for _, opts in ipairs(cases) do
      local m = nn.MixtureOfExperts(3, 4, 5, opts)
      assert.is_true(lm.autograd.gradcheck(function(x) return m(x), m.balance_loss, m.z_loss end, {
        lm.randn(6, 3):requires_grad_(), m.gate.weight, m.experts.w1, m.experts.w2,
      }))
    end
  end)

  it("takes modules as experts, which lm.quantize rounds, but not the gate", function()
    local m, x, asked = nn.MixtureOfExperts(6, 7, 5, { top_k = 3 }), lm.randn(11, 6), {}
    local other = nn.MixtureOfExperts(6, 7, 5, { top_k = 3, expert = function(i)
      asked[i] = nn.Sequential(nn.Linear(6, 7, { bias = false }), nn.SiLU(), nn.Linear(7, 6, { bias = false }))
      return asked[i]
    end })
    local gated = nn.MixtureOfExperts(6, 7, 5, { top_k = 3, gated = false })
    for i, name in ipairs { "w1", "w2" } do
      local list = {}
      for e = 1, 5 do list[e] = asked[e][2 * i - 1].weight end
      gated.experts:load_state_dict({ [name] = lm.stack(list, 1) }, { strict = false })
    end
    gated.gate:load_state_dict(other.gate:state_dict())
    assert.is_true((other(x) - gated(x)):abs():max():item() < 1e-14)
    assert.same({ 0, 6 }, other(lm.zeros(0, 6)).shape)
    other(x):sum():backward()
    gated(x):sum():backward()
    assert.is_true((asked[2][1].weight.grad - gated.experts.w1.grad[2]):abs():max():item() < 1e-13)
    assert.is_true((other.gate.weight.grad - gated.gate.weight.grad):abs():max():item() < 1e-13)
    assert.same(m.gate.weight.shape, other.gate.weight.shape)
    lm.quantize(other)
    assert.equal("Int8Linear", other.experts[1][1].__name)
    assert.equal("float64", other.gate.weight.dtype)
    says("MixtureOfExperts: expert and capacity_factor are mutually exclusive",
      nn.MixtureOfExperts, 6, 7, 5, { expert = function() end, capacity_factor = 1 })
  end)

  it("computes Switch's balance loss and the router's z-loss", function()
    local m, x = nn.MixtureOfExperts(6, 7, 4, { top_k = 1 }), lm.randn(32, 6)
    m(x)
    local logits = m.gate(x)
    local p = F.softmax(logits, 2)
    local sum = 0
    for e = 1, 4 do sum = sum + p:argmax(2):eq(e):double():mean():item() * p:mean(1)[e]:item() end
    assert.near(4 * sum, m.balance_loss:item(), 1e-12)
    assert.near(logits:logsumexp(2):square():mean():item(), m.z_loss:item(), 1e-12)
    lm.no_grad(function() m.gate.weight:zero_() end)
    m(x)
    assert.near(1, m.balance_loss:item(), 1e-12)
  end)

  it("refuses wrong sizes, and is cloned, cast and made without memory", function()
    local m = nn.MixtureOfExperts(4, 3, 2, { top_k = 1 })
    assert.error_matches(function() m(lm.ones(2, 3)) end, "expected x to have shape %[%.%.%., 4%], got %[2, 3%]")
    assert.error_matches(function() nn.MixtureOfExperts(4, 3, 2, { top_k = 3 }) end, "top_k must be at most")
    assert.error_matches(function() nn.MixtureOfExperts(4, 3, 2, { mesh = {} }) end, "mesh must be a mesh of one dim")
    local x = lm.randn(5, 4)
    assert.equal(0, (m:clone()(x) - m(x)):abs():max():item())
    m:float()
    lm.autocast({ dtype = "bfloat16" }, function() assert.equal("bfloat16", m(x:float()).dtype) end)
    local empty = nn.utils.init_empty_weights(nn.MixtureOfExperts, 4, 3, 2)
    assert.same({ 2, 3, 4 }, empty.experts.w1.shape)
  end)
end)

local on = several([[
  lm.set_default_dtype "float64"
  local function near(what, a, b, most)
    local off = (a - b):abs():max():item()
    if not (off < (most or 1e-12)) then error(what .. " is off by " .. off, 2) end
  end
  -- Returns this rank's rows of t, where rank r has counts[r + 1] of them.
  local function own_rows(t, counts)
    local first = 0
    for r = 1, rank do first = first + counts[r] end
    return t:narrow(1, first + 1, counts[rank + 1])
  end
  local function experts(mesh, ...)
    lm.manual_seed(1)
    local opts = {...}
    return nn.MixtureOfExperts(6, 5, 8, {mesh = mesh, capacity_factor = opts[1], top_k = opts[2]})
  end
]], 60)

describe("nn.MixtureOfExperts over ranks", function()
  it("equals the layer of one process with the tokens of all ranks", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {4}, {names = {"expert"}})
      for case, counts in ipairs {{3, 4, 5, 6}, {4, 4, 4, 4}, {7, 0, 2, 3}, {2, 2, 2, 2}, {0, 0, 0, 0}} do
        local total = 0
        for _, n in ipairs(counts) do total = total + n end
        local alone, m = experts(), experts(mesh)
        assert(m.experts.w1:size(1) == 2)
        if case > 3 then -- all tokens choose the experts of ranks 0 and 1
          lm.no_grad(function()
            for _, net in ipairs {alone, m} do
              net.gate.weight:zero_()
              net.gate.weight[2], net.gate.weight[3] = 5, 4
            end
          end)
        end
        lm.manual_seed(case)
        local x, g = lm.rand(total, 6):requires_grad_(), lm.randn(total, 6)
        local y = alone(x)
        local loss = (y * g):sum() / math.max(total, 1) + 0.1 * alone.balance_loss + 0.01 * alone.z_loss
        loss:backward()
        local own = own_rows(x:detach(), counts):clone():requires_grad_()
        local z = m(own)
        local n = counts[rank + 1]
        local part = (z * own_rows(g, counts)):sum() / math.max(n, 1) + 0.1 * m.balance_loss + 0.01 * m.z_loss
        part:backward()
        local share = n / math.max(total, 1)
        near("loss", dist.all_reduce(part:detach() * share), loss:detach())
        if n > 0 then
          near("result", z, own_rows(y, counts))
          near("gradient of x", own.grad * share, own_rows(x.grad, counts))
        end
        near("gate", dist.all_reduce(m.gate.weight.grad * share), alone.gate.weight.grad)
        for _, name in ipairs {"w1", "w2", "w3"} do
          near(case .. name, m.experts[name].grad, alone.experts[name].grad:narrow(1, 2 * rank + 1, 2))
        end
      end
    ]])
  end)

  it("gives each rank fixed slots if it has a capacity", function()
    on.succeeds(2, [[
      local mesh = dist.init_device_mesh("cpu", {2}, {names = {"expert"}})
      for _, top_k in ipairs {1, 2} do
        local alone, m = experts(nil, 0.6, top_k), experts(mesh, 0.6, top_k)
        lm.manual_seed(7)
        local x, g = lm.randn(20, 6), lm.randn(20, 6)
        local want = lm.zeros(20, 6)
        for r = 0, 1 do -- a mean over the ranks of means over their tokens
          local rows = {{10 * r + 1, 10 * r + 10}}
          local y = alone(x[rows])
          want[rows] = y:detach()
          local loss = (y * g[rows]):sum() / 20
          loss:backward()
        end
        local rows = {{10 * rank + 1, 10 * rank + 10}}
        local y = m(x[rows])
        assert(y:eq(0):sum():item() > 0, "nothing was dropped")
        near("result", y, want[rows])
        local loss = (y * g[rows]):sum() / 10
        loss:backward()
        for _, name in ipairs {"w1", "w2", "w3"} do
          near(name, m.experts[name].grad, alone.experts[name].grad:narrow(1, 4 * rank + 1, 4))
        end
      end
    ]])
  end)

  -- A language model of two blocks with experts.
  local model = [[
    local Net = nn.Module:extend("Net")
    function Net:init(mesh)
      self.emb = nn.Embedding(11, 6)
      self.moe1 = nn.MixtureOfExperts(6, 5, 4, {mesh = mesh})
      self.moe2 = nn.MixtureOfExperts(6, 5, 4, {mesh = mesh, top_k = 1})
      self.head = nn.Linear(6, 11)
    end
    function Net:forward(ids)
      local h = self.emb(ids)
      h = h + self.moe1(h)
      h = h + self.moe2(h)
      -- the balance loss is one of the tokens of an expert group
      local balance = size == 2 and self.moe1.balance_loss + self.moe2.balance_loss or 0
      return self.head(h), 0.01 * balance + 0.001 * (self.moe1.z_loss + self.moe2.z_loss)
    end
    local function make(mesh)
      lm.manual_seed(1)
      return Net(mesh)
    end
    local function loss_of(net, x, y)
      local scores, more = net(x)
      return F.cross_entropy(scores:view(-1, 11), y:reshape(-1)) + more
    end
    local function train(alone, net, steps, wrapped)
      local opts = {optim.Adam(alone:parameters(), {lr = 0.01}), optim.Adam(net:parameters(), {lr = 0.01})}
      for step = 1, steps do
        lm.manual_seed(step)
        local ids = lm.randint(1, 12, {2 * size, 6})
        local x, y = ids:narrow(2, 1, 5), ids:narrow(2, 2, 5)
        local own = {{2 * rank + 1, 2 * rank + 2}}
        local whole, part = loss_of(alone, x, y), loss_of(wrapped or net, x[own], y[own])
        for i, loss in ipairs {whole, part} do
          opts[i]:zero_grad()
          loss:backward()
        end
        local a = nn.utils.clip_grad_norm_(alone:parameters(), 0.5)
        local b = nn.utils.clip_grad_norm_(net:parameters(), 0.5)
        near("norm " .. step, a, b, 1e-10)
        for i = 1, 2 do opts[i]:step() end
        near("loss " .. step, dist.all_reduce(part:detach():clone()) / size, whole:detach(), 1e-10)
      end
      return opts[2]
    end
  ]]

  it("trains with fully_shard, and saves and loads its experts", function()
    local folder = temp.folder()
    local script = model .. [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"shard", "expert"}})
      local alone, net = make(), make(mesh["expert"])
      local ddp, refusal = nn.parallel.DistributedDataParallel, "ranks divide the experts 'moe"
      contains(message(nn.parallel.fully_shard, net), refusal)
      contains(message(nn.parallel.fully_shard, net, {mesh = mesh["shard"]}), refusal)
      contains(message(ddp, net), refusal)
      contains(message(ddp, net, {process_group = mesh:get_group "shard"}), refusal)
      local flat = mesh:flatten({"shard", "expert"}, "all")
      for _, moe in ipairs {net.moe1, net.moe2} do nn.parallel.fully_shard(moe.experts, {mesh = mesh["shard"]}) end
      nn.parallel.fully_shard(net, {mesh = flat})
      assert(net.moe1.experts.w1:size(1) == 1)
      local opt = train(alone, net, 50)
      local full = nn.parallel.full_state_dict(net)
      for name, t in pairs(alone:state_dict()) do near(name, full[name], t, 1e-10) end
      local path = "$path"
      lm.checkpoint.save(path, {net = net, opt = opt})
      dist.barrier()
      local plain = make()
      lm.checkpoint.load(path, {net = plain, opt = optim.Adam(plain:parameters(), {lr = 0.01})})
      for name, t in pairs(plain:state_dict()) do near(name, t, full[name], 1e-15) end
      local other = make(dist.init_device_mesh("cpu", {4})[1])
      lm.checkpoint.load(path, {net = other, opt = optim.Adam(other:parameters(), {lr = 0.01})})
      near("w2", other.moe2.experts.w2, full["moe2.experts.w2"]:narrow(1, rank + 1, 1), 1e-15)
      local fresh = make(mesh["expert"])
      lm.no_grad(function() fresh.moe1.experts.w1:zero_() end)
      fresh:load_state_dict(full)
      near("w1", fresh.moe1.experts.w1, full["moe1.experts.w1"]:narrow(1, 2 * (rank % 2) + 1, 2), 1e-15)
      local ids = lm.ones({1, 2}, {dtype = "int64"})
      near("clone", fresh:clone()(ids), (fresh(ids)))
      assert(#nn.parallel.full_state_dict(fresh:clone())["moe1.experts.w1"] == 4)
    ]]
    on.succeeds(4, (script:gsub("%$path", folder .. "/experts.safetensors")))
    temp.remove(folder)
  end)

  it("trains beside DistributedDataParallel, which leaves the experts out", function()
    on.succeeds(2, model .. [[
      local mesh = dist.init_device_mesh("cpu", {2}, {names = {"expert"}})
      local alone, net = make(), make(mesh)
      local ddp = nn.parallel.DistributedDataParallel(net)
      assert((net.moe1.experts.w1 - alone.moe1.experts.w1:narrow(1, 2 * rank + 1, 2)):abs():max():item() == 0)
      train(alone, net, 20, ddp)
      local scaler = lm.amp.GradScaler {device = "cpu", init_scale = 4}
      local opt = optim.SGD(net:parameters(), {lr = 1})
      opt:zero_grad()
      local x = lm.ones({1, 5}, {dtype = "int64"})
      scaler:scale(loss_of(ddp, x, x)):backward()
      if rank == 1 then net.moe1.experts.w1.grad:fill_(1 / 0) end
      local w = net.head.weight:detach():clone()
      scaler:step(opt)
      scaler:update()
      near("skipped step", w, net.head.weight)
      assert(scaler:get_scale() == 2)
    ]])
  end)

  it("trains with DiLoCo over another dim, with DistributedDataParallel over the ranks that divide experts", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"far", "expert"}})
      local net = nn.Sequential(nn.Linear(4, 4), nn.MixtureOfExperts(4, 4, 2, {mesh = mesh.expert}))
      local sgd = optim.SGD(net:parameters(), {lr = 0.1})
      contains(message(optim.DiLoCo, sgd), "pass the group of another dim, and let DistributedDataParallel average")
      local ddp = nn.parallel.DistributedDataParallel(net, {process_group = mesh.expert:get_group()})
      local opt = optim.DiLoCo(sgd, {group = mesh.far:get_group(), sync_every = 2})
      lm.manual_seed(rank)
      for step = 1, 4 do
        opt:zero_grad()
        ddp(lm.randn(5, 4)):square():mean():backward()
        opt:step()
        local sums = lm.stack {net[1].weight:sum(), net[2].experts.w1:sum(), net[2].gate.weight[1]:sum()}:detach()
        local all = lm.zeros(4, 3)
        dist.all_gather_into_tensor(all, sums)
        local function differ(i, a, b) return math.abs(all[a][i] - all[b][i]) > 1e-9 end
        for _, i in ipairs {1, 3} do
          assert(not differ(i, 1, 2) and not differ(i, 3, 4), "step " .. step)
          assert(differ(i, 1, 3) == (step % 2 == 1), "step " .. step)
        end
        assert(differ(2, 1, 2) and differ(2, 1, 3) == (step % 2 == 1), "step " .. step)
      end
    ]])
  end)

  it("refuses meshes that do not divide the experts, and ranks that disagree", function()
    on.succeeds(2, [[
      local mesh = dist.init_device_mesh("cpu", {1, 2}, {names = {"shard", "expert"}})
      contains(message(nn.MixtureOfExperts, 4, 4, 3, {mesh = mesh["expert"]}),
        "num_experts (3) must be divisible by the number of ranks (2)")
      contains(message(nn.MixtureOfExperts, 4, 4, 4, {mesh = mesh}), "mesh must be a mesh of one dim")
      local x = lm.randn(3, 6):requires_grad_()
      local function twice(net) return lm.autograd.grad(net(x):sum(), {x}, {create_graph = true}) end
      contains(message(twice, experts(mesh["expert"])),
        "MixtureOfExperts: create_graph is not supported; experts' gradients are averages over the ranks' tokens")
      twice(experts(mesh["shard"]))
      local m = nn.MixtureOfExperts(4, 4, 4, {mesh = mesh["expert"], top_k = 1 + rank})
      contains(message(m, lm.ones(2, 4)), "MixtureOfExperts: the layer differs from rank 0's: here top_k 2, "
        .. "norm_topk_prob true; there top_k 1, norm_topk_prob false")
    ]])
    local got = on.run(2, [[
      local m = experts(dist.init_device_mesh("cpu", {2}, {names = {"expert"}}))
      if rank == 1 then error "lost the data" end
      m(lm.randn(3, 6))
    ]])
    assert.matches("(rank 0 = expert 0; rank 1 = expert 1)", got[0].output, 1, true)
  end)
end)
