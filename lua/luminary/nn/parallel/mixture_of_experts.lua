--- nn.MixtureOfExperts(…): Sends each token to the best k of several feed-forward networks, which ranks may divide.
--- Shazeer et al., "Outrageously Large Neural Networks", 2017; with capacity and an exchange of tokens by all_to_all:
--- Lepikhin et al., "GShard", 2021.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local device_mesh = require "luminary.distributed.device_mesh"
local alike = require "luminary.distributed.same_on_all_ranks"
local layer = require "luminary.nn.define_layer"
local init = require "luminary.nn.initializers"
local Linear = require("luminary.nn.linear").Linear
local ModuleList = require("luminary.nn.containers").ModuleList
local meta = require "luminary.nn.meta"
local collective = require "luminary.nn.parallel.collective_functions"
local placement = require "luminary.nn.parallel.placement"

local ops, who = core.ops, "MixtureOfExperts"
local NAMES = {"w1", "w2", "w3"}

-- The experts of this rank: w2 (activation(w1 x) * w3 x), weights [experts, out, in], w3 only if gated.
local Experts = layer.define "GroupedExperts"

function Experts:init(dim, hidden_dim, count, o)
  local size = o.mesh and o.mesh:size() or 1
  self.count, self.first, self.activation = count, o.mesh and o.mesh.place[1] * count / size or 0, o.activation
  for i, name in ipairs(o.gated and NAMES or {"w1", "w2"}) do
    local out, inputs = i == 2 and dim or hidden_dim, i == 2 and hidden_dim or dim
    self[name] = layer.parameter({count / size, out, inputs}, o)
    if size > 1 then
      local shape = {count, out, inputs}
      placement.split(self[name], {mesh = o.mesh, dim = 1, shape = shape, sizes = {count}, averages = true})
    end
  end
  self:reset_parameters()
end

--- Draws the parameters again, as at construction: those of all experts, of which a rank keeps its own.
function Experts:reset_parameters()
  if meta.is_on() then return end
  for _, name in ipairs(NAMES) do
    local p = self[name]
    local other = p and ops.empty_like(p:detach()[1])
    for i = 1, p and self.count or 0 do
      local own = i - self.first
      init._layer(own >= 1 and own <= p:size(1) and p:detach()[own] or other)
    end
  end
end

function Experts:forward(x)
  local h = ops[self.activation](ops.bmm(x, self.w1:transpose(2, 3)))
  if self.w3 then h = h * ops.bmm(x, self.w3:transpose(2, 3)) end
  return ops.bmm(h, self.w2:transpose(2, 3))
end

-- Scores experts. Its weight stays floating point in lm.quantize: rounded, it would choose other experts.
local Router = layer.define("Router", Linear)
Router.to_int8 = false

local MixtureOfExperts = layer.define(who)

MixtureOfExperts.init = signature.of([[MixtureOfExperts(dim: count, hidden_dim: count, num_experts: count,
  {top_k: count = 2, capacity_factor: positive, norm_topk_prob: boolean, gated = true,
  activation = "silu" | "gelu" | "relu", expert: function, mesh, device,
  dtype: string})]], function(self, dim, hidden_dim, count, o)
  if o.top_k > count then options.must_be(who, "top_k", ("at most num_experts, %d"):format(count), o.top_k) end
  if o.mesh ~= nil then
    device_mesh.check(who, o.mesh)
    options.divisible(who, "num_experts", count, "the number of ranks", o.mesh:size())
  end
  self.dim, self.hidden_dim, self.num_experts, self.top_k = dim, hidden_dim, count, o.top_k
  self.capacity_factor, self.norm_topk_prob, self.mesh = o.capacity_factor, o.norm_topk_prob, o.mesh
  if o.norm_topk_prob == nil then self.norm_topk_prob = o.top_k > 1 end
  self.gate = Router(dim, count, {bias = false, device = o.device, dtype = o.dtype})
  for _, name in ipairs(o.expert and {"mesh", "capacity_factor"} or {}) do
    if o[name] ~= nil then options.exclusive(who, "expert", name) end
  end
  local list = {}
  for i = 1, o.expert and count or 0 do list[i] = o.expert(i) end
  self.experts = o.expert and ModuleList(list) or Experts(dim, hidden_dim, count, o)
end)

