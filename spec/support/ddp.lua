--- Scripts of DistributedDataParallel's specs: what each begins with, and runs of them.
---   ddp.run(n, script, env)       on n ranks; returns what ranks.run returns
---   ddp.succeeds(n, script, env)  and fails unless every rank came to its end
local several = require "spec.support.several"

-- First lines of every script, after those of several: a small convolution network in float64.
local prelude = [[
local core = require "luminary.core"
local DDP = nn.parallel.DistributedDataParallel
local function lenet()
  return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(54, 20), nn.ReLU(), nn.Linear(20, 10)):double()
end
local function copy_of(net, make)
  local twin = (make or lenet)()
  twin:load_state_dict(net:state_dict())
  return twin
end
-- The same on every rank, another one each time.
local seed = 10
local function batch(n)
  seed = seed + 1
  lm.manual_seed(seed)
  return lm.randn({ n, 1, 12, 12 }, { dtype = "float64" }), lm.randint(1, 11, { n })
end
local function difference(a, b)
  local worst = 0
  for i, p in ipairs(a) do worst = math.max(worst, (p:detach() - b[i]:detach()):abs():max():item()) end
  return worst
end
local function near(what, a, b, tolerance)
  local off = type(a) == "table" and difference(a, b) or math.abs(a - b)
  if not (off <= (tolerance or 1e-9)) then error(what .. " differs by " .. off) end
end
local function grads(net)
  local list = {}
  for i, p in ipairs(net:parameters()) do list[i] = p.grad end
  return list
end
]]

local ddp = several(prelude, 60)

--- Lines for scripts: a net of which each pass uses one of two sides, and never all.
ddp.branches = [[
  local Net = nn.Module:extend("Net")
  function Net:init()
    self.first, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
    self.never = nn.Linear(3, 1)
  end
  function Net:forward(x, side) return self[side](self.first(x)) end
  local net = Net():double()
]]

return ddp
