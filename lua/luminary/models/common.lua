--- What models share: how those for images are made, and how weights begin.
local options = require "luminary.base.options"
local nn = require "luminary.nn"
local build = require "luminary.models.build"

local common = {}

--- A network for images, make(options), with num_classes, options of its own, and those of every maker (build.lua).
function common.build(who, opts, spec, make)
  spec.num_classes = spec.num_classes or {"count", 1000}
  return build(who, opts, spec, make, "num_classes")
end

--- Weights of convolutions are drawn for ReLU by their outgoing size (He et al. 2015), their biases are 0; linear
--- layers are drawn with standard deviation `std`, or stay as they are.
function common.draw(net, std)
  net:apply(function(m)
    if m:is(nn.Conv2d) then
      nn.init.kaiming_normal_(m.weight, {mode = "fan_out", nonlinearity = "relu"})
      if m.bias then nn.init.zeros_(m.bias) end
    elseif m:is(nn.Linear) and std then
      nn.init.normal_(m.weight, 0, std)
      nn.init.zeros_(m.bias)
    end
  end)
end

--- Tokens [N, L] of a model's call, checked.
function common.ids(who, ids)
  if options.arg(who, "ids", ids, "tensor").ndim ~= 2 then
    options.fail("%s: ids is %s; [N, L] wanted", who, options.describe(ids))
  end
  return ids
end

--- An nn.KVCache for each of so many layers, of weight's device and dtype.
function common.caches(layers, weight, batch_size, length, heads, head_dim)
  local list, like = {}, {device = weight.device, dtype = weight.dtype}
  for i = 1, layers do list[i] = nn.KVCache(batch_size, length, heads, head_dim, like) end
  return list
end

return common
