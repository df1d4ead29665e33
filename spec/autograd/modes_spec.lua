-- Functions that run a function in a mode: no_grad, enable_grad, autocast, scope; and keep and free.
local lm = require "luminary"
local core = require "luminary.core"
local nn = lm.nn
local file = debug.getinfo(1, "S").short_src

local function pack(...) return { n = select("#", ...), ... } end
local function here() return debug.getinfo(2, "l").currentline end

-- Tests what every such function promises. `inside` reports whether the mode is on.
local function promises(name, run, inside)
  it(name .. " passes arguments and returns what f returns", function()
    assert.same({ n = 4, 1, nil, "three", nil }, pack(run(function(...) return ... end, 1, nil, "three", nil)))
    assert.same({ n = 0 }, pack(run(function() end)))
  end)

  it(name .. " ends when f errors, and passes the error on", function()
    assert.is_false(inside())
    local value = setmetatable({}, { __tostring = function() return "a table" end })
    local ok, err = pcall(run, function()
      assert.is_true(inside())
      error(value)
    end)
    assert.is_false(ok)
    assert.equal(value, err)
    assert.is_false(inside())
    local line
    ok, err = pcall(run, function()
      line = here() + 1
      error("out")
    end)
    assert.is_false(ok)
    assert.equal(("%s:%d: out"):format(file, line), err)
    assert.is_false(inside())
  end)

  it(name .. " cannot be left by a yield", function()
    local co = coroutine.create(function() run(coroutine.yield) end)
    local ok, err = coroutine.resume(co)
    assert.is_false(ok)
    assert.matches("yield", err)
    assert.is_false(inside())
  end)

  it(name .. " asks for a function", function()
    assert.error_matches(function() run(3) end, name .. ": f must be a function, got 3; write lm%.")
    local _, why = pcall(run)
    local absent = why:find("f is missing; expected a function; write lm.", 1, true)
    assert(absent or why:find("f must be a function, got nil; write lm.", 1, true), why) -- run may pass nil
  end)
end

describe("no_grad", function()
  promises("no_grad", lm.no_grad, function() return not lm.is_grad_enabled() end)

  it("nests with enable_grad", function()
    local x = lm.ones({ 1 }, { requires_grad = true })
    lm.no_grad(function()
      assert.is_false((x + 1).requires_grad)
      lm.enable_grad(function()
        assert.is_true((x + 1).requires_grad)
        lm.no_grad(function() assert.is_false((x + 1).requires_grad) end)
        assert.is_true((x + 1).requires_grad)
      end)
      assert.is_false((x + 1).requires_grad)
    end)
    assert.is_true((x + 1).requires_grad)
  end)

  it("has a switch beside it that returns the mode before", function()
    assert.is_true(lm.set_grad_enabled(false))
    assert.is_false(lm.is_grad_enabled())
    assert.is_false(lm.set_grad_enabled(true))
    assert.is_true(lm.is_grad_enabled())
  end)
end)

describe("set_grad_enabled", function()
  it("takes a function as no_grad and enable_grad do", function()
    local x = lm.ones({2}, {requires_grad = true})
    for _, on in ipairs {true, false} do
      local y, n = lm.set_grad_enabled(on, function(a) return a * 2, 7 end, x)
      assert.same({on, 7, true}, {y.requires_grad, n, lm.is_grad_enabled()})
    end
    assert.error_matches(function() lm.set_grad_enabled(nil, print) end, "on must be true or false")
    assert.error_matches(function() lm.set_grad_enabled(false, 3) end, "function")
    assert.is_true(lm.is_grad_enabled())
  end)
end)

describe("enable_grad", function()
  -- Tried where grad is off, so that being inside shows.
  before_each(function() lm.set_grad_enabled(false) end)
  after_each(function() lm.set_grad_enabled(true) end)
  promises("enable_grad", lm.enable_grad, lm.is_grad_enabled)
end)

