-- MNIST's files.
local lm = require "luminary"
local temp = require "spec.support.temp"
local passes = require "spec.support.batches"
local data = lm.data
local message = passes.message

describe("MNIST's files", function()
  local folder = temp.during(setup, teardown)

  local function big_endian(n)
    return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 2 ^ 8) % 256, n % 256)
  end
  local function idx(sizes, bytes)
    local head = string.char(0, 0, 8, #sizes)
    for _, size in ipairs(sizes) do head = head .. big_endian(size) end
    return head .. bytes
  end
  local function images(n)
    local bytes = {}
    for i = 0, n * 28 * 28 - 1 do bytes[i + 1] = string.char(i * 7 % 256) end
    return idx({ n, 28, 28 }, table.concat(bytes))
  end
  -- Writes two images to train, one to test, with these labels.
  local function write(where, labels)
    assert(os.execute("mkdir -p " .. where) == 0)
    temp.write(where .. "/train-images-idx3-ubyte", images(2))
    temp.write(where .. "/train-labels-idx1-ubyte", idx({ 2 }, labels or "\9\0"))
    temp.write(where .. "/t10k-images-idx3-ubyte", images(1))
    temp.write(where .. "/t10k-labels-idx1-ubyte", idx({ 1 }, "\4"))
    return where
  end

  local function check(set)
    assert.equal(2, set:len())
    local x, y = set:get(1)
    assert.same({ 1, 28, 28 }, x.shape)
    assert.equal("float32", x.dtype)
    assert.equal(10, y) -- 9 in the file
    assert(math.abs(x[{ 1, 1, 3 }] - 14 / 255) < 1e-7)
    assert(x:max():item() <= 1 and x:min():item() >= 0)
    local xs, ys = data.DataLoader(set, { batch_size = 2 }):iter()()
    assert.same({ 2, 1, 28, 28 }, xs.shape)
    assert.same({ 10, 1 }, ys:totable())
    assert.equal("int64", ys.dtype)
    assert.is_true(xs[1]:allclose(x))
    assert.is_true(xs[2]:allclose((set:get(2))))
  end

  it("plain and gzipped, in every place they are looked for", function()
    for k, place in ipairs { "", "/mnist", "/MNIST/raw", "/MNIST" } do
      local root = ("%s/place%d"):format(folder, k)
      write(root .. place)
      check(data.MNIST { root = root })
      assert(os.execute(("gzip %s/*ubyte"):format(root .. place)) == 0)
      check(data.MNIST { root = root })
    end
    write(folder .. "/fashion/FashionMNIST/raw")
    check(data.FashionMNIST { root = folder .. "/fashion" })
    local test = data.FashionMNIST { root = folder .. "/fashion/", train = false }
    assert.equal(1, test:len())
    assert.equal(5, (select(2, test:get(1))))
    assert.equal("Ankle boot", test.classes[10])
  end)

  it("under LUMINARY_DATA", function()
    write(folder .. "/variable/mnist")
    local before = lm.getenv "LUMINARY_DATA"
    lm.setenv("LUMINARY_DATA", folder .. "/variable")
    local ok, err = pcall(function() check(data.MNIST()) end)
    lm.setenv("LUMINARY_DATA", before)
    assert(ok, err)
  end)

  it("of Debian's dataset-fashion-mnist, where it is installed", function()
    if not io.open("/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz") or lm.getenv "LUMINARY_DATA" then
      return
    end
    local set = data.FashionMNIST { train = false }
    assert.equal(10000, set:len())
    local x, y = set:get(1)
    assert.equal("Ankle boot", set.classes[y])
    assert.same({ 1, 28, 28 }, x.shape)
    assert.is_true(set.labels:min():item() == 1 and set.labels:max():item() == 10)
  end)

  it("with another base, and transforms", function()
    local root = write(folder .. "/transforms")
    local _, y = data.MNIST { root = root, base = 0 }:get(1)
    assert.equal(9, y)
    local set = data.MNIST {
      root = root, transform = function(x) return x:flatten() end,
      target_transform = function(label) return label * 2 end,
    }
    local x
    x, y = set:get(1)
    assert.same({ 784 }, x.shape)
    assert.equal(20, y)
    local xs, ys = data.DataLoader(set, { batch_size = 2 }):iter()()
    assert.same({ 2, 784 }, xs.shape)
    assert.same({ 20, 2 }, ys:totable())
  end)

  it("where they are missing or broken", function()
    local text = message(data.MNIST, { root = folder .. "/nowhere" })
    assert.matches("MNIST: cannot find train-images-idx3-ubyte or train-images-idx3-ubyte.gz in '" .. folder
      .. "/nowhere', '", text, 1, true)
    assert.matches("root", text)
    assert.matches("dataset-fashion-mnist", message(data.FashionMNIST, { root = folder .. "/nowhere" }), 1, true)
    assert.matches("ubyte.gz in 'x', '", message(data.MNIST, "x"), 1, true)
    assert.matches("did you mean 'root'", message(data.MNIST, { rot = "x" }))
    local root = write(folder .. "/broken", "\1\2\3")
    assert.matches("labels", message(data.MNIST, { root = root })) -- continues after its elements
    local path = root .. "/train-labels-idx1-ubyte"
    for bytes, what in pairs {
      [idx({ 2 }, "\1")] = path .. "': truncated: needs 2 bytes at byte 8, the file has 9",
      [idx({ 1 }, "\1")] = "labels", [idx({ 2 },
        "\1\2\3")] = path .. "': malformed IDX data: bytes follow its 2 elements",
      [""] = path .. "': truncated: 4 bytes are missing",
      ["hello world"] = path .. "': malformed IDX header at byte 0: it must start with 00 00, got 68 65", [idx({ 2, 1 },
        "\1\2")] = "labels",
      [idx({ 2 ^ 31 }, "\1")] =
        "malformed IDX header at byte 4: shape [2147483648] has more elements than fit in the file",
          ["\0\0\13\1\0\0\0\0"] = "unsupported IDX element type 0x0d; supported is 0x08",
      ["\31\139\8\0\0\0\0\0\0\3garbage"] = path,
    } do
      temp.write(path, bytes)
      assert.matches(what, message(data.MNIST, { root = root }), 1, true)
    end
  end)

  it("where something else is there: a FIFO is not waited for", function()
    local root = folder .. "/strange"
    os.execute(("mkdir %s; mkfifo %s/train-images-idx3-ubyte %s/train-labels-idx1-ubyte")
      :format(root, root, root))
    local ok, text = temp.run(folder, ("timeout 60 luajit -e 'require(\"luminary\").data.MNIST{root = \"%s\"}'")
      :format(root))
    assert.is_false(ok)
    assert.matches("cannot open '" .. root .. "/train-images-idx3-ubyte': it is a FIFO, not a regular file", text, 1,
      true)
    assert.matches("NUL byte", message(data.MNIST, { root = "a\0b" }))
  end)

  it("labels that are none", function()
    local root = write(folder .. "/labels", "\200\0")
    local set = data.MNIST { root = root } -- a file may have any; the loss says what is wrong
    assert.equal(201, (select(2, set:get(1))))
  end)
end)
