--- lgamma and digamma of positive numbers, out of ops, where the library has no op of that name.
local core = require "luminary.core"
local ops = core.ops

local special = {}

local LANCZOS = {
  676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059, 12.507343278686905,
  -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
}

local function in_float64(f)
  return function(x) return f(x:to("float64")):to(x.dtype) end
end

--- The logarithm of the gamma function, by Lanczos's approximation with g = 7 and 9 terms (Godfrey's coefficients).
special.lgamma = ops.lgamma or in_float64(function(x)
  -- of x + 1, less log x: so that the sum is not near a zero of the approximation's argument
  local series = ops.full_like(x, 0.99999999999980993)
  for i, c in ipairs(LANCZOS) do series = series + c / (x + i) end
  local t = x + 7.5
  return 0.5 * math.log(2 * math.pi) + (x + 0.5) * t:log() - t + series:log() - x:log()
end)

--- The derivative of lgamma: 8 steps up by digamma(x) = digamma(x + 1) - 1 / x, then the asymptotic series
--- (Abramowitz and Stegun 6.3.18).
special.digamma = ops.digamma or in_float64(function(x)
  local sum = ops.zeros_like(x)
  for _ = 1, 8 do
    sum = sum - 1 / x
    x = x + 1
  end
  local r = 1 / (x * x)
  return sum + x:log() - 0.5 / x
    - r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132 - r * (691 / 32760))))))
end)

return special
