-- Steps on a GPU (or the stand-in) run by segments: they have the bits of the steps as they are, and a capture by
-- lm.compile captures what the segments run.
local lm = require "luminary"
local core = require "luminary.core"
if not lm.cuda.is_available() then return end
local equal = require "spec.support.steps.equal"
local ops_of = require "spec.support.steps.ops_of"
local ranks = require "spec.support.ranks"
local nn, F = lm.nn, lm.nn.functional

-- Returns the step of a small network with dropout, (x, y) -> loss, the network and its optimizer.
local function trainer(dtype, extra)
  lm.manual_seed(3)
  local net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 3)):to("cuda"):to(dtype)
  local opt = lm.optim.AdamW(net:parameters(), {lr = 0.01})
  return function(x, y)
    opt:zero_grad()
    local loss = F.cross_entropy(net(x) * 2, y)
    if extra then extra(loss, net) end
    loss:backward()
    opt:step()
    return loss
  end, net, opt
end

-- Calls step n times; returns its losses. rows(k): number of samples of the k-th call.
local function run(step, n, dtype, rows)
  lm.manual_seed(4)
  local losses = {}
  for k = 1, n do
    local size = rows and rows(k) or 8
    local x, y = lm.randn({size, 6}, {device = "cuda"}):to(dtype), lm.randint(1, 4, {size}, {device = "cuda"})
    losses[k] = step(x, y):item()
  end
  return losses
end

