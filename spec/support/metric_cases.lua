-- Cases of scripts/dev/golden/gen_metrics.py: calls of metrics with torchmetrics' values.
local lm = require "luminary"
local golden = require "spec.support.golden"

local cases = {}

-- torchmetrics computes in float32.
local CLOSE = {1e-5, 2e-5}

local function check(what, got, want, row)
  local difference = golden.differs(got:double(), want, CLOSE)
  if difference then
    local list = {}
    for name, value in pairs(row.options) do
      list[#list + 1] = name .. " = " .. (type(value) == "table" and table.concat(value, ", ") or tostring(value))
    end
    table.sort(list)
    error(("%s of %s {%s}: %s"):format(what, row.class, table.concat(list, ", "), difference), 0)
  end
end

local function inputs(stored, row, i, k)
  if row.texts then return row.texts[k].preds, row.texts[k].target end
  return stored[("%d.preds.%d"):format(i, k)], stored[("%d.target.%d"):format(i, k)]
end

-- Returns the rows and the tensors of a file.
function cases.load(path)
  local stored = lm.load(path)
  local bytes = stored.cases:totable()
  for i, byte in ipairs(bytes) do bytes[i] = string.char(byte) end
  return lm.core.json_decode(table.concat(bytes)), stored
end

-- Fails if the object, a batch of it or the function differs from torchmetrics.
function cases.check(row, stored, i)
  local metric = lm.metrics[row.class](row.options)
  for k = 1, row.batches do
    local preds, target = inputs(stored, row, i, k)
    if k == 1 then
      check("first batch", metric(preds, target), stored[i .. ".first"], row)
      local given = {preds = preds, target = target}
      for name, value in pairs(row.options) do given[name] = value end
      check("function", lm.metrics.functional[row["function"]](given), stored[i .. ".first"], row)
    else
      metric:update(preds, target)
    end
  end
  check("value", metric:compute(), stored[i .. ".want"], row)
end

return cases
