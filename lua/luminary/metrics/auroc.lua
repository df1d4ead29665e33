--- Computes the area under the ROC curve, as torchmetrics does: exactly from all samples, or from counts at thresholds.
local core = require "luminary.core"
local options = require "luminary.base.options"
local labels = require "luminary.metrics.labels"
local metric = require "luminary.metrics.metric"
local trapezoid = require("luminary.tensor.integrals_and_histograms").trapezoid

local ops = core.ops
local double, divide = labels.double, labels.divide

-- ---- the thresholds

-- The kind of thresholds: a tensor in float32, as scores are, since 0.1 as a float64 would differ.
options.kind("thresholds", "count, list of numbers or tensor", function(who, name, v)
  if type(v) == "number" then return ops.linspace(0, 1, options.arg(who, name, v, "count"), {dtype = "float32"}) end
  if type(v) == "table" then v = core.tensor(v, {dtype = "float32"}) end
  if not core.is_tensor(v) or v.ndim ~= 1 or v:numel() == 0 then
    options.must_be(who, name, "an integer of at least 1, a list of numbers or a 1-d tensor", v)
  end
  return (ops.sort(v))
end)

-- ---- curves: false and true positives at falling thresholds

-- Returns the exact curve: at each distinct score, after (0, 0). positive: bool [n].
local function exact_curve(scores, positive)
  local sorted, order = ops.sort(scores, 1, {descending = true, stable = true})
  local n = sorted:numel()
  local ends = ops.ones({n}, {dtype = "bool", device = scores.device})
  if n > 1 then ends:narrow(1, 1, n - 1):copy_(sorted:narrow(1, 2, n - 1):ne(sorted:narrow(1, 1, n - 1))) end
  local tps = ops.cumsum(double(positive:index_select(1, order)), 1):masked_select(ends)
  local total = ops.arange(1, n + 1, {dtype = "float64", device = scores.device}):masked_select(ends)
  local zero = ops.zeros({1}, {dtype = "float64", device = scores.device})
  return ops.cat {zero, total - tps}, ops.cat {zero, tps}
end

-- Counts scores ≥ each threshold, in the rows of `positive` and in the others: [2, T], from the lowest threshold.
local function count_above(thresholds, scores, positive)
  local n = thresholds:numel()
  local bin = ops.searchsorted(thresholds, scores, {right = true}) -- 1 + the number of thresholds up to the score
  local codes = bin + labels.as_long(positive) * (n + 1)
  local counts = labels.count(codes, 2 * (n + 1)):reshape(2, n + 1)
  return counts:flip(2):cumsum(2):flip(2):narrow(2, 2, n), counts:sum(2)
end

local function area(x, y) return trapezoid(y, x) end

-- Returns the area up to max_fpr, standardized as by McClish, "Analyzing a portion of the ROC curve", 1989.
local function partial_area(fpr, tpr, max_fpr)
  if not max_fpr or max_fpr == 1 or fpr:sum():item() == 0 or tpr:sum():item() == 0 then return area(fpr, tpr) end
  local stop = ops.searchsorted(fpr, core.tensor({max_fpr}, {dtype = "float64", device = fpr.device}),
    {right = true}):item() -- index of the first rate above max_fpr
  local x1, x2, y1, y2 = fpr[stop - 1], fpr[stop], tpr[stop - 1], tpr[stop]
  local last = y1 + (y2 - y1) * (max_fpr - x1) / (x2 - x1)
  local function cut(curve, value)
    return ops.cat {curve:narrow(1, 1, stop - 1), core.tensor({value}, {dtype = "float64", device = curve.device})}
  end
  local least = 0.5 * max_fpr * max_fpr
  return 0.5 * (1 + (area(cut(fpr, max_fpr), cut(tpr, last)) - least) / (max_fpr - least))
end

-- ---- the metric

local function make(self)
  local n = labels.check_task(self)
  if self.max_fpr and self.task ~= "binary" then
    options.fail("AUROC: max_fpr requires task 'binary', got '%s'", self.task)
  end
  if self.average == "micro" and self.task == "multiclass" then
    options.fail("AUROC: average 'micro' requires task 'multilabel', got 'multiclass'")
  end
  if self.thresholds then
    core.keep(self.thresholds)
    self:add_state("above", ops.zeros({n, 2, self.thresholds:numel()}, {dtype = "int64"}))
    self:add_state("samples", ops.zeros({n, 2}, {dtype = "int64"}))
  else
    self:add_state("preds", {})
    self:add_state("target", {})
  end
end

-- Returns a batch's probabilities. Warns if it is of logits and an earlier one was not, or the reverse.
local function probabilities_of(self, preds, f)
  local converted, before = labels.probabilities(preds, f), self.are_logits
  self.are_logits = not rawequal(converted, preds)
  if before == not self.are_logits and self.update_count > 0 and preds:numel() > 0 then
    core.warn "AUROC: some batches are taken as logits and some, within 0 and 1, as probabilities; pass probabilities"
  end
  return converted
