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

--- vision.Encoded(bytes [, {name = "image", max_pixels = 178956970, apply_exif_orientation = true, allow_corrupt =
--- false}]): Reads the header of a JPEG or PNG image, and decodes its pixels later.
local Encoded = class.root("Encoded")
Encoded.__makes = "bytes"
Encoded.__hint = "image:decode() returns its pixels"
image.Encoded = Encoded

Encoded.init = arguments.takes("Encoded", {
  {"name", "string", "image"}, unpack(header_options),
}, function(self, bytes, opts)
  self.bytes, self.name, self.max_pixels = bytes, opts.name, opts.max_pixels
  self.apply_exif_orientation, self.allow_corrupt = opts.apply_exif_orientation, opts.allow_corrupt
  self.height, self.width, self.channels, self.format = core.image_header(bytes, opts.name, opts.max_pixels,
    opts.apply_exif_orientation, opts.allow_corrupt)
  if core.is_tensor(bytes) then core.keep(bytes) end
end)

--- encoded:decode([{mode = "unchanged", crop, at_least}]): Decodes the image into a uint8 tensor [C, H, W]. Its
--- options are those of vision.read_image.
Encoded.decode = arguments.takes("decode", pixel_options, function(self, opts)
  local mode = number_of[opts.mode]
  return core.image_decode(self.bytes, self.name, self.max_pixels, self.apply_exif_orientation, self.allow_corrupt,
    mode, opts.crop, opts.at_least)
end)

function Encoded:repr()
  return ("Encoded(%s, %s of %d x %d pixels)"):format(self.name, self.format, self.width, self.height)
end

local function read_file(path)
  local file, size = core.file_open(path, false, "read_file")
  local bytes = core.file_section(file, 0, size)
  core.file_close(file)
  return bytes
end

--- vision.open_image(path [, {max_pixels, apply_exif_orientation, allow_corrupt}]): Reads an image file, and its
--- header, into a vision.Encoded; pixels are decoded later.
image.open_image = arguments.takes("open_image", header_options, function(path, opts)
  opts.name = path
  return Encoded(read_file(path), opts)
end)

--- vision.read_image(…): Reads a JPEG or PNG file into a uint8 tensor [C, H, W].
image.read_image = arguments.takes("read_image", all_options, function(path, opts)
  return image.open_image(path, part(opts, header_options)):decode(part(opts, pixel_options))
end)

--- vision.decode_image(…): Decodes a JPEG or PNG image from bytes into a uint8 tensor [C, H, W].
image.decode_image = arguments.takes("decode_image", all_options, function(bytes, opts)
  return Encoded(bytes, part(opts, header_options)):decode(part(opts, pixel_options))
end)

-- Pixels where C reads them.
local function on_cpu(who, pixels)
  pixels = options.arg(who, "image", pixels, "tensor")
  return pixels.device == "cpu" and pixels or pixels:to("cpu")
end

--- vision.encode_png(image [, {compression_level = 6}]): Encodes a uint8 image as a PNG.
local png_options, jpeg_options = {{"compression_level", "integer", 6}}, {{"quality", "integer", 75}}

image.encode_png = arguments.takes("encode_png", png_options, function(pixels, opts)
  return core.encode_png(on_cpu("encode_png", pixels), opts.compression_level)
end)

--- vision.encode_jpeg(image [, {quality = 75}]): Encodes a uint8 image as a JPEG.
image.encode_jpeg = arguments.takes("encode_jpeg", jpeg_options, function(pixels, opts)
  return core.encode_jpeg(on_cpu("encode_jpeg", pixels), opts.quality)
end)

--- vision.write_png(image, path [, {compression_level = 6}]): Saves a uint8 image as a PNG file.
image.write_png = arguments.takes("write_png", png_options, function(pixels, path, opts)
  core.write_pieces(path, {image.encode_png(pixels, opts)}, "write_png")
end)

--- vision.write_jpeg(image, path [, {quality = 75}]): Saves a uint8 image as a JPEG file.
image.write_jpeg = arguments.takes("write_jpeg", jpeg_options, function(pixels, path, opts)
  core.write_pieces(path, {image.encode_jpeg(pixels, opts)}, "write_jpeg")
end)

--- vision.read_file(path): Reads the bytes of a file into a uint8 tensor [n].

image.read_file = options.exact("read_file", read_file, 1)

--- vision.write_file(path, bytes): Writes bytes into a file: a string, or a 1-d uint8 tensor.

image.write_file = options.exact("write_file", function(path, bytes)
  if type(bytes) ~= "string" and not (core.is_tensor(bytes) and bytes.dtype == "uint8") then
    options.must_be("write_file", "bytes", "a string or a uint8 tensor", bytes)
  end
  core.write_pieces(path, {bytes}, "write_file")
end, 2)

return image
