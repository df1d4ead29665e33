-- Compares half-precision results with float64's for the same inputs.
local half = {}
local inf = math.huge

-- The largest and the smallest normal number, the spacing of numbers from 1 on and from 0 on.
half.dtypes = { "float16", "bfloat16" }
half.limits = {
  float16 = { max = 65504, least = 2 ^ -14, eps = 2 ^ -10, step = 2 ^ -24 },
  bfloat16 = { max = (2 - 2 ^ -7) * 2 ^ 127, least = 2 ^ -126, eps = 2 ^ -7, step = 2 ^ -133 },
}

-- Returns the greatest difference between elements of half-precision `got` and float64 `want`, in units of the last
-- place, and a text about it. A result that the dtype lacks counts for nothing. single: the float32 result for the same
-- inputs, as good, in units of its own, or nil. shared: as many units of the largest element are no difference in any.
function half.units_off(got, want, single, dtype, shared)
  local limits = half.limits[dtype]
  if want:numel() == 0 then return 0 end
  local a, b = got:double():reshape(-1), want:reshape(-1)
  local there = b:abs():le(limits.max)
  if not there:any():item() then return 0 end
  local largest = b:masked_select(there):abs():max():item()
  local function off_from(x)
    local unit = (x:abs():clamp(limits.least) * limits.eps):clamp(limits.step)
    return ((a - x):abs() - largest * (shared * limits.eps + 2 ^ -20)):div(unit) -- 2^-20: what float32 sums lose
  end
  local off = off_from(b)
  if single then off = off:fmin(off_from(single:double():reshape(-1))) end
  off = off:masked_fill(there:logical_not(), 0):nan_to_num { nan = inf, posinf = inf }
  local worst, at = off:max(1)
  at = at:item()
  return worst:item(), ("element %d is %.5g, not %.5g: %.3g units off"):format(at, a[at], b[at], worst:item())
end

-- Returns true if the values of `want` can be rounded to the dtype without losing more than the last digits.
function half.keeps(want, dtype)
  local size, limits = want:abs(), half.limits[dtype]
  local lost = size:gt(0):logical_and(size:lt(limits.least / 8))
  return not size:gt(limits.max):logical_or(size:ne(size)):logical_or(lost):any():item()
end

return half
