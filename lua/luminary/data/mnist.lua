--- Reads the data sets that consist of IDX files.
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local idx = require "luminary.file_formats.idx"
local Images = require "luminary.data.images_in_memory"
local records = require "luminary.data.files_and_bad_records"
local fail = options.fail

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

MNIST.init = signature.of("({" .. Images.options .. "})", function(self, opts)
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

return {MNIST = MNIST, FashionMNIST = FashionMNIST}
