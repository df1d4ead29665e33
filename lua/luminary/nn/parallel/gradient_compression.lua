--- Compresses gradients with error feedback, for communication hooks: by low rank (PowerSGD) and to 8-bit integers.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local rank_and_size = require "luminary.base.rank_and_size"
local signature = require "luminary.base.signature"
local collectives = require "luminary.distributed.collectives"
local joined = require "luminary.tensor.joined"
local fail, ops = options.fail, core.ops

-- ---- states

--- Holds, by the parameters' names, the tensors that a hook keeps from step to step: `error`, the gradients that this
--- rank has not sent yet, and others that are equal on all ranks.
local State = class.root("CommHookState")
State.differs_by_rank = true -- checkpoints hold the state of each rank
State.__inner = {"kept", "keep", "reduce"}

local function prepare(self) self.tensors, self.iter = {error = {}}, 0 end

--- Returns a tensor that was kept for a parameter, as `like` needs it, or nil.
function State:kept(kind, name, shape, like)
  local t = self.tensors[kind][name]
  if t and table.concat(t.shape, ",") ~= table.concat(shape, ",") then
    fail("%s: the loaded %s of '%s' has shape [%s], expected [%s]; load the state of the same model", self.__name, kind,
      name, table.concat(t.shape, ", "), table.concat(shape, ", "))
  end
  return t and t:to(like.device):to(like.dtype)
end

-- Keeps a tensor. A sum that overflowed must not stay: elements that are not finite become zero.
function State:keep(kind, name, t)
  self.tensors[kind][name] = core.keep(ops.nan_to_num(t, {nan = 0, posinf = 0, neginf = 0}))
end

--- Returns the state of this rank: the number of steps and the kept tensors. lm.checkpoint saves each rank's.
function State:state_dict()
  local dict = {iter = self.iter, world_size = select(2, rank_and_size())}
  for kind, tensors in pairs(self.tensors) do
    dict[kind] = {}
    for name, t in pairs(tensors) do dict[kind][name] = t end
  end
  return dict
end

--- Loads a state_dict. Of another number of ranks' it takes all but the errors, which begin again at zero.
function State:load_state_dict(dict)
  local who, new = self.__name .. ":load_state_dict", {}
  options.arg(who, "dict", dict, "table")
  local iter = options.arg(who, "iter", dict.iter, "natural")
  for kind in pairs(self.tensors) do
    new[kind] = {}
    for name, t in pairs(options.arg(who, kind, dict[kind], "table")) do
      new[kind][name] = core.keep(options.arg(who, kind .. " of " .. tostring(name), t, "tensor"):clone())
    end
  end
  if dict.world_size ~= select(2, rank_and_size()) then new.error = {} end
  self.tensors, self.iter = new, iter
end

-- Returns the dtype of sums and kept tensors.
local function wide(buffer) return core.dtype_size(buffer.dtype) <= 2 and "float32" or buffer.dtype end

--- nn.parallel.comm_hooks.PowerSGDState(…): Holds the options of powerSGD_hook, and what it keeps from step to step.
--- Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019.
local PowerSGD = class.define("PowerSGDState", State)

PowerSGD.init = signature.fields([[PowerSGDState({process_group, matrix_approximation_rank: count = 1,
  start_powerSGD_iter: natural = 1000, min_compression_rate: positive = 2, use_error_feedback = true,
  warm_start = true, orthogonalization_epsilon: positive = 0, random_seed: natural = 0})]], function(self)
  prepare(self)
  self.tensors.q = {}
end)

-- Makes the columns of p orthonormal, in place, by Gram-Schmidt. The second pass makes up for columns that depended on
-- others up to rounding; a column of zeros remains one.
local function orthogonalize(p, epsilon)
  for i = 1, p.shape[2] do
    local column, before = p:narrow(2, i, 1), i > 1 and p:narrow(2, 1, i - 1)
    for _ = 1, before and 2 or 1 do
      if before then column:sub_(before:mm(before:t():mm(column))) end
      column:div_((column:norm() + epsilon):clamp({min = 2 ^ -126}))
    end
  end
  return p
end

local function random(state, number, shape, like)
  local generator = core.generator("cpu")
  core.seed_generator(generator, state.random_seed + 7919 * state.iter + number)
  return ops.randn(shape, {generator = generator, dtype = "float32"}):to(like.device):to(like.dtype)
end

