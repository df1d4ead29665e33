--- Arranges images in a grid, and saves it.
local core = require "luminary.core"
local image = require "luminary.vision.image_files"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local fail = options.fail
local ops = core.ops

local grid = {}

local grid_options = [[nrow: count = 8, padding: natural = 2, normalize = false, value_range: table,
  scale_each = false, pad_value = 0]]

-- Converts images to [N, C, H, W]; gray images get three channels.
local function batch_of(who, images)
  local batch = images
  if type(images) == "table" then batch = ops.stack(images) end
  batch = options.arg(who, "images", batch, "tensor")
  if batch.ndim == 2 then batch = batch:unsqueeze(1) end
  if batch.ndim == 3 then batch = batch:unsqueeze(1) end
  if batch.ndim ~= 4 then
    options.wrong_shape(who, "images", images, "[N, C, H, W], [C, H, W], [H, W] or a list of [C, H, W]")
  end
  if batch.shape[1] == 0 then fail("%s: images must not be empty", who) end
  return batch.shape[2] == 1 and batch:expand(-1, 3, -1, -1) or batch
end

-- Scales x in place from [low, high] (by default the minimum and the maximum) to [0, 1].
local function normalize(x, range)
  local low = range and range[1] or x:min():item()
  local high = range and range[2] or x:max():item()
  x:clamp_(low, high):sub_(low):div_(math.max(high - low, 1e-5))
end

local function check_range(who, range)
  if range and not (type(range[1]) == "number" and type(range[2]) == "number" and #range == 2) then
    fail("%s: value_range must be two numbers in ascending order, {low, high}", who)
  end
end

local function make_grid(who, images, opts)
  check_range(who, opts.value_range)
  local batch = batch_of(who, images)
  if opts.normalize then
    if not core.is_floating_point(batch) then
      fail("%s: normalize requires floating images, got %s", who, batch.dtype)
    end
    batch = batch:detach():clone()
    for i = 1, opts.scale_each and batch.shape[1] or 1 do
      normalize(opts.scale_each and batch:select(1, i) or batch, opts.value_range)
    end
  elseif opts.value_range or opts.scale_each then
    fail("%s: %s requires normalize = true", who, opts.value_range and "value_range" or "scale_each")
  end
  local n, channels, height, width = unpack(batch.shape)
  if n == 1 then return batch:select(1, 1):clone {memory_format = "contiguous"} end
  local padding, columns = opts.padding, math.min(opts.nrow, n)
  local rows = math.ceil(n / columns)
  local out = ops.full({channels, rows * (height + padding) + padding, columns * (width + padding) + padding},
    opts.pad_value, {dtype = batch.dtype, device = batch.device})
  for i = 0, n - 1 do
    local y, x = math.floor(i / columns) * (height + padding), i % columns * (width + padding)
    out:narrow(2, y + padding + 1, height):narrow(3, x + padding + 1, width):copy_(batch:select(1, i + 1))
  end
  return out
end

--- Makes a grid of images.
grid.make_grid = signature.of("make_grid(images, {" .. grid_options .. "})", function(images, opts)
  return make_grid("make_grid", images, opts)
end)

local writers = {
  png = image.write_png, jpg = image.write_jpeg, jpeg = image.write_jpeg, webp = image.write_webp,
}

--- Saves an image, or a grid of images, into a PNG, JPEG or WebP file.
grid.save_image = signature.of("save_image(images, path: string, {format: lacks, " .. grid_options .. "})",
  function(images, path, opts)
  local ending = path:match("%.(%w+)$")
  local write = writers[(ending or ""):lower()]
  if not write then fail("save_image: the path must end in .png, .jpg, .jpeg or .webp, got '%s'", path) end
  local picture = make_grid("save_image", images, opts)
  if picture.dtype ~= "uint8" then picture = picture:mul(255):add_(0.5):clamp_(0, 255):to("uint8") end
  write(picture, path)
end)

return grid
