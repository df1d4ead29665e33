--- The data sets that come as IDX files.
local core = require "luminary.core"
local class = require "luminary.class"
local options = require "luminary.options"
local Dataset = require("luminary.data.dataset").Dataset
local fail = options.fail

--- data.MNIST([{root, train = true, base = 1, transform, target_transform}]): handwritten digits, 28 x 28 images as
--- float32 [1, 28, 28] in [0, 1] and a label, which counts from 1 (base = 0: as in the file). Reads the four IDX files,
--- gzipped or plain, from `root`, $LUMINARY_DATA or /usr/share/datasets.
local MNIST = class.define("MNIST", Dataset)
MNIST.folders = {"", "/mnist", "/MNIST/raw", "/MNIST"}
MNIST.remedy = "put the four IDX files (train-images-idx3-ubyte.gz, …) in one of them, or name their folder by root"
MNIST.classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}

--- data.FashionMNIST([{root, train = true, base = 1, transform, target_transform}]): pictures of clothes in ten
--- classes, read and given as data.MNIST's.
local FashionMNIST = class.define("FashionMNIST", MNIST)
FashionMNIST.folders = {"", "/fashion-mnist", "/FashionMNIST/raw", "/FashionMNIST"}
FashionMNIST.remedy = "install Debian's dataset-fashion-mnist, or name the folder of the four IDX files by root"
FashionMNIST.classes = {
  "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
}

-- The path of one of the files in the first folder that has it. With a root of the user's own the other
-- places are not looked at.
local function find(set, root, name)
  local roots = root and {root} or {}
  if not root then
    roots[1] = core.getenv("LUMINARY_DATA")
    roots[#roots + 1] = "/usr/share/datasets"
  end
  local looked = {}
  for _, base in ipairs(roots) do
    -- A bare system folder may hold another set's files under the same names.
    for i = base == "/usr/share/datasets" and 2 or 1, #set.folders do
      local folder = base:gsub("(.)/+$", "%1") .. set.folders[i]
      for _, ending in ipairs {"", ".gz"} do
        local path = folder .. "/" .. name .. ending
        if core.file_kind(path) then return path end
      end
      looked[#looked + 1] = folder
    end
  end
  fail("%s: no %s (nor .gz) in any of\n  %s\n%s", set.__name, name, table.concat(looked, "\n  "), set.remedy)
end

function MNIST:init(opts)
  opts = options.check(self.__name, opts, {
    root = {"string"}, train = {"boolean", true}, base = {"integer", 1}, transform = {"function"},
    target_transform = {"function"},
  }, "root")
  local which = opts.train and "train" or "t10k"
  local images_path = find(self, opts.root, which .. "-images-idx3-ubyte")
  local labels_path = find(self, opts.root, which .. "-labels-idx1-ubyte")
  local images, labels = core.read_idx(images_path), core.read_idx(labels_path)
  if images.ndim ~= 3 then fail("%s: %s holds %s, not images", self.__name, images_path, options.describe(images)) end
  if labels.ndim ~= 1 or labels.shape[1] ~= images.shape[1] then
    fail("%s: %s has labels %s for images %s", self.__name, labels_path, options.describe(labels),
      options.describe(images))
  end
  self.images = core.keep(images:unsqueeze(2)) -- [N, 1, 28, 28] uint8
  self.labels = core.keep(labels:to("int64"):add_(opts.base))
  self.train, self.transform, self.target_transform = opts.train, opts.transform, opts.target_transform
  if not (opts.transform or opts.target_transform) then self.get_batch = self.gather end
end

function MNIST:len() return self.labels.shape[1] end

function MNIST:get(i)
  i = self:index(i)
  local image, label = self:gather(core.tensor({i}, {dtype = "int64"}))
  image, label = image:select(1, 1), label:item()
  if self.transform then image = self.transform(image) end
  if self.target_transform then label = self.target_transform(label) end
  return image, label
end

--- The samples of a 1-d int64 tensor of numbers: images [N, 1, 28, 28] and labels [N].
function MNIST:gather(index)
  return core.gather_rows(self.images, index, {dtype = "float32", scale = 1 / 255}),
    core.gather_rows(self.labels, index)
end

return {MNIST = MNIST, FashionMNIST = FashionMNIST}
