--- Stores weights as int8, a quarter of float32's bytes: products that are bound by reading the weight, as in
--- generation, are about 2.6 times as fast.
local core = require "luminary.core"
local load_module = require "luminary.base.load_module"
local layer = require "luminary.nn.define_layer"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local Module = require "luminary.nn.module"
local records = require "luminary.nn.module_fields"
local shapes = require "luminary.tensor.shapes"

local ops = core.ops
local int8 = {}

-- Quantizes a float weight [out, in] to int8, symmetric and per output channel. Returns it and each row's scale: its
-- largest magnitude / 127, or 1 for a row of zeros.
local function rounded(weight)
  local x = weight:detach():float()
  if x:numel() > 0 and not x:isfinite():all():item() then options.fail("Int8Linear: weight must be finite") end
  local largest = x:size(2) > 0 and ops.amax(ops.abs(x), 2) or ops.zeros({x:size(1)}, {device = x.device})
  local scale = ops.where(largest:gt(0), largest / 127, 1)
  return ops.clamp(ops.round(x / scale:unsqueeze(2)), -127, 127):to "int8", scale
end

--- nn.Int8Linear(…): An nn.Linear with a weight rounded to int8.
local Int8Linear = layer.define("Int8Linear", nil, int8)

Int8Linear.init = signature.of("Int8Linear(weight: tensor, bias: tensor?)", function(self, weight, bias)
  if weight.ndim ~= 2 or not weight:is_floating_point() then
    options.must_be("Int8Linear", "weight", "a floating tensor [out, in]", weight)
  end
  if bias then shapes.check("Int8Linear", "bias", bias, {weight:size(1)}) end
  local bytes, scale = rounded(weight:contiguous()) -- GPT-2's weights are transposed
  self.in_features, self.out_features = weight:size(2), weight:size(1)
  self:register_buffer("weight", bytes)
  self:register_buffer("scale", scale)
  if bias then self:register_buffer("bias", bias:detach():clone()) end
end)

function Int8Linear:forward(x)
  local weight, scale = self.weight, self.scale
  if x.is_cuda then
    return ops.linear(x, (weight * scale:unsqueeze(2)):to(x.dtype), self.bias and self.bias:to(x.dtype))
  end
  return ops.int8_linear(x, weight, scale, self.bias)
end

layer.prints(Int8Linear, "in_features out_features bias")

local hooks = {"hooks", "pre_hooks", "backward_hooks"}

-- Returns module:to_int8() or module:to_blocks(kind) after checking it; errors name the path.
local function replacement(module, path, method, kind)
  records.check_sized("quantize: " .. path, module)
  if records.of(module).parallel then
    options.fail("quantize: %s: nn.parallel.parallelize has divided it; quantize full modules", path)
  end
  local ok, new = pcall(module[method], module, kind)
  if not ok and type(new) == "string" then
    options.fail("quantize: %s: %s", path, options.without_position(new))
  elseif not ok then
    error(new, 0)
  elseif not Module.is_module(new) then
    options.must_be("quantize: " .. path, ("%s:%s()"):format(module.__name, method), "a module or self", new)
  end
  return new
end

--- Replaces the linear layers of a net by layers with int8 weights, or these and embeddings by layers with quantized
--- blocks of a kind, and returns it.
int8.quantize = signature.of("quantize(net: module, kind: string?)", function(net, kind)
  local method = kind and "to_blocks" or "to_int8"
  if kind then load_module("luminary.nn.block_weights").kind_of("quantize", kind) end
  local replaced, changes = {}, {}
  local walk
  local function walk_children(module, path)
    for name, child in module:named_children() do
      local other = walk(child, (path and path .. "." or "") .. name)
      if other ~= child then
        changes[module] = changes[module] or {}
        changes[module][name] = other
      end
    end
  end
  function walk(module, path)
    if replaced[module] then return replaced[module] end
    replaced[module] = module
    if not module.keeps_float then walk_children(module, path) end
    if type(module[method]) ~= "function" then return module end
    local new = replacement(module, path or module.__name, method, kind)
    replaced[module] = new
    if new == module then walk_children(module, path) end -- children that to_int8 set
    return new
  end
  return core.no_grad(function()
    local new = walk(net)
    for module, others in pairs(changes) do records.replace_children(module, others) end
    for old, other in pairs(replaced) do
      for _, name in ipairs(old ~= other and hooks or {}) do records.of(other)[name] = records.of(old)[name] end
    end
    return new
  end)
end)

return int8
