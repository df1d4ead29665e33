-- Prints for each step of this folder whether its bits are the eager ones, and the state of lm.compile after it.
--   luajit spec/support/steps/states.lua [KIND [CALLS]]           kinds are those of equal.lua
local equal = require "spec.support.steps.equal"

local kind, calls = arg[1] or "float32", tonumber(arg[2])
for _, file in ipairs {"networks", "training", "calls"} do
  for _, case in ipairs(require("spec.support.steps." .. file)) do
    local ok, state = pcall(equal.compare, case[2], {kind = kind, calls = calls})
    local words = {}
    for key, value in require("luminary.base.lists").sorted_pairs(ok and state or {}) do
      if value ~= 0 then words[#words + 1] = ("%s %s"):format(key, tostring(value)) end
    end
    print(("%-72s %s"):format(case[1], ok and table.concat(words, ", ") or "DIFFERS: " .. tostring(state)))
  end
end
