-- Transforms, loaders and decoders of sets that return several values: one field of a sample, a list.
local lm = require "luminary"
local sets = require "spec.support.sets"
local message = require "spec.support.error_of"
local data, T = lm.data, lm.vision.transforms
local write, folder = sets.write, sets.folder
teardown(sets.remove)

local function views(x)
  x = x:to "float64" * 1
  return x + 1, x * 2
end
local function pair_of(label) return label, "name" end

describe("a transform that returns several values makes a list of them", function()
  local images = lm.randint(0, 256, {3, 5, 6}, {dtype = "uint8"})
  setup(function()
    for i, class in ipairs {"cat", "dog"} do
      os.execute(("mkdir -p %s/images/%s"):format(folder, class))
      lm.vision.write_png(images, ("%s/images/%s/%d.png"):format(folder, class, i))
    end
  end)

  -- Sets of each kind with both transforms; the two views of the first sample are x + 1 and x * 2 of one x.
  local open = {
    FakeData = function(o) return data.FakeData {size = 4, image_size = {1, 2, 3}, transform = o[1],
      target_transform = o[2]} end,
    ImageFolder = function(o) return data.ImageFolder(folder .. "/images", {transform = o[1],
      target_transform = o[2]}) end,
    DatasetFolder = function(o)
      return data.DatasetFolder(folder .. "/images", {loader = function(path)
        return require("luminary").full({2}, #path)
      end, transform = o[1], target_transform = o[2]})
    end,
    CSVDataset = function(o) return data.CSVDataset(write("v.csv", "a,b,y\n1,2,u\n3,4,v\n"), {label = "y",
      transform = o[1], target_transform = o[2]}) end,
    MNIST = function(o)
      write("t10k-images-idx3-ubyte", "\0\0\8\3\0\0\0\2\0\0\0\2\0\0\0\2" .. "abcdefgh")
      write("t10k-labels-idx1-ubyte", "\0\0\8\1\0\0\0\2\0\1")
      return data.MNIST {root = folder, train = false, transform = o[1], target_transform = o[2]}
    end,
  }
  for name, new in pairs(open) do
    it("in " .. name .. ", in any worker", function()
      local set = new {views, pair_of}
      local image, target = set:get(1)
      assert.equal(2, #image)
      assert(lm.allclose((image[1] - 1) * 2, image[2]))
      assert.equal("name", target[2])
      for _, how in ipairs {{}, {num_workers = 2}, {num_workers = 1, worker_type = "process"}} do
        how.batch_size = 2
        local x, y = data.DataLoader(set, how):iter()()
        assert.same({2, 2, 2}, {#x, x[1].shape[1], x[2].shape[1]})
        assert(lm.equal(x[1][1], image[1]) and lm.equal(x[2][1], image[2]))
        assert.same({target[1], {"name", "name"}}, {y[1][1], y[2]})
      end
    end)
  end

  it("in Compose, RandomApply, RandomOrder, RandomChoice and Lambda", function()
    local x = lm.rand({3, 4, 4}, {dtype = "float64"})
    for name, transform in pairs {
      Lambda = T.Lambda(views), Compose = T.Compose {T.Identity(), views}, nested = T.Compose {T.Compose {views}},
      RandomApply = T.RandomApply({views}, {p = 1}), RandomOrder = T.RandomOrder {views},
      RandomChoice = T.RandomChoice {views}, module = T.Compose {(function()
        local Two = lm.nn.Module:extend("Two")
        function Two.forward(_, v) return views(v) end
        return Two()
      end)()},
    } do
      local y, label = transform(x, "label")
      assert.same({name, 2, "label"}, {name, #y, label})
      assert(lm.equal(y[1], x + 1) and lm.equal(y[2], x * 2))
    end
    local sums = T.Compose {views, function(list) return list[1] + list[2] end}
    assert(lm.equal(sums(x), x + 1 + x * 2))
    assert.matches("a function among transforms: must return no nil among several values, got nil as value 2 of 3",
      message(T.Compose {function(v) return v, nil, v end}, x), 1, true)
    assert.matches("RandomApply: image 1 of the batch became a table", message(T.RandomApply({views}, {p = 1}),
      lm.rand(2, 3, 4, 4)), 1, true)
  end)

  it("in a transform that takes whole batches", function()
    local Views = T.Transform:extend("Views")
    function Views.takes_batches() return true end
    function Views.forward(_, x) return views(x) end
    local set = open.MNIST {Views()}
    assert.is_false(set:one_by_one())
    for x, labels in data.DataLoader(set, {batch_size = 2}):iter() do
      assert.same({{2, 1, 2, 2}, {2, 1, 2, 2}, {1, 2}}, {x[1].shape, x[2].shape, labels:totable()})
    end
    local x = set:get(2)
    assert.same({1, 2, 2}, x[2].shape)
  end)

  it("in a DatasetFolder's loader and a WebDataset's decoder and transform", function()
    local set = data.DatasetFolder(folder .. "/images", {loader = function(path) return path, #path end})
    assert.same({folder .. "/images/cat/1.png", #(folder .. "/images/cat/1.png")}, (set:get(1)))
    local png = assert(io.open(folder .. "/images/cat/1.png", "rb")):read "*a"
    local tar = require "spec.support.tar"
    local path = write("v.tar", tar.archive {{"1.png", png}, {"1.npy", "abc"}})
    local web = data.WebDataset(path, {fields = {"png", "npy"}, transform = views,
      decode = {npy = function(bytes) return #bytes, bytes end}})
    local image, own = web:iter()()
    assert.same({2, {3, "abc"}}, {#image, own})
  end)

  it("and nil among them is an error", function()
    local set = open.FakeData {function(x) return x, nil, x end}
    assert.matches("transform: must return no nil among several values, got nil as value 2 of 3",
      message(set.get, set, 1), 1, true)
  end)
end)

describe("a sample with a nil before another value", function()
  it("is an error in every loader", function()
    local Holes = data.Dataset:extend("Holes")
    function Holes.len() return 2 end
    function Holes.get(_, i) return i, nil, i end
    for _, how in ipairs {{}, {num_workers = 1}, {num_workers = 1, worker_type = "process"}} do
      local loader = data.DataLoader(Holes(), how)
      assert.matches("the set's :get(1) returned nil as value 2 of 3", message(loader:iter()), 1, true)
    end
    local Stream = data.IterableDataset:extend("Stream")
    function Stream.iter()
      local i = 0
      return function() i = i + 1 return i < 3 and i or nil, nil, i end
    end
    assert.matches("the set's :iter() returned nil as value 2 of 3", message(data.DataLoader(Stream()):iter()), 1, true)
    local rows = data.DataLoader(Holes(), {collate_fn = function(samples) return samples[1] end}):iter()()
    assert.same({1, 1}, {rows[1], rows[3]}) -- a collate_fn may make something of it
  end)

  it("and one whose last values are nil has none there", function()
    local Short = data.Dataset:extend("Short")
    function Short.len() return 2 end
    function Short.get(_, i) return i, nil end
    for x, y in data.DataLoader(Short(), {batch_size = 2}):iter() do
      assert.same({{1, 2}}, {x:totable(), y})
    end
  end)
end)

describe("a collate_fn's results", function()
  it("are all given, nil included, by any worker", function()
    for _, how in ipairs {{}, {num_workers = 1}, {num_workers = 1, worker_type = "process"}} do
      how.collate_fn = function(samples) return #samples, nil, "third" end
      how.worker_init_fn = function(i) return i, "ignored" end
      assert.same({1, nil, "third"}, {data.DataLoader(data.FakeData {size = 2, image_size = {1, 1, 1}}, how):iter()()})
    end
  end)
end)
