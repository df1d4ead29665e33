-- Tests the packages that Torch7 scripts require: image, threads, sys, xlua, and what th adds.
local torch = require "luminary.torch7"
local temp = require "spec.support.temp"
local image = require "luminary.torch7.image"

-- Runs a script by luminary th; returns its output.
local function th(text, before, arguments)
  local folder = temp.folder()
  local path = folder .. "/script.lua"
  temp.write(path, text)
  local pipe = io.popen((before or "") .. " luajit bin/luminary th " .. path .. (arguments or "") .. " 2>&1")
  local out = pipe:read "*a"
  pipe:close()
  temp.remove(folder)
  return out
end

-- Values of the package image for Torch7.
describe("image as Torch7's", function()
  local x = torch.Tensor(3, 9, 12)
  for i = 1, 3 do
    for y = 1, 9 do
      for z = 1, 12 do x[i][y][z] = 0.5 + 0.5 * math.sin((i * 3 + y * 1.7 + z * 0.9) * 1.3) end
    end
  end
  local function check(sizes, sum, y)
    assert.equal(sizes, table.concat(y:size():totable(), "x"))
    assert.near(sum, y:sum(), 1e-4)
  end
  it("cuts sizes that factors give", function()
    check("3x4x6", 36.0329, image.scale(x, 6))
    check("3x4x6", 36.0329, image.scale(x, "*1/2"))
    check("3x20x26", 780.1585, image.scale(x, "^20"))
    assert.same({ 3, 1, 1 }, image.scale(x, "*0.05"):size():totable())
    local bytes = x:clone():mul(255):byte()
    check("3x5x6", 11462, image.scale(bytes, 6, 5))
    assert.equal("torch.ByteTensor", image.rotate(bytes, 1, "bilinear"):type())
    local y, wanted = image.rgb2y(bytes):double(), image.rgb2y(bytes:double())
    assert.is_true((y - wanted):abs():max() <= 0.5 + 1e-6)
    assert.is_true((image.hsv2rgb(image.rgb2hsv(bytes)):double() - bytes:double()):abs():max() <= 4)
  end)
  it("rotates pixel by pixel", function()
    check("3x9x12", 107.4725, image.rotate(x, math.pi / 2))
    check("3x9x12", 143.4914, image.rotate(x, 0.3, "bilinear"))
    check("9x12", x[2]:sum(), image.rotate(x[2], 0))
    local turned = image.rotate(x:float(), math.pi, "bilinear"):double()
    assert.is_true((turned - image.hflip(image.vflip(x))):abs():max() < 1e-5)
  end)
  it("has all options of gaussian, minmax and toDisplayTensor", function()
    local kernel = image.gaussian { width = 7, height = 5, sigma = 0.2, amplitude = 2, normalize = true }
    check("5x7", 1, kernel)
    check("3x3", image.gaussian(3):sum(), image.gaussian())
    local off = image.gaussian { width = 4, height = 3, mean_horz = 0.25, sigma_horz = 0.5, sigma_vert = 1 }
    for v = 1, 3 do
      for u = 1, 4 do
        local du, dv = (u - 1.5) / (0.5 * 4), (v - 2) / 3
        assert.near(math.exp(-0.5 * (du * du + dv * dv)), off[v][u], 1e-12)
      end
    end
    check("2x6", off.new(2, 6):copy(image.gaussian(1, 0.25, 1, false, 6, 2)):sum(),
      image.gaussian { tensor = torch.Tensor(2, 6) })
    assert.near(math.exp(-0.5 * 0.5 ^ 2), image.gaussian1D(4, 0.25, 1, false, 0.25)[1], 1e-12)
    check("3x9x12", 208.3934, image.minmax { tensor = x:clone():add(-0.3):mul(5), symm = true })
    local five = torch.Tensor { 0, 3, 5 }
    assert.same({ 0, 1, 1 }, image.minmax { tensor = five, min = 1, max = 2, saturate = true }:totable())
    check("3x22x28", 1362.4424, image.toDisplayTensor { input = { x, x, x }, padding = 2, nrow = 2 })
    check("3x22x28", 1362.4424, image.toDisplayTensor({ x, x, x }, 2, 2))
    local each = image.toDisplayTensor { input = torch.cat(x, x * 2, 1):view(6, 9, 12), scaleeach = true, nrow = 4 }
    assert.same({ 18, 48 }, each:size():totable())
    assert.near(1, each:max(), 1e-12)
    assert.near((x[1]:sum() - x[1]:min() * 108) / (x[1]:max() - x[1]:min()), each:sub(1, 9, 1, 12):sum(), 1e-9)
    assert.error_matches(function() image.toDisplayTensor(torch.rand(2, 5, 4, 4)) end, "expected images")
  end)
end)

