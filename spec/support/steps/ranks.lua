--- Training steps of several ranks, each with its own samples.
local lm = require "luminary"
local lists = require "luminary.base.lists"
local nn, optim = lm.nn, lm.optim
local list, add = require "spec.support.steps.list"()
local clip_norm = nn.utils.clip_grad_norm_
local parallel = nn.parallel

local function ranked(name, make, kinds)
  add(name, function(c, t)
    local rank = lm.dist.get_rank()
    t.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)):to(c.dtype)
    function t.inputs() return c.randn(4, 6) * (rank + 1), (lm.randint(1, 4, {4}) + rank - 1) % 3 + 1 end
    make(c, t)
    c.in_buckets = name:find "^DistributedDataParallel" ~= nil
  end, kinds)
end

for _, static in ipairs {false, true} do
  ranked("DistributedDataParallel" .. (static and ", a static graph" or ""), function(_, t)
    t.net = parallel.DistributedDataParallel(t.net, {bucket_cap_mb = 1e-4, static_graph = static})
    function t.stepped() return clip_norm(t.net:parameters(), 0.5) end
  end)
end
ranked("DistributedDataParallel, SyncBatchNorm and AdamW", function(c, t)
  t.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)):to(c.dtype)
  t.net = parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(t.net))
  t.opt = optim.AdamW(t.net:parameters(), {lr = 0.05})
end)
ranked("DistributedDataParallel, accumulation by no_sync", function(c, t)
  t.net = parallel.DistributedDataParallel(t.net)
  function t.step(x, y)
    t.opt:zero_grad()
    t.net:no_sync(function() c.run(t.loss, x, y):backward() end)
    local loss = c.run(t.loss, x * 2, y)
    loss:backward()
    t.opt:step()
    return loss
  end
end)
ranked("DistributedDataParallel, ZeroRedundancyOptimizer, a bfloat16 hook", function(_, t)
  t.net = parallel.DistributedDataParallel(t.net)
  t.net:register_comm_hook(nil, "bf16_compress")
  t.opt = optim.ZeroRedundancyOptimizer(t.net:parameters(), optim.Adam, {lr = 0.05})
end, {"float32"})
for name, options in lists.sorted_pairs {
  fully_shard = {}, ["fully_shard, kept for backward"] = {reshard_after_forward = false},
  ["fully_shard in bfloat16"] = {mixed_precision = {param_dtype = "bfloat16", reduce_dtype = "float32"}},
} do
  ranked(name, function(_, t)
    for _, part in ipairs {t.net[1], t.net[3], t.net} do parallel.fully_shard(part, options) end
    t.opt = optim.AdamW(t.net:parameters(), {lr = 0.05})
    function t.stepped() return clip_norm(t.net:parameters(), 1) end
  end, name == "fully_shard" and {"float32", "bfloat16", "autocast"} or {"float32"})
end
ranked("a collective in the step", function(c, t)
  function t.step(x, y)
    t.opt:zero_grad()
    local loss = c.run(t.loss, x, y)
    loss:backward()
    for _, p in ipairs(t.net:parameters()) do lm.dist.all_reduce(p.grad) end
    t.opt:step()
    loss = loss:detach():clone()
    lm.dist.all_reduce(loss)
    return loss
  end
end)

return list