layer.prints(MixtureOfExperts, "dim hidden_dim num_experts top_k capacity_factor")

-- Checks, in the first forward pass, that the layer is alike on all ranks: they exchange tokens in its sizes.
local function check_ranks(self)
  if self.is_checked or not self.mesh then return end
  self.mesh:call(alike, self.mesh.groups[1], who, "layer differs", {
    ("dim %d, hidden_dim %d"):format(self.dim, self.hidden_dim), "num_experts " .. self.num_experts,
    ("top_k %d, norm_topk_prob %s"):format(self.top_k, tostring(self.norm_topk_prob)),
    "capacity_factor " .. tostring(self.capacity_factor),
    ("activation %s, gated %s"):format(self.experts.activation, tostring(self.experts.w3 ~= nil)),
  }, "layer")
  self.is_checked = true
end

-- Returns the tensors t, of one dim, of all ranks: [ranks, its size].
local function gather(mesh, t) return mesh and collective.stacked(t, mesh) or t:unsqueeze(1) end

-- Returns a list of the ranks' numbers of tokens, which go from CPU to CPU: the host waits for no device.
local function gather_sizes(mesh, tokens)
  return gather(mesh, core.tensor({tokens}, {dtype = "int64", device = "cpu"})):flatten():tolist()
end

-- Returns the index of a slot for each row: blocks of sizes[i] rows take neighboring slots, from first[i] on.
local function slots_of(first, sizes, device)
  local offsets, ends, rows = {}, {}, 0
  for i, size in ipairs(sizes) do
    offsets[i], rows = first[i] - rows - 1, rows + size
    ends[i] = rows
  end
  local how = {dtype = "int64", device = device}
  local blocks, row = core.tensor({offsets, ends}, how), ops.arange(1, rows + 1, how)
  return row + blocks[1]:index_select(1, ops.searchsorted(blocks[2], row))
end