describe("a step on a GPU by segments", function()
  setup(function() lm.set_default_device "cuda" end)
  teardown(function() lm.set_default_device "cpu" end)

  for _, file in ipairs {"training", "calls"} do
    for _, case in ipairs(require("spec.support.steps." .. file)) do
      local name, make, kinds = unpack(case)
      local is_of_host = name:find "data_ptr" or name:find "loader" or name:find "out of range" -- reported later
      local function compare()
        for i, kind in ipairs(kinds or {"float16", "autocast"}) do
          local ok, text = pcall(equal.compare, make, {kind = kind, pace = i == 1 and 3 or 1, wrap = equal.by_segments})
          assert(ok, ("%s: %s"):format(kind, tostring(text)))
        end
      end
      if not is_of_host then it("has the bits of the step as it is: " .. name, compare) end
    end
  end

  it("casts weights in one launch", function()
    for _, dtype in ipairs {"float16", "bfloat16"} do
      for _, reads in ipairs {false, true} do
        local net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        local compiled, x = core.compiled(), lm.randn(4, 6)
        local function step()
          net:zero_grad()
          local loss = lm.autocast({dtype = dtype}, function()
            local hidden = net[2](net[1](x))
            if reads then hidden:sum():item() end
            return net[3](hidden):float():square():sum()
          end)
          loss:backward()
          return loss:item()
        end
        local want = step()
        for _ = 1, 3 do assert.near(want, compiled:call(step), 2 ^ -6 * math.abs(want)) end
        local rows = ""
        for mark in ("\n" .. compiled:explain(1, true)):gmatch "\n  ([ +]) [^\n]*to_copy%(outside" do
          rows = rows .. mark
        end
        assert.equal(reads and " ++ +" or " ++++", rows) -- x is cast with the weights
      end
    end
  end)

  it("draws the numbers of dropout after a value read between forward and backward", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      local function read(loss) return loss:item() end
      local plain, want = trainer(dtype, read)
      local step, got = trainer(dtype, read)
      local compiled = core.compiled(true)
      assert.same(run(plain, 6, dtype), run(function(...) return compiled:call(step, ...) end, 6, dtype))
      assert.is_true(compiled:state().runs >= 4)
      for i, p in ipairs(want:parameters()) do assert.is_true(p:equal(got:parameters()[i])) end
    end
  end)

  it("writes gradients in float32 where autocast converts them, within a rounding", function()
    local steps = {}
    for _, dtype in ipairs {"float16", "bfloat16"} do
      local losses = {}
      for k, exact in ipairs {true, false} do
        local step, net = trainer "float32"
        local compiled = core.compiled(exact)
        losses[k] = run(function(...)
          return lm.autocast({device_type = "cuda", dtype = dtype}, compiled.call, compiled, step, ...)
        end, 6, "float32")
        assert.is_true(compiled:state().runs >= 4)
        for i = 1, compiled:state().segments do
          local ops = ops_of(compiled, i)
          if ops:find "cross_entropy" then steps[k] = ops end
        end
        losses[k].weight = net[1].weight
      end
      for i, loss in ipairs(losses[1]) do
        assert.near(loss, losses[2][i], 2 ^ -7 * loss, dtype)
      end
      assert.is_true(lm.allclose(losses[1].weight, losses[2].weight, {rtol = 2 ^ -7, atol = 2 ^ -7 * 0.01}))
      local function casts(text) return select(2, text:gsub("to_copy", "")) end
      assert.equal(4, casts(steps[1]) - casts(steps[2])) -- the gradients of two weights and two biases
      assert.equal(2, select(2, steps[2]:gsub("mm_with_sums", "")))
      assert.is_nil(steps[1]:find "mm_with_sums")
    end
  end)

  it("makes gelu and its gradient parts of products of halves, within a rounding", function()
    local function nets(device)
      lm.manual_seed(2)
      local tanh = lm.nn.GELU {approximate = "tanh"}
      return lm.nn.Sequential(lm.nn.Linear(24, 40), tanh, lm.nn.Linear(40, 16), tanh):to(device)
    end
    for _, dtype in ipairs {"float16", "bfloat16"} do
      for _, shape in ipairs {{6, 24}, {2, 3, 24}, {24}, {0, 24}} do
        local want, net, x = nets "cuda", nets "cuda", lm.randn(shape, {device = "cuda"})
        local function step(of)
          of:zero_grad()
          local y = lm.autocast({device_type = "cuda", dtype = dtype}, of.forward, of, x)
          y:float():square():sum():backward()
          return y:detach()
        end
        local y, compiled = step(want), core.compiled(false)
        local got
        for _ = 1, 4 do got = compiled:call(step, net) end
        local ops = ops_of(compiled, 1)
        assert.equal(shape[1] > 0 and 2 or 0, select(2, ops:gsub("addmm_gelu", "")), ops)
        assert.equal(shape[1] > 0 and 1 or 0, select(2, ops:gsub("mm_gelu_backward", "")), ops)
        local off = {rtol = 2 ^ -6, atol = 2 ^ -6}
        assert.is_true(lm.allclose(y:float(), got:float(), off))
        for i, p in ipairs(net:parameters()) do assert.is_true(lm.allclose(want:parameters()[i].grad, p.grad, off)) end
      end
    end
  end)

  it("makes gelu a part of products of any shapes, also where the product is needed", function()
    local function gelu(x) return lm.nn.functional.gelu(x, {approximate = "tanh"}) end
    local function half(...) return lm.randn({...}, {device = "cuda"}):half() end
    local x, w = half(4, 16), half(16, 8)
    local function summed(c) return function() return gelu(c:addmm(x, w)) end end
    local cases = {
      function() return gelu(lm.nn.functional.linear(x, w:t():contiguous())) end,
      function() return gelu(lm.nn.functional.linear(x, w:select(2, 1))) end,
      function() return gelu(lm.zeros({4, 0}, {device = "cuda", dtype = "float16"}):mm(x:narrow(1, 1, 0))) end,
      summed(half(4, 8)), summed(half(1, 8)), summed(half(4, 1)), summed(half(8)),
      function()
        local p = x:mm(w)
        local y = gelu(p)
        p:add_(1)
        return lm.cat {p, y, gelu(p), gelu(p:t()):t()}
      end,
    }
    for i, f in ipairs(cases) do
      local compiled = core.compiled(false)
      for _ = 1, 3 do
        assert.is_true(lm.allclose(f():float(), compiled:call(f):float(), {atol = 2e-2, rtol = 2e-2}), i)
      end
    end
  end)

  it("adds an embedding's gradient to another of its weight row by row", function()
    for _, dtype in ipairs {"float16", "float32", "float64"} do
      for _, padding in ipairs {0, 3} do
        local weights = {lm.randn({9, 8}, {device = "cuda", dtype = dtype}):requires_grad_()}
        weights[2] = weights[1]:detach():clone():requires_grad_()
        local ids = lm.randint(1, 10, {4, 6}, {device = "cuda"}) -- some come several times
        if dtype == "float64" then ids = ids:t() end
        local function step(weight, clears)
          if clears then weight.grad = nil end
          local x = F.embedding(ids, weight, padding > 0 and padding or nil)
          F.linear(x:tanh(), weight):square():mean():backward()
        end
        local compiled = core.compiled(false)
        for call = 1, 6 do -- the gradient is new, or added to
          step(weights[1], call % 3 == 1)
          compiled:call(step, weights[2], call % 3 == 1)
          local off = dtype == "float16" and 2 ^ -8 or 2 ^ -20
          assert.is_true(lm.allclose(weights[1].grad, weights[2].grad, {rtol = off, atol = off}), dtype .. call)
        end
        local sums = ops_of(compiled, 1)
        assert.equal(padding == 0 and dtype ~= "float64", sums:find("index_add_", 1, true) ~= nil, sums)
      end
    end
  end)

  it("settles before work is ordered by streams and events", function()
    local side = lm.cuda.Stream()
    local function step(x)
      local a, ended = (x * 2):tanh() + 1, lm.cuda.Event()
      local b = lm.cuda.stream(side, function() return (a * a):sum() * 3 end)
      ended:record(side)
      ended:wait()
      return b + (a - x):exp():sum()
    end
    local compiled = core.compiled(true)
    for k = 1, 5 do
      local x = lm.randn(32)
      assert.equal(step(x):item(), compiled:call(step, x):item(), k)
    end
    assert.is_nil(compiled:state().reason)
  end)

  it("continues a segment for which memory lacked, once garbage is collected", function()
    local compiled = core.compiled(true)
    local function step(x)
      local y = x
      for _ = 1, 6 do y = (y * 2 - x):tanh() end
      return y
    end
    local x = lm.randn(2 ^ 18)
    local want = step(x)
    for _ = 1, 3 do assert.is_true(compiled:call(step, x):equal(want)) end
    collectgarbage()
    local used, total = lm.cuda.memory_allocated(), select(2, lm.cuda.mem_get_info())
    lm.cuda.empty_cache()
    lm.cuda.set_per_process_memory_fraction((used + 2 ^ 23) / total)
    finally(function() lm.cuda.set_per_process_memory_fraction(1) end)
    for _ = 1, 20 do
      for _ = 1, 5 do lm.empty(2 ^ 18) end -- garbage
      assert.is_true(compiled:call(step, x):equal(want))
    end
    local held = {}
    while pcall(function() held[#held + 1] = lm.empty(2 ^ 18) end) do end
    assert.error_matches(function() compiled:call(step, x) end, "out of memory")
    held = nil
    collectgarbage()
    assert.is_true(compiled:call(step, x):equal(want))
  end)

  it("runs steps of which parts are on other devices as they are", function()
    local first, second = nn.Linear(6, 6):to("cpu"), nn.Linear(6, 3):to("cuda")
    local x, y = lm.randn({4, 6}, {device = "cpu"}), lm.randint(1, 4, {4})
    local compiled = core.compiled(true)
    local function step()
      local loss = F.cross_entropy(second(first(x):tanh():to("cuda")), y)
      loss:backward()
      return loss
    end
    local want = step():item()
    local grad = first.weight.grad:clone()
    for _ = 1, 4 do
      first.weight.grad = nil
      assert.equal(want, compiled:call(step):item())
      assert.is_true(first.weight.grad:equal(grad))
    end
    assert.equal(0, compiled:state().runs)
  end)
end)

describe("lm.compile on a GPU", function()
  it("has the bits of the steps of 2 ranks", function()
    local got = ranks.run {file = "spec/support/steps/equal_rank.lua", args = "cuda", timeout = 120}
    assert(got.ok, got.text)
  end)

  it("captures what the segments run", function()
    for _, dtype in ipairs {"bfloat16", "float32"} do
      for _, change in ipairs {"nothing", "shapes", "weights"} do
        local function rows(k) return change == "shapes" and k % 3 == 0 and 5 or 8 end
        local plain, want = trainer(dtype)
        local step, got = trainer(dtype)
        local compiled, state = lm.compile(step, {exact = true})
        for part = 1, 2 do
          assert.same(run(plain, 8, dtype, rows), run(compiled, 8, dtype, rows))
          if change == "weights" and part == 1 then
            for _, net in ipairs {want, got} do
              lm.manual_seed(5)
              lm.no_grad(function() net[1].weight:copy_(lm.randn(16, 6)) end)
            end
          end
        end
        assert.is_true(state.segments > 0 and state.runs > 2 and state.replays > 3)
        for i, p in ipairs(want:parameters()) do assert.is_true(p:equal(got:parameters()[i])) end
      end
    end
  end)

  it("captures no step whose calls differ", function()
    local step, net = trainer "float32"
    local plain, want = trainer "float32"
    local calls = {0, 0}
    local function counted(f, i)
      return function(x, y)
        calls[i] = calls[i] + 1
        return f(x * calls[i], y)
      end
    end
    local compiled, state = lm.compile(counted(step, 1), {exact = true})
    assert.same(run(counted(plain, 2), 8, "float32"), run(compiled, 8, "float32"))
    assert.same({8, 8, 0}, {calls[1], calls[2], state.captures})
    assert.is_true(want[1].weight:equal(net[1].weight))
  end)

  it("runs segments where a call cannot be captured", function()
    local warned = lm.set_warnings(false)
    finally(function() lm.set_warnings(warned) end)
    for why, extra in pairs {captur = function(loss) loss:item() end, ["not a tensor"] = false} do
      local plain, want = trainer("bfloat16", extra or nil)
      local step, got = trainer("bfloat16", extra or nil)
      local compiled, state = lm.compile(step, {warmup = 1})
      local function call(x, y)
        if extra then return compiled(x, y) end
        return compiled(x, y, 1)
      end
      assert.same(run(plain, 8, "bfloat16"), run(call, 8, "bfloat16"))
      assert.matches(why, state.reason)
      assert.is_true(state.runs > 3)
      assert.equal(0, state.replays)
      for i, p in ipairs(want:parameters()) do assert.is_true(p:equal(got:parameters()[i])) end
    end
  end)
end)
