--- Scripts of several ranks (several.lua) that shard models with nn.parallel.fully_shard.
--- Scripts find a small language model without attention, in float64; `pair(opts)` returns two equal ones, of which the
--- second is sharded.
local several = require "spec.support.several"

return several([[
  local core = require "luminary.core"
  local fully_shard = nn.parallel.fully_shard
  lm.set_default_dtype "float64"
  local Block = nn.Module:extend("Block")
  function Block:init(d)
    self.norm = nn.LayerNorm(d)
    self.up = nn.Linear(d, 3 * d)
    self.down = nn.Linear(3 * d, d)
  end
  function Block:forward(x) return x + self.down(F.gelu(self.up(self.norm(x)))) end
  local Net = nn.Module:extend("Net")
  function Net:init(d, n)
    self.emb = nn.Embedding(11, d)
    self.blocks = nn.ModuleList()
    for i = 1, n do self.blocks:append(Block(d)) end
    self.norm = nn.LayerNorm(d)
    self.head = nn.Linear(d, 11, {bias = false})
  end
  function Net:forward(ids)
    local h = self.emb(ids)
    for _, b in ipairs(self.blocks) do h = b(h) end
    return self.head(self.norm(h))
  end
  local function shard(net, opts)
    for _, b in ipairs(net.blocks) do fully_shard(b, opts) end
    return fully_shard(net, opts)
  end
  local function pair(opts, change)
    lm.manual_seed(1)
    local alone = Net(10, 3)
    lm.manual_seed(rank + 1) -- ranks start with different parameters: rank 0's count
    local net = Net(10, 3)
    if change then
      change(alone)
      change(net)
    end
    return alone, shard(net, opts)
  end
  local function batch(step, n)
    lm.manual_seed(step)
    local x = lm.randint(1, 12, {n or 8, 5})
    return x, lm.randint(1, 12, {n or 8, 5})
  end
  local function loss_of(net, x, y) return F.cross_entropy(net(x):view(-1, 11), y:reshape(-1)) end
  -- This rank's samples; the last rank has one more than its share, and the first one less.
  local function part_of(t)
    local n = t:size(1) / size
    local first, last = rank * n + (rank > 0 and 0 or 1), (rank + 1) * n - (rank < size - 1 and 1 or 0)
    return t[{{first, last}}]
  end
  local function full_grads(net)
    local list = {}
    for name, p in net:named_parameters() do
      local joined = lm.zeros {size * p:size(1), unpack(p.shape, 2)}
      if p.grad then dist.all_gather_into_tensor(joined, p.grad) end
      list[name] = joined
    end
    return list
  end
  -- Fails unless the gradients of a sharded net are those of another.
  local function same_grads(what, net, alone)
    local got = full_grads(net)
    for name, p in alone:named_parameters() do
      if p.grad then
        local own = got[name]:view {-1}:narrow(1, 1, p:numel()):view(p.shape)
        local off = (own - p.grad):abs():max():item()
        if not (off < 1e-12) then error(what .. ": " .. name .. " is off by " .. off) end
      end
    end
  end
]], 60)
