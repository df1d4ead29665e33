-- Fails a spec after which the number of live tensors is not what it was. Loaded before any
-- spec file, so that all of them share one luminary, whose parts are loaded now: busted forgets what a
-- spec file has loaded, but `luminary` would continue with it.
local busted = require "busted"
local lm = require "luminary"
for _, part in ipairs { "nn", "optim", "data", "dist", "mp", "autograd", "checkpoint", "watch", "cuda", "backends" } do
  assert(lm[part], part)
end
local core = require "luminary.core"
lm.set_warnings(false) -- specs cause them on purpose

local function settle()
  jit.flush() -- compiled traces keep what they were specialised to
  for _ = 1, 3 do collectgarbage() end
  return core.live_tensors()
end

-- Returns whether this spec is the last before a block's setup or teardown, which make tensors and let them go.
local function ends_a_row(element, parent)
  local siblings = busted.children(parent)
  for i, sibling in ipairs(siblings) do
    if sibling == element then return not siblings[i + 1] or siblings[i + 1].descriptor ~= "it" end
  end
end

-- Collecting takes longer than most specs: it is done once for those that follow each other in a block. Where one
-- collection shows all to be well, it is the only one.
local before
local row = {} -- names of the specs since then
busted.subscribe({ "test", "start" }, function(element)
  row[#row + 1] = element.name
  if #row == 1 and core.live_tensors() ~= before then
    repeat
      before = core.live_tensors()
      collectgarbage()
    until core.live_tensors() >= before
  end
  return nil, true
end)
busted.subscribe({ "test", "end" }, function(element, parent)
  element.env = nil -- busted keeps all specs, and each collection would walk what it gave them
  if not ends_a_row(element, parent) then return nil, true end
  collectgarbage()
  local after = core.live_tensors()
  for _ = 1, 2 do
    if after > before then after = settle() end
  end
  if after > before then
    local which = #row == 1 and "the spec" or ("the %d specs from '%s' on"):format(#row, row[1])
    local message = string.format("%d live tensors before %s, %d after %s", before, which, after,
      #row == 1 and "it" or "them")
    busted.publish({ "failure", "it" }, element, parent, message, { message = message, traceback = "" })
  end
  before, row = after, {}
  return nil, true
end)
