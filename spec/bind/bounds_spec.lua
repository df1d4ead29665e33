-- Requests without bound, and structures without end: an error at once or bounded work, never a crash. Each in a
-- process of its own.
local lm = require "luminary"
local temp = require "spec.support.temp"
local LONG = os.getenv "LM_TEST_LONG"

local folder
local function set_up() folder = temp.folder() end
local function clean_up() temp.remove(folder) end

-- Runs a script within `seconds` of CPU time. Returns its output.
local function child(script, seconds, before)
  temp.write(folder .. "/child.lua", "local lm = require 'luminary'\nlocal core = require 'luminary.core'\n" .. script)
  local ok, text, code = temp.run(folder, ("%sulimit -t %d; exec timeout 300 luajit %s/child.lua"):format(
    before or "", seconds or 20, folder))
  assert(ok, ("exit code %d: %s"):format(code, text))
  return text
end

-- Expects that the script ends in an error that matches.
local function refuses(pattern, script, seconds)
  local text = child(("print(pcall(function() %s end))"):format(script), seconds)
  assert.matches("false\t.*" .. pattern, text) -- a sanitizer may have said something before
end

describe("work without bound", function()
  before_each(set_up)
  after_each(clean_up)

  it("from tables that hold themselves is refused", function()
    refuses("must be a number as in the first row", "local x = {true}; for i = 2, 60 do x[i] = x end; lm.tensor(x)")
    refuses("nested lists must be at most 8 deep", "local x = {}; x[1] = x; lm.tensor(x)")
    refuses("at most 2147483648 elements", [[
      local x = true
      for _ = 1, 8 do
        local y = {}
        for k = 1, 60 do y[k] = x end
        x = y
      end
      lm.tensor(x)]])
    refuses("contains itself", "local x = {}; x[1] = {x, x}; lm.save('/dev/null/x', x)")
  end)

  it("by sizes is refused", function()
    refuses("out of memory", "lm.ones(2, 3):repeat_tensor(2^40, 1)")
    refuses("at most %d+ tensors", "lm.zeros({1}):expand(2^40):unbind()")
    refuses("at most %d+ tensors", "lm.zeros({2^40, 0}):split(1)")
    refuses("at most %d+ tensors", "lm.zeros({1}):expand(2^40):chunk(2^40)")
    refuses("totable: x must be at most 2147483648 elements, got", "lm.zeros({1}):expand(2^40):totable()")
    refuses("totable: x must be at most 2147483648 elements, got", "lm.zeros({2^40, 0}):totable()")
    refuses("nprocs must be an integer from 1 to %d+, got 1099511627776",
      "lm.mp.spawn(function() end, {nprocs = 2^40})")
  end)

  it("by parts held in many places is done once for each", function()
    local doubled = "local t = {5}; for i = 1, 60 do t = {t, t} end; "
    child(doubled .. ("lm.save('%s/x', t); local u = lm.load('%s/x'); "):format(folder, folder) .. [[
      for i = 1, 60 do assert(u[1] == u[2]); u = u[1] end
      assert(u[1] == 5)]])
    refuses("the number of values must be at most %d+, got more", doubled
      .. "require 'luminary.base.json_encode' (t)")
    child(doubled .. [[
      local serializer = require "luminary.mp.serialization"
      local text = serializer.encode("spec", t, {plain = "value"})
      assert(#text < 2000)
      local u = serializer.decode(text, {}, {}, true)
      for i = 1, 60 do assert(u[1] == u[2]); u = u[1] end
      assert(u[1] == 5)]])
  end)

  it("of joining many tensors grows with their number #time", function()
    local n = LONG and 200000 or 40000
    for _, grads in ipairs { "y:backward()", "lm.autograd.grad(y, list)" } do
      child(([[
        local function joined(n)
          local list = {}
          for i = 1, n do list[i] = lm.ones({1}, {requires_grad = true}) end
          local y = (lm.cat(list) * lm.arange(n)):sum()
          collectgarbage()
          collectgarbage("stop")
          local before = os.clock()
          local grads = %s
          local took = os.clock() - before
          collectgarbage("restart")
          for i = 1, n, 1000 do assert((grads and grads[i] or list[i].grad):item() == i - 1) end
          return took
        end
        joined(100)
        local few, many = joined(%d), joined(%d)
        assert(many < 8 * few + 0.05, ("%%.3f s for a quarter, %%.3f s"):format(few, many))
      ]]):format(grads, n / 4, n), 120)
    end
  end)

  it("in scopes nested deep grows with the depth", function()
    child([[
      local depth = 0
      local function f()
        depth = depth + 1
        if depth < 5000 then return lm.scope(f) end
      end
      lm.scope(f)
      assert(depth == 5000)]])
  end)
end)

describe("repeat_tensor", function()
  it("repeats along every dim, with gradients", function()
    local x = lm.tensor({ { 1, 2, 3 }, { 4, 5, 6 } }, { requires_grad = true })
    local y = x:repeat_tensor(2, 3)
    assert.same({ 4, 9 }, y.shape)
    for i = 1, 4 do
      for j = 1, 9 do assert.equal(x:detach()[{ (i - 1) % 2 + 1, (j - 1) % 3 + 1 }], y:detach()[{ i, j }]) end
    end
    y:sum():backward()
    assert.same({ { 6, 6, 6 }, { 6, 6, 6 } }, x.grad:totable())
    assert.same({ 2, 1, 2, 3 }, x:repeat_tensor(2, 1, 1, 1).shape)
    assert.same({ 0, 3 }, x:repeat_tensor(0, 1).shape)
  end)
end)

describe("the C stack", function()
  before_each(set_up)
  after_each(clean_up)

  it("holds: a hook that runs backward whose hook does", function()
    local text = child([[
      local depth = 0
      local function f()
        depth = depth + 1
        lm.enable_grad(function()
          local y = lm.ones({1}, {requires_grad = true}) * 2
          y:register_hook(f)
          y:sum():backward()
        end)
      end
      print(pcall(f))
      assert(depth > 20, depth)
      print(lm.is_grad_enabled())
      local x = lm.ones({1}, {requires_grad = true})
      x:sum():backward()
      print(x.grad:item())]])
    assert.matches("^false.*stack overflow.*true\n1\n$", text)
  end)

  it("holds: on a thread's small stack, and in scopes", function()
    local text = child([[
      for _, name in ipairs {"no_grad", "enable_grad", "scope"} do
        local function f() return (lm[name](f)) end
        local ok, why = pcall(f)
        assert(not ok and why:find "stack overflow", why)
        assert(lm.is_grad_enabled())
      end
      print "fine"]], 60, "ulimit -s 1024; ")
    assert.equal("fine\n", text)
  end)

  it("holds: prepared functions that call one another without end", function()
    local text = child([[
      local f, g
      f = lm.prepare(function(x) return (f(x)) end)
      g = lm.prepare(function(x) return g(x) end)
      for _, each in ipairs {f, g} do
        local ok, why = pcall(each, lm.ones(2000))
        assert(not ok and why:find "stack overflow", why)
      end
      print "fine"]], 60)
    assert.equal("fine\n", text)
  end)

  it("holds: a gradient of a gradient of … goes", function()
    assert.equal("fine\n", child([[
      local x = lm.ones({1})
      for i = 1, 200000 do
        local y = lm.ones({1})
        y.grad = x
        x = y
      end
      x = nil
      collectgarbage()
      collectgarbage()
      assert(core.live_tensors() < 10, core.live_tensors())
      print "fine"]], 60))
  end)
end)

describe("a limit on the size of files", function()
  before_each(set_up)
  after_each(clean_up)

  it("is an error of what meets it", function()
    local text = child(([[
      local x = lm.zeros({1000000})
      print(pcall(lm.save, '%s/x', {x = x}))
      print(pcall(x.share_memory_, x))
      print(x:sum():item())]]):format(folder), 20, "ulimit -f 100; ")
    assert.matches("^false.*too large.*false.*too large.*\n0\n$", text)
  end)
end)

assert(lm)
