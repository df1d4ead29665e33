-- x[key] and x[key] = value, in every form DESIGN names, against a model of it in plain Lua.
local temp = require "spec.support.temp"
local lm = require "luminary"
local nan = 0 / 0

local function long(list) return lm.tensor(list, { dtype = "int64" }) end
local function numbered(...) -- element values count from 0 in memory order
  local n = 1
  for _, s in ipairs { ... } do n = n * s end
  return lm.arange(n):float():view(...)
end

-- A generator of keys, the same in every run.
local seed = 1
local function random(n)
  seed = (seed * 16807) % 2147483647
  return seed % n + 1
end

-- Returns an entry for a dim of n, the indices that it selects, and whether the dim stays.
local function random_entry(n)
  local kind = random(6)
  local at = random(n)
  if kind == 1 then return at, { at }, false end
  if kind == 2 then return at - n - 1, { at }, false end
  local all = {}
  for k = 1, n do all[k] = k end
  if kind == 3 then return {}, all, true end
  local first, step = random(n), random(3)
  local last = first + random(n - first + 1) - 1
  local places = {}
  for k = first, last, step do places[#places + 1] = k end
  if kind == 4 then
    places = {}
    for k = first, last do places[#places + 1] = k end
    return { first, last }, places, true
  end
  if kind == 5 then return { first, last, step }, places, true end
  return { first - n - 1, last - n - 1, step }, places, true
end

-- Calls visit(i, coordinates) for each picked element in order; i counts from 1.
local function each(places, visit)
  local at, i = {}, 0
  local function go(dim)
    if dim > #places then
      i = i + 1
      return visit(i, at)
    end
    for _, p in ipairs(places[dim]) do
      at[dim] = p
      go(dim + 1)
    end
  end
  go(1)
end

local sizes = { 4, 5, 6 }
local function value_at(at) return ((at[1] - 1) * 5 + at[2] - 1) * 6 + at[3] - 1 end

local function random_key()
  local key, places, shape = {}, {}, {}
  local given = random(3)
  for dim, n in ipairs(sizes) do
    if dim <= given then
      local stays
      key[dim], places[dim], stays = random_entry(n)
      if stays then shape[#shape + 1] = #places[dim] end
    else
      places[dim] = {}
      for k = 1, n do places[dim][k] = k end
      shape[#shape + 1] = n
    end
  end
  if given == 1 and type(key[1]) == "number" then key = key[1] end -- x[2] as well as x[{2}]
  return key, places, shape
end

describe("reading by integers and ranges", function()
  it("agrees with a model on 500 keys, for any strides", function()
    local x = numbered(4, 5, 6)
    local layouts = { x, x:permute(3, 1, 2):contiguous():permute(2, 3, 1), lm.stack({ x, x * 0 }, -1)[{ "...", 1 }] }
    for trial = 1, 500 do
      local key, places, shape = random_key()
      for layout, y in ipairs(layouts) do
        local got = y[key]
        local what = ("trial %d, layout %d: x[%s]"):format(trial, layout, lm.repr(key))
        if #shape == 0 then
          assert(got == value_at { places[1][1], places[2][1], places[3][1] }, what)
        else
          assert.same(shape, got.shape)
          local flat = got:reshape(-1)
          each(places, function(i, at) assert(flat[i] == value_at(at), what) end)
        end
      end
    end
  end)

  it("gives views, numbers for single elements, and the tensor itself for {}", function()
    local x = numbered(2, 3)
    assert.equal(5, x[{ 2, 3 }])
    assert.equal(5, x[{ -1, -1 }])
    assert.equal(4, x[2][2])
    assert.equal("number", type(x[{ 1, 1 }]))
    assert.same({ 3, 4, 5 }, x[2]:totable())
    assert.same({ 3, 4, 5 }, x[{ 2 }]:totable())
    assert.same({ 3, 4, 5 }, x[{ 2, {} }]:totable())
    assert.same({ { 3, 4, 5 } }, x[{ { 2, 2 } }]:totable())
    assert.same({ { 3, 4, 5 } }, x[{ { 2 } }]:totable()) -- a range of one
    assert.equal(x, x[{}])
    x[1][2] = 10
    assert.equal(10, x[{ 1, 2 }])
    x[{ {}, { 3, 3 } }]:fill_(-1)
    assert.same({ { 0, 10, -1 }, { 3, 4, -1 } }, x:totable())
    assert.equal(true, lm.tensor({ true })[1])
    assert.equal(7, long({ 7 })[1])
    assert.equal(lm.tensor({ 0.1 }, { dtype = "float64" })[1], 0.1)
    assert.equal("number", type(lm.ones({ 2 }, { dtype = "float16", device = "cpu:1" })[1]))
  end)

  it("gives a 0-d tensor where the graph is recorded, never a detached number", function()
    local x = lm.tensor({ 1, 2, 3 }, { requires_grad = true })
    local y = x[2]
    assert.is_true(lm.is_tensor(y))
    assert.same({}, y.shape)
    assert.is_true(y.requires_grad);
    (y * 3):backward()
    assert.same({ 0, 3, 0 }, x.grad:totable())
    lm.no_grad(function() assert.equal(2, x[2]) end)
    assert.equal(2, x:detach()[2])
    local h = x * 2
    assert.is_true(h[{ 1 }].requires_grad)
  end)

  it("takes steps, empty ranges and the rest by \"...\"", function()
    local x = lm.arange(10)
    assert.same({ 0, 2, 4, 6, 8 }, x[{ { 1, -1, 2 } }]:totable())
    assert.same({ 1, 4, 7 }, x[{ { 2, 9, 3 } }]:totable())
    assert.same({ 7, 8, 9 }, x[{ { -3, -1 } }]:totable())
    assert.same({}, x[{ { 4, 3 } }]:totable())
    assert.same({ 0 }, x[{ { 4, 3 } }].shape)
    local y = numbered(2, 3, 4)
    assert.same({ 2, 3 }, y[{ "...", 1 }].shape)
    assert.same(y[{ {}, {}, 2 }]:totable(), y[{ "...", 2 }]:totable())
    assert.same({ 4 }, y[{ 1, 2, "..." }].shape)
    assert.same({ 3 }, y[{ 1, "...", 1 }].shape)
    assert.equal(23, y[{ 2, "...", 3, 4 }])
    assert.same({ 2, 0, 4 }, lm.zeros(2, 0, 4)[{ {}, {}, {} }].shape)
  end)

  it("is out of range with an error in Lua's base", function()
    local x = numbered(3, 4)
    assert.error_matches(function() return x[4] end, "index 4 is out of range for dimension 1 of size 3")
    assert.error_matches(function() return x[-4] end, "index %-4 is out of range for dimension 1 of size 3")
    assert.error_matches(function() return x[0] end, "index 0 is out of range .*start at 1")
    assert.error_matches(function() return x[{ 1, 5 }] end, "index 5 is out of range for dimension 2 of size 4")
    assert.error_matches(function() return x[{ 1, 0 }] end, "index 0 is out of range .*start at 1")
    assert.error_matches(function() return x[{ {}, { 1, 5 } }] end, "5.*out of range for dimension 2 of size 4")
    assert.error_matches(function() return x[{ { 0, 2 } }] end, "start at 1")
    assert.error_matches(function() return x[{ { 1, 3, 0 } }] end, "step")
    assert.error_matches(function() return x[{ { 1, 3, -1 } }] end, "step")
    assert.error_matches(function() return x[{ { 1, 2, 3, 4 } }] end, "a range must be .*, got 4 numbers")
    assert.error_matches(function() return x[{ 1, 1, 1 }] end,
      "number of indices must be at most 2 for x of shape %[3, 4%], got 3")
    assert.error_matches(function() return lm.tensor(1)[1] end, "0%-d")
    assert.error_matches(function() x[4] = 1 end, "index 4 is out of range for dimension 1 of size 3")
    assert.error_matches(function() x[{ 2, 5 }] = 1 end, "index 5 is out of range for dimension 2 of size 4")
    assert.error_matches(function() x[0] = 1 end, "start at 1")
  end)

  it("is of the wrong type with an error too", function()
    local x = numbered(3, 4)
    assert.error_matches(function() return x[1.5] end, "integer.*1.5")
    assert.error_matches(function() return x[{ "a" }] end, "integer.*string 'a'")
    assert.error_matches(function() return x[true] end, "integer.*true")
    assert.error_matches(function() return x[{ first = 1 }] end, "list.*first")
    assert.error_matches(function() return x[{ 1, { first = 1 } }] end, "list")
    assert.error_matches(function() return x[{ { "x", 2 } }] end, "range.*integer.*string 'x'")
    assert.error_matches(function() return x[{ "...", "..." }] end, "once")
    assert.error_matches(function() return x[print] end, "integer.*function")
    assert.error_matches(function() return x[nan] end, "integer")
    assert.error_matches(function() return x[lm.ones(2)] end, "index.*float32")
    assert.error_matches(function() return x.foo end,
      "^tensors have no field or method 'foo'$") -- a string names a field
  end)
end)

describe("assigning by integers and ranges", function()
  it("agrees with a model on 300 keys, for any strides", function()
    for trial = 1, 300 do
      local key, places, shape = random_key()
      local x = numbered(4, 5, 6)
      if trial % 2 == 0 then x = x:permute(3, 1, 2):contiguous():permute(2, 3, 1) end
      local what = ("trial %d: x[%s] ="):format(trial, lm.repr(key))
      local count = 1
      for _, p in ipairs(places) do count = count * #p end
      local want = x:reshape(-1):totable()
      local value
      if trial % 3 == 0 then
        value = -trial
        each(places, function(_, at) want[value_at(at) + 1] = -trial end)
      else
        value = (lm.arange(count):float() + 1000):view(shape)
        if trial % 3 == 1 then value = value:double() end -- converted
        each(places, function(i, at) want[value_at(at) + 1] = 999 + i end)
      end
      x[key] = value
      local got = x:reshape(-1):totable()
      for k = 1, #want do assert(got[k] == want[k], what) end
    end
  end)

  it("takes numbers, booleans, tables and tensors that broadcast", function()
    local x = lm.zeros(2, 3)
    x[1] = 5
    assert.same({ { 5, 5, 5 }, { 0, 0, 0 } }, x:totable())
    x[{ 2, 3 }] = 7
    x[{ 2, 1 }] = true
    assert.same({ { 5, 5, 5 }, { 1, 0, 7 } }, x:totable())
    x[2] = { 1, 2, 3 }
    assert.same({ { 5, 5, 5 }, { 1, 2, 3 } }, x:totable())
    x[{ {}, { 2, 3 } }] = lm.tensor { { 8 }, { 9 } }
    assert.same({ { 5, 8, 8 }, { 1, 9, 9 } }, x:totable())
    x[{}] = { { 1, 2, 3 }, { 4, 5, 6 } }
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, x:totable())
    x[{}] = 0
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x:totable())
    x[{ { 1, 2 }, 1 }] = lm.tensor { 3, 4 }
    assert.same({ { 3, 0, 0 }, { 4, 0, 0 } }, x:totable())
    x[{ "...", -1 }] = lm.tensor(1)
    assert.same({ { 3, 0, 1 }, { 4, 0, 1 } }, x:totable())
    x[1] = x[2]
    assert.same({ { 4, 0, 1 }, { 4, 0, 1 } }, x:totable())
  end)

  it("keeps x's dtype, as PyTorch does", function()
    local x = lm.zeros({ 3 }, { dtype = "int64" })
    x[1] = 2.75
    x[2] = lm.tensor { -2.75 }
    x[3] = 9007199254740993LL
    assert.same({ 2, -2, 9007199254740993LL }, x:totable())
    assert.equal("int64", x.dtype)
    local b = lm.zeros({ 2 }, { dtype = "bool" })
    b[1] = 5
    assert.same({ true, false }, b:totable())
  end)

  it("says which shapes do not fit", function()
    local x = lm.zeros(2, 3)
    assert.error_matches(function() x[1] = lm.ones(2) end, "%[2%].*%[3%]")
    assert.error_matches(function() x[{}] = { 1, 2 } end, "%[2%].*%[2, 3%]")
    assert.error_matches(function() x[1] = { { 1, 2, 3 }, { 4, 5, 6 } } end, "%[2, 3%].*%[3%]")
    assert.error_matches(function() x[1] = "text" end, "number.*string 'text'")
    assert.error_matches(function() x[1] = nil end, "nil")
    assert.error_matches(function() x[{ 1, { 1, 2 } }] = { 1, { 2 } } end, "must be a number as in the first row")
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, x:totable())
  end)

  it("is recorded in the graph", function()
    local w = lm.tensor({ 1, 2, 3 }, { requires_grad = true })
    local x = lm.zeros(2, 3)
    x[1] = w * 2
    x[{ 2, 1 }] = w[3]
    assert.is_true(x.requires_grad);
    (x * lm.tensor { { 1, 10, 100 }, { 1000, 0, 0 } }):sum():backward()
    assert.same({ 2, 20, 1200 }, w.grad:totable())
    assert.error_matches(function() w[1] = 0 end, "leaf")
  end)
end)

describe("masks", function()
  it("pick the elements that hold, in order", function()
    local x = numbered(2, 3)
    assert.same({ 3, 4, 5 }, x[x:gt(2)]:totable())
    assert.same({}, x[x:gt(100)]:totable())
    assert.same({ 0 }, x[x:gt(100)].shape)
    assert.same({ { 3, 4, 5 } }, x[lm.tensor { false, true }]:totable()) -- whole rows
    assert.same({ { 0, 2 }, { 3, 5 } }, x[{ {}, lm.tensor { true, false, true } }]:totable())
    assert.same({ 4 }, x[{ 2, lm.tensor { false, true, false } }]:totable())
    local y = x[x:ge(0)]
    y[1] = 99
    assert.equal(0, x[{ 1, 1 }]) -- a copy
    assert.same({ 2, 4 }, numbered(2, 3, 4)[{ lm.tensor { { false, true, false }, { true, false, false } } }].shape)
    assert.same({ 0, 4 }, x:t()[x:t():remainder(4):eq(0)]:totable()) -- in the view's own order
  end)

  it("take values: one, a list in order, or what broadcasts", function()
    local x = numbered(2, 3)
    x[x:gt(3)] = -1
    assert.same({ { 0, 1, 2 }, { 3, -1, -1 } }, x:totable())
    x[x:lt(0)] = lm.tensor { 7, 8 }
    assert.same({ { 0, 1, 2 }, { 3, 7, 8 } }, x:totable())
    x[lm.tensor { true, false }] = lm.tensor { 4, 5, 6 }
    assert.same({ { 4, 5, 6 }, { 3, 7, 8 } }, x:totable())
    x[{ {}, lm.tensor { true, false, true } }] = 0
    assert.same({ { 0, 5, 0 }, { 0, 7, 0 } }, x:totable())
    x[x:gt(100)] = 9
    assert.same({ { 0, 5, 0 }, { 0, 7, 0 } }, x:totable())
    x[x:eq(0)] = lm.tensor(2)
    assert.same({ { 2, 5, 2 }, { 2, 7, 2 } }, x:totable())
    x:t()[x:t():eq(2)] = lm.tensor { 1, 2, 3, 4 } -- through a view, in its order
    assert.same({ { 1, 5, 3 }, { 2, 7, 4 } }, x:totable())
    assert.error_matches(function() x[x:gt(3)] = lm.tensor { 1, 2 } end, "%[2%]")
  end)

  it("have to fit", function()
    local x = lm.zeros(2, 3)
    assert.error_matches(function() return x[lm.tensor { true, false, true }] end,
      "a mask must match x of shape %[2, 3%] from dim 1 on, got shape %[3%]")
    assert.error_matches(function() x[lm.ones({ 3, 2 }):bool()] = 1 end,
      "a mask must match x of shape %[2, 3%] from dim 1 on, got shape %[3, 2%]")
    assert.error_matches(function() return x[lm.ones({ 2, 3, 1 }):bool()] end, "%[2, 3%]")
  end)

  it("carry gradients", function()
    local w = lm.tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true });
    (w[w:gt(2)] * lm.tensor { 10, 100 }):sum():backward()
    assert.same({ { 0, 0 }, { 10, 100 } }, w.grad:totable())
    w.grad = nil
    local x = w * 1
    x[x:gt(2)] = 0
    x:sum():backward()
    assert.same({ { 1, 1 }, { 0, 0 } }, w.grad:totable())
  end)
