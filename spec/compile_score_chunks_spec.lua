-- Linear layers with cross entropy, and their gradients, by chunks of rows (src/plan/score_chunks.c): the results of
-- eager ops within a bound, in less memory.
local lm = require "luminary"
local core = require "luminary.core"
local ops_of = require "spec.support.steps.ops_of"
local nn, F = lm.nn, lm.nn.functional

-- Rows of more than one chunk, and the largest difference from eager gradients beside their largest element: sums of
-- rows in another order, and a chunk's product of halves is rounded before it is added.
local rows = {float16 = 2100, bfloat16 = 2100, float32 = 1100, float64 = 600}
local bound = {float16 = 2e-3, bfloat16 = 1.6e-2, float32 = 4e-6, float64 = 1e-14}
local classes, width = 2048, 24
local CHUNKED = "linear %+cross_entropy_rows .*%+cross_entropy_rows_backward %+linear %+mm"

local function is_near(want, got, dtype, what)
  assert.equal(want.dtype, got.dtype)
  local distance = (want:double() - got:double()):abs():max():item()
  local most = want:double():abs():max():item()
  assert(distance <= bound[dtype] * most, ("%s %s: %g of %g"):format(dtype, what, distance, most))
end

-- Calls a step (loss_of(h, w, b, target) -> loss) as it is and by a compiled function; compares losses and gradients.
-- Returns the steps that ran, and the bytes at the peak for each byte of all scores.
local function compare(dtype, loss_of, o)
  o = o or {}
  lm.manual_seed(5)
  local n, device = o.rows or rows[dtype], o.device
  local function randn(...) return lm.randn({...}, {device = device}):to(dtype) end
  local values = {randn(n, width), randn(classes, width) * 0.3, o.bias and randn(classes) or nil}
  local target = lm.randint(1, classes + 1, {n}, {device = device})
  if o.ignore then target:narrow(1, 3, 40):fill_(o.ignore) end
  local function parameters()
    local list = {}
    for i, t in ipairs(values) do list[i] = nn.Parameter(t:clone()) end
    return list
  end
  local plain, params, compiled = parameters(), parameters(), core.compiled(o.exact or false)
  local function body(h, w, b)
    local loss = loss_of(h, w, b, target)
    loss:backward()
    return loss
  end
  local want, got, peak = body(unpack(plain)), nil, nil
  for _ = 1, 4 do
    for _, p in ipairs(params) do p.grad = nil end
    collectgarbage()
    collectgarbage()
    lm.reset_peak_memory_stats()
    local before = lm.memory_allocated()
    got = compiled:call(body, unpack(params))
    peak = (lm.max_memory_allocated() - before) / (n * classes * values[1]:element_size())
  end
  assert.is_true(compiled:state().runs >= 2)
  is_near(want, got, dtype, "loss")
  assert.equal(want._version, got._version)
  for i, p in ipairs(plain) do
    is_near(p.grad, params[i].grad, dtype, "gradient " .. i)
    assert.equal(p.grad._version, params[i].grad._version)
  end
  return ops_of(compiled, 1), peak
end

local function entropy(options, before)
  return function(h, w, b, target)
    local x = before and before(h) or h:tanh()
    local scores = F.linear(x, w, b)
    return F.cross_entropy(scores.ndim > 2 and scores:flatten(1, 2) or scores, target, options)
  end
end

local function autocast(loss_of, dtype)
  return function(...)
    local args = {...}
    return lm.autocast("cpu", function() return loss_of(unpack(args, 1, 4)) end, {dtype = dtype})
  end
end

