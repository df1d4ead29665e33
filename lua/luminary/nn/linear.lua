--- Layers that multiply by a weight: Linear, Conv2d, Embedding.
local core = require "luminary.core"
local options = require "luminary.base.options"
local layer = require "luminary.nn.define_layer"
local embedding = require("luminary.nn.functional.embedding").embedding
local init = require "luminary.nn.initializers"
local parameter = require "luminary.nn.parameter"
local printed = require "luminary.nn.print_values"

local ops, arg = core.ops, options.arg
local linear = {}

--- nn.Linear(in_features, out_features [, {bias = true, device, dtype}]): x [..., in] -> [..., out]
local Linear = layer.define("Linear")
linear.Linear = Linear

function Linear:init(in_features, out_features, opts)
  self.in_features = arg("Linear", "in_features", in_features, "count")
  self.out_features = arg("Linear", "out_features", out_features, "count")
  opts = layer.options("Linear", opts, {bias = {"boolean", true}}, "bias")
  self.weight = layer.parameter({out_features, in_features}, opts)
  if opts.bias then self.bias = layer.parameter({out_features}, opts) end
  self:reset_parameters()
end

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn anew.
function Linear:reset_parameters() init._layer(self.weight, self.bias) end

function Linear:forward(x) return ops.linear(x, self.weight, self.bias) end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features, self.out_features,
    printed.bool(self.bias))
end

--- nn.Conv2d(in_channels, out_channels, kernel_size [, {stride = 1, padding = 0, dilation = 1, groups = 1,
--- bias = true, padding_mode = "zeros", device, dtype}]): x [N, C, H, W]. Sizes are a number or a pair; padding may be
--- "valid" (none) or "same" (as much as keeps H and W, with stride 1). padding_mode says what stands in the padding:
--- "zeros", x mirrored ("reflect"), its edge ("replicate"), or its other side ("circular").
local Conv2d = layer.define("Conv2d")
linear.Conv2d = Conv2d

