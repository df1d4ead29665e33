--- Adds Torch7's names to Luminary's own libraries, with their help pages: layers to nn, feval functions and tools to
--- optim, CmdLine to lm, methods to modules. Errors about unknown Torch7 names suggest Luminary's.
local lm = require "luminary"
local pages = require "luminary.help.pages"
local unknown = require "luminary.help.pytorch_names"

local function add(library, names)
  for name, value in pairs(names) do library[name] = value end
end

add(lm.nn, require("luminary.torch7.shared_layers").classes)
add(lm.optim, require "luminary.torch7.feval_optimizers")
add(lm.optim, {
  ConfusionMatrix = require "luminary.torch7.confusion_matrix", Logger = require "luminary.torch7.logger",
})
lm.CmdLine = require "luminary.torch7.cmd_line"
require "luminary.torch7.module_methods"

local in_loops = "ops work on whole tensors; x:totable() is there for loops"
for library, text in pairs {
  tensors = [[cmul=mul cdiv=div cadd=add csub=sub cpow=pow cmax=maximum cmin=minimum nElement=numel nDimension=dim
    maskedFill=masked_fill_ repeatTensor=repeat_tensor]],
  luminary = [[cmul=mul cdiv=div manualSeed=manual_seed setnumthreads=set_num_threads getnumthreads=get_num_threads
    setdefaulttensortype=set_default_dtype isTensor=is_tensor cutorch=cuda]],
  nn = [[SpatialConvolution=Conv2d SpatialConvolutionMM=Conv2d SpatialMaxPooling=MaxPool2d
    SpatialAveragePooling=AvgPool2d SpatialBatchNormalization=BatchNorm2d BatchNormalization=BatchNorm1d
    VolumetricBatchNormalization=BatchNorm3d SpatialAdaptiveAveragePooling=AdaptiveAvgPool2d
    ClassNLLCriterion=NLLLoss CrossEntropyCriterion=CrossEntropyLoss MSECriterion=MSELoss LookupTable=Embedding
    BCECriterion=BCELoss LogSoftMax=LogSoftmax SoftMax=Softmax SoftPlus=Softplus Container=Module
    DataParallelTable=DataParallel]],
  cuda = [[getDeviceCount=device_count setDevice=set_device getDevice=current_device getMemoryUsage=mem_get_info
    manualSeedAll=manual_seed_all]],
} do
  for theirs, ours in text:gmatch "(%S+)=(%S+)" do unknown[library][theirs] = ours end
end
add(unknown.tensors, {apply = in_loops, map = in_loops})
unknown.luminary.class = "nn.Module:extend(\"Name\") makes a class"
for name in ("gModule AbsCriterion MarginCriterion TemporalConvolution SpatialFullConvolution SpatialZeroPadding")
  :gmatch "%S+" do
  unknown.nn[name] = false
end

pages.add(require("debug").getinfo(1, "S").source:match "^@(.*)/[^/]*$" .. "/help", {
  "torch7-nn", "torch7-optim", "torch7-tools",
})
