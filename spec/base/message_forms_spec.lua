-- The forms of error messages that C's functions use (src/base/message.h), through calls that fail.
local lm = require "luminary"
local form = dofile "spec/support/message.lua"

local function message(f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(why)
end

describe("a message", function()
  local x = lm.ones(2, 3)
  local cases = {
    ["of a bound"] = { form.must_be("linspace", "steps", "at least 0", -1), lm.linspace, 0, 1, -1 },
    ["of a bound on a number"] = { form.must_be("bernoulli", "p", "from 0 to 1", 1.5), lm.bernoulli, x, 1.5 },
    ["of an index"] = { form.index("select", 4, 2, 3), x.select, x, 2, 4 },
    ["of an index of 0"] = { form.index("x[…]", 0, 1, 2), function() return x[0] end },
    ["of two dtypes"] = { form.dtypes("mm", "x", "float32", "other", "float64"), x.mm, x, lm.ones(3, 2):double() },
    ["of two shapes"] = { form.same_shape("linear_recurrence", "x", "decay", "[2, 3]", "[3]"), lm.linear_recurrence, x,
      lm.ones(3), 1 },
    ["of a dtype, with the remedy"] = { form.must_be("softmax", "x", "floating point", "int64")
      .. "; convert it with :float()", lm.softmax, x:long(), 1 },
  }
  for name, case in pairs(cases) do
    it(name .. " has its form and one line", function()
      local why = message(unpack(case, 2))
      assert.matches(case[1], why, 1, true)
      assert.is_nil(why:find "\n")
      assert.is_true(#why <= 200)
    end)
  end

  it("of a reason that is long keeps its remedy", function()
    local why = message(x.view, x, 5, 5)
    assert.matches(form.must_be("view", "size", "6 elements as x of shape [2, 3]", "[5, 5]"), why, 1, true)
  end)
end)
