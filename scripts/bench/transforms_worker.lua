-- scripts/bench/transforms' worker: reads "name calls" lines, answers each with the seconds that the calls took.
local lm = require "luminary"
local T = lm.vision.transforms
local F = T.functional

lm.set_num_threads(tonumber(arg[1]))
lm.manual_seed(1)
local images = {
  uint8 = lm.randint(0, 256, { 3, 375, 500 }, { dtype = "uint8" }),
  float = lm.rand(64, 3, 224, 224),
}
local train = T.Compose {
  T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(),
  T.Normalize({ 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }),
}
local cases = {
  resize_256 = function(x) return F.resize(x, 256) end,
  resize_bicubic = function(x) return F.resize(x, 256, { interpolation = "bicubic" }) end,
  resize_plain = function(x) return F.resize(x, 256, { antialias = false }) end,
  resize_nearest = function(x) return F.resize(x, 256, { interpolation = "nearest" }) end,
  resize_up = function(x) return F.resize(x, 448) end,
  center_crop = function(x) return F.center_crop(x, 224) end,
  random_crop = function(x) return T.RandomCrop(224, { padding = 8 })(x) end,
  random_resized_crop = function(x) return T.RandomResizedCrop(224)(x) end,
  resized_crop = function(x) return F.resized_crop(x, 10, 20, 200, 200, 224) end,
  horizontal_flip = F.horizontal_flip,
  vertical_flip = F.vertical_flip,
  pad = function(x) return F.pad(x, 8) end,
  pad_reflect = function(x) return F.pad(x, 8, { padding_mode = "reflect" }) end,
  rotate_nearest = function(x) return F.rotate(x, 15) end,
  rotate_bilinear = function(x) return F.rotate(x, 15, { interpolation = "bilinear" }) end,
  rotate_fill = function(x) return F.rotate(x, 15, { interpolation = "bilinear", fill = 0.5 }) end,
  affine_bilinear = function(x) return F.affine(x, 10, { 3, 4 }, 1.1, { 5, 0 }, { interpolation = "bilinear" }) end,
  perspective = function(x)
    return F.perspective(x, { { 0, 0 }, { 200, 0 }, { 200, 200 }, { 0, 200 } },
      { { 9, 5 }, { 190, 12 }, { 180, 170 }, { 4, 195 } })
  end,
  brightness = function(x) return F.adjust_brightness(x, 1.3) end,
  contrast = function(x) return F.adjust_contrast(x, 1.3) end,
  saturation = function(x) return F.adjust_saturation(x, 1.3) end,
  hue = function(x) return F.adjust_hue(x, 0.1) end,
  gamma = function(x) return F.adjust_gamma(x, 1.3) end,
  sharpness = function(x) return F.adjust_sharpness(x, 1.3) end,
  color_jitter = function(x)
    return T.ColorJitter { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }(x)
  end,
  invert = F.invert,
  posterize = function(x) return F.posterize(x, 4) end,
  solarize = function(x) return F.solarize(x, x.dtype == "uint8" and 128 or 0.5) end,
  autocontrast = F.autocontrast,
  equalize = F.equalize,
  grayscale = F.rgb_to_grayscale,
  gaussian_blur = function(x) return F.gaussian_blur(x, 5) end,
  gaussian_blur_23 = function(x) return F.gaussian_blur(x, 23) end,
  to_float = function(x) return F.to_dtype(x, "float32", { scale = true }) end,
  to_uint8 = function(x) return F.to_dtype(x, "uint8", { scale = true }) end,
  normalize = function(x) return F.normalize(x, { 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }) end,
  erasing = function(x) return T.RandomErasing { p = 1 }(x) end,
  rand_augment = function(x) return T.RandAugment()(x) end,
  train_pipeline = train,
  mixup = function(x) return (T.MixUp { num_classes = 10 }(x, lm.randint(1, 11, { x.shape[1] }))) end,
  cutmix = function(x) return (T.CutMix { num_classes = 10 }(x, lm.randint(1, 11, { x.shape[1] }))) end,
}
io.stdout:setvbuf "no"
for line in io.lines() do
  local name, kind, calls = line:match "(%S+) (%S+) (%d+)"
  local f, x = cases[name], images[kind]
  local start = lm.time()
  for _ = 1, tonumber(calls) do
    local y = f(x)
    if y ~= x then y:free() end
  end
  print(lm.time() - start)
end
