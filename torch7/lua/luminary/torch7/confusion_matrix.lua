--- optim.ConfusionMatrix(classes): Counts how often each class was predicted for each class.

-- Luminary's class of this name and Torch7's have the same methods; the counts are a tensor of the library.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local torch_class = require "luminary.torch7.class"
local tensor = require "luminary.torch7.tensor"
local ops, fail, raw = core.ops, options.fail, tensor.raw

local ConfusionMatrix = class.root("ConfusionMatrix")

-- Sets the fields of a new object, for a number of classes or their names; mat: zeros of a number of classes.
local function set_up(self, who, classes, names, mat)
  if type(classes) == "table" then classes, names = #classes, classes end
  self.nclasses, self.classes = options.arg(who, "classes", classes, "count"), names or {}
  self.mat = mat(classes)
end
function ConfusionMatrix:init(classes, names)
  --- confusion.mat: The counts, int64 [classes, classes]: rows are target classes, columns predicted classes.
  set_up(self, "ConfusionMatrix", classes, names, function(n)
    return core.keep(ops.zeros({n, n}, {dtype = "int64"}))
  end)
  self.valids, self.unionvalids = {}, {}
  self:zero()
end

--- Sets all counts to 0.
function ConfusionMatrix:zero()
  raw(self.mat):zero_()
  self.totalValid, self.averageValid, self.averageUnionValid = 0, 0, 0
  for i = 1, self.nclasses do self.valids[i], self.unionvalids[i] = 0, 0 end
end

-- Returns classes from 1 [n] for a tensor of classes, of rows of scores or of one-hot rows.
local function classes_of(self, who, name, x, dims)
  if type(x) == "number" then return ops.full({1}, x, {dtype = "int64"}) end
  x = options.arg(who, name, x, "tensor"):detach():cpu()
  if x.ndim == dims + 1 then
    if x:size(-1) ~= self.nclasses then options.wrong_length(who, name, self.nclasses, "class", x:size(-1)) end
    x = ops.argmax(x, -1)
  elseif x.ndim == dims + 2 and x:numel() == x:size(1) * self.nclasses then
    x = ops.argmax(x:reshape {x:size(1), self.nclasses}, 2)
  end
  return ops.reshape(x, {-1}):to "int64"
end

-- Counts predictions and targets; dims: 1 for batches, 0 for a sample.
local function count(self, who, predictions, targets, dims)
  local n, plural = self.nclasses, dims == 1 and "s" or ""
  predictions = classes_of(self, who, "prediction" .. plural, predictions, dims)
  targets = classes_of(self, who, "target" .. plural, targets, dims)
  if predictions:numel() ~= targets:numel() then
    fail("%s: predictions and targets must have the same length, got %d and %d", who, predictions:numel(),
      targets:numel())
  end
  for name, each in pairs {prediction = predictions, target = targets} do
    if each:numel() > 0 and (each:min():item() < 1 or each:max():item() > n) then
      options.must_be(who, name, "from 1 to " .. n, each:min():item() < 1 and each:min():item() or each:max():item())
    end
  end
  local cells = ops.add(ops.mul(ops.sub(targets, 1), n), predictions)
  local mat = raw(self.mat)
  mat:view({n * n}):scatter_add_(1, cells, ops.ones({cells:numel()}, {dtype = mat.dtype}))
end

--- Adds a sample: its predicted class from 1, or a score for each class, and its target class.
function ConfusionMatrix:add(prediction, target)
  core.no_grad(count, self, "ConfusionMatrix.add", prediction, target, 0)
end

--- Adds a batch: predicted classes [n] or scores [n, classes], and target classes [n] or one-hot rows.
function ConfusionMatrix:batchAdd(predictions, targets)
  core.no_grad(count, self, "ConfusionMatrix.batchAdd", predictions, targets, 1)
end

--- Computes from the counts: totalValid, the accuracy; valids, that of each class (NaN without samples), and
--- averageValid, its mean; unionvalids, the intersection over union of each class, and averageUnionValid.
function ConfusionMatrix:updateValids()
  local mat = raw(self.mat):to "float64"
  local rows, right = mat:sum(2), mat:diag()
  local valids, unions = right / rows, right / (rows + mat:sum(1) - right)
  for i = 1, self.nclasses do self.valids[i], self.unionvalids[i] = valids[i], unions[i] end
  self.totalValid = mat:trace():item() / mat:sum():item()
  self.averageValid, self.averageUnionValid = valids:nanmean():item(), unions:nanmean():item()
