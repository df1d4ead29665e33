-- Libraries are asked for plans in the first step of a training, and never again: lm.cuda.plan_searches counts.
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end

local steps = require "spec.support.cuda_steps"
local models = dofile "scripts/models.lua"

local cases = {
  {"LeNet", function() return steps.classifier(models.lenet(), 28) end},
  {"ResNet-18", function() return steps.classifier(steps.narrow_resnet(), 8) end},
  {"GPT-2", steps.gpt2},
}

-- Overwrites the C stack, so that padding in local variables, if hashed, would differ with what ran last.
local function dirty_stack() lm.rand({3, 3}, {device = "cuda"}):mm(lm.eye(3, {device = "cuda"})):sum():item() end

describe("plans", function()
  for _, case in ipairs(cases) do
    it("of " .. case[1] .. " are searched for in the first step alone", function()
      local step = case[2]()
      dirty_stack()
      local before = lm.cuda.plan_searches()
      step()
      local first = lm.cuda.plan_searches()
      assert.is_true(first > before)
      dirty_stack()
      for _ = 1, 4 do step() end
      assert.equal(0, lm.cuda.plan_searches() - first)
    end)

    it("of " .. case[1] .. " are those of the steps before, in a capture too", function()
      local step, x, y = case[2]()
      local inputs = {x, y}
      step()
      dirty_stack()
      local before = lm.cuda.plan_searches()
      local graphed = lm.cuda.make_graphed_step(step, inputs, {warmup = 1})
      graphed(unpack(inputs))
      assert.equal(0, lm.cuda.plan_searches() - before)
    end)
  end

  it("of other sizes are searched for once each", function()
    local a = lm.rand({5, 7}, {device = "cuda"})
    local before = lm.cuda.plan_searches()
    a:mm(lm.rand({7, 3}, {device = "cuda"}))
    a:mm(lm.rand({7, 3}, {device = "cuda"}))
    assert.equal(1, lm.cuda.plan_searches() - before)
    a:mm(lm.rand({7, 4}, {device = "cuda"}))
    assert.equal(2, lm.cuda.plan_searches() - before)
    lm.fft.rfft(a)
    lm.fft.rfft(a)
    assert.equal(3, lm.cuda.plan_searches() - before)
  end)
end)
