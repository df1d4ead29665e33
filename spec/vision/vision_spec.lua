-- lm.vision: files of images, read and written. Pixels against torchvision's (scripts/dev/golden/gen_images.py).
local lm = require "luminary"
local needs = require "spec.support.needs"
local temp = require "spec.support.temp"
local message = require "spec.support.error_of"
local vision = lm.vision

local golden = lm.load "spec/golden/_images.safetensors"

local function text_of(bytes)
  local list = bytes:totable()
  for i, byte in ipairs(list) do list[i] = string.char(byte) end
  return table.concat(list)
end

-- Returns the greatest difference of two images of the same sizes.
local function difference(a, b)
  assert.same({unpack(a.shape)}, {unpack(b.shape)})
  return a:to("int32"):sub(b:to("int32")):abs():max():item()
end

-- Waves, with some grain: as a photograph's files are.
local function picture(channels, height, width)
  lm.manual_seed(5)
  local n = lm.arange(channels * height * width):reshape(channels, height, width)
  return n:mul(0.37):sin():add(n:mul(0.011):cos()):mul(55):add(128):add(lm.randn(channels, height, width):mul(6))
    :clamp(0, 255):to("uint8")
end

local function part(x, crop) return x:narrow(2, crop[1] + 1, crop[3]):narrow(3, crop[2] + 1, crop[4]) end

