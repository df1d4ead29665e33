-- core.set_source: nodes keep no reference to memory that can be fetched again.
local lm = require "luminary"
local core = require "luminary.core"
local error_of = require "spec.support.error_of"

describe("a tensor with a source", function()
  local from, calls

  -- Returns a tensor of 4096 elements with the values of `from`, which its source makes again.
  local function fetch()
    calls = calls + 1
    local made = lm.no_grad(function() return from:detach():clone() end)
    core.set_source(made, fetch, from)
    return made
  end

  before_each(function()
    from, calls = lm.arange(1, 4097, { dtype = "float64" }):view(64, 64), 0
  end)

  it("is freed while a graph needs it, and fetched by backward", function()
    local x = lm.ones(2, 64, { dtype = "float64" }):requires_grad_()
    collectgarbage()
    local before = lm.memory_allocated()
    local w = fetch()
    local y = (x:matmul(w:t()) * 2):matmul(w[{ {}, { 1, 32 } }]):sum()
    assert(lm.memory_allocated() - before >= 64 * 64 * 8)
    w:free()
    collectgarbage()
    collectgarbage()
    assert(lm.memory_allocated() - before < 64 * 64 * 8)
    assert.equal(1, calls)
    y:backward { retain_graph = true }
    assert(calls > 1)
    local first = x.grad:clone()
    local w2 = from:clone()
    local z = lm.ones(2, 64, { dtype = "float64" }):requires_grad_();
    (z:matmul(w2:t()) * 2):matmul(w2[{ {}, { 1, 32 } }]):sum():backward()
    assert(lm.equal(z.grad, first))
    y:backward()
    assert(lm.equal(x.grad, first * 2))
  end)

  it("stays in memory if it was written before it was saved", function()
    local x = lm.ones(1, 64, { dtype = "float64" }):requires_grad_()
    local w = fetch()
    w:mul_(3)
    local y = x:matmul(w):sum()
    w:free()
    y:backward()
    assert.equal(1, calls)
    assert(lm.equal(x.grad, (from * 3):sum(2):view(1, 64)))
  end)

  it("is an error in backward if its values changed, or the source fails or returns another tensor", function()
    local x = lm.ones(1, 64, { dtype = "float64" }):requires_grad_()
    local function loss() return x:matmul(fetch()):sum() end
    local y = loss()
    from:add_(1)
    assert.matches("add_ changed it in place", error_of(function() y:backward() end), 1, true)
    local w = fetch()
    y = x:matmul(w):sum()
    w:mul_(2)
    y:backward() -- fetched again: the change is lost, as the memory would be
    w = lm.ones(64, 64, { dtype = "float64" })
    core.set_source(w, function() error "gone" end, from)
    y = x:matmul(w):sum()
    assert.matches("gone", error_of(function() y:backward() end), 1, true)
    for _, wrong in ipairs { false, lm.ones(2), lm.ones(2, { dtype = "float64" }):to "cpu:1" } do
      core.set_source(w, function() return wrong or nil end, w)
      y = x:matmul(w):sum()
      assert(error_of(function() y:backward() end))
    end
    assert.matches("f must be a function", error_of(function() core.set_source(w, 3, w) end), 1, true)
  end)

  it("is fetched in checkpoints, by custom functions and by second derivatives", function()
    local x = lm.ones(1, 64, { dtype = "float64" }):requires_grad_()
    local Times = lm.autograd.Function:extend "Times"
    function Times.forward(ctx, a, b)
      ctx:save_for_backward(b)
      return a * b
    end
    function Times.backward(ctx, g) return g * ctx.saved_tensors[1], nil end
    local w = fetch()
    local y = Times(x, w[1]):sum()
    w:free()
    y:backward()
    assert(lm.equal(x.grad[1], from[1]))
    x.grad = nil
    y = lm.autograd.checkpoint(function(t)
      local product = t:matmul(fetch())
      return product:square():sum()
    end, x)
    y:backward()
    local wanted = x.grad
    w = fetch()
    local z = x:matmul(w):square():sum()
    w:free()
    local g = lm.autograd.grad(z, x, { create_graph = true })
    if type(g) == "table" then g = g[1] end
    assert(lm.equal(g:detach(), wanted))
    local second = lm.autograd.grad(g:sum(), x)
    if type(second) == "table" then second = second[1] end
    local plain = 2 * from:matmul(from:t()):sum(1)
    assert((second:view(-1) - plain):abs():max():item() <= 1e-9 * plain:max():item())
  end)
end)
