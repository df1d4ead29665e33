--- Reads and writes image files: JPEG by libjpeg-turbo, PNG by libpng, WebP, GIF and TIFF by their libraries, and BMP.
--- Pixels equal torchvision's and PIL's, for JPEG up to a difference between versions of libjpeg-turbo.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"

local image = {}

local number_of = {unchanged = 0, gray = 1, gray_alpha = 2, rgb = 3, rgba = 4}

local header_options = "max_pixels: count = 178956970, apply_exif_orientation = true, allow_corrupt = false"
local mode = [[mode = "unchanged" | "gray" | "gray_alpha" | "rgb" | "rgba", ]]
local all_options = mode .. [[apply_exif_orientation = true, crop: table, at_least: table,
  max_pixels: count = 178956970, allow_corrupt = false]]

--- vision.Encoded(bytes [, {name = "image", max_pixels = 178956970, apply_exif_orientation = true, allow_corrupt =
--- false}]): Reads the header of an image file's bytes, and decodes its pixels later.
local Encoded = class.root("Encoded")
Encoded.__makes = "bytes"
Encoded.__hint = "image:decode() returns its pixels"
image.Encoded = Encoded

Encoded.init = signature.of([[Encoded(bytes, {name = "image", ]] .. header_options .. "})", function(self, bytes, opts)
  self.bytes = bytes
  signature.assign(self, opts)
  self.height, self.width, self.channels, self.format = core.image_header(bytes, opts.name, opts.max_pixels,
    opts.apply_exif_orientation, opts.allow_corrupt)
  if core.is_tensor(bytes) then core.keep(bytes) end
end)

--- Decodes the image into a uint8 tensor [C, H, W]. Its options are those of vision.read_image.
Encoded.decode = signature.of("decode({" .. mode .. "crop: table, at_least: table})", function(self, opts)
  return core.image_decode(self.bytes, self.name, self.max_pixels, self.apply_exif_orientation, self.allow_corrupt,
    number_of[opts.mode], opts.crop, opts.at_least)
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

--- Reads an image file, and its header, into a vision.Encoded; pixels are decoded later.
image.open_image = signature.of("open_image(path, {" .. header_options .. "})", function(path, opts)
  opts.name = path
  return Encoded(read_file(path), opts)
end)

-- Returns the pixels of bytes, by the options of reading.
local function decoded(bytes, name, o)
  local encoded = Encoded(bytes, name, o.max_pixels, o.apply_exif_orientation, o.allow_corrupt)
  return encoded:decode(o.mode, o.crop, o.at_least)
end

--- Reads a JPEG, PNG, WebP, GIF, BMP or TIFF file into a uint8 tensor [C, H, W].
image.read_image = signature.of("read_image(path, {" .. all_options .. "})", function(path, opts)
  return decoded(read_file(path), path, opts)
end)

--- Decodes a JPEG, PNG, WebP, GIF, BMP or TIFF image from bytes into a uint8 tensor [C, H, W].
image.decode_image = signature.of("decode_image(bytes, {" .. all_options .. "})", function(bytes, opts)
  return decoded(bytes, nil, opts)
end)

--- Decodes all frames of a GIF from bytes into a uint8 tensor [N, C, H, W].
image.decode_gif = signature.of([[decode_gif(bytes, {mode = "rgb" | "gray" | "gray_alpha" | "rgba", name = "image",
  max_pixels: count = 178956970})]], function(bytes, opts)
  local encoded, channels = Encoded(bytes, opts.name, opts.max_pixels), number_of[opts.mode]
  if encoded.format ~= "gif" then options.fail("'%s': expected a GIF, got %s", opts.name, encoded.format) end
  return core.decode_gif(bytes, opts.name, opts.max_pixels, true, false, channels):view(-1, channels, encoded.height,
    encoded.width)
end)

--- Encodes a uint8 image as a PNG.
image.encode_png = signature.of("encode_png(image: tensor, {compression_level: integer = 6})", function(pixels, opts)
  return core.encode_png(pixels:to "cpu", opts.compression_level)
end)

--- Encodes a uint8 image as a JPEG.
image.encode_jpeg = signature.of("encode_jpeg(image: tensor, {quality: integer = 75})", function(pixels, opts)
  return core.encode_jpeg(pixels:to "cpu", opts.quality)
end)

--- Encodes a uint8 image as a WebP.
image.encode_webp = signature.of("encode_webp(image: tensor, {quality: integer(0, 100) = 75, lossless = false})",
  function(pixels, opts)
    if pixels.ndim == 3 and pixels.shape[1] == 1 then pixels = pixels:expand(3, -1, -1) end
    return core.encode_webp(pixels:to "cpu", opts.lossless and 101 or opts.quality)
  end)

--- Saves a uint8 image as a PNG file.
image.write_png = signature.of("write_png(image: tensor, path, {compression_level: integer = 6})",
  function(pixels, path, opts) core.write_pieces(path, {image.encode_png(pixels, opts)}, "write_png") end)

--- Saves a uint8 image as a JPEG file.
image.write_jpeg = signature.of("write_jpeg(image: tensor, path, {quality: integer = 75})",
  function(pixels, path, opts) core.write_pieces(path, {image.encode_jpeg(pixels, opts)}, "write_jpeg") end)

--- Saves a uint8 image as a WebP file.
image.write_webp = signature.of("write_webp(image: tensor, path, {quality: integer = 75, lossless = false})",
  function(pixels, path, opts) core.write_pieces(path, {image.encode_webp(pixels, opts)}, "write_webp") end)

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
