-- Expressions of the benches, and their gradients, with several numbers of threads: the same bits. Every second one, or
-- all with LM_TEST_LONG=1.
local lm = require "luminary"
local core = require "luminary.core"
local cases = require "scripts.bench.ops_cases"

-- Returns false for what differs from call to call: draws, memory as it was, inputs written in place.
local function repeats(group, expression)
  if group == "draws" or expression:find "_%(" then return false end
  for _, word in ipairs {"dropout", "rrelu", "fractional", "multinomial", "bernoulli", "empty", "rand"} do
    if expression:find(word, 1, true) then return false end
  end
  return true
end

local function are_same(a, b)
  local equal = a:eq(b)
  if core.is_floating_point(a) then equal = equal:logical_or(a:isnan():logical_and(b:isnan())) end
  return equal:all():item()
end

-- Returns the tensors among an expression's results, and the gradients of `grads`.
local function results(grads, expression, inputs)
  local env, leaves, list = setmetatable({}, {__index = inputs}), {}, {}
  for name in grads:gmatch "%S+" do
    env[name] = inputs[name]:clone():requires_grad_()
    leaves[#leaves + 1] = env[name]
  end
  local out = {cases.compile(expression, env)()}
  for _, x in ipairs(out) do
    if core.is_tensor(x) then list[#list + 1] = x:detach() end
  end
  if #leaves == 0 then return list end
  local gradient = lm.arange(out[1]:numel()):remainder(7):sub(3):reshape(out[1].shape):to(out[1].dtype)
  out[1]:backward(gradient)
  for _, leaf in ipairs(leaves) do list[#list + 1] = leaf.grad end
  return list
end

local long = os.getenv "LM_TEST_LONG" == "1"

describe("any number of threads #full #unsanitized", function()
  local threads = lm.get_num_threads()
  after_each(function() lm.set_num_threads(threads) end)

  it("gives the same bits", function()
    lm.manual_seed(1)
    local inputs = {lm = lm, F = lm.nn.functional, select = select}
    for name in pairs(cases.inputs) do inputs[name] = cases.input(lm, name) end
    for name, expression in pairs(cases.derived) do
      inputs[name] = cases.compile(expression:match "^[^|]*", inputs)()
    end
    local compared, seen = 0, 0
    cases.each(function(grads, expression, group)
      if not repeats(group, expression) then return end
      seen = seen + 1
      if seen % 2 == 0 and not long then return end
      lm.set_num_threads(1)
      local alone = results(grads, expression, inputs)
      for _, n in ipairs(long and {2, 5} or {5}) do
        lm.set_num_threads(n)
        for k, x in ipairs(results(grads, expression, inputs)) do
          assert(are_same(alone[k], x), ("%s: result or gradient %d with %d threads"):format(expression, k, n))
          compared = compared + 1
        end
      end
    end)
    assert.is_true(compared > 300)
  end)
end)
