-- A rank that compares steps of several ranks with and without lm.compile, or by segments on a device, and prints each
-- difference.
local lm = require "luminary"
local equal = require "spec.support.steps.equal"

local device = arg[1]
lm.dist.init_process_group("gloo", {timeout = 30})
if device then lm.set_default_device(device) end
for _, case in ipairs(require "spec.support.steps.ranks") do
  local name, make, kinds = unpack(case)
  for _, kind in ipairs(kinds or {"float32", "autocast"}) do
    local ok, text = pcall(equal.compare, make, {kind = kind, wrap = device and equal.by_segments})
    if not ok then error(("%s: %s: %s"):format(name, kind, tostring(text)), 0) end
  end
end
lm.dist.destroy_process_group()