describe("autocast", function()
  local low = { device = "cpu", dtype = "bfloat16" }
  promises("autocast", function(...) return lm.autocast(low, ...) end, lm.is_autocast_enabled)

  it("computes products in the low dtype and losses in float32", function()
    local a, b = lm.randn(4, 8), lm.randn(8, 4)
    lm.autocast(low, function()
      assert.equal("bfloat16", a:mm(b).dtype)
      assert.equal("bfloat16", lm.matmul(a, b).dtype)
      assert.equal("bfloat16", lm.linear(a, b:t()).dtype)
      assert.equal("float32", (a + 1).dtype)
      assert.equal("float32", lm.mse_loss(a:mm(b), a:mm(b)).dtype)
      assert.equal("bfloat16", a:mm(b):relu().dtype)
      assert.equal("float32", (a:mm(b) + a[{ {}, { 1, 4 } }]).dtype)
      lm.autocast({ enabled = false }, function() assert.equal("float32", a:mm(b).dtype) end)
      lm.autocast({ dtype = "float16" }, function() assert.equal("float16", a:mm(b).dtype) end)
      assert.equal("bfloat16", a:mm(b).dtype)
    end)
    assert.equal("float32", a:mm(b).dtype)
  end)

  it("leaves integers and float64 alone", function()
    local x = lm.randn(3, 3):double()
    lm.autocast(low, function()
      assert.equal("float64", x:mm(x).dtype)
      assert.equal("int64", lm.arange(3):add(1).dtype)
    end)
  end)

  it("gives float32 leaves float32 gradients", function()
    local w = lm.randn({ 3, 3 }, { requires_grad = true })
    lm.autocast(low, function() lm.mm(lm.ones(2, 3), w):sum():backward() end)
    assert.equal("float32", w.grad.dtype)
    assert.same({ { 2, 2, 2 }, { 2, 2, 2 }, { 2, 2, 2 } }, w.grad:totable())
  end)

  it("refuses what it does not know", function()
    assert.error_matches(function() lm.autocast({ dtype = "float64" }, print) end, "autocast: dtype.*bfloat16.*float64")
    assert.error_matches(function() lm.autocast({ dtyp = "bfloat16" }, print) end,
      "autocast.*dtyp.*did you mean 'dtype'")
    assert.error_matches(function() lm.autocast(print) end, "autocast: options")
    assert.error_matches(function() lm.autocast({ enabled = 1 }, print) end, "autocast: enabled.*true or false")
  end)
end)

describe("scope", function()
  local depth = 0
  promises("scope", function(f, ...)
    if type(f) ~= "function" then return lm.scope(f) end
    return lm.scope(function(...)
      depth = depth + 1
      local results = pack(pcall(f, ...))
      depth = depth - 1
      if not results[1] then error(results[2], 0) end
      return unpack(results, 2, results.n)
    end, ...)
  end, function() return depth > 0 end)

  it("frees at once what f made and did not return", function()
    local before = core.live_tensors()
    local left = lm.scope(function()
      local x = lm.ones(3)
      for _ = 1, 100 do x = x + 1 end
      return x:sum()
    end)
    assert.equal(303, left:item())
    assert(core.live_tensors() - before <= 2, core.live_tensors() - before) -- a header and a storage
  end)

  it("spares what f returns, in tables too, at any depth", function()
    local a, t = lm.scope(function()
      local shared = lm.ones(2)
      return shared, { list = { shared + 1, { deep = shared + 2 } }, [shared] = "a key is no value", 5 }
    end)
    assert.same({ 1, 1 }, a:totable())
    assert.same({ 2, 2 }, t.list[1]:totable())
    assert.same({ 3, 3 }, t.list[2].deep:totable())
    local loop = lm.scope(function()
      local self = { lm.ones(1) }
      self.self = self
      return self
    end)
    assert.same({ 1 }, loop.self.self[1]:totable())
  end)

  it("says which scope dropped a tensor when it is used", function()
    local x, line
    line = here() + 1
    lm.scope(function() x = lm.ones(2, 3) end)
    local where = (file:gsub("%p", "%%%0")) .. ":" .. line
    local uses = {
      add = function() return x + 1 end, ["right of an operator"] = function() return 1 - x end,
      method = function() return x:sum() end, ["function"] = function() return lm.cat { x, x } end,
      index = function() return x[1] end, assignment = function() x[1] = 0 end, field = function() return x.shape end,
      to = function() return x:to "float64" end, totable = function() return x:totable() end,
      argument = function() return lm.ones(2, 3):add(x) end, item = function() return x:item() end,
      list = function() return lm.stack { lm.ones(2, 3), x } end, len = function() return #x end,
    }
    for name, use in pairs(uses) do
      local ok, err = pcall(use)
      assert(not ok, name)
      assert(err:find("dropped at the end of the lm%.scope at " .. where), name .. ": " .. err)
      assert(err:find("lm.keep", 1, true), name .. ": " .. err)
    end
    assert.matches("lm%.scope at " .. where, tostring(x))
    assert.is_true(lm.is_tensor(x))
  end)

  it("drops on an error too", function()
    local x
    pcall(lm.scope, function()
      x = lm.ones(2)
      error("out")
    end)
    assert.error_matches(function() x:sum() end, "dropped")
  end)

  it("leaves alone what was there before", function()
    local x, y = lm.ones(2), lm.zeros(2)
    lm.scope(function()
      x:add_(1)
      y[1] = x:sum()
    end)
    assert.same({ 2, 2 }, x:totable())
    assert.same({ 4, 0 }, y:totable())
  end)

  it("hands what an inner scope returned to the outer one", function()
    local kept, gone
    lm.scope(function()
      gone = lm.scope(function() return lm.ones(1) end)
      assert.same({ 1 }, gone:totable())
      kept = lm.scope(function() return lm.keep(lm.ones(2)) end)
    end)
    assert.same({ 1, 1 }, kept:totable())
    assert.error_matches(function() gone:sum() end, "dropped")
  end)

  it("drops handles, not what others hold: views, graphs and gradients stay", function()
    local base = lm.arange(6):float()
    local view = lm.scope(function() return (base * 1):view(2, 3)[2] end)
    assert.same({ 3, 4, 5 }, view:totable())
    local w = lm.tensor({ 1, 2 }, { requires_grad = true })
    local loss = lm.scope(function()
      local h = w * w
      return (h * h):sum()
    end)
    loss:backward()
    assert.same({ 4, 32 }, w.grad:totable())
    lm.scope(function() return w.grad:sum():item() end)
    assert.same({ 4, 32 }, w.grad:totable())
    lm.scope(function() (w * 3):sum():backward() end)
    assert.same({ 7, 35 }, w.grad:totable())
  end)

  it("keeps what is assigned to a module", function()
    local net = nn.Module:extend("Net")()
    lm.scope(function()
      net.weight = nn.Parameter(lm.ones(2))
      net:register_buffer("count", lm.zeros(1))
      net.cache = lm.ones(3)
      net.parts = { lm.ones(4) }
      net.fc = nn.Linear(2, 3)
    end)
    assert.equal(2, net.weight:sum():item())
    assert.equal(0, net.count:item())
    assert.equal(3, net.cache:sum():item())
    assert.equal(4, net.parts[1]:sum():item())
    assert.same({ 1, 3 }, net.fc(lm.ones(1, 2)).shape)
  end)

  it("lets a training loop run", function()
    local net = nn.Linear(3, 1)
    local opt = lm.optim.SGD(net:parameters(), { lr = 0.1, momentum = 0.9 })
    local first, last
    lm.manual_seed(1)
    local x = lm.randn(16, 3)
    local y = x:sum(2, { keepdim = true })
    for step = 1, 40 do
      local loss = lm.scope(function()
        local out = lm.mse_loss(net(x), y)
        opt:zero_grad()
        out:backward()
        opt:step()
        return out:item()
      end)
      first, last = first or loss, loss
      assert(step == 1 or loss == loss)
    end
    assert(last < first / 5, first .. " to " .. last)
  end)
end)

