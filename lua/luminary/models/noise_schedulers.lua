--- Schedules the noise of diffusion models, and removes it step by step: DDPM (Ho et al., "Denoising Diffusion
--- Probabilistic Models", 2020) and DDIM (Song et al., "Denoising Diffusion Implicit Models", 2021), with diffusers'
--- names and defaults. Steps count from 0, as models expect them.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local schedulers = {}

local items = [[num_train_timesteps: integer(1, 1e6) = 1000, beta_start: positive = 0.0001, beta_end: positive = 0.02,
  beta_schedule = "linear" | "scaled_linear" | "squaredcos_cap_v2", trained_betas: table, clip_sample = true,
  clip_sample_range: positive = 1, prediction_type = "epsilon" | "sample" | "v_prediction", steps_offset: natural = 0,
  timestep_spacing: "linspace" | "leading" | "trailing" = "leading"]]

-- Returns the list of the variances that the steps add.
local function betas_of(o)
  if o.trained_betas then return o.trained_betas end
  local n, betas, power = o.num_train_timesteps, {}, o.beta_schedule == "scaled_linear" and 2 or 1
  local first, last = o.beta_start ^ (1 / power), o.beta_end ^ (1 / power)
  -- Returns Nichol and Dhariwal's alpha bar ("Improved Denoising Diffusion Probabilistic Models", 2021).
  local function alpha_bar(t) return math.cos((t + 0.008) / 1.008 * math.pi / 2) ^ 2 end
  for i = 0, n - 1 do
    if o.beta_schedule == "squaredcos_cap_v2" then
      betas[i + 1] = math.min(1 - alpha_bar((i + 1) / n) / alpha_bar(i / n), 0.999)
    else
      betas[i + 1] = (first + (last - first) * i / math.max(n - 1, 1)) ^ power
    end
  end
  return betas
end

local Scheduler = class.root("NoiseScheduler")

local as_options = "lm.models.DDPMScheduler {beta_schedule = …} and the like take what a scheduler_config.json says as "
  .. "options; nothing is downloaded"
Scheduler.__missing = {from_pretrained = as_options, from_config = as_options}

local function set_up(self, who, opts, item)
  local o = options.check(who, opts, ("{%s, %s}"):format(items, item))
  self.config, self.init_noise_sigma = o, 1
  local betas, product = betas_of(o), 1
  o.num_train_timesteps = #betas
  if #betas == 0 then fail("%s: trained_betas must not be empty", who) end
  self.products = {} -- products of 1 - beta up to each step
  for i, beta in ipairs(betas) do
    local good = type(beta) == "number" and beta >= 0 and beta < 1
    if not good and o.trained_betas then
      options.must_be(who, ("trained_betas[%d]"):format(i), "a number from 0 to less than 1", beta)
    elseif not good then
      fail("%s: the variance of step %d is %s; beta_start (%g) and beta_end (%g) must be from 0 to less than 1", who,
        i - 1, beta, o.beta_start, o.beta_end)
    end
    product = product * (1 - beta)
    self.products[i] = product
  end
  self.betas = core.keep(core.tensor(betas))
  self.alphas_cumprod = core.keep(core.tensor(self.products))
  self.timesteps = {}
  for i = 1, #betas do self.timesteps[i] = #betas - i end
end

-- Rounds a number, halves to the even one, as NumPy does.
local function rounded(x)
  local low = math.floor(x)
  if x - low == 0.5 then return low % 2 == 0 and low or low + 1 end
  return math.floor(x + 0.5)
end

--- scheduler:set_timesteps(n): Sets scheduler.timesteps, a list of n steps from 0, the noisiest first, spaced by
--- timestep_spacing. Returns the scheduler.
function Scheduler:set_timesteps(num_inference_steps)
  local who, o, steps = self.__name .. ":set_timesteps", self.config, {}
  local n, all = options.arg(who, "num_inference_steps", num_inference_steps, "count"), o.num_train_timesteps
  if n > all then options.must_be(who, "num_inference_steps", ("at most num_train_timesteps, %d"):format(all), n) end
  for i = 1, n do
    if o.timestep_spacing == "linspace" then
      steps[i] = rounded((all - 1) * (n == 1 and 0 or (n - i) / (n - 1)))
    elseif o.timestep_spacing == "leading" then
      steps[i] = (n - i) * math.floor(all / n) + o.steps_offset
    else
      steps[i] = rounded(all - (i - 1) * all / n) - 1
    end
  end
  if steps[1] >= all then
    fail("%s: the first step would be %d of %d; lower steps_offset, which is %d", who, steps[1], all, o.steps_offset)
  end
  self.timesteps, self.num_inference_steps = steps, n
  return self
end

-- Returns a step, a number or a tensor of one element, as a number, checked.
local function one_step(self, who, step)
  if core.is_tensor(step) and step:numel() == 1 then step = tonumber(step:item()) end
  local last = #self.products - 1
  local good = type(step) == "number" and step == math.floor(step) and step >= 0 and step <= last
  if not good then
    local what = type(step) == "number" and "step " .. tostring(step) or "the step is " .. options.describe(step)
    fail("%s: %s; timesteps are from 0 to %d%s", who, what, last,
      core.is_tensor(step) and ", the same one for all samples" or "")
  end
  return step
end

-- Returns the factors of the signal and of the noise at steps (a number or a tensor [N]) as tensors that broadcast to
-- x.
local function factors(self, who, x, steps)
  options.arg(who, "the samples", x, "tensor")
  if not core.is_tensor(steps) or steps.ndim == 0 then
    local product = self.products[one_step(self, who, steps) + 1]
    return math.sqrt(product), math.sqrt(1 - product)
  end
  local last = #self.products - 1
  if not steps.is_cuda and steps:numel() > 0 then -- on CUDA, indexing reports wrong steps
    local low, high = steps:min():item(), steps:max():item()
    if low < 0 or high > last or not steps:eq(steps:long()):all():item() then
      fail("%s: timesteps from %s to %s; they must be integers from 0 to %d", who, low, high, last)
    end
  end
  if steps.ndim ~= 1 or x.ndim < 1 or steps.shape[1] ~= x.shape[1] then
    fail("%s: timesteps are %s; expected one for each sample of %s", who, options.describe(steps), options.describe(x))
  end
  local products = self.alphas_cumprod:to(x.device):index_select(1, steps:long() + 1):to(x.dtype)
  products = shapes.along_dim(products, 1, x.ndim)
  return products:sqrt(), (1 - products):sqrt()
end

-- Fails unless t is a tensor of x's shape.
local function same_size(who, name, t, x)
  if options.arg(who, name, t, "tensor").shape ~= x.shape then options.shapes_differ(who, name, t, "x", x) end
end

--- scheduler:add_noise(samples, noise, timesteps): Adds the noise of the given steps to samples [N, …]. timesteps:
--- int64 [N] from 0, or a number.
function Scheduler:add_noise(samples, noise, timesteps)
  local who = self.__name .. ":add_noise"
  local signal, rest = factors(self, who, samples, timesteps)
  same_size(who, "noise", noise, samples)
  return samples * signal + noise * rest
end

--- scheduler:get_velocity(samples, noise, timesteps): Returns the target of a model with prediction_type
--- "v_prediction" (Salimans and Ho 2022).
function Scheduler:get_velocity(samples, noise, timesteps)
  local who = self.__name .. ":get_velocity"
  local signal, rest = factors(self, who, samples, timesteps)
  same_size(who, "noise", noise, samples)
  return noise * signal - samples * rest
end

--- Returns x unchanged, for programs written for diffusers.
function Scheduler.scale_model_input(_self, x) return x end

-- Returns two values that the model's output implies: the sample without noise, clipped, and the noise.
local function prediction(self, who, output, t, x)
  local o = self.config
  local signal, rest = factors(self, who, x, t)
  same_size(who, "the model's output", output, x)
  local clean, noise
  if o.prediction_type == "epsilon" then
    clean, noise = (x - output * rest) / signal, output
  elseif o.prediction_type == "sample" then
    clean, noise = output, (x - output * signal) / rest
  else
    clean, noise = x * signal - output * rest, output * signal + x * rest
  end
  if o.clip_sample then clean = clean:clamp(-o.clip_sample_range, o.clip_sample_range) end
  return clean, noise
end

local function noise_like(who, x, o)
  if o.noise then
    same_size(who, "noise", o.noise, x)
    return o.noise
  end
  return ops.randn(x.shape, {device = x.device, dtype = x.dtype, generator = o.generator})
end

--- lm.models.DDPMScheduler([{num_train_timesteps = 1000, beta_start = 0.0001, beta_end = 0.02, beta_schedule =
--- "linear", trained_betas, variance_type = "fixed_small", clip_sample = true, clip_sample_range = 1, prediction_type
--- = "epsilon", timestep_spacing = "leading", steps_offset = 0}]): Schedules the noise of a denoising diffusion
--- probabilistic model. Ho et al., "Denoising Diffusion Probabilistic Models", 2020.
local DDPMScheduler = class.define("DDPMScheduler", Scheduler)
schedulers.DDPMScheduler = DDPMScheduler

function DDPMScheduler:init(opts)
  set_up(self, "DDPMScheduler", opts, 'variance_type = "fixed_small" | "fixed_large"')
end

-- Returns the step after t in self.timesteps, -1 after the last.
local function step_after(self, who, t)
  for i, each in ipairs(self.timesteps) do
    if each == t then return self.timesteps[i + 1] or -1 end
  end
  fail("%s: step %d is not in scheduler.timesteps, which set_timesteps(%d) set to %d, %d, …", who, t, #self.timesteps,
    self.timesteps[1], self.timesteps[2] or self.timesteps[1])
end

--- local x, clean = scheduler:step(output, t, x [, {generator, noise}]): Returns x [N, …] after one step of denoising
--- by the model's output at step t (formula 7 of Ho et al.), and the sample without noise that this implies. noise: a
--- tensor to add in place of a draw.
function DDPMScheduler:step(output, t, x, opts)
  local who = "DDPMScheduler:step"
  local o = options.check(who, opts, "{generator: generator, noise: tensor}")
  t = one_step(self, who, t)
  local clean = prediction(self, who, output, t, x)
  local before = step_after(self, who, t)
  local product, product_before = self.products[t + 1], before >= 0 and self.products[before + 1] or 1
  local alpha = product / product_before
  local beta, rest, rest_before = 1 - alpha, 1 - product, 1 - product_before
  local y = clean * (math.sqrt(product_before) * beta / rest) + x * (math.sqrt(alpha) * rest_before / rest)
  if t == 0 then return y, clean end
  local variance = self.config.variance_type == "fixed_large" and beta or math.max(rest_before / rest * beta, 1e-20)
  return y + noise_like(who, y, o) * math.sqrt(variance), clean
end

--- lm.models.DDIMScheduler([{…}]): Schedules the noise of a denoising diffusion implicit model. Song et al.,
--- "Denoising Diffusion Implicit Models", 2021.
local DDIMScheduler = class.define("DDIMScheduler", Scheduler)
schedulers.DDIMScheduler = DDIMScheduler

function DDIMScheduler:init(opts)
  set_up(self, "DDIMScheduler", opts, "set_alpha_to_one = true")
end

--- local x, clean = scheduler:step(output, t, x [, {eta = 0, use_clipped_model_output = false, generator, noise}]):
--- Returns x [N, …] after one step of denoising by the model's output at step t (formula 12 of Song et al.), and the
--- sample without noise that this implies. eta: 0 draws nothing, 1 draws as DDPM does. use_clipped_model_output: true
--- computes the noise from the clipped sample.
function DDIMScheduler:step(output, t, x, opts)
  local who = "DDIMScheduler:step"
  local o = options.check(who, opts,
    "{eta: positive = 0, use_clipped_model_output = false, generator: generator, noise: tensor}")
  if not self.num_inference_steps then fail("%s: call scheduler:set_timesteps(n) first", who) end
  t = one_step(self, who, t)
  local clean, noise = prediction(self, who, output, t, x)
  step_after(self, who, t)
  local before = t - math.floor(self.config.num_train_timesteps / self.num_inference_steps)
  local product = self.products[t + 1]
  local product_before = before >= 0 and self.products[before + 1] or self.config.set_alpha_to_one and 1
    or self.products[1]
  if o.use_clipped_model_output then noise = (x - clean * math.sqrt(product)) / math.sqrt(1 - product) end
  local variance = o.eta ^ 2 * (1 - product_before) / (1 - product) * (1 - product / product_before)
  local y = clean * math.sqrt(product_before) + noise * math.sqrt(math.max(1 - product_before - variance, 0))
  if o.eta > 0 then y = y + noise_like(who, y, o) * math.sqrt(variance) end
  return y, clean
end

return schedulers
