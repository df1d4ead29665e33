--- Implements the base of classification metrics: predictions and targets as labels, counts, options. Classes count
--- from 1; the labels of binary and multilabel tasks are 0 and 1, or false and true.
local core = require "luminary.core"
local options = require "luminary.base.options"
local shapes = require "luminary.tensor.shapes"

local ops, fail = core.ops, options.fail

local INTEGERS = {uint8 = true, int8 = true, int16 = true, int32 = true, int64 = true, bool = true}

local function flattened(x) return x:reshape(-1) end

-- ---- inputs as flat labels

local function check_same(who, preds, target) shapes.check(who, "preds", preds, target.shape) end

local function check_integers(who, name, x)
  if INTEGERS[x.dtype] then return end
  options.wrong_dtype(who, name, "an integer or bool dtype", x, "convert it with :long()")
end

-- Fails unless all elements are from low to high, or `ignored`.
local function check_range(who, name, x, low, high, ignored)
  if x:numel() == 0 then return end
  local wrong = ops.logical_or(x:lt(low), x:gt(high))
  if ignored then wrong = ops.logical_and(wrong, x:ne(ignored)) end
  if not wrong:any():item() then return end
  local first = flattened(x):masked_select(flattened(wrong)):narrow(1, 1, 1):item()
  options.must_be(who, name, low == 0 and "0 or 1" or ("classes from 1 to %d"):format(high), tonumber(first),
    low == 1 and first == 0 and "classes start at 1: add 1 to labels that count from 0" or nil)
end

--- Converts logits to probabilities by f, if any element is outside of [0, 1], as torchmetrics decides.
local function probabilities(x, f)
  if x:numel() == 0 then return x end
  local inside = ops.logical_and(x:ge(0), x:le(1)):all()
  return inside:item() and x or f(x)
end

local function as_long(x) return x:to "int64" end

-- Removes the elements whose target is ignored.
local function without_ignored(self, preds, target)
  if not self.ignore_index then return preds, target end
  local keep = target:ne(self.ignore_index)
  return preds:masked_select(keep), target:masked_select(keep)
end

-- Returns preds and target as 0 and 1, in their shape; scores are compared with the threshold.
local function binary_labels(self, preds, target)
  local who = self.__name
  check_same(who, preds, target)
  check_integers(who, "target", target)
  target = as_long(target)
  check_range(who, "target", target, 0, 1, self.ignore_index)
  if preds:is_floating_point() then
    preds = probabilities(preds, ops.sigmoid):gt(self.threshold)
  else
    check_range(who, "preds", as_long(preds), 0, 1)
  end
  return as_long(preds), target
end

-- Returns each row's target if it is among the k best classes, else the best: [N, C, ...] to [N, ...].
local function best_of(preds, target, k)
  local _, best = preds:topk(k, 2)
  local hit = best:eq(target:unsqueeze(2)):any(2)
  return ops.where(hit, target, best:select(2, 1))
end

local function check_scores(who, preds, target, classes)
  if not preds:is_floating_point() then
    options.wrong_dtype(who, "preds", "floating, as scores of classes [N, C, ...]", preds)
  end
  shapes.check(who, "preds", preds, {target.shape[1], classes, unpack(target.shape, 2)})
end

local function class_labels(self, preds, target)
  local who, classes = self.__name, self.num_classes
  check_integers(who, "target", target)
  target = as_long(target)
  check_range(who, "target", target, 1, classes, self.ignore_index)
  local given_labels = preds.ndim == target.ndim
  if not given_labels then
    check_scores(who, preds, target, classes)
    preds = (self.top_k or 1) > 1 and best_of(preds, target, self.top_k) or preds:argmax(2)
  else
    check_same(who, preds, target)
    if (self.top_k or 1) > 1 then
      options.wrong_shape(who, "preds", preds, ("[N, %d, ...], scores, since top_k is %d"):format(classes, self.top_k))
    end
    check_integers(who, "preds", preds)
    preds = as_long(preds)
  end
  preds, target = without_ignored(self, flattened(preds), flattened(target))
  if given_labels then check_range(who, "preds", preds, 1, classes) end
  return preds, target
end

-- Reshapes [N, L, ...] to [n, L].
local function rows_of_labels(who, preds, target, labels)
  check_same(who, preds, target)
  if preds.ndim < 2 or preds.shape[2] ~= labels then
    options.wrong_shape(who, "preds", preds, ("[N, %d, ...]"):format(labels))
  end
  local function rows(x) return x:movedim(2, -1):reshape(-1, labels) end
  return rows(preds), rows(target)
end

-- ---- counts: tensors of one element for each class or label

-- Counts each label from 1 to n; `of`, a bool or integer tensor, has the amounts to add in place of 1.
local function count(labels, n, of)
  of = of and of:to "int64" or ops.ones_like(labels)
  return ops.zeros({n}, {dtype = "int64", device = labels.device}):index_add_(1, labels, of)
end

-- Counts 2 * target + pred, each 0 or 1, in each column: [L, 2, 2].
local function count_binary(self, preds, target, labels)
  local column = ops.arange(labels, {dtype = "int64", device = preds.device}) * 4
  local codes = target * 2 + preds + column + 1
  if self.ignore_index then codes = codes:masked_select(target:ne(self.ignore_index)) end
  return count(flattened(codes), 4 * labels):reshape(labels, 2, 2)
end

local function count_of_task(self, preds, target)
  if self.task == "multilabel" then
    preds, target = rows_of_labels(self.__name, preds, target, self.num_labels)
    preds, target = binary_labels(self, preds, target)
    return count_binary(self, preds, target, self.num_labels)
  end
  preds, target = binary_labels(self, preds, target)
  return count_binary(self, preds:reshape(-1, 1), target:reshape(-1, 1), 1)
end

local function double(x) return x:to "float64" end

local function result(x) return x:to(core.get_default_dtype()) end

-- Returns a / b, with `otherwise` (default 0) for b = 0.
local function divide(a, b, otherwise)
  a, b = double(a), double(b)
  return ops.where(b:ne(0), a / b, otherwise or 0)
end

-- ---- options

local task = [[task: "binary" | "multiclass" | "multilabel"]]
local classes = "threshold: probability = 0.5, num_classes: count, num_labels: count, "
local averaged = [[average: "micro" | "macro" | "weighted" | "none"|false = "%s", ]]

local function check_task(self)
  local needs = ({multiclass = "num_classes", multilabel = "num_labels"})[self.task]
  if needs and not self[needs] then
    fail("%s: task '%s' requires %s; pass {%s = …}", self.__name, self.task, needs, needs)
  end
  if self.num_classes and self.task == "multiclass" and self.num_classes < 2 then
    options.must_be(self.__name, "num_classes", "at least 2", self.num_classes, "with one class, use task 'binary'")
  end
  if self.top_k and self.task == "multiclass" and self.top_k > self.num_classes then
    options.must_be(self.__name, "top_k", ("at most num_classes (%d)"):format(self.num_classes), self.top_k)
  end
  return self.task == "multiclass" and self.num_classes or self.task == "multilabel" and self.num_labels or 1
end

return {
  check_range = check_range, check_scores = check_scores, check_same = check_same, check_integers = check_integers,
  probabilities = probabilities, rows_of_labels = rows_of_labels, as_long = as_long, flat = flattened,
  class_labels = class_labels, count = count, count_of_task = count_of_task, check_task = check_task,
  double = double, result = result, divide = divide, task = task, classes = classes, averaged = averaged,
}
