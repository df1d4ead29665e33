--- Defines metrics of classification, from counts of true and false positives and negatives, with torchmetrics' values.
local core = require "luminary.core"
local labels = require "luminary.metrics.labels"
local metric = require "luminary.metrics.metric"

local ops = core.ops
local count, double, result, divide, task = labels.count, labels.double, labels.result, labels.divide, labels.task

local counted = labels.classes .. labels.averaged:format "micro"
  .. [[multidim_average: lacks = "global", top_k: count = 1, ignore_index: integer, validate_args: lacks = true]]

-- ---- precision and others, from tp, fp, tn, fn of each class

local function zeros(...) return ops.zeros({...}, {dtype = "int64"}) end

local function add_counts(self)
  local n = labels.check_task(self)
  for _, name in ipairs {"tp", "fp", "tn", "fn"} do self:add_state(name, zeros(n)) end
end

local function update_counts(self, preds, target)
  local tp, fp, tn, fn
  if self.task == "multiclass" then
    local n = self.num_classes
    preds, target = labels.class_labels(self, preds, target)
    tp = count(target, n, preds:eq(target))
    fp, fn = count(preds, n) - tp, count(target, n) - tp
    tn = target:numel() - tp - fp - fn
  else
    local counts = labels.count_of_task(self, preds, target)
    local function count_at(i, j) return counts:select(2, i):select(2, j) end
    tn, fp, fn, tp = count_at(1, 1), count_at(1, 2), count_at(2, 1), count_at(2, 2)
  end
  self.tp, self.fp, self.tn, self.fn = self.tp + tp, self.fp + fp, self.tn + tn, self.fn + fn
end

-- Averages the scores of classes. Absent classes do not count in the macro average.
local function average_of(self, scores, absent, weights)
  if self.average == "none" or not self.average then return scores end
  if self.average == "macro" then
    weights = ops.ones_like(scores)
    if self.task == "multiclass" then weights = ops.where(absent, 0, weights) end
  end
  weights = double(weights)
  return divide(weights * scores, weights:sum()):sum()
end

-- Adds a metric whose score is a ratio of counts: parts(self, tp, fp, tn, fn) returns numerator and denominator.
-- absent_by_top_k: if top_k > 1, classes without targets are absent even if predicted. skips_ignored: micro and macro
-- averages do not count predictions of the class ignore_index.
local function add_metric(name, call, help, how)
  metric.define(name, {
    help = help, call = call, required = how.required or task,
    options = (how.options or counted) .. (how.more or ""),
    make = add_counts, update = update_counts,
    compute = function(self)
      local tp, fp, tn, fn = self.tp, self.fp, self.tn, self.fn
      local ignored = how.skips_ignored and self.task == "multiclass" and self.ignore_index or 0
      if ignored >= 1 and ignored <= self.num_classes and (self.average == "micro" or self.average == "macro") then
        fp = fp:index_fill(1, core.tensor({ignored}, {dtype = "int64", device = fp.device}), 0)
      end
      local together = self.task == "binary" or self.average == "micro"
      if together then tp, fp, tn, fn = tp:sum(), fp:sum(), tn:sum(), fn:sum() end
      local a, b = how.parts(self, tp, fp, tn, fn)
      local scores = divide(a, b, self.zero_division)
      if together then return result(scores) end
      local seen = tp + fn
      local absent = (how.absent_by_top_k and self.top_k > 1 and seen or seen + fp):eq(0)
      return result(average_of(self, scores, absent, seen))
    end,
  })
end

add_metric("Accuracy", "accuracy", "Computes the accuracy: the part of predictions that are right.", {
  absent_by_top_k = true, parts = function(self, tp, fp, tn, fn)
    if self.task == "multiclass" then return tp, tp + fn end
    return tp + tn, tp + fp + tn + fn
  end,
})

local zero_division = ", zero_division: number = 0"

add_metric("Precision", "precision", "Computes the precision: the part of predicted positives that are positive.", {
  absent_by_top_k = true, more = zero_division, parts = function(_, tp, fp) return tp, tp + fp end,
})
add_metric("Recall", "recall", "Computes the recall: the part of positives that are predicted.", {
  absent_by_top_k = true, more = zero_division, parts = function(_, tp, _, _, fn) return tp, tp + fn end,
})

-- Computes (1 + beta²) precision recall / (beta² precision + recall), van Rijsbergen, "Information Retrieval", 1979.
local function f_score(beta, tp, fp, fn)
  local squared = beta * beta
  return double(tp) * (1 + squared), double(tp) * (1 + squared) + double(fn) * squared + double(fp)
end

add_metric("F1Score", "f1_score", "Computes the F1 score: the harmonic mean of precision and recall.", {
  more = zero_division, parts = function(_, tp, fp, _, fn) return f_score(1, tp, fp, fn) end,
})
add_metric("FBetaScore", "fbeta_score",
  "Computes the F-beta score: a mean of precision and recall, where recall counts beta times.", {
  required = task .. ", beta: positive = 1", more = zero_division,
  parts = function(self, tp, fp, _, fn) return f_score(self.beta, tp, fp, fn) end,
})

add_metric("JaccardIndex", "jaccard_index", [[Computes the Jaccard index, the intersection over union of each class; its
    mean over classes is the mean IoU of segmentation.]], {
  options = labels.classes .. labels.averaged:format "macro" .. "ignore_index: integer, validate_args: lacks = true",
  more = zero_division, skips_ignored = true, parts = function(_, tp, fp, _, fn) return tp, tp + fp + fn end,
})

metric.define("ConfusionMatrix", {
  help = "Computes the confusion matrix: how often each class was predicted for each class.",
  call = "confusion_matrix", required = task,
  options = labels.classes .. [[normalize: "none" | "true" | "pred" | "all"|false = "none", ignore_index: integer,
    validate_args: lacks = true]],
  make = function(self)
    local n = labels.check_task(self)
    local shapes = {binary = {2, 2}, multiclass = {n, n}, multilabel = {n, 2, 2}}
    self:add_state("confmat", zeros(unpack(shapes[self.task])))
  end,
  update = function(self, preds, target)
    local counts
    if self.task == "multiclass" then
      local n = self.num_classes
      preds, target = labels.class_labels(self, preds, target)
      counts = count((target - 1) * n + preds, n * n):reshape(n, n)
    else
      counts = labels.count_of_task(self, preds, target)
      if self.task == "binary" then counts = counts:select(1, 1) end
    end
    self.confmat = self.confmat + counts
  end,
  compute = function(self)
    local counts = self.confmat
    if self.normalize == "none" or not self.normalize then return counts:clone() end
    local dims = ({["true"] = -1, pred = -2, all = {-2, -1}})[self.normalize]
    return result(divide(counts, counts:sum(dims, {keepdim = true})))
  end,
})
