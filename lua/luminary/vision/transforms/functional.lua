--- vision.transforms.functional: Applies transforms of images with given parameters, under torchvision's names.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local checks = require "luminary.vision.transforms.check_arguments"
local images = require "luminary.vision.transforms.image_operations"
local fail = options.fail

local F = {}

-- Adds a function of an image by a native operation, whose numbers are its further arguments in order, or `numbers`.
local function pixel_op(text, operation, about, numbers)
  local name = text:match "^[%w_]+"
  F[name] = signature.explained("transforms.functional." .. name, about, signature.of(text, function(img, ...)
    return images.run(operation, img, numbers or {...})
  end))
end

--- Resizes an image to a given size.
F.resize = signature.of("resize(img: image, size, {" .. checks.interpolation
  .. ", max_size: side, antialias = true})", function(img, size, opts)
  local h, w = images.size(img)
  local checked = checks.resize_size("resize", size, opts.max_size)
  local height, width = images.resized("resize", h, w, checked, opts.max_size)
  return images.resize(img, height, width, images.resize_mode(opts))
end)

local rectangle = "top: integer(-2^24, 2^24), left: integer(-2^24, 2^24), height: side, width: side"

--- Crops an image at a given location; a part beyond the image is 0.
F.crop = signature.of("crop(img: image, " .. rectangle .. ")", function(...) return images.crop(...) end)

--- Crops an image at the center.
F.center_crop = signature.of("center_crop(img: image, output_size: sides)", function(img, size)
  local h, w = images.size(img)
  local top, left = images.center(h, w, size[1], size[2])
  return images.crop(img, top, left, size[1], size[2])
end)

--- Crops an image at its four corners and at its center; returns a list of the five crops.
F.five_crop = signature.of("five_crop(img: image, size: sides)", function(img, size)
  return images.corners("five_crop", img, size[1], size[2])
end)

--- Crops an image and its mirror image at the four corners and at the center; returns a list of the ten crops.
F.ten_crop = signature.of("ten_crop(img: image, size: sides, {vertical_flip = false})", function(img, size, opts)
  return images.corners("ten_crop", img, size[1], size[2], opts.vertical_flip and "vertically" or "horizontally")
end)

--- Crops an image and resizes the crop to a given size.
F.resized_crop = signature.of("resized_crop(img: image, " .. rectangle .. ", size: sides, {" .. checks.interpolation
  .. ", antialias = true})", function(img, top, left, height, width, size, opts)
  local crop = images.crop(img, top, left, height, width)
  return images.resize(crop, size[1], size[2], images.resize_mode(opts))
end)

--- Pads an image on all sides; negative numbers crop it.
F.pad = signature.of("pad(img: image, padding: border, {" .. checks.bordering .. "})", function(img, padding, opts)
  checks.check_border("pad", opts)
  return images.pad(img, padding, opts.padding_mode, opts.fill)
end)

pixel_op("horizontal_flip(img: image)", "flip", "Flips an image horizontally.", {1, 0})
pixel_op("hflip(img: image)", "flip", "Flips an image horizontally; the same as horizontal_flip.", {1, 0})
pixel_op("vertical_flip(img: image)", "flip", "Flips an image vertically.", {0, 1})
pixel_op("vflip(img: image)", "flip", "Flips an image vertically; the same as vertical_flip.", {0, 1})

--- Rotates an image counterclockwise by an angle in degrees.
F.rotate = signature.of([[rotate(img: image, angle: finite, {interpolation = "nearest" | "bilinear", expand = false,
  center: point, fill: channels})]], function(...) return images.rotate(...) end)

--- Applies an affine transformation to an image, keeping its center.
F.affine = signature.of("affine(img: image, angle: finite, translate: numbers(2), scale: above(0), shear, {"
  .. checks.mapping .. ", center: point})", function(img, angle, translate, scale, shear, opts)
  local who = "affine"
  if type(shear) == "number" then shear = {shear, 0} end
  local m = images.affine_matrix(angle, translate, scale, checks.list(who, "shear", shear, {2}),
    images.from_middle(img, opts.center))
  return images.affine(img, m, opts)
end)

--- Performs a perspective transformation of an image.
F.perspective = signature.of([[perspective(img: image, startpoints, endpoints,
  {interpolation: "nearest" | "bilinear" = "bilinear", fill: channels,
  coefficients: numbers(8)})]], function(img, startpoints, endpoints, opts)
  local who = "perspective"
  local coefficients = opts.coefficients
  if coefficients then
    if startpoints or endpoints then fail("%s: points and coefficients are mutually exclusive", who) end
  else
    local points = {startpoints, endpoints}
    for i, name in ipairs {"startpoints", "endpoints"} do
      if not options.is_plain(points[i]) or #points[i] ~= 4 then
        options.must_be(who, name, "a list of four {x, y}", points[i])
      end
      for k = 1, 4 do checks.list(who, ("%s[%d]"):format(name, k), points[i][k], {2}) end
    end
    coefficients = images.perspective_numbers(who, startpoints, endpoints)
  end
  return images.perspective(img, coefficients, opts)
end)

