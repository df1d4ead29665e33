--- Defines the fields that Torch7's layers have from their constructor and this library's do not need, so that Torch7
--- can use what torch.save writes. An object's own fields are written as they are, except tensors in place of tables.
local class = require "luminary.torch7.class"
local lists = require "luminary.base.lists"
local storage = require "luminary.torch7.storage"
local tensor = require "luminary.torch7.tensor"
local Module = require "luminary.torch7.nn.module"
local nn = class.packages.nn

-- Values by letter, of n, a number or a field: zeros, also as a LongTensor, ByteTensor or LongStorage; n tensors.
local function zeros(self, n) return tensor.new(tensor.default, n):zero():type(self:type()) end
local makers = {
  T = zeros, G = function(self, n) return n == 0 and {} or {zeros(self, 0), zeros(self, 0)} end,
  L = function(_, n) return tensor.new("int64", n):zero() end, B = function(_, n) return tensor.new("uint8", n) end,
  S = function(_, n) return storage.new("int64", n):fill(0) end,
}
local constants, texts = {["true"] = true, ["false"] = false}, {}
for names, text in ([[
Bilinear CosineDistance CosineEmbeddingCriterion DotProduct Index L1HingeEmbeddingCriterion: gradInput=G2
MM MV MarginRankingCriterion: gradInput=G2; ConcatTable: output=G0; NarrowTable ParallelTable ZipTable: output=G0
CAddTable CAddTensorTable CDivTable CMulTable CSubTable FlattenTable ParallelCriterion SelectTable: gradInput=G0
CMaxTable CMinTable JoinTable MapTable MixtureTable NarrowTable PairwiseDistance ParallelTable: gradInput=G0
SparseLinear ZipTable ZipTableOneToMany: gradInput=G0; MapTable ZipTableOneToMany: output=G0; MapTable: module=modules.1
CMaxTable CMinTable: maxIdx=T0 minIdx=T0 mask=T0 maxVals=T0 minVals=T0 gradMaxVals=T0; ZipTableOneToMany: gradInputEl=T0
MixtureTable: backwardSetup=false batchSize=0 size=S0 size2=S0; JoinTable: size=S0; PairwiseDistance: diff=T0
IndexLinear: cumSumSizesCache=G0 gradWeightBuffer=T0 normalize=0 normalizedValues=T0 offset=-1 running=G0 sizesCache=G0
IndexLinear: valuesBuffer=T0 weightDecay=0; SparseLinear: sparseUpdate=0 weightDecay=0; Kmeans: clusterSampleCount=Tk
ClassNLLCriterion SpatialClassNLLCriterion: ignoreIndex=-100 output_tensor=T1 total_weight_tensor=T1 target=L1
MaskedSelect: _gradBuffer=T0 _gradMask=B0 _maskIndexBuffer=L0 _maskIndexBufferCPU=T0 _maskIndices=L0; ReLU: threshold=0
SpatialMaxPooling SpatialDilatedMaxPooling VolumetricMaxPooling VolumetricDilatedMaxPooling: indices=L0; ReLU: val=0
SpatialUpSamplingBilinear SpatialUpSamplingNearest: inputSize=S4 outputSize=S4; UpSampling: inputSize=S5 outputSize=S5
VolumetricFullConvolution: finput=T0 fgradInput=T0 ones=T0; SpatialFullConvolution: ones=T0; Concat: outputSize=S0
DepthConcat Padding: outputSize=S0; Euclidean WeightedEuclidean: fastBackward=true; Add: _ones=T1; CReLU: inplace=false
Clamp: inplace=false; ClassSimplexCriterion: _target=T1; Mean: sizeAverage=true; ModuleCriterion: castTarget=true
MultiLabelMarginCriterion: isTarget=T0; Sqrt: eps=0; TemporalRowConvolution: featFirst=false; WhiteNoise: noise=T0
WeightedMSECriterion: weight=weights
]]):gmatch "([^:;\n]+): ([^;\n]+)" do
  for name in names:gmatch "%S+" do texts["nn." .. name] = (texts["nn." .. name] or "") .. " " .. text end
end

