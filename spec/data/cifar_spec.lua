-- CIFAR-10 and CIFAR-100.
local lm = require "luminary"
local sets = require "spec.support.sets"
local tar = require "spec.support.tar"
local data = lm.data
local little_endian = require("scripts.dev.fuzz.bytes").little_endian
local gathers = require("luminary.data.dataset").gathers
local write, says, plain, same_with_workers, folder =
  sets.write, sets.says, sets.plain, sets.same_with_workers, sets.folder
teardown(sets.remove)

describe("CIFAR", function()
  -- Returns n records, the first label of which is `first`.
  local function records(first, n, labels)
    local out = {}
    for i = 1, n do
      out[i] = string.char(first + i - 1) .. (labels == 2 and string.char(50 + i) or "")
        .. string.char(first + i):rep(1024) .. string.char(100):rep(1024) .. string.char(255):rep(1024)
    end
    return table.concat(out)
  end
  local files
  setup(function()
    files = {}
    for k = 1, 5 do
      files[k] = {"cifar-10-batches-bin/data_batch_" .. k .. ".bin", records(2 * k - 2, 2)}
    end
    files[6] = {"cifar-10-batches-bin/test_batch.bin", records(4, 3)}
    for _, file in ipairs(files) do write("c10/" .. file[1], file[2]) end
  end)

  it("10 is read from its binary files", function()
    local set = data.CIFAR10 {root = folder .. "/c10"}
    assert.equal(10, #set)
    local image, label = set:get(4)
    assert.equal(4, label)
    assert.same({3, 32, 32}, {unpack(image.shape)})
    assert.same({4 / 255, 100 / 255, 1}, plain(image:double()[{{}, 5, 7}]:mul(255):round():div(255)))
    assert.equal("airplane", set.classes[1])
    local images, labels = set:get_batch(lm.tensor({10, 1}, {dtype = "int64"}))
    assert.same({2, 3, 32, 32}, {unpack(images.shape)})
    assert.same({10, 1}, plain(labels))
    local test = data.CIFAR10 {root = folder .. "/c10", train = false, base = 0, transform = function(x)
      return x:sum():item()
    end, target_transform = function(y) return -y end}
    assert.equal(-4, select(2, test:get(1)))
    assert.near((5 + 100 + 255) / 255 * 1024, (test:get(1)), 1)
    same_with_workers(set)
  end)

  it("10 is read from the archive as it comes", function()
    local path = write("packed/cifar-10-binary.tar", tar.archive(files))
    assert(os.execute("gzip " .. path) == 0)
    for _, train in ipairs {true, false} do
      local packed, loose = data.CIFAR10 {root = folder .. "/packed", train = train},
        data.CIFAR10 {root = folder .. "/c10", train = train}
      assert.is_true(packed.images:eq(loose.images):all():item())
      assert.same(plain(loose.labels), plain(packed.labels))
    end
    write("lacking/cifar-10-binary.tar.gz", tar.archive {files[1]})
    says("cifar-10-binary.tar.gz' has no file data_batch_2.bin", data.CIFAR10, {root = folder .. "/lacking"})
  end)

  it("100 has classes and groups of them", function()
    write("c100/cifar-100-binary/train.bin", records(7, 3, 2))
    local fine = data.CIFAR100 {root = folder .. "/c100"}
    assert.same({52, 53, 54}, plain(fine.labels))
    assert.same({100, "apple", "worm"}, {#fine.classes, fine.classes[1], fine.classes[100]})
    local coarse = data.CIFAR100 {root = folder .. "/c100", coarse = true}
    assert.same({8, 9, 10}, plain(coarse.labels))
    assert.equal(20, #coarse.classes)
    assert.is_true(fine.images:eq(coarse.images):all():item())
  end)

  it("transforms all images of a batch at once where that changes nothing", function()
    local T = lm.vision.transforms
    local bytes = {}
    lm.manual_seed(3)
    for i, v in ipairs(lm.randint(0, 256, {5 * 3073}):totable()) do
      bytes[i] = string.char(i % 3073 == 1 and v % 10 or v)
    end
    local whole = table.concat(bytes)
    for k = 1, 5 do write(("random/data_batch_%d.bin"):format(k), whole) end
    local Twice = T.Transform:extend "Twice"
    function Twice:forward(img) return img * self.factor end
    Twice.factor = 2
    local Own = Twice:extend "Own"
    function Own:takes_batches() return self.factor == 2 end
    local function set_of(transform)
      local set = data.CIFAR10 {root = folder .. "/random", transform = transform}
      return data.ConcatDataset {data.Subset(set, {25, 3, 4, 1}), set}
    end
    local at_once = {
      T.Normalize({0.4, 0.5, 0.6}, {0.2, 0.3, 0.1}), T.Compose {T.ToTensor(), T.Normalize({0.5}, {0.25})},
      T.Compose {T.RandomCrop(32, {padding = 4}), T.RandomHorizontalFlip(), T.Normalize({0.5}, {0.25})},
      T.Compose {T.ColorJitter {brightness = 0.5, hue = 0.1}, T.RandomErasing {value = "random"}}, T.Resize(16), Own(),
      T.RandomApply {T.GaussianBlur(3)}, T.RandomChoice {T.RandomInvert(), T.RandomAutocontrast()},
    }
    for k, transform in ipairs(at_once) do
      local name = tostring(transform)
      assert(gathers(set_of(transform).sets[1]), name)
      local one_by_one = set_of(function(x) return (transform(x)) end)
      assert.is_false(gathers(one_by_one.sets[1]))
      local function epoch(set, workers)
        local images, labels = {}, {}
        local opts = {batch_size = 8, shuffle = true, seed = 7, num_workers = workers}
        for x, y in data.DataLoader(set, opts):epoch(1) do
          images[#images + 1], labels[#labels + 1] = x, y
        end
        return lm.cat(images), lm.cat(labels)
      end
      local images, labels = epoch(one_by_one, 0)
      for _, workers in ipairs(k == 3 and {0, 1, 2, 8} or {0}) do
        local x, y = epoch(set_of(transform), workers)
        assert(lm.equal(images, x) and lm.equal(labels, y), ("%s, workers: %d"):format(name, workers))
      end
    end
    local alone = {
      function(x) return x end, T.Lambda(function(x) return x end), Twice(), T.Compose {T.Resize(16), Twice()},
      T.RandomApply {Twice()}, lm.nn.Identity(),
    }
    for _, transform in ipairs(alone) do assert.is_false(gathers(set_of(transform).sets[1]), tostring(transform)) end
    assert(gathers(set_of(T.Normalize({0.5}, {0.25})))) -- no gathering if numbers would be drawn in another order
    assert.is_false(gathers(set_of(T.RandomHorizontalFlip())))
    local function same(y) return y end
    assert.is_false(gathers(data.CIFAR10 {root = folder .. "/random", target_transform = same}))
    local Other = data.CIFAR10:extend "Other" -- a class with custom samples
    function Other.get(_, i) return i end
    assert.is_false(gathers(Other {root = folder .. "/random"}))
  end)

  it("take a transform that is set later, in splits and in workers too", function()
    local T = lm.vision.transforms
    local set = data.CIFAR10 {root = folder .. "/random"}
    local parts = data.ConcatDataset {data.random_split(set, {12, #set - 12}, {seed = 1})[1], set}
    local loaders = {}
    for k, opts in ipairs {{}, {num_workers = 2}, {num_workers = 1, worker_type = "process"}} do
      opts.batch_size = 8
      loaders[k] = data.DataLoader(parts, opts)
    end
    local function first(k)
      local x, y = loaders[k]:iter()()
      return x, y
    end
    local x, y = first(1)
    local add = 1
    for _, step in ipairs {
      {"transform", function(img) return img + add end}, {"target_transform", function(label) return label + 100 end},
      {"transform", T.Normalize({0.5}, {0.25})}, {"target_transform"}, {"transform"},
    } do
      set[step[1]] = step[2]
      local expected = set.transform and (type(set.transform) == "function" and x + 1 or (x - 0.5) / 0.25) or x
      for k = 1, 3 do
        local images, labels = first(k)
        assert(lm.allclose(images, expected))
        assert(lm.equal(labels, set.target_transform and y + 100 or y))
      end
    end
    set.transform = function(img) return img end
    says("CIFAR10:get_batch: this dataset returns single samples", set.get_batch, set, lm.tensor {1})
  end)

  -- Returns a file of the version for Python: a pickle by Python 2, whose texts are bytes, or by Python 3.
  local function pickled(python, lists, pixels)
    local function int(v, n) return (little_endian(v % 2 ^ (8 * n), n)) end
    local function text(s)
      if python == 2 then return #s < 256 and "U" .. string.char(#s) .. s or "T" .. int(#s, 4) .. s end
      local wide = s:gsub("[\128-\255]", function(c)
        return string.char(192 + math.floor(c:byte() / 64), 128 + c:byte() % 64)
      end)
      return "c_codecs\nencode\nX" .. int(#wide, 4) .. wide .. "X" .. int(6, 4) .. "latin1\134R"
    end
    local out = {"\128\2}q\1(", text "batch_label", text "training batch 1 of 5"}
    for key, list in pairs(lists) do
      out[#out + 1] = text(key) .. "]("
      for _, v in ipairs(list) do out[#out + 1] = "M" .. int(v, 2) end
      out[#out + 1] = "e"
    end
    local shape = "M" .. int(#pixels / 3072, 2) .. "M" .. int(3072, 2) .. "\134"
    out[#out + 1] = text "data" .. "cnumpy." .. (python == 2 and "core" or "_core") .. ".multiarray\n_reconstruct\n"
      .. "cnumpy\nndarray\nK\0\133" .. text "b" .. "\135R(K\1" .. shape .. "cnumpy\ndtype\n" .. text "u1"
      .. (python == 2 and "K\0K\1" or "\137\136") .. "\135R(K\3" .. text "|" .. "NNNJ\255\255\255\255J\255\255\255"
      .. "\255K\0tb\137" .. text(pixels) .. "tb"
    return table.concat(out) .. "u."
  end

  it("is read from Python's files and archives, as torchvision leaves them", function()
    for _, python in ipairs {2, 3} do
      local root, batches = "python" .. python, {}
      for k = 1, 6 do
        local labels, pixels = {}, {}
        for i, record in ipairs {files[k][2]:sub(1, 3073), files[k][2]:sub(3074, 6146)} do
          labels[i], pixels[i] = record:byte(), record:sub(2)
        end
        batches[k] = {"cifar-10-batches-py/" .. (k < 6 and "data_batch_" .. k or "test_batch"),
          pickled(python, {labels = labels, filenames = {}}, table.concat(pixels))}
        write(root .. "/" .. batches[k][1], batches[k][2])
      end
      local path = write(root .. "_gz/cifar-10-python.tar", tar.archive(batches))
      assert(os.execute("gzip " .. path) == 0)
      local expected = data.CIFAR10 {root = folder .. "/c10"}
      for _, where in ipairs {"", "/cifar-10-batches-py", "_gz"} do
        local set = data.CIFAR10 {root = folder .. "/" .. root .. where}
        assert.is_true(set.images:equal(expected.images) and set.labels:equal(expected.labels))
        assert.equal(2, #data.CIFAR10 {root = folder .. "/" .. root .. where, train = false})
      end
      local hundred = records(4, 2, 2)
      for _, name in ipairs {"train", "test"} do
        write(("%s/cifar-100-python/%s"):format(root, name), pickled(python, {coarse_labels = {4, 5},
          fine_labels = {51, 52}}, hundred:sub(3, 3074) .. hundred:sub(3077)))
      end
      write(root .. "_binary/train.bin", hundred)
      for _, coarse in ipairs {true, false} do
        local set = data.CIFAR100 {root = folder .. "/" .. root, coarse = coarse}
        local binary = data.CIFAR100 {root = folder .. "/" .. root .. "_binary", coarse = coarse}
        assert.is_true(set.images:equal(binary.images) and set.labels:equal(binary.labels))
        assert.equal(2, #data.CIFAR100 {root = folder .. "/" .. root, coarse = coarse, train = false})
      end
      os.execute(("mkdir -p %s/%s_folders/train"):format(folder, root)) -- is no file
      says("cannot find train.bin", data.CIFAR100, {root = folder .. "/" .. root .. "_folders"})
    end
  end)

  it("says what is broken in Python's files, and runs nothing", function()
    local two = ("x"):rep(2 * 3072)
    local path = folder .. "/broken/test_batch"
    local function broken(pattern, text, opts)
      write("broken/test_batch", text)
      says(pattern, data.CIFAR10, {root = folder .. "/broken", train = false, on_error = opts})
    end
    broken("'" .. path .. "': expected 'labels' to be a list of 2 classes from 0", pickled(2, {labels = {1}}, two))
    broken("expected 'labels' to be a list of 2 classes from 0", pickled(2, {labels = {1, 300}}, two))
    broken("expected 'labels' to be a list of 2 classes from 0", pickled(2, {fine_labels = {1, 3}}, two))
    broken("CIFAR10: '" .. path .. "': record 2 has label 77; labels must be from 0 to 9",
      pickled(2, {labels = {1, 77}}, two))
    broken("'" .. path .. "': expected 'data' to be uint8 [N, 3072], got nil", "\128\2}.")
    broken("expected 'data' to be uint8 [N, 3072], got nil: 'data': it calls posix.system, which is not allowed",
      "\128\2}U\4datacposix\nsystem\n(U\17touch /tmp/neverxtRs.")
    broken("expected 'data' to be uint8 [N, 3072], got nil", pickled(2, {labels = {1, 2}}, two:sub(2)))
    local whole = pickled(3, {labels = {1, 2}}, two)
    for n = 1, #whole - 1, 97 do broken("'" .. path .. "': ", whole:sub(1, n)) end
    write("broken/test_batch", pickled(2, {labels = {1, 77}}, two))
    local set = data.CIFAR10 {root = folder .. "/broken", train = false, on_error = "skip"}
    assert.same({1, 1}, {#set, set:skipped()})
  end)

  it("says what is missing or broken", function()
    says("CIFAR10: cannot find data_batch_1.bin or cifar-10-binary.tar.gz or data_batch_1 or cifar-10-python.tar.gz in "
      .. "'" .. folder .. "/nowhere', '", data.CIFAR10, {root = folder .. "/nowhere"})
    says("put cifar-100-binary.tar.gz or cifar-100-python.tar.gz or the files in it", data.CIFAR100,
      {root = folder .. "/nowhere"})
    local path = write("bad/test_batch.bin", records(9, 3))
    says("CIFAR10: '" .. path .. "': record 2 has label 10; labels must be from 0 to 9", data.CIFAR10,
      {root = folder .. "/bad", train = false})
    local set = data.CIFAR10 {root = folder .. "/bad", train = false, on_error = "skip"}
    assert.same({1, 2}, {#set, set:skipped()})
    write("bad/test_batch.bin", records(0, 3):sub(1, -2))
    says(path .. "' has 9218 bytes, not a multiple of the record size 3073", data.CIFAR10,
      {root = folder .. "/bad", train = false})
    says("unknown option 'download'; nothing is downloaded", data.CIFAR10, {download = true})
  end)
end)
