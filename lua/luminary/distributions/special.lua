--- Formulas of probabilities and of gamma functions that distributions share.
local core = require "luminary.core"
local finfo = require("luminary.tensor.dtype_info").finfo
local ops = core.ops

local special = {finfo = finfo}

--- Returns probabilities, kept from 0 and 1 by their dtype's eps.
function special.clamp_probs(p)
  local eps = finfo(p.dtype).eps
  return p:clamp(eps, {max = 1 - eps})
end

--- Properties of distributions of two outcomes: probs and logits of each other.
special.binary = {
  probs = function(d) return d.logits:sigmoid() end,
  logits = function(d)
    local p = special.clamp_probs(d.probs)
    return p:log() - (-p):log1p()
  end,
}

--- Properties of distributions of several outcomes, along the last dim.
special.several = {
  probs = function(d) return d.logits:softmax(-1) end,
  logits = function(d) return special.clamp_probs(d.probs):log() end,
}

--- Returns x log p + (1 - x) log(1 - p), of logits.
function special.bernoulli_log_prob(logits, x) return ops.log_sigmoid(logits) - (1 - x) * logits end

--- Returns the logarithm of a sample of Gamma(a, 1) for each element, in float64, by squeezed rejection; a below 1 comes
--- from a + 1 (Marsaglia and Tsang 2000). Gradients pass to a, by implicit reparameterization.
function special.log_gamma_sample(a)
  a = a:to("float64")
  local y = core.no_grad(function()
    local below = a:lt(1)
    local d = ops.where(below, a + 1, a) - 1 / 3
    local c = 1 / (9 * d):sqrt()
    local v, done
    repeat
      local x, u = ops.randn_like(d), ops.rand_like(d)
      local t = 1 + c * x
      local new = t:clamp(1e-30) ^ 3
      local good = ops.logical_and(t:gt(0), u:log():lt(0.5 * x * x + d - d * new + d * new:log()))
      v = v and ops.where(done, v, new) or new
      done = done and ops.logical_or(done, good) or good
    until done:all():item()
    local log = d:log() + v:log()
    return ops.where(below, log + ops.rand_like(d):clamp(1e-300):log() / a, log)
  end)
  if not a.requires_grad then return y end
  return y + (a - a:detach()) * ops.gamma_slope(a:detach(), y)
end

return special
