--- vision.transforms.functional: Applies transforms of images with given parameters, under torchvision's names.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local options = require "luminary.base.options"
local checks = require "luminary.vision.transforms.check_arguments"
local native = require "luminary.vision.transforms.native"
local pixels = require "luminary.vision.transforms.blur_normalize_dtype"
local cropping = require "luminary.vision.transforms.crop_and_pad"
local sizing = require "luminary.vision.transforms.resize"
local warping = require "luminary.vision.transforms.rotate_affine_perspective"
local fail, check = options.fail, checks.check

local F = {}

local center = {"center", checks.point}
local resize_rows = {checks.resizing[1], {"max_size", "any"}, checks.resizing[2]}
local mapping = {checks.mapping[1], checks.mapping[2], center}
local rotating = {checks.mapping[1], {"expand", "boolean", false}, center, checks.mapping[2]}
local perspective = {
  {"interpolation", {"nearest", "bilinear"}, "bilinear"}, checks.mapping[2], {"coefficients", "table"},
}

--- transforms.functional.resize(img, size [, {interpolation = "bilinear", max_size, antialias = true}]): Resizes an
--- image to a given size.
F.resize = arguments.takes("resize", resize_rows, function(img, size, opts)
  local who = "resize"
  local h, w = native.size(check(who, img))
  local checked, max_size = checks.resize_size(who, size, opts.max_size)
  local height, width = sizing.resized(who, h, w, checked, max_size)
  return sizing.resize(img, height, width, sizing.resize_mode(opts))
end)

--- transforms.functional.crop(img, top, left, height, width): Crops an image at a given location; a part beyond the
--- image is 0.
function F.crop(img, top, left, height, width)
  check("crop", img)
  checks.whole("crop", "top", top, -2 ^ 24)
  checks.whole("crop", "left", left, -2 ^ 24)
  checks.whole("crop", "height", height)
  checks.whole("crop", "width", width)
  return cropping.crop(img, top, left, height, width)
end

--- transforms.functional.center_crop(img, output_size): Crops an image at the center.
function F.center_crop(img, output_size)
  local h, w = native.size(check("center_crop", img))
  local height, width = checks.pair("center_crop", "output_size", output_size)
  local top, left = cropping.center(h, w, height, width)
  return cropping.crop(img, top, left, height, width)
end

--- transforms.functional.resized_crop(img, top, left, height, width, size [, {interpolation = "bilinear", antialias =
--- true}]): Crops an image and resizes the crop to a given size.
F.resized_crop = arguments.takes("resized_crop", checks.resizing, function(img, top, left, height, width, size, opts)
  local who = "resized_crop"
  check(who, img)
  local new_height, new_width = checks.pair(who, "size", size)
  local part = F.crop(img, top, left, height, width)
  return sizing.resize(part, new_height, new_width, sizing.resize_mode(opts))
end)

--- transforms.functional.pad(img, padding [, {fill = 0, padding_mode = "constant"}]): Pads an image on all sides.
F.pad = arguments.takes("pad", checks.bordering, function(img, padding, opts)
  check("pad", img)
  padding = checks.padding("pad", "padding", padding)
  checks.check_border("pad", opts)
  return cropping.pad(img, padding, opts.padding_mode, opts.fill)
end)

--- transforms.functional.horizontal_flip(img): Flips an image horizontally.
function F.horizontal_flip(img) return native.run("flip", check("horizontal_flip", img), {1, 0}) end
--- transforms.functional.hflip(img): Flips an image horizontally; the same as horizontal_flip.
function F.hflip(img) return native.run("flip", check("hflip", img), {1, 0}) end

--- transforms.functional.vertical_flip(img): Flips an image vertically.
function F.vertical_flip(img) return native.run("flip", check("vertical_flip", img), {0, 1}) end
--- transforms.functional.vflip(img): Flips an image vertically; the same as vertical_flip.
function F.vflip(img) return native.run("flip", check("vflip", img), {0, 1}) end

