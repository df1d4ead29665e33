--- Layouts of a tensor, and comparing half precision with float64, for specs.
local half = {}

-- Errors of rounding (float32: of sums of thousands of numbers), errors where numbers cancel, and the largest number.
half.eps = {float16 = 2 ^ -11, bfloat16 = 2 ^ -8, float32 = 2 ^ -20}
local near_0 = {float16 = 4e-7, bfloat16 = 1e-37, float32 = 1e-6}
local largest = {float16 = 65504, bfloat16 = 3.3e38, float32 = 3.3e38}

local function with(shape, changes)
  local copy = {}
  for d = 1, #shape do copy[d] = shape[d] end
  for d, size in pairs(changes) do copy[d] = size end
  return copy
end

local function ones(n)
  local list = {}
  for d = 1, n do list[d] = 1 end
  return list
end

-- Each returns a view of `shape` of what make(some shape) returns, or nil where it would be a plain tensor.
half.layouts = {
  {"plain", function(make, shape) return make(shape) end},
  {"expanded from one value", shared = true, function(make, shape)
    if #shape > 0 then return make(ones(#shape)):expand(shape) end
  end},
  {"expanded by row", shared = true, function(make, shape)
    if #shape > 1 then return make(with(ones(#shape), {[#shape] = shape[#shape]})):expand(shape) end
  end},
  {"expanded by column", shared = true, function(make, shape)
    if #shape > 1 then return make(with(shape, {[#shape] = 1})):expand(shape) end
  end},
  {"transposed", function(make, shape)
    if #shape > 1 then return make(with(shape, {shape[#shape], [#shape] = shape[1]})):transpose(1, -1) end
  end},
  {"every second element", function(make, shape)
    if #shape > 0 then return make(with(shape, {[#shape] = 2 * shape[#shape]})):slice(-1, 1, -1, 2) end
  end},
  {"overlapping windows", shared = true, function(make, shape)
    if #shape < 2 then return end
    local width, rows = shape[#shape], 1
    for d = 1, #shape - 1 do rows = rows * shape[d] end
    if rows > 0 and width > 0 then return make({rows + width - 1}):unfold(1, width, 1):view(shape) end
  end},
  {"channels last", function(make, shape)
    if #shape == 4 then return make(shape):contiguous {memory_format = "channels_last"} end
  end},
  {"part of a row", function(make, shape)
    if #shape > 0 then return make(with(shape, {[#shape] = shape[#shape] + 3})):narrow(-1, 2, shape[#shape]) end
  end},
}

--- Returns nil if got, in half precision, is want, in float64, to `ulps` units of the dtype, relative to each element
--- and to the largest one, or to a few times the largest element of `slack`; else what differs. Where an element of
--- want comes near the dtype's limit, infinity and NaN are right.
function half.wrong(got, want, dtype, ulps, slack)
  if table.concat(got.shape, ",") ~= table.concat(want.shape, ",") then
    return ("shape [%s] instead of [%s]"):format(table.concat(got.shape, ","), table.concat(want.shape, ","))
  end
  if got:numel() == 0 then return end
  if want.dtype ~= "float64" then
    local differing = got:ne(want):sum():item()
    return differing > 0 and ("%d of %d elements, which are not real"):format(differing, got:numel()) or nil
  end
  got = got:double()
  local scale, limit = want:abs(), largest[dtype]
  local outside = scale:lt(limit / 16):logical_not() -- NaN too
  local most = scale:masked_fill(outside, 0):amax():item()
  local far = got:abs():lt(limit * 0.99):logical_not()
  local overflows = outside:any():item()
  if most < 1e-10 and not far:any():item() then return end -- nothing but rounding
  local bound = (scale + most) * (ulps * half.eps[dtype]) + near_0[dtype]
  if slack then bound = bound + 4 * slack:abs():nan_to_num(0, 0, 0):amax() end
  local right = (got - want):abs():le(bound)
  if overflows then right = right:logical_or(far) end
  right = right:flatten()
  local count = right:logical_not():sum():item()
  if count == 0 then return end
  local at = right:to("uint8"):argmin():item()
  return ("%d of %d elements, the first %d: %.6g instead of %.6g"):format(count, right:numel(), at,
    got:flatten()[at], want:flatten()[at]) .. (" (largest %.3g)"):format(most)
end

return half