end)

describe("index tensors", function()
  it("pick entries in any order and number, from 1 or from the end", function()
    local x = numbered(4, 3)
    assert.same({ { 9, 10, 11 }, { 0, 1, 2 }, { 9, 10, 11 } }, x[long { 4, 1, -1 }]:totable())
    assert.same({ { 9, 10, 11 } }, x[lm.tensor({ 4 }, { dtype = "int32" })]:totable())
    assert.same({ 2, 2, 3 }, x[long { { 1, 2 }, { 3, 4 } }].shape)
    assert.same({ 0, 3 }, x[long {}].shape)
    assert.same({ 3 }, x[long(2)].shape) -- 0-d: the dim goes
    assert.same({ 3, 4, 5 }, x[long(2)]:totable())
    assert.same({ { 2, 0 }, { 5, 3 }, { 8, 6 }, { 11, 9 } }, x[{ {}, long { 3, 1 } }]:totable())
    assert.same({ 5, 6 }, x[{ long { 2, 3 }, long { 3, 1 } }]:totable()) -- pairs
    assert.same({ { 3, 5 }, { 6, 8 } }, x[{ long { { 2 }, { 3 } }, long { 1, 3 } }]:totable()) -- broadcast together
    assert.same({ { 5, 3 }, { 8, 6 } }, x[{ { 2, 3 }, long { 3, 1 } }]:totable())
    assert.same({ 5, 3 }, x[{ 2, long { 3, 1 } }]:totable())
    assert.same({ 11, 9 }, x:t()[{ long { 3, 1 }, 4 }]:totable())
  end)

  it("leave their dims in place if adjacent, else put them first", function()
    local x = numbered(2, 3, 4, 5)
    local i, j = long { 1, 2, 1 }, long { 3, 1, 2 }
    local function check(got, shape, at)
      assert.same(shape, got.shape)
      for a = 1, shape[1] do
        for b = 1, shape[2] do
          for c = 1, shape[3] do assert.equal(x[at(a, b, c)], got[{ a, b, c }]) end
        end
      end
    end
    check(x[{ i, j }], { 3, 4, 5 }, function(a, b, c) return { i[a], j[a], b, c } end)
    check(x[{ {}, i, j }], { 2, 3, 5 }, function(a, b, c) return { a, i[b], j[b], c } end)
    check(x[{ {}, {}, i, j }], { 2, 3, 3 }, function(a, b, c) return { a, b, i[c], j[c] } end)
    check(x[{ i, {}, j }], { 3, 3, 5 }, function(a, b, c) return { i[a], b, j[a], c } end)
    check(x[{ i, {}, {}, j }], { 3, 3, 4 }, function(a, b, c) return { i[a], b, c, j[a] } end)
    check(x[{ "...", i, j }], { 2, 3, 3 }, function(a, b, c) return { a, b, i[c], j[c] } end)
    check(x[{ 2, {}, i }], { 3, 3, 5 }, function(a, b, c) return { 2, a, i[b], c } end)
    check(x[{ {}, i, { 2, 3 }, 5 }], { 2, 3, 2 }, function(a, b, c) return { a, i[b], c + 1, 5 } end)
  end)

  it("write values where they point", function()
    local x = lm.zeros(4, 2)
    x[long { 4, 1 }] = lm.tensor { { 1, 2 }, { 3, 4 } }
    assert.same({ { 3, 4 }, { 0, 0 }, { 0, 0 }, { 1, 2 } }, x:totable())
    x[long { 2, -2 }] = 9
    assert.same({ { 3, 4 }, { 9, 9 }, { 9, 9 }, { 1, 2 } }, x:totable())
    x[{ long { 1, 2 }, long { 2, 1 } }] = lm.tensor { 7, 8 }
    assert.same({ { 3, 7 }, { 8, 9 }, { 9, 9 }, { 1, 2 } }, x:totable())
    x[{ {}, long { 1 } }] = lm.tensor { { 5 }, { 6 }, { 7 }, { 8 } }
    assert.same({ { 5, 7 }, { 6, 9 }, { 7, 9 }, { 8, 2 } }, x:totable())
    x[{ { 2, 3 }, long { 2 } }] = 0
    assert.same({ { 5, 7 }, { 6, 0 }, { 7, 0 }, { 8, 2 } }, x:totable())
    x[long {}] = 100
    x:t()[{ 1, long { 1, 4 } }] = lm.tensor { -5, -8 }
    assert.same({ { -5, 7 }, { 6, 0 }, { 7, 0 }, { -8, 2 } }, x:totable())
  end)

  it("are checked before anything is written", function()
    local x = lm.zeros(3, 2)
    for _, bad in ipairs { 4, -4, 0 } do
      local message = bad == 0 and "0.*start at 1" or tostring(bad):gsub("%-", "%%-") .. ".*3"
      assert.error_matches(function() return x[long { 1, bad }] end, message)
      assert.error_matches(function() x[long { 1, bad }] = 5 end, message)
    end
    assert.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } }, x:totable())
    assert.error_matches(function() return x[{ long { 1, 2 }, long { 1, 2, 1 } }] end, "%[2%].*%[3%]")
    assert.error_matches(function() x[long { 1, 2 }] = lm.ones(3) end, "%[3%].*%[2, 2%]")
    assert.error_matches(function() return x[{ long { 1 }, long { 1 }, long { 1 } }] end,
      "number of indices must be at most 2 for x of shape %[3, 2%], got 3")
  end)

  it("carry gradients, adding up where they repeat", function()
    local w = lm.tensor({ 1, 2, 3 }, { requires_grad = true });
    (w[long { 3, 1, 3 }] * lm.tensor { 1, 10, 100 }):sum():backward()
    assert.same({ 10, 0, 101 }, w.grad:totable())
    w.grad = nil
    local x = w * 2
    local v = lm.tensor({ 5, 6 }, { requires_grad = true })
    x[long { 1, 2 }] = v;
    (x * lm.tensor { 1, 10, 100 }):sum():backward()
    assert.same({ 0, 0, 200 }, w.grad:totable())
    assert.same({ 1, 10 }, v.grad:totable())
  end)

  it("come out of the library counting from 1", function()
    local x = lm.tensor { { 3, 0, 5 }, { 0, 7, 0 } }
    assert.same({ { 1, 1 }, { 1, 3 }, { 2, 2 } }, x:nonzero():totable())
    assert.equal(5, x:argmax():item()) -- index in the flattened tensor
    assert.same({ 3, 2 }, x:argmax(2):totable())
    local _, places = x:topk(2)
    assert.same({ { 3, 1 }, { 2, 1 } }, places:totable())
    assert.same(x[{ 1, places[{ 1, 1 }] }], 5)
    local p = lm.randperm(6)
    assert.same({ { 0, 1, 0 }, { 0, 0, 1 } }, lm.one_hot(long { 2, 3 }):totable())
    assert.error_matches(function() lm.one_hot(long { 0 }) end, "label 0 .*start at 1")
    assert.same({ { 3, 0, 5 }, { 3, 0, 5 } }, lm.embedding(long { 1, 1 }, x):totable())
    assert.error_matches(function() lm.embedding(long { 3 }, x) end, "3")
    assert.same({ 5, 7 }, x:gather(2, long { { 3 }, { 2 } }):view(-1):totable())
    local total = 0
    for k = 1, #p do total = total + p[p[k]] end -- indexes itself
    assert.equal(21, total)
  end)