describe("image", function()
  local x = torch.range(1, 16):view(1, 4, 4)

  it("writes and reads files, as floats in [0, 1] or bytes, with 1 or 3 channels", function()
    local folder = temp.folder()
    local rgb = torch.rand(3, 5, 7)
    image.save(folder .. "/a.png", rgb)
    local read = image.load(folder .. "/a.png", 3, "double")
    assert.is_true((read - rgb):abs():max() < 1 / 255)
    assert.same({ 1, 5, 7 }, image.load(folder .. "/a.png", 1):size():totable())
    assert.equal("torch.ByteTensor", image.load(folder .. "/a.png", 3, "byte"):type())
    image.save(folder .. "/g.jpg", torch.rand(5, 7))
    assert.same({ 3, 5, 7 }, image.load(folder .. "/g.jpg", 3):size():totable())
    local bytes = torch.ByteTensor(torch.ByteStorage():string(temp.read(folder .. "/a.png")))
    assert.is_true((image.decompress(bytes, 3, "double") - read):abs():max() == 0)
    assert.same({ 3, 5, 7 }, image.getSize(folder .. "/a.png"):totable())
    assert.is_true((image.decompressJPG(image.compressJPG(rgb:fill(0.5), 95), 3) - rgb):abs():max() < 0.02)
    assert.error_matches(function() image.save(folder .. "/a.xyz", rgb) end, "unknown ending")
    assert.error_matches(function() image.load(folder .. "/none.png") end, "none.png")
    temp.remove(folder)
  end)

  it("scales as Torch7: averages, lines between the corners, the nearest", function()
    assert.same({ { { 3.5, 5.5 }, { 11.5, 13.5 } } }, image.scale(x, 2, 2):totable())
    local up = image.scale(x, 7, 7)
    assert.near(1.5, up[1][1][2], 1e-12)
    assert.near(16, up[1][7][7], 1e-12)
    assert.near(1.5, image.scale(x, 7, 7, "bicubic")[1][1][2], 1e-12)
    assert.same({ { { 1, 3 }, { 9, 11 } } }, image.scale(x, 2, 2, "simple"):totable())
    local sizes = { ["8x6"] = { 1, 6, 8 }, [8] = { 1, 8, 8 }, ["^2"] = { 1, 2, 2 }, ["*1/2"] = { 1, 2, 2 } }
    for size, expected in pairs(sizes) do
      assert.same(expected, image.scale(x, size):size():totable())
    end
    local into = torch.zeros(1, 2, 2)
    image.scale(into, x)
    assert.equal(3.5, into[1][1][1])
    assert.same({ 1, 2, 3 }, image.scale(x, 3.9, 2.5):size():totable()) -- fractions are cut off
    assert.error_matches(function() image.scale(x, "wide") end, "unknown size 'wide'")
    assert.error_matches(function() image.scale(x, 2, 0) end, "image.scale: height must be an integer of at least 1")
    local bytes = torch.ByteTensor { { { 0, 255, 255, 0 } } } -- rounded, and within 0 to 255
    assert.same({ { { 0, 191, 255, 191, 0 } } }, image.scale(bytes, 5, 1):totable())
    assert.equal(255, image.scale(bytes, 7, 1, "bicubic"):max())
  end)

  it("converts to hue, saturation and value or lightness, and back", function()
    local colors = torch.Tensor { { 1, 0, 0 }, { 1, 1, 0 }, { 0, 0, 0.5 }, { 0.2, 0.2, 0.2 } }
    local function flat(f) return f(colors:t():contiguous():view(3, 1, 4)):view(3, 4):t() end
    local hsv, hsl = flat(image.rgb2hsv), flat(image.rgb2hsl)
    assert.is_true((hsv - torch.Tensor { { 0, 1, 1 }, { 1 / 6, 1, 1 }, { 2 / 3, 1, 0.5 }, { 0, 0, 0.2 } }):abs():max()
      < 1e-12)
    assert.is_true((hsl - torch.Tensor { { 0, 1, 0.5 }, { 1 / 6, 1, 0.5 }, { 2 / 3, 1, 0.25 }, { 0, 0, 0.2 } }):abs()
      :max() < 1e-12)
    local rgb = torch.rand(3, 5, 7)
    assert.is_true((image.hsv2rgb(image.rgb2hsv(rgb)) - rgb):abs():max() < 1e-12)
    assert.is_true((image.hsl2rgb(image.rgb2hsl(rgb)) - rgb):abs():max() < 1e-12)
  end)

  it("crops, flips, rotates and changes colors", function()
    assert.same({ { { 6, 7 }, { 10, 11 } } }, image.crop(x, 1, 1, 3, 3):totable())
    assert.same({ { { 6, 7 }, { 10, 11 } } }, image.crop(x, "c", 2, 2):totable())
    assert.same({ { { 6, 7 }, { 10, 11 } } }, image.crop(x, 1.6, 1.2, 3.5, 3.9):totable())
    assert.same({ { { 12 }, { 16 } } }, image.crop(x, "br", 1, 2):totable())
    assert.same({ { { 4, 3, 2, 1 } } }, image.hflip(x:narrow(2, 1, 1)):totable())
    assert.equal(13, image.vflip(x)[1][1][1])
    assert.same({ { { 4, 8, 12, 16 } } }, image.rotate(x, math.pi / 2):narrow(2, 1, 1):totable())
    local rgb = torch.rand(3, 2, 2)
    assert.is_true((image.yuv2rgb(image.rgb2yuv(rgb)) - rgb):abs():max() < 1e-4)
    assert.near(0.299, image.rgb2y(torch.Tensor { 1, 0, 0 }:view(3, 1, 1))[1][1][1], 1e-12)
    local grid = image.toDisplayTensor { input = torch.rand(7, 1, 4, 4), nrow = 3, padding = 1 }
    assert.same({ 1, 15, 15 }, grid:size():totable())
    assert.equal(1, image.minmax { tensor = x }:max())
    assert.error_matches(function() image.display(x) end, "image.save")
  end)
end)

