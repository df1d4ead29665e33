--- Searches along a line for a point that meets the strong Wolfe conditions, for optimizers.
local abs, max, min, sqrt = math.abs, math.max, math.min, math.sqrt

-- Returns the minimizer, within low and high, of the cubic with these values and slopes at a and b.
local function least_of_cubic(a, b, low, high)
  local near, far = a, b
  if a.t > b.t then near, far = b, a end
  local width = far.t - near.t
  local d1 = near.slope + far.slope - 3 * (near.loss - far.loss) / (near.t - far.t)
  local square = d1 * d1 - near.slope * far.slope
  if not (square >= 0 and square < math.huge) then return (low + high) / 2 end
  local d2 = sqrt(square)
  return min(max(far.t - width * (far.slope + d2 - d1) / (far.slope - near.slope + 2 * d2), low), high)
end

--- Returns a point on the line that meets these conditions, {t, loss, grad, slope}, and the number of evaluations. It
--- follows algorithms 3.5 and 3.6 of Nocedal and Wright with cubic interpolation, as minFunc does. at(t) evaluates a
--- point; `start` is the one at 0. After `most` evaluations it returns the best point of its bracket. decrease and
--- curvature: the conditions' c1 and c2.
return function(at, start, t, tolerance, most, size, decrease, curvature)
  local function too_high(p) return p.loss > start.loss + decrease * p.t * start.slope end
  local function flat_enough(p) return abs(p.slope) <= -curvature * start.slope end

  local before, now, rounds = start, at(t), 0
  local low, high -- the bracket; low is the better end
  while rounds < most do
    if too_high(now) or (rounds > 1 and now.loss >= before.loss) or now.slope >= 0 and not flat_enough(now) then
      low, high = before, now
      break
    end
    if flat_enough(now) then return now, rounds + 1 end
    local step = now.t - before.t
    local further = least_of_cubic(before, now, now.t + 0.01 * step, now.t * 10)
    before, now, rounds = now, at(further), rounds + 1
  end
  if not low then low, high = start, now end
  if low.loss > high.loss then low, high = high, low end

  local stalled = false
  while rounds < most and abs(high.t - low.t) * size >= tolerance do
    local left, right = min(low.t, high.t), max(low.t, high.t)
    local next_t, margin = least_of_cubic(low, high, left, right), 0.1 * (right - left)
    -- Moves the second of two steps in a row that are too near an end further inside.
    if min(right - next_t, next_t - left) < margin then
      if stalled or next_t >= right or next_t <= left then
        next_t = abs(next_t - right) < abs(next_t - left) and right - margin or left + margin
        stalled = false
      else
        stalled = true
      end
    else
      stalled = false
    end
    local p = at(next_t)
    rounds = rounds + 1
    if too_high(p) or p.loss >= low.loss then
      high = p
      if low.loss > high.loss then low, high = high, low end
    else
      if flat_enough(p) then return p, rounds + 1 end
      if p.slope * (high.t - low.t) >= 0 then high = low end
      low = p
    end
  end
  return low, rounds + 1
end