end)

describe("index_put", function()
  it("takes masks, and masks beside places", function()
    local x = numbered(3, 4)
    local rows = lm.tensor { true, false, true }
    local places = { { 7, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 7, 10, 11 } }
    assert.same(places, x:index_put({ rows, long { 1, 2 } }, 7):totable())
    assert.same(numbered(3, 4):index_put_({ x:gt(9) }, lm.tensor { -1, -2 }):totable(),
      { { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, -1, -2 } })
    assert.same({ 0, 11 }, x[{ rows, long { 1, 4 } }]:totable())
    assert.same({ { 0, 2 }, { 4, 6 }, { 8, 10 } }, x[{ {}, lm.tensor { true, false, true, false } }]:totable())
    local w, v = x:double():requires_grad_(), lm.ones({ 2 }, { dtype = "float64", requires_grad = true })
    w:index_put({ rows, long { 1, 1 } }, v):sum():backward()
    assert.same({ { 0, 1, 1, 1 }, { 1, 1, 1, 1 }, { 0, 1, 1, 1 } }, w.grad:totable())
    assert.same({ 1, 1 }, v.grad:totable())
    assert.error_matches(function() x:index_put({ rows, rows, rows }, 1) end,
      "index_put: a mask must match x of shape .* from dim 2 on, got shape %[3%]")
    assert.error_matches(function() x:index_put({ long { 1 }, long { 1 }, long { 1 } }, 1) end,
      "number of indices must be at most 2 .*, got 3")
    assert.error_matches(function() x:index_put({ rows, long { 1 }, long { 1 } }, 1) end, "indices for 3 dims")
  end)
end)

