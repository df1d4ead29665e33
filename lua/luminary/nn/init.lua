--- nn: Modules, layers and losses of neural networks.
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local signature = require "luminary.base.signature"

local nn = {
  Module = require "luminary.nn.module",
  Parameter = signature.of("Parameter(t: tensor, requires_grad = true)", parameter.new),
  is_parameter = parameter.is,
  functional = require "luminary.nn.functional",
  init = require "luminary.nn.initializers",
}

for _, family in ipairs {
  "containers", "module_dict", "linear", "embedding", "convolution", "norm", "pooling", "activation", "loss", "padding",
  "shuffle_flatten_dropout", "upsample_fold",
} do
  for name, class in pairs(require("luminary.nn." .. family)) do nn[name] = class end
end

local later = {
  utils = {"nn.utils"}, parallel = {"nn.parallel"}, DataParallel = {"nn.parallel.data_parallel", "DataParallel"},
  SyncBatchNorm = {"nn.parallel.sync_batch_norm"}, KVCache = {"nn.kv_cache"},
  SinusoidalPositions = {"nn.positional_encoding", "SinusoidalPositions"},
  RotaryPositionalEmbeddings = {"nn.positional_encoding", "RotaryPositionalEmbeddings"},
  LazyLinear = {"nn.lazy", "LazyLinear"},
  Int8Linear = {"nn.int8", "Int8Linear"},
}
for _, name in ipairs {
  "MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer", "TransformerEncoder",
  "TransformerDecoder", "Transformer",
} do
  later[name] = {"nn.attention", name}
end
for _, name in ipairs {"Conv", "ConvTranspose", "BatchNorm", "InstanceNorm"} do
  for n = 1, 3 do
    local lazy = ("Lazy%s%dd"):format(name, n)
    later[lazy] = {"nn.lazy", lazy}
  end
end
for _, name in ipairs {"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"} do
  later[name] = {"nn.recurrent", name}
end

return options.strict("nn", nn, later)
