--- Scripts that several ranks run, each a process, to their end.
---   local several = require "spec.support.several"
---   local on = several(prelude)        -- Lua that each script begins with
---   on.run(n, script, env)             -- on n ranks; returns what ranks.run returns
---   on.succeeds(n, script, env)        -- and fails unless every rank came to its end
--- Scripts find lm, dist, nn, F and optim, rank and size in a process group, message(f, ...) (what f fails with) and
--- contains(text, wanted).
local ranks = require "spec.support.ranks"

local first = [[
local lm = require "luminary"
local dist, nn, F, optim = lm.dist, lm.nn, lm.nn.functional, lm.optim
dist.init_process_group { timeout = 20 }
local rank, size = dist.get_rank(), dist.get_world_size()
local function message(f, ...)
  local ok, problem = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(problem)
end
local function contains(text, wanted)
  if not text:find(wanted, 1, true) then error("no '" .. wanted .. "' in: " .. text, 2) end
end
]]

local last = [[

dist.destroy_process_group()
print "finished"
]]

return function(prelude, timeout)
  local on = {}

  function on.run(n, script, env)
    return ranks.run { n = n, script = first .. prelude .. script .. last, timeout = timeout or 40, env = env }
  end

  function on.succeeds(n, script, env)
    local got = on.run(n, script, env)
    assert(got.ok, got.text)
    for rank = 0, n - 1 do assert(got[rank].output:find("finished", 1, true), got.text) end
    return got
  end

  return on
end
