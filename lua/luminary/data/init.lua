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

return options.strict("data", data, options.at_first_use {
  ["data.image_sets"] = "MNIST FashionMNIST CIFAR10 CIFAR100 FakeData",
  ["data.image_folder"] = "ImageFolder DatasetFolder", ["data.webdataset"] = "WebDataset",
  ["data.tokens"] = "TokenDataset", ["data.csv"] = "CSVDataset", ["data.jsonl"] = "JSONLinesDataset",
})
