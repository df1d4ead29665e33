-- Random training programs, whose step runs as it is and by lm.compile (scripts/dev/random_steps.lua): 800, of which
-- sanitizers see 100; LM_TEST_LONG=1: 20,000.
-- parts: 4
local lm = require "luminary"
local is_mine = require "spec.support.part"
local steps = require "scripts.dev.random_steps"

-- Calls fn(name, value, index) for each upvalue of f.
local function each_upvalue(f, fn)
  for i = 1, debug.getinfo(f, "u").nups do fn(debug.getupvalue(f, i), select(2, debug.getupvalue(f, i)), i) end
end

-- Wrong ways to compile a step: each forgets something at the third call or later.
local wrong_ways = {
  ["draws the random numbers of an earlier call"] = function(f, call)
    local state
    return function(...)
      if call() == 2 then state = lm.get_rng_state() end
      if call() > 2 then lm.set_rng_state(state) end
      return f(...)
    end
  end,
  ["returns memory of an earlier call"] = function(f, call)
    local old
    return function(...)
      local results = {f(...)}
      for i, x in pairs(call() > 2 and results or {}) do
        if lm.is_tensor(x) and lm.is_tensor(old[i]) and pcall(function() old[i].data:copy_(x.data) end) then
          results[i] = old[i]
        end
      end
      old = old or results
      return unpack(results, 1, table.maxn(results))
    end
  end,
  ["keeps numbers of the second call"] = function(f, call)
    local old = {}
    return function(...)
      each_upvalue(f, function(_, v, i)
        if type(v) == "number" and call() == 2 then old[i] = v end
        if old[i] then debug.setupvalue(f, i, old[i]) end
      end)
      return f(...)
    end
  end,
  ["keeps the learning rate of the second call"] = function(f, call)
    local lr
    return function(...)
      each_upvalue(f, function(name, v)
        if name == "opt" and call() == 2 then lr = v.param_groups[1].lr end
        if name == "opt" and call() > 2 then v.param_groups[1].lr = lr end
      end)
      return f(...)
    end
  end,
  ["adds to no gradient that is there"] = function(f)
    return function(...)
      each_upvalue(f, function(_, v)
        if lm.is_tensor(v) and v.is_leaf then v.grad = nil end
      end)
      return f(...)
    end
  end,
  ["writes to copies of its inputs"] = function(f)
    return function(...)
      local inputs = {...}
      for i, x in ipairs(inputs) do inputs[i] = x.requires_grad and x or x:clone() end
      return f(unpack(inputs))
    end
  end,
  ["returns contiguous results"] = function(f)
    return function(...)
      local results = {f(...)}
      for i, x in pairs(results) do results[i] = lm.is_tensor(x) and x:contiguous() or x end
      return unpack(results, 1, table.maxn(results))
    end
  end,
}

describe("random training programs", function()
  local threads, warned
  before_each(function() threads, warned = lm.get_num_threads(), lm.set_warnings(false) end)
  after_each(function()
    lm.set_num_threads(threads)
    lm.set_warnings(warned)
  end)

  local TOGETHER = 100
  local programs = os.getenv "LM_TEST_LONG" == "1" and 20000 or os.getenv "LM_SPEC_SANITIZED" == "1" and 100 or 800
  for i = 1, programs / TOGETHER do
    local first, last = (i - 1) * TOGETHER + 1, i * TOGETHER
    if is_mine(i) then
      it(("%d to %d leave the same bits if lm.compile runs their step"):format(first, last), function()
        local recorded = 0
        for seed = first, last do
          local wrong, p, _, runs = steps.wrong(seed)
          if wrong then error(wrong .. "\n" .. steps.script(p, wrong), 0) end
          recorded = recorded + (runs > 0 and 1 or 0)
        end
        assert.is_true(recorded > TOGETHER / 5)
      end)
    end
  end

  if not is_mine(0) then return end
  for name, wrap in pairs(wrong_ways) do
    it("find a step that " .. name, function()
      local function counted(f)
        local count = 0
        local step = wrap(f, function() return count end)
        return function(...)
          count = count + 1
          return step(...)
        end
      end
      for seed = 1, 100 do
        if steps.wrong(seed, {wrap = counted}) then return end
      end
      error "found by none of 100 programs"
    end)
  end

  it("are reduced to what a failure needs", function()
    local function loses_strides(f)
      return function(...)
        local results = {f(...)}
        for i, x in pairs(results) do results[i] = lm.is_tensor(x) and x:contiguous() or x end
        return unpack(results, 1, table.maxn(results))
      end
    end
    local function fails(p) return steps.difference(steps.text(p), p.threads, loses_strides) ~= nil end
    for seed = 1, 100 do
      local wrong, p = steps.wrong(seed, {wrap = loses_strides})
      if wrong then
        local reduced = steps.reduce(p, fails)
        assert.is_true(fails(reduced))
        assert.is_true(#reduced.body <= 4)
        assert.is_true(#reduced.calls <= 2)
        return
      end
    end
    error "nothing to reduce"
  end)
end)
