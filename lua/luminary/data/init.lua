--- data: datasets, samplers, loaders.
local options = require "luminary.base.options"
local data = {DataLoader = require "luminary.data.loader"}

for _, name in ipairs {
  "Dataset", "TensorDataset", "Subset", "ConcatDataset", "IterableDataset", "random_split",
} do
  data[name] = require("luminary.data.dataset")[name]
end
for _, family in ipairs {"sampler", "mnist", "cifar", "image_folder", "webdataset", "tokens", "csv", "jsonl", "fake"} do
  for name, class in pairs(require("luminary.data." .. family)) do data[name] = class end
end

for _, name in ipairs {"get_worker_info", "default_collate"} do
  data[name] = require("luminary.data.make_batch")[name]
end

return options.strict("data", data)
