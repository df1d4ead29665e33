-- Luminary's side of golden/gen_distributions.py --compare: computes what a file's cases describe, and prints which
-- values differ from PyTorch's.
local here = arg[0]:match "^(.*)/" or "."
package.path = here .. "/../../?.lua;" .. package.path
local cases = require "spec.support.distribution_cases"

local rows, numbers = cases.load(arg[1])
local counts, wrong = cases.counts(), 0
for i, row in ipairs(rows) do
  for _, problem in ipairs(cases.check(row, numbers, counts)) do
    wrong = wrong + 1
    print(i, problem)
  end
end
print(("%d objects, %d checks, %d gradients; PyTorch refuses %d of these, Luminary has %d of them; %d differ"):format(
  #rows, counts.checks, counts.gradients, counts.refused, counts.more, wrong))
os.exit(wrong == 0 and 0 or 1)
