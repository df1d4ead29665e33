--- Makes schedules by name for a training of known length, as transformers.get_scheduler does.
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local several = require "luminary.optim.lr_scheduler.chained_sequential"
local classes = require "luminary.optim.lr_scheduler.schedules"

local who = "get_scheduler"

-- Maps a name to its schedule; steps() returns its length. Schedules in `after_warmup` begin after the warm-up and last
-- for the remaining steps; the others multiply the warm-up's rates and count steps from the start.
local schedules, after_warmup = {}, {cosine = true, linear = true}

function schedules.cosine(opt, steps) return classes.CosineAnnealingLR(opt, steps()) end

function schedules.linear(opt, steps)
  return classes.LinearLR(opt, {start_factor = 1, end_factor = 0, total_iters = steps()})
end

function schedules.constant(opt) return classes.ConstantLR(opt, {factor = 1, total_iters = 0}) end

function schedules.step(opt, steps, opts)
  return classes.StepLR(opt, opts.step_size or math.ceil(steps() / 3), {gamma = opts.gamma})
end

function schedules.multistep(opt, steps, opts)
  local milestones = opts.milestones or {math.ceil(steps() / 2), math.ceil(steps() * 3 / 4)}
  return classes.MultiStepLR(opt, milestones, {gamma = opts.gamma})
end

function schedules.onecycle(opt, steps)
  local most = {}
  for i, group in ipairs(opt.param_groups) do most[i] = group.lr end
  return classes.OneCycleLR(opt, most, {total_steps = steps(), cycle_momentum = false})
end

--- Returns a scheduler by its name, for a training of num_training_steps steps whose learning rate rises in the first
--- num_warmup_steps.
local get_scheduler = signature.of([[get_scheduler(
  name: "constant" | "linear" | "cosine" | "step" | "multistep" | "onecycle" | "warmup", optimizer: optimizer,
  {num_training_steps: count, num_warmup_steps: natural, start_factor: above(0, 1), step_size: count,
  milestones: milestones, gamma = 0.1})]], function(name, opt, opts)
  local rising = opts.num_warmup_steps or 0
  local function steps()
    if not opts.num_training_steps then options.absent(who, "num_training_steps", "the number of steps") end
    return math.max(1, opts.num_training_steps - (after_warmup[name] and rising or 0))
  end
  if name == "warmup" then
    name = "cosine"
    rising = opts.num_warmup_steps or math.ceil(steps() / 20)
  end
  if rising == 0 then return schedules[name](opt, steps, opts) end
  if name == "onecycle" then options.must_be(who, "num_warmup_steps", "0 for onecycle, which warms up", rising) end
  local warmup = classes.LinearLR(opt, {start_factor = opts.start_factor or 1 / (rising + 1), total_iters = rising})
  if name == "constant" then return warmup end
  local rest = schedules[name](opt, steps, opts)
  if after_warmup[name] then return several.SequentialLR(opt, {warmup, rest}, {rising}) end
  return several.ChainedScheduler {warmup, rest}
end)

return {get_scheduler = get_scheduler}
