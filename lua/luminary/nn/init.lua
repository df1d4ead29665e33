--- nn: modules, layers, losses.
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"

local nn = {
  Module = require "luminary.nn.module",
  Parameter = options.exact("Parameter", parameter.new),
  is_parameter = parameter.is,
  functional = require "luminary.nn.functional",
  init = require "luminary.nn.initializers",
}

for _, family in ipairs {
  "containers", "tables", "dictionaries", "linear", "embedding_bag", "convolution", "norm", "pooling", "activation",
  "loss", "padding", "rearranging", "resampling", "shapes",
} do
  for name, class in pairs(require("luminary.nn." .. family)) do nn[name] = class end
end

return options.strict("nn", nn, {
  utils = {"nn.utils"}, parallel = {"nn.parallel"}, DataParallel = {"nn.parallel.data_parallel", "DataParallel"},
  SyncBatchNorm = {"nn.parallel.sync_batch_norm"},
})
