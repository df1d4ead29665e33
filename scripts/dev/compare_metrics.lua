-- Luminary's side of golden/gen_metrics.py --compare: computes the metrics of a file's cases, and prints which values
-- differ from torchmetrics'.
local here = arg[0]:match "^(.*)/" or "."
package.path = here .. "/../../?.lua;" .. package.path
local cases = require "spec.support.metric_cases"

local rows, stored = cases.load(arg[1])
local wrong = 0
for i, row in ipairs(rows) do
  local ok, problem = pcall(cases.check, row, stored, i)
  if not ok then
    wrong = wrong + 1
    print(i, problem)
  end
end
print(("%d cases, %d differ"):format(#rows, wrong))
os.exit(wrong == 0 and 0 or 1)
