--- optim.ConfusionMatrix(classes): Counts how often each class was predicted for each class.
local core = require "luminary.core"
local class = require "luminary.base.class"
local options = require "luminary.base.options"
local ops, fail = core.ops, options.fail

local ConfusionMatrix = class.root("ConfusionMatrix")

function ConfusionMatrix:init(classes, names)
  if type(classes) == "table" then classes, names = #classes, classes end
  self.nclasses = options.arg("ConfusionMatrix", "classes", classes, "count")
  self.classes = names or {}
  --- confusion.mat: The counts, int64 [classes, classes]: rows are target classes, columns predicted classes.
  self.mat = core.keep(ops.zeros({classes, classes}, {dtype = "int64"}))
  self:zero()
end

--- Sets all counts to 0.
function ConfusionMatrix:zero()
  self.mat:zero_()
  self.totalValid, self.averageValid, self.averageUnionValid = 0, 0, 0
  self.valids, self.unionvalids = {}, {}
  for i = 1, self.nclasses do self.valids[i], self.unionvalids[i] = 0, 0 end
end

-- Returns classes from 1 [n] for a tensor of classes, of rows of scores or of one-hot rows.
local function classes_of(self, who, name, x, dims)
  if type(x) == "number" then return ops.full({1}, x, {dtype = "int64"}) end
  x = options.arg(who, name, x, "tensor"):detach():cpu()
  if x.ndim == dims + 1 then
    if x:size(-1) ~= self.nclasses then
      options.wrong_length(who, name, self.nclasses, "class", x:size(-1))
    end
    x = ops.argmax(x, -1)
  elseif x.ndim == dims + 2 and x:numel() == x:size(1) * self.nclasses then
    x = ops.argmax(x:reshape {x:size(1), self.nclasses}, 2)
  end
  return ops.reshape(x, {-1}):to "int64"
end

local function count(self, who, predictions, targets)
  local n = self.nclasses
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
  self.mat:view({n * n}):scatter_add_(1, cells, ops.ones({cells:numel()}, {dtype = "int64"}))
end

--- Adds a sample: its predicted class from 1, or a score for each class, and its target class.
function ConfusionMatrix:add(prediction, target)
  core.no_grad(function()
    count(self, "ConfusionMatrix.add", classes_of(self, "ConfusionMatrix.add", "the prediction", prediction, 0),
      classes_of(self, "ConfusionMatrix.add", "the target", target, 0))
  end)
end

--- Adds a batch: predicted classes [n] or scores [n, classes], and target classes [n] or one-hot rows.
function ConfusionMatrix:batchAdd(predictions, targets)
  core.no_grad(function()
    count(self, "ConfusionMatrix.batchAdd",
      classes_of(self, "ConfusionMatrix.batchAdd", "predictions", predictions, 1),
      classes_of(self, "ConfusionMatrix.batchAdd", "targets", targets, 1))
  end)
end

-- Returns the mean of a list's numbers, without NaN.
local function mean(list)
  local sum, n = 0, 0
  for _, v in ipairs(list) do
    if v == v then sum, n = sum + v, n + 1 end
  end
  return n > 0 and sum / n or 0 / 0
end

--- Computes from the counts: totalValid, the accuracy; valids, that of each class (NaN without samples), and
--- averageValid, its mean; unionvalids, the intersection over union of each class, and averageUnionValid.
function ConfusionMatrix:updateValids()
  local rows, columns, right = self.mat:sum(2):totable(), self.mat:sum(1):totable(), self.mat:diag():totable()
  for i = 1, self.nclasses do
    self.valids[i] = right[i] / rows[i]
    self.unionvalids[i] = right[i] / (rows[i] + columns[i] - right[i])
  end
  self.totalValid = self.mat:trace():item() / self.mat:sum():item()
  self.averageValid, self.averageUnionValid = mean(self.valids), mean(self.unionvalids)
end

--- Returns the counts and shares as text, in the form that Torch7 prints.
function ConfusionMatrix:repr()
  self:updateValids()
  local n, lines = self.nclasses, {"ConfusionMatrix:"}
  local mat, most = self.mat:totable(), self.mat:max():item()
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

return ConfusionMatrix