function PowerSGD:reduce(bucket, group)
  local buffer, gradients = bucket:buffer(), bucket:gradients()
  local sent, low, dtype, epsilon = {}, {}, wide(buffer), self.orthogonalization_epsilon
  for i, g in ipairs(gradients) do
    local name, n = bucket:names()[i], g.ndim > 0 and g.shape[1] or 1
    local m = n > 0 and g:numel() / n or 0
    local rank = math.min(n, m, self.matrix_approximation_rank)
    if (n + m) * rank * self.min_compression_rate < n * m then
      local error = self.use_error_feedback and self:kept("error", name, g.shape, buffer)
      if error then g:add_(error) end
      local matrix = g:to(dtype):reshape(n, m)
      local q = self.warm_start and self:kept("q", name, {m, rank}, matrix)
        or random(self, bucket.members[i], {m, rank}, matrix)
      q = orthogonalize(q:clone(), epsilon)
      low[#low + 1], sent[i] = {i = i, name = name, matrix = matrix, q = q}, matrix:mm(q)
    else
      sent[i] = g:to(dtype)
    end
  end
  local message = joined.vector(sent)
  local work = collectives.all_reduce(message, {group = group, async_op = true})
  return {wait = function()
    work:wait()
    local came, qs = joined.parts(message, sent), {}
    for k, each in ipairs(low) do
      each.p = orthogonalize(came[each.i], epsilon)
      qs[k] = each.matrix:t():mm(each.p)
    end
    if #low > 0 then
      local second = joined.vector(qs)
      collectives.all_reduce(second, {group = group})
      qs = joined.parts(second, qs)
    end
    for k, each in ipairs(low) do
      local sum = each.p:mm(qs[k]:t())
      came[each.i] = sum
      if self.use_error_feedback then
        self:keep("error", each.name, (each.matrix - sum / group.size):view(gradients[each.i].shape))
      end
      if self.warm_start then -- the former q, if the sum is not finite
        self:keep("q", each.name, ops.where(ops.isfinite(qs[k]):all(), qs[k], each.q))
      end
    end
    for i, g in ipairs(gradients) do g:copy_(came[i]:view(g.shape)) end
    return buffer
  end}
end

--- nn.parallel.comm_hooks.Int8State(…): Holds the options of int8_hook, and the rounding errors of the last step.
local Int8 = class.define("Int8State", State)

Int8.init = signature.fields("Int8State({process_group, block_size: count = 1024})", prepare)

-- Returns x, of whole blocks, as integers and a scale for each block.
local function quantize(x, block)
  local rows = x:view(-1, block)
  local scale = (rows:abs():amax(2, {keepdim = true}) / 127):clamp({min = 2 ^ -126})
  return (rows / scale):round():to("int8"):view(-1), scale:view(-1)
end

local function dequantize(q, scale, block)
  return (q:view(-1, block):to(scale.dtype) * scale:view(-1, 1)):view(-1)
end

function Int8:reduce(bucket, group)
  local buffer, block, names = bucket:buffer(), self.block_size, bucket:names()
  local count = buffer:numel()
  for i, g in ipairs(bucket:gradients()) do
    local error = self:kept("error", names[i], g.shape, buffer)
    if error then g:add_(error) end
  end
  local part = math.ceil(count / (group.size * block)) * block
  local all = buffer:new_zeros({part * group.size}, {dtype = wide(buffer)})
  all:narrow(1, 1, count):copy_(buffer)
  local q, scale = quantize(all, block)
  local parts, scales = q:new_empty(q.shape), scale:new_empty(scale.shape)
  local works = {
    collectives.all_to_all_single(parts, q, {group = group, async_op = true}),
    collectives.all_to_all_single(scales, scale, {group = group, async_op = true}),
  }
  return {wait = function()
    for _, work in ipairs(works) do work:wait() end
    local sum = dequantize(parts, scales, block):view(group.size, part):sum(1)
    local q_sum, scale_sum = quantize(sum, block)
    all:sub_(dequantize(q, scale, block))
    -- The rounding of the sum of this rank's part is fed back by this rank.
    all:narrow(1, group.rank * part + 1, part):add_(sum - dequantize(q_sum, scale_sum, block))
    collectives.all_gather_into_tensor(q, q_sum, {group = group})
    collectives.all_gather_into_tensor(scale, scale_sum, {group = group})
    buffer:copy_(all:narrow(1, 1, count))
    for i, g in ipairs(bucket:gradients()) do self:keep("error", names[i], g) end
    return dequantize(q, scale, block):narrow(1, 1, count)
  end}
end

return {PowerSGDState = PowerSGD, Int8State = Int8}