describe("indices of every integer dtype", function()
  it("name places, but uint8, which could be a mask", function()
    local x = numbered(3, 2)
    for _, dtype in ipairs { "int8", "int16", "uint16", "int32", "int64" } do
      local i = long({ 3, 1 }):to(dtype)
      assert.same({ { 4, 5 }, { 0, 1 } }, x[i]:totable())
      assert.same({ 2, 0 }, x:take(i):totable())
      assert.same({ { 9, 9 }, { 2, 3 }, { 9, 9 } }, x:index_fill(1, i, 9):totable())
      local mask = lm.zeros({ 3, 2 }, { dtype = "bool", device = x.device })
      assert.same({ { true, true }, { false, false }, { true, true } }, mask:index_fill(1, i, true):totable())
      mask:index_fill_(1, i, true)
      assert.same({ { false, false }, { false, false }, { false, false } }, mask:index_fill(1, i, false):totable())
      assert.same({ { 1, 1 }, { 2, 3 }, { 1, 1 } }, x:index_fill(1, i, true):totable())
      assert.same({ { 4, 5 }, { 0, 1 } }, x:index_select(1, i):totable())
      assert.same({ { 4, 1 } }, x:gather(1, i:view(1, 2)):totable())
    end
    local byte = long({ 3, 1 }):to "uint8"
    assert.error_matches(function() return x[byte] end, "got uint8, which could be a mask; use :bool%(%).*:long%(%)")
    assert.error_matches(function() x[byte] = 1 end, "got uint8, which could be a mask")
  end)
end)