describe("keep", function()
  it("returns its argument and spares it", function()
    local x, t
    lm.scope(function()
      x = lm.keep(lm.ones(2))
      t = lm.keep { a = { lm.ones(3) } }
    end)
    assert.equal(2, x:sum():item())
    assert.equal(3, t.a[1]:sum():item())
    assert.equal(5, lm.keep(5))
    assert.is_nil(lm.keep(nil))
    assert.equal(x, lm.keep(x)) -- outside of any scope
  end)

  it("outlasts every scope around it", function()
    local x
    lm.scope(function() lm.scope(function() lm.scope(function() x = lm.keep(lm.ones(2)) end) end) end)
    assert.equal(2, x:sum():item())
  end)
end)

describe("x:free()", function()
  it("gives the memory up at once", function()
    local before = lm.memory_allocated("cpu:9")
    local x = lm.empty({ 1024, 1024 }, { device = "cpu:9" })
    assert(lm.memory_allocated("cpu:9") >= before + 4 * 2 ^ 20)
    x:free()
    assert.equal(before, lm.memory_allocated("cpu:9"))
    assert.error_matches(function() return x + 1 end,
      "add: x must be a live tensor, got one that was freed by x:free%(%)")
    x:free() -- twice is once
  end)

  it("leaves views and graphs what they share", function()
    local x = lm.arange(6):float()
    local v = x:view(2, 3)
    x:free()
    assert.same({ { 0, 1, 2 }, { 3, 4, 5 } }, v:totable())
    local w = lm.tensor({ 2, 3 }, { requires_grad = true })
    local h = w * w
    local loss = (h * h):sum()
    h:free()
    loss:backward()
    assert.same({ 32, 108 }, w.grad:totable())
  end)

  it("is refused to what is no tensor", function()
    assert.error_matches(function() lm.ones(1).free(3) end, "free: x must be a tensor, got 3")
  end)
end)

describe("an error in a scope", function()
  local temp = require "spec.support.temp"
  local folder = temp.during(setup, teardown)

  it("keeps the frames between it and the scope, where nobody catches it", function()
    local script = [[
local lm = require "luminary"
local function inner(x) return x:view(7) end
local function outer(x) return inner(x) + 1 end
local function evaluate() lm.no_grad(function() local y = outer(lm.ones(3)) return y end) end
assert(not pcall(evaluate))
io.stderr:write(select(2, pcall(evaluate)), "\n====\n")
lm.scope(function() evaluate() end)
]]
    temp.write(folder .. "/script.lua", script)
    for command, between in pairs { luajit = "in function 'no_grad'.-", luminary = "" } do -- luminary hides its frames
      local ok, text = temp.run(folder, ("cd %s && %s script.lua"):format(folder, command))
      assert.is_false(ok)
      local caught, uncaught = text:match("^(.-)\n====\n(.*)$")
      assert.equal("script.lua:3: view: size must be 3 elements as x of shape [3], got [7]", caught)
      assert.matches(command .. ": script.lua:3: view: .-\nstack traceback:\n.-"
        .. "script.lua:3: in function 'outer'.-" .. between .. "in function 'evaluate'.-in main chunk", uncaught)
    end
  end)
end)