-- Runs the experts on rows that are sorted by expert; all: a list of counts by rank.
local function run_all(self, rows, all)
  local n, rank = #all, self.mesh and self.mesh.place[1] or 0
  local count, sent, received, first, sizes, filled = self.num_experts / n, {}, {}, {}, {}, {}
  for r = 1, n do
    sent[r], received[r] = 0, 0
    for e = 1, count do
      local size = all[r][rank * count + e]
      sent[r], received[r] = sent[r] + all[rank + 1][(r - 1) * count + e], received[r] + size
      first[#first + 1], sizes[#sizes + 1], filled[e] = filled[e] or 0, size, (filled[e] or 0) + size
    end
  end
  local slots = math.max(unpack(filled))
  for i = 1, #first do first[i] = first[i] + (i - 1) % count * slots + 1 end
  if n > 1 then rows = collective.all_to_all(rows, self.mesh, sent, received) end
  local slot = slots_of(first, sizes, rows.device)
  local x = ops.zeros({count * slots, self.dim}, {dtype = rows.dtype, device = rows.device}):index_add(1, slot, rows)
  local y = self.experts(x:view(count, slots, self.dim)):flatten(1, 2):index_select(1, slot)
  return n > 1 and collective.all_to_all(y, self.mesh, received, sent) or y
end

-- Runs experts that are modules, a list, on rows that are sorted by expert; counts: a list of numbers of rows.
local function run_each(experts, rows, counts)
  local results, first = {}, 1
  for i, count in ipairs(counts) do
    if count > 0 then results[#results + 1] = experts[i](rows:narrow(1, first, count)) end
    first = first + count
  end
  return results[1] and ops.cat(results, 1) or rows
end

-- Runs the experts on the rows that have one of the `slots` slots of this rank for an expert, which is their number
-- `expert`; results of others are 0.
local function run_within(self, rows, expert, counts, slots, n)
  local position = ops.arange(1, rows:size(1) + 1, {dtype = "int64", device = rows.device})
    - (counts:cumsum(1) - counts):index_select(1, expert)
  local kept = position:le(slots):to(rows.dtype):unsqueeze(2)
  local slot, count = (expert - 1) * slots + position:clamp(nil, slots), self.num_experts / n
  local x = ops.zeros({n * count * slots, self.dim}, {dtype = rows.dtype, device = rows.device})
  x = x:index_add(1, slot, rows * kept)
  if n > 1 then x = collective.all_to_all(x, self.mesh) end
  local y = self.experts(x:view(n, count, slots, self.dim):transpose(1, 2):flatten(2, 3))
  y = y:view(count, n, slots, self.dim):transpose(1, 2):flatten(1, 3)
  if n > 1 then y = collective.all_to_all(y, self.mesh) end
  return y:index_select(1, slot) * kept:to(y.dtype)
end

--- layer(x): Returns the weighted sums of the experts' results, like x [..., dim]. Sets the fields balance_loss and
--- z_loss, to add to a loss, and tokens_per_expert.
function MixtureOfExperts:forward(x)
  if not core.is_tensor(x) or x.ndim == 0 or x:size(x.ndim) ~= self.dim then
    options.wrong_shape(who, "x", x, ("[..., %d]"):format(self.dim))
  end
  check_ranks(self)
  local tokens, k, count = x:numel() / self.dim, self.top_k, self.num_experts
  local flat = x:reshape {tokens, self.dim}
  local logits = self.gate(flat)
  if logits.dtype ~= "float64" then logits = logits:float() end
  local probabilities = ops.softmax(logits, 2)
  local weights, chosen = ops.topk(probabilities, k, 2)
  if self.norm_topk_prob then weights = weights / weights:sum(2, true) end
  local expert = chosen:transpose(1, 2):flatten() -- first choices come before second ones
  local counts = ops.zeros({count}, {dtype = "int64", device = x.device}):scatter_add(1, expert, ops.ones_like(expert))
  local all = gather(self.mesh, counts)
  local order = expert:argsort(1, false, {stable = true})
  local token = (order - 1) % math.max(tokens, 1) + 1

  local fraction = all:sum(1):to(logits.dtype) / all:sum():clamp(1)
  self.balance_loss = count / math.max(tokens, 1) * (fraction * probabilities:sum(1)):sum()
  self.z_loss = logits:logsumexp(2):square():sum() / math.max(tokens, 1)
  self.tokens_per_expert = counts

  -- Here alone the host waits for the device: for the numbers of all ranks' choices by expert, or of their tokens.
  local rows, list = flat:index_select(1, token), not self.capacity_factor and all:tolist()
  local sizes = list and lists.map(list, function(choices) return lists.sum(choices) / k end)
    or gather_sizes(self.mesh, tokens)
  local share = tokens / lists.sum(sizes)
  -- Experts' gradients are averages over the tokens of all ranks: each rank's part is weighted.
  local function weigh(t, factor)
    if #sizes == 1 or not t.requires_grad then return end
    t:register_hook(function(g)
      if core.is_grad_enabled() then -- a second backward pass would weigh again
        options.fail("%s: create_graph is not supported; experts' gradients are averages over the ranks' tokens", who)
      end
      return g * factor
    end)
  end
  weigh(rows, 1 / share)
  local y
  if self.experts:is(ModuleList) then
    y = run_each(self.experts, rows, list[1])
  elseif list then
    y = run_all(self, rows, list)
  else
    local most = math.max(1, unpack(sizes)) -- a token chooses an expert once
    local slots = math.max(1, math.min(most, math.ceil(self.capacity_factor * most * k / count)))
    y = run_within(self, rows, expert:index_select(1, order), counts, slots, #sizes)
  end
  weigh(y, share)
  y = y * weights:transpose(1, 2):flatten():index_select(1, order):unsqueeze(2):to(y.dtype)
  return ops.zeros({tokens, self.dim}, {dtype = y.dtype, device = y.device}):index_add(1, token, y):view(x.shape)
end

return MixtureOfExperts
