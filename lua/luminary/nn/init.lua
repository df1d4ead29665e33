--- nn: Defines modules, layers and losses of neural networks.
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local signature = require "luminary.base.signature"

local nn = {
  Module = require "luminary.nn.module",
  Parameter = signature.of("Parameter(t: tensor, requires_grad = true)", parameter.new),
  is_parameter = parameter.is,
}

-- Modules loaded at first use: most scripts use few, and loaded ones lengthen the start and each garbage collection.
local later = options.at_first_use({
  ["nn.containers"] = "ModuleList Sequential",
  ["nn.module_dict"] = "ModuleDict ParameterDict ParameterList",
  ["nn.linear"] = "Linear",
  ["nn.embedding"] = "Embedding EmbeddingBag",
  ["nn.convolution"] = "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
  ["nn.norm"] = "BatchNorm1d BatchNorm2d BatchNorm3d CrossMapLRN2d GroupNorm InstanceNorm1d InstanceNorm2d "
    .. "InstanceNorm3d LayerNorm LocalResponseNorm RMSNorm",
  ["nn.pooling"] = "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d AdaptiveMaxPool2d "
    .. "AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d FractionalMaxPool2d FractionalMaxPool3d LPPool1d LPPool2d "
    .. "LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d",
  ["nn.activation"] = "CELU Dropout ELU Flatten GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU "
    .. "LogSigmoid LogSoftmax Mish PReLU RReLU ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus "
    .. "Softshrink Softsign Tanh Tanhshrink Threshold",
  ["nn.loss"] = "BCELoss BCEWithLogitsLoss CTCLoss CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss "
    .. "GaussianNLLLoss HingeEmbeddingLoss HuberLoss KLDivLoss L1Loss MSELoss MarginRankingLoss MultiLabelMarginLoss "
    .. "MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss PairwiseDistance PoissonNLLLoss SmoothL1Loss SoftMarginLoss "
    .. "TripletMarginLoss TripletMarginWithDistanceLoss",
  ["nn.linear_losses"] = "AdaptiveLogSoftmaxWithLoss LinearCrossEntropyLoss",
  ["nn.rearrange"] = "AlphaDropout Bilinear ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d "
    .. "ConstantPad2d ConstantPad3d Dropout1d Dropout2d Dropout3d FeatureAlphaDropout Fold PixelShuffle PixelUnshuffle "
    .. "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d Unflatten "
    .. "Unfold Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d",
  ["nn.attention"] = "MultiheadAttention TransformerEncoderLayer TransformerDecoderLayer TransformerEncoder "
    .. "TransformerDecoder Transformer",
  ["nn.recurrent"] = "RNN LSTM GRU RNNCell LSTMCell GRUCell",
  ["nn.positional_encoding"] = "SinusoidalPositions RotaryPositionalEmbeddings",
  ["nn.parallel.data_parallel"] = "DataParallel",
  ["nn.int8"] = "Int8Linear", ["nn.blocks"] = "BlockLinear BlockEmbedding",
  ["nn.lora"] = "LoRALinear",
  ["nn.lazy"] = "LazyLinear LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d "
    .. "LazyConvTranspose3d LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyInstanceNorm1d LazyInstanceNorm2d "
    .. "LazyInstanceNorm3d",
}, {
  functional = {"nn.functional"}, init = {"nn.initializers"}, utils = {"nn.utils"}, parallel = {"nn.parallel"},
  SyncBatchNorm = {"nn.parallel.sync_batch_norm"}, MixtureOfExperts = {"nn.parallel.mixture_of_experts"},
  KVCache = {"nn.kv_cache"},
})

return options.strict("nn", nn, later)