-- Returns the modules that average over a neighborhood with a kernel, after those given.
local function averaging(self, kernel, net)
  local n, h, w = self.nInputPlane, kernel:size(1), kernel:size(kernel:dim())
  net:add(nn.SpatialZeroPadding((w - 1) / 2, (w - 1) / 2, (h - 1) / 2, (h - 1) / 2))
  local convolutions = kernel:dim() == 2 and {nn.SpatialConvolution(n, 1, w, h)}
    or {nn.SpatialConvolutionMap(nn.tables.oneToOne(n), h, 1), nn.SpatialConvolution(n, 1, 1, h)}
  for k, conv in ipairs(convolutions) do
    net:add(conv)
    conv.bias:zero()
    for i = 1, n do (k < #convolutions and conv.weight[i] or conv.weight[1][i]):copy(kernel) end
  end
  return net:add(nn.Replicate(n, 1, 3))
end
-- Returns the fields of a normalization by a kernel, which is divided by its sum times n.
local function normalization(self, n)
  local kernel = self.kernel:clone()
  kernel:div(kernel:sum() * n)
  return {kernel = kernel, coef = kernel.new(1, 1, 1):fill(0), divider = nn.CDivTable(), normalizer = nn.CDivTable(),
    meanestimator = averaging(self, kernel, nn.Sequential()), subtractor = nn.CSubTable(),
    stdestimator = averaging(self, kernel, nn.Sequential():add(nn.Square())):add(nn.Sqrt()),
    thresholder = nn.Threshold(self.threshold, self.thresval)}
end
local computed = {
  Bottle = function(o)
    return {dimDelta = o.nInputDim - o.nOutputDim, inShape = zeros(o, o.nInputDim), outShape = zeros(o, o.nOutputDim)}
  end,
  MapTable = function() return {sharedparams = {"weight", "bias", "gradWeight", "gradBias"}} end,
  PixelShuffle = function(o) return {upscaleFactorSquared = o.upscaleFactor ^ 2} end,
  Reshape = function(o) return {batchsize = storage.new("int64", {0, unpack(tensor.sizes_from(o.size))})} end,
  CReLU = function()
    return {modules = {nn.ConcatTable():add(nn.Identity()):add(nn.MulConstant(-1)), nn.JoinTable(2), nn.ReLU()}}
  end,
  MultiLabelSoftMarginCriterion = function() return {sigmoid = nn.Sigmoid()} end,
  SpatialLPPooling = function(o)
    local is_two = o.pnorm == 2
    return {modules = {is_two and nn.Square() or nn.Power(o.pnorm), nn.SpatialAveragePooling(o.kW, o.kH, o.dW, o.dH),
      nn.MulConstant(o.kW * o.kH), is_two and nn.Sqrt() or nn.Power(1 / o.pnorm)}}
  end,
  TanhShrink = function() return {tanh = nn.Tanh()} end,
  SpatialSubtractiveNormalization = function(o) return normalization(o, o.nInputPlane) end,
  SpatialDivisiveNormalization = function(o)
    return normalization(o, o.kernel:dim() == 1 and math.sqrt(o.nInputPlane) or o.nInputPlane)
  end,
  SpatialContrastiveNormalization = function(o)
    return {normalizer = nn.Sequential():add(nn.SpatialSubtractiveNormalization(o.nInputPlane, o.kernel:clone()))
      :add(nn.SpatialDivisiveNormalization(o.nInputPlane, o.kernel:clone(), o.threshold, o.thresval))}
  end,
}

--- Returns the fields of a module or criterion that torch.save writes. (net[i] is also in net.modules.)
function Module.fields_to_write(self)
  local out, name = lists.copy(self), class.typename(self)
  for i = #out, 1, -1 do out[i] = nil end
  local function put(field, v)
    if out[field] == nil or type(v) == "table" and tensor.is(out[field]) or field == "kernel" then
      out[field] = type(v) == "table" and nn.utils.recursiveType(v, self:type()) or v
    end
  end
  for field, text in (texts[name] or ""):gmatch "([%w_]+)=(%S+)" do
    local letter, n = text:match "^(%u)(.*)$"
    local v = letter and makers[letter](self, tonumber(n) or self[n]) or constants[text]
    if v == nil then v = tonumber(text) or text == "modules.1" and self.modules[1] or self[text] end
    put(field, v)
  end
  for field, v in pairs(computed[name:sub(4)] and computed[name:sub(4)](self) or {}) do put(field, v) end
  return out
end
