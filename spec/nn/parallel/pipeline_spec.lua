-- nn.parallel.Pipeline: stages of a model on different ranks, a batch in several micro-batches.
local several = require "spec.support.several"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within
local schedule = require "luminary.nn.parallel.pipeline_schedule"

-- A model with tied weights whose forward is a chain, in float64. `train(pipe, alone, opts)` compares the losses and
-- norms of steps with those of one process; batches of 7 to 11 samples are divided unevenly.
local on = several([[
  lm.set_default_dtype "float64"
  local Pipeline, fully_shard = nn.parallel.Pipeline, nn.parallel.fully_shard
  local Block = nn.Module:extend "Block"
  function Block:init(d)
    self.norm = nn.LayerNorm(d)
    self.up = nn.Linear(d, 3 * d)
    self.down = nn.Linear(3 * d, d)
  end
  function Block:forward(x) return x + self.down(F.gelu(self.up(self.norm(x)))) end
  local Net = nn.Module:extend "Net"
  function Net:init(d, n)
    self.emb = nn.Embedding(11, d)
    self.place = nn.Parameter(lm.randn(1, d))
    self.blocks = nn.ModuleList()
    for i = 1, n do self.blocks:append(Block(d)) end
    self.norm = nn.LayerNorm(d)
    self.head = nn.Linear(d, 11, {bias = false})
    self.head.weight = self.emb.weight
  end
  function Net:forward(ids)
    local h = self.emb(ids) + self.place
    for _, b in ipairs(self.blocks) do h = b(h) end
    return self.head(self.norm(h))
  end
  function Net:pipeline_parts()
    local first = {"emb", "place", forward = function(net, ids) return net.emb(ids) + net.place end}
    return {first, "blocks", "norm", "head"}
  end
  local function make()
    lm.manual_seed(1)
    return Net(10, 4)
  end
  local splits = {{}, {"blocks.2"}, {"blocks.1", "blocks.2"}, {"blocks.1", "blocks.2", "blocks.3"}}
  local function loss_of(y, t) return F.cross_entropy(y:view(-1, 11), t:reshape(-1)) end
  local function cut(net, opts)
    local all = {loss = loss_of, microbatches = 3, split = splits[size]}
    for key, value in pairs(opts or {}) do all[key] = value end
    all.mesh = all.mesh or dist.init_device_mesh("cpu", {size}, {names = {"pipeline"}})
    return Pipeline(net, all)
  end
  local function batch(step)
    lm.manual_seed(step)
    local n = 7 + step % 5
    return lm.randint(1, 12, {n, 5}), lm.randint(1, 12, {n, 5})
  end
  local function near(what, a, b)
    if not (math.abs(a:item() - b:item()) <= 1e-10) then error(what .. ": " .. a:item() .. " and " .. b:item(), 2) end
  end
  -- own(t): this pipeline's samples of a batch; sum(loss, n): the mean over all pipelines
  local function train(pipe, alone, opts)
    opts = opts or {}
    local own = opts.own or function(t) return t end
    local a = optim.AdamW(alone:parameters(), {lr = 0.01})
    local b = opts.optimizer or optim.AdamW(pipe:parameters(), {lr = 0.01})
    for step = opts.first or 1, opts.last or 12 do
      local x, y = (opts.batch or batch)(step)
      if step ~= 3 then a:zero_grad() end -- gradients of steps 2 and 3 add up
      local whole = (opts.loss or loss_of)(alone(x), y)
      whole:backward()
      if step >= (opts.from or 1) then
        if step == opts.from then opts.load() end
        if step ~= 3 then b:zero_grad() end
        local got = pipe:step(own(x), own(y))
        if opts.sum then got = opts.sum(got, own(x):size(1)) / x:size(1) end
        near("loss of step " .. step, got, whole)
        if step == 1 then
          local grads, all = {}, {}
          for _, p in ipairs(pipe:parameters()) do grads[#grads + 1] = p.grad end
          for _, p in ipairs(alone:parameters()) do all[#all + 1] = p.grad end
          near("norm of gradients", nn.utils.get_total_norm(grads, {norm_type = 3}),
            nn.utils.get_total_norm(all, {norm_type = 3}))
        end
        near("norm of step " .. step, nn.utils.clip_grad_norm_(pipe:parameters(), 0.1),
          nn.utils.clip_grad_norm_(alone:parameters(), 0.1))
        if step ~= 2 then b:step() end
      else
        nn.utils.clip_grad_norm_(alone:parameters(), 0.1)
      end
      if step ~= 2 then a:step() end
    end
    return b
  end
  local function same_state(pipe, alone)
    local full, wanted = nn.parallel.full_state_dict(pipe), alone:state_dict()
    for name, t in pairs(wanted) do
      if not ((full[name] - t):abs():max():item() < 1e-10) then error(name .. " differs") end
      full[name] = nil
    end
    assert(not next(full), next(full))
  end
]], 60)

describe("nn.parallel.Pipeline", function()
  -- Runs the passes of all ranks, each of one time. Returns the time of the last, and the most micro-batches that each
  -- rank holds; fails if ranks wait for each other.
  local function simulate(kind, ranks, n, count)
    local lists, at, done, live, peak, time = {}, {}, {}, {}, {}, 0
    for r = 0, ranks - 1 do
      lists[r], at[r], live[r], peak[r] = schedule.passes(kind, r, ranks, n, count), 1, 0, 0
      assert.equal(2 * n * count, #lists[r])
    end
    local function is_done(name, stage, batch) return done[("%s %d %d"):format(name, stage, batch)] end
    repeat
      local fresh, waits = {}, false
      for r = 0, ranks - 1 do
        local p = lists[r][at[r]]
        waits = waits or p ~= nil
        local can
        if p and p.kind == "forward" then
          can = p.stage == 1 or is_done("forward", p.stage - 1, p.batch)
        elseif p then
          can = is_done("forward", p.stage, p.batch)
            and (p.stage == ranks * count or is_done("backward", p.stage + 1, p.batch))
        end
        if can then
          assert.equal(r, (p.stage - 1) % ranks)
          fresh[#fresh + 1] = ("%s %d %d"):format(p.kind, p.stage, p.batch)
          at[r], live[r] = at[r] + 1, live[r] + (p.kind == "forward" and 1 or -1)
          peak[r] = math.max(peak[r], live[r])
        end
      end
      for _, key in ipairs(fresh) do
        assert.is_nil(done[key])
        done[key] = true
      end
      if waits then
        assert.is_true(#fresh > 0, ("%s waits: %d ranks, %d micro-batches, %d stages"):format(kind, ranks, n, count))
        time = time + 1
      end
    until not waits
    return time, peak
  end

  it("has schedules without deadlock, with the bubble and the memory that they promise", function()
    for ranks = 1, 6 do
      for n = 1, 13 do
        local time, peak = simulate("1f1b", ranks, n, 1)
        assert.equal(2 * n + 2 * (ranks - 1), time)
        for r = 0, ranks - 1 do assert.equal(math.min(n, ranks - r), peak[r]) end
        time, peak = simulate("gpipe", ranks, n, 1)
        assert.equal(2 * n + 2 * (ranks - 1), time)
        assert.equal(n, peak[0])
        for count = 1, 3 do
          time, peak = simulate("interleaved", ranks, n, count)
          if n >= ranks then assert.equal(2 * n * count + 2 * (ranks - 1), time) end
          if n % ranks == 0 then assert.is_true(peak[0] <= ranks * (count + 1) - 1) end
        end
      end
    end
  end)

  it("has rounds in which each pass receives the result of its source when that has run", function()
    local function key_of(pass) return ("%s %d %d"):format(pass.kind, pass.stage, pass.batch) end
    for _, kind in ipairs { "1f1b", "gpipe", "interleaved" } do
      for ranks = 2, 5 do
        for n = 1, 7 do
          local count, round_of, received = kind == "interleaved" and 2 or 1, {}, 0
          local rounds = {}
          for r = 0, ranks - 1 do
            rounds[r] = schedule.rounds(kind, r, ranks, n, count, function() return true end)
            local ran = {}
            for i, round in ipairs(rounds[r]) do
              if round.pass then
                round_of[key_of(round.pass)] = i
                ran[#ran + 1] = round.pass
              end
            end
            assert.same(schedule.passes(kind, r, ranks, n, count), ran)
          end
          for r = 0, ranks - 1 do
            for i, round in ipairs(rounds[r]) do
              for _, pass in ipairs(round.receives) do
                received = received + 1
                assert.equal(r, (pass.stage - 1) % ranks)
                assert.equal(i, round_of[key_of(schedule.source_of(pass, ranks * count))])
                assert.is_true(i < round_of[key_of(pass)])
              end
            end
          end
          assert.equal(2 * n * (ranks * count - 1), received)
        end
      end
    end
    local function is_forward(pass) return pass.kind == "forward" end
    local forward = schedule.rounds("1f1b", 0, 2, 3, 1, is_forward)
    for _, round in ipairs(forward) do assert.is_true(not round.pass or is_forward(round.pass)) end
    assert.equal(3 + 1, #forward)
  end)

  it("trains as one process does by each schedule, and evaluates", function()
    on.succeeds(2, [[
      for _, kind in ipairs {"1f1b", "gpipe", "interleaved"} do
        local alone, net = make(), make()
        local pipe = cut(net, {schedule = kind, split = splits[kind == "interleaved" and 4 or 2]})
        train(pipe, alone)
        same_state(pipe, alone)
        local x, y = batch(3)
        local all, out = alone(x), pipe(x)
        assert((out == nil) == (rank == 0))
        if out then assert((out - all):abs():max():item() < 1e-12 and not out.requires_grad) end
        pipe:zero_grad()
        near("evaluation", lm.no_grad(pipe.step, pipe, x, y), loss_of(all, y))
        assert(not pipe:parameters()[1].grad)
      end
    ]])
  end)

  it("holds at most as many micro-batches as there are stages from its own on", function()
    on.succeeds(4, [[
      for _, kind in ipairs {"1f1b", "gpipe"} do
        local pipe = cut(make(), {schedule = kind, microbatches = 6})
        local live, peak = 0, 0
        pipe.stages[1]:register_forward_hook(function(_, _, y)
          live = live + 1
          peak = math.max(peak, live)
          y:register_hook(function() live = live - 1 end)
        end)
        local x = lm.randint(1, 12, {6, 5})
        pipe:step(x, x)
        local wanted = kind == "1f1b" and size - rank or 6
        assert(live == 0 and peak == wanted, ("%s: %d, not %d"):format(kind, peak, wanted))
      end
    ]])
  end)

  it("frees what its messages took once it is used, not when the collector comes", function()
    on.succeeds(3, [[
      local net, mesh = nn.Sequential(), dist.init_device_mesh("cpu", {3}, {names = {"pipeline"}})
      for _ = 1, 3 do net:append(nn.Linear(64, 64, {bias = false})) end
      local function sum(y) return y:sum() end
      local pipe = Pipeline(net, {mesh = mesh, split = {"1", "2"}, microbatches = 8, loss = sum})
      local x = lm.ones(8 * 256, 64)
      local one = 256 * 64 * 8 -- bytes of a micro-batch
      local function left(f)
        f()
        collectgarbage()
        collectgarbage "stop"
        local before = lm.memory_allocated()
        f()
        collectgarbage "restart"
        return (lm.memory_allocated() - before) / one
      end
      local got = left(function() pipe:step(x, x) end)
      assert(got < 8.5, "more is left than the results of stages: " .. got)
      got = left(function() lm.no_grad(pipe.step, pipe, x, x) end)
      assert(got < 8.5, "more is left without gradients: " .. got)
    ]])
  end)

  it("sends several tensors of any dtypes, in shapes that vary, and gradients of those that need one", function()
    on.succeeds(2, [[
      local First = nn.Module:extend "First"
      function First:init() self.w = nn.Parameter(lm.ones(3)) end
      function First:forward(a, b)
        local n = b:max():item()
        return a * self.w, b, (a * self.w):sum(2):float(), a:gt(0), lm.ones(n)
      end
      local Last = nn.Module:extend "Last"
      function Last:init() self.w = nn.Parameter(lm.ones(3)) end
      function Last:forward(a, b, c, mask, extra)
        assert(b.dtype == "int64" and c.dtype == "float32" and mask.dtype == "bool")
        assert(extra.shape[1] == b:max():item())
        return (a * self.w * mask:double()):sum(2) * b:double() + c:double()
      end
      local Both = nn.Module:extend "Both"
      function Both:init() self.a, self.b = First(), Last() end
      local alone, net = Both(), Both()
      local pipe = Pipeline(net, {
        mesh = dist.init_device_mesh("cpu", {2}), parts = {"a", "b"}, split = {"b"}, microbatches = 4,
        loss = function(y, t, u) return F.mse_loss(y, t) + u:mean() * y:mean() end,
      })
      for step = 1, 2 do
        lm.manual_seed(step)
        local a, b, t = lm.randn(7, 3), lm.randint(2, 9, {7}), lm.randn(7)
        alone:zero_grad()
        pipe:zero_grad()
        local sum = 0
        for i, n in ipairs {1, 2, 2, 2} do
          local first = ({1, 2, 4, 6})[i]
          local function part(v) return v:narrow(1, first, n) end
          local y = alone.b(alone.a(part(a), part(b)))
          sum = sum + (F.mse_loss(y, part(t)) + part(t):mean() * y:mean()) * (n / 7)
        end
        sum:backward()
        near("loss", pipe:step({a, b}, {t, t}), sum)
        for name, p in pipe:named_parameters() do
          assert((p.grad - alone:get_parameter(name).grad):abs():max():item() < 1e-6, name)
        end
      end
    ]])
  end)

  it("trains frozen stages, and models of nn.Sequential that are cut within a part", function()
    on.succeeds(2, [[
      local function chain()
        lm.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3))
      end
      local alone, net = chain(), chain()
      for _, m in ipairs {alone, net} do m[1]:requires_grad_(false) end
      local pipe = cut(net, {split = {"1.1"}, loss = F.cross_entropy, microbatches = 2})
      assert(#pipe:parameters() == (rank == 0 and 2 or 4))
      train(pipe, alone, {loss = F.cross_entropy, last = 3, batch = function(step)
        lm.manual_seed(step)
        return lm.randn(5, 4), lm.randint(1, 4, {5})
      end})
    ]])
  end)

  it("trains GPT-2 and LLaMA, over four ranks", function()
    on.succeeds(4, [[
      local models = {
        gpt2 = {n_embd = 12, n_head = 3, n_layer = 4, n_positions = 8, embd_pdrop = 0, resid_pdrop = 0, attn_pdrop = 0},
        llama = {hidden_size = 12, intermediate_size = 20, num_attention_heads = 3, num_hidden_layers = 4,
          max_position_embeddings = 8, sliding_window = 3, model_type = "mistral", rms_norm_eps = 1e-5},
      }
      for _, name in ipairs {"gpt2", "llama"} do
        local opts = models[name]
        local layers = name == "gpt2" and "transformer.h." or "model.layers."
        local alone, net
        opts.vocab_size, opts.pad_vocab_to = 30, name == "gpt2" and 16 or nil
        for i = 1, 2 do
          lm.manual_seed(1)
          alone, net = lm.models[name](opts), alone
        end
        local function next_token(y, ids)
          return F.cross_entropy(y:narrow(2, 1, 7):reshape(-1, y:size(3)), ids:narrow(2, 2, 7):reshape(-1))
        end
        local pipe = cut(net, {split = {layers .. 1, layers .. 2, layers .. 3}, loss = next_token})
        train(pipe, alone, {loss = next_token, last = 5, batch = function(step)
          lm.manual_seed(step)
          local ids = lm.randint(1, 31, {5 + step % 2, 8})
          return ids, ids
        end})
        same_state(pipe, alone)
        pipe:load_state_dict(alone:state_dict())
        contains(message(pipe.load_state_dict, pipe, {other = lm.ones(1)}), "other")
      end
    ]])
  end)

  it("has stages that are sharded or replicated over another dim of the mesh", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"data", "pipeline"}})
      local group, d = mesh:get_group "data", mesh:get_local_rank "data"
      for _, how in ipairs {"root", "blocks", "replicas", "mixed"} do
        local alone, net = make(), make()
        for _, m in ipairs(how == "mixed" and {alone, net} or {}) do
          m.head.weight = nn.Parameter(m.emb.weight:detach():clone()) -- tied ones must be sharded alike
        end
        local kind = how == "mixed" and "1f1b" or "interleaved"
        local pipe = cut(net, {mesh = mesh["pipeline"], schedule = kind, split = splits[kind == "1f1b" and 2 or 4]})
        for i, stage in ipairs(pipe.stages) do
          if how == "replicas" or how == "mixed" and rank % 2 == 0 then
            pipe.stages[i] = nn.parallel.DistributedDataParallel(stage, {process_group = group})
          else
            for name, m in stage:named_modules() do
              if how == "blocks" and m:is(Block) then fully_shard(m, {mesh = mesh["data"]}) end
            end
            fully_shard(stage, {mesh = mesh["data"], reshard_after_forward = how == "blocks" or nil})
          end
        end
        train(pipe, alone, {last = 6, own = function(t)
          local at = math.floor(t:size(1) / 2) - 2 -- fewer than micro-batches at times
          return d == 0 and t[{{1, at}}] or t[{{at + 1, t:size(1)}}]
        end, sum = function(loss, n) return dist.all_reduce(loss * n, {group = group}) end})
        same_state(pipe, alone)
      end
    ]])
  end)

  it("weighs micro-batches by the targets that the option count counts", function()
    on.succeeds(4, [[
      local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"data", "pipeline"}})
      local group, d = mesh:get_group "data", mesh:get_local_rank "data"
      local function own(t) return t:narrow(1, 4 * d + 1, 4) end
      local function count(t) return t:ne(-100):sum() end
      local y
      for _, how in ipairs {"sharded", "mixed"} do
        local alone, net = make(), make()
        for _, m in ipairs {alone, net} do m.head.weight = nn.Parameter(m.emb.weight:detach():clone()) end
        local pipe = cut(net, {mesh = mesh["pipeline"], count = count, microbatches = 4, split = splits[2]})
        if how == "mixed" and rank % 2 == 0 then
          pipe.stages[1] = nn.parallel.DistributedDataParallel(pipe.stages[1], {process_group = group})
        else
          fully_shard(pipe.stages[1], {mesh = mesh["data"]})
        end
        train(pipe, alone, {last = 4, own = own, batch = function(step)
          lm.manual_seed(step)
          local x
          x, y = lm.randint(1, 12, {8, 5}), lm.randint(1, 12, {8, 5})
          y[{{2, 3}}] = -100 -- micro-batches without a target
          y[1][2], y[8] = -100, -100
          if step == 2 then y[{{5, 8}}] = -100 end
          return x, y
        end, sum = function(loss)
          local sum = dist.all_reduce(loss * (count(own(y)):item()), {group = group})
          return sum * 8 / count(y):item()
        end})
        same_state(pipe, alone)
        local x, before = own(lm.ones(8, 5):long()), pipe:parameters()[1].grad:clone()
        assert(pipe:step(x, x * 0 - 100):item() == 0)
        assert(pipe:parameters()[1].grad:equal(before))
      end
      local pipe = cut(make(), {mesh = mesh["pipeline"], split = splits[2], count = function() return 0.5 end})
      dist.barrier() -- the error below ends other ranks' calls
      contains(message(pipe.step, pipe, lm.ones(8, 5):long(), lm.ones(8, 5):long()),
        "Pipeline: the result of count must be a non-negative integer, got 0.5")
    ]])
  end)

  it("has stages that begin in place", function()
    on.succeeds(2, [[
      local function chain()
        lm.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(true), nn.Linear(6, 3))
      end
      local alone = chain()
      train(cut(chain(), {split = {"1"}, loss = F.cross_entropy}), alone, {loss = F.cross_entropy, last = 3,
        batch = function(step)
          lm.manual_seed(step)
          return lm.randn(5, 4), lm.randint(1, 4, {5})
        end})
    ]])
  end)

  it("divides models of nn.parallel.parallelize, whose stages may be sharded, too", function()
    for _, n in ipairs { 4, 8 } do
      on.succeeds(n, [[
        local names, shape = {"pipeline", "tensor"}, {2, 2}
        if size == 8 then names, shape = {"shard", "pipeline", "tensor"}, {2, 2, 2} end
        local mesh = dist.init_device_mesh("cpu", shape, {names = names})
        local function gpt2()
          lm.manual_seed(1)
          return lm.models.gpt2 {
            n_embd = 12, n_head = 2, n_layer = 4, n_positions = 8, vocab_size = 30, embd_pdrop = 0, resid_pdrop = 0,
            attn_pdrop = 0,
          }
        end
        local function next_token(y, ids)
          return F.cross_entropy(y:narrow(2, 1, 7):reshape(-1, 30), ids:narrow(2, 2, 7):reshape(-1))
        end
        for _, sequence in ipairs {false, true} do
          local alone, net = gpt2(), gpt2()
          nn.parallel.parallelize(net, mesh["tensor"], net:parallel_plan {gather = true, sequence = sequence})
          local pipe = cut(net, {mesh = mesh["pipeline"], split = {"transformer.h.2"}, loss = next_token})
          local opts = {loss = next_token, last = size == 8 and 2 or 4, batch = function(step)
            lm.manual_seed(step)
            local ids = lm.randint(1, 31, {8, 8})
            return ids, ids
          end}
          if size == 8 then
            fully_shard(pipe.stages[1], {mesh = mesh["shard"]})
            function opts.own(t) return mesh:get_local_rank "shard" == 0 and t[{{1, 5}}] or t[{{6, 8}}] end
            function opts.sum(loss, n) return dist.all_reduce(loss * n, {group = mesh:get_group "shard"}) end
          end
          train(pipe, alone, opts)
          same_state(pipe, alone)
        end
      ]])
    end
  end)

  it("has stages over a mesh that joins dims of another", function()
    on.succeeds(4, [[
      for _, shape in ipairs {{2, 2}, {1, 2, 2}, {2, 1, 2}} do
        local mesh = dist.init_device_mesh("cpu", shape)
        local alone, pipe = make(), cut(make(), {mesh = mesh:flatten({#shape - 1, #shape}, "line"),
          split = splits[shape[#shape - 1] * 2]})
        train(pipe, alone, {last = 2})
        same_state(pipe, alone)
      end
    ]])
  end)

  it("takes part in loss scaling: all ranks skip a step", function()
    on.succeeds(2, [[
      local scaler, x = lm.amp.GradScaler {init_scale = 4, enabled = true}, lm.randint(1, 12, {4, 5})
      local pipe = cut(make(), {loss = function(y, t) return scaler:scale(loss_of(y, t)) end})
      local opt = optim.SGD(pipe:parameters(), {lr = 0.1})
      for step = 1, 2 do
        opt:zero_grad()
        pipe:step(x, x)
        local p = pipe:parameters()[2]
        if step == 2 and rank == 1 then p.grad:fill_(math.huge) end
        local before = p:detach():clone()
        scaler:step(opt)
        scaler:update()
        assert(lm.equal(before, p:detach()) == (step == 2), "step " .. step)
        assert(scaler:get_scale() == (step == 1 and 4 or 2))
      end
      local bias = {} -- the first rank has none
      for name, p in pipe:named_parameters() do
        if name:find "blocks.2.up.bias" then bias = {p} end
      end
      assert(#bias == rank)
      for _, p in ipairs(bias) do p.grad = lm.full_like(p:detach(), 2) end
      near("norm of few", nn.utils.clip_grad_norm_(bias, 1), lm.tensor(math.sqrt(4 * 30)))
    ]])
  end)

  describe("in checkpoints", function()
    local folder = temp.during(setup, teardown)

    -- Trains steps 1 to 4 and saves, or loads into a model of other values and trains steps 5 to 8.
    local half = [[
      local alone = make()
      local net = make()
      local function groups(m)
        if not $grouped then return m:parameters() end
        local of = {{params = {}, weight_decay = 0.1}, {params = {}, weight_decay = 0}}
        for _, p in ipairs(m:parameters()) do table.insert(of[p.ndim > 1 and 1 or 2].params, p) end
        return of
      end
      if not $saves then lm.no_grad(function() for _, p in ipairs(net:parameters()) do p:zero_() end end) end
      local mesh = size == 4 and dist.init_device_mesh("cpu", {2, 2}, {names = {"shard", "pipeline"}})
      local pipe = $layout
      local step = {}
      local a, b = optim.AdamW(groups(alone), {lr = 0.01}), optim.AdamW(groups(pipe), {lr = 0.01})
      local parts, path = {net = pipe, opt = b, step = 4}, "$folder/$name"
      for step = 1, $saves and 4 or 8 do
        local x, y = batch(step)
        a:zero_grad()
        b:zero_grad()
        local whole = loss_of(alone(x), y)
        whole:backward()
        a:step()
        if step == 5 then assert(lm.checkpoint.load(path, parts).step == 4) end
        if $saves or step > 4 then
          local got
          if pipe.step then
            got = pipe:step(x, y)
          else
            got = loss_of(pipe(x), y)
            got:backward()
          end
          near("step " .. step, got, whole)
          b:step()
        end
      end
      if $saves then lm.checkpoint.save(path, parts) end
    ]]
    local function run(n, name, layout, saves, grouped)
      local of = { folder = folder, name = name, layout = layout, saves = saves, grouped = grouped or false }
      on.succeeds(n, (half:gsub("%$(%w+)", function(key) return tostring(of[key]) end)))
    end
    local pipeline, plain = "cut(net)", "net"
    local interleaved = 'cut(net, {schedule = "interleaved", split = splits[4]})'
    local both = [[(function()
      local p = cut(net, {mesh = mesh["pipeline"], split = splits[2]})
      fully_shard(p.stages[1], {mesh = mesh["shard"]})
      return p
    end)()]]

    it("saves stages, and loads them into others, sharded ones and the plain model", function()
      run(2, "two", interleaved, true, true)
      run(3, "two", pipeline, false, true)
      run(1, "two", plain, false, true)
      run(4, "two", both, false, true)
    end)

    it("saves ZeRO's states of stages, and loads them into other stages and an optimizer of the plain model", function()
      on.succeeds(4, ([[
        local mesh = dist.init_device_mesh("cpu", {2, 2}, {names = {"data", "pipeline"}})
        local group, d = mesh:get_group "data", mesh:get_local_rank "data"
        local function build(split)
          local pipe = cut(make(), {mesh = mesh["pipeline"], split = {split}})
          local function zero(opts)
            opts.optimizer_class, opts.lr = optim.AdamW, 0.01
            return optim.ZeroRedundancyOptimizer(pipe:parameters(), opts)
          end
          contains(message(zero, {}), "hold different parts of 'parameter 1'; pass the other dims of its mesh (rank")
          pipe.stages[1] = nn.parallel.DistributedDataParallel(pipe.stages[1], {process_group = group})
          return pipe, zero {process_group = group}
        end
        local alone, how = make(), {last = 3, own = function(t)
          local half = t:size(1) / 2
          return t:narrow(1, d * math.floor(half) + 1, d == 0 and math.floor(half) or math.ceil(half))
        end, sum = function(loss, n) return dist.all_reduce(loss * n, {group = group}) end}
        local pipe, opt = build(splits[2][1])
        how.optimizer = opt
        contains(message(fully_shard, pipe.stages[1].module), "hold different parts of '")
        train(pipe, alone, how)
        contains(message(opt.consolidate_state_dict, opt), "save the states by lm.checkpoint")
        local path = "%s/zero"
        lm.checkpoint.save(path, {net = pipe, opt = opt})
        for _, split in ipairs {splits[2][1], splits[4][1]} do
          local again, b = build(split)
          lm.checkpoint.load(path, {net = again, opt = b})
          local wanted = make()
          local a = optim.AdamW(wanted:parameters(), {lr = 0.01})
          lm.checkpoint.load(path, {net = wanted, opt = a})
          for step = 4, 5 do
            local x, y = batch(step)
            a:zero_grad()
            b:zero_grad()
            loss_of(wanted(x), y):backward()
            again:step(how.own(x), how.own(y))
            a:step()
            b:step()
          end
          same_state(again, wanted)
        end
      ]]):format(folder))
    end)

    it("saves sharded stages and the plain model, and loads them into stages", function()
      run(4, "sharded", both, true)
      run(2, "sharded", pipeline, false)
      run(1, "sharded", plain, false)
      run(1, "plain", plain, true, true)
      run(2, "plain", pipeline, false, true)
    end)

    it("takes part with frozen stages, whose optimizers have no parameters", function()
      on.succeeds(3, (([[
        for _, first in ipairs {3, 4} do -- the first module that trains
          local function new(is_pipe)
            lm.manual_seed(1)
            local net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 2))
            for i = 1, first - 1 do net[i]:requires_grad_(false) end
            if is_pipe then net = cut(net, {split = {"2", "3"}, loss = F.mse_loss}) end
            local groups = {{params = {}, weight_decay = 0.1}, {params = {}}}
            for _, p in ipairs(net:parameters()) do
              if p.requires_grad then table.insert(groups[p.ndim > 1 and 1 or 2].params, p) end
            end
            return {net = net, opt = optim.AdamW(groups, {lr = 0.01})}
          end
          local function step(parts)
            lm.manual_seed(1)
            local x, y = lm.randn(6, 3), lm.randn(6, 2)
            parts.opt:zero_grad()
            if parts.net.step then parts.net:step(x, y) else F.mse_loss(parts.net(x), y):backward() end
            parts.opt:step()
          end
          local paths = {"$/pipe", "$/alone"}
          for i, path in ipairs(paths) do
            local parts = new(i == 1)
            step(parts)
            lm.checkpoint.save(path, parts)
          end
          local wanted = new()
          for _ = 1, 2 do step(wanted) end
          for _, path in ipairs(paths) do
            for i = 1, 2 do
              local parts = new(i == 1)
              if i == 1 then parts.net:parameters()[1]:detach():zero_() end
              lm.checkpoint.load(path, parts)
              step(parts)
              same_state(parts.net, wanted.net)
            end
          end
        end
      ]]):gsub("%$", folder)))
    end)
  end)

  it("makes the stages of a model without memory, and frees the others", function()
    on.succeeds(2, [[
      local function chain()
        local list = {}
        for i = 1, 8 do list[i] = nn.Linear(256, 256) end
        return nn.Sequential(unpack(list))
      end
      local base, net = lm.memory_allocated(), nn.utils.init_empty_weights(chain)
      local opts = {mesh = dist.init_device_mesh("cpu", {2}), split = {"4"}, microbatches = 2, loss = F.mse_loss}
      local half = 4 * 8 * (256 * 256 + 256)
      local pipe = Pipeline(net, opts)
      collectgarbage()
      collectgarbage()
      assert(lm.memory_allocated() - base < half * 1.02, "not half of the model")
      assert(pipe:parameters()[1]:std():item() > 0.01)
      pipe:step(lm.randn(2, 256), lm.randn(2, 256))
      local other = chain()
      pipe = Pipeline(other, opts)
      contains(message(function() return other[rank == 0 and 5 or 1].weight:sum() end), "freed")
      net, pipe, other = nil, nil, nil
      collectgarbage()
      collectgarbage()
      base = lm.memory_allocated()
      local mesh = dist.init_device_mesh("cpu", {1, 2}, {names = {"shard", "pipeline"}})
      opts.mesh = mesh["pipeline"]
      local kept = Pipeline(chain(), opts)
      fully_shard(kept.stages[1], {mesh = mesh["shard"]})
      collectgarbage()
      collectgarbage()
      local left = (lm.memory_allocated() - base) / half
      assert(left < 9 / 8 * 1.02, left .. " halves are left of a model that is sharded")
    ]])
  end)

  it("refuses what it cannot cut", function()
    on.succeeds(1, [[
      local padded = nn.parallel.DistributedDataParallel(lm.models.gpt2 {
        n_embd = 4, n_head = 1, n_layer = 1, vocab_size = 30, n_positions = 8, pad_vocab_to = 16,
      })
      assert(padded:state_dict()["transformer.wte.weight"]:size(1) == 30, "hooks see another name in a wrapper")
      local mesh = dist.init_device_mesh("cpu", {1})
      local function refused(net, opts, wanted)
        local all = {mesh = mesh, microbatches = 1, split = {}}
        for key, value in pairs(opts) do all[key] = value or nil end
        contains(message(Pipeline, net, all), wanted)
      end
      local Own = nn.Module:extend "Own"
      function Own:init()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
      end
      refused(Own(), {}, "define Own:pipeline_parts(), or pass {parts")
      refused(Own(), {parts = {"a", "c"}}, "a name in parts must be that of a module, parameter or buffer of Own, got")
      refused(Own(), {parts = {"a", 3}}, "a name in parts must be")
      refused(Own(), {parts = {"a", "b.weight"}}, "a part must be the name of a module")
      refused(Own(), {parts = {"a", {"b"}}}, "forward of a part is missing")
      refused(Own(), {parts = {"a"}}, "no part has the parameter 'b.weight'")
      refused(make(), {split = {"blocks.9"}}, "parts are emb, blocks.0, blocks.1")
      refused(make(), {split = {"emb"}}, "must be the name of a later part")
      refused(make(), {split = {"blocks.2", "blocks.1"}}, "split[2] must be")
      refused(make(), {split = false}, "split and microbatches are required")
      refused(make(), {mesh = 3}, "mesh must be a mesh of one dim")
      refused(make(), {microbatches = 0}, "microbatches")
      refused(make(), {schedule = "zb"}, "schedule")
      local net = make()
      local pipe = Pipeline(net, {mesh = mesh, microbatches = 2, split = {"blocks.2"}})
      contains(message(pipe.step, pipe, lm.ones(2, 5), lm.ones(2, 5)), "needs the option loss")
      contains(message(pipe), "the first stage needs the batch")
    ]])
    on.succeeds(1, [[
      local mesh = dist.init_device_mesh("cpu", {1})
      local pipe = Pipeline(make(), {mesh = mesh, split = {}, microbatches = 2, loss = F.mse_loss})
      contains(message(pipe.step, pipe, lm.ones(2, 5)), "the last stage needs the target")
    ]])
    on.succeeds(1, [[
      local mesh = dist.init_device_mesh("cpu", {1})
      local pipe = Pipeline(make(), {mesh = mesh, split = {}, microbatches = 2, loss = F.mse_loss})
      contains(message(pipe.step, pipe, {lm.ones(3, 5), lm.ones(2, 5)}, lm.ones(3)),
        "Pipeline: the batch's first tensor has 3 samples, tensor 2 2")
    ]])
    on.succeeds(2, [[
      local mesh = dist.init_device_mesh("cpu", {2})
      local opts = {mesh = mesh, microbatches = 1, split = splits[4]}
      contains(message(Pipeline, make(), opts), "must have 1 names for 2 ranks")
      opts.split, opts.schedule = splits[3], "interleaved"
      contains(message(Pipeline, make(), opts), "one less than a multiple of the ranks, got 2")
      opts.split, opts.schedule = {"1"}, nil
      contains(message(Pipeline, nn.Sequential(nn.Linear(2, 2), nn.ReLU()), opts), "stage 2 has no parameters")
      local Hidden = nn.Module:extend "Hidden"
      function Hidden:init()
        self.a, self.b, self.act = nn.Linear(5, 5), nn.Linear(5, 5), nn.ReLU()
      end
      opts.split, opts.loss = {"b"}, F.mse_loss
      opts.parts = {"a", {"b", forward = function(net, x) return net.act(net.b(x)) end}}
      local pipe = Pipeline(Hidden(), opts)
      if rank == 1 then contains(message(pipe.stages[1], lm.ones(1, 5)), "stages names 'act', which one uses") end
    ]])
  end)

  -- Runs a script of two ranks that must fail on both, within 10 s, with these texts by rank.
  local function fails(script, ...)
    local got = on.run(2, script)
    for rank, wanted in ipairs {...} do
      assert.not_equal(0, got[rank - 1].code, got.text)
      within(got[rank - 1].seconds, 10, got.text)
      assert.matches(wanted, got[rank - 1].output, 1, true)
    end
  end

  it("names the places of ranks that differ, fail or stop", function()
    fails("cut(make(), {microbatches = 2 + rank})", "rank 0 = pipeline 0; rank 1 = pipeline 1",
      "here schedule 1f1b, 3 micro-batches; there schedule 1f1b, 2 micro-batches")
    fails([[
      local pipe = cut(make())
      if rank == 1 then function Block:forward() error "no luck" end end
      local x = batch(1)
      pipe:step(x, x)
    ]], "(rank 0 = pipeline 0; rank 1 = pipeline 1)", "no luck (rank 1 = pipeline 1)")
    fails([[
      local pipe = cut(make())
      local x = batch(1)
      if rank == 1 then pipe(x) else pipe:step(x, x) end
    ]], "rank 1 = pipeline 1", "this rank calls forward, but rank 0 calls step")
    fails([[
      local pipe = cut(make())
      local x = batch(1)
      pipe:step(x, x)
      if rank == 1 then require("os").exit(3) end
      pipe:step(x, x)
    ]], "(rank 0 = pipeline 0; rank 1 = pipeline 1)")
    fails([[
      local net = make()
      local pipe = cut(net, {loss = function(y) return y end})
      local x = batch(1)
      pipe:step(x, x)
    ]], "rank 1 = pipeline 1", "the result of loss must be a tensor of one element")
  end)
end)
