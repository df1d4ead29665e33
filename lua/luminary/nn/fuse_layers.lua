--- Fuses layers in sequence to one op, where hooks and subclasses cannot observe the intermediate result.
local core = require "luminary.core"
local activation = require "luminary.nn.activation"
local norm = require "luminary.nn.norm"
local pooling = require "luminary.nn.pooling"

local ops = core.ops
local fused = {}

-- Returns true if a call of the module only runs this class's forward: no hooks, and no override of forward.
local function only_calls(module, class)
  local record = getmetatable(module)
  local guarded = record.guarded
  local forward = guarded and (guarded.forward or record.class.forward) or record.values.forward
  return forward == class.forward and not record.hooks and not record.pre_hooks and not record.backward_hooks
end

local function run_bn(bn, x, addend, max)
  bn:check_input(x)
  local options = bn:next_options(x)
  options.max = max
  return ops.batch_norm_relu(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, addend, options)
end

--- Returns relu(bn(x) + addend); addend may be nil, and bn any module.
function fused.norm_relu(bn, x, addend)
  if only_calls(bn, norm.BatchNorm2d) and not (addend and addend.dtype ~= x.dtype) then return run_bn(bn, x, addend) end
  local y = bn(x)
  return ops.relu_(addend and y:add_(addend) or y)
end

-- Fuses ReLU and a pooling of its result. ReLU after max pooling has fewer elements; its gradient saves its input,
-- since the result may change in place. relu_avg_pool2d saves x, which a caller might change.
local function relu_pool(relu, pool, is_callers)
  if relu.inplace or not only_calls(relu, activation.ReLU) then return nil end
  local both
  if only_calls(pool, pooling.AvgPool2d) and not is_callers then
    both = function(x) return ops.relu_avg_pool2d(x, pool.kernel_size, pool.how) end
  elseif only_calls(pool, pooling.MaxPool2d) and not pool.return_indices then
    both = function(x)
      local largest = pool(x)
      return largest.requires_grad and ops.threshold(largest, 0, 0) or ops.relu_(largest)
    end
  end
  return both and function(x)
    return core.is_tensor(x) and x:is_floating_point() and both(x) or pool(relu(x))
  end
end

--- Returns a function of x for a call of two modules in sequence; nil if they are not one op. is_callers: true if x is
--- the sequence's argument, not the result of a module before.
function fused.pair(first, second, is_callers)
  local forward = getmetatable(first).class.forward
  if forward == activation.ReLU.forward then return relu_pool(first, second, is_callers) end
  if forward ~= norm.BatchNorm2d.forward or not only_calls(first, norm.BatchNorm2d) then return nil end
  local max = only_calls(second, activation.ReLU) and math.huge or only_calls(second, activation.ReLU6) and 6
  return max and function(x) return run_bn(first, x, nil, max) end
end

return fused
