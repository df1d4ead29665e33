-- lm.linear_sum_assignment: SciPy's assignments, also of equal sums, in every dtype and layout.
local lm = require "luminary"
local message = require "spec.support.error_of"

-- Whole numbers below 11.
local function costs(n, m)
  local rows = {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, m do rows[i][j] = ((i - 1) * 7 + (j - 1) * 5 + (i - 1) * (j - 1) * 3) % 11 end
  end
  return lm.tensor(rows)
end

local function check(cost, want, maximize)
  local rows, columns = lm.linear_sum_assignment(cost, { maximize = maximize })
  assert.same({ "int64", "int64" }, { rows.dtype, columns.dtype })
  assert.same(want, { rows:totable(), columns:totable() })
end

describe("lm.linear_sum_assignment", function()
  for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64", "uint8", "int8", "int64" } do
    it("matches as SciPy does: " .. dtype, function()
      for _, row in ipairs {
        { 5, 5, { { 1, 2, 3, 4, 5 }, { 1, 3, 4, 5, 2 } }, { { 1, 2, 3, 4, 5 }, { 3, 4, 2, 1, 5 } } },
        { 3, 6, { { 1, 2, 3 }, { 1, 3, 2 } }, { { 1, 2, 3 }, { 3, 4, 1 } } },
        { 6, 3, { { 1, 2, 6 }, { 1, 3, 2 } }, { { 1, 2, 4 }, { 3, 2, 1 } } },
        { 4, 4, { { 1, 2, 3, 4 }, { 1, 3, 4, 2 } }, { { 1, 2, 3, 4 }, { 3, 4, 2, 1 } } },
      } do
        local cost = costs(row[1], row[2]):to(dtype)
        local wide = lm.zeros({ row[1], 2 * row[2] + 1 }, { dtype = dtype })
        wide[{ {}, { 2, -1, 2 } }]:copy_(cost)
        for _, layout in ipairs { cost, cost:t():contiguous():t(), wide[{ {}, { 2, -1, 2 } }] } do
          check(layout, row[3])
          check(layout, row[4], true)
        end
      end
      check(lm.zeros({ 3, 5 }, { dtype = dtype }), { { 1, 2, 3 }, { 1, 2, 3 } })
      check(lm.zeros({ 5, 3 }, { dtype = dtype }), { { 1, 2, 3 }, { 1, 2, 3 } })
      for _, size in ipairs { { 0, 3 }, { 3, 0 }, { 0, 0 } } do check(lm.zeros(size, { dtype = dtype }), { {}, {} }) end
    end)
  end
  it("takes tables, masks, infinity and tensors of a graph", function()
    check({ { 4, 1, 3 }, { 2, 0, 5 }, { 3, 2, 2 } }, { { 1, 2, 3 }, { 2, 1, 3 } })
    check(lm.eye(3):gt(0), { { 1, 2, 3 }, { 1, 2, 3 } }, true)
    local cost = costs(4, 4)
    cost[{ 1, 2 }] = math.huge
    cost[{ 3, { 1, 3 } }] = math.huge
    check(cost:requires_grad_(true), { { 1, 2, 3, 4 }, { 1, 3, 4, 2 } })
  end)
  it("refuses what has no assignment", function()
    local assign = lm.linear_sum_assignment
    assert.matches("expected cost to have shape %[n, m%], got %[3%]", message(assign, lm.zeros(3)))
    assert.matches("expected cost to have shape %[n, m%], got 3", message(assign, 3))
    assert.matches("cost must not be NaN or %-inf", message(assign, lm.tensor { { 0 / 0 } }))
    assert.matches("cost must not be NaN or %-inf", message(assign, lm.tensor { { -math.huge } }))
    assert.matches("cost must not be NaN or inf", message(assign, lm.tensor { { math.huge } }, { maximize = true }))
    assert.matches("allow an assignment with a finite sum", message(assign, lm.full({ 2, 2 }, math.huge)))
  end)
end)
