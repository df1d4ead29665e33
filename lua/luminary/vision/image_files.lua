--- Files of images: JPEG by libjpeg-turbo, PNG by libpng. Pixels are torchvision's and PIL's, those of a JPEG to within
--- the level by which versions of libjpeg-turbo differ.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local class = require "luminary.base.class"
local options = require "luminary.base.options"

local image = {}

local modes = {"unchanged", "gray", "gray_alpha", "rgb", "rgba"}
local number_of = {}
for i, name in ipairs(modes) do number_of[name] = i - 1 end

local header_options = {
  {"max_pixels", "count", 178956970}, {"apply_exif_orientation", "boolean", true}, {"allow_corrupt", "boolean", false},
}
local pixel_options = {{"mode", modes, "unchanged"}, {"crop", "table"}, {"at_least", "table"}}
local all_options = {unpack(pixel_options)}
for _, row in ipairs(header_options) do all_options[#all_options + 1] = row end
all_options = arguments.in_order("mode apply_exif_orientation", all_options)

-- Those of `opts` that are among the rows.
local function part(opts, rows)
  local some = {}
  for _, row in ipairs(rows) do some[row[1]] = opts[row[1]] end
  return some
end

--- vision.Encoded(bytes [, {name = "the image", max_pixels = 178956970, apply_exif_orientation = true,
--- allow_corrupt = false}]): a JPEG or PNG whose header is read and whose pixels are not yet. `bytes` are a string or a
--- uint8 tensor, not to be written to. Has `height`, `width` (as it is to be seen), `channels` (1 to 4) and `format`
--- ("jpeg" or "png"); `name` is what messages call it.
--- An image of more than max_pixels is an error, before memory is asked for. A camera's note of how it was held (EXIF)
--- is followed, unless apply_exif_orientation is false. A file that is cut short or damaged is an error; with
--- allow_corrupt a damaged JPEG returns what can be made of it, as PIL's do in silence. What lies behind the last pixel
--- that is requested is not looked at.
local Encoded = class.root("Encoded")
Encoded.__makes = "bytes"
Encoded.__hint = "image:decode() gives its pixels"
image.Encoded = Encoded

Encoded.init = arguments.takes("Encoded", {
  {"name", "string", "the image"}, unpack(header_options),
}, function(self, bytes, opts)
  self.bytes, self.name, self.max_pixels = bytes, opts.name, opts.max_pixels
  self.apply_exif_orientation, self.allow_corrupt = opts.apply_exif_orientation, opts.allow_corrupt
  self.height, self.width, self.channels, self.format = core.image_header(bytes, opts.name, opts.max_pixels,
    opts.apply_exif_orientation, opts.allow_corrupt)
  if core.is_tensor(bytes) then core.keep(bytes) end
end)

--- encoded:decode([{mode = "unchanged", crop, at_least}]): the pixels, a uint8 tensor [C, H, W].
--- mode: "gray", "gray_alpha", "rgb" or "rgba"; "unchanged" is what the file has, except palettes and CMYK, which
--- become RGB; what is transparent has alpha; of 16 bits the upper 8 are left.
--- crop = {top, left, height, width}: of these pixels only, the same to the bit; top and left say how many are above
--- and to the left of it.
--- at_least = {height, width}: a JPEG may come at a half, a quarter or an eighth of its size, in less time, as long as
--- it (or its crop) has at least that many pixels; the crop's edges are then rounded to whole pixels.
Encoded.decode = arguments.takes("decode", pixel_options, function(self, opts)
  local mode = number_of[opts.mode]
  return core.image_decode(self.bytes, self.name, self.max_pixels, self.apply_exif_orientation, self.allow_corrupt,
    mode, opts.crop, opts.at_least)
end)

function Encoded:repr()
  return ("Encoded(%s, %s of %d x %d pixels)"):format(self.name, self.format, self.width, self.height)
end

--- vision.open_image(path [, {max_pixels, apply_exif_orientation, allow_corrupt}]): a vision.Encoded of a file, which
--- is read; its pixels are decoded when asked for.
image.open_image = arguments.takes("open_image", header_options, function(path, opts)
  opts.name = path
  return Encoded(core.read_file(path), opts)
end)

--- vision.read_image(…): the pixels of a JPEG or PNG, a uint8 tensor [C, H, W]. vision.Encoded and its decode say what
--- the options are.
image.read_image = arguments.takes("read_image", all_options, function(path, opts)
  return image.open_image(path, part(opts, header_options)):decode(part(opts, pixel_options))
end)

--- vision.decode_image(…): read_image of what a file holds, a string or a uint8 tensor.
image.decode_image = arguments.takes("decode_image", all_options, function(bytes, opts)
  return Encoded(bytes, part(opts, header_options)):decode(part(opts, pixel_options))
end)

-- Pixels where C reads them.
local function on_cpu(who, pixels)
  pixels = options.arg(who, "image", pixels, "tensor")
  return pixels.device == "cpu" and pixels or pixels:to("cpu")
end

--- vision.encode_png(image [, {compression_level = 6}]): the bytes of a PNG, a uint8 tensor, of a uint8 image of 1 to 4
--- channels. compression_level: from 0, none, to 9, zlib's best.
local png_options, jpeg_options = {{"compression_level", "integer", 6}}, {{"quality", "integer", 75}}

image.encode_png = arguments.takes("encode_png", png_options, function(pixels, opts)
  return core.encode_png(on_cpu("encode_png", pixels), opts.compression_level)
end)

--- vision.encode_jpeg(image [, {quality = 75}]): the bytes of a JPEG, a uint8 tensor, of a uint8 image of 1 or 3
--- channels. quality: from 1 to 100.
image.encode_jpeg = arguments.takes("encode_jpeg", jpeg_options, function(pixels, opts)
  return core.encode_jpeg(on_cpu("encode_jpeg", pixels), opts.quality)
end)

--- vision.write_png(image, path [, {compression_level = 6}]): encode_png's bytes as a file, written beside the path and
--- renamed: a crash leaves the old file or the new one, whole.
image.write_png = arguments.takes("write_png", png_options, function(pixels, path, opts)
  core.write_file(path, image.encode_png(pixels, opts))
end)

--- vision.write_jpeg(image, path [, {quality = 75}]): encode_jpeg's bytes as a file, as write_png writes them.
image.write_jpeg = arguments.takes("write_jpeg", jpeg_options, function(pixels, path, opts)
  core.write_file(path, image.encode_jpeg(pixels, opts))
end)

--- vision.read_file(path): the bytes of a file, a uint8 tensor [n].

image.read_file = options.exact("read_file", core.read_file, 1)

--- vision.write_file(path, bytes): a string, or a uint8 tensor of one dim, as a file, as write_png writes it.

image.write_file = options.exact("write_file", core.write_file, 2)

return image
