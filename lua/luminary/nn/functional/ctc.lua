--- Computes connectionist temporal classification (CTC) losses: sequences with unknown alignment.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local ops, fail = core.ops, options.fail
local F = {}

-- The kind of lengths: a list of integers, from a list, a tensor or an integer.
options.kind("lengths", "tensor, list of integers or integer", function(who, name, v)
  if core.is_tensor(v) and v.ndim < 2 and not v:is_floating_point() then v = v:reshape(-1):totable() end
  local list = type(v) == "number" and {v} or v
  local good = type(list) == "table" and not options.named_field(list)
  for i = 1, good and #list or 0 do good = good and options.is("natural", list[i]) end
  if not good then options.must_be(who, name, "integers of at least 0, as a tensor or a list", v) end
  return list
end)

-- Returns the offset of each sample's classes in the targets, from 0, and the length of the longest target.
local function check_lengths(who, a, times, samples)
  local starts, longest, sum = {}, 0, 0
  for _, name in ipairs {"input_lengths", "target_lengths"} do
    if #a[name] ~= samples then options.wrong_length(who, name, samples, "sample of log_probs", #a[name]) end
  end
  local padded = a.targets.ndim == 2
  if padded and a.targets.shape[1] ~= samples or not padded and a.targets.ndim ~= 1 then
    options.wrong_shape(who, "targets", a.targets, ("[%d, S] or concatenated [sum of lengths]"):format(samples))
  end
  local max_length = a.targets.shape[a.targets.ndim]
  for i = 1, samples do
    local length = a.target_lengths[i]
    starts[i] = padded and (i - 1) * max_length or sum
    longest, sum = math.max(longest, length), sum + length
    if padded and length > max_length then
      options.must_be(who, ("target_lengths[%d]"):format(i), ("at most %d, the length of targets"):format(max_length),
        length)
    end
    if a.input_lengths[i] > times then
      options.must_be(who, ("input_lengths[%d]"):format(i), ("at most %d, the steps of log_probs"):format(times),
        a.input_lengths[i])
    end
  end
  if not padded and sum ~= max_length then
    fail("%s: target_lengths must add up to the length of targets, got %d and %d", who, sum, max_length)
  end
  return starts, longest
end

--- Computes the connectionist temporal classification loss of sequences without alignment.
F.ctc_loss = signature.by_name([[ctc_loss(log_probs: tensor, targets: tensor, input_lengths: lengths,
  target_lengths: lengths, blank: count = 1, reduction = "mean" | "sum" | "none", zero_infinity = false)]], function(a)
  local who, x = "ctc_loss", a.log_probs
  if x.ndim ~= 3 and x.ndim ~= 2 then options.wrong_shape(who, "log_probs", x, "[T, N, C] or [T, C]") end
  local alone = x.ndim == 2
  if alone then
    x = x:unsqueeze(2)
    if a.targets.ndim == 1 then a.targets = a.targets:unsqueeze(1) end
  end
  local starts, longest = check_lengths(who, a, x.shape[1], x.shape[2])
  if a.targets:is_floating_point() then
    options.wrong_dtype(who, "targets", "an integer dtype", a.targets, "convert it with :long()")
  end
  local how = {device = x.device, dtype = "int64"}
  local target_lengths = core.tensor(a.target_lengths, how)
  local loss = ops.ctc_nll(x, a.targets:to(how):reshape(-1), core.tensor(starts, how),
    core.tensor(a.input_lengths, how), target_lengths, longest, a.blank)
  if a.zero_infinity then loss = ops.where(ops.eq(loss, math.huge), 0, loss) end
  if a.reduction == "mean" then return ops.mean(loss / target_lengths:clamp(1):to(loss.dtype)) end
  if a.reduction == "sum" then return ops.sum(loss) end
  return alone and loss:squeeze(1) or loss
end)

return options.exact_all(F)