--- transforms.functional.rotate(img, angle [, {interpolation = "nearest", expand = false, center, fill}]): Rotates an
--- image counterclockwise by an angle in degrees.
F.rotate = arguments.takes("rotate", rotating, function(img, angle, opts)
  local who = "rotate"
  check(who, img)
  return warping.rotate(img, checks.number(who, "angle", angle), opts)
end)

--- transforms.functional.affine(img, angle, translate, scale, shear [, {interpolation = "nearest", fill, center}]):
--- Applies an affine transformation to an image, keeping its center.
F.affine = arguments.takes("affine", mapping, function(img, angle, translate, scale, shear, opts)
  local who = "affine"
  check(who, img)
  if type(shear) == "number" then shear = {shear, 0} end
  checks.number(who, "scale", scale)
  if scale <= 0 then options.must_be(who, "scale", "above 0", scale) end
  local m = warping.affine_matrix(checks.number(who, "angle", angle), checks.list(who, "translate", translate, {2}),
    scale, checks.list(who, "shear", shear, {2}),
    warping.from_middle(img, opts.center))
  return warping.affine(img, m, opts)
end)

--- transforms.functional.perspective(img, startpoints, endpoints [, {interpolation = "bilinear", fill,
--- coefficients}]): Performs a perspective transformation of an image.
F.perspective = arguments.takes("perspective", perspective, function(img, startpoints, endpoints, opts)
  local who = "perspective"
  check(who, img)
  local coefficients
  if opts.coefficients then
    if startpoints or endpoints then fail("%s: points and coefficients are mutually exclusive", who) end
    coefficients = checks.list(who, "coefficients", opts.coefficients, {8})
  else
    local points = {startpoints, endpoints}
    for i, name in ipairs {"startpoints", "endpoints"} do
      if not options.is_plain(points[i]) or #points[i] ~= 4 then
        options.must_be(who, name, "a list of four {x, y}", points[i])
      end
      for k = 1, 4 do checks.list(who, ("%s[%d]"):format(name, k), points[i][k], {2}) end
    end
    coefficients = warping.perspective_numbers(who, startpoints, endpoints)
  end
  return warping.perspective(img, coefficients, opts)
end)

--- transforms.functional.adjust_brightness(img, factor): Adjusts the brightness of an image.
--- transforms.functional.adjust_contrast(img, factor): Adjusts the contrast of an image.
--- transforms.functional.adjust_saturation(img, factor): Adjusts the color saturation of an image.
--- transforms.functional.adjust_sharpness(img, factor): Adjusts the sharpness of an image.
--- transforms.functional.adjust_hue(img, factor): Shifts the hue of an image.

for operation, range in pairs {
  brightness = {0}, contrast = {0}, saturation = {0}, sharpness = {0}, hue = {-0.5, 0.5},
} do
  local who = "adjust_" .. operation
  F[who] = function(img, factor)
    return native.run(operation, check(who, img), {checks.number(who, "factor", factor, range[1], range[2])})
  end
end

--- transforms.functional.adjust_gamma(img, gamma [, gain = 1]): Performs gamma correction of an image, gain * img ^
--- gamma.
function F.adjust_gamma(img, gamma, gain)
  return native.run("gamma", check("adjust_gamma", img), {
    checks.number("adjust_gamma", "gamma", gamma, 0), checks.number("adjust_gamma", "gain", gain or 1),
  })
end

--- transforms.functional.invert(img): Inverts the colors of an image.
function F.invert(img) return native.run("invert", check("invert", img), {}) end

--- transforms.functional.posterize(img, bits): Keeps the upper bits of each value of an image.
function F.posterize(img, bits)
  checks.whole("posterize", "bits", bits, 0)
  return native.run("posterize", check("posterize", img), {bits})
end

--- transforms.functional.solarize(img, threshold): Inverts all values of an image from a threshold on.
function F.solarize(img, threshold)
  return native.run("solarize", check("solarize", img), {checks.number("solarize", "threshold", threshold)})
end

--- transforms.functional.autocontrast(img): Maximizes the contrast of each channel of an image.
function F.autocontrast(img) return native.run("autocontrast", check("autocontrast", img), {}) end

