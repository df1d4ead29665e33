--- data: Provides datasets, samplers and data loaders.
local options = require "luminary.base.options"
local data = {DataLoader = require "luminary.data.loader"}

for _, name in ipairs {
  "Dataset", "TensorDataset", "Subset", "ConcatDataset", "IterableDataset", "random_split",
} do
  data[name] = require("luminary.data.dataset")[name]
end
for name, class in pairs(require "luminary.data.sampler") do data[name] = class end
for _, name in ipairs {"get_worker_info", "default_collate"} do
  data[name] = require("luminary.data.make_batch")[name]
end

local later = {}
for file, names in pairs {
  mnist = "MNIST FashionMNIST", cifar = "CIFAR10 CIFAR100", image_folder = "ImageFolder DatasetFolder",
  webdataset = "WebDataset", tokens = "TokenDataset", csv = "CSVDataset", jsonl = "JSONLinesDataset",
  fake_data = "FakeData",
} do
  for name in names:gmatch "%S+" do later[name] = {"data." .. file, name} end
end

return options.strict("data", data, later)
