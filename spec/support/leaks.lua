-- After each spec the live tensors are back where they were, or the spec fails. Loaded before any
-- spec file, so that all of them share one luminary, whose parts are loaded now: busted forgets what a
-- spec file has loaded, but `luminary` would go on with it.
local busted = require "busted"
local lm = require "luminary"
for _, part in ipairs { "nn", "optim", "data", "dist", "mp", "autograd", "checkpoint", "watch", "cuda", "backends" } do
  assert(lm[part], part)
end
local core = require "luminary.core"
lm.set_warnings(false) -- of what specs do on purpose

local function settle()
  jit.flush() -- compiled traces keep what they were specialised to
  for _ = 1, 3 do collectgarbage() end
  return core.live_tensors()
end

-- Collecting takes longer than most specs: where one round shows all to be well, it is the only one.
local before
busted.subscribe({ "test", "start" }, function()
  if core.live_tensors() ~= before then before = settle() end
  return nil, true
end)
busted.subscribe({ "test", "end" }, function(element, parent)
  collectgarbage()
  local after = core.live_tensors()
  for _ = 1, 2 do
    if after > before then after = settle() end
  end
  if after > before then
    local message = string.format("%d live tensors before the spec, %d after it", before, after)
    busted.publish({ "failure", "it" }, element, parent, message, { message = message, traceback = "" })
  end
  before = after
  return nil, true
end)
