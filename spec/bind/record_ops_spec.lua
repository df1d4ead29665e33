-- core.record_ops: the steps of a function, its values, and what a recording cannot follow.
local lm = require "luminary"
local core, nn = lm.core, lm.nn

local function ops_of(steps)
  local names = {}
  for i, step in ipairs(steps) do names[i] = step.op end
  return table.concat(names, " ")
end

describe("core.record_ops", function()
  it("lists ops with inputs, attributes, outputs and lines; an op of others is one step", function()
    local x, w = lm.randn(2, 4), lm.randn(3, 4)
    local tape, y = core.record_ops(function(inputs)
      return nn.functional.gelu(nn.functional.linear(inputs[1], w)):transpose(1, 2) * 2
    end, {x})
    local steps, values = tape:steps()
    assert.equal("linear gelu transpose mul", ops_of(steps))
    assert.is_nil(tape:refusal())
    assert.same({x = 1, weight = 2}, steps[1].inputs)
    assert.same({dim0 = 0, dim1 = 1}, steps[3].attributes)
    assert.equal(2, steps[4].attributes.other)
    assert.truthy(steps[1].line:match "record_ops_spec.lua:%d+$")
    assert.equal(1, values[1].input)
    assert.equal(w, values[2].tensor)
    assert.is_nil(values[2].step)
    assert.equal(4, values[tape:id(y)].step)
    assert.same({4, 3}, {values[3].shape[1] + 2, values[3].shape[2]})
  end)

  it("records views and writes in place with the values that they share", function()
    local x = lm.ones(3, 2)
    local tape = core.record_ops(function(inputs)
      local y = lm.zeros(3, 2)
      y[2] = inputs[1][1]
      y:add_(1)
      return y
    end, {x})
    local steps = tape:steps()
    assert.equal("zeros select select copy_ add", ops_of(steps))
    assert.is_true(steps[4].in_place and steps[5].in_place)
    assert.same(steps[1].outputs, steps[5].outputs)
    assert.is_false(steps[1].dynamic)
    assert.is_true(steps[4].dynamic)
  end)

  it("refuses values that a script reads, with the line, and marks random ops", function()
    local x = lm.ones(2)
    for _, read in ipairs {
      function(y) return y:sum():item() end, function(y) return y:totable() end, function(y) return (y * 2)[1] end,
      tostring, lm.tensor, function(y) return lm.arange(y:sum()) end, function(y) return lm.zeros(y:sum():long()) end,
      function(y) return lm.core.gather_rows(y:view(2, 1), lm.tensor({2, 1}, {dtype = "int64"})) end,
      function(y) return lm.vision.transforms.functional.resize(y:view(1, 1, 2), {4, 4}) end,
    } do
      local tape = core.record_ops(function(inputs) return read(inputs[1]) end, {x})
      assert.truthy(tape:refusal():match "record_ops_spec.lua:%d+: %a.* reads values that depend on the inputs")
    end
    assert.is_nil(core.record_ops(function() return lm.ones(2):sum():item() end, {x}):refusal())
    local steps = core.record_ops(function() return nn.functional.dropout(x, 0.5, true) end, {x}):steps()
    assert.is_true(steps[1].random)
  end)

  it("passes tensors of its own: an input is neither another input nor a tensor that the function has", function()
    local x = lm.ones(2)
    local tape, y, z = core.record_ops(function(inputs)
      local a, b = inputs[1], inputs[2]
      return a - b, a - x
    end, {x, x})
    local steps, values = tape:steps()
    assert.same({1, 2}, {steps[1].inputs.x, steps[1].inputs.other})
    assert.equal(x, values[steps[2].inputs.other].tensor)
    assert.same({{0, 0}, {0, 0}}, {y:totable(), z:totable()})
  end)

  it("stops recording after an error, and nests", function()
    local x = lm.ones(2)
    assert.has_error(function() core.record_ops(function() error "no" end, {x}) end)
    local inner
    local outer = core.record_ops(function()
      inner = core.record_ops(function() return x + 1 end, {x})
      return x * 2
    end, {x})
    assert.equal("add", ops_of(inner:steps()))
    assert.equal("mul", ops_of(outer:steps()))
  end)
end)
