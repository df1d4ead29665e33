--- Files of images: JPEG by libjpeg-turbo, PNG by libpng. Pixels are torchvision's and PIL's, those of a JPEG to within
--- the level by which versions of libjpeg-turbo differ.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local image = {}

local modes = {"unchanged", "gray", "gray_alpha", "rgb", "rgba"}
local number_of = {}
for i, name in ipairs(modes) do number_of[name] = i - 1 end

local header_options = {
  max_pixels = {"count", 178956970}, apply_exif_orientation = {"boolean", true}, allow_corrupt = {"boolean", false},
}
local pixel_options = {mode = {"string", "unchanged"}, crop = {"table"}, at_least = {"table"}}

-- A table of options as two: those of one and of the other.
local function part(who, given)
  local both = {}
  for _, rows in ipairs {header_options, pixel_options} do
    for name, row in pairs(rows) do both[name] = row end
  end
  options.check(who, given, both, "mode")
  local header, pixels = {}, {}
  for name, value in pairs(given or {}) do (header_options[name] and header or pixels)[name] = value end
  return header, pixels
end

--- vision.Encoded(bytes [, {name = "the image", max_pixels = 178956970, apply_exif_orientation = true,
--- allow_corrupt = false}]): a JPEG or PNG whose header is read and whose pixels are not yet. `bytes` are a string or a
--- uint8 tensor, not to be written to. Has `height`, `width` (as it is to be seen), `channels` (1 to 4) and `format`
--- ("jpeg" or "png"); `name` is what messages call it.
--- An image of more than max_pixels is an error, before memory is asked for. A camera's note of how it was held (EXIF)
--- is followed, unless apply_exif_orientation is false. A file that is cut short or damaged is an error; with
--- allow_corrupt a damaged JPEG gives what can be made of it, as PIL's do in silence. What lies behind the last pixel
--- that is wanted is not looked at.
local Encoded = class.root("Encoded")
Encoded.__makes = "bytes"
Encoded.__hint = "image:decode() gives its pixels"
image.Encoded = Encoded

local encoded_options = {name = {"string", "the image"}}
for name, row in pairs(header_options) do encoded_options[name] = row end

function Encoded:init(bytes, opts)
  opts = options.check("Encoded", opts, encoded_options)
  self.bytes, self.name, self.max_pixels = bytes, opts.name, opts.max_pixels
  self.apply_exif_orientation, self.allow_corrupt = opts.apply_exif_orientation, opts.allow_corrupt
  self.height, self.width, self.channels, self.format = core.image_header(bytes, opts.name, opts.max_pixels,
    opts.apply_exif_orientation, opts.allow_corrupt)
  if core.is_tensor(bytes) then core.keep(bytes) end
end

--- encoded:decode([{mode = "unchanged", crop, at_least}]): the pixels, a uint8 tensor [C, H, W].
--- mode: "gray", "gray_alpha", "rgb" or "rgba"; "unchanged" is what the file has, but for palettes and CMYK, which
--- become RGB; what is transparent has alpha; of 16 bits the upper 8 are left.
--- crop = {top, left, height, width}: of these pixels only, the same to the bit; top and left say how many are above
--- and to the left of it.
--- at_least = {height, width}: a JPEG may come at a half, a quarter or an eighth of its size, in less time, as long as
--- it (or its crop) has at least so many pixels; the crop's edges are then rounded to whole pixels.
function Encoded:decode(opts)
  opts = options.check("decode", opts, pixel_options, "mode")
  local mode = number_of[options.choice("decode", "mode", opts.mode, modes)]
  return core.image_decode(self.bytes, self.name, self.max_pixels, self.apply_exif_orientation, self.allow_corrupt,
    mode, opts.crop, opts.at_least)
end

function Encoded:repr()
  return ("Encoded(%s, %s of %d x %d pixels)"):format(self.name, self.format, self.width, self.height)
end

--- vision.open_image(path [, {max_pixels, apply_exif_orientation, allow_corrupt}]): a vision.Encoded of a file, which
--- is read; its pixels are decoded when asked for.
function image.open_image(path, opts)
  opts = options.check("open_image", opts, header_options)
  opts.name = path
  return Encoded(core.read_file(path), opts)
end

--- vision.read_image(path [, {mode = "unchanged", crop, at_least, max_pixels, apply_exif_orientation, allow_corrupt}]):
--- the pixels of a JPEG or PNG, a uint8 tensor [C, H, W]. vision.Encoded and its decode say what the options are.
function image.read_image(path, opts)
  local header, pixels = part("read_image", opts)
  return image.open_image(path, header):decode(pixels)
end

--- vision.decode_image(bytes [, opts]): read_image of what a file holds, a string or a uint8 tensor.
function image.decode_image(bytes, opts)
  local header, pixels = part("decode_image", opts)
  return Encoded(bytes, header):decode(pixels)
end

-- Pixels where C reads them.
local function on_cpu(who, pixels)
  pixels = options.arg(who, "image", pixels, "tensor")
  return pixels.device == "cpu" and pixels or pixels:to("cpu")
end

--- vision.encode_png(image [, {compression_level = 6}]): the bytes of a PNG, a uint8 tensor, of a uint8 image of 1 to 4
--- channels. compression_level: from 0, none, to 9, zlib's best.
function image.encode_png(pixels, opts)
  opts = options.check("encode_png", opts, {compression_level = {"integer", 6}}, "compression_level")
  return core.encode_png(on_cpu("encode_png", pixels), opts.compression_level)
end

--- vision.encode_jpeg(image [, {quality = 75}]): the bytes of a JPEG, a uint8 tensor, of a uint8 image of 1 or 3
--- channels. quality: from 1 to 100.
function image.encode_jpeg(pixels, opts)
  opts = options.check("encode_jpeg", opts, {quality = {"integer", 75}}, "quality")
  return core.encode_jpeg(on_cpu("encode_jpeg", pixels), opts.quality)
end

--- vision.write_png(image, path [, {compression_level = 6}]): encode_png's bytes as a file, written beside the path and
--- renamed: a crash leaves the old file or the new one, whole.
function image.write_png(pixels, path, opts) core.write_file(path, image.encode_png(pixels, opts)) end

--- vision.write_jpeg(image, path [, {quality = 75}]): encode_jpeg's bytes as a file, as write_png writes them.
function image.write_jpeg(pixels, path, opts) core.write_file(path, image.encode_jpeg(pixels, opts)) end

--- vision.read_file(path): the bytes of a file, a uint8 tensor [n].

image.read_file = options.exact("read_file", core.read_file, 1)

--- vision.write_file(path, bytes): a string, or a uint8 tensor of one dim, as a file, as write_png writes it.

image.write_file = options.exact("write_file", core.write_file, 2)

return image