describe("a linear layer with cross entropy runs by chunks", function()
  for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
    it("in " .. dtype, function()
      assert.matches(CHUNKED, (compare(dtype, entropy())))
      assert.matches(CHUNKED .. " %+sum", (compare(dtype, entropy(), {bias = true})))
    end)

    it("with options, in " .. dtype, function()
      local given = lm.rand(classes):to(dtype)
      assert.matches(CHUNKED, (compare(dtype, entropy {label_smoothing = 0.1}, {ignore = -100, bias = true})))
      assert.matches(CHUNKED, (compare(dtype, entropy {ignore_index = 7}, {ignore = 7})))
      assert.matches(CHUNKED, (compare(dtype, entropy {reduction = "sum"})))
      if dtype ~= "float16" and dtype ~= "bfloat16" then -- which are converted
        assert.matches(CHUNKED, (compare(dtype, entropy {reduction = "sum", weight = given, label_smoothing = 0.2})))
      end
    end)

    it("with a scaled loss, in " .. dtype, function()
      local scale = lm.tensor(4):to(dtype)
      for _, factor in ipairs {0.25, scale} do
        local steps = compare(dtype, function(...) return entropy()(...) * factor end)
        assert.matches(CHUNKED, steps)
      end
    end)

    it("of views, in " .. dtype, function()
      local function batch(h) return h:tanh():view(-1, 10, width) end
      local function part(h) return lm.cat({h, h}, 2):narrow(2, 3, width) end
      assert.matches(CHUNKED, (compare(dtype, entropy(nil, batch))))
      assert.matches(CHUNKED, (compare(dtype, entropy(nil, part))))
      compare(dtype, entropy(nil, function(h) return h:t():contiguous():t() end))
    end)

    it("in less memory, in " .. dtype, function()
      local n = 4 * rows[dtype]
      local _, whole = compare(dtype, entropy(), {rows = n, exact = true})
      local _, chunks = compare(dtype, entropy(), {rows = n})
      assert(whole > 0.9, whole)
      assert(chunks < 0.6 * whole, ("%g of %g"):format(chunks, whole))
    end)
  end

  it("under autocast", function()
    local steps = compare("float32", autocast(entropy(), "bfloat16"), {rows = 2100, exact = true})
    assert.no.matches("%+cross_entropy_rows", steps)
    for _, bias in ipairs {false, true} do
      bound.float32 = 1.6e-2
      steps = compare("float32", autocast(entropy(), "bfloat16"), {rows = 2100, bias = bias})
      bound.float32 = 4e-6
      assert.matches("linear %+cross_entropy_rows .*%+cross_entropy_rows_backward ", steps)
    end
  end)

  it("unless it is small, exact, or the scores are used elsewhere", function()
    local given = lm.rand(classes)
    local function twice(h, w, b, target)
      local scores = F.linear(h, w, b)
      return F.cross_entropy(scores, target) + scores:mean()
    end
    local cases = {
      {entropy(), {rows = 500}}, {entropy(), {exact = true}}, {twice}, {entropy {weight = given}},
      {function(...) return entropy {reduction = "none"}(...):square():mean() end},
    }
    for _, case in ipairs(cases) do
      assert.no.matches("%+cross_entropy_rows", (compare("float32", unpack(case, 1, 2))))
    end
  end)

  it("and scores that the script holds have their values", function()
    local held = {}
    compare("float32", function(h, w, b, target)
      held.scores, held.want = F.linear(h, w, b), h:detach():mm(w:detach():t())
      return F.cross_entropy(held.scores, target)
    end)
    assert.is_true(lm.allclose(held.scores, held.want, {rtol = 1e-4, atol = 1e-4}))
  end)

  it("and a label that is out of range is refused when the loss is computed", function()
    local w, h = nn.Parameter(lm.randn(classes, width)), lm.randn(1100, width)
    local target = lm.randint(1, classes + 1, {1100})
    local step = lm.compile(function(x, y)
      w.grad = nil
      local loss = F.cross_entropy(F.linear(x, w), y)
      loss:backward()
    end)
    for _ = 1, 3 do step(h, target) end
    target[1100] = classes + 1
    assert.error_matches(function() step(h, target) end, "cross_entropy: ")
    target[1100] = classes
    step(h, target)
    assert.is_true(w.grad:isfinite():all():item())
  end)
end)
