--- Defines losses that contain linear layers: LinearCrossEntropyLoss, AdaptiveLogSoftmaxWithLoss.
local core = require "luminary.core"
local lists = require "luminary.base.lists"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local containers = require "luminary.nn.containers"
local layer = require "luminary.nn.define_layer"
local F = require "luminary.nn.functional"
local Linear = require("luminary.nn.linear").Linear
local printed = require "luminary.nn.print_values"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail
local losses = {}

--- nn.LinearCrossEntropyLoss(…): Computes the cross entropy between a linear transformation of inputs and targets.
local LinearCrossEntropyLoss = layer.define("LinearCrossEntropyLoss", nil, losses)

LinearCrossEntropyLoss.init = signature.of([[(in_features: count, num_classes: count, {*, out_features: count[]?,
  bias = false, device, dtype: string, reduction = "mean" | "sum" | "none", weight: tensor?,
  ignore_index: integer = -100, label_smoothing: probability = 0, options: lacks,
  chunk_size: count?})]], function(self, in_features, num_classes, o)
  local width = num_classes * lists.product(o.out_features or {})
  self.num_classes, self.out_features = num_classes, lists.slice(o.out_features or {})
  for _, name in ipairs {"reduction", "ignore_index", "label_smoothing", "chunk_size"} do self[name] = o[name] end
  if o.weight then self:register_buffer("weight", shapes.check(self.__name, "weight", o.weight, {num_classes})) end
  self.linear = Linear(in_features, width, {bias = o.bias, device = o.device, dtype = o.dtype})
end)

function LinearCrossEntropyLoss:forward(input, target)
  local linear, shape = self.linear, {self.num_classes, unpack(self.out_features)}
  local bias = linear.bias and linear.bias:reshape(shape)
  shape[#shape + 1] = linear.in_features
  return F.linear_cross_entropy(input, linear.weight:reshape(shape), target, {
    linear_bias = bias, weight = self.weight, reduction = self.reduction, ignore_index = self.ignore_index,
    label_smoothing = self.label_smoothing, chunk_size = self.chunk_size,
  })
end

function LinearCrossEntropyLoss:extra_repr()
  return ("in_features=%d, num_classes=%d, out_features=%s, bias=%s, reduction=%s"):format(self.linear.in_features,
    self.num_classes, printed.tuple(self.out_features), printed.bool(self.linear.bias ~= nil), self.reduction)
end

--- nn.AdaptiveLogSoftmaxWithLoss(…): Computes log-probabilities of many classes, with rare classes in clusters.
local Adaptive = layer.define("AdaptiveLogSoftmaxWithLoss", nil, losses)

Adaptive.init = signature.of([[(in_features: count, n_classes: count, cutoffs: count[], {div_value = 4,
  head_bias = false, device, dtype: string})]], function(self, in_features, n_classes, cutoffs, o)
  self.cutoffs, self.in_features, self.n_classes = lists.slice(cutoffs), in_features, n_classes
  self.div_value, self.head_bias = o.div_value, o.head_bias
  table.insert(self.cutoffs, n_classes)
  if #cutoffs == 0 then fail("%s: cutoffs must have at least one integer, got an empty list", self.__name) end
  for i, n in ipairs(cutoffs) do
    local last = cutoffs[i - 1]
    local bound = n >= n_classes and ("below n_classes (%d)"):format(n_classes)
      or last and n <= last and ("above cutoffs[%d] (%d)"):format(i - 1, last)
    if bound then options.must_be(self.__name, ("cutoffs[%d]"):format(i), bound, n) end
  end
  self.shortlist_size, self.n_clusters = cutoffs[1], #cutoffs
  local how = {bias = false, device = o.device, dtype = o.dtype}
  self.head = Linear(in_features, cutoffs[1] + #cutoffs, {bias = o.head_bias, device = o.device, dtype = o.dtype})
  self.tail = containers.ModuleList()
  for i = 1, #cutoffs do
    local width = math.floor(in_features / o.div_value ^ i)
    if width < 1 then
      fail("%s: in_features / div_value^%d must be at least 1, got %d / %g^%d = %.3g", self.__name, i, in_features,
        o.div_value, i, in_features / o.div_value ^ i)
    end
    self.tail[i] = containers.Sequential(Linear(in_features, width, how),
      Linear(width, self.cutoffs[i + 1] - self.cutoffs[i], how))
  end
end)

--- Draws the parameters again, as at construction.
function Adaptive:reset_parameters()
  for _, module in ipairs(self:modules()) do
    if module:is(Linear) then module:reset_parameters() end
  end
end

local function log_head(self, x) return ops.log_softmax(self.head(x), x.ndim) end

-- Returns two values: the log-probability of each target, and the mean of their negatives.
function Adaptive:forward(input, target)
  if options.arg(self.__name, "input", input, "tensor").shape[-1] ~= self.in_features then
    options.wrong_shape(self.__name, "input", input, "[..., " .. self.in_features .. "]")
  end
  if options.arg(self.__name, "target", target, "tensor").ndim ~= input.ndim - 1 or input.ndim > 2
    or input.ndim == 2 and target.shape[1] ~= input.shape[1] then
    options.wrong_shape(self.__name, "target", target, input.ndim == 2 and {input.shape[1]} or {})
  end
  local x, labels = input:reshape(-1, self.in_features), target:reshape(-1)
  if labels:numel() > 0 then
    local least, most = labels:min():item(), labels:max():item()
    if least < 1 or most > self.n_classes then
      options.must_be(self.__name, "target", ("classes from 1 to %d (n_classes)"):format(self.n_classes),
        least < 1 and least or most)
    end
  end
  local output, at = ops.zeros({x.shape[1]}, {dtype = x.dtype, device = x.device}), labels:clone()
  for i = 1, self.n_clusters do
    local low, high = self.cutoffs[i], self.cutoffs[i + 1]
    local rows = ops.logical_and(labels:gt(low), labels:le(high)):nonzero():reshape(-1)
    if rows:numel() > 0 then
      local scores = ops.log_softmax(self.tail[i](x:index_select(1, rows)), 2)
      local own = scores:gather(2, labels:index_select(1, rows):unsqueeze(2) - low):squeeze(2)
      output = ops.index_add(output, 1, rows, own)
      at:index_fill_(1, rows, self.shortlist_size + i)
    end
  end
  output = output + log_head(self, x):gather(2, at:unsqueeze(2)):squeeze(2)
  return output:reshape(target.shape), -output:mean()
end

--- Returns the log-probabilities of all classes, [N, n_classes].
function Adaptive:log_prob(input)
  local head = log_head(self, input)
  local parts = {head:narrow(input.ndim, 1, self.shortlist_size)}
  for i = 1, self.n_clusters do
    local scores = ops.log_softmax(self.tail[i](input), input.ndim)
    parts[i + 1] = scores + head:narrow(input.ndim, self.shortlist_size + i, 1)
  end
  return ops.cat(parts, input.ndim)
end

--- Returns the class of the highest probability of each row.
function Adaptive:predict(input) return self:log_prob(input):argmax(input.ndim) end

return losses
