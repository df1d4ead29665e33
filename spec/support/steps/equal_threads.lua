-- Two threads that compare steps of trainings with and without lm.compile at once.
local lm = require "luminary"

lm.mp.spawn(function(rank)
  local equal = require "spec.support.steps.equal"
  for _, case in ipairs(require "spec.support.steps.training") do
    local ok, text = pcall(equal.compare, case[2], {kind = rank == 0 and "float32" or "bfloat16"})
    if not ok then error(("%s: %s"):format(case[1], tostring(text)), 0) end
  end
end, {nprocs = 2, method = "thread"})
