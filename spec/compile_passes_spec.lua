-- Passes over the segments of a compiled step (src/plan/): what each does to the steps of a small program. The bits of
-- whole trainings are compared by compile_steps_spec.lua.
local lm = require "luminary"
local core = require "luminary.core"
local ops_of = require "spec.support.steps.ops_of"
local nn, F = lm.nn, lm.nn.functional

local dtypes = {"float16", "bfloat16", "float32", "float64"}

-- Calls a step of a list of parameters as it is and by a compiled function, and compares its gradients; returns the
-- steps of the first segment.
local function steps_of(shapes, dtype, body)
  lm.manual_seed(7)
  local plain, params = {}, {}
  for i, shape in ipairs(shapes) do
    plain[i] = nn.Parameter(lm.randn(shape):to(dtype))
    params[i] = nn.Parameter(plain[i]:detach():clone())
  end
  local compiled = core.compiled()
  for _ = 1, 4 do
    for i in ipairs(shapes) do plain[i].grad, params[i].grad = nil, nil end
    body(unpack(plain))
    compiled:call(body, unpack(params))
    for i in ipairs(shapes) do
      assert.is_true(lm.equal(plain[i].grad, params[i].grad))
    end
  end
  assert.is_true(compiled:state().runs >= 2)
  return ops_of(compiled, 1)
end

-- Calls fn for matrices of few elements, of more than a tile, and of several blocks of a product.
local function each_size(fn)
  for _, dtype in ipairs(dtypes) do
    for _, rows in ipairs {3, 40, 700} do fn(dtype, rows) end
  end
end

describe("passes over a compiled step:", function()
  it("elementwise steps move to the step whose values they read", function()
    each_size(function(dtype, rows)
      local steps = steps_of({{rows, 48}, {56, 48}, {56}}, dtype, function(x, w, b)
        local y = (F.linear(x:tanh(), w, b):sin() * 30):sum()
        y:backward()
      end)
      assert.matches("^tanh linear %+sin %+mul sum", steps)
      assert.matches("ones_like mul %+sin linear %+tanh mm sum", steps)
    end)
  end)

  it("no step moves before one that changes what it reads", function()
    each_size(function(dtype, rows)
      local at = lm.zeros({rows, 48}, {dtype = dtype})
      local steps = steps_of({{rows, 48}}, dtype, function(x)
        local y = x:tanh()
        at:copy_(x.data):add_(1)
        local z = y * at
        z:sum():backward()
      end)
      assert.matches("^tanh copy_ add_ mul", steps)
    end)
  end)

  it("sums of gradients in place join rows", function()
    each_size(function(dtype, rows)
      local steps = steps_of({{rows, 48}, {48, 48}}, dtype, function(x, w)
        local y = x:tanh()
        local z = F.linear(y, w) + F.linear(y * y, w)
        z:sum():backward()
        assert.equal(1, w.grad._version)
      end)
      assert.matches("linear %+mul %+mul %+add ", steps)
      assert.matches("linear %+add %+tanh", steps)
      assert.matches("mm %+add", steps)
    end)
  end)

  it("results take the memory of operands that are not needed later", function()
    for _, dtype in ipairs(dtypes) do
      local w = nn.Parameter(lm.randn(512, 512):to(dtype))
      local bytes = w:numel() * w:element_size()
      local function body()
        local y = w:exp():mean()
        collectgarbage() -- the script holds no other results
        y:backward()
        return w.grad
      end
      local want = body():clone()
      w.grad = nil
      local step, peak = lm.compile(body), nil
      for _ = 1, 5 do
        w.grad = nil
        collectgarbage()
        collectgarbage()
        lm.reset_peak_memory_stats()
        local before = lm.memory_allocated()
        step()
        peak = (lm.max_memory_allocated() - before) / bytes
      end
      assert.is_true(lm.equal(want, w.grad))
      assert(peak < 1.5, peak)
    end
  end)

  it("results that the script holds keep their memory", function()
    each_size(function(dtype, rows)
      local held = {}
      steps_of({{rows, 48}, {56, 48}}, dtype, function(x, w)
        local y = F.linear(x, w)
        local z = y:sigmoid()
        local u = z:tanh():sum()
        u:backward()
        held[#held + 1] = {y, z, u}
      end)
      for _, each in ipairs(held) do
        local y, z, u = unpack(each)
        assert.is_true(lm.equal(y:sigmoid(), z))
        assert.equal(z:tanh():sum():item(), u:item())
      end
    end)
  end)
end)
