--- Adds Torch7's names to Luminary's own libraries, with their help pages: layers to nn, feval functions and tools to
--- optim, CmdLine to lm, methods to modules. Errors about unknown Torch7 names suggest Luminary's.
local lm = require "luminary"
local core = require "luminary.core"
local fail = require("luminary.base.options").fail
local Module, Timer = require "luminary.nn.module", require "luminary.timer"
local Numbered = require("luminary.nn.containers").Sequential.super
local unknown = require "luminary.help.pytorch_names"
local ops = core.ops

local function add(library, names)
  for name, value in pairs(names) do library[name] = value end
end

add(lm.nn, require("luminary.torch7.shared_layers").classes)
add(lm.optim, require "luminary.torch7.feval_optimizers")
add(lm.optim, {
  ConfusionMatrix = require "luminary.torch7.confusion_matrix", Logger = require "luminary.torch7.logger",
})
lm.CmdLine = require "luminary.torch7.cmd_line"

-- ---- methods of modules, containers and timers

--- Adds a module at the end, as append does.
function Numbered:add(module) return self:append(module) end

--- Returns net[i].
function Numbered:get(i) return self[i] end

--- Sets evaluation mode, as eval does.
function Module:evaluate() return self:eval() end

--- Fills all gradients with zeros.
function Module:zeroGradParameters() self:zero_grad {set_to_none = false} end

--- Returns all parameters as one 1-d tensor and all gradients as another: x, dx = net:getParameters().
--- Afterwards the parameters and their .grad are views of the two, and zero_grad fills the gradients with zeros.
--- Parameters must have one dtype and device. Call it once, after the module was moved to its device; moving it later
--- does not move the two. net:share_memory() does.
function Module:getParameters()
  local params, n = self:parameters(), 0
  for i, p in ipairs(params) do
    if p.dtype ~= params[1].dtype or p.device ~= params[1].device then
      fail("%s:getParameters: all parameters must have the same dtype and device: parameter 1 is %s on %s, parameter "
        .. "%d is %s on %s", self.__name, params[1].dtype, params[1].device, i, p.dtype, p.device)
    end
    if p.device:find "^cpu" and p:is_shared() then
      fail("%s:getParameters: the parameters are in shared memory; call net:getParameters() before net:share_memory()",
        self.__name)
    end
    n = n + p:numel()
  end
  if n == 0 then fail("%s:getParameters: the module has no parameters", self.__name) end
  local like = {dtype = params[1].dtype, device = params[1].device}
  local flat, grads, first = ops.empty({n}, like), ops.zeros({n}, like), 1
  local vectors = {flat, grads}
  for _, p in ipairs(params) do
    local count, grad = p:numel(), p.grad
    local function part(of) return of:narrow(1, first, count):view(p.shape) end
    part(flat):copy_(p:detach())
    if grad then part(grads):copy_(grad:detach()) end
    p.grad = nil
    core.set_data(p, part(flat))
    p.grad = part(grads)
    core.set_field(p, "vectors", vectors)
    require("luminary.autograd.zero_gradients").has_vectors = true
    first = first + count
  end
  return core.keep(flat), core.keep(grads)
end

local by_backward = "loss:backward() computes all gradients"
for name, remedy in pairs {
  updateOutput = "net(x) calls forward", updateGradInput = by_backward, accGradParameters = by_backward,
  updateParameters = "optim.SGD(net:parameters(), {lr = 0.1}):step() does it",
  gradInput = "x.grad has it, where x requires grad", output = "net(x) returns it",
} do
  Module.__missing[name] = remedy
end

--- Begins a lap, as start does; does nothing while one runs.
function Timer:resume() return self.began and self or self:start() end

-- ---- names that errors suggest

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

require("luminary.help.pages").add(require("debug").getinfo(1, "S").source:match "^@(.*)/[^/]*$" .. "/help", {
  "torch7-nn", "torch7-optim", "torch7-tools",
})
