--- Samplers: in which order a loader visits a set. Each has :len() and :indices(), a 1-d int64 tensor of
--- sample numbers for one epoch. A user's own may have :iter(), a Lua iterator, instead.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local dataset = require "luminary.data.dataset"
local dist = require "luminary.dist"
local fail = options.fail

local function count_to(n) return core.ops.arange(1, n + 1, {dtype = "int64"}) end

--- data.Sampler: extend it and write len and iter (or indices).
local Sampler = class.root("Sampler")
function Sampler:len() fail("%s: define function %s:len()", self.__name, self.__name) end

--- for i in sampler:iter() do
function Sampler:iter()
  local order, i = self:indices(), 0
  local n = order.shape[1]
  return function()
    i = i + 1
    if i <= n then return order:select(1, i):item() end
  end
end

--- data.SequentialSampler(set): 1, 2, 3, …
local Sequential = Sampler:extend("SequentialSampler")
function Sequential:init(set) self.set = dataset.check("SequentialSampler", set) end
function Sequential:len() return dataset.length("SequentialSampler", self.set) end
function Sequential:indices() return count_to(self:len()) end

--- data.RandomSampler(set): another order each epoch, from the default generator.
local Random = Sampler:extend("RandomSampler")
function Random:init(set) self.set = dataset.check("RandomSampler", set) end
function Random:len() return dataset.length("RandomSampler", self.set) end
function Random:indices() return core.ops.randperm(self:len()) end

--- data.DistributedSampler(set [, {num_replicas, rank, shuffle = true, seed = 0, drop_last = false}]): each
--- rank its own share. Every rank draws the same order from seed and epoch and takes every num_replicas-th
--- sample; the order is padded with its own beginning so that all shares are equal (drop_last: cut
--- instead). Ranks are the process group's, or one of one without a group.
local Distributed = Sampler:extend("DistributedSampler")

function Distributed:init(set, opts)
  self.set = dataset.check("DistributedSampler", set)
  opts = options.check("DistributedSampler", opts, {
    num_replicas = {"count"}, rank = {"natural"}, shuffle = {"boolean", true}, seed = {"natural", 0},
    drop_last = {"boolean", false},
  }, "num_replicas")
  local grouped = dist.is_initialized()
  self.num_replicas = opts.num_replicas or (grouped and dist.get_world_size() or 1)
  self.rank = opts.rank or (grouped and dist.get_rank() or 0)
  self.shuffle, self.seed, self.drop_last, self.epoch = opts.shuffle, opts.seed, opts.drop_last, 0
  local n = dataset.length("DistributedSampler", set)
  if self.rank >= self.num_replicas then
    fail("DistributedSampler: rank %d is outside a world of %d; ranks count from 0", self.rank, self.num_replicas)
  end
  if n < self.num_replicas then
    fail("DistributedSampler: %d samples cannot be shared by %d ranks: run at most %d processes, or use a larger set",
      n, self.num_replicas, n)
  end
  self.share = opts.drop_last and math.floor(n / self.num_replicas) or math.ceil(n / self.num_replicas)
end

function Distributed:len() return self.share end

--- Another epoch, another order. loader:epoch(n) calls it.
function Distributed:set_epoch(epoch) self.epoch = options.arg("set_epoch", "epoch", epoch, "natural") end

function Distributed:indices()
  local n, total = dataset.length("DistributedSampler", self.set), self.share * self.num_replicas
  local order = self.shuffle and core.permutation(n, self.seed + self.epoch) or count_to(n)
  if total > n then order = core.ops.cat {order, order:narrow(1, 1, total - n)} end
  if self.num_replicas == 1 and total == n then return order end
  return order:slice(1, self.rank + 1, total, self.num_replicas):contiguous()
end

return {
  Sampler = Sampler, SequentialSampler = Sequential, RandomSampler = Random, DistributedSampler = Distributed,
}