describe("nonzero of a line", function()
  it("finds single ones, and runs of them, of any length", function()
    for _, n in ipairs { 1, 7, 8, 9, 64, 1000, 100000 } do
      for _, part in ipairs { 0, 1, 0.5, 0.001, 0.999 } do
        local mask = lm.rand(n):lt(part)
        local line = mask:nonzero():view(-1)
        assert.is_true(line:equal(lm.arange(1, n + 1):long()[mask]))
        assert.is_true(line:equal(mask:view(1, n):nonzero()[{ {}, 2 }]))
      end
    end
  end)
end)

describe("errors of indices", function()
  it("name what the script called", function()
    local x, far = numbered(3, 4), long { 99 }
    local function fails(words, f, ...)
      local ok, e = pcall(f, ...)
      assert.is_false(ok)
      assert.matches(words, e)
    end
    fails(": x%[…%]: index 99", function() return x[far] end)
    fails(": x%[…%] = value: index 99", function() x[far] = 1 end)
    fails(": x%[…%]: a mask must match x of shape .* from dim 1 on, got shape %[2%]",
      function() return x[lm.ones(2):bool()] end)
    for _, call in ipairs { { "max", 7 }, { "min", 7 }, { "median", 7 }, { "nanmedian", 7 }, { "take", far },
      { "put", far, lm.ones(1) }, { "index_fill", 1, far, 0 } } do
      local run = assert(loadstring(("local x, a, b, c = ... local y = x:%s(a, b, c)"):format(call[1])))
      fails((": %s: "):format(call[1]), run, x, unpack(call, 2))
    end
    fails(": max: unknown option 'kepdim'", function() local _ = lm.max(x, 1, { kepdim = true }) end)
    fails(": acosh: ", function() local _ = lm.acosh("a") end)
  end)
end)

