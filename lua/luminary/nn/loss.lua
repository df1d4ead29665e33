--- Losses as modules, and distances. Targets that are classes count from 1.
local core = require "luminary.core"
local arguments = require "luminary.base.arguments"
local layer = require "luminary.nn.define_layer"
local F = require "luminary.nn.functional"

local ops = core.ops
local list, entry = layer.entries()

-- Defines a loss of an input and a target, or with `inputs` of three tensors. Its fields are the options of its op;
-- tensors among them (class weights) become buffers, so that they move with the module. PyTorch's deprecated arguments
-- size_average and reduce are before reduction, or in the positions that `order` names.
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
  help = "Computes the negative log likelihood of target classes under log-probabilities.",
}

loss "MSELoss" {
  call = ops.mse_loss,
  help = "Computes the squared error between predictions and targets: (x - target)^2.",
}

loss "BCEWithLogitsLoss" {
  options = {{"weight", "tensor"}, {"pos_weight", "tensor"}}, call = ops.bce_with_logits,
  order = "weight size_average reduce reduction pos_weight",
  help = "Computes the binary cross entropy between logits and targets.",
}

loss "BCELoss" {
  options = {{"weight", "tensor"}}, call = ops.binary_cross_entropy,
  help = "Computes the binary cross entropy between probabilities and targets.",
}

loss "L1Loss" {
  call = ops.l1_loss,
  help = "Computes the absolute error between predictions and targets: |x - target|.",
}

loss "SmoothL1Loss" {
  options = {{"beta", "positive", 1}}, call = ops.smooth_l1_loss, order = "size_average reduce reduction beta",
  help = "Computes a squared error where it is below beta, and an absolute error elsewhere.",
}

loss "HuberLoss" {
  options = {{"delta", "positive", 1}}, call = ops.huber_loss, order = "reduction delta",
  help = "Computes the Huber loss: a squared error where it is below delta, and a scaled absolute error elsewhere.",
}

loss "KLDivLoss" {
  options = {{"log_target", "boolean", false}}, reductions = {"mean", "sum", "none", "batchmean"}, call = ops.kl_div,
  order = "size_average reduce reduction log_target",
  help = "Computes the Kullback-Leibler divergence loss of log-probabilities and target probabilities.",
}

loss "PoissonNLLLoss" {
  options = {{"log_input", "boolean", true}, {"full", "boolean", false}, {"eps", "positive", 1e-8}},
  call = ops.poisson_nll_loss, order = "log_input full size_average eps reduce reduction",
  help = "Computes the negative log likelihood of target counts under a Poisson distribution.",
}

loss "GaussianNLLLoss" {
  options = {{"full", "boolean", false}, {"eps", "positive", 1e-6}}, inputs = 3, call = ops.gaussian_nll_loss,
  order = "full eps reduction",
  help = "Computes the negative log likelihood of targets under a normal distribution.",
}

loss "SoftMarginLoss" {
  call = ops.soft_margin_loss,
  help = "Computes the logistic loss of two classes: log(1 + e^(-target * x)).",
}

loss "HingeEmbeddingLoss" {
  options = {{"margin", "number", 1}}, call = ops.hinge_embedding_loss,
  help = "Computes a loss of distances: x where target is 1, max(0, margin - x) where it is -1.",
}

loss "MarginRankingLoss" {
  options = {{"margin", "number", 0}}, inputs = 3, call = ops.margin_ranking_loss,
  help = "Computes a ranking loss of pairs of scores: max(0, -target * (x1 - x2) + margin).",
}

loss "CosineEmbeddingLoss" {
  options = {{"margin", "number", 0}}, inputs = 3, call = ops.cosine_embedding_loss,
  help = "Computes a loss of pairs of vectors from their cosine similarity.",
}

loss "TripletMarginLoss" {
  options = {{"margin", "number", 1}, {"p", "number", 2}, {"eps", "number", 1e-6}, {"swap", "boolean", false}},
  inputs = 3, call = ops.triplet_margin_loss,
  help = "Computes a triplet loss: max(0, d(anchor, positive) - d(anchor, negative) + margin).",
}

loss "TripletMarginWithDistanceLoss" {
  options = {{"distance_function", "callable"}, {"margin", "number", 1}, {"swap", "boolean", false}},
  order = "distance_function margin swap reduction", inputs = 3, call = F.triplet_margin_with_distance_loss,
  help = "Computes a triplet loss with a custom distance.",
}

loss "MultiMarginLoss" {
  options = {{"p", "count", 1}, {"margin", "number", 1}, {"weight", "tensor"}}, call = ops.multi_margin_loss,
  help = "Computes a multi-class hinge loss between scores and target classes.",
}

loss "MultiLabelMarginLoss" {
  call = F.multilabel_margin_loss,
  help = "Computes a multi-label hinge loss between scores and lists of target classes.",
}

loss "MultiLabelSoftMarginLoss" {
  options = {{"weight", "tensor"}}, call = ops.multilabel_soft_margin_loss,
  help = "Computes a multi-label loss: the binary cross entropy of logits, averaged over the classes.",
}

entry "CTCLoss" {
  takes = {
    {"blank", "count", 1}, {"reduction", {"mean", "sum", "none"}, "mean"}, {"zero_infinity", "boolean", false},
  },
  forward = function(self, log_probs, targets, input_lengths, target_lengths)
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)
  end,
  help = "Computes the connectionist temporal classification loss of sequences without alignment.",
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
