--- Computes the source positions of pixels when an image is rotated, sheared, moved or seen in perspective.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local native = require "luminary.vision.transforms.native"
local fail = options.fail
local run, ops = native.run, core.ops

local warping = {}

--- Returns the map from an output pixel to its source, both relative to the middle: rotation by `angle` degrees, shear
--- and scale about the center, then translation. It is the inverse of T C R S SHy SHx C^-1, as in torchvision's
--- _get_inverse_affine_matrix.
function warping.affine_matrix(angle, translate, scale, shear, center)
  local rotation, sx, sy = math.rad(angle), math.rad(shear[1]), math.rad(shear[2])
  local cx, cy = center[1], center[2]
  local a = math.cos(rotation - sy) / math.cos(sy)
  local b = -(a * math.tan(sx) + math.sin(rotation))
  local c = math.sin(rotation - sy) / math.cos(sy)
  local d = math.cos(rotation) - c * math.tan(sx)
  local m = {d / scale, -b / scale, 0, -c / scale, a / scale, 0}
  m[3] = cx - m[1] * (cx + translate[1]) - m[2] * (cy + translate[2])
  m[6] = cy - m[4] * (cx + translate[1]) - m[5] * (cy + translate[2])
  return m
end

--- Maps x by a map of warping.affine_matrix to height x width (default: x's), by the options of checks.mapping.
function warping.affine(x, m, o, height, width, out)
  local h, w = native.size(x)
  local bilinear, fill = o.interpolation == "bilinear", o.fill
  local numbers = {height or h, width or w, bilinear and 1 or 0, fill and #fill or 0, unpack(m)}
  return run("affine", x, lists.append(numbers, fill or {}), out)
end

--- Converts the center from pixels from the upper left corner to pixels from the middle.
function warping.from_middle(x, center)
  local h, w = native.size(x)
  return center and {center[1] - w / 2, center[2] - h / 2} or {0, 0}
end

-- Returns the height and width that contain an image of h x w after a map.
local function expanded(m, h, w)
  local left, right, top, bottom = 1 / 0, -1 / 0, 1 / 0, -1 / 0
  for _, x in ipairs {-w / 2, w / 2} do
    for _, y in ipairs {-h / 2, h / 2} do
      local nx, ny = m[1] * x + m[2] * y + m[3] + w / 2, m[4] * x + m[5] * y + m[6] + h / 2
      left, right = math.min(left, nx), math.max(right, nx)
      top, bottom = math.min(top, ny), math.max(bottom, ny)
    end
  end
  local function cut(v) return (v < 0 and math.ceil or math.floor)(v * 1e4) / 1e4 end -- removes rounding errors
  return math.ceil(cut(bottom)) - math.floor(cut(top)), math.ceil(cut(right)) - math.floor(cut(left))
end

--- Rotates x counterclockwise by `angle` degrees, by the options of checks.mapping, expand and center.
function warping.rotate(x, angle, o, out)
  local expand, center = o.expand, o.center
  local h, w = native.size(x)
  angle = angle % 360
  if not center then
    if angle == 0 then return x end
    if angle == 180 or angle % 90 == 0 and (expand or h == w) then return run("rotate90", x, {angle / 90}, out) end
  end
  local m = warping.affine_matrix(-angle, {0, 0}, 1, {0, 0}, warping.from_middle(x, center))
  local height, width
  if expand then height, width = expanded(m, h, w) end
  return warping.affine(x, m, o, height, width, out)
end

-- Solves linear equations by Gaussian elimination with pivots. A row has its factors and then the right-hand side.
local function solve(who, rows)
  local n = #rows
  for k = 1, n do
    local best = k
    for i = k + 1, n do
      if math.abs(rows[i][k]) > math.abs(rows[best][k]) then best = i end
    end
    rows[k], rows[best] = rows[best], rows[k]
    if math.abs(rows[k][k]) < 1e-12 then
      fail("%s: no three of the four points may be on one line", who)
    end
    for i = k + 1, n do
      local factor = rows[i][k] / rows[k][k]
      for j = k, n + 1 do rows[i][j] = rows[i][j] - factor * rows[k][j] end
    end
  end
  local x = {}
  for k = n, 1, -1 do
    local sum = rows[k][n + 1]
    for j = k + 1, n do sum = sum - rows[k][j] * x[j] end
    x[k] = sum / rows[k][k]
  end
  return x
end

--- Returns the eight numbers of the perspective that maps endpoints to startpoints, both four of {x, y}.
function warping.perspective_numbers(who, startpoints, endpoints)
  local rows = {}
  for i = 1, 4 do
    local p, q = endpoints[i], startpoints[i]
    rows[2 * i - 1] = {p[1], p[2], 1, 0, 0, 0, -q[1] * p[1], -q[1] * p[2], q[1]}
    rows[2 * i] = {0, 0, 0, p[1], p[2], 1, -q[2] * p[1], -q[2] * p[2], q[2]}
  end
  return solve(who, rows)
end

function warping.perspective(x, coefficients, o, out)
  local fill = o.fill
  local numbers = {o.interpolation == "bilinear" and 1 or 0, fill and #fill or 0, unpack(coefficients)}
  return run("perspective", x, lists.append(numbers, fill or {}), out)
end

--- Samples x at a grid displaced by [1, H, W, 2] of {x, y}, in halves of the width and the height, by the options of
--- checks.mapping. It computes in float64 for integers of 32 and 64 bits, and otherwise in float32.
function warping.elastic(x, displacement, o)
  local h, w, c = native.size(x)
  if table.concat(displacement.shape, " ") ~= ("1 %d %d 2"):format(h, w) then
    options.wrong_shape("elastic", "displacement", displacement, ("[1, %d, %d, 2]"):format(h, w))
  end
  if x:numel() == 0 then return x end
  local wide = x.dtype == "float64" or x.dtype == "int32" or x.dtype == "int64"
  local float = {dtype = wide and "float64" or "float32"}
  local function middles(n) return ops.linspace((1 - n) / n, (n - 1) / n, n, float) end
  local grid = ops.stack({middles(w):expand(h, w), middles(h):unsqueeze(2):expand(h, w)}, 3):unsqueeze(1)
  local images, fill = x:reshape(-1, c, h, w):to(float.dtype):contiguous(), o.fill
  if fill then images = ops.cat({images, ops.ones({images.shape[1], 1, h, w}, float)}, 2) end
  grid = (grid + displacement:to(float.dtype)):expand(images.shape[1], -1, -1, -1)
  local y = ops.grid_sample(images, grid, o.interpolation)
  if fill then
    local inside = y:narrow(2, c + 1, 1)
    if o.interpolation == "nearest" then inside = inside:ge(0.5):to(float.dtype) end
    local color = core.tensor(fill, float):reshape(1, -1, 1, 1)
    y = (y:narrow(2, 1, c) - color) * inside + color
  end
  if not core.is_floating_point(x) then y = y:round() end
  return y:reshape(x.shape):to(x.dtype)
end

return warping
