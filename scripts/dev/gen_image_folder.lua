-- Draws a folder of images to train on: OUT/train/<class>/<number>.jpg and OUT/val/…, of ten classes of shapes and
-- textures, each in colors around one of its own, of any size and anywhere, before a ground like clouds, with noise.
--
--   luajit scripts/dev/gen_image_folder.lua --out /tmp/shapes                             1,000 and 200 to test with
--   luajit scripts/dev/gen_image_folder.lua --out /tmp/photographs --images 10000 --size 500x375 --quality 92

local lm = require "luminary"

local USAGE = [[
usage: luajit gen_image_folder.lua --out DIR [options]

  --out DIR       where train/ and val/ come to be
  --images N      to train with                 (1000)
  --val N         to test with                  (a fifth of them)
  --size WxH      width and height in pixels    (80x80)
  --quality N     of the JPEGs                  (90)
  --seed N        of everything that is drawn   (1)
]]

local options, _, refuse = require "luminary.cli.script_options"(USAGE, {val = {"natural"}})
if not options.out then refuse("--out: where to?") end
local width, height = options.size:match "^(%d+)x(%d+)$"
width, height = tonumber(width), tonumber(height)
if not width or width < 16 or height < 16 then
  refuse("--size: WxH wanted, of 16 or more each, got '%s'", options.size)
end
if options.quality > 100 then refuse("--quality: 100 at most") end
lm.manual_seed(options.seed)

local function uniform(from, to) return from + (to - from) * lm.rand(1):item() end

-- ---- shapes: where they are, given x and y from their middle in units of their size

local function both(a, b) return a:logical_and(b) end
local function disc(x, y) return (x * x + y * y):lt(1) end
local function waves(t) return (t * 10):sin():gt(0) end

local shapes = {
  {"bars", function(x, y) return both(disc(x, y), waves(y)) end},
  {"board", function(x, y) return both(disc(x, y), waves(x):ne(waves(y))) end},
  {"cross", function(x, y) return both(x:abs():minimum(y:abs()):lt(0.3), x:abs():maximum(y:abs()):lt(1)) end},
  {"diamond", function(x, y) return (x:abs() + y:abs()):lt(1.1) end},
  {"disc", disc},
  {"dots", function(x, y) return both(disc(x, y), ((x * 10):sin() * (y * 10):sin()):gt(0.3)) end},
  {"posts", function(x, y) return both(disc(x, y), waves(x)) end},
  {"ring", function(x, y) return both(disc(x, y), (x * x + y * y):gt(0.4)) end},
  {"square", function(x, y) return x:abs():maximum(y:abs()):lt(0.85) end},
  {"triangle", function(x, y) return both(y:lt(0.8), (y - 1.9 * x:abs()):gt(-1)) end},
}

-- ---- colors and grounds

-- Returns red, green and blue from 0 to 1 of a hue, cyclic from 0 to 1 (Smith, "Color Gamut Transform Pairs", 1978).
local function color(hue, saturation, value)
  local rgb = {}
  for i, offset in ipairs {5, 3, 1} do
    local k = (offset + hue * 6) % 6
    rgb[i] = value * (1 - saturation * math.max(0, math.min(k, 4 - k, 1)))
  end
  return lm.tensor(rgb):view(3, 1, 1)
end

-- Returns the matrix [n, m] that draws m values out to n by linear interpolation.
local function stretch(n, m)
  local at = lm.arange(n):float():view(n, 1) * ((m - 1) / (n - 1))
  return (1 - (at - lm.arange(m):float():view(1, m)):abs()):clamp(0, 1)
end

local octaves = {} -- coarse noise drawn out smoothly, and finer noise upon it
local cells = 3
while cells * 2 <= math.min(width, height) do
  octaves[#octaves + 1] = {
    strength = 1 / cells ^ 0.5, rows = stretch(height, cells + 1), columns = stretch(width, cells + 1):t():contiguous(),
    cells = cells + 1,
  }
  cells = cells * 3
end

local function ground()
  local sum = lm.zeros(3, height, width)
  for _, o in ipairs(octaves) do
    local noise = (lm.randn(3, o.cells, o.cells) + lm.randn(1, o.cells, o.cells)) * (0.25 * o.strength)
    for c = 1, 3 do sum[c]:add_(o.rows:mm(noise[c]):mm(o.columns)) end
  end
  return sum + lm.rand(3, 1, 1) * 0.5 + 0.2
end

local side = math.min(width, height)
local columns, rows = lm.arange(width):float():view(1, width), lm.arange(height):float():view(height, 1)

local function draw(class)
  local size = uniform(0.25, 0.42) * side
  local x = (columns - uniform(size * 0.8, width - size * 0.8)) / size
  local y = (rows - uniform(size * 0.8, height - size * 0.8)) / size
  local tint = color(((class - 1) / #shapes + uniform(-0.06, 0.06)) % 1, uniform(0.6, 1), uniform(0.7, 1))
  local image = ground():where(shapes[class][2](x, y):logical_not(), tint)
  return ((image + lm.randn(3, height, width) * 0.04):clamp(0, 1) * 255):round():byte()
end

-- ---- files

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

local function write(part, n)
  for class, shape in ipairs(shapes) do
    local folder = ("%s/%s/%s"):format(options.out, part, shape[1])
    if os.execute("mkdir -p -- " .. quoted(folder)) ~= 0 then refuse("--out: %s cannot be made", folder) end
    for i = class, n, #shapes do
      lm.vision.write_jpeg(draw(class), ("%s/%05d.jpg"):format(folder, i), {quality = options.quality})
    end
  end
end

local val = options.val or math.floor(options.images / 5)
write("train", options.images)
write("val", val)
print(("%s: %d images of %d x %d pixels, ten classes"):format(options.out, options.images + val, width, height))
