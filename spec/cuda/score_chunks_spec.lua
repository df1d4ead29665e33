-- A linear layer with cross entropy by chunks of rows on a GPU (src/plan/score_chunks.c), in each dtype's chunk; the
-- CPU's spec has the options.
local lm = require "luminary"
local core = require "luminary.core"
if not lm.cuda.is_available() then return end
local ops_of = require "spec.support.steps.ops_of"
local nn, F = lm.nn, lm.nn.functional

describe("a linear layer with cross entropy on a GPU", function()
  it("runs by chunks, with the values of eager ops within a rounding of sums #long", function()
    lm.manual_seed(6)
    local rows, classes, width, device = 1101, 61000, 4, "cuda"
    local x, y = lm.randn({rows, width}, {device = device}), lm.randint(1, classes + 1, {rows}, {device = device})
    local params = {lm.randn({classes, width}, {device = device}), lm.zeros({classes}, {device = device}), x}
    for i = 1, 3 do params[i] = nn.Parameter(params[i]) end
    local weight, bias = params[1], params[2]
    x = params[3]
    local function body()
      for _, p in ipairs(params) do p.grad = nil end
      local loss = F.cross_entropy(F.linear(x:tanh(), weight, bias), y)
      loss:backward()
      return loss
    end
    local want, wanted = body():item(), {}
    for i, p in ipairs(params) do wanted[i] = p.grad end
    local compiled, peak = core.compiled(), nil
    for _ = 1, 2 do
      collectgarbage()
      collectgarbage()
      lm.reset_peak_memory_stats(device)
      local before = lm.memory_allocated(device)
      assert.near(want, compiled:call(body):item(), 1e-5)
      peak = (lm.max_memory_allocated(device) - before) / (rows * classes * 4)
    end
    assert.equal(1, compiled:state().runs)
    local steps = ops_of(compiled, 1)
    assert.matches("linear %+cross_entropy_rows ones %+cross_entropy_rows_backward %+linear %+mm %+sum", steps)
    for i, p in ipairs(params) do
      local distance = (wanted[i] - p.grad):abs():max():item()
      assert(distance <= 4e-6 * wanted[i]:abs():max():item(), distance)
    end
    assert(peak < 0.6, peak)
  end)
end)