local names = {}
for name in pairs(golden) do
  if name:find("%.%a+$") and not needs.images(name:match "%a+$") then names[#names + 1] = name end
end
table.sort(names)

describe("lm.vision", function()
  local folder = temp.during(setup, teardown)

  it("gives torchvision's pixels in every mode", function()
    local count = 0
    for _, name in ipairs(names) do
      for _, mode in ipairs {"unchanged", "gray", "gray_alpha", "rgb", "rgba"} do
        local want = golden[name .. " " .. mode]
        if want then
          local pixels = vision.decode_image(golden[name], {mode = mode})
          local most = name:find("jpg$") and 1 or 0 -- versions of libjpeg-turbo may round otherwise
          assert(difference(pixels, want) <= most, name .. " as " .. mode)
          count = count + 1
        end
      end
    end
    assert.equal(212, needs.images() and 212 or count)
  end)

  it("gives each mode its channels", function()
    local channels = {gray = 1, gray_alpha = 2, rgb = 3, rgba = 4}
    for _, name in ipairs(names) do
      local encoded = vision.Encoded(golden[name])
      local whole = encoded:decode()
      assert.same({encoded.channels, encoded.height, encoded.width}, {unpack(whole.shape)})
      assert.equal(name:match("%a+$"):gsub("jpg", "jpeg"), encoded.format)
      for mode, n in pairs(channels) do
        local pixels = encoded:decode {mode = mode}
        assert.same({n, encoded.height, encoded.width}, {unpack(pixels.shape)})
        if n % 2 == 0 and whole.shape[1] % 2 == 1 and not name:find("transparent") then
          assert.equal(255, pixels:select(1, n):min():item())
        end
        if n == 3 and whole.shape[1] == 1 then
          for c = 1, 3 do assert.is_true(pixels:select(1, c):equal(whole:select(1, 1))) end
        end
      end
    end
  end)

  it("follows EXIF's orientation, unless told not to", function()
    local function turned(x, orientation)
      local pixels = x:totable()
      local out, height, width = {}, #pixels[1], #pixels[1][1]
      local swap = orientation >= 5
      for c = 1, #pixels do
        out[c] = {}
        for i = 1, swap and width or height do
          out[c][i] = {}
          for j = 1, swap and height or width do
            local y, x1 = i, j
            if swap then y, x1 = j, i end
            if orientation == 3 or orientation == 4 or orientation == 6 or orientation == 7 then y = height + 1 - y end
            if orientation == 2 or orientation == 3 or orientation == 7 or orientation == 8 then x1 = width + 1 - x1 end
            out[c][i][j] = pixels[c][y][x1]
          end
        end
      end
      return lm.tensor(out, {dtype = "uint8"})
    end
    for _, name in ipairs {"1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg", "6.jpg", "7.jpg", "8.jpg", "3.png", "6.png"} do
      local bytes, orientation = golden["exif " .. name], tonumber(name:match "%d")
      local stored = vision.decode_image(bytes, {apply_exif_orientation = false})
      local seen = vision.decode_image(bytes)
      assert.is_true(seen:equal(turned(stored, orientation)), name)
      local crop = {2, 1, 3, 4}
      assert.is_true(vision.decode_image(bytes, {crop = crop}):equal(part(seen, crop)), name)
    end
  end)

  it("takes no orientation from a note that makes no sense", function()
    local whole = text_of(golden["exif 6.jpg"])
    local at = assert(whole:find("Exif\0\0", 1, true)) + 6 -- the TIFF structure; this one is little-endian, "II"
    local upright = vision.decode_image(whole, {apply_exif_orientation = false}).shape[3]
    local function width(from, with)
      return vision.decode_image(whole:sub(1, at + from - 1) .. with .. whole:sub(at + from + #with)).shape[3]
    end
    assert.not_equal(upright, width(0, "II"))
    assert.equal(upright, width(0, "MM"))
    assert.equal(upright, width(0, "IM"))
    assert.equal(upright, width(2, "\43"))
    assert.equal(upright, width(4, "\255\255\255\255")) -- a directory behind the end
    assert.equal(upright, width(4, "\64\0\0\0"))
    assert.equal(upright, width(8, "\1\0")) -- the only entry is another one
    assert.not_equal(upright, width(8, "\255\255"))
    assert.equal(upright, width(24, "\4\0")) -- the number is not short
    assert.equal(upright, width(30, "\0\0"))
    assert.equal(upright, width(30, "\9\0"))
  end)

  it("crops to the pixels of the whole", function()
    math.randomseed(3)
    for _, name in ipairs(names) do
      local encoded = vision.Encoded(golden[name])
      for _, mode in ipairs {"rgb", "gray"} do
        local whole = encoded:decode {mode = mode}
        for _ = 1, 12 do
          local height, width = math.random(encoded.height), math.random(encoded.width)
          local crop = {math.random(0, encoded.height - height), math.random(0, encoded.width - width), height, width}
          local cropped = encoded:decode {mode = mode, crop = crop}
          assert(cropped:equal(part(whole, crop)), name .. " " .. mode .. " " .. table.concat(crop, ","))
        end
      end
    end
    local encoded = vision.Encoded(golden["420.jpg"])
    for _, crop in ipairs {{0, 0, 44, 1}, {1, 0, 43, 1}, {-1, 0, 2, 2}, {0, 0, 0, 1}, {0, 60, 1, 2}} do
      assert.matches("'image': crop {.*} %(top and left from 0, height, width%) must be within the image of 43 x 61",
        message(encoded.decode, encoded, {crop = crop}))
    end
    for n, crop in pairs {[0] = {}, [2] = {1, 2}} do
      assert.matches("decode: crop must be {top, left, height, width}, got " .. n .. " numbers",
        message(encoded.decode, encoded, {crop = crop}), 1, true)
    end
    assert.matches("decode: at_least must be {height, width}, got 1 numbers",
      message(encoded.decode, encoded, {at_least = {1}}), 1, true)
  end)

  it("decodes a JPEG at the smallest scale that has enough pixels", function()
    local bytes = vision.encode_jpeg(picture(3, 203, 317), {quality = 90})
    local encoded = vision.Encoded(bytes)
    local function sizes(opts)
      local shape = encoded:decode(opts).shape
      return {shape[2], shape[3]}
    end
    assert.same({203, 317}, sizes {at_least = {102, 160}})
    assert.same({102, 159}, sizes {at_least = {102, 159}})
    assert.same({51, 80}, sizes {at_least = {26, 41}})
    assert.same({26, 40}, sizes {at_least = {26, 40}})
    assert.same({26, 40}, sizes {at_least = {1, 1}})
    assert.same({50, 60}, sizes {at_least = {50, 60}, crop = {30, 40, 100, 120}})
    assert.same({100, 120}, sizes {at_least = {51, 60}, crop = {30, 40, 100, 120}})
    assert.same({203, 317}, sizes {at_least = {500, 500}})
    -- A crop at a scale is that part of the whole at that scale.
    for _, scale in ipairs {2, 4, 8} do
      local whole = encoded:decode {at_least = {math.ceil(203 / scale), math.ceil(317 / scale)}}
      local smaller = encoded:decode {crop = {80, 96, 64, 96}, at_least = {64 / scale, 96 / scale}}
      assert(smaller:equal(part(whole, {80 / scale, 96 / scale, 64 / scale, 96 / scale})), scale)
    end
    -- It is about what averaging returns.
    local smooth = lm.arange(128):reshape(1, 1, 128):expand(1, 96, 128):to("uint8")
    local half = vision.decode_image(vision.encode_jpeg(smooth, {quality = 100}), {at_least = {48, 64}})
    local average = lm.nn.functional.avg_pool2d(smooth:to("float32"):unsqueeze(1), 2):select(1, 1)
    assert(half:to("float32"):sub(average):abs():max():item() <= 2)
    -- Lying on its side: at_least is of what is seen. A PNG has one scale.
    local turned = vision.Encoded(golden["exif 6.jpg"])
    assert.same({3, 18, 11}, {unpack(turned:decode({at_least = {18, 11}}).shape)})
    assert.same({3, 35, 21}, {unpack(turned:decode({at_least = {11, 18}}).shape)})
    local whole = vision.decode_image(golden["rgb 8.png"])
    assert.is_true(vision.decode_image(golden["rgb 8.png"], {at_least = {1, 1}}):equal(whole))
  end)

  it("writes PNG that is read the same, and JPEG that nearly is", function()
    for channels = 1, 4 do
      local image = picture(channels, 19, 23)
      for _, level in ipairs {0, 6, 9} do
        local bytes = vision.encode_png(image, {compression_level = level})
        assert.is_true(vision.decode_image(bytes):equal(image))
        assert.is_true(vision.decode_image(text_of(bytes)):equal(image))
      end
    end
    local image = picture(3, 40, 50)
    local sizes = {}
    for i, quality in ipairs {20, 75, 98} do
      local bytes = vision.encode_jpeg(image, {quality = quality})
      sizes[i] = bytes:numel()
      local error = vision.decode_image(bytes):to("float32"):sub(image:to("float32")):abs():mean():item()
      assert(error < 40 / i and error > 0, error)
    end
    assert(sizes[1] < sizes[2] and sizes[2] < sizes[3])
    local gray = picture(1, 9, 300)
    assert.equal(1, vision.decode_image(vision.encode_jpeg(gray)).shape[1])
    -- Any strides.
    local turned = picture(9, 8, 3):permute(3, 1, 2)
    assert.is_true(vision.decode_image(vision.encode_png(turned)):equal(turned:contiguous()))
  end)

  it("says which library a build lacks", function()
    for ending, name in pairs {webp = "lossy.webp", gif = "palette.gif", tiff = "lzw.tiff"} do
      if needs.images(ending) then
        assert.matches("^cannot decode %a+: this build was made without %a+; install its headers and build again$",
          needs.images(ending))
        assert.has.errors(function() vision.decode_image(golden[name]) end)
      end
    end
  end)

  it("reads all frames of a GIF", function()
    if needs.images "gif" then return pending(needs.images "gif") end
    for _, name in ipairs {"frames.gif", "background.gif", "previous.gif"} do
      local want = golden[name .. " frames"]
      local frames = vision.decode_gif(golden[name])
      assert.same({5, 3, 13, 17}, {unpack(frames.shape)})
      assert(frames:equal(want), name)
      assert(vision.decode_image(golden[name], {mode = "rgb"}):equal(want[1]), name)
      assert.is_true(vision.decode_gif(text_of(golden[name]), {mode = "rgba"}):narrow(2, 1, 3):equal(want))
      assert.matches("'x': its frames have more pixels than max_pixels %(1104%)",
        message(vision.decode_gif, golden[name], {name = "x", max_pixels = 5 * 13 * 17 - 1}))
    end
    assert.same({1, 1, 13, 17}, {unpack(vision.decode_gif(golden["palette.gif"], {mode = "gray"}).shape)})
    assert.matches("'image': expected a GIF, got png", message(vision.decode_gif, golden["rgb 8.png"]))
  end)

  it("writes WebP, without loss if asked for", function()
    if needs.images "webp" then return pending(needs.images "webp") end
    for _, channels in ipairs {1, 3, 4} do
      local image = picture(channels, 19, 23)
      local want = channels == 1 and image:expand(3, -1, -1) or image
      assert.is_true(vision.decode_image(vision.encode_webp(image, {lossless = true}), {mode =
        channels == 4 and "rgba" or "rgb"}):equal(want))
    end
    local image, sizes = picture(3, 40, 50), {}
    for i, quality in ipairs {0, 75, 100} do
      local bytes = vision.encode_webp(image, {quality = quality})
      sizes[i] = bytes:numel()
      local error = vision.decode_image(bytes):to("float32"):sub(image:to("float32")):abs():mean():item()
      assert(error < 40 and error > 0, error)
    end
    assert(sizes[1] < sizes[2] and sizes[2] < sizes[3])
    vision.write_webp(image, folder .. "/a.webp", {lossless = true})
    assert.is_true(vision.read_image(folder .. "/a.webp"):equal(image))
    assert.equal("webp", vision.open_image(folder .. "/a.webp").format)
    assert.matches("encode_webp: quality must be an integer from 0 to 100, got 101", message(vision.encode_webp, image,
      {quality = 101}))
    assert.matches("expected image to have shape [C, H, W] with C of 1, 3 or 4, got [2, 2, 2]", message(
      vision.encode_webp, picture(2, 2, 2)), 1, true)
    assert.matches("with H and W from 1 to 16383, got %[3, 1, 16384%]", message(vision.encode_webp, picture(1, 1,
      16384)))
  end)

  it("writes files whole, and reads them", function()
    local image, path = picture(3, 10, 12), folder .. "/a.png"
    vision.write_png(image, path)
    assert.is_true(vision.read_image(path):equal(image))
    assert.equal(temp.read(path), text_of(vision.read_file(path)))
    vision.write_jpeg(image, path, {quality = 90}) -- over it; what it is, its bytes say
    assert.equal("jpeg", vision.open_image(path).format)
    assert.is_true(vision.read_image(path):equal(vision.decode_image(vision.encode_jpeg(image, {quality = 90}))))
    vision.write_file(path, "text")
    assert.equal("text", temp.read(path))
    vision.write_file(path, lm.tensor({104, 105}, {dtype = "uint8"}))
    assert.equal("hi", temp.read(path))
    assert.matches("cannot write '" .. folder .. "/no/a.png': No such", message(vision.write_png, image, folder
      .. "/no/a.png"), 1,
      true)
    local _, listing = temp.run(folder, "ls " .. folder)
    assert.not_matches("tmp", listing)
  end)

  it("names the file and what is wrong with it", function()
    if needs.images() then return pending(needs.images()) end
    local path = folder .. "/x.jpg"
    local function wrong(text, opts)
      temp.write(path, text)
      local said = message(vision.read_image, path, opts)
      assert.matches(path, said, 1, true)
      return said
    end
    assert.matches("': the image is empty; supported are JPEG, PNG, WebP, GIF, BMP and TIFF", wrong "")
    assert.matches("': unknown image format: it starts with 68 65 6c 6c; supported are JPEG, PNG, WebP", wrong "hello")
    assert.matches("': unsupported image format: SVG; supported are JPEG, PNG, WebP", wrong "<svg ....")
    assert.matches("': malformed GIF: truncated", wrong "GIF89a....")
    assert.matches("': malformed WebP: truncated", wrong "RIFF\30\0\0\0WEBPVP8 ")
    assert.matches("': malformed BMP: truncated", wrong "BM")
    assert.matches("': malformed TIFF: ", wrong "II*\0")
    for bits, kind in pairs {[32] = 3, [12] = 1} do -- files of one pixel
      local fields = {}
      for i, field in ipairs {
        {256, 1}, {257, 1}, {258, bits}, {259, 1}, {262, 1}, {273, 122}, {277, 1}, {279, 4}, {339, kind},
      } do
        fields[i] = string.char(field[1] % 256, math.floor(field[1] / 256), 3, 0, 1, 0, 0, 0, field[2], 0, 0, 0)
      end
      assert.matches("': unsupported TIFF: expected unsigned integers of 1, 2, 4, 8 or 16 bits as samples, got "
        .. (kind == 3 and "floats of 32 bits" or "unsigned integers of 12 bits"), wrong("II*\0\8\0\0\0\9\0"
        .. table.concat(fields) .. ("\0"):rep(8)))
    end
    local bmp = text_of(golden["palette.bmp"])
    assert.matches("': malformed BMP: unsupported: 8 bits a pixel and compression 1", wrong(bmp:sub(1, 30) .. "\1"
      .. bmp:sub(32)))
    assert.matches("cannot open '.*/none.png': No such file or directory", message(vision.read_image, folder
      .. "/none.png"))
    assert.matches("it is a folder", message(vision.read_image, folder))
    assert.matches("path must be a string, got nil", message(vision.read_image))
    assert.matches("more than max_pixels %(2000%)", wrong(text_of(golden["420.jpg"]), {max_pixels = 2000}))
    assert.matches("more than max_pixels %(100%)", wrong(text_of(golden["rgb 8.png"]), {max_pixels = 100}))
    assert.matches("more than max_pixels %(220%)", wrong(text_of(golden["lzw.tiff"]), {max_pixels = 220}))
    for _, name in ipairs {"lossy.webp", "palette.gif", "rgb.bmp"} do
      assert.matches("the header states 17 x 13 pixels, more than", wrong(text_of(golden[name]), {max_pixels = 220}))
    end
    -- Ten gigapixels by its header: nothing is allocated for them.
    assert.matches("the header states 100000 x 100000 pixels, more than max_pixels %(178956970%)",
      wrong(text_of(golden.huge)))
    assert.matches("bytes must be a string or a uint8 tensor, got nil", message(vision.decode_image))
    assert.matches("bytes must be a string or a contiguous 1%-d uint8 tensor on cpu, got float32 %[3%]",
      message(vision.decode_image, lm.ones(3)))
    assert.matches("did you mean 'rgb'?", message(vision.decode_image, golden["420.jpg"], {mode = "rbg"}), 1, true)
    assert.matches("did you mean 'mode'?", message(vision.decode_image, golden["420.jpg"], {mod = "rgb"}), 1, true)
    assert.matches("encode_png: image must be uint8, got float32; convert one in [0, 1] with image:mul(255)",
      message(vision.encode_png, lm.ones(3, 2, 2)), 1,
      true)
    assert.matches("expected image to have shape [C, H, W] with C of 1 or 3, got [4, 2, 2]", message(vision.encode_jpeg,
      picture(4, 2, 2)), 1, true)
    assert.matches("with H and W from 1 to 65500, got %[1, 1, 65501%]", message(vision.encode_jpeg, picture(1, 1,
      65501)))
    assert.matches("quality must be from 1 to 100, got 101",
      message(vision.encode_jpeg, picture(1, 2, 2), {quality = 101}))
    assert.matches("compression_level must be from 0 to 9, got %-1",
      message(vision.encode_png, picture(1, 2, 2), {compression_level = -1}))
  end)

  it("refuses what is cut short or damaged, or the pixels are whole", function()
    if needs.images() then return pending(needs.images()) end
    for _, name in ipairs {"420.jpg", "progressive.jpg", "restarts.jpg", "rgb 8.png", "palette 4 interlaced.png",
      "lossy.webp", "alpha.webp", "palette.gif", "interlaced.gif", "rgb.bmp", "palette.bmp", "plain.tiff", "lzw.tiff",
      "jpeg.tiff"} do
      local whole, right = text_of(golden[name]), vision.decode_image(golden[name])
      local refused = 0
      for n = 0, #whole - 1, #whole > 2000 and 7 or 3 do
        local ok, result = pcall(vision.decode_image, whole:sub(1, n))
        if ok then
          assert(result:equal(right), name .. " cut to " .. n)
        else
          assert.matches("^[^ ]*: 'image': ", result)
          refused = refused + 1
        end
      end
      assert(refused > 100 or refused > #whole / 3 - 25, name .. " " .. refused)
      assert.is_true(vision.decode_image(whole .. "more"):equal(right)) -- bytes behind the image do not matter
    end
    local jpeg = text_of(golden["restarts.jpg"])
    assert.matches("'image': malformed JPEG: truncated", message(vision.decode_image, jpeg:sub(1, #jpeg - 200)), 1,
      true)
    local sequential = text_of(golden["420.jpg"])
    assert.matches("'image': malformed JPEG: Corrupt JPEG data: premature end of data segment",
      message(vision.decode_image, sequential:sub(1, #sequential - 100) .. "\255\217"), 1, true)
    local progressive = text_of(golden["progressive.jpg"]) -- bytes too many between two scans do no harm
    local next_scan = assert(progressive:find("\255\196", assert(progressive:find("\255\218", 1, true)), true))
    local longer = progressive:sub(1, next_scan - 1) .. ("\1"):rep(40) .. progressive:sub(next_scan)
    assert.is_true(vision.decode_image(longer):equal(vision.decode_image(progressive)))
    local marker = assert(jpeg:find("\255\211", 1, true)) -- a restart
    local damaged = jpeg:sub(1, marker - 21) .. ("\255\0"):rep(10) .. jpeg:sub(marker)
    assert.matches("'image': malformed JPEG: Corrupt JPEG data", message(vision.decode_image, damaged), 1, true)
    assert.same({3, 43, 61}, {unpack(vision.decode_image(damaged, {allow_corrupt = true}).shape)})
    local encoded = vision.Encoded(damaged)
    assert.is_true(encoded:decode({crop = {0, 0, 4, 61}}):equal(part(vision.decode_image(jpeg), {0, 0, 4, 61})))
    local png = text_of(golden["rgb 8.png"])
    local data = assert(png:find("IDAT", 1, true))
    assert.matches("'image': malformed PNG: IDAT: ",
      message(vision.decode_image, png:sub(1, data + 12) .. "\1" .. png:sub(data + 14)), 1, true)
  end)

  it("reads a progressive JPEG of 500 scans and no more", function()
    local whole = text_of(golden["progressive.jpg"])
    local scan = assert(whole:find("\255\218", 1, true))
    local next_scan = assert(whole:find("\255\196", scan, true)) -- the next scan's tables
    local function with(n)
      return whole:sub(1, next_scan - 1) .. whole:sub(scan, next_scan - 1):rep(n) .. whole:sub(next_scan)
    end
    local allowed = {allow_corrupt = true}
    vision.decode_image(with(100), allowed)
    assert.matches("a JPEG must have at most 500 scans", message(vision.decode_image, with(600), allowed))
  end)

  it("decodes in many threads at once", function()
    local Files = lm.data.Dataset:extend("Files")
    function Files:init(paths) self.paths = paths end
    function Files:len() return 16 * #self.paths end
    function Files:get(i)
      local path = self.paths[(i - 1) % #self.paths + 1]
      return lm.vision.read_image(path), lm.vision.read_image(path, {crop = {3, 4, 9, 7}})
    end
    local paths, base = {}, picture(3, 200, 300)
    for i = 1, 8 do
      paths[i] = folder .. "/" .. i
      local image = base:to("int32"):add(i * 8):clamp(0, 255):to("uint8")
      vision[i % 3 == 0 and "write_png" or "write_jpeg"](image, paths[i])
    end
    local function all(workers)
      local wholes, crops = {}, {}
      for whole, crop in lm.data.DataLoader(Files(paths), {batch_size = #paths, num_workers = workers}):iter() do
        wholes[#wholes + 1], crops[#crops + 1] = whole, crop
      end
      return lm.cat(wholes), lm.cat(crops)
    end
    local wholes, crops = all(0)
    local again, crops_again = all(8)
    assert.is_true(again:equal(wholes) and crops_again:equal(crops))
    assert.is_true(crops:equal(wholes:narrow(3, 4, 9):narrow(4, 5, 7)))
  end)

  it("is told of by print", function()
    vision.write_png(picture(3, 4, 5), folder .. "/p.png")
    assert.equal(("Encoded(%s/p.png, png of 5 x 4 pixels)"):format(folder),
      tostring(vision.open_image(folder .. "/p.png")))
  end)

  it("notices bytes that were written to since the header was read", function()
    local bytes = golden["gray 8.png"]:clone()
    local encoded = vision.Encoded(bytes)
    bytes:copy_(lm.zeros(bytes:numel()))
    assert.matches("starts with 00 00 00 00", message(encoded.decode, encoded))
  end)

  it("gives memory back where it ends", function()
    if needs.images() then return pending(needs.images()) end
    local cases = {
      function() vision.decode_image(golden["420.jpg"]) end, function() vision.decode_image(golden["rgb 8.png"]) end,
      function() vision.encode_png(picture(3, 40, 50)) end, function() vision.encode_jpeg(picture(3, 40, 50)) end,
      function() vision.encode_webp(picture(3, 40, 50)) end, function() vision.decode_gif(golden["previous.gif"]) end,
    }
    for _, name in ipairs {"lossy.webp", "palette.gif", "4 bits.bmp", "lzw.tiff"} do
      cases[#cases + 1] = function() vision.decode_image(golden[name], {mode = "gray_alpha"}) end
    end
    for i, case in ipairs(cases) do
      lm.core._fail_alloc_from(1e6)
      case()
      local count = lm.core._alloc_count()
      lm.core._fail_alloc_from(0)
      assert(count > 0, i)
      for n = 1, count do
        lm.core._fail_alloc_from(n)
        local ok, said = pcall(case)
        lm.core._fail_alloc_from(0)
        assert(ok or said:find "out of memory", said)
      end
    end
  end)

  it("makes torchvision's grids", function()
    for i, opts in ipairs {
      {}, {nrow = 2}, {nrow = 3, padding = 0}, {padding = 1, pad_value = 0.5}, {normalize = true},
      {normalize = true, value_range = {-1, 1}}, {normalize = true, scale_each = true, nrow = 4},
    } do
      local before = golden.grid:clone()
      local grid = vision.make_grid(golden.grid, opts)
      assert.same({unpack(golden["grid " .. i].shape)}, {unpack(grid.shape)})
      assert(grid:equal(golden["grid " .. i]), i)
      assert.is_true(golden.grid:equal(before))
    end
    local images = golden.grid
    assert.is_true(vision.make_grid({images[1], images[2]}):equal(vision.make_grid(images:narrow(1, 1, 2))))
    assert.is_true(vision.make_grid(images[1]):equal(images[1]))
    local gray = vision.make_grid(lm.ones(4, 5))
    assert.same({3, 4, 5}, {unpack(gray.shape)})
    assert.same({3, 8, 23}, {unpack(vision.make_grid(lm.ones(3, 1, 4, 5)).shape)})
    assert.matches("expected images to have shape %[N, C, H, W%], %[C, H,", message(vision.make_grid, lm.ones(3)))
    assert.matches("images must not be empty", message(vision.make_grid, lm.ones(0, 3, 2, 2)))
    assert.matches("value_range must be two numbers in ascending order, {low, high}",
      message(vision.make_grid, images, {normalize = true, value_range = {1}}))
    assert.matches("scale_each requires normalize = true",
      message(vision.make_grid, images, {scale_each = true}))
    assert.matches("normalize requires floating images, got uint8",
      message(vision.make_grid, images:to("uint8"), {normalize = true}))
  end)

  it("saves images by the ending of the path", function()
    local images = golden.grid
    local path = folder .. "/grid.png"
    vision.save_image(images, path, {nrow = 2, normalize = true})
    local want = vision.make_grid(images, {nrow = 2, normalize = true}):mul(255):add(0.5):clamp(0, 255):to("uint8")
    assert.is_true(vision.read_image(path):equal(want))
    local bytes = picture(3, 6, 7)
    vision.save_image(bytes, path)
    assert.is_true(vision.read_image(path):equal(bytes))
    vision.save_image(bytes, folder .. "/grid.JPEG")
    assert.equal("jpeg", vision.open_image(folder .. "/grid.JPEG").format)
    assert.matches("the path must end in %.png, %.jpg, %.jpeg or %.webp, got '.*/grid%.bmp'",
      message(vision.save_image, bytes, folder .. "/grid.bmp"))
  end)
end)