describe("scatter by whole entries", function()
  it("does with an expanded index what it does with a stored one, at any size and in any order", function()
    for _, case in ipairs { { 7, 5, 1 }, { 40, 600, 1 }, { 40, 600, 2 }, { 3000, 16, 1 }, { 1, 50000, 2 } } do
      local n, m, dim = unpack(case)
      local size = dim == 1 and { n, 1 } or { 1, m }
      local index = lm.randint(1, 9, size, { dtype = "int64" }):expand(n, m)
      local src, x = lm.randint(-1, 2, { n, m }):float(), lm.zeros(dim == 1 and 8 or n, dim == 1 and m or 8)
      for _, reduce in ipairs { "sum", "prod", "mean", "amax", "amin" } do
        for _, include_self in ipairs { true, false } do
          local how = { include_self = include_self }
          local a = x:scatter_reduce(dim, index, src, reduce, how)
          assert.is_true(a:equal(x:scatter_reduce(dim, index:contiguous(), src, reduce, how)))
        end
      end
      assert.is_true(x:scatter(dim, index, src):equal(x:scatter(dim, index:contiguous(), src)))
      assert.is_true(x:scatter(dim, index, 3):equal(x:scatter(dim, index:contiguous(), 3)))
      assert.is_true(src:gather(dim, index:clamp(1, 1)):equal(src:gather(dim, index:clamp(1, 1):contiguous())))
      local places = dim == 1 and index[{ {}, 1 }] or index[1]
      assert.is_true(x:index_add(dim, places, src):equal(x:scatter_add(dim, index, src)))
      local list = dim == 1 and { places } or { false, places }
      assert.is_true(x:index_put(list, src, { accumulate = true }):equal(x:scatter_add(dim, index, src)))
      assert.is_true(x:index_put(list, src):equal(x:scatter(dim, index, src)))
    end
  end)
  it("lets the last of equal places win, over all threads", function()
    local n = 200000
    local index, src = lm.randint(1, 1001, { n }, { dtype = "int64" }), lm.arange(n):float()
    local last = lm.zeros(1000):scatter_reduce(1, index, src, "amax")
    assert.is_true(last:equal(lm.zeros(1000):scatter(1, index, src)))
    assert.is_true(last:equal(lm.zeros(1000):put(index, src)))
    assert.is_true(lm.zeros(1000):put(index, lm.ones(n), true):equal(index:bincount { minlength = 1000 }:float()))
  end)
end)

