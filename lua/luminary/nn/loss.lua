--- Losses as modules, and distances. Targets that are classes count from 1.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local layer = require "luminary.nn.define_layer"
local F = require "luminary.nn.functional"

local ops = core.ops
local list, entry = layer.entries()

-- A loss of an input and a target, or with `inputs` three tensors, whose fields are its op's options. Tensors among
-- them (weights of classes) become buffers, so that they move with the module. Before its reduction PyTorch has two
-- arguments of old, size_average and reduce, or where `order` says.
local function loss(name)
  return function(row)
    local names, order = {}, row.order
    row.order = nil
    row.options = row.options or {}
    table.insert(row.options, {"reduction", row.reductions or {"mean", "sum", "none"}, "mean"})
    for _, option in ipairs(row.options) do names[#names + 1] = option[1] end
    if not order then order = table.concat(names, " "):gsub("reduction$", "size_average reduce reduction") end
    table.insert(row.options, {"size_average", lacks = true})
    table.insert(row.options, {"reduce", lacks = true})
    row.options = arguments.in_order(order, row.options)
    function row.made(self)
      for _, key in ipairs(names) do
        local value = self[key]
        if core.is_tensor(value) then
          self[key] = nil
          self:register_buffer(key, value)
        end
      end
    end
    local op = row.call
    local function how(self)
      local given = {}
      for _, key in ipairs(names) do given[key] = self[key] end
      return given
    end
    function row.forward(self, input, target) return op(input, target, how(self)) end
    if row.inputs == 3 then
      function row.forward(self, first, second, third) return op(first, second, third, how(self)) end
    end
    row.reductions = nil
    entry(name)(row)
  end
end

loss "CrossEntropyLoss" {
  options = {{"weight", "tensor"}, {"ignore_index", "integer", -100}, {"label_smoothing", "probability", 0}},
  order = "weight size_average ignore_index reduce reduction label_smoothing",
  call = ops.cross_entropy,
  help = "Computes the cross entropy between logits and targets, classes or probabilities",
}

loss "NLLLoss" {
  options = {{"weight", "tensor"}, {"ignore_index", "integer", -100}}, call = ops.nll_loss,
  order = "weight size_average ignore_index reduce reduction",
  help = "of log-probabilities and classes",
}

loss "MSELoss" {call = ops.mse_loss, help = "(input - target)^2"}

loss "BCEWithLogitsLoss" {
  options = {{"weight", "tensor"}, {"pos_weight", "tensor"}}, call = ops.bce_with_logits,
  order = "weight size_average reduce reduction pos_weight",
  help = "binary cross entropy of logits and targets from 0 to 1, of one shape",
}

loss "BCELoss" {
  options = {{"weight", "tensor"}}, call = ops.binary_cross_entropy,
  help = "of probabilities. An error under autocast on a GPU",
}

loss "L1Loss" {call = ops.l1_loss, help = "|input - target|"}

loss "SmoothL1Loss" {
  options = {{"beta", "positive", 1}}, call = ops.smooth_l1_loss, order = "size_average reduce reduction beta",
  help = "(input - target)^2 / (2 beta) below beta, |input - target| - beta / 2 above",
}

loss "HuberLoss" {
  options = {{"delta", "positive", 1}}, call = ops.huber_loss, order = "reduction delta",
  help = "(input - target)^2 / 2, above delta a line",
}

loss "KLDivLoss" {
  options = {{"log_target", "boolean", false}}, reductions = {"mean", "sum", "none", "batchmean"}, call = ops.kl_div,
  order = "size_average reduce reduction log_target",
  help = "of log-probabilities and probabilities, or their logarithms with log_target",
}

loss "PoissonNLLLoss" {
  options = {{"log_input", "boolean", true}, {"full", "boolean", false}, {"eps", "positive", 1e-8}},
  call = ops.poisson_nll_loss, order = "log_input full size_average eps reduce reduction",
  help = "of means, or their logarithms with log_input, and counts",
}

loss "GaussianNLLLoss" {
  options = {{"full", "boolean", false}, {"eps", "positive", 1e-6}}, inputs = 3, call = ops.gaussian_nll_loss,
  order = "full eps reduction",
  help = "forward(input, target, var): of means, targets and variances",
}

loss "SoftMarginLoss" {call = ops.soft_margin_loss, help = "log(1 + e^(-target * input)), of targets -1 and 1"}

loss "HingeEmbeddingLoss" {
  options = {{"margin", "number", 1}}, call = ops.hinge_embedding_loss,
  help = "of distances: themselves where the target is 1, what they lack to margin where it is -1",
}

loss "MarginRankingLoss" {
  options = {{"margin", "number", 0}}, inputs = 3, call = ops.margin_ranking_loss,
  help = "forward(x1, x2, target): what x1 lacks to be margin above x2 where target is 1, below where it is -1",
}

loss "CosineEmbeddingLoss" {
  options = {{"margin", "number", 0}}, inputs = 3, call = ops.cosine_embedding_loss,
  help = "forward(x1, x2, target): 1 - their cosine where target is 1, what it is above margin where it is -1",
}

loss "TripletMarginLoss" {
  options = {{"margin", "number", 1}, {"p", "number", 2}, {"eps", "number", 1e-6}, {"swap", "boolean", false}},
  inputs = 3, call = ops.triplet_margin_loss,
  help = "forward(anchor, positive, negative): what negatives lack to be margin farther from anchor than positives",
}

loss "TripletMarginWithDistanceLoss" {
  options = {{"distance_function", "callable"}, {"margin", "number", 1}, {"swap", "boolean", false}},
  order = "distance_function margin swap reduction", inputs = 3, call = F.triplet_margin_with_distance_loss,
  help = "TripletMarginLoss by a distance of one's own, distance_function(a, b)",
}

loss "MultiMarginLoss" {
  options = {{"p", "count", 1}, {"margin", "number", 1}, {"weight", "tensor"}}, call = ops.multi_margin_loss,
  help = "of scores [N, C] and classes: what the class's lacks to be margin above each other's",
}

loss "MultiLabelMarginLoss" {
  call = F.multilabel_margin_loss, help = "of scores [N, C] and each row's classes, from 1, which end with 0",
}

loss "MultiLabelSoftMarginLoss" {
  options = {{"weight", "tensor"}}, call = ops.multilabel_soft_margin_loss,
  help = "of logits [N, C] and targets from 0 to 1, the mean over the classes",
}

entry "CTCLoss" {
  takes = {
    {"blank", "count", 1}, {"reduction", {"mean", "sum", "none"}, "mean"}, {"zero_infinity", "boolean", false},
  },
  forward = function(self, log_probs, targets, input_lengths, target_lengths)
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)
  end,
  help = "forward(log_probs, targets, input_lengths, target_lengths): of sequences whose alignment is not known; see "
    .. "F.ctc_loss",
}

entry "CosineSimilarity" {
  takes = {{"dim", "dim", 2}, {"eps", "number", 1e-8}},
  forward = function(self, x1, x2) return ops.cosine_similarity(x1, x2, {dim = self.dim, eps = self.eps}) end,
  help = "Computes the cosine similarity of x1 and x2 along dim.",
}

entry "PairwiseDistance" {
  takes = {{"p", "number", 2}, {"eps", "number", 1e-6}, {"keepdim", "boolean", false}},
  forward = function(self, x1, x2)
    return ops.pairwise_distance(x1, x2, {p = self.p, eps = self.eps, keepdim = self.keepdim})
  end,
  help = "Computes the p-norm of x1 - x2 over the last dim.",
}

return layer.classes(list)