end

--- Returns the counts and shares as text, in the form that Torch7 prints.
function ConfusionMatrix:repr()
  self:updateValids()
  local n, lines = self.nclasses, {"ConfusionMatrix:"}
  local mat, most = raw(self.mat):to("float64"):totable(), raw(self.mat):max():item()
  local width = math.max(8, most > 0 and 1 + math.ceil(math.log10(most)) or 0)
  for i = 1, n do
    local cells = {}
    for k = 1, n do cells[k] = ("%" .. width .. "d"):format(mat[i][k]) end
    local name = self.classes[1] and ("\t[class: %s]"):format(tostring(self.classes[i] or "")) or ""
    local first, last = i == 1 and "[" or " ", i == n and "]" or " "
    lines[#lines + 1] = ("%s[%s]%s  %.3f%% %s"):format(first, table.concat(cells), last,
      self.valids[i] * 100, name)
  end
  lines[#lines + 1] = (" + average row correct: %.14g%% "):format(self.averageValid * 100)
  lines[#lines + 1] = (" + average rowUcol correct (VOC measure): %.14g%% "):format(self.averageUnionValid * 100)
  lines[#lines + 1] = (" + global correct: %.14g%%"):format(self.totalValid * 100)
  return (table.concat(lines, "\n"):gsub("%-nan", "nan"))
end

-- ---- Torch7's class, which torch.save writes

local Torch7 = torch_class.new "optim.ConfusionMatrix"
for _, name in ipairs {"zero", "repr"} do Torch7[name] = ConfusionMatrix[name] end
Torch7.__tostring__ = ConfusionMatrix.repr

--- optim.ConfusionMatrix(classes) or (n [, classes]): Counts how often each class was predicted for each class.
function Torch7:__init(n, classes)
  set_up(self, "optim.ConfusionMatrix", n, classes, function(k) return tensor.new("float32", k, k) end)
  for i = 1, #self.classes == 0 and self.nclasses or 0 do self.classes[i] = i end
  self.valids, self.unionvalids = tensor.new("float32", self.nclasses), tensor.new("float32", self.nclasses)
  self:zero()
end
--- Adds a sample: a class or scores for each class, and its target class or scores; a target of 0 is ignored.
function Torch7:add(prediction, target)
  if target ~= 0 then ConfusionMatrix.add(self, tensor.raw_all(prediction), tensor.raw_all(target)) end
end
--- Adds a batch: classes or scores [n, classes], and targets; targets of 0 are ignored.
function Torch7:batchAdd(predictions, targets)
  local t, p = raw(targets, "batchAdd"), raw(predictions, "batchAdd")
  if t.ndim == 1 then
    local kept = ops.reshape(ops.nonzero(ops.ne(t, 0)), {-1})
    if kept:numel() < t:numel() then t, p = ops.index_select(t, 1, kept), ops.index_select(p, 1, kept) end
  end
  if t:numel() > 0 then ConfusionMatrix.batchAdd(self, p, t) end
end
--- Computes valids, the share of each class that was predicted, unionvalids, and their averages, 0 without samples.
function Torch7:updateValids()
  ConfusionMatrix.updateValids(self)
  for _, name in ipairs {"totalValid", "averageValid", "averageUnionValid"} do
    if self[name] ~= self[name] then self[name] = 0 end
  end
end
--- Returns false reject rates and false accept rates of the classes, two vectors, and their averages.
function Torch7:farFrr()
  local m = raw(self.mat):to "float64"
  local hits, rows, columns = m:diag(), ops.sum(m, 2), ops.sum(m, 1)
  local frr = ops.div(ops.sub(rows, hits), rows)
  local far = ops.div(ops.sub(columns, hits), ops.sub(ops.sum(m), rows))
  frr, far = tensor.wrap(ops.nan_to_num(frr)), tensor.wrap(ops.nan_to_num(far))
  return frr, far, frr:mean(), far:mean()
end

return ConfusionMatrix
