-- Index tensors, labels, masks and lengths that another process writes to while an op reads them: an error or a result,
-- never a read or write beyond a tensor. The checked value must be the one that is used.
local temp = require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- A writer alternates between values that are in range and others, and each call meets it at another moment.
local RACE = [[
local lm = require "luminary"
local F = lm.nn.functional
lm.set_num_threads(1)
local case, FAR = arg[1], 2 ^ 40
local function int64(n, value) return lm.full({n}, value, {dtype = "int64"}) end
local function bools(n, value) return lm.full({n}, value, {dtype = "bool"}) end
local N, MASK = 2e5, 4e6
local ones, x = lm.ones(N), lm.zeros(4)
local labels = {int64(N, 1), int64(N, FAR)}
local masks = {bools(MASK, false), bools(MASK, true)}
local cases = {
  scatter_ = {labels, function(i) x:scatter_(1, i, ones) end},
  one_hot = {labels, function(i) F.one_hot(i, 2) end},
  index_put_ = {labels, function(i) x[i] = 3 end},
  index_select = {labels, function(i) return lm.zeros(64, 4):index_select(2, i) end},
  embedding_bag = {labels, function(i) F.embedding_bag(i, lm.zeros(4, 4), lm.ones({1}, {dtype = "int64"})) end},
  ctc_loss = {{int64(2000, 2), int64(2000, FAR)}, function(i)
    F.ctc_loss(lm.zeros(4000, 1, 4):log_softmax(-1), i:unsqueeze(1), int64(1, 4000), int64(1, 2000))
  end, 50},
  nonzero = {masks, function(i) return i:nonzero() end, 50},
  masked_select = {masks, function(i) return i:masked_select(i) end, 50},
}
local values, op = cases[case][1], cases[case][2]
local index = values[1]:clone():share_memory_()
local writes, stop = lm.zeros(1):share_memory_(), lm.zeros(1):share_memory_()
local args = {index, values[1], values[2], writes, stop}
local writer = lm.mp.Process {args = args, target = function(to, good, bad, n, till)
  require("luminary").set_num_threads(1)
  while till:item() == 0 do
    to:copy_(good)
    to:copy_(bad)
    n:add_(1)
  end
end}
writer:start()
while writes:item() == 0 do end
local taken, refused = 0, 0
local began = os.clock()
for _ = 1, cases[case][3] or 2000 do
  if pcall(op, index) then taken = taken + 1 else refused = refused + 1 end
  if os.clock() - began > 1 then break end -- sanitizers are slow, but miss nothing that a call does
end
stop:fill_(1)
writer:join()
print(case, taken + refused)
]]

describe("another process's writes to", function()
  for _, case in ipairs {
    "scatter_", "one_hot", "index_put_", "index_select", "embedding_bag", "ctc_loss", "nonzero", "masked_select",
  } do
    it("what " .. case .. " reads are no crash", function()
      local script = temp.write(folder .. "/race.lua", RACE)
      local _, text, code = temp.run(folder, ("timeout -k 2 120 luajit %s %s"):format(script, case))
      assert.equal(0, code, text)
      assert.truthy(text:find("^" .. case .. "\t%d+\n$"), text)
    end)
  end
end)

describe("an index in memory of this thread alone", function()
  it("is not copied, and one that others have is", function()
    local lm, core = require "luminary", require "luminary.core"
    local x, index = lm.zeros(4), lm.ones({1e6}, {dtype = "int64"})
    local source = lm.ones(1e6)
    local function peak(i)
      collectgarbage()
      collectgarbage()
      lm.reset_peak_memory_stats()
      local before = lm.memory_allocated()
      x:scatter_add_(1, i, source)
      return lm.max_memory_allocated() - before
    end
    assert.is_true(peak(index) < 8e6)
    local here, there = core.mp_pipe(true)
    core.mp_put(here, "", {index}, nil, 1) -- to another thread, which has the same memory
    local _, passed = core.mp_get(there, 0)
    assert.is_true(peak(index) >= 8e6)
    assert.is_true(peak(passed[1]) >= 8e6)
    assert.is_true(peak(index:clone():share_memory_()) >= 8e6)
  end)
end)