--- transforms.functional.equalize(img): Equalizes the histogram of each channel of an image.
function F.equalize(img)
  check("equalize", img)
  if img.dtype == "uint8" then return native.run("equalize", img, {}) end
  local bytes = pixels.to_dtype("equalize", img, "uint8", true)
  return pixels.to_dtype("equalize", native.run("equalize", bytes, {}), img.dtype, true)
end

--- transforms.functional.gaussian_blur(img, kernel_size [, {sigma}]): Blurs an image with a Gaussian kernel.
F.gaussian_blur = arguments.takes("gaussian_blur", {{"sigma", "any"}}, function(img, kernel_size, opts)
  local who = "gaussian_blur"
  check(who, img)
  local size = checks.kernel_size(who, "kernel_size", kernel_size)
  local sigma = opts.sigma
  if sigma == nil then sigma = {size[1] * 0.15 + 0.35, size[2] * 0.15 + 0.35} end
  if type(sigma) == "number" then sigma = {sigma, sigma} end
  sigma = checks.list(who, "sigma", sigma, {1, 2})
  sigma[2] = sigma[2] or sigma[1]
  for i = 1, 2 do
    if sigma[i] <= 0 then options.must_be(who, "sigma", "above 0", sigma[i]) end
  end
  return pixels.blur(img, size, sigma)
end)

--- transforms.functional.rgb_to_grayscale(img [, {num_output_channels = 1}]): Converts an image to grayscale.
F.rgb_to_grayscale = arguments.takes("rgb_to_grayscale", {{"num_output_channels", "count", 1}}, function(img, opts)
  return native.run("grayscale", check("rgb_to_grayscale", img), {opts.num_output_channels})
end)

--- transforms.functional.normalize(img, mean, std): Normalizes a float image with mean and standard deviation.
function F.normalize(img, mean, std)
  return pixels.normalize(check("normalize", img), checks.statistics("normalize", mean, std), false)
end

--- transforms.functional.to_dtype(img, dtype [, {scale = false}]): Converts an image to a dtype, optionally scaling
--- its values.
F.to_dtype = arguments.takes("to_dtype", {{"scale", "boolean", false}}, function(img, dtype, opts)
  return pixels.to_dtype("to_dtype", options.arg("to_dtype", "img", img, "tensor"), core.dtype(dtype), opts.scale)
end)

--- transforms.functional.convert_image_dtype(img [, dtype = "float32"]): Converts an image to a dtype and scales its
--- values.
function F.convert_image_dtype(img, dtype)
  options.arg("convert_image_dtype", "img", img, "tensor")
  return pixels.to_dtype("convert_image_dtype", img, core.dtype(dtype or "float32"), true)
end

--- transforms.functional.to_tensor(img): Converts a uint8 image to float32, scaling its values from [0, 255] to [0,
--- 1].
function F.to_tensor(img)
  check("to_tensor", img)
  return img.dtype == "uint8" and pixels.to_dtype("to_tensor", img, "float32", true) or img
end

--- transforms.functional.erase(img, i, j, h, w, v): Erases a rectangle of a copy of an image with given values.
function F.erase(img, i, j, h, w, v)
  check("erase", img)
  local height, width = native.size(img)
  checks.whole("erase", "i", i, 0)
  checks.whole("erase", "j", j, 0)
  checks.whole("erase", "h", h)
  checks.whole("erase", "w", w)
  if i + h > height or j + w > width then
    fail("erase: rows %d to %d and columns %d to %d are out of range for an image of %d x %d", i, i + h - 1, j,
      j + w - 1, height, width)
  end
  local copy = img:clone()
  local part = copy:narrow(-2, i + 1, h):narrow(-1, j + 1, w)
  if core.is_tensor(v) then
    part:copy_(v:expand(part.shape))
  else
    part:fill_(checks.number("erase", "v", v))
  end
  return copy
end

options.exact_all(F, options.named)
F.to_grayscale = F.rgb_to_grayscale

return options.strict("vision.transforms.functional", F)