-- A padding as pad takes it: before and after the columns, then the rows.
local function around(padding, kernel_size, dilation)
  local list = {}
  for i = 2, 1, -1 do
    local before, after = padding[i], padding[i]
    if padding == "same" then
      local more = dilation[i] * (kernel_size[i] - 1)
      before, after = math.floor(more / 2), math.ceil(more / 2)
    elseif padding == "valid" then
      before, after = 0, 0
    end
    list[#list + 1], list[#list + 2] = before, after
  end
  return list
end

function Conv2d:init(in_channels, out_channels, kernel_size, opts)
  self.in_channels = arg("Conv2d", "in_channels", in_channels, "count")
  self.out_channels = arg("Conv2d", "out_channels", out_channels, "count")
  self.kernel_size = arg("Conv2d", "kernel_size", kernel_size, "pair")
  opts = layer.options("Conv2d", opts, {
    stride = {"pair", {1, 1}}, padding = {"padding", {0, 0}}, dilation = {"pair", {1, 1}}, groups = {"count", 1},
    bias = {"boolean", true}, padding_mode = {{"zeros", "reflect", "replicate", "circular"}, "zeros"},
  }, "stride")
  if opts.padding == "same" and (opts.stride[1] ~= 1 or opts.stride[2] ~= 1) then
    options.fail("Conv2d: padding = 'same' is for a stride of 1, and stride is %s", printed.tuple(opts.stride))
  end
  if in_channels % opts.groups ~= 0 or out_channels % opts.groups ~= 0 then
    options.fail("Conv2d: groups = %d has to divide in_channels = %d and out_channels = %d", opts.groups,
      in_channels, out_channels)
  end
  self.stride, self.padding, self.dilation, self.groups = opts.stride, opts.padding, opts.dilation, opts.groups
  self.how = {stride = opts.stride, padding = opts.padding, dilation = opts.dilation, groups = opts.groups}
  self.padding_mode = opts.padding_mode
  if opts.padding_mode ~= "zeros" then
    self.around = around(opts.padding, self.kernel_size, opts.dilation)
    self.how.padding = 0
  end
  self.weight = layer.parameter({out_channels, in_channels / opts.groups, self.kernel_size[1], self.kernel_size[2]},
    opts)
  if opts.bias then self.bias = layer.parameter({out_channels}, opts) end
  self:reset_parameters()
end

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn anew.
function Conv2d:reset_parameters() init._layer(self.weight, self.bias) end

function Conv2d:forward(x)
  if self.around then x = ops.pad(x, self.around, {mode = self.padding_mode}) end
  return ops.conv2d(x, self.weight, self.bias, self.how)
end

function Conv2d:extra_repr()
  local parts = {("%d, %d, kernel_size=%s, stride=%s"):format(self.in_channels, self.out_channels,
    printed.tuple(self.kernel_size), printed.tuple(self.stride))}
  local function add(name, value, default)
    if printed.number_or_tuple(value) ~= default then parts[#parts + 1] = name .. printed.number_or_tuple(value) end
  end
  add("padding=", self.padding, "(0, 0)")
  add("dilation=", self.dilation, "(1, 1)")
  add("groups=", self.groups, "1")
  if not self.bias then parts[#parts + 1] = "bias=False" end
  add("padding_mode=", self.padding_mode, "zeros")
  return table.concat(parts, ", ")
end

--- nn.Embedding(num_embeddings, embedding_dim [, {padding_idx, max_norm, norm_type = 2, scale_grad_by_freq = false,
--- device, dtype}]): rows of a table by index, which counts from 1. The row padding_idx starts as zeros and gets no
--- gradient. max_norm, norm_type and scale_grad_by_freq are those of F.embedding.
local Embedding = layer.define("Embedding")
linear.Embedding = Embedding

function Embedding:init(num_embeddings, embedding_dim, opts)
  self.num_embeddings = arg("Embedding", "num_embeddings", num_embeddings, "count")
  self.embedding_dim = arg("Embedding", "embedding_dim", embedding_dim, "count")
  opts = layer.options("Embedding", opts, {
    padding_idx = {"integer"}, max_norm = {"positive"}, norm_type = {"number", 2},
    scale_grad_by_freq = {"boolean", false}, sparse = {"boolean", false}, _weight = {"tensor"},
  }, "padding_idx")
  if opts.sparse then options.fail("Embedding: gradients are dense here; leave sparse out") end
  local pad = opts.padding_idx
  if pad then
    if pad == 0 or math.abs(pad) > num_embeddings then
      options.fail("Embedding: padding_idx %d is not among the %d rows, which count from 1", pad, num_embeddings)
    end
    self.padding_idx = pad < 0 and num_embeddings + pad + 1 or pad
  end
  self.max_norm, self.norm_type, self.scale_grad_by_freq = opts.max_norm, opts.norm_type, opts.scale_grad_by_freq
  self.how = {padding_idx = self.padding_idx or 0}
  if opts.max_norm or opts.scale_grad_by_freq then
    self.how.max_norm, self.how.norm_type = opts.max_norm, opts.norm_type
    self.how.scale_grad_by_freq = opts.scale_grad_by_freq
  end
  if opts._weight then
    self.weight = parameter.new(opts._weight)
  else
    self.weight = layer.parameter({num_embeddings, embedding_dim}, opts)
    self:reset_parameters()
  end
end

--- nn.Embedding.from_pretrained(weight [, {freeze = true, …}]): a layer over the rows of weight, which training leaves
--- as they are unless freeze is false; other options are nn.Embedding's.
function Embedding.from_pretrained(weight, opts)
  local who = "Embedding.from_pretrained"
  if arg(who, "weight", weight, "tensor").ndim ~= 2 then
    options.fail("%s: weight [num_embeddings, embedding_dim] wanted, got %s", who, options.describe(weight))
  end
  local own = {}
  for name, value in pairs(opts or {}) do own[name] = value end
  local freeze = own.freeze == nil or arg(who, "freeze", own.freeze, "boolean")
  own.freeze, own._weight = nil, weight
  local new = Embedding(weight.shape[1], weight.shape[2], own)
  new.weight:requires_grad_(not freeze)
  return new
end

--- Parameters (and running values) as when the layer was made; where they are drawn, drawn anew.
function Embedding:reset_parameters()
  init.normal_(self.weight)
  if self.padding_idx then
    core.no_grad(function() self.weight:select(1, self.padding_idx):zero_() end)
  end
end

function Embedding:forward(index)
  if self.how.norm_type then return embedding(index, self.weight, self.how) end
  return ops.embedding(index, self.weight, self.how)
end

function Embedding:extra_repr()
  local parts = {("%d, %d"):format(self.num_embeddings, self.embedding_dim)}
  if self.padding_idx then parts[#parts + 1] = "padding_idx=" .. self.padding_idx end
  if self.max_norm then parts[#parts + 1] = "max_norm=" .. printed.float(self.max_norm) end
  if self.norm_type ~= 2 then parts[#parts + 1] = "norm_type=" .. printed.float(self.norm_type) end
  if self.scale_grad_by_freq then parts[#parts + 1] = "scale_grad_by_freq=True" end
  return table.concat(parts, ", ")
end

return linear
