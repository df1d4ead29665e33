-- Sets that read files: what they give, what they say of files that are broken, and that workers change nothing.
local lm = require "luminary"
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
package.path = here .. "/support/?.lua;" .. package.path
local temp = require "temp"
local tar = require "tar"
local data = lm.data
local gathers = require("luminary.data.dataset").gathers

local folder
setup(function() folder = temp.folder() end)
teardown(function() temp.remove(folder) end)

local function write(name, text)
  local path = folder .. "/" .. name
  assert(os.execute("mkdir -p " .. path:match("^(.*)/")) == 0)
  return temp.write(path, text)
end

local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

local function says(expected, f, ...) assert.matches(expected, message(f, ...), 1, true) end

local function plain(v)
  if lm.is_tensor(v) then return v:totable() end
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, value in pairs(v) do copy[key] = plain(value) end
  return copy
end

-- All batches of an epoch, as plain values.
local function all(set, opts)
  local list = {}
  for x, y, z in data.DataLoader(set, opts):epoch(1) do list[#list + 1] = {plain(x), plain(y), plain(z)} end
  return list
end

local function with(opts, more)
  local both = {}
  for _, t in ipairs {opts, more} do
    for key, value in pairs(t) do both[key] = value end
  end
  return both
end

local numbers = {{num_workers = 1}, {num_workers = 2}, {num_workers = 8},
  {num_workers = 1, worker_type = "process"}}

-- The same bytes whoever makes the batches.
local function same_with_workers(set)
  local opts = {batch_size = 2, shuffle = true, seed = 3}
  local expected = all(set, opts)
  assert.equal(math.ceil(#set / 2), #expected)
  for _, how in ipairs(numbers) do assert.same(expected, all(set, with(opts, how))) end
end

-- Reads all of a set in two workers, threads and processes; gives what skipped() says then.
local function skipped_by_workers(set)
  local counts = {}
  for _, kind in ipairs {"thread", "process"} do
    local before = set:skipped()
    all(set, {num_workers = 2, worker_type = kind})
    counts[#counts + 1] = set:skipped() - before
  end
  return counts
end

describe("CIFAR", function()
  -- n records, the first label of which is `first`.
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
    says("cifar-10-binary.tar.gz has no data_batch_2.bin in it", data.CIFAR10, {root = folder .. "/lacking"})
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
    assert(gathers(set_of(T.Normalize({0.5}, {0.25})))) -- not where the order of what is drawn would be another
    assert.is_false(gathers(set_of(T.RandomHorizontalFlip())))
    local function same(y) return y end
    assert.is_false(gathers(data.CIFAR10 {root = folder .. "/random", target_transform = same}))
    local Other = data.CIFAR10:extend "Other" -- whose samples are its own
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
    says("CIFAR10:get_batch: this set gives its samples one by one: set:get(i)", set.get_batch, set, lm.tensor {1})
  end)

  it("says what is missing or broken", function()
    says("CIFAR10: no data_batch_1.bin nor cifar-10-binary.tar.gz in any of\n  " .. folder .. "/nowhere\n",
      data.CIFAR10, {root = folder .. "/nowhere"})
    says("put cifar-100-binary.tar.gz (the binary version", data.CIFAR100, {root = folder .. "/nowhere"})
    local path = write("bad/test_batch.bin", records(9, 3))
    says("CIFAR10: " .. path .. ": record 2 has the label 10, but there are 0 to 9", data.CIFAR10,
      {root = folder .. "/bad", train = false})
    local set = data.CIFAR10 {root = folder .. "/bad", train = false, on_error = "skip"}
    assert.same({1, 2}, {#set, set:skipped()})
    write("bad/test_batch.bin", records(0, 3):sub(1, -2))
    says(path .. " has 9218 bytes, which is no number of records of 3073", data.CIFAR10,
      {root = folder .. "/bad", train = false})
    says("no option 'download': nothing is downloaded", data.CIFAR10, {download = true})
  end)
end)

describe("a DatasetFolder", function()
  local function open(opts)
    return data.DatasetFolder(folder .. "/tree", with({loader = function(path)
      local file = assert(io.open(path))
      local text = file:read "*a"
      file:close()
      if text == "broken" then error(path .. " is broken") end
      return text
    end}, opts or {}))
  end
  setup(function()
    for _, name in ipairs {"cat/b.txt", "cat/a.TXT", "cat/x/c.txt", "cat/x-y/d.txt", "cat/x/z/e.txt", "cat/note.md",
      "dog/a.txt", "ant/q.txt"} do
      write("tree/" .. name, name)
    end
  end)

  it("has a class for each sub-folder, its files in order", function()
    local set = open {extensions = {"txt"}}
    assert.same({"ant", "cat", "dog"}, set.classes)
    assert.same({ant = 1, cat = 2, dog = 3}, set.class_to_idx)
    local got = {}
    for i = 1, #set do got[i] = set:get(i) end
    assert.same({"ant/q.txt", "cat/a.TXT", "cat/b.txt", "cat/x/c.txt", "cat/x-y/d.txt", "cat/x/z/e.txt", "dog/a.txt"},
      {got[1], got[2], got[3], got[4], got[5], got[6], got[7]})
    assert.same({1, 2, 2, 2, 2, 2, 3}, plain(set.targets))
    assert.same({folder .. "/tree/cat/b.txt", 2}, set.samples[3])
    assert.equal(7, #set.imgs)
    assert.equal(3, select(2, set:get(-1)))
    assert.equal(9, #open() + 1)
    assert.same({0, "ANT/Q.TXT"}, {select(2, open({base = 0}):get(1)), (open({transform = string.upper}):get(1))})
    same_with_workers(set)
  end)

  it("takes what a function says", function()
    local set = open {is_valid_file = function(path) return path:find "a%.%w+$" ~= nil end, allow_empty = true}
    assert.same({"cat/a.TXT", "dog/a.txt"}, {(set:get(1)), (set:get(2))})
    assert.same({2, 3}, plain(set.targets))
    local function no_q(path) return not path:find "q%.txt$" end
    says("no valid file in the classes ant of " .. folder, open, {is_valid_file = no_q})
    says("no valid file in the classes ant, dog of " .. folder .. "/tree (of .md)", open, {extensions = "md"})
  end)

  it("follows links, but not for ever", function()
    assert(os.execute(("mkdir -p %s/linked/a && touch %s/linked/a/1 && ln -s .. %s/linked/a/up && ln -s a %s/linked/b")
      :format(folder, folder, folder, folder)) == 0)
    local set = data.DatasetFolder(folder .. "/linked", {loader = function(path) return path end})
    assert.same({"a", "b"}, set.classes)
    assert.truthy(#set >= 2 and #set < 20)
  end)

  it("says what is wrong", function()
    says("root is to be a folder with a folder for each class in it; " .. folder .. "/none is not there",
      data.DatasetFolder, folder .. "/none", {loader = print})
    says("has no folders in it", data.DatasetFolder, folder .. "/tree/ant", {loader = print})
    says("{loader = function(path) … end}", data.DatasetFolder, folder .. "/tree")
    says("on_error has to be one of 'raise', 'skip'", open, {on_error = "ignore"})
  end)

  it("leaves out and counts files that cannot be read", function()
    write("tree/cat/b.txt", "broken")
    local set = open {on_error = "skip", extensions = "txt"}
    says("tree/cat/b.txt is broken", function() return open({extensions = "txt"}):get(3) end)
    assert.same({"cat/x/c.txt", 2}, {set:get(3)})
    assert.equal(1, set:skipped())
    assert.same({1, 1}, skipped_by_workers(set))
    local mistaken = open {on_error = "skip", transform = function() error "my own" end}
    says("my own", mistaken.get, mistaken, 1)
    write("broken/a/1.txt", "broken")
    local hopeless = data.DatasetFolder(folder .. "/broken", {on_error = "skip", loader = function(path)
      error(path .. " is broken")
    end})
    says("none of its 1 samples can be read; the last one: ", hopeless.get, hopeless, 1)
    write("tree/cat/b.txt", "cat/b.txt")
  end)
end)

describe("an ImageFolder", function()
  local vision = lm.vision
  local function picture(v, channels)
    return lm.full({channels or 3, 6, 8}, v):add_(lm.arange(8)):to("uint8")
  end
  setup(function()
    os.execute(("mkdir -p %s/pictures/a/more %s/pictures/b"):format(folder, folder))
    vision.write_png(picture(10), folder .. "/pictures/a/1.png")
    vision.write_png(picture(20, 1), folder .. "/pictures/a/more/grey.PNG")
    vision.write_jpeg(lm.full({3, 16, 16}, 30):to("uint8"), folder .. "/pictures/b/3.jpg")
    write("pictures/b/notes.txt", "no picture")
  end)

  it("gives RGB images and their classes", function()
    local set = data.ImageFolder(folder .. "/pictures")
    assert.same({3, {"a", "b"}}, {#set, set.classes})
    local image, label = set:get(1)
    assert.same({"float32", {3, 6, 8}, 1}, {image.dtype, {unpack(image.shape)}, label})
    assert.is_true(image:eq(picture(10):to("float32"):div(255)):all():item())
    assert.same({3, 6, 8}, {unpack((set:get(2)).shape)})
    assert.near(30 / 255, (set:get(3)):mean():item(), 0.01)
    assert.equal(0, select(2, data.ImageFolder(folder .. "/pictures", {base = 0}):get(1)))
    local two = data.Subset(set, {1, 2})
    same_with_workers(two)
  end)

  it("gives transforms the bytes, or the file itself if they decode it", function()
    local set = data.ImageFolder(folder .. "/pictures", {transform = function(x) return x.dtype, x.shape[1] end})
    assert.same({"uint8", 1}, {(set:get(2)), select(2, set:get(2))})
    local Corner = require("luminary.class").root("Corner")
    function Corner:init(size) self.size = size end
    function Corner:from_encoded(encoded, opts)
      return encoded:decode {mode = opts.mode, crop = {0, 0, self.size, self.size}}
    end
    local cropping = data.ImageFolder(folder .. "/pictures", {transform = Corner(2), target_transform = function(y)
      return y * 10
    end})
    assert.same({{{{10, 11}, {10, 11}}, {{10, 11}, {10, 11}}, {{10, 11}, {10, 11}}}, 10},
      {plain((cropping:get(1))), select(2, cropping:get(1))})
    assert.same({2, 3, 2, 2}, {unpack((data.DataLoader(cropping, {batch_size = 2}):iter()()).shape)})
  end)

  it("names a file that is broken, or leaves it out and counts it", function()
    local bytes = temp.read(folder .. "/pictures/a/1.png")
    local path = write("half/a/1.png", bytes:sub(1, 60))
    write("half/a/2.png", bytes)
    write("half/b/0.png", "no picture")
    local set = data.ImageFolder(folder .. "/half")
    says(path, set.get, set, 1)
    says("half/b/0.png", set.get, set, 3)
    local tolerant = data.ImageFolder(folder .. "/half", {on_error = "skip"})
    local image, label = tolerant:get(1)
    assert.is_true(image:eq((tolerant:get(2))):all():item())
    assert.same({1, 1}, {label, tolerant:skipped()})
    assert.same({3, 3}, skipped_by_workers(tolerant))
  end)
end)

describe("a WebDataset", function()
  local function shard(name, first, n, more)
    local files = {}
    for i = first, first + n - 1 do
      local key = ("%03d"):format(i)
      files[#files + 1] = {key .. ".cls", tostring(i)}
      files[#files + 1] = {key .. ".txt", "text " .. i}
      files[#files + 1] = {key .. ".meta.JSON", ('{"v": %d}'):format(i)}
      files[#files + 1] = {"README", "no sample"}
    end
    return write(name, tar.archive(files) .. (more or ""))
  end
  local function keys(set)
    local list = {}
    for sample in set:iter() do list[#list + 1] = tonumber(sample.__key__) end
    return list
  end
  setup(function()
    for k = 0, 2 do shard(("w/s-%02d.tar"):format(k), 4 * k, 4) end
    assert(os.execute(("gzip -c %s/w/s-02.tar >%s/w/z.tar.gz"):format(folder, folder)) == 0)
  end)

  it("groups the files of a key and decodes them", function()
    local set = data.WebDataset(folder .. "/w/s-00.tar")
    local sample = set:iter()()
    assert.same({__key__ = "000", cls = 1, txt = "text 0", ["meta.json"] = {v = 0}}, sample)
    local wanted = {fields = {"png;txt", "meta.json", "cls"}, base = 0}
    assert.same({"text 8", {v = 8}, 8}, {data.WebDataset(folder .. "/w/z.tar.gz", wanted):iter()()})
    assert.same({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, keys(data.WebDataset(folder .. "/w/s-{00..02}.tar")))
    assert.same({8, 9, 10, 11, 4, 5, 6, 7},
      keys(data.WebDataset {folder .. "/w/{z.tar.gz,s-01.tar}"}))
    local raw = data.WebDataset(folder .. "/w/s-00.tar", {decode = false}):iter()()
    assert.same({"0", '{"v": 0}'}, {raw.cls, raw["meta.json"]})
    local own = data.WebDataset(folder .. "/w/s-00.tar", {decode = {txt = function(s) return #s end}}):iter()()
    assert.equal(6, own.txt)
    assert.equal("WebDataset(3 shards)", tostring(data.WebDataset(folder .. "/w/s-{00..02}.tar")))
  end)

  it("decodes images through the transform", function()
    local image = lm.arange(12):view(1, 3, 4):to("uint8")
    local png = lm.vision.encode_png(image)
    lm.vision.write_file(folder .. "/one.png", png)
    local bytes = temp.read(folder .. "/one.png")
    local path = write("images.tar", tar.archive {{"a.png", bytes}, {"a.cls", "0"}, {"b.png", bytes:sub(1, -30)},
      {"b.cls", "0"}})
    local x, y = data.WebDataset(path, {fields = {"jpg;png", "cls"}}):iter()()
    assert.same({{3, 3, 4}, "float32", 1}, {{unpack(x.shape)}, x.dtype, y})
    assert.is_true(x:select(1, 1):mul(255):round():eq(image:select(1, 1)):all():item())
    local flat = data.WebDataset(path, {transform = function(v) return v:view(-1) end, on_error = "skip"})
    local next_one = flat:iter()
    assert.same({36, "uint8"}, {next_one().png:numel(), next_one() or "uint8"})
    assert.equal(1, flat:skipped())
    local stream = data.WebDataset(path):iter()
    stream()
    says(path .. ": b.png", stream)
    says("my own", data.WebDataset(path, {transform = function() error "my own" end, on_error = "skip"}):iter())
  end)

  it("reads names of every kind of archive", function()
    local long = ("deep/"):rep(30) .. ("n"):rep(120)
    write("names.tar", tar.member("dir", "", {kind = "5"}) .. tar.gnu_member(long .. ".txt", "gnu")
      .. tar.pax_member("pax/" .. long .. ".txt", "pax") .. tar.member("b.txt", "prefixed", {prefix = "some/folder"})
      .. tar.member("c.txt", "base 256", {size_field = "\128" .. ("\0"):rep(10) .. "\8"})
      .. tar.member("d.txt", "link", {kind = "2", size_field = ("0"):rep(11) .. "\0"}):sub(1, 512)
      .. tar.member("e.txt", "old", {magic = ("\0"):rep(8), kind = "\0"}) .. tar.ending)
    local got = {}
    for key, text in data.WebDataset(folder .. "/names.tar", {decode = false}):iter() do
      got[#got + 1] = {key.__key__, key.txt, text}
    end
    assert.same({{long, "gnu"}, {"pax/" .. long, "pax"}, {"some/folder/b", "prefixed"}, {"c", "base 256"},
      {"e", "old"}}, got)
  end)

  it("reads what tar itself writes", function()
    for i, format in ipairs {"v7", "ustar", "gnu", "pax"} do
      local path = ("%s/format-%s.tar"):format(folder, format)
      local name = i > 2 and ("k"):rep(150) or "k"
      write("f/" .. name .. ".txt", format)
      assert(os.execute(("tar -C %s/f --format=%s -cf %s %s.txt"):format(folder, format, path, name)) == 0)
      assert.same({__key__ = name, txt = format}, data.WebDataset(path):iter()())
    end
  end)

  it("is shared out over workers and ranks: each sample once, by threads as by processes", function()
    local expected = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
    local set = data.WebDataset(folder .. "/w/s-{00..02}.tar", {fields = {"cls", "txt"}, base = 0})
    for _, n in ipairs {0, 1, 2, 3, 8} do
      local got = {}
      local threads = all(set, {num_workers = n, batch_size = 2})
      for _, batch in ipairs(threads) do
        for _, v in ipairs(batch[1]) do got[#got + 1] = v end
      end
      table.sort(got)
      assert.same(expected, got)
      if n == 2 then
        assert.same(threads, all(set, {num_workers = n, batch_size = 2, worker_type = "process"}))
        assert.same(threads, all(set, {num_workers = n, batch_size = 2}))
      end
    end
    for _, parts in ipairs {2, 3, 5} do
      local got = {}
      for part = 0, parts - 1 do
        local mine = data.WebDataset(folder .. "/w/s-{00..02}.tar")
        mine:shard(part, parts)
        for _, key in ipairs(keys(mine)) do got[#got + 1] = key end
      end
      table.sort(got)
      assert.same(expected, got)
    end
    says("part 2 of 2", set.shard, set, 2, 2)
  end)

  it("takes files larger than what is read at a time", function()
    local text = {}
    for i = 1, 40000 do text[i] = ("%08d long line of text\n"):format(i * 7919 % 100003) end
    local whole = table.concat(text):rep(2)
    local path = write("long.tar", tar.archive {{"a.txt", whole}, {"b.bin", whole}, {"b.txt", "last"}})
    assert(os.execute(("gzip -kf %s"):format(path)) == 0)
    for _, shard_path in ipairs {path, path .. ".gz"} do
      local next_one = data.WebDataset(shard_path, {fields = {"txt"}}):iter()
      assert.is_true(next_one() == whole)
      assert.equal("last", next_one())
      assert.is_nil(next_one())
    end
  end)

  it("is shuffled within a buffer, the same for the same seed", function()
    local set = data.WebDataset(folder .. "/w/s-{00..02}.tar", {fields = {"cls"}, shuffle = 4, shuffle_shards = true})
    local function run(seed, how) return all(set, with({batch_size = 3, seed = seed}, how or {})) end
    local first = run(1)
    assert.same(first, run(1))
    assert.not_same(first, run(2))
    local sorted = {}
    for _, batch in ipairs(first) do
      for _, v in ipairs(batch[1]) do sorted[#sorted + 1] = v end
    end
    assert.not_same({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, sorted)
    table.sort(sorted)
    assert.same({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, sorted)
    assert.same(run(1, {num_workers = 2}), run(1, {num_workers = 2, worker_type = "process"}))
    assert.same(run(1), run(1, {num_workers = 1}))
  end)

  it("says what is wrong with a shard or a sample", function()
    local function read(path, opts)
      local n = 0
      for _ in data.WebDataset(path, opts):iter() do n = n + 1 end
      return n
    end
    local whole = tar.archive {{"a.cls", "1"}, {"a.txt", "x"}, {"b.cls", "2"}, {"b.txt", "y"}}
    local function broken(name, text) return write("broken-" .. name .. ".tar", text) end
    local cut = broken("cut", whole:sub(1, 2 * 1024 + 700))
    says(cut .. ": at byte 2048: it is cut short", read, cut)
    assert.equal(1, read(cut, {on_error = "skip"}) + 0)
    local unended = broken("unended", whole:sub(1, 4 * 1024))
    says(unended .. ": at byte 4096: it is cut short", read, unended)
    local flipped = broken("sum", whole:sub(1, 1024) .. "X" .. whole:sub(1026))
    says(flipped .. ": at byte 1024: no header of a member, by its check sum", read, flipped)
    local none = broken("none", ("nonsense"):rep(200))
    says("no tar archive", read, none)
    says("it is cut short", read, broken("empty", ""))
    local huge = broken("huge", tar.header("a.txt", 0, {size_field = "\128" .. ("\0"):rep(3) .. ("\255"):rep(8)}))
    says("a size that is no number", read, huge)
    local large = broken("large", tar.header("a.txt", 2 ^ 31) .. ("x"):rep(600))
    says("more than a GiB", read, large)
    local zipped = folder .. "/broken.tar.gz"
    assert(os.execute(("gzip -c %s/w/s-00.tar | head -c 200 >%s"):format(folder, zipped)) == 0)
    says(zipped .. ": at byte 0: unexpected end of file", read, zipped)
    local twice = broken("twice", tar.archive {{"a.cls", "1"}, {"a.CLS", "1"}, {"b.cls", "1"}})
    says(twice .. ": the sample 'a' has two files .cls", read, twice)
    assert.equal(1, read(twice, {on_error = "skip"}))
    local label = broken("label", tar.archive {{"a.cls", "one"}})
    says(label .. ": a.cls: a label is to be an integer, got 'one'", read, label)
    local json = broken("json", tar.archive {{"a.json", '{"x":'}})
    says(json .. ": a.json: no JSON at byte", read, json)
    says("the sample 'a' has no jpg nor png, but cls, txt", read, broken("lack", whole), {fields = {"jpg;png"}})
    says("the shard /nowhere/x.tar is not there", read, "/nowhere/x.tar")
    local many = broken("many", tar.archive {{"a.cls", ("9"):rep(400)}, {"b.cls", "-9007199254740993000"}})
    says(many .. ": a.cls: a label of 400 digits is too large", read, many)
    assert.equal(0, read(many, {on_error = "skip"}))
    says("numbers have at most 15 digits", data.WebDataset, "{100000000000000000000..100000000000000016384}")
    says("numbers have at most 15 digits", data.WebDataset, ("{%s1..3}.tar"):format(("0"):rep(200)))
    says("more than a million shards", data.WebDataset, "{0..1000000}")
    says("more than a million shards", data.WebDataset, ("{a,b}"):rep(40))
    says("the braces of", data.WebDataset, "{a")
    says("'{a}' is to be {000..146} or {a,b}", data.WebDataset, "{a}")
    says("at least one shard", data.WebDataset, {})
  end)

  it("leaves out and counts what cannot be read, in workers too", function()
    local bad = {}
    for k = 1, 2 do
      bad[k] = write(("skip-%d.tar"):format(k), tar.archive {{"a.cls", "1"}, {"b.cls", "x"}, {"c.cls", "3"}})
    end
    local set = data.WebDataset(bad, {on_error = "skip", fields = {"cls"}})
    local n = 0
    for _ in set:iter() do n = n + 1 end
    assert.same({4, 2}, {n, set:skipped()})
    assert.same({2, 2}, skipped_by_workers(set))
    local function oh() error "oh" end
    local mine = data.WebDataset(folder .. "/w/s-00.tar", {on_error = "skip", decode = {txt = oh}})
    assert.is_nil(mine:iter()())
    assert.equal(4, mine:skipped())
  end)

  it("leaves nothing out for lack of descriptors", function()
    local script = write("scarce.lua", [[
      local lm, folder = require "luminary", arg[1]
      local web = lm.data.WebDataset(folder .. "/w/s-00.tar", {on_error = "skip"})
      local files = lm.data.ImageFolder(folder .. "/scarce", {on_error = "skip"})
      local _ = web:iter()(), files:get(1) -- what that loads
      local held = {}
      for i = 1, 100 do held[i] = io.open "/dev/null" end
      local _, one = pcall(web:iter())
      local _, other = pcall(files.get, files, 1)
      for i = 1, #held do held[i]:close() end
      print(one, other, web:skipped(), files:skipped(), web:iter()().__key__, files:get(1).shape[1])]])
    assert(os.execute(("mkdir -p %s/scarce/a"):format(folder)) == 0)
    lm.vision.write_file(folder .. "/scarce/a/1.png", lm.vision.encode_png(lm.zeros({3, 2, 2}, {dtype = "uint8"})))
    local ok, text = temp.run(folder, ("ulimit -n 50; luajit %s %s"):format(script, folder))
    assert(ok, text)
    local refused = "\t[^\t]*no descriptor to be had: cannot read %S*"
    assert.matches(refused .. "s%-00.tar: [^\t]*" .. refused .. "1.png: [^\t]*\t0\t0\t%S+\t3\n$", "\t" .. text)
  end)
end)

describe("a TokenDataset", function()
  local ffi = require "ffi"
  local function tokens(name, kind, n, f)
    local list = ffi.new(kind .. "[?]", n)
    for i = 0, n - 1 do list[i] = f(i) end
    return write(name, ffi.string(list, ffi.sizeof(list)))
  end

  it("gives blocks and the same one token later", function()
    for kind, v in pairs {uint8 = 200, int16 = -5, uint16 = 60000, int32 = -70000, uint32 = 4e9, int64 = 2 ^ 40} do
      local path = tokens("t.bin", kind .. "_t", 11, function(i) return v + i end)
      local set = data.TokenDataset(path, {block_size = 3, dtype = kind, base = 0})
      assert.equal(3, #set)
      local x, y = set:get(2)
      assert.equal("int64", x.dtype)
      assert.same({{v + 3, v + 4, v + 5}, {v + 4, v + 5, v + 6}}, {plain(x), plain(y)})
    end
    local path = tokens("t.bin", "uint16_t", 11, function(i) return i end)
    local every = data.TokenDataset(path, {block_size = 3, stride = 1})
    assert.equal(8, #every)
    assert.same({9, 10, 11}, plain(select(2, every:get(-1)))) -- from 1
    local x, y = every:get_batch(lm.tensor({8, 1}, {dtype = "int64"}))
    assert(x:equal((every:get_batch {8, 1})))
    assert.same({{{8, 9, 10}, {1, 2, 3}}, {{9, 10, 11}, {2, 3, 4}}}, {plain(x), plain(y)})
    assert.is_true(x:is_contiguous() and y:is_contiguous())
    assert.equal(2, #data.TokenDataset(path, {block_size = 3, offset = 4, stride = 4}))
    local sums = data.TokenDataset(path, {block_size = 3, transform = function(a, b) return (a + b):sum():item() end})
    assert.equal(15, sums:get(1))
    same_with_workers(every)
    same_with_workers(sums)
  end)

  it("says what is wrong with the file", function()
    local path = tokens("u.bin", "uint16_t", 11, function(i) return i * 10 end)
    says("no number of tokens of 4 bytes", data.TokenDataset, path, {block_size = 3, dtype = "int32"})
    says("has 11 tokens; a block of 11 and the token after it want more", data.TokenDataset, path, {block_size = 11})
    says("{block_size = …}", data.TokenDataset, path)
    says("cannot read " .. folder .. "/none", data.TokenDataset, folder .. "/none", {block_size = 1})
    local set = data.TokenDataset(path, {block_size = 3, vocab_size = 100})
    assert.same({31, 41, 51}, plain((set:get(2))))
    says(path .. ": token 11 of it is 100, not from 0 to 99",
      data.TokenDataset(path, {block_size = 3, vocab_size = 100, stride = 7}).get,
      data.TokenDataset(path, {block_size = 3, vocab_size = 100, stride = 7}), 2)
    says("sample 4 is not among the 3", set.get, set, 4)
    says("has no block 4611686018427387904", set.get_batch, set, lm.tensor({2 ^ 53}, {dtype = "int64"}):mul(512))
    says("are not in it", set.get_batch, set, lm.tensor({0}, {dtype = "int64"}))
    says("TokenDataset: the list of indices has to be a tensor, got number 3", set.get_batch, set, 3)
  end)

  it("takes a transform that is set later, as a CSVDataset does", function()
    local set = data.TokenDataset(tokens("later.bin", "uint16_t", 100, function(i) return i end), {block_size = 4})
    local rows = data.CSVDataset(write("later.csv", "a,b\n1,2\n3,4\n"), {label = "b"})
    local function first(of) return (data.DataLoader(of, {batch_size = 2}):iter()()):double() end
    for _, of in ipairs {set, rows} do
      local before = first(of)
      of.transform = function(x, ...) return x + 10, ... end
      assert(lm.equal(before + 10, first(of)))
      of.transform = nil
      assert(lm.equal(before, first(of)))
    end
  end)

  it("has an error for a file that changes, in workers too", function()
    local path = tokens("v.bin", "uint16_t", 5000, function(i) return i end)
    local set = data.TokenDataset(path, {block_size = 4})
    set:get(1)
    write("v.bin", "short")
    says(path .. " had 10000 bytes and has 5 now", set.get, set, 1000)
    for _, kind in ipairs {"thread", "process"} do
      says(path .. " has changed since the set was made: it had 10000 bytes", all, set,
        {num_workers = 1, worker_type = kind})
    end
    tokens("v.bin", "uint16_t", 5000, function(i) return i + 1 end)
    says("v.bin", set.get, set, 1)
  end)
end)

describe("a CSVDataset", function()
  it("gives numbers, labels, targets and texts", function()
    local path = write("a.csv", '\239\187\191a,b,"na,me",y\r\n1,2.5,"x ""q""\r\n z",cat\r\n\r\n-3e2, 4 ,,dog\n'
      .. ".5,+7.,é,cat")
    local set = data.CSVDataset(path, {label = "y", text = "na,me"})
    assert.equal(3, #set)
    assert.same({"a", "b", "na,me", "y"}, set.columns)
    local x, y, text = set:get(1)
    assert.same({{1, 2.5}, 1, 'x "q"\r\n z'}, {plain(x), y, text})
    assert.same({{-300, 4}, 2, ""}, {plain((set:get(2))), select(2, set:get(2))})
    assert.same({{0.5, 7}, 1, "é"}, {plain((set:get(3))), select(2, set:get(3))})
    assert.same({"cat", "dog"}, set.classes)
    assert.same({cat = 1, dog = 2}, set.class_to_idx)
    same_with_workers(set)
  end)

  it("gathers what has no texts", function()
    local path = write("b.csv", "10;1;2\n9;3;4\n10;5;6\n")
    local set = data.CSVDataset(path, {header = false, delimiter = ";", features = {3}, label = 1, target = 2})
    assert.same({"9", "10"}, set.classes) -- as numbers
    local x, y, z = set:get_batch(lm.tensor({3, 2}, {dtype = "int64"}))
    assert.same({{{6}, {4}}, {2, 1}, {5, 3}}, {plain(x), plain(y), plain(z)})
    assert.same({3, 1}, {select(2, set:get(2)) + 2, (select(3, set:get(1))):item()})
    same_with_workers(set)
    local two = data.CSVDataset(path, {header = false, delimiter = ";", target = {3, 1}, base = 0,
      transform = function(row) return row * 10 end, target_transform = function(t) return t:sum():item() end})
    assert.same({{10}, 12}, {plain((two:get(1))), select(2, two:get(1))})
    same_with_workers(two)
    local test = data.CSVDataset(write("b2.csv", "10;1;2\n"), {header = false, delimiter = ";", label = 1, base = 0,
      classes = set.classes})
    assert.equal(1, select(2, test:get(1)))
    assert(os.execute(("gzip -c %s >%s.gz"):format(path, path)) == 0)
    assert.equal(3, #data.CSVDataset(path .. ".gz", {header = false, delimiter = ";"}))
  end)

  it("reads numbers as the C library does", function()
    local list = {}
    math.randomseed(5)
    for i = 1, 400 do
      local v = (math.random() - 0.5) * 10 ^ math.random(-30, 30)
      local text = ("%." .. math.random(0, 20) .. ({"e", "f", "g"})[i % 3 + 1]):format(v)
      list[i] = tonumber(text) == math.huge and "0" or text
    end
    for _, text in ipairs {"1e-50", "123456789012345678901234567890", "0.1", "16777217", "3.4028234e38", "-0", "00012",
      "1e22", "1e23", "9007199254740993", "4e-324", "inf", "-inf"} do
      list[#list + 1] = text
    end
    local set = data.CSVDataset(write("n.csv", table.concat(list, "\n")), {header = false})
    for i, text in ipairs(list) do
      local expected = text == "inf" and math.huge or text == "-inf" and -math.huge or tonumber(text)
      assert.equal(lm.tensor({expected}):item(), set.features[{i, 1}], text)
    end
    for text in ("1,5 0x10 1e e5 1.2.3 --1 1;2 4e38 1e999 + . 1_0 infin"):gmatch "%S+" do
      says("no number of float32", data.CSVDataset, write("n.csv", '"' .. text .. '"\n'), {header = false})
    end
  end)

  it("names line and column of what is wrong", function()
    local function read(text, opts) return data.CSVDataset(write("bad.csv", text), opts) end
    local path = folder .. "/bad.csv"
    says(path .. ": line 3, column 2 ('b'): '' is a missing value; missing = \"nan\" takes it as NaN", read,
      "a,b\n1,2\n3,\n")
    says(path .. ": line 4, column 1 ('a'): 'x' is no number of float32; text = \"<column>\" reads strings",
      read, 'a,b\n"1",2\n\nx,4\n')
    says(path .. ": line 3 has 3 fields, the first has 2", read, "a,b\n1,2\n3,4,5\n")
    says(path .. ": line 2 has 1 field, the first has 2", read, "a,b\n1\n")
    says(path .. ": line 2, field 2: a quote inside a field without quotes", read, 'a,b\n1,2"\n')
    says(path .. ": line 3, field 1: its quotes are not closed where the field ends", read, 'a,b\n1,2\n"3,\n4\n')
    says(path .. ": line 1, field 1: its quotes are not closed where the field ends", read, '"a"x,b\n1,2\n')
    says(path .. ": line 4, column 2: 'z' is none of the classes x, y", read, 'a,b\n1,"x"\n2,"y"\n3,z\n',
      {label = "b", classes = {"x", "y"}})
    says("has no lines", read, "\n\r\n")
    says(path .. " has no column 'c'; did you mean 'a'? there are a, b", read, "a,b\n1,2\n", {features = {"c"}})
    says("did you mean 'label'?", read, "label,b\n1,2\n", {label = "lable"})
    says("columns 1 to 2, not 3", read, "a,b\n1,2\n", {label = 3})
    says("two columns of", read, "a,a\n1,2\n", {label = "a"})
    says("columns have no names with header = false", read, "1,2\n", {label = "a", header = false})
    says("column 1 is asked for twice", read, "a,b\n1,2\n", {features = {1, "a"}})
    says("delimiter has to be one character", read, "1,2\n", {delimiter = "ab"})
    says("missing has to be one of", read, "1,2\n", {missing = "skip"})
    says("label is one column", read, "1,2\n", {label = {1, 2}})
  end)

  it("takes missing numbers as NaN, or leaves out rows with errors, by option", function()
    local text = "a,b,c\n1,2,x\n,NA,x\n3,oops,y\n4\n5, nan ,z\n"
    local set = data.CSVDataset(write("m.csv", text), {text = "c", missing = "nan", on_error = "skip"})
    assert.same({3, 2}, {#set, set:skipped()})
    local row = plain((set:get(2)))
    assert.is_true(row[1] ~= row[1] and row[2] ~= row[2])
    assert.same({5, "z"}, {set:get(3)[1], select(2, set:get(3))})
    local strict = data.CSVDataset(folder .. "/m.csv", {label = "c", on_error = "skip", classes = {"y", "z"}})
    assert.same({0, 5}, {#strict, strict:skipped()})
  end)

  it("reads large tables by several threads to the same end", function()
    local lines = {"x,y,name"}
    for i = 1, 60000 do lines[#lines + 1] = ("%d,%.3f,\"n %d\""):format(i, i / 8, i) end
    lines[40001] = "bad,1,x"
    local text = table.concat(lines, "\n")
    says("line 40001, column 1 ('x'): 'bad'", data.CSVDataset, write("large.csv", text), {text = "name"})
    local set = data.CSVDataset(folder .. "/large.csv", {text = "name", on_error = "skip"})
    assert.same({59999, 1}, {#set, set:skipped()})
    local x, name = set:get(40000)
    assert.same({{40001, 40001 / 8}, "n 40001"}, {plain(x), name})
  end)
end)

describe("a JSONLinesDataset", function()
  local lines = '\239\187\191{"a": 1, "s": "x"}\n\n  {"a": [1, 2]}\r\n[3]\n \t\n{"a": 4}'

  it("gives the value of each line", function()
    local set = data.JSONLinesDataset(write("a.jsonl", lines))
    assert.equal(4, #set)
    assert.same({{a = 1, s = "x"}, {a = {1, 2}}, {3}, {a = 4}}, {set:get(1), set:get(2), set:get(3), set:get(-1)})
    local rows = {}
    for i = 1, 9 do rows[i] = ('{"text": "t%d", "label": %d}'):format(i, i) end
    local path = write("b.jsonl", table.concat(rows, "\n") .. "\n")
    local fields = data.JSONLinesDataset(path, {fields = {"label", "text"}})
    assert.same({9, "t9"}, {fields:get(9)})
    same_with_workers(fields)
    same_with_workers(data.JSONLinesDataset(path, {transform = function(row) return row.label * 2 end}))
    assert.equal(0, #data.JSONLinesDataset(write("c.jsonl", "\n \n")))
    local nulls = write("d.jsonl", '{"a": null}\n')
    assert.same({a = false}, data.JSONLinesDataset(nulls, {null = false}):get(1))
    local beside = data.JSONLinesDataset(write("n.jsonl", '{"a": 1, "b": null, "c": [{"d": null}]}\n'),
      {fields = {"a"}})
    assert.equal(1, beside:get(1)) -- one that no sample has is none of ours
    beside.fields = {"a", "c"}
    says("line 1: field 'c' has a null, for which Lua has no value; {null = false} has false stand for it", beside.get,
      beside, 1)
    says("line 1: a null, for which Lua has no value; {null = false}", function()
      data.JSONLinesDataset(nulls):get(1)
    end)
  end)

  it("finds lines in large files, read in order or not", function()
    local rows = {}
    math.randomseed(8)
    for i = 1, 6000 do
      local length = i % 1500 == 0 and 300000 or math.random(0, 200)
      rows[i] = (" "):rep(math.random(0, 3)) .. ('{"i": %d, "s": "%s"}'):format(i, ("x"):rep(length))
        .. ("\n"):rep(math.random(0, 2)) .. (" "):rep(math.random(0, 2))
    end
    local set = data.JSONLinesDataset(write("large.jsonl", table.concat(rows, "\n")))
    assert.equal(6000, #set)
    for i = 1, 6000 do assert(set:get(i).i == i) end
    for i = 1, 6000 do
      local k = i * 7919 % 6000 + 1
      local row = set:get(k)
      assert(row.i == k and row.s == rows[k]:match '"s": "(x*)"')
    end
  end)

  it("names the line of what is wrong, or leaves it out and counts", function()
    local path = write("e.jsonl", '{"a": 1}\n\n{"a": }\n{"b": 1}\n7\n{"a": null}\n{"a": 2}\n')
    local set = data.JSONLinesDataset(path, {fields = {"a"}})
    says(path .. ": line 3: no JSON at byte 7", set.get, set, 2)
    says(path .. ": line 4: it has no field 'a'", set.get, set, 3)
    says(path .. ": line 5: fields of an object are wanted, it is a number", set.get, set, 4)
    says(path .. ": line 6: field 'a' has a null, for which Lua has no value", set.get, set, 5)
    local tolerant = data.JSONLinesDataset(path, {fields = {"a"}, on_error = "skip"})
    assert.same({1, 2, 2}, {tolerant:get(1), tolerant:get(2), tolerant:get(6)})
    assert.equal(4, tolerant:skipped())
    assert.same({10, 10}, skipped_by_workers(tolerant)) -- 4 + 3 + 2 + 1
    write("e.jsonl", "{}")
    says(path .. " had", set.get, set, 1)
    local deep = write("deep.jsonl", ("["):rep(5000) .. '\n["\\"[[", [1 [\n')
    local nested = data.JSONLinesDataset(deep)
    says(deep .. ": line 1: nested more than 1000 deep at byte 1001", nested.get, nested, 1)
    says(deep .. ": line 2: no JSON at byte 13", nested.get, nested, 2)
    assert(os.execute(("gzip -c %s >%s.gz"):format(path, path)) == 0)
    says("gunzip it first", data.JSONLinesDataset, path .. ".gz")
  end)
end)

describe("FakeData", function()
  it("makes the same noise again, as bytes for a transform and else from 0 to 1", function()
    local seen
    local set = data.FakeData {size = 20, image_size = {3, 9, 7}, num_classes = 4}
    assert.equal(20, #set)
    local labels = {}
    for i = 1, 20 do
      local image, label = set:get(i)
      assert.same({3, 9, 7}, {unpack(image.shape)})
      assert.equal("float32", image.dtype)
      assert(image:min():item() >= 0 and image:max():item() <= 1)
      labels[label] = true
      assert.is_true(image:equal((set:get(i))))
    end
    assert.same({true, true, true, true}, labels)
    assert.is_false((set:get(1)):equal((set:get(2))))
    local moved = data.FakeData {
      size = 1, image_size = {3, 9, 7}, num_classes = 4, base = 0, random_offset = 3,
      transform = function(x) seen = x return x:float() end, target_transform = function(y) return 10 * y end,
    }
    local image, label = moved:get(1)
    local other, number = set:get(4)
    assert.equal("uint8", seen.dtype)
    assert.is_true((image / 255):allclose(other))
    assert.equal(10 * (number - 1), label)
    lm.manual_seed(1)
    local wanted = lm.rand(3)
    lm.manual_seed(1)
    set:get(7)
    assert.is_true(lm.rand(3):equal(wanted)) -- the script's own numbers are left alone
    says("image_size has to be {channels, height, width}", data.FakeData, {image_size = {224, 224}})
    says("image_size has to be {channels, height, width}", data.FakeData, {image_size = {3, 0, 224}})
  end)
end)
