-- lm.vision.transforms: torchvision's results (spec/golden/transforms.lua), what is drawn, and what is refused.
local lm = require "luminary"
local golden = {}
for _, row in ipairs(require "spec.golden.transforms") do
  for _, shape in ipairs(row[2]) do
    for dtype in row[3]:gmatch "%S+" do golden[#golden + 1] = { row[1], shape, dtype } end
  end
end
local message = require "spec.support.error_of"
local T = lm.vision.transforms
local F = T.functional

-- Returns an image by the formula of scripts/dev/golden/gen_transforms.py.
local function image(shape, dtype)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  local v = (lm.arange(n, { dtype = "float64" }) * 2654435761 / 65536):floor():remainder(256):view(shape)
  if dtype == "bool" then v = v:remainder(2) elseif dtype:find "float" then v = v / 256 end
  return v:to(dtype)
end

-- Returns how far a result may be from torchvision's, which rounds to halves after each step. Averages of integers that
-- are near a half may round to either side.
local function tolerance(dtype, name)
  if dtype:find "^int" and name:find "bilinear" then return 1 end
  return ({ float16 = 2e-3, bfloat16 = 1.6e-2, float32 = 1e-5, float64 = 1e-5 })[dtype] or 0
end

local function farthest(a, b) return (a:double() - b:double()):abs():max():item() end

-- Returns whether f(batch) is what f returns for each image, one after the other, from the same seed.
local function of_each(f, batch)
  lm.manual_seed(5)
  local all = f(batch)
  lm.manual_seed(5)
  local list = {}
  for i = 1, batch.shape[1] do list[i] = f(batch[i]) end
  return lm.equal(all, lm.stack(list))
end

describe("torchvision's results:", function()
  local expected = lm.load "spec/golden/_transforms.safetensors"
  local function call(i)
    local text, shape, dtype = unpack(golden[i])
    local f = assert(loadstring("local lm, F, x = ... return " .. text))
    return function(...) return f(lm, ...) end, image(shape, dtype), text .. " of " .. dtype
  end

  it("to the byte, or within 1e-5", function()
    assert(#golden > 450, #golden)
    for i = 1, #golden do
      local f, x, name = call(i)
      local before, y, want = x:clone(), f(F, x), expected[tostring(i)]
      assert.same({ want.shape, want.dtype }, { y.shape, y.dtype }, name)
      assert(farthest(y, want) <= tolerance(want.dtype, name), name)
      assert(lm.equal(before, x), name .. " changed its image")
    end
  end)

  it("and the same of views, of pixels that lie apart, and of batches", function()
    for i = 1, #golden do
      local f, x, name = call(i)
      local y, shape = f(F, x), x.shape
      local wide = lm.zeros({ shape[1] + 1, shape[2] + 3, shape[3] + 5 }, { dtype = x.dtype })
      local view = wide:narrow(1, 2, shape[1]):narrow(2, 2, shape[2]):narrow(3, 4, shape[3])
      view:copy_(x)
      -- The last numbers of a loop, computed one by one, may round otherwise.
      assert(farthest(y, f(F, view)) <= tolerance(y.dtype, name) / 10, name .. " of a view")
      local last = x:permute(2, 3, 1):contiguous():permute(3, 1, 2)
      assert(lm.equal(y, f(F, last)), name .. " of [H, W, C]")
      local other = F.horizontal_flip(x)
      local batch = f(F, lm.stack { x, other })
      assert(lm.equal(batch, lm.stack { y, f(F, other) }), name .. " of a batch")
      local all = lm.stack { lm.stack { x, other }, lm.stack { other, x } }
      local video = f(F, all:transpose(1, 2):unsqueeze(3)) -- [T, N, 1, C, H, W], whose first dims no view merges
      assert(lm.equal(video:squeeze(3):select(2, 1), batch), name .. " of a video")
    end
  end)

  it("on every instruction level and number of threads", function()
    local script = [[
      local lm = require "luminary"
      lm.set_num_threads(%d)
      lm.manual_seed(1)
      local F = lm.vision.transforms.functional
      local x = lm.randint(0, 256, {3, 260, 301}, {dtype = "uint8"})
      local y = {F.resize(x, {97, 401}), F.resize(x, {300, 90}, {interpolation = "bicubic"}), F.horizontal_flip(x),
        F.rotate(x, 90, {expand = true}), F.equalize(x), F.adjust_contrast(x, 1.4),
        F.autocontrast(x), F.rotate(x, 13), F.pad(x, 9, {padding_mode = "reflect"}), F.gaussian_blur(x, 7)}
      local sums = {}
      for i, each in ipairs(y) do
        local v = each:double():flatten()
        sums[i] = ("%%d %%.0f"):format(v:sum():item(), (v * lm.arange(v:numel(), {dtype = "float64"})):sum():item())
      end
      local blurred = table.remove(sums) -- FMA rounds blurs otherwise
      print(table.concat(sums, ", "))
      print(blurred)
    ]]
    local name = os.tmpname()
    local results, blurred = {}, {}
    for _, level in ipairs(require "spec.support.cpu_levels") do
      for _, threads in ipairs { 1, 2 } do
        local file = assert(io.open(name, "w"))
        file:write(script:format(threads))
        file:close()
        local pipe = io.popen(("LM_CPU_LEVEL=%d luajit %s"):format(level, name))
        results[#results + 1], blurred[#blurred + 1] = pipe:read(), pipe:read()
        pipe:close()
      end
    end
    os.remove(name)
    for i = 2, #results do assert.equal(results[1], results[i]) end
    for i = 1, #results, 2 do assert.equal(blurred[i], blurred[i + 1]) end
    assert.matches("^%d+ ", results[1])
  end)
end)

describe("resizing", function()
  it("a pixel gives its colour everywhere, and one size none at all", function()
    local x = lm.tensor({ { { 7 } }, { { 200 } } }, { dtype = "uint8" })
    for _, mode in ipairs { "nearest", "nearest-exact", "bilinear", "bicubic" } do
      local y = F.resize(x, { 5, 40 }, { interpolation = mode })
      assert(lm.equal(y, x:expand(2, 5, 40)), mode)
    end
    assert.equal(x, F.resize(x, 1))
  end)

  it("keeps proportions for one number, within max_size", function()
    local x = image({ 1, 30, 45 }, "uint8")
    assert.same({ 1, 20, 30 }, F.resize(x, 20).shape)
    assert.same({ 1, 18, 27 }, F.resize(x, 20, { max_size = 27 }).shape)
    assert.same({ 1, 30, 20 }, F.resize(x:transpose(2, 3), 20).shape)
    assert.same({ 1, 8, 12 }, T.Resize(nil, { max_size = 12 })(x).shape)
    assert.matches("max_size must be greater than size, 20, got 20", message(F.resize, x, 20, { max_size = 20 }))
    assert.matches("max_size requires a size of one number, for", message(F.resize, x, { 20, 20 }, { max_size = 30 }))
  end)

  it("by a lot in either direction", function()
    local x = image({ 1, 3, 5000 }, "uint8")
    assert.near(x:double():mean():item(), F.resize(x, { 1, 1 }):item(), 1)
    assert.same({ 1, 2, 1 }, F.resize(image({ 1, 400, 1 }, "float32"), { 2, 1 }).shape)
  end)
end)

describe("what is drawn", function()
  local x = image({ 3, 37, 41 }, "uint8")
  local all = {
    T.RandomCrop(30, { padding = 8 }), T.RandomCrop(30, { padding = 8, padding_mode = "reflect" }),
    T.RandomCrop(50, { pad_if_needed = true, fill = { 1, 2, 3 } }), T.RandomResizedCrop(20),
    T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomRotation(30), T.RandomGrayscale(0.5),
    T.RandomAffine(20, { translate = { 0.1, 0.2 }, scale = { 0.8, 1.2 }, shear = { -5, 5, -3, 3 } }),
    T.RandomPerspective(), T.ColorJitter { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 },
    T.GaussianBlur(5), T.RandomInvert(), T.RandomPosterize(3), T.RandomSolarize(100), T.RandomAutocontrast(),
    T.RandomEqualize(), T.RandomAdjustSharpness(2), T.RandAugment(), T.TrivialAugmentWide { fill = 9 },
    T.RandomErasing { p = 0.8, value = { 1, 2, 3 } }, T.RandomApply({ T.RandomVerticalFlip(1), T.GaussianBlur(3) }),
    T.RandomChoice({ T.RandomHorizontalFlip(1), T.RandomPosterize(2, 1) }, { p = { 1, 3 } }),
    T.RandomOrder { T.RandomInvert(), T.RandomPosterize(2) },
    T.Compose { T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor(),
      T.Normalize({ 0.5, 0.4, 0.3 }, { 0.2, 0.3, 0.4 }), T.RandomErasing { p = 1, value = "random" } },
  }

  it("is the same from the same seed, of a batch as of its images", function()
    local batch = lm.stack { x, F.vertical_flip(x), F.horizontal_flip(x), x, x }
    for _, t in ipairs(all) do assert(of_each(t, batch), tostring(t)) end
  end)

  it("leaves the image as it was", function()
    local before = x:clone()
    for _, t in ipairs(all) do
      for _ = 1, 3 do t(x) end
      assert(lm.equal(x, before), tostring(t))
    end
  end)

  it("does not depend on a loader's workers", function()
    local Set = lm.data.Dataset:extend("Set")
    function Set:init() self.t = T.Compose { T.RandomResizedCrop(8), T.ColorJitter { hue = 0.2 }, T.ToTensor() } end
    function Set.len() return 6 end
    function Set:get(_) return self.t(lm.arange(300, { dtype = "int64" }):remainder(256):to "uint8":view(3, 10, 10)) end
    local runs = {}
    for workers = 0, 2 do
      lm.manual_seed(2)
      local batches = {}
      for batch in lm.data.DataLoader(Set(), { batch_size = 2, num_workers = workers }):iter() do
        batches[#batches + 1] = batch
      end
      runs[#runs + 1] = lm.cat(batches)
    end
    assert(lm.equal(runs[1], runs[2]) and lm.equal(runs[1], runs[3]))
  end)

  it("has torchvision's distributions", function()
    lm.manual_seed(11)
    local n, flips, grey, chosen = 2000, 0, 0, 0
    local flip, gray = T.RandomHorizontalFlip(0.3), T.RandomGrayscale()
    local choice = T.RandomChoice({ T.RandomInvert(1), T.Identity() }, { p = { 1, 3 } })
    local pixel = lm.tensor({ { { 1, 2 } }, { { 3, 4 } }, { { 5, 6 } } }, { dtype = "uint8" })
    for _ = 1, n do
      if flip(pixel)[{ 1, 1, 1 }] == 2 then flips = flips + 1 end
      if gray(pixel)[{ 1, 1, 1 }] ~= 1 then grey = grey + 1 end
      if choice(pixel)[{ 1, 1, 1 }] ~= 1 then chosen = chosen + 1 end
    end
    assert.near(0.3, flips / n, 0.05)
    assert.near(0.1, grey / n, 0.04)
    assert.near(0.25, chosen / n, 0.05)
    -- Areas are uniform in scale, as long as they fit; the middle when ten tries did not.
    local crop, area, widest = T.RandomResizedCrop(8, { scale = { 0.1, 0.5 }, ratio = { 0.5, 2 } }), 0, 0
    for _ = 1, n do
      local top, left, h, w = crop:get_params(200, 200)
      assert(top >= 0 and left >= 0 and top + h <= 200 and left + w <= 200)
      area, widest = area + h * w / 40000 / n, math.max(widest, w / h)
    end
    assert.near(0.3, area, 0.02)
    assert(widest > 1.8 and widest < 2.1, widest)
    local square = T.RandomResizedCrop(8, { scale = { 1, 1 }, ratio = { 1, 1 } })
    assert.same({ 0, 35, 30, 30 }, { square:get_params(30, 100) })
    assert.same({ 3, 0, 2, 2 }, { T.RandomResizedCrop(8, { scale = { 4, 4 }, ratio = { 1, 1.5 } }):get_params(8, 2) })
  end)

  it("jitters colours in every order", function()
    lm.manual_seed(4)
    local t = T.ColorJitter { brightness = { 2, 2 }, contrast = { 0.5, 0.5 } }
    local img, seen = image({ 3, 4, 4 }, "float32"), {}
    local bright_first = F.adjust_contrast(F.adjust_brightness(img, 2), 0.5)
    local contrast_first = F.adjust_brightness(F.adjust_contrast(img, 0.5), 2)
    for _ = 1, 40 do
      local y = t(img)
      seen[lm.equal(y, bright_first) and 1 or lm.equal(y, contrast_first) and 2 or 3] = true
    end
    assert.same({ true, true }, seen)
    assert.equal(img, T.ColorJitter()(img))
  end)

  it("erases parts of the area asked for", function()
    lm.manual_seed(8)
    local ones, part = lm.ones(2, 50, 60), 0
    for _ = 1, 200 do
      local y = T.RandomErasing { p = 1, scale = { 0.1, 0.2 } }(ones)
      part = part + y:eq(0):float():mean():item() / 200
    end
    assert.near(0.15, part, 0.015)
    local noise = T.RandomErasing { p = 1, scale = { 0.5, 0.5 }, ratio = { 1, 1 }, value = "random" }(ones * 0)
    assert.near(0.5, (noise * noise):mean():item(), 0.05)
  end)
end)

describe("RandAugment", function()
  it("does all that it may, at its strength", function()
    lm.manual_seed(3)
    local img, seen, count = F.posterize(F.adjust_brightness(image({ 3, 20, 20 }, "uint8"), 0.8), 7), {}, 0
    local t = T.RandAugment { num_ops = 1, magnitude = 15 }
    for _ = 1, 400 do
      local key = table.concat(t(img):flatten():totable(), ",")
      if not seen[key] then seen[key], count = true, count + 1 end
    end
    -- 9 kinds go both ways, posterize, solarize, autocontrast and equalize one way, and the identity
    assert.equal(9 * 2 + 4 + 1, count)
    assert(seen[table.concat(F.posterize(img, 6):flatten():totable(), ",")])
    assert(seen[table.concat(F.adjust_brightness(img, 1.45):flatten():totable(), ",")])
    assert(seen[table.concat(F.rotate(img, -15):flatten():totable(), ",")])
    assert.same({ 3, 20, 20 }, T.TrivialAugmentWide()(img:float() / 255).shape)
    assert.matches("magnitude must be less than num_magnitude_bins, 31,", message(T.RandAugment, { magnitude = 31 }))
  end)
end)

describe("Compose", function()
  it("makes of ToTensor and Normalize one pass, with the same result", function()
    local x = image({ 3, 9, 8 }, "uint8")
    local mean, std = { 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }
    local apart = T.Normalize(mean, std)(T.ToTensor()(x))
    for _, first in ipairs { T.ToTensor(), T.ToDtype("float32", { scale = true }), T.ConvertImageDtype() } do
      assert(farthest(T.Compose { first, T.Normalize(mean, std) }(x), apart) < 1e-6)
    end
    assert.near((x[{ 2, 3, 4 }] / 255 - mean[2]) / std[2], apart[{ 2, 3, 4 }], 1e-5)
  end)

  it("takes functions and modules, and gives back what else it is called with", function()
    local x = image({ 3, 6, 6 }, "float32")
    local t = T.Compose { T.CenterCrop(4), function(img) return img + 1 end, T.Lambda(function(img) return img * 2 end),
      lm.nn.Identity and lm.nn.Identity() or T.Identity() }
    local y, label = t(x, 7)
    assert.equal(7, label)
    assert(lm.equal(y, (F.center_crop(x, 4) + 1) * 2))
    assert.same({ 2, 3, 4, 4 }, t(lm.stack { x, x }).shape)
    local batch = lm.arange(2 * 3 * 6 * 6):reshape { 2, 3, 6, 6 }:to "uint8"
    local cropped = T.Compose { T.RandomHorizontalFlip(1), T.CenterCrop(4) }(batch)
    assert(lm.equal(F.center_crop(F.hflip(batch), 4), cropped))
    assert.matches("transform 2 must be a transform or a function, got 3",
      message(T.Compose, { T.ToTensor(), 3 }))
    assert.matches("expected a list of transforms, got a table", message(T.Compose, {}))
  end)

  it("shows its members with their parameters", function()
    local Own = T.Transform:extend "Own"
    assert.equal([[
Compose(
  Resize(size=256, interpolation=bilinear, antialias=True, scaled=True)
  Resize(size=(3, 4), interpolation=nearest, antialias=True, scaled=True)
  CenterCrop(size=(224, 224))
  Pad(padding=(3, 3, 3, 3), fill=0, padding_mode=constant)
  RandomCrop(size=(32, 32), padding=(4, 4, 4, 4), pad_if_needed=False, fill=(1, 2, 3), padding_mode=constant)
  RandomResizedCrop(size=(8, 8), scale=(0.5, 1), ratio=(0.75, 1.5), interpolation=bilinear, antialias=True, scaled=True)
  RandomHorizontalFlip(p=0.5)
  RandomRotation(degrees=(-10, 10), interpolation=nearest, expand=False)
  RandomAffine(degrees=(-10, 10), translate=(0.1, 0.1), interpolation=nearest)
  RandomPerspective(distortion_scale=0.5, p=0.5, interpolation=bilinear, fill=0)
  RandomErasing(p=0.5, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=random)
  ToTensor()
  ToDtype(dtype=float32, scale=True)
  Normalize(mean=(0.5, 0.5), std=(0.25, 0.2))
  Grayscale(num_output_channels=1)
  ColorJitter(brightness=(0.6, 1.4), hue=(-0.1, 0.1))
  GaussianBlur(kernel_size=(3, 3), sigma=(0.1, 2))
  RandomPosterize(bits=3, p=0.5)
  RandomSolarize(threshold=0.5, p=0.5)
  RandomAdjustSharpness(sharpness_factor=2, p=0.5)
  RandAugment(num_ops=2, magnitude=9, num_magnitude_bins=31, interpolation=nearest)
  TrivialAugmentWide(num_magnitude_bins=31, interpolation=nearest)
  RandomApply(
    p=0.3
    RandomVerticalFlip(p=0.25)
  )
  RandomChoice(
    p=(0.2, 0.8)
    MixUp(alpha=1, num_classes=3)
    CutMix(alpha=0.5)
  )
  Identity()
  Own()
)]], tostring(T.Compose {
      T.Resize(256), T.Resize({ 3, 4 }, { interpolation = "nearest" }), T.CenterCrop(224), T.Pad(3),
      T.RandomCrop(32, { padding = 4, fill = { 1, 2, 3 } }), T.RandomResizedCrop(8, { scale = { 0.5, 1 },
        ratio = { 0.75, 1.5 } }), T.RandomHorizontalFlip(), T.RandomRotation(10), T.RandomAffine(10,
        { translate = { 0.1, 0.1 } }), T.RandomPerspective(), T.RandomErasing { value = "random" }, T.ToTensor(),
      T.ToDtype("float32", { scale = true }), T.Normalize({ 0.5, 0.5 }, { 0.25, 0.2 }), T.Grayscale(),
      T.ColorJitter { brightness = 0.4, hue = 0.1 }, T.GaussianBlur(3), T.RandomPosterize(3), T.RandomSolarize(0.5),
      T.RandomAdjustSharpness(2), T.RandAugment(), T.TrivialAugmentWide(),
      T.RandomApply({ T.RandomVerticalFlip(0.25) }, { p = 0.3 }),
      T.RandomChoice({ T.MixUp { num_classes = 3 }, T.CutMix { alpha = 0.5 } }, { p = { 0.2, 0.8 } }), T.Identity(),
      Own(),
    }))
  end)

  it("keeps what a function has kept", function()
    local kept
    local x = image({ 3, 6, 6 }, "uint8")
    T.Compose { T.RandomInvert(1), function(img) kept = img return img end, T.RandomInvert(1) }(x)
    assert(lm.equal(kept, F.invert(x)))
    local same = T.Compose { T.Identity(), T.RandomInvert(1) }
    same(x)
    assert.same({ 3, 6, 6 }, x.shape)
  end)

  it("of one's own transforms", function()
    local Twice = T.Transform:extend("Twice")
    function Twice:init(factor) self.factor = factor end
    function Twice:forward(img, ...) return img * self.factor, ... end
    local x = image({ 1, 2, 2 }, "float32")
    local y, label = T.Compose { Twice(2), T.RandomHorizontalFlip(1) }(x, "label")
    assert(lm.equal(y, F.horizontal_flip(x) * 2) and label == "label")
    local Noted = T.Resize:extend("Noted")
    function Noted:forward(img, ...) return T.Resize.forward(self, img, ...) + 1 end
    local noted = T.Compose { Noted { 3, 3 } }(x)
    assert(lm.equal(noted, F.resize(x, { 3, 3 }) + 1))
    local Empty = T.Transform:extend("Empty")
    assert.matches("define function Empty:forward", message(Empty(), x))
  end)
end)

describe("from_encoded", function()
  -- Returns what vision.open_image does, and records the calls of decode.
  local function encoded(x)
    local asked = {}
    return {
      height = x.shape[2], width = x.shape[3], channels = x.shape[1], asked = asked,
      decode = function(_, opts)
        asked[#asked + 1] = opts or {}
        opts = opts or {}
        local crop = opts.crop
        local y = crop and F.crop(x, unpack(crop)) or x
        if opts.at_least then
          while y.shape[2] >= 2 * opts.at_least[1] and y.shape[3] >= 2 * opts.at_least[2] do
            y = F.resize(y, { math.ceil(y.shape[2] / 2), math.ceil(y.shape[3] / 2) })
          end
        end
        return y
      end,
    }
  end
  local x = image({ 3, 100, 160 }, "uint8")

  it("decodes no more than a transform needs", function()
    local e = encoded(x)
    assert(lm.equal(T.CenterCrop(20)(x), T.CenterCrop(20):from_encoded(e)))
    assert.same({ { crop = { 40, 70, 20, 20 } } }, e.asked)
    e = encoded(x)
    assert(lm.equal(T.CenterCrop(120)(x), T.CenterCrop(120):from_encoded(e)))
    assert.is_nil(e.asked[1].crop)
    e = encoded(x)
    assert(lm.equal(T.Resize(60)(x), T.Resize(60):from_encoded(e)))
    assert.same({ {} }, e.asked)
    e = encoded(x)
    assert.same({ 3, 25, 40 }, T.Resize(25):from_encoded(e, { mode = "rgb" }).shape)
    assert.same({ { at_least = { 25, 40 }, mode = "rgb" } }, e.asked)
    e = encoded(x)
    assert(lm.equal(T.Resize(25)(x), T.Resize(25, { scaled = false }):from_encoded(e)))
    assert.same({ {} }, e.asked)
  end)

  it("draws the same part as of the image itself", function()
    for _, size in ipairs { 90, 10 } do
      local t = T.Compose { T.RandomResizedCrop(size, { scaled = false }), T.RandomHorizontalFlip(), T.ToTensor() }
      lm.manual_seed(6)
      local whole = t(x)
      lm.manual_seed(6)
      local e = encoded(x)
      assert(lm.equal(whole, t:from_encoded(e)))
      local crop = e.asked[1].crop
      assert(crop[3] < 100 and crop[4] < 160 and not e.asked[1].at_least)
    end
    local e = encoded(x)
    T.RandomResizedCrop(10, { scale = { 0.9, 0.9 } }):from_encoded(e)
    assert.same({ 10, 10 }, e.asked[1].at_least)
  end)

  it("decodes a JPEG, scaled where that is enough", function()
    local smooth = F.to_dtype(F.resize(image({ 3, 4, 5 }, "float32"), { 300, 400 }), "uint8", { scale = true })
    local bytes = lm.vision.encode_jpeg(smooth, { quality = 95 })
    local file = lm.vision.Encoded(bytes)
    for _, t in ipairs { T.Resize(30), T.CenterCrop(100), T.RandomResizedCrop(24), T.Resize { 500, 100 } } do
      lm.manual_seed(3)
      local whole = t(lm.vision.decode_image(bytes))
      lm.manual_seed(3)
      local part = T.Compose { t, T.Identity() }:from_encoded(file)
      assert.equal(whole.dtype, part.dtype)
      local off = (whole:double() - part:double()):abs():mean():item() -- edges come to lie up to a pixel elsewhere
      assert(off < 4, tostring(t) .. " " .. off)
    end
    local odd = F.to_dtype(F.resize(image({ 1, 3, 3 }, "float32"), { 289, 289 }), "uint8", { scale = true })
    local encoded_odd = lm.vision.encode_jpeg(odd, { quality = 98 }) -- 37 pixels at an eighth, the last of a single one
    local off = farthest(T.Resize(20)(odd), T.Resize(20):from_encoded(lm.vision.Encoded(encoded_odd)))
    assert(off <= 3, off)
    local exact = T.RandomResizedCrop(24, { scaled = false })
    lm.manual_seed(3)
    local whole = exact(lm.vision.decode_image(bytes))
    lm.manual_seed(3)
    assert(lm.equal(whole, exact:from_encoded(file)))
    assert.same({ 1, 30, 40 }, T.Resize(30):from_encoded(file, { mode = "gray" }).shape)
  end)

  it("decodes all for what cannot say what it needs", function()
    local e = encoded(x)
    assert(lm.equal(F.invert(x), T.Compose { T.RandomInvert(1) }:from_encoded(e)))
    assert.same({ {} }, e.asked)
    local t = T.Compose { function(img) return img end, T.CenterCrop(30) }
    assert.same({ 3, 30, 30 }, t:from_encoded(encoded(x)).shape)
  end)
end)

describe("MixUp and CutMix", function()
  local x = lm.arange(4, { dtype = "float32" }):view(4, 1, 1, 1):expand(4, 2, 8, 8):contiguous()
  local labels = lm.tensor({ 1, 3, 2, 3 }, { dtype = "int64" })

  it("mix images and labels by the same number", function()
    lm.manual_seed(1)
    local least, most = 1, 0
    for _ = 1, 100 do
      local y, to = T.MixUp { num_classes = 3 }(x, labels)
      local lam = to[{ 1, 1 }]
      least, most = math.min(least, lam), math.max(most, lam)
      assert.same({ 4, 3 }, to.shape)
      assert.near(1 - lam, to[{ 1, 3 }], 1e-6)
      assert.near(3 * (1 - lam), y[{ 1, 2, 3, 4 }], 1e-5) -- image 1 is 0, the last one 3
      assert.near(2 * lam + (1 - lam), y[{ 3, 1, 1, 1 }], 1e-5)
    end
    assert(least < 0.1 and most > 0.9) -- Beta(1, 1) is uniform
    local middle = 0
    for _ = 1, 50 do
      local _, to = T.MixUp { num_classes = 3, alpha = 200 }(x, labels)
      middle = math.max(middle, math.abs(to[{ 1, 1 }] - 0.5))
    end
    assert(middle < 0.15, middle)
    local _, to = T.MixUp { num_classes = 3, alpha = 1e-4 }(x, labels) -- almost always 0 or 1, and never NaN
    assert.near(1, to[1]:sum():item(), 1e-6)
  end)

  it("cut by area", function()
    lm.manual_seed(2)
    for _ = 1, 50 do
      local y, to = T.CutMix { num_classes = 3 }(x, labels)
      local own = y[1]:eq(0):float():mean():item()
      assert.near(own, to[{ 1, 1 }], 1e-6)
      assert.near(1 - own, y[1]:eq(3):float():mean():item(), 1e-6)
    end
    local bytes = x:to "uint8"
    assert.equal("uint8", (T.CutMix { num_classes = 3 }(bytes, labels)).dtype)
    local t = T.Compose { T.Normalize({ 0, 0 }, { 1, 1 }), T.MixUp { num_classes = 3 } }
    local _, to = t(x, labels)
    assert.same({ 4, 3 }, to.shape)
  end)

  it("go into RandomChoice, RandomApply and RandomOrder, which draw once for a batch", function()
    lm.manual_seed(3)
    local function kind(t) -- names how t mixed the images: the first is 0, the last one 3
      local y, to = t(x, labels)
      assert.same({ 4, 3 }, to.shape)
      local own = y[1]:eq(y[{ 1, 1, 1, 1 }]):all():item()
      return own and "mixed" or "cut"
    end
    local mix, cut = T.MixUp { num_classes = 3 }, T.CutMix { num_classes = 3, alpha = 100 }
    local seen = { mixed = 0, cut = 0 }
    for _ = 1, 40 do
      local which = kind(T.RandomChoice { mix, T.Compose { T.Identity(), cut } })
      seen[which] = seen[which] + 1
    end
    assert(seen.mixed > 8 and seen.cut > 8, seen.mixed)
    assert.equal("cut", kind(T.RandomChoice({ mix, cut }, { p = { 0, 1 } })))
    local y, to = T.RandomApply({ cut }, { p = 0 })(x, labels)
    assert(y == x and to == labels)
    assert.equal("cut", kind(T.RandomApply({ cut }, { p = 1 })))
    assert.equal("cut", kind(T.RandomOrder { cut, T.Identity(), function(v) return v end }))
    assert.same({ 4, 3 }, select(2, T.Compose { T.RandomChoice { mix, cut } }(x, labels)).shape)
  end)

  it("refuse what they cannot mix", function()
    local mix = T.MixUp { num_classes = 3 }
    assert.matches("expected x to have shape %[N, %.%.%., C, H, W%], got %[2, 8, 8%]", message(mix, x[1], labels))
    assert.matches("expected labels to have shape %[N%] %(from 1%) or %[N, classes%], got nil", message(mix, x))
    assert.matches("images and labels must have the same batch size: 4", message(mix, x, labels:narrow(1, 1, 3)))
    assert.matches("images must be floating, got uint8", message(mix, x:to "uint8", labels))
    assert.matches("num_classes is required for labels %[N%]", message(T.CutMix(), x, labels))
    assert.matches("alpha must be a number above 0, got 0", message(T.MixUp, { alpha = 0 }))
    assert.matches("label", message(T.CutMix { num_classes = 2 }, x, labels))
  end)
end)

describe("bad input:", function()
  local x = image({ 3, 9, 8 }, "uint8")
  local nan = 0 / 0
  local function refuses(pattern, f, ...) assert.matches(pattern, message(f, ...)) end

  it("what is no image", function()
    for _, f in ipairs { F.invert, F.horizontal_flip, T.ToTensor(), T.RandomHorizontalFlip(), T.Resize(4) } do
      local wanted = "expected an image %[C, H, W%] or %[H, W%], or a batch %[%.%.%., C, H, W%], got "
      refuses(wanted .. "a tensor %[9%]", f, lm.zeros(9))
      refuses(wanted .. "string 'cat%.jpg'", f, "cat.jpg")
      refuses("the image must not require a gradient", f, lm.zeros({ 3, 4, 4 }, { requires_grad = true }))
    end
    refuses("invert: x must be uint8 or floating, got bool", F.invert, lm.zeros({ 3, 0, 4 }, { dtype = "bool" }))
    refuses("at least 1 channel and H and W from 1 to 16777216, got %[3, 0, 4%]", F.resize, lm.zeros(3, 0, 4), { 2, 2 })
    refuses("hue: channels must be 1 or 3, got 2", F.adjust_hue, lm.zeros(2, 3, 3), 0.1)
    refuses("contrast: channels must be 1 or 3, got 4", F.adjust_contrast, lm.zeros(4, 3, 3), 1)
    refuses("the batch must not be empty, got a tensor %[0, 3, 4, 4%]", T.RandomCrop(2), lm.zeros(0, 3, 4, 4))
  end)

  it("sizes", function()
    refuses("size must be an integer from 1 to 2%^24, got ", F.resize, x, -3)
    refuses("size must be an integer from 1 to 2%^24, got ", F.resize, x, 1.5)
    refuses("size must be an integer from 1 to 2%^24, got ", F.resize, x, nan)
    refuses("size must be an integer from 1 to 2%^24, got ", F.resize, x, 2 ^ 40)
    refuses("integer or {height, width}", F.resize, x, { 1, 2, 3 })
    refuses("out of memory", F.resize, x, { 2 ^ 24, 2 ^ 24 })
    refuses("pad: height and width of the result must be at most 16777216, got ", F.pad, x, 2 ^ 24)
    refuses("negative padding must leave a pixel of an image of 9 x 8, got {%-4, %-4, %-4, %-4}", F.pad, x, -4)
    refuses("padding must be an integer, {left and right, top and bottom} or {left, top,", F.pad, x, { 1, 2, 3 })
    refuses("padding on the left must be less than the image's width %(8%) for mode reflect, got 8", F.pad, x, 8,
      { padding_mode = "reflect" })
    refuses("'constant', 'edge'", F.pad, x, 1, { padding_mode = "wrap" })
    refuses("height must be an integer from 1 to 2%^24, got ", F.crop, x, 0, 0, 0, 4)
    refuses("top must be an integer from %-16777216 to 2%^24, got nan", F.crop, x, nan, 0, 2, 4)
    refuses("the crop, 10 x 4, must not be larger than the padded image, 9 x 8", T.RandomCrop { 10, 4 }, x)
    refuses("rows 8 to 9 and columns 0 to 0 are out of range for an image of 9 x 8", F.erase, x, 8, 0, 2, 1, 0)
    refuses("kernel_size must be odd and at most 4095, got 4", F.gaussian_blur, x, 4)
    refuses("blur: kernel_size must be less than twice the image's 9 x 8, got 19 x 19", F.gaussian_blur, x, 19)
    refuses("image 2 of the batch became a tensor %[1, 32, 18%] of", T.RandomRotation({ 10, 80 }, { expand = true }),
      lm.zeros(8, 1, 30, 10))
  end)

  it("numbers", function()
    refuses("factor must be a number of at least 0, got nan", F.adjust_brightness, x, nan)
    refuses("factor must be a number of at least 0, got %-1", F.adjust_contrast, x, -1)
    refuses("from %-0.5 to 0.5", F.adjust_hue, x, 0.6)
    refuses("std%[2%] must not be 0", F.normalize, x:float(), { 0, 0, 0 }, { 1, 0, 1 })
    refuses("mean and std have 2 channels, the image 3", F.normalize, x:float(), { 0, 0 }, { 1, 1 })
    refuses("normalize: x must be floating point, got uint8; convert it with ToDtype", F.normalize, x, { 0 }, { 1 })
    refuses("mean must be a list of one number for each channel, got nil", T.Normalize, nil, { 1 })
    refuses("mean and std must have the same length, got 2 and 3", T.Normalize, { 0, 0 }, { 1, 1, 1 })
    refuses("bits", F.posterize, x, 9)
    refuses("solarize: threshold must be at most 255 for uint8, got 256", F.solarize, x, 256)
    refuses("sigma%[1%] must be a number above 0, got 0", F.gaussian_blur, x, 3, { sigma = 0 })
    refuses("angle must be a finite number, got inf", F.rotate, x, 1 / 0)
    refuses("scale must be a number above 0, got 0", F.affine, x, 0, { 0, 0 }, 0, 0)
    refuses("fill must be 1 or 3 numbers, one for each channel, got 2", F.rotate, x, 10, { fill = { 1, 2 } })
    refuses("'nearest', 'bilinear'", F.rotate, x, 10, { interpolation = "bicubic" })
    refuses("no three of the four points may be on one", F.perspective, x, { { 0, 0 }, { 1, 0 }, { 1, 1 }, { 0, 1 } },
      { { 0, 0 }, { 1, 1 }, { 2, 2 }, { 0, 1 } })
    refuses("scale must be ascending, got {1, 0%.5}", T.RandomResizedCrop, 4, { scale = { 1, 0.5 } })
    refuses("ratio%[1%] must be a number from 1e%-06 to 1e%+06, got 0", T.RandomResizedCrop, 4, { ratio = { 0, 1 } })
    refuses("hue", T.ColorJitter, { hue = 0.7 })
    refuses("p must be a number from 0 to 1, got 1%.5", T.RandomHorizontalFlip, 1.5)
    refuses("unknown option 'brightnes'; did you mean 'brightness'%?", T.ColorJitter, { brightnes = 1 })
    refuses("gain must be a finite number, got nan", F.adjust_gamma, x, 1, nan)
    refuses("value must be a number, a list of one for each channel, or", T.RandomErasing, { value = "noise" })
    refuses("value = 'random' requires a floating image, got uint8", T.RandomErasing { p = 1, value = "random" }, x)
    refuses("to_dtype: scale = true cannot convert uint8 to bool", F.to_dtype, x, "bool", { scale = true })
  end)

  it("straight to C", function()
    local transform = lm.core.image_transform
    refuses("image_transform: name must be a transform, got 'blurr'", transform, "blurr", x, {})
    refuses("resize: numbers must be a list of 8, got 2", transform, "resize", x, { 1, 2 })
    refuses("image_transform: numbers must be a table, got nil", transform, "invert", x)
    refuses("numbers", transform, "brightness", x, { "much" })
    refuses("brightness: numbers%[1%] must be finite, got nan", transform, "brightness", x, { nan })
    refuses("resize: top must be an integer from 0 to 8, got 9", transform, "resize", x, { 2, 2, 2, 1, 9, 0, 1, 1 })
    refuses("resize: crop must be within the image of 9 x 8, got {0, 4, 1, 5}",
      transform, "resize", x, { 2, 2, 2, 1, 0, 4, 1, 5 })
    refuses("affine: numbers must be a list of 13, got 10", transform, "affine", x, { 2, 2, 1, 3, 1, 0, 0, 0, 1, 0 })
    refuses("affine: the length of fill must be an integer from 0 to 3, got 9", transform, "affine", x, { 2, 2, 1, 9, 1,
      0, 0, 0, 1, 0 })
    assert(lm.equal(F.invert(x), transform("invert", x:transpose(2, 3), {}):transpose(2, 3)))
    refuses("invert: out must be uint8 %[3, 9, 8%] with contiguous rows, got float32 %[3, 9, 8%]", transform, "invert",
      x, {},
      lm.zeros(3, 9, 8))
    refuses("invert: out must be uint8 %[3, 9, 8%] with contiguous rows, got uint8 %[2, 9, 8%]", transform, "invert", x,
      {}, x:narrow(1, 1, 2))
    refuses("invert: out must not be x", transform, "invert", x, {}, x)
    refuses("blur: kernel must be of odd sizes with a weight for each row and column, got 3 x 3 and 2 weights",
      transform, "blur", x, { 3, 3, 1, 1 })
    refuses("normalize: mean and std must be 1 or 3 numbers, one for each channel, got 2", transform, "normalize", x,
      { 1, 0, 0, 1, 1 })
    refuses("quarter turns", transform, "rotate90", x, { 4 })
  end)

  it("maps of nowhere and of far away", function()
    local far = lm.core.image_transform("affine", x, { 9, 8, 1, 1, 1e300, 0, 1e300, -1e300, 1e300, 0, 7 })
    assert.same({ 3, 9, 8 }, far.shape)
    for _, bilinear in ipairs { 0, 1 } do
      local y = lm.core.image_transform("perspective", x, { bilinear, 1, 1, 0, 0, 0, 1, 0, -2, 0, 9 })
      assert.same({ 3, 9, 8 }, y.shape)
      local none = lm.core.image_transform("perspective", x, { bilinear, 1, 0, 0, 0, 0, 0, 0, -2, 0, 9 })
      assert.same({ 3, 9, 8 }, none.shape)
    end
    assert(lm.equal(F.affine(x, 0, { 100, 0 }, 1, 0, { fill = 5 }), x * 0 + 5))
    assert(lm.equal(F.crop(x, 50, -70, 2, 3), lm.zeros({ 3, 2, 3 }, { dtype = "uint8" })))
  end)

  it("leaves no tensor behind when memory runs out", function()
    local calls = { function() return F.resize(x, { 40, 50 }) end, function() return F.adjust_contrast(x, 2) end,
      function() return F.gaussian_blur(x, 3) end, function() return F.equalize(x) end,
      function() return F.resize(x, 3, { interpolation = "nearest" }) end, function() return F.autocontrast(x) end,
      function() return F.normalize(x:float(), { 0 }, { 1 }) end }
    for _, f in ipairs(calls) do
      for nth = 1, 12 do
        lm.core._fail_alloc_from(nth)
        local ok, err = pcall(f)
        lm.core._fail_alloc_from(0)
        if ok then break end
        assert.matches("memory", tostring(err))
      end
      assert(lm.is_tensor(f()))
    end
  end)
end)

describe("masks and videos", function()
  it("of 64 and 32 bits keep each bit, and what fills is exact", function()
    local x = lm.tensor({ { 2LL ^ 62 + 1, -1, 5 }, { -7, 2 ^ 53, 0 } }, { dtype = "int64" })
    x[{ 1, 1 }] = 4611686018427387905LL
    local y32 = lm.tensor({ { 2147483647, -1, 5 }, { -2139095041, -8388607, 0 } }, { dtype = "int32" })
    for _, mask in ipairs { x, y32 } do
      local y = F.resize(mask, { 4, 6 }, { interpolation = "nearest" })
      assert.same({ 4, 6 }, { unpack(y.shape) })
      assert(lm.equal(mask, y:index_select(1, lm.tensor({ 1, 3 }, { dtype = "int64" }))
        :index_select(2, lm.tensor({ 1, 3, 5 }, { dtype = "int64" }))))
      assert(lm.equal(mask, F.hflip(F.hflip(mask))) and lm.equal(mask, F.rotate(F.rotate(mask, 90, { expand = true }),
        -90, { expand = true })))
      local padded = F.pad(mask, 1, { fill = -8388607 })
      assert.equal(-8388607, padded[{ 1, 1 }])
      assert(lm.equal(mask, F.pad(padded, -1)))
      local turned = F.rotate(mask, 45, { fill = -8388607 })
      assert.equal(-8388607, turned[{ 1, 1 }])
    end
  end)

  it("draw once for a video, and anew for each of a batch", function()
    local frame = image({ 3, 20, 24 }, "uint8")
    local video = frame:expand(2, 4, 3, 20, 24)
    for _, t in ipairs { T.RandomCrop(9), T.RandomResizedCrop(7), T.RandomRotation(40),
      T.ColorJitter { brightness = 0.9 }, T.RandomErasing { p = 1, value = { 1, 2, 3 } },
      T.Compose { T.RandomCrop(9), T.RandomHorizontalFlip() } } do
      lm.manual_seed(3)
      local y = t(video)
      assert.same({ 2, 4, 3 }, { y.shape[1], y.shape[2], y.shape[3] })
      for k = 2, 4 do assert(lm.equal(y[1][1], y[1][k]), tostring(t)) end
      assert(not lm.equal(y[1], y[2]), tostring(t))
    end
    assert.same({ 0, 3, 2, 2 }, { unpack(F.hflip(lm.zeros(0, 3, 2, 2)).shape) })
  end)

  it("of halves are equalized as floats are", function()
    local x = image({ 3, 20, 24 }, "float32")
    assert(lm.equal(F.equalize(x), T.RandomEqualize(1)(x)))
    for _, dtype in ipairs { "float16", "bfloat16" } do
      local y = T.RandomEqualize(1)(x:to(dtype))
      assert(y.dtype == dtype and farthest(y, F.equalize(x:to(dtype):to "float32")) < 4e-3, dtype)
    end
  end)

  -- torchvision's values of 12 shares of the dtype's largest value, for three channels that share them.
  local COLORS = {
    invert = { F.invert, 127, 115, 96, 77, 58, 39, 26, 13, 0, 89, 51, 102 },
    posterize = { F.posterize, 2, 0, 0, 0, 32, 64, 64, 96, 96, 96, 32, 64, 0 },
    solarize = { F.solarize, 63, 0, 12, 31, 50, 58, 39, 26, 13, 0, 38, 51, 25 },
    autocontrast = { F.autocontrast, 0, 12, 31, 50, 69, 88, 101, 114, 127, 38, 76, 25 },
    brightness = { F.adjust_brightness, 0.5, 0, 6, 15, 25, 34, 44, 50, 57, 63, 19, 38, 12 },
    contrast = { F.adjust_contrast, 0.5, 30, 36, 45, 55, 64, 74, 80, 87, 93, 49, 68, 42 },
    saturation = { F.adjust_saturation, 0.5, 21, 35, 48, 66, 79, 94, 77, 98, 92, 28, 57, 31 },
    sharpness = { F.adjust_sharpness, 0.5, 0, 12, 31, 50, 69, 78, 86, 114, 127, 38, 76, 25 },
    grayscale = { F.rgb_to_grayscale, 42, 58, 65, 82, 90, 100, 53, 82, 58, 19, 39, 37 },
    hue = { F.adjust_hue, 0.1, 18, 24, 31, 50, 25, 11, 101, 103, 127, 69, 88, 65 },
    gamma = { F.adjust_gamma, 2, 0, 1, 7, 19, 37, 61, 80, 103, 127, 11, 45, 4 },
  }
  it("of integers have torchvision's colors, of any width", function()
    local shares = lm.tensor({ 0, 12, 31, 50, 69, 88, 101, 114, 127, 38, 76, 25, 0, 12, 31, 50, 69, 88, 101 })
    local x = lm.stack({ shares:narrow(1, 1, 12), shares:narrow(1, 4, 12), shares:narrow(1, 8, 12) }):view(3, 3, 4)
    for name, row in pairs(COLORS) do
      local argument = #row > 13 and row[2] or nil
      local expected = lm.tensor({ unpack(row, #row - 11) }, { dtype = "float64" })
      for dtype, most in pairs { int8 = 127, int16 = 32767, uint16 = 65535, int32 = 2147483647, int64 = 2 ^ 63 } do
        local wide = (x:double() / 127 * most):clamp(0, math.min(most, 2 ^ 63 - 1024)):to(dtype)
        local y = row[1](wide, name == "solarize" and math.floor(most * 0.5) or argument)
        assert.equal(dtype, y.dtype)
        local shown = y:double() / most * 127
        assert(farthest(shown[1]:flatten(), expected) <= (dtype == "int8" and name ~= "gamma" and 1 or 2),
          name .. " of " .. dtype .. ": " .. tostring(shown))
      end
    end
    assert.equal(9223372036854775806LL, F.invert(lm.ones({ 1, 1 }, { dtype = "int64" }))[{ 1, 1 }])
    assert.matches("solarize: threshold must be at most 127, got 128", message(F.solarize, x:to "int8", 128))
    assert.matches("brightness: x must be uint8 or floating, got bool; convert it with ToDtype", message(
      F.adjust_brightness, lm.ones({ 3, 4, 5 }, { dtype = "bool" }), 1))
  end)

  it("without pixels or channels pass, as in torchvision, and are padded by what fills", function()
    for _, shape in ipairs { { 3, 0, 5 }, { 3, 4, 0 }, { 2, 1, 0, 0 } } do
      for _, dtype in ipairs { "uint8", "float32", "bfloat16", "int16" } do
        local x = lm.zeros(shape, { dtype = dtype })
        local h, w = shape[#shape - 1], shape[#shape]
        local same = { F.hflip, F.vflip, F.invert, F.autocontrast, F.equalize }
        for _, f in ipairs(same) do assert.same(shape, { unpack(f(x).shape) }) end
        for f, argument in pairs { [F.gaussian_blur] = 3, [F.adjust_hue] = 0.1, [F.adjust_gamma] = 2, [F.rotate] = 30,
          [F.adjust_sharpness] = 2, [F.posterize] = 3 } do
          local y = f(x, argument)
          assert.same(shape, { unpack(y.shape) })
          assert.equal(dtype, y.dtype)
        end
        local y = F.pad(x, { 1, 2 }, { fill = 7 })
        assert.same({ h + 4, w + 2 }, { y:size(-2), y:size(-1) })
        assert(y:eq(7):all():item())
        assert(F.crop(x, -1, -1, 3, 3):eq(0):all():item())
        y = F.rotate(x, 90, { expand = true })
        assert.same({ w, h }, { y:size(-2), y:size(-1) })
        local gray = F.rgb_to_grayscale(x, { num_output_channels = 1 })
        assert.same({ 1, h, w }, { gray:size(-3), gray:size(-2), gray:size(-1) })
      end
      assert.equal("float32", T.ToTensor()(lm.zeros(shape, { dtype = "uint8" })).dtype)
    end
    assert.matches("Resize: cannot resize an image of 0 x 6 to 3 x inf", message(T.Resize(3), lm.zeros(3, 0, 6)))
    assert.matches("resize: cannot resize an image of 0 x 0 to nan x 3", message(F.resize, lm.zeros(3, 0, 0), 3))
    assert.same({ 0, 3, 3 }, { unpack(F.elastic(lm.zeros(0, 3, 3), lm.zeros(1, 3, 3, 2)).shape) })
    assert.same({ 0, 6, 7 }, { unpack(F.pad(lm.zeros(0, 4, 5), 1).shape) })
    assert.same({ 0, 3, 3 }, { unpack(F.resize(lm.zeros(0, 4, 5), { 3, 3 }).shape) })
  end)

  it("of bool are true from a half on where pixels are blended", function()
    local x = lm.tensor({ { 0, 1, 0 }, { 0, 1, 1 }, { 0, 0, 0 } }):to "bool"
    -- torchvision's F.gaussian_blur(x, [3, 3], [0.8, 0.8])
    assert.same({ { false, true, true }, { false, true, true }, { false, false, false } },
      F.gaussian_blur(x, 3, { sigma = 0.8 }):totable())
  end)

  it("of other kinds are refused", function()
    assert.matches("expected an image %[C, H, W%] or %[H, W%], or a batch %[..., C, H, W%], got", message(F.hflip,
      lm.ones(3)))
    assert.matches("to_dtype: scale = true cannot convert float32 to int32", message(F.to_dtype,
      lm.ones(1, 2, 2), "int32", { scale = true }))
  end)
end)

describe("lists of crops", function()
  it("go to a function in a Compose", function()
    local x = image({ 3, 12, 16 }, "uint8")
    local t = T.Compose { T.FiveCrop(4), function(crops) return lm.stack(crops) end, T.ToTensor() }
    assert.same({ 5, 3, 4, 4 }, { unpack(t(x).shape) })
    assert.equal(10, #T.TenCrop({ 3, 5 })(x))
    assert(lm.equal(F.vflip(x):narrow(2, 1, 3):narrow(3, 1, 5), T.TenCrop({ 3, 5 }, { vertical_flip = true })(x)[6]))
    assert.same({ 2, 3, 4, 4 }, { unpack(T.FiveCrop(4)(lm.stack { x, x })[5].shape) })
    assert.matches("ToTensor: expected an image", message(T.Compose { T.FiveCrop(4), T.ToTensor() }, x))
    assert.matches("FiveCrop: size must be at most that of the image, 12 x 16, got 13 x 13", message(T.FiveCrop(13), x))
  end)
end)

describe("displacements", function()
  it("are as large as asked for", function()
    lm.manual_seed(4)
    local photo = image({ 3, 50, 60 }, "float32")
    assert(farthest(T.ElasticTransform { alpha = 0 }(photo), photo) < 1e-5)
    assert(farthest(T.ElasticTransform { alpha = 100, sigma = 3 }(photo), photo) > 0.1)
    assert.matches("elastic: expected displacement to have shape %[1, 50, 60, 2%], got %[2%]", message(F.elastic, photo,
      lm.ones(2)))
    assert.matches("negative padding must leave a pixel of an image of 50 x 60, got", message(F.pad, photo, -25))
  end)
end)