end

-- Adds scores [n, L] and targets [n, L]: 1 for positive, 0 for negative; others are ignored.
local function update(self, preds, target)
  local who, ignored = "AUROC", self.ignore_index
  labels.check_integers(who, "target", target)
  target = labels.as_long(target)
  if self.task == "multiclass" then
    local n = self.num_classes
    labels.check_range(who, "target", target, 1, n, ignored)
    labels.check_scores(who, preds, target, n)
    preds, target = preds:movedim(2, -1):reshape(-1, n), target:reshape(-1)
    if ignored then
      local keep = target:ne(ignored):nonzero():reshape(-1)
      preds, target = preds:index_select(1, keep), target:index_select(1, keep)
    end
    preds = probabilities_of(self, preds, function(x) return ops.softmax(x, 2) end)
    local class = ops.arange(1, n + 1, {dtype = "int64", device = target.device})
    target = labels.as_long(target:unsqueeze(2):eq(class))
  else
    if not preds:is_floating_point() then options.wrong_dtype(who, "preds", "floating, as scores", preds) end
    labels.check_range(who, "target", target, 0, 1, ignored)
    if self.task == "multilabel" then
      preds, target = labels.rows_of_labels(who, preds, target, self.num_labels)
    else
      labels.check_same(who, preds, target)
      preds, target = preds:reshape(-1, 1), target:reshape(-1, 1)
    end
    preds = probabilities_of(self, preds, ops.sigmoid)
    if ignored then target = ops.where(target:eq(ignored), -1, target) end
  end
  if not self.thresholds then
    self.preds[#self.preds + 1], self.target[#self.target + 1] = double(preds), target:to "int8"
    return
  end
  local above, samples = {}, {}
  local thresholds = double(self.thresholds:to(preds.device))
  for i = 1, preds.shape[2] do
    local valid = target:select(2, i):ge(0)
    local score, positive = preds:select(2, i):masked_select(valid), target:select(2, i):masked_select(valid)
    above[i], samples[i] = count_above(thresholds, double(score), positive)
  end
  self.above, self.samples = self.above + ops.stack(above), self.samples + ops.stack(samples)
end

-- Returns the area of label i, or of all labels together, and the number of positives.
local function label_area(self, preds, target, i)
  local fps, tps, negatives, positives
  if self.thresholds then
    local above = i and self.above:select(1, i) or self.above:sum(1)
    local samples = i and self.samples:select(1, i) or self.samples:sum(1)
    fps, tps = double(above:select(1, 1)):flip(1), double(above:select(1, 2)):flip(1)
    negatives, positives = samples:select(1, 1), samples:select(1, 2)
  else
    local scores, truth = preds:reshape(-1), target:reshape(-1)
    if i then scores, truth = preds:select(2, i), target:select(2, i) end
    local valid = truth:ge(0)
    scores, truth = scores:masked_select(valid), truth:masked_select(valid)
    fps, tps = exact_curve(scores, truth:eq(1))
    negatives, positives = fps:select(1, -1), tps:select(1, -1)
  end
  local lacking = positives:item() == 0 and "positive" or negatives:item() == 0 and "negative"
  local which = i and ({multilabel = "label ", multiclass = "class "})[self.task]
  if lacking then
    core.warn(("AUROC: no target of %s is %s, so that its area is 0"):format(which and which .. i or "the samples",
      lacking))
  end
  -- A rate without samples of a kind is 0.
  return partial_area(divide(fps, negatives), divide(tps, positives), self.max_fpr), double(positives)
end

local function compute(self)
  local preds, target
  if not self.thresholds then
    if not self.preds[1] then return labels.result(ops.zeros({}, {device = self.device})) end
    preds, target = ops.cat(self.preds, 1), ops.cat(self.target, 1)
  end
  local all = self.average == "micro" and self.task == "multilabel"
  if self.task == "binary" or all then return labels.result((label_area(self, preds, target, not all and 1 or nil))) end
  local areas, positives = {}, {}
  for i = 1, self.num_labels and self.task == "multilabel" and self.num_labels or self.num_classes do
    areas[i], positives[i] = label_area(self, preds, target, i)
  end
  areas, positives = ops.stack(areas), ops.stack(positives)
  if self.average == "macro" then return labels.result(areas:mean()) end
  if self.average == "weighted" then return labels.result((areas * divide(positives, positives:sum())):sum()) end
  return labels.result(areas)
end

metric.define("AUROC", {
  help = "Computes the area under the ROC curve, the receiver operating characteristic.",
  call = "auroc", required = labels.task,
  options = "thresholds: thresholds?, num_classes: count, num_labels: count, " .. labels.averaged:format "macro"
    .. "max_fpr: above(0, 1), ignore_index: integer, validate_args: lacks = true",
  make = make, update = update, compute = compute,
})
