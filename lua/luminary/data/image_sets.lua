--- Defines sets of small images in memory: those of IDX files, Krizhevsky's, and random pixels.
local core = require "luminary.core"
local class = require "luminary.base.class"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local results_as_list = require "luminary.base.results_as_list"
local signature = require "luminary.base.signature"
local dataset = require "luminary.data.dataset"
local records = require "luminary.data.files_and_bad_records"
local idx = require "luminary.file_formats.idx"
local Source = require "luminary.file_formats.source"
local Tar = require "luminary.file_formats.tar"
local fail = options.fail

-- The base class of sets of images in memory, as bytes with a label each. images: uint8 [N, C, H, W]. A sample is a
-- float32 image in [0, 1] and its label. If there is no transform, or one that takes batches (transforms.Transform),
-- :get_batch(index) gathers samples.
local Images = class.define("Images", dataset.Dataset)
Images.__makes = "images"

local CONVERTED = {dtype = "float32", scale = 1 / 255}

-- The arguments of MNIST, CIFAR10 and their like.
local common = [[root: string, train = true, transform: callable, target_transform: callable, download: lacks,
  base: integer = 1]]

--- Takes ownership of images and labels, int64 [N] from 0.
function Images:hold(images, labels, opts)
  self.images, self.labels = core.keep(images), core.keep(labels:add_(opts.base))
  self.targets = self.labels -- torchvision's name
  self.train, self.transform, self.target_transform = opts.train, opts.transform, opts.target_transform
end

--- Returns true if a transform takes single samples.
function Images:one_by_one()
  local transform = self.transform
  if self.target_transform then return true end
  return transform ~= nil and not (class.has(transform, "takes_batches") and transform:takes_batches())
end

--- Returns true if the transform draws random numbers.
function Images:draws() return self.transform ~= nil and self.transform.draws ~= false end

function Images:len() return self.labels.shape[1] end

function Images:get(i)
  i = self:index(i)
  local image = results_as_list.apply(self, "transform", core.gather_row(self.images, i, CONVERTED))
  return image, results_as_list.apply(self, "target_transform", self.labels[i])
end

-- Returns images [N, C, H, W], transformed, and labels [N].
dataset.define_get_batch(Images, function(self, index)
  local images = results_as_list.apply(self, "transform", core.gather_rows(self.images, index, CONVERTED))
  return images, core.gather_rows(self.labels, index)
end)

-- ---- sets of IDX files

--- data.MNIST(…): Loads the MNIST dataset of handwritten digits. LeCun et al., "Gradient-based learning applied to
--- document recognition", 1998.
local MNIST = class.define("MNIST", Images)
MNIST.folders = {"", "/mnist", "/MNIST/raw", "/MNIST"}
MNIST.remedy = "put the four IDX files (train-images-idx3-ubyte.gz, …) in one of them, or name their folder by root"
MNIST.classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

--- data.FashionMNIST(…): Loads the Fashion-MNIST dataset of clothes. Xiao et al., "Fashion-MNIST: a Novel Image
--- Dataset for Benchmarking Machine Learning Algorithms", 2017.
local FashionMNIST = class.define("FashionMNIST", MNIST)
FashionMNIST.folders = {"", "/fashion-mnist", "/FashionMNIST/raw", "/FashionMNIST"}
FashionMNIST.remedy = "install Debian's dataset-fashion-mnist, or name the folder of the four IDX files by root"
FashionMNIST.classes = {
  "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
}

MNIST.init = signature.of("({" .. common .. "})", function(self, opts)
  local which = opts.train and "train" or "t10k"
  local function find(name) return records.find(self, opts.root, {which .. name, which .. name .. ".gz"}) end
  local images_path, labels_path = find "-images-idx3-ubyte", find "-labels-idx1-ubyte"
  local images, labels = idx.load(images_path), idx.load(labels_path)
  if images.ndim ~= 3 then
    fail("%s: '%s' has %s; expected images [N, H, W]", self.__name, images_path, options.describe(images))
  end
  if labels.ndim ~= 1 or labels.shape[1] ~= images.shape[1] then
    fail("%s: '%s' has labels %s for images %s", self.__name, labels_path, options.describe(labels),
      options.describe(images))
  end
  self:hold(images:unsqueeze(2), labels:to("int64"), opts)
end)

