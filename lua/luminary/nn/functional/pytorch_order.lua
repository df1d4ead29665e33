--- Wraps ops whose options have another order in nn.functional, or an option inplace: F.relu(x, true), F.huber_loss(x,
--- target, "sum", 0.5). As methods and functions of lm they are the ops themselves.
local core = require "luminary.core"
local signature = require "luminary.base.signature"

local ops = core.ops
local F = {}

-- Returns an op's option as a signature has it; a nil `kind` means the op's own.
local function item_of(name, kind, options)
  if name == "inplace" then return "inplace = false" end
  local row = options[name]
  if not row then return name .. ": lacks" end -- size_average and reduce
  local default = row.default ~= "nil" and row.default
  if row.choices then
    kind, default = '"' .. table.concat(row.choices, '" | "') .. '"', ("%q"):format(default:gsub('"', ""))
  end
  kind = kind or row.type
  return ("%s: %s%s"):format(name, kind, default and " = " .. default:gsub("e%-0", "e-") or "")
end

-- Adds a function. name: its name, and the op's unless `op` is set. leading: the arguments before the options. order:
-- the options in PyTorch's order, each optionally with a narrower kind than the op's.
local function add_form(name, leading, order, op)
  local call, in_place, by_name, items = ops[op or name], rawget(ops, name .. "_"), {}, {}
  in_place = in_place or function(x, ...) return ops.copy_(x, call(x, ...)) end
  for _, row in ipairs(core.op_info(op or name).arguments) do by_name[row.name] = row end
  for item, kind in order:gmatch "([%w_]+):?(%a*)" do
    items[#items + 1] = item_of(item, kind ~= "" and kind, by_name)
  end
  local text = ("%s(%s, {%s})"):format(name, (leading:gsub(" ", ", ")), table.concat(items, ", "))
  local n = select(2, leading:gsub("%S+", ""))
  local with_options = signature.of(text, function(...)
    local opts = select(n + 1, ...)
    local f = opts.inplace and in_place or call
    opts.inplace = nil
    return f(...)
  end)
  F[name] = signature.note(text, function(...)
    if select("#", ...) <= n then return call(...) end
    return with_options(...)
  end)
end

for _, name in ipairs {"relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid"} do
  add_form(name, "x", "inplace")
end
for _, name in ipairs {"elu", "celu"} do add_form(name, "x", "alpha inplace") end
add_form("leaky_relu", "x", "negative_slope inplace")
add_form("hardtanh", "x", "min_val max_val inplace")
add_form("threshold", "x threshold value", "inplace")
add_form("dropout", "x", "p:probability training inplace")
add_form("gelu", "x", "approximate")
add_form("scaled_dot_product_attention", "query key value", "attn_mask dropout_p is_causal scale enable_gqa")

local mean = "size_average reduce reduction"
add_form("mse_loss", "x target", mean)
add_form("l1_loss", "x target", mean)
add_form("smooth_l1_loss", "x target", mean .. " beta:positive")
add_form("huber_loss", "x target", "reduction delta:positive")
add_form("kl_div", "x target", mean .. " log_target")
add_form("soft_margin_loss", "x target", mean)
add_form("binary_cross_entropy", "x target", "weight " .. mean)
add_form("binary_cross_entropy_with_logits", "x target", "weight " .. mean .. " pos_weight", "bce_with_logits")
--- F.binary_cross_entropy_with_logits(…): Computes the binary cross entropy between logits and targets.

add_form("nll_loss", "x target", "weight size_average ignore_index reduce reduction")
add_form("cross_entropy", "x target", "weight size_average ignore_index reduce reduction label_smoothing:probability")
add_form("poisson_nll_loss", "x target", "log_input full size_average eps:positive reduce reduction")
add_form("gaussian_nll_loss", "x target var", "full eps:positive reduction")
add_form("hinge_embedding_loss", "x target", "margin " .. mean)
add_form("margin_ranking_loss", "x1 x2 target", "margin " .. mean)
add_form("cosine_embedding_loss", "x1 x2 target", "margin " .. mean)
add_form("triplet_margin_loss", "anchor positive negative", "margin p eps swap " .. mean)
add_form("multi_margin_loss", "x target", "p:count margin weight " .. mean)
add_form("multilabel_soft_margin_loss", "x target", "weight " .. mean)

return F