--- Moves each pixel of an image by its own displacement.
F.elastic = signature.of([[elastic(img: image, displacement: tensor,
  {interpolation: "nearest" | "bilinear" = "bilinear", fill: channels})]],
  function(...) return images.elastic(...) end)
F.elastic_transform = F.elastic

for operation, about in pairs {
  brightness = "Adjusts the brightness", contrast = "Adjusts the contrast", sharpness = "Adjusts the sharpness",
  saturation = "Adjusts the color saturation", hue = "Shifts the hue",
} do
  local range = operation == "hue" and "-0.5, 0.5" or "0"
  pixel_op(("adjust_%s(img: image, factor: finite(%s))"):format(operation, range), operation, about .. " of an image.")
end
pixel_op("adjust_gamma(img: image, gamma: finite(0), gain: finite = 1)", "gamma",
  "Performs gamma correction of an image, gain * img ^ gamma.")
pixel_op("invert(img: image)", "invert", "Inverts the colors of an image.")
pixel_op("posterize(img: image, bits: integer(0, 8))", "posterize", "Keeps the upper bits of each value of an image.")
pixel_op("solarize(img: image, threshold: finite)", "solarize", "Inverts all values of an image from a threshold on.")
pixel_op("autocontrast(img: image)", "autocontrast", "Maximizes the contrast of each channel of an image.")

--- Equalizes the histogram of each channel of an image.
F.equalize = signature.of("equalize(img: image)", function(img) return images.equalize("equalize", img) end)

--- Blurs an image with a Gaussian kernel.
F.gaussian_blur = signature.of("gaussian_blur(img: image, kernel_size: odd_sizes, {sigma})", function(img, size, opts)
  local who = "gaussian_blur"
  local sigma = opts.sigma
  if sigma == nil then sigma = {size[1] * 0.15 + 0.35, size[2] * 0.15 + 0.35} end
  if type(sigma) == "number" then sigma = {sigma, sigma} end
  sigma = checks.list(who, "sigma", sigma, {1, 2}, "above(0)")
  sigma[2] = sigma[2] or sigma[1]
  return images.blur(img, size, sigma)
end)

--- Converts an image to grayscale.
F.rgb_to_grayscale = signature.of("rgb_to_grayscale(img: image, {num_output_channels: count = 1})", function(img, opts)
  return images.run("grayscale", img, {opts.num_output_channels})
end)

--- Normalizes a float image with mean and standard deviation.
F.normalize = signature.of("normalize(img: image, mean, std)", function(img, mean, std)
  return images.normalize(img, checks.statistics("normalize", mean, std), false)
end)

--- Converts an image to a dtype, optionally scaling its values.
F.to_dtype = signature.of("to_dtype(img: tensor, dtype: dtype, {scale = false})", function(img, dtype, opts)
  return images.to_dtype("to_dtype", img, dtype, opts.scale)
end)

--- Converts an image to a dtype and scales its values.
F.convert_image_dtype = signature.of([[convert_image_dtype(img: tensor,
  dtype: dtype = "float32")]], function(img, dtype)
  return images.to_dtype("convert_image_dtype", img, dtype, true)
end)

--- Converts a uint8 image to float32, scaling its values from [0, 255] to [0, 1].
F.to_tensor = signature.of("to_tensor(img: image)", function(img)
  return img.dtype == "uint8" and images.to_dtype("to_tensor", img, "float32", true) or img
end)

--- Erases a rectangle of a copy of an image with given values.
F.erase = signature.of([[erase(img: image, i: integer(0, 2^24), j: integer(0, 2^24), h: side, w: side,
  v)]], function(img, i, j, h, w, v)
  local height, width = images.size(img)
  if i + h > height or j + w > width then
    fail("erase: rows %d to %d and columns %d to %d are out of range for an image of %d x %d", i, i + h - 1, j,
      j + w - 1, height, width)
  end
  local copy = img:clone()
  local part = copy:narrow(-2, i + 1, h):narrow(-1, j + 1, w)
  if core.is_tensor(v) then
    part:copy_(v:expand(part.shape))
  else
    part:fill_(options.arg("erase", "v", v, "finite"))
  end
  return copy
end)

F.to_grayscale = F.rgb_to_grayscale

return options.strict("vision.transforms.functional", F)