describe("index_select", function()
  it("copies runs of neighbours, whose ends may be anywhere", function()
    local places = {}
    for _, run in ipairs { { 3, 1 }, { 2, 40 }, { 40, 40 }, { 1, 30 }, { 31, 32 }, { 5, 5 }, { 4, 60 }, { 60, 60 } } do
      for k = run[1], run[2], run[1] > run[2] and -1 or 1 do places[#places + 1] = k end
    end
    for _, dtype in ipairs { "uint8", "float16", "float32", "float64" } do
      for _, rows in ipairs { 1, 7, 3001 } do
        local x = numbered(rows, 60):remainder(200):to(dtype)
        local y = x:index_select(2, long(places))
        for k, at in ipairs(places) do
          if k % 7 < 3 then assert.is_true(y:select(2, k):equal(x:select(2, at))) end
        end
      end
    end
    assert.error_matches(function() numbered(9, 60):index_select(2, long { 59, 60, 61 }) end, "index 61")
  end)
end)

describe("masked_select", function()
  it("keeps the order, however long and dense", function()
    for _, dtype in ipairs { "bool", "float16", "int32", "float64" } do
      for _, share in ipairs { 0, 0.01, 0.5, 0.99, 1 } do
        for _, size in ipairs { 7, 200003 } do -- threads share the larger
          local x, mask = lm.arange(size):remainder(211):to(dtype), lm.rand(size):lt(share)
          local places = mask:nonzero():select(2, 1)
          assert.is_true(x:masked_select(mask):equal(x:index_select(1, places)))
        end
      end
    end
  end)
end)

describe("views of views", function()
  it("write to the one memory, through any chain", function()
    local x = lm.zeros(4, 4)
    x[{ { 2, 3 } }][{ {}, { 2, 4, 2 } }]:t()[1] = 5
    assert.same({ { 0, 0, 0, 0 }, { 0, 5, 0, 0 }, { 0, 5, 0, 0 }, { 0, 0, 0, 0 } }, x:totable())
    x[{ { 1, 4, 3 } }]:add_(1)
    assert.same({ { 1, 1, 1, 1 }, { 0, 5, 0, 0 }, { 0, 5, 0, 0 }, { 1, 1, 1, 1 } }, x:totable())
  end)

  it("refuse to write where elements share memory", function()
    local x = lm.zeros(3):expand(2, 3)
    assert.error_matches(function() x[{ 1, 1 }] = 1; x:fill_(1) end,
      "fill_: cannot write in place to a tensor of shape %[2, 3%], whose elements share memory")
    assert.error_matches(function() x:add_(1) end, "add_?: cannot write in place to a tensor of shape %[2, 3%]")
  end)
end)

describe("merged dims", function()
  it("go through the same places as the dims that they came from", function()
    local folder = temp.folder()
    local ok, text = temp.run(folder, ("env -u LD_PRELOAD cc -std=gnu11 -Wall -Wextra -Werror -O1 -Ikernels"
      .. " spec/support/merged_dims.c -o %s/check && %s/check"):format(folder, folder))
    temp.remove(folder)
    assert(ok, text)
    assert.matches("ok", text)
  end)
end)