describe("threads", function()
  it("runs jobs with upvalues, classes and tensors, and calls back with their results", function()
    local out = th [[
      local threads = require "threads"
      local made = {}
      local pool, started = threads.Threads(2, function()
        local Data = torch.class("spec.Data", {})
        function Data:get(i) return self.values[i] end
      end, function(i) number = i return i end)
      assert(#started == 2)
      local Data = torch.class("spec.Data", made)
      function Data:__init() self.values = torch.range(1, 5) end
      local data, factor, sum, threads_seen = made.Data(), 10, 0, {}
      for job = 1, 12 do
        local view = data.values:narrow(1, 2, 2)
        pool:addjob(function(a, nothing, t)
          assert(nothing == nil and number == __threadid and torch.isTensor(t))
          t:fill(0)
          return data:get(2) * factor + a, torch.ones(2) * a, __threadid
        end, function(v, t, id) sum = sum + v + t[1] threads_seen[id] = true end, job, nil, view)
      end
      pool:synchronize()
      print(sum, data.values[2], threads_seen[1] and threads_seen[2])
      pool:addjob(function() error "boom" end)
      print(pcall(pool.synchronize, pool))
      pool:specific(true)
      pool:addjob(2, function() return __threadid end, print)
      pool:synchronize()
      threads.serialization "threads.sharedserialize"
      local shared = torch.zeros(3)
      pool:addjob(1, function() shared:fill(4) end)
      pool:synchronize()
      print(shared[1], pool:hasjob(), pool:acceptsjob(1))
      print(pcall(pool.addjob, pool, 1, function() return io end))
      pool:addjob(1, function() return coroutine.create(print) end)
      print(pcall(pool.synchronize, pool))
      print(pcall(pool.addjob, pool, 3, print))
      pool:terminate()
      print(pcall(pool.addjob, pool, 1, print))
      print(pcall(threads.Threads, 1e6))
    ]]
    for _, error in ipairs { "threads:addjob: thread must be at most 2, got 3", "addjob: the threads were terminated",
      "threads.Threads: n must be at most 256, got 1000000" } do
      assert.is_truthy(out:find(error, 1, true), out)
    end
    assert.is_truthy(out:find("396%s+2%s+true\n"), out)
    assert.is_truthy(out:find("boom", 1, true), out)
    assert.is_truthy(out:find("\n2\n4%s+false%s+true"), out)
  end)
end)

describe("luminary th", function()
  it("has sys, xlua, paths and print as Torch7's", function()
    local out = th([[
      print(#sys.split("a,b,,c", ","), ("x y"):split(" ")[2], sys.dirname "a/b.lua", sys.execute "echo hi",
        sys.toc() >= 0)
      sys.tic()
      print(xlua.envparams { rate = 1, fast = false, name = "n" }.rate, xlua.require "no_such_package")
      print(paths.no_such_name, paths.uname())
      print { 1, "two", { x = {} } }
      local C = torch.class "package.spec_package"
      torch.class "package.spec_package.Inner"
      print(torch.typename(package.spec_package.Inner()), debug.getregistry()[C])
      local B = torch.class("spec_B", "spec_A" and nil)
      local D = torch.class("spec_D", "spec_B")
      print(getmetatable(D) == B, pcall(torch.class, "no.such.C"))
    ]], "rate=3")
    assert.is_truthy(out:find("4%s+y%s+a%s+hi%s+true\n3%s+false\nnil%s+Linux\n"), out)
    assert.is_truthy(out:find('{\n  1 : 1\n  2 : "two"\n  3 : {\n      x : {}\n    }\n}', 1, true), out)
    assert.is_truthy(out:find "package.spec_package.Inner%s+package.spec_package\ntrue%s+false", out)
    assert.is_truthy(out:find("no table 'no.such'", 1, true), out)
  end)
end)

describe("luminary th", function()
  it("runs a script with Torch7's globals and arguments", function()
    local net = 'require "nn" print(torch.type(nn.Sequential():add(nn.Linear(2, 1))), optim.sgd ~= nil, arg[1])'
    assert.equal("nn.Sequential\ttrue\tone\n", th(net, nil, " one"))
    local pipe = io.popen "luajit bin/luminary th --help 2>&1"
    assert.is_truthy(pipe:read "*a":find("luminary th FILE", 1, true))
    pipe:close()
  end)

  it("without a GPU, finds the user's own cutorch, or none", function()
    local folder = temp.folder()
    temp.write(folder .. "/cutorch.lua", "return 7")
    local text = th('for _, n in ipairs {"cutorch", "cunn"} do print(pcall(require, n)) end',
      "CUDA_VISIBLE_DEVICES= LUA_PATH='" .. folder .. "/?.lua;'$LUA_PATH")
    temp.remove(folder)
    assert.is_truthy(text:find "true\t7\nfalse\tmodule 'cunn' not found:.*\tno CUDA device is available", text)
  end)
end)