-- ---- Krizhevsky's sets (https://www.cs.toronto.edu/~kriz/cifar.html): the binary version, records of one or two
-- labels and 3 x 32 x 32 bytes, and Python's, pickles with lists of labels and an array of such bytes

local PIXELS = 3 * 32 * 32

--- data.CIFAR10(…): Loads the CIFAR-10 dataset of 32 x 32 color images. Krizhevsky, "Learning Multiple Layers of
--- Features from Tiny Images", 2009.
local CIFAR10 = class.define("CIFAR10", Images)
CIFAR10.folders = {"", "/cifar-10-batches-bin", "/cifar-10-batches-py", "/cifar-10", "/cifar10", "/CIFAR10"}
CIFAR10.files = { -- the binary version adds .bin
  train = {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"}, test = {"test_batch"},
}
CIFAR10.archives = {"cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"}
CIFAR10.remedy = "put cifar-10-binary.tar.gz or cifar-10-python.tar.gz or the files in it in one of them, or name "
  .. "their folder by root"
CIFAR10.classes = lists.parts "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR10.labels_of = {10} -- number of classes of each of a record's labels
CIFAR10.label_keys = {"labels"} -- their keys in a pickle

--- data.CIFAR100(…): Loads the CIFAR-100 dataset of 32 x 32 color images. Krizhevsky, "Learning Multiple Layers of
--- Features from Tiny Images", 2009.
local CIFAR100 = class.define("CIFAR100", CIFAR10)
CIFAR100.folders = {"", "/cifar-100-binary", "/cifar-100-python", "/cifar-100", "/cifar100", "/CIFAR100"}
CIFAR100.files = {train = {"train"}, test = {"test"}}
CIFAR100.archives = {"cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"}
CIFAR100.remedy = CIFAR10.remedy:gsub("10", "100")
CIFAR100.labels_of = {20, 100}
CIFAR100.label_keys = {"coarse_labels", "fine_labels"}
CIFAR100.classes = lists.parts [[
  apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
  caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
  forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
  mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
  possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
  sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
  willow_tree wolf woman worm]]
CIFAR100.coarse_classes = lists.parts [[
  aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
  insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
  medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2]]

-- Returns the wanted files of an archive, by name.
local function unpacked(set, path, names)
  local wanted, found = lists.set(names), {}
  local archive = Tar.open(path)
  for member in archive.next, archive do
    local name = member:match "[^/]*$"
    if wanted[name] then found[name] = core.bytes_tensor(archive:read()) end
  end
  archive:close()
  local missing = lists.find(names, function(name) return not found[name] end)
  if missing then fail("%s: '%s' has no file %s", set.__name, path, missing) end
  return found
end

-- Returns the records of a pickle as the binary version has them.
local function unpickled(set, path, bytes)
  local pickle = load_module "luminary.file_formats.pickle"
  local python_values = load_module "luminary.file_formats.python_values"
  local source = Source.over(bytes, path, {})
  local dict, lost = pickle.load(source:cursor(0), function(name) return python_values[name] end,
    function(_, machine) machine:fail "a persistent id" end)
  local columns, data = {}, options.is_plain(dict) and dict.data
  if not core.is_tensor(data) or data.dtype ~= "uint8" or data:dim() ~= 2 or data.shape[2] ~= PIXELS or #data == 0 then
    source:fail("expected 'data' to be uint8 [N, %d], got %s%s", PIXELS, options.describe(data or nil),
      lost[1] and (": '%s': %s"):format(lost[1].path, lost[1].lost.why) or "")
  end
  for k, key in ipairs(set.label_keys) do
    local ok, list = pcall(core.tensor, dict[key], {dtype = "int64"})
    if not ok or list:dim() ~= 1 or #list ~= #data or list:min():item() < 0 or list:max():item() > 255 then
      source:fail("expected '%s' to be a list of %d classes from 0", key, #data)
    end
    columns[k] = list:to("uint8"):view(-1, 1)
  end
  columns[#columns + 1] = data
  return core.ops.cat(columns, 2)
end

-- Returns the records of a file, uint8 [N, labels and pixels].
local function rows_of(set, path, bytes)
  local width, n = #set.labels_of + PIXELS, bytes.shape[1]
  local is_pickle = n > 0 and bytes[1] == 128 -- a pickle begins with 128, which is no label
  if n == 0 or n % width ~= 0 and not is_pickle then
    fail("%s: '%s' has %d bytes, not a multiple of the record size %d: it is truncated, or of another dataset",
      set.__name, path, n, width)
  end
  local rows = is_pickle and unpickled(set, path, bytes) or bytes:view(-1, width)
  for k, classes in ipairs(set.labels_of) do
    local bad = core.ops.nonzero(rows:select(2, k):ge(classes)):view(-1)
    if #bad > 0 and set.on_error == "raise" then
      local first = bad[1]
      fail("%s: '%s': record %d has label %d; labels must be from 0 to %d", set.__name, path, first, rows[{first, k}],
        classes - 1)
    elseif #bad > 0 then
      set.faults:add_(#bad)
      rows = rows:index_select(1, core.ops.nonzero(rows:select(2, k):lt(classes)):view(-1))
    end
  end
  return rows
end

local function set_up_cifar(self, opts)
  records.begin(self, opts.on_error)
  local plain, binary = self.files[opts.train and "train" or "test"], self.archives[1]
  local path = records.find(self, opts.root, {plain[1] .. ".bin", binary, plain[1], self.archives[2]})
  local ending = (path:find "%.bin$" or path:sub(-#binary) == binary) and ".bin" or ""
  local folder, images, labels = path:match "^(.*/)[^/]*$", {}, {}
  local column = opts.coarse and 1 or #self.labels_of
  local names = lists.map(plain, function(name) return name .. ending end)
  local archive = path:find "%.tar%.gz$" and unpacked(self, path, names)
  for i, name in ipairs(names) do
    local file = archive and path .. ": " .. name or folder .. name
    local rows = rows_of(self, file, archive and archive[name] or records.bytes_of(file))
    labels[i] = rows:select(2, column):to("int64")
    images[i] = rows:narrow(2, #self.labels_of + 1, PIXELS)
  end
  if opts.coarse then self.classes = self.coarse_classes end
  self:hold(core.ops.cat(images):view(-1, 3, 32, 32), core.ops.cat(labels), opts)
end

CIFAR10.init = signature.of("({" .. common .. [[, on_error = "raise" | "skip"})]], set_up_cifar)
CIFAR100.init = signature.of("({" .. common .. [[, coarse = false, on_error = "raise" | "skip"})]], set_up_cifar)

-- ---- random pixels

--- data.FakeData(…): Generates images of random pixels with random labels.
local FakeData = class.define("FakeData", dataset.Dataset)

FakeData.init = signature.of([[FakeData({size: natural = 1000, image_size: table = {3, 224, 224},
  num_classes: count = 10, transform: callable, target_transform: callable, random_offset: natural = 0,
  base: integer = 1})]], function(self, opts)
  signature.assign(self, opts)
  local bytes = #self.image_size == 3 and 1 or 0
  for _, n in ipairs(self.image_size) do
    bytes = type(n) == "number" and n >= 1 and n % 1 == 0 and bytes * n or 0
  end
  if bytes == 0 or bytes > 2 ^ 31 then
    options.must_be("FakeData", "image_size", "{channels, height, width}", self.image_size)
  end
  self.bytes = bytes
end)

function FakeData:len() return self.size end

function FakeData:get(i)
  local seed = self:index(i) + self.random_offset
  local image = core.draws(256, seed, self.bytes):sub_(1):to("uint8"):view(unpack(self.image_size))
  local label = core.draws(self.num_classes, seed + 2 ^ 40, 1):item() - 1 + self.base
  if not self.transform then image = image:to("float32"):div_(255) end
  return results_as_list.apply(self, "transform", image), results_as_list.apply(self, "target_transform", label)
end

return {MNIST = MNIST, FashionMNIST = FashionMNIST, CIFAR10 = CIFAR10, CIFAR100 = CIFAR100, FakeData = FakeData}
