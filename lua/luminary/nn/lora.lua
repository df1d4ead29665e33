--- Adapts frozen linear layers by products of low rank (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
--- Models", 2022), with the names of parameters of Hugging Face's peft.
local block_kinds = require "luminary.block_kinds"
local changes = require "luminary.base.weight_changes"
local core = require "luminary.core"
local layer = require "luminary.nn.define_layer"
local init = require "luminary.nn.initializers"
local lists = require "luminary.base.lists"
local load_module = require "luminary.base.load_module"
local options = require "luminary.base.options"
local parameter = require "luminary.nn.parameter"
local signature = require "luminary.base.signature"

local ops = core.ops
local lora = {}

--- nn.LoRALinear(…): Adds a trained product of low rank to a frozen linear layer.
local LoRALinear = layer.define("LoRALinear", nil, lora)

LoRALinear.init = signature.of([[LoRALinear(base_layer: module, rank: count, {alpha: positive = (rank),
  dtype: string})]], function(self, base, rank, o)
  self.in_features, self.out_features = base.in_features, base.out_features
  if not (self.in_features and base.weight) then
    options.must_be("LoRALinear", "base_layer", "a linear layer", base)
  end
  local weight, dtype = base.weight, changes.dtype("LoRALinear", o.dtype)
  self.base_layer, self.rank, self.scaling = base:requires_grad_(false), rank, (o.alpha or rank) / rank
  local how = {bias = false, dtype = dtype or weight:is_floating_point() and weight.dtype or nil,
    device = weight.device}
  local Linear = load_module("luminary.nn.linear").Linear
  self.lora_A, self.lora_B = Linear(self.in_features, rank, how), Linear(rank, self.out_features, how)
  init.zeros_(self.lora_B.weight)
end)

function LoRALinear:forward(x) return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling end

-- Fails if a layer cannot be merged into a kind.
local function check_merged(who, self, kind)
  local base = self.base_layer
  if not base.kind and not parameter.is(base.weight) then
    options.fail("%s: the weight of base_layer (%s) must be a parameter or blocks", who, base.__name)
  elseif block_kinds[kind] then
    options.divisible(who, "in_features", self.in_features, ("that of a %s block"):format(kind),
      block_kinds[kind].elements)
  else
    changes.dtype(who, kind)
  end
end

local function wide(t) return t.dtype == "float64" and t or t:float() end

--- Returns a new layer with the sum of both weights: blocks of `kind`, or of a dtype; by default as the base has it.
LoRALinear.merged = signature.of("LoRALinear:merged(kind: string?)", function(self, kind)
  local base = self.base_layer
  check_merged("LoRALinear:merged", self, kind)
  local transposed = base.weight_dims and base.weight_dims.output == 2
  return core.no_grad(function()
    local weight = base.kind and ops.expand_blocks(base.weight, base.kind) or wide(base.weight)
    if transposed then weight = weight:t() end
    weight = weight + ops.matmul(wide(self.lora_B.weight), wide(self.lora_A.weight)) * self.scaling
    kind = kind or base.kind
    if block_kinds[kind] then return load_module("luminary.nn.blocks").BlockLinear(weight, kind, base.bias) end
    if not base.kind then
      local copy = base:clone() -- other layers may share the weight
      copy.weight:copy_(transposed and weight:t() or weight)
      return kind and copy:to(kind) or copy
    end
    local new = load_module("luminary.nn.linear").Linear(self.in_features, self.out_features, {bias = false})
    new.weight:copy_(weight)
    new.bias = base.bias
    return new:to(kind)
  end)
end)

layer.prints(LoRALinear, "in_features out_features rank scaling")

--- Freezes a net and puts nn.LoRALinear around its linear layers with these names. Returns the net.
lora.add_lora = signature.of([[add_lora(net: module, rank: count, {targets: string[], alpha: positive = (rank),
  dtype: string})]], function(net, rank, o)
  local found, targets, adapters = {}, o.targets or {"q_proj", "v_proj", "qkv_proj", "c_attn"}, {}
  changes.dtype("add_lora", o.dtype)
  for path, module in net:named_modules {remove_duplicate = false} do
    if path ~= "" and module.in_features and lists.index_of(targets, path:match "[^.]*$") then
      if module:is(LoRALinear) then
        options.fail("add_lora: '%s' has an adapter; merge it by nn.utils.merge_lora first", path)
      end
      found[path] = module.weight and module
    end
  end
  if not next(found) then
    options.fail("add_lora: no linear layer is named '%s'", table.concat(targets, "' or '"))
  end
  net:requires_grad_(false)
  for path, module in lists.sorted_pairs(found) do
    adapters[module] = adapters[module] or LoRALinear(module, rank, {alpha = o.alpha, dtype = o.dtype})
    net:set_submodule(path, adapters[module])
  end
  return net
end)

--- Replaces each nn.LoRALinear of a net by its merged(kind). Returns the net, or the new layer if the net is one.
lora.merge_lora = signature.of("merge_lora(net: module, kind: string?)", function(net, kind)
  if net:is(LoRALinear) then return net:merged(kind) end
  local found, merged = {}, {}
  for path, module in net:named_modules {remove_duplicate = false} do
    found[path] = module:is(LoRALinear) and module or nil
    if found[path] then check_merged("merge_lora: " .. path, module, kind) end
  end
  for path, module in lists.sorted_pairs(found) do
    merged[module] = merged[module] or module:merged(kind)
    net:set_submodule(path, merged[module])
  end
  return net
end)

--- Returns the adapters' part of a net's state_dict.
lora.lora_state_dict = signature.of("lora_state_dict(net: module)", function(net)
  local out = {}
  for name, t in pairs(net:state_dict()) do out[name] = name:find "%.lora_[AB]%." and t or nil end
  return out
end)

return lora
