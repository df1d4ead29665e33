--- Defines Torch7's class optim.ConfusionMatrix over Torch7's tensors, which torch.save writes.
local class = require "luminary.torch7.class"
local options = require "luminary.base.options"
local ours = require "luminary.torch7.confusion_matrix"
local tensor = require "luminary.torch7.tensor"
local core = require "luminary.core"
local ops = core.ops

local Confusion = class.new "optim.ConfusionMatrix"

--- optim.ConfusionMatrix(classes) or (n [, classes]): Counts how often each class was predicted for each class.
function Confusion:__init(n, classes)
  if type(n) == "table" then n, classes = #n, n end
  self.nclasses, self.classes = options.arg("optim.ConfusionMatrix", "nclasses", n, "count"), classes or {}
  for i = 1, classes and 0 or n do self.classes[i] = i end
  self.mat = tensor.new("float32", n, n)
  self.valids, self.unionvalids = tensor.new("float32", n), tensor.new("float32", n)
  self:zero()
end

--- Sets all counts to 0.
function Confusion:zero()
  self.mat:zero()
  self.valids:zero()
  self.unionvalids:zero()
  self.totalValid, self.averageValid, self.averageUnionValid = 0, 0, 0
end

-- Adds the counts of pairs that luminary's class of the same name counts; targets of 0 are ignored.
local function counted(self, method, prediction, target)
  local counter = ours(self.nclasses)
  counter[method](counter, tensor.raw_all(prediction), tensor.raw_all(target))
  self.mat:add(tensor.wrap(counter.mat):type(self.mat:type()))
end
--- Adds a sample: a class or scores for each class, and its target class or scores; a target of 0 is ignored.
function Confusion:add(prediction, target)
  if target ~= 0 then counted(self, "add", prediction, target) end
end
--- Adds a batch: classes or scores [n, classes], and targets; targets of 0 are ignored.
function Confusion:batchAdd(predictions, targets)
  local t, p = tensor.raw(targets, "batchAdd"), tensor.raw(predictions, "batchAdd")
  if t.ndim == 1 then
    local kept = ops.reshape(ops.nonzero(ops.ne(t, 0)), {-1})
    if kept:numel() < t:numel() then t, p = ops.index_select(t, 1, kept), ops.index_select(p, 1, kept) end
  end
  if t:numel() > 0 then counted(self, "batchAdd", p, t) end
end

-- Returns luminary's confusion matrix with these counts.
local function counter_of(self)
  local counter = ours(self.nclasses, self.classes)
  counter.mat = self.mat:raw():to "int64"
  return counter
end
-- Returns a number, or 0 for NaN.
local function number(v) return v == v and v or 0 end

--- Computes valids, the share of each class that was predicted, unionvalids, and their averages.
function Confusion:updateValids()
  local counter = counter_of(self)
  counter:updateValids()
  for i = 1, self.nclasses do self.valids[i], self.unionvalids[i] = counter.valids[i], counter.unionvalids[i] end
  for _, name in ipairs {"totalValid", "averageValid", "averageUnionValid"} do self[name] = number(counter[name]) end
end

--- Returns false reject rates and false accept rates of the classes, two vectors, and their averages.
function Confusion:farFrr()
  local m = self.mat:raw():to "float64"
  local hits, rows, columns = m:diag(), ops.sum(m, 2), ops.sum(m, 1)
  local frr = ops.div(ops.sub(rows, hits), rows)
  local others = ops.sub(ops.sum(m), rows)
  local far = ops.div(ops.sub(columns, hits), others)
  frr, far = tensor.wrap(ops.nan_to_num(frr)), tensor.wrap(ops.nan_to_num(far))
  return frr, far, frr:mean(), far:mean()
end

function Confusion:__tostring__()
  self:updateValids()
  return counter_of(self):repr()
end

return Confusion
