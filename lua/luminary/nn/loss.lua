--- Defines losses as modules, and distances. Targets that are classes count from 1.
local core = require "luminary.core"
local options = require "luminary.base.options"
local signature = require "luminary.base.signature"
local layer = require "luminary.nn.define_layer"
local F = require "luminary.nn.functional"

local ops = core.ops
local list, entry = layer.entries()

-- Defines a loss with the options of a function of nn.functional as fields; tensors among them (class weights) become
-- buffers, so that they move with the module. `op` computes the loss.
local function loss(name, f, help, op)
  local before, options_text = options.signature(F[f]):match "(%b())":match "^(.*){(.*)}%)$"
  local text, call = ("%s({%s})"):format(name, options_text), op or ops[f]
  local function rows() return signature.parse(text).rows end
  local function how(self)
    local given = {}
    for _, row in ipairs(rows()) do given[row[1]] = self[row[1]] end
    return given
  end
  entry(text) {
    help = help,
    after_init = function(self)
      for _, row in ipairs(rows()) do
        local key, value = row[1], self[row[1]]
        if core.is_tensor(value) then
          self[key] = nil
          self:register_buffer(key, value)
        end
      end
    end,
    forward = select(2, before:gsub(",", "")) == 3
      and function(self, first, second, third) return call(first, second, third, how(self)) end
      or function(self, input, target) return call(input, target, how(self)) end,
  }
end

loss("CrossEntropyLoss", "cross_entropy",
  "Computes the cross entropy between logits and targets, classes or probabilities")
loss("NLLLoss", "nll_loss", "Computes the negative log likelihood of target classes under log-probabilities.")
loss("MSELoss", "mse_loss", "Computes the squared error between predictions and targets: (x - target)^2.")
loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits",
  "Computes the binary cross entropy between logits and targets.", ops.bce_with_logits)
loss("BCELoss", "binary_cross_entropy", "Computes the binary cross entropy between probabilities and targets.")
loss("L1Loss", "l1_loss", "Computes the absolute error between predictions and targets: |x - target|.")
loss("SmoothL1Loss", "smooth_l1_loss",
  "Computes a squared error where it is below beta, and an absolute error elsewhere.")
loss("HuberLoss", "huber_loss",
  "Computes the Huber loss: a squared error where it is below delta, and a scaled absolute error elsewhere.")
loss("KLDivLoss", "kl_div",
  "Computes the Kullback-Leibler divergence loss of log-probabilities and target probabilities.")
loss("PoissonNLLLoss", "poisson_nll_loss",
  "Computes the negative log likelihood of target counts under a Poisson distribution.")
loss("GaussianNLLLoss", "gaussian_nll_loss",
  "Computes the negative log likelihood of targets under a normal distribution.")
loss("SoftMarginLoss", "soft_margin_loss", "Computes the logistic loss of two classes: log(1 + e^(-target * x)).")
loss("HingeEmbeddingLoss", "hinge_embedding_loss",
  "Computes a loss of distances: x where target is 1, max(0, margin - x) where it is -1.")
loss("MarginRankingLoss", "margin_ranking_loss",
  "Computes a ranking loss of pairs of scores: max(0, -target * (x1 - x2) + margin).")
loss("CosineEmbeddingLoss", "cosine_embedding_loss",
  "Computes a loss of pairs of vectors from their cosine similarity.")
loss("TripletMarginLoss", "triplet_margin_loss",
  "Computes a triplet loss: max(0, d(anchor, positive) - d(anchor, negative) + margin).")
loss("TripletMarginWithDistanceLoss", "triplet_margin_with_distance_loss",
  "Computes a triplet loss with a custom distance.", F.triplet_margin_with_distance_loss)
loss("MultiMarginLoss", "multi_margin_loss", "Computes a multi-class hinge loss between scores and target classes.")
loss("MultiLabelMarginLoss", "multilabel_margin_loss",
  "Computes a multi-label hinge loss between scores and lists of target classes.", F.multilabel_margin_loss)
loss("MultiLabelSoftMarginLoss", "multilabel_soft_margin_loss",
  "Computes a multi-label loss: the binary cross entropy of logits, averaged over the classes.")

entry [[CTCLoss(blank: count = 1, reduction = "mean" | "sum" | "none", zero_infinity = false)]] {
  forward = function(self, log_probs, targets, input_lengths, target_lengths)
    return F.ctc_loss(log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity)
  end,
  help = "Computes the connectionist temporal classification loss of sequences without alignment.",
}

entry "CosineSimilarity({dim: dim = 2, eps = 1e-8})" {
  op = "cosine_similarity", inputs = 2,
  help = "Computes the cosine similarity of x1 and x2 along dim.",
}

entry "PairwiseDistance({p = 2, eps = 1e-6, keepdim = false})" {
  op = "pairwise_distance", inputs = 2,
  help = "Computes the p-norm of x1 - x2 over the last dim.",
}

return layer.classes(list)
