--- Ops of nn.functional whose options have another order there, or which have an option inplace: F.relu(x, true),
--- F.huber_loss(x, target, "sum", 0.5). As methods and functions of lm they are the ops themselves.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"

local ops = core.ops
local F = {}

-- Returns the defaults of an op's options, from its help.
local function defaults_of(op)
  local defaults = {}
  for name, value in core.help(op):match("%b()"):gmatch "([%w_]+) = ([^,}%)]+)" do defaults[name] = value end
  return defaults
end

-- name: the function's name, and the op's unless `op` is set. leading: arguments before the options; order: the options
-- in PyTorch's order.
local function add(name, leading, order, op)
  local names, defaults, rows = {}, defaults_of(op or name), {}
  local call, in_place = ops[op or name], rawget(ops, name .. "_")
  in_place = in_place or function(x, ...) return ops.copy_(x, call(x, ...)) end
  for word in leading:gmatch "%S+" do names[#names + 1] = word end
  for word in order:gmatch "%S+" do
    local known = defaults[word]
    if known then rows[#rows + 1] = {word, "any", says = known ~= "nil" and known or nil} end
  end
  if order:find "inplace" then rows[#rows + 1] = {"inplace", "boolean", false} end
  rows[#rows + 1], rows[#rows + 2] = {"size_average", lacks = true}, {"reduce", lacks = true}
  rows = arguments.in_order(order, rows)
  for i = #rows, 1, -1 do -- those two are not everywhere
    if not order:find(rows[i][1], 1, true) then table.remove(rows, i) end
  end
  local n = #names
  local with_options = arguments.of_names(name, names, rows, function(...)
    local opts = select(n + 1, ...)
    if not opts.inplace then
      opts.inplace = nil
      return call(...)
    end
    opts.inplace = nil
    return in_place(...)
  end)
  F[name] = arguments.note(function(...)
    if select("#", ...) <= n then return call(...) end
    return with_options(...)
  end, names, rows)
end

for _, name in ipairs {"relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"} do
  add(name, "x", "inplace")
end
for _, name in ipairs {"elu", "celu"} do add(name, "x", "alpha inplace") end
add("leaky_relu", "x", "negative_slope inplace")
add("hardtanh", "x", "min_val max_val inplace")
add("threshold", "x threshold value", "inplace")
add("dropout", "x", "p training inplace")
add("gelu", "x", "approximate")
add("scaled_dot_product_attention", "query key value", "attn_mask dropout_p is_causal scale enable_gqa")

local mean = "size_average reduce reduction"
add("mse_loss", "x target", mean)
add("l1_loss", "x target", mean)
add("smooth_l1_loss", "x target", mean .. " beta")
add("huber_loss", "x target", "reduction delta")
add("kl_div", "x target", mean .. " log_target")
add("soft_margin_loss", "x target", mean)
add("binary_cross_entropy", "x target", "weight " .. mean)
add("binary_cross_entropy_with_logits", "x target", "weight " .. mean .. " pos_weight", "bce_with_logits")
--- F.binary_cross_entropy_with_logits(…): Computes the binary cross entropy between logits and targets.

add("nll_loss", "x target", "weight size_average ignore_index reduce reduction")
add("cross_entropy", "x target", "weight size_average ignore_index reduce reduction label_smoothing")
add("poisson_nll_loss", "x target", "log_input full size_average eps reduce reduction")
add("hinge_embedding_loss", "x target", "margin " .. mean)
add("margin_ranking_loss", "x1 x2 target", "margin " .. mean)
add("cosine_embedding_loss", "x1 x2 target", "margin " .. mean)
add("triplet_margin_loss", "anchor positive negative", "margin p eps swap " .. mean)
add("multi_margin_loss", "x target", "p margin weight " .. mean)
add("multilabel_soft_margin_loss", "x target", "weight " .. mean)

return F
