-- Random numbers are Philox with a counter: one seed returns the same bits whatever the device, layout or number
-- of threads, and they are distributed as they say.
local lm = require "luminary"
local form = dofile "spec/support/message.lua"
local bit = require "bit"
local ffi = require "ffi"

-- Philox4x32-10 from the paper (Salmon et al., SC 2011), written again here: block (low, high) of a 64-bit key.
local function multiply(a, b) -- high and low words of the product
  local p = ffi.cast("uint64_t", a) * ffi.cast("uint64_t", b)
  return tonumber(bit.rshift(p, 32)), tonumber(bit.band(p, 0xffffffffULL))
end
local function xor(a, b, c) return bit.bxor(a, b, c) % 2 ^ 32 end
local function philox(key_low, key_high, low, high)
  local c0, c1, c2, c3, k0, k1 = low, high, 0, 0, key_low, key_high
  for _ = 1, 10 do
    local h0, l0 = multiply(0xD2511F53, c0)
    local h1, l1 = multiply(0xCD9E8D57, c2)
    c0, c1, c2, c3 = xor(h1, c1, k0), l1, xor(h0, c3, k1), l0
    k0, k1 = (k0 + 0x9E3779B9) % 2 ^ 32, (k1 + 0xBB67AE85) % 2 ^ 32
  end
  return { c0, c1, c2, c3 }
end

-- Returns a generator's state as get_rng_state returns it: seed and offset, 8 bytes each, the lowest first.
local function state(seed_low, seed_high, offset_low, offset_high)
  local bytes = {}
  for _, word in ipairs { seed_low, seed_high, offset_low, offset_high } do
    for k = 0, 3 do bytes[#bytes + 1] = math.floor(word / 256 ^ k) % 256 end
  end
  return lm.tensor(bytes, { dtype = "uint8" })
end

local function seeded(seed, f, ...)
  lm.manual_seed(seed)
  return f(...)
end

local function same_bits(a, b) return lm.equal(a, b) end

describe("the generator", function()
  it("is Philox4x32-10: the test vector of its authors", function()
    assert.same({ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }, philox(0, 0, 0, 0)) -- values of philox in this file
    lm.manual_seed(0)
    local x = lm.rand(4)
    for k, word in ipairs { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } do
      assert.equal(math.floor(word / 256) / 2 ^ 24, x[k])
    end
  end)

  it("gives element i the upper 24 bits of word i % 4 of block i / 4, of any seed", function()
    lm.set_rng_state(state(0xdeadbeef, 0x12345678, 0, 0))
    local x = lm.rand(1003)
    for i = 0, 1002, 7 do
      local word = philox(0xdeadbeef, 0x12345678, math.floor(i / 4), 0)[i % 4 + 1]
      assert.equal(math.floor(word / 256) / 2 ^ 24, x[i + 1])
    end
  end)

  it("carries its counter past 32 bits", function()
    lm.set_rng_state(state(5, 0, 0xffffffff, 0))
    local x = lm.rand(8)
    local before, after = philox(5, 0, 0xffffffff, 0), philox(5, 0, 0, 1)
    for k = 1, 4 do
      assert.equal(math.floor(before[k] / 256) / 2 ^ 24, x[k])
      assert.equal(math.floor(after[k] / 256) / 2 ^ 24, x[4 + k])
    end
  end)

  it("gives float64 the upper 53 of 64 bits", function()
    lm.manual_seed(0)
    local x = lm.rand(2, { dtype = "float64" })
    assert.equal((0xe169c58d * 2 ^ 21 + math.floor(0x6627e8d5 / 2 ^ 11)) / 2 ^ 53, x[1])
    assert.equal((0x9b00dbd8 * 2 ^ 21 + math.floor(0xbc57ac4c / 2 ^ 11)) / 2 ^ 53, x[2])
  end)

  it("repeats itself after the same seed, and only then", function()
    for _, draw in ipairs { function() return lm.rand(100) end, function() return lm.randn(101) end,
      function() return lm.randint(0, 1000, { 50 }) end, function() return lm.randperm(60) end,
      function() return lm.empty(33):normal_(2, 3) end, function() return lm.empty(33):uniform_(-1, 4) end,
      function() return lm.empty(33):bernoulli_(0.4) end, function() return lm.dropout(lm.ones(200), 0.5) end } do
      local a, again, other = seeded(7, draw), seeded(7, draw), seeded(8, draw)
      assert.is_true(same_bits(a, again))
      assert.is_false(same_bits(a, other))
      assert.is_false(same_bits(a, (seeded(7, function() draw() return draw() end)))) -- the second draw is another
    end
  end)

  it("gives its state, and takes it back", function()
    lm.manual_seed(3)
    lm.rand(10)
    local saved = lm.get_rng_state()
    assert.equal("uint8", saved.dtype)
    local a, b = lm.rand(10), lm.randn(7)
    lm.set_rng_state(saved)
    assert.is_true(same_bits(a, lm.rand(10)))
    assert.is_true(same_bits(b, lm.randn(7)))
    assert.error_matches(function() lm.set_rng_state(lm.zeros(16)) end, "set_rng_state.*uint8.*float32")
    assert.error_matches(function() lm.set_rng_state(saved[{ { 1, 8 } }]) end, "set_rng_state.*16.*%[8%]")
    assert.error_matches(function() lm.manual_seed "x" end, "manual_seed: seed.*string")
  end)

  it("is one for each device, and all are seeded alike", function()
    lm.manual_seed(11)
    local a = lm.rand(9)
    local b = lm.rand(9, { device = "cpu:1" })
    assert.equal("cpu:1", b.device)
    assert.is_true(same_bits(a, b:to "cpu"))
    lm.rand(5, { device = "cpu:1" })
    local here, there = lm.get_rng_state(), lm.get_rng_state "cpu:1"
    assert.is_false(same_bits(here, there))
    local c = lm.rand(9)
    lm.set_rng_state(here, "cpu:1")
    assert.is_true(same_bits(c, lm.rand(9, { device = "cpu:1" }):to "cpu"))
  end)
end)

describe("lm.Generator", function()
  -- Each draw of `generator = g`, or without one from the default generator.
  local draws = {
    function(o) return lm.rand({ 9 }, o) end, function(o) return lm.randn({ 9 }, o) end,
    function(o) return lm.randint(0, 1000, { 9 }, o) end, function(o) return lm.randperm(30, o) end,
    function(o) return lm.rand_like(lm.ones(9), o) end, function(o) return lm.randn_like(lm.ones(9), o) end,
    function(o) return lm.randint_like(lm.ones(9), 1000, o) end, function(o) return lm.normal(0, 1, { 9 }, o) end,
    function(o) return lm.normal(lm.ones(9), lm.ones(9), o) end,
    function(o) return lm.bernoulli(lm.ones(99) * 0.5, o) end,
    function(o) return lm.bernoulli(lm.ones(99), 0.5, o) end, function(o) return lm.multinomial(lm.ones(99), 9, o) end,
    function(o) return lm.multinomial(lm.ones(99), 9, true, o) end, function(o) return lm.poisson(lm.ones(99), o) end,
    function(o) return lm.binomial(lm.ones(99) * 5, lm.ones(99) * 0.5, o) end,
    function(o) return lm.empty(9):uniform_(0, 1, o) end, function(o) return lm.empty(9):normal_(0, 1, o) end,
    function(o) return lm.empty(99):bernoulli_(0.5, o) end,
    function(o) return lm.empty(99):bernoulli_(lm.ones(99) * 0.5, o) end,
    function(o) return lm.empty(9):random_(0, 1000, o) end, function(o) return lm.empty(9):exponential_(1, o) end,
    function(o) return lm.empty(9):log_normal_(0, 1, o) end, function(o) return lm.empty(9):cauchy_(0, 1, o) end,
    function(o) return lm.empty(99):geometric_(0.1, o) end,
  }
  it("gives every draw what its seed would give by manual_seed, and leaves the default numbers alone", function()
    for k, draw in ipairs(draws) do
      lm.manual_seed(3)
      local want, before = draw {}, lm.get_rng_state()
      local g = lm.Generator():manual_seed(3)
      assert(same_bits(want, draw { generator = g }), "draw " .. k)
      assert(not same_bits(want, draw { generator = g }), "the second draw " .. k)
      assert(same_bits(before, lm.get_rng_state()), "the default one after draw " .. k)
    end
  end)

  it("has seeds and a state", function()
    local g = lm.Generator "cpu"
    assert.equal(67280421310721, g:initial_seed())
    assert.equal(g, g:manual_seed(5))
    assert.equal(5, g:initial_seed())
    assert.equal("cpu", g.device)
    assert.equal("Generator(cpu)", tostring(g))
    local there = g:get_state()
    local a = lm.rand({ 5 }, { generator = g })
    local b = lm.rand({ 5 }, { generator = g:set_state(there) })
    assert.is_true(same_bits(a, b))
    local seed = g:seed()
    assert.equal(seed, g:initial_seed())
    assert.not_equal(seed, g:seed())
    assert.equal("cpu:1", lm.Generator("cpu:1").device)
    assert.equal(lm.seed(), lm.initial_seed())
  end)

  it("lm.default_generator is what manual_seed seeds", function()
    lm.manual_seed(8)
    assert.equal(8, lm.default_generator:initial_seed())
    local a = lm.rand(4)
    lm.default_generator:manual_seed(8)
    assert.is_true(same_bits(a, lm.rand({ 4 }, { generator = lm.default_generator })))
    assert.is_false(same_bits(a, lm.rand(4))) -- the generator had continued
  end)

  it("is asked for where something else is given, and for the tensor's device", function()
    assert.error_matches(function() lm.rand({ 2 }, { generator = 3 }) end,
      "rand: generator must be an lm.Generator, got 3")
    assert.error_matches(function() lm.rand({ 2 }, { generator = lm.Generator "cpu:1" }) end,
      form.pattern(form.devices("rand", "x", "cpu", "generator", "cpu:1")))
    local g = lm.Generator()
    assert.error_matches(function() g.seed() end,
      "^seed: expected a generator, got nil; as a method, call it with a colon: g:seed%(…%)$")
    assert.error_matches(function() g:manual_seed "x" end, "manual_seed: seed.*string 'x'")
    assert.error_matches(function() lm.Generator "gpu" end, "gpu")
    assert.error_matches(function() g:set_state(lm.zeros(3)) end,
      "set_rng_state: state must be a result of get_rng_state %(uint8 %[16%] on the CPU%), got float32 %[3%] on cpu")
  end)

  it("goes to initializers, samplers and splits", function()
    local nn, data = lm.nn, lm.data
    local function fresh() return lm.Generator():manual_seed(2) end
    for name, fill in pairs {
      uniform_ = function(t, o) return nn.init.uniform_(t, 0, 1, o.generator) end,
      normal_ = function(t, o) return nn.init.normal_(t, { std = 2, generator = o.generator }) end,
      trunc_normal_ = function(t, o) return nn.init.trunc_normal_(t, { generator = o.generator }) end,
      xavier_uniform_ = nn.init.xavier_uniform_, xavier_normal_ = nn.init.xavier_normal_,
      kaiming_uniform_ = nn.init.kaiming_uniform_, kaiming_normal_ = nn.init.kaiming_normal_,
      orthogonal_ = nn.init.orthogonal_,
      sparse_ = function(t, o) return nn.init.sparse_(t, 0.5, o) end,
    } do
      local before = lm.get_rng_state()
      local a, b = fill(lm.empty(4, 5), { generator = fresh() }), fill(lm.empty(4, 5), { generator = fresh() })
      assert(same_bits(a, b), name)
      assert(same_bits(before, lm.get_rng_state()), name)
    end
    local set = data.TensorDataset(lm.arange(20))
    for _, make in ipairs {
      function(o) return data.RandomSampler(set, o):indices() end,
      function(o) return data.RandomSampler(set, { replacement = true, generator = o.generator }):indices() end,
      function(o) return data.SubsetRandomSampler({ 1, 5, 9, 11, 12 }, o):indices() end,
      function(o) return data.WeightedRandomSampler(lm.ones(20), 9, o):indices() end,
      function(o) return data.random_split(set, { 15, 5 }, o)[1].indices end,
      function(o)
        local seen = {}
        local loader = data.DataLoader(set, { shuffle = true, batch_size = 20, generator = o.generator })
        for x in loader:iter() do seen[1] = x end
        return seen[1]
      end,
    } do
      assert.is_true(same_bits(make { generator = fresh() }, make { generator = fresh() }))
    end
    assert.error_matches(function() data.RandomSampler(set, { seed = 1, generator = fresh() }) end,
      "^RandomSampler: seed and generator are mutually exclusive$")
    assert.error_matches(function() data.random_split(set, { 20 }, { generator = 1 }) end,
      "^random_split: generator must be an lm%.Generator, got 1$")
  end)
end)

describe("the same seed", function()
  local draws = {
    rand = function(dtype) return lm.rand(100003, { dtype = dtype }) end,
    randn = function(dtype) return lm.randn(100003, { dtype = dtype }) end,
    bernoulli = function(dtype) return lm.empty(100003, { dtype = dtype }):bernoulli_(0.3) end,
    dropout = function(dtype) return lm.dropout(lm.ones(100003, { dtype = dtype }), 0.3) end,
    exponential = function(dtype) return lm.empty(40003, { dtype = dtype }):exponential_(2) end,
    log_normal = function(dtype) return lm.empty(40003, { dtype = dtype }):log_normal_() end,
    cauchy = function(dtype) return lm.empty(40003, { dtype = dtype }):cauchy_() end,
    geometric = function(dtype) return lm.empty(40003, { dtype = dtype }):geometric_(0.1) end,
    poisson = function(dtype) return lm.poisson(lm.arange(4003, { dtype = dtype }) / 100) end,
    binomial = function(dtype)
      return lm.binomial(lm.full({ 4003 }, 40, { dtype = dtype }), lm.arange(4003, { dtype = dtype }) / 4096)
    end,
    multinomial = function(dtype) return lm.multinomial(lm.arange(999, { dtype = dtype }), 9001, true) end,
  }
  it("gives the same bits with any number of threads", function()
    local before = lm.get_num_threads()
    for name, draw in pairs(draws) do
      for _, dtype in ipairs { "float32", "float64", "bfloat16", "float16" } do
        lm.set_num_threads(1)
        local one = seeded(21, draw, dtype)
        for threads = 2, 3 do
          lm.set_num_threads(threads)
          assert(same_bits(one, seeded(21, draw, dtype)), name .. " " .. dtype .. " with " .. threads .. " threads")
        end
      end
    end
    lm.set_num_threads(1)
    local one, perm = seeded(22, lm.randint, -5, 5, { 70001 }), seeded(23, lm.randperm, 5000)
    lm.set_num_threads(2)
    assert.is_true(same_bits(one, seeded(22, lm.randint, -5, 5, { 70001 })))
    assert.is_true(same_bits(perm, seeded(23, lm.randperm, 5000)))
    lm.set_num_threads(before)
  end)

  it("gives the same values to any layout", function()
    local fills = {
      function(x) return x:uniform_() end, function(x) return x:normal_() end, function(x) return x:random_(0, 50) end,
      function(x) return x:bernoulli_(0.5) end,
    }
    for k, fill in ipairs(fills) do
      for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
        local want = seeded(31, fill, lm.zeros(37, 50, { dtype = dtype }))
        local every_second = lm.zeros(37, 100, { dtype = dtype })[{ {}, { 1, -1, 2 } }]
        local transposed = lm.zeros(50, 37, { dtype = dtype }):t()
        local part = lm.zeros(40, 60, { dtype = dtype })[{ { 3, 39 }, { 5, 54 } }]
        for _, x in ipairs { every_second, transposed, part } do
          assert(same_bits(want, seeded(31, fill, x)), ("fill %d of %s"):format(k, dtype))
        end
      end
    end
  end)

  it("starts each draw at a fresh block", function()
    lm.manual_seed(41)
    lm.rand(5) -- two blocks
    local x = lm.rand(4)
    lm.manual_seed(41)
    assert.is_true(same_bits(x, lm.rand(12)[{ { 9, 12 } }]))
  end)
end)

-- Returns mean and variance of x, computed in float64.
local function moments(x)
  x = x:double()
  local mean = x:mean():item()
  return mean, ((x - mean) ^ 2):mean():item()
end
local function near(want, got, within, what)
  assert(math.abs(want - got) <= within, ("%s: %g instead of %g"):format(what, got, want))
end

describe("distributions", function()
  local n = 200000
  before_each(function() lm.manual_seed(51) end)

  it("uniform numbers lie in [0, 1), evenly", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
      local x = lm.rand(n, { dtype = dtype })
      assert.equal(dtype, x.dtype)
      assert.is_true(x:min():item() >= 0)
      assert.is_true(x:max():item() < 1)
      local mean, var = moments(x)
      near(0.5, mean, 0.005, dtype .. " mean")
      near(1 / 12, var, 0.002, dtype .. " variance")
    end
    local x, chi = lm.rand(n), 0
    for k = 0, 19 do
      local count = lm.logical_and(x:ge(k / 20), x:lt((k + 1) / 20)):sum():item()
      chi = chi + (count - n / 20) ^ 2 / (n / 20)
    end
    assert(chi < 50, "chi squared of 19 degrees of freedom: " .. chi) -- 43.8 is the 0.1% point
  end)

  it("uniform_ takes bounds, of which the upper is never reached", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local x = lm.empty(n, { dtype = dtype }):uniform_(-3, 5)
      assert.is_true(x:min():item() >= -3)
      assert.is_true(x:max():item() < 5)
      near(1, (moments(x)), 0.02, dtype)
    end
    local x = lm.empty(n):uniform_(1, 1 + 2 ^ -22) -- a span of a few floats
    assert.is_true(x:max():item() < 1 + 2 ^ -22)
    assert.same({ 4, 4 }, lm.empty(2):uniform_(4, 4 + 2 ^ -22):floor():totable())
  end)

  it("normal numbers have their moments", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
      local x = lm.randn(n, { dtype = dtype })
      local mean, var = moments(x)
      near(0, mean, 0.01, dtype .. " mean")
      near(1, var, 0.02, dtype .. " variance")
      x = x:double()
      near(0, (x ^ 3):mean():item(), 0.05, dtype .. " third moment")
      near(3, (x ^ 4):mean():item(), 0.12, dtype .. " fourth moment")
      near(0.6827, x:abs():lt(1):double():mean():item(), 0.005, dtype .. " within one deviation")
      near(0, (x[{ { 1, -2, 2 } }] * x[{ { 2, -1, 2 } }]):mean():item(), 0.015, dtype .. " correlation of neighbours")
    end
    local mean, var = moments(lm.empty(n):normal_(3, 0.5))
    near(3, mean, 0.01, "mean")
    near(0.25, var, 0.005, "variance")
    mean, var = moments(lm.empty(9):normal_(3, 0))
    assert.same({ 3, 0 }, { mean, var })
  end)

  it("randint leaves out its high end and reaches everything below", function()
    local x = lm.randint(-3, 4, { n })
    assert.equal("int64", x.dtype)
    assert.equal(-3, x:min():item())
    assert.equal(3, x:max():item())
    for v = -3, 3 do near(n / 7, x:eq(v):sum():item(), 800, v) end
    assert.same({ 7, 7 }, lm.randint(7, 8, { 2 }):totable())
    assert.equal("uint8", lm.randint(0, 256, { 3 }, { dtype = "uint8" }).dtype)
    assert.error_matches(function() lm.randint(0, 257, { 3 }, { dtype = "uint8" }) end,
      "randint: low and high must be from 0 to 255 for uint8")
  end)

  it("bernoulli_ has its probability, and 0 and 1 are certain", function()
    near(0.3, (moments(lm.empty(n):bernoulli_(0.3))), 0.005, "p")
    assert.equal(0, lm.empty(n):bernoulli_(0):sum():item())
    assert.equal(n, lm.empty(n):bernoulli_(1):sum():item())
  end)

  it("bernoulli takes probabilities, each its own", function()
    local p = lm.tensor { 0, 0.25, 0.75, 1 }
    for _, dtype in ipairs { "float32", "float64", "float16" } do
      local x = lm.bernoulli(p:to(dtype):expand(n / 4, 4))
      assert.equal(dtype, x.dtype)
      local mean = x:double():mean(1):totable()
      for k = 1, 4 do near(p[k], mean[k], 0.01, dtype) end
      assert.same({ 0, 1 }, { mean[1], mean[4] })
    end
    near(0.2, (moments(lm.bernoulli(lm.empty(n), 0.2))), 0.005, "p")
    local x = lm.zeros(n, { dtype = "int8" }):bernoulli_(lm.tensor(0.3))
    assert.equal("int8", x.dtype)
    near(0.3, (moments(x)), 0.005, "of a tensor")
    local q = lm.full({ 3 }, 0.5):requires_grad_()
    lm.bernoulli(q):sum():backward()
    assert.same({ 0, 0, 0 }, q.grad:totable())
  end)

  it("normal takes means and deviations, each its own", function()
    local x = lm.normal(lm.tensor { -2, 0, 5 }, lm.tensor({ 1, 2, 0 }):expand(n / 4, 3))
    assert.same({ n / 4, 3 }, x.shape)
    local mean, std = x:mean(1):totable(), x:std(1):totable()
    near(-2, mean[1], 0.03, "mean")
    near(2, std[2], 0.03, "deviation")
    assert.same({ 5, 0 }, { mean[3], std[3] })
    assert.equal("float64", lm.normal(1, lm.ones(2, { dtype = "float64" })).dtype)
    near(3, (moments(lm.normal(3, 0.1, { 1000 }))), 0.02, "of numbers")
  end)

  -- Computes chi squared of integers drawn: `probability` of k = from, from + 1, …, of which those that would come less
  -- than five times, and all others, are one. Returns it over its degrees of freedom, which is above 2 once in 10000.
  local function misfit(x, from, probability)
    local count, chi, cells, rest, left = x:numel(), 0, -1, 1, x:numel()
    for k = from, from + #probability - 1 do
      local p = probability[k - from + 1]
      if p * count >= 5 then
        local seen = x:eq(k):sum():item()
        chi, cells, rest, left = chi + (seen - p * count) ^ 2 / (p * count), cells + 1, rest - p, left - seen
      end
    end
    if rest * count >= 5 then chi, cells = chi + (left - rest * count) ^ 2 / (rest * count), cells + 1 end
    return chi / math.max(cells, 1)
  end

  it("poisson and binomial fit their probabilities, below and above where the method changes", function()
    for _, rate in ipairs { 0.5, 4, 9.9, 10, 33, 500 } do
      local probability, log_p = {}, -rate
      for k = 0, math.floor(2 * rate + 20) do
        probability[k + 1] = math.exp(log_p)
        log_p = log_p + math.log(rate) - math.log(k + 1)
      end
      local bad = misfit(lm.poisson(lm.full({ 40000 }, rate)), 0, probability)
      assert(bad < 2, ("poisson of rate %g: chi squared %g of 1"):format(rate, bad))
    end
    for _, case in ipairs { { 5, 0.3 }, { 30, 0.9 }, { 30, 0.5 }, { 200, 0.04 }, { 200, 0.4 }, { 1000, 0.98 } } do
      local count, p = unpack(case)
      local probability, log_p = {}, count * math.log(1 - p)
      for k = 0, count do
        probability[k + 1] = math.exp(log_p)
        log_p = log_p + math.log((count - k) / (k + 1) * p / (1 - p))
      end
      local bad = misfit(lm.binomial(lm.full({ 40000 }, count), lm.full({ 40000 }, p)), 0, probability)
      assert(bad < 2, ("binomial(%d, %g): chi squared %g of 1"):format(count, p, bad))
    end
    local x = lm.poisson(lm.tensor({ 0, 1e6, 1e12 }, { dtype = "float64" }):expand(500, 3))
    assert.equal(0, x:select(2, 1):sum():item())
    near(1, x:select(2, 2):mean():item() / 1e6, 3e-4, "mean of a large rate")
    near(1, x:select(2, 3):mean():item() / 1e12, 3e-7, "mean of a larger one")
    local some = lm.tensor { 7, 7, 0 }
    assert.same({ 0, 7, 0 }, lm.binomial(some, lm.tensor { 0, 1, 0.5 }):totable())
  end)

  it("geometric_ counts trials", function()
    for _, dtype in ipairs { "float32", "int64", "int16" } do
      local probability = {}
      for k = 1, 200 do probability[k] = 0.2 * 0.8 ^ (k - 1) end
      local x = lm.empty(40000, { dtype = dtype }):geometric_(0.2)
      assert.equal(1, x:min():item())
      assert(misfit(x, 1, probability) < 2, dtype)
    end
  end)

  it("exponential_, log_normal_ and cauchy_ have their quantiles", function()
    local function below(x, at, want, what) near(want, x:lt(at):double():mean():item(), 0.005, what) end
    for _, dtype in ipairs { "float32", "float64" } do
      local x = lm.empty(n, { dtype = dtype }):exponential_(2)
      assert(x:min():item() > 0)
      for _, q in ipairs { 0.1, 0.5, 0.9 } do below(x, -math.log(1 - q) / 2, q, "exponential " .. dtype) end
      local mean, var = moments(x)
      near(0.5, mean, 0.01, "mean")
      near(0.25, var, 0.01, "variance")
      x = lm.empty(n, { dtype = dtype }):log_normal_(0.5, 2)
      below(x, math.exp(0.5), 0.5, "log_normal " .. dtype)
      below(x, math.exp(2.5), 0.8413, "log_normal " .. dtype)
      x = lm.empty(n, { dtype = dtype }):cauchy_(1, 3)
      below(x, 1, 0.5, "cauchy " .. dtype)
      below(x, 4, 0.75, "cauchy " .. dtype)
      below(x, -2, 0.25, "cauchy " .. dtype)
      assert.is_true(x:isfinite():all():item())
    end
    assert.is_true(lm.empty(n):exponential_(1e30):gt(0):all():item())
  end)

  it("multinomial goes by weight, again and again or each thing once", function()
    local weights = lm.tensor { 0, 1, 2, 0, 5, 0 }
    local x = lm.multinomial(weights, 40000, true)
    assert.equal("int64", x.dtype)
    assert(misfit(x, 1, { 0, 1 / 8, 2 / 8, 0, 5 / 8, 0 }) < 4)
    assert.equal(0, x:eq(1):sum():item() + x:eq(4):sum():item() + x:eq(6):sum():item())
    x = lm.multinomial(weights:expand(20000, 6), 1)
    assert.same({ 20000, 1 }, x.shape)
    assert(misfit(x, 1, { 0, 1 / 8, 2 / 8, 0, 5 / 8, 0 }) < 4)
    x = lm.multinomial(weights:expand(20000, 6), 3)
    assert.is_true(x:sum(2):eq(2 + 3 + 5):all():item()) -- each is drawn once, none of weight 0
    assert(misfit(x:select(2, 1), 1, { 0, 1 / 8, 2 / 8, 0, 5 / 8, 0 }) < 4) -- the first by weight
    near(20000 * 2 / 7, x:select(2, 2):eq(3):logical_and(x:select(2, 1):eq(2)):sum():item() * 8, 900, "second after 2")
    local many = lm.zeros(2, 20000) -- a row of few weights far apart, and a row of many
    many[{ 1, 1 }], many[{ 1, 4097 }], many[{ 1, 12288 }] = 1, 2, 1
    many[{ 2, { 5001, 20000 } }] = lm.rand(15000)
    x = lm.multinomial(many, 30000, true)
    for place, share in pairs { [1] = 0.25, [4097] = 0.5, [12288] = 0.25 } do
      near(share, x[1]:eq(place):double():mean():item(), 0.015, "of place " .. place)
    end
    assert.is_true(x[2]:gt(5000):all():item())
    near(many[2]:narrow(1, 1, 9000):sum():item() / many[2]:sum():item(), x[2]:le(9000):double():mean():item(), 0.015,
      "of the first 9000")
    local row = lm.multinomial(lm.eye(3), 2, { replacement = true })
    assert.same({ { 1, 1 }, { 2, 2 }, { 3, 3 } }, row:totable())
    assert.same({ 0, 4 }, lm.multinomial(lm.ones(0, 3), 4, true).shape)
  end)

  it("random_ takes bounds, the upper one alone, or none", function()
    local x = lm.empty(1000):random_(4)
    assert.same({ 0, 3 }, { x:min():item(), x:max():item() })
    x = lm.empty(5000, { dtype = "int8" }):random_()
    assert.same({ 0, 127 }, { x:min():item(), x:max():item() })
    x = lm.empty(100):random_()
    assert(x:max():item() > 2 ^ 20 and x:max():item() <= 2 ^ 24)
    x = lm.empty(100, { dtype = "int64" }):random_()
    assert.is_true(x:ge(0):all():item())
    assert.error_matches(function() lm.empty(2):random_(0) end, "random_: from must be less than to %(0%), got 0")
  end)

  it("dropout zeroes with its probability and scales the rest", function()
    local x = lm.dropout(lm.ones(n), 0.25)
    near(0.25, x:eq(0):double():mean():item(), 0.005, "dropped")
    near(1, (moments(x)), 0.01, "mean")
    assert.is_true(lm.logical_or(x:eq(0), (x - 4 / 3):abs():lt(1e-6)):all():item())
  end)

  it("randperm is a permutation of 1 to n", function()
    for _, size in ipairs { 0, 1, 2, 17, 5000 } do
      local list, seen = lm.randperm(size):totable(), {}
      assert.equal(size, #list)
      for _, v in ipairs(list) do
        assert(v >= 1 and v <= size and v % 1 == 0 and not seen[v])
        seen[v] = true
      end
    end
    -- Each of the 6 orders of 3 about equally often.
    local count = {}
    for _ = 1, 3000 do
      local order = table.concat(lm.randperm(3):totable())
      count[order] = (count[order] or 0) + 1
    end
    for _, order in ipairs { "123", "132", "213", "231", "312", "321" } do near(500, count[order] or 0, 100, order) end
  end)

  it("like-functions take shape, dtype and device", function()
    local x = lm.zeros(3, 4, { dtype = "float64", device = "cpu:1" })
    for _, like in ipairs { lm.rand_like, lm.randn_like } do
      local y = like(x)
      assert.same({ { 3, 4 }, "float64", "cpu:1" }, { y.shape, y.dtype, y.device })
      assert.is_false(same_bits(x, y))
    end
  end)

  it("uniform_ stays below its end in every dtype, and within what the dtype holds", function()
    lm.manual_seed(1)
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      for _, ends in ipairs { { 0, 1 }, { 1, 2 }, { -3, -1 }, { -1, 0.3 }, { 0, 1000 } } do
        local x = lm.empty(20000, { dtype = dtype }):uniform_(ends[1], ends[2])
        local to = lm.tensor({ ends[2] }, { dtype = "float64" })
        assert(x:double():lt(to):all():item() and x:double():ge(ends[1]):all():item(), dtype .. " below " .. ends[2])
      end
    end
    -- Ends between which a dtype has few numbers, or none.
    for dtype, list in pairs {
      float16 = { { 1.0006, 1.0009 }, { 1, 1.0005 }, { 3, 3.0001 }, { -1.0009, -1.0006 }, { 1.0014648437499, 1.0018 } },
      bfloat16 = { { 3, 3.0001 }, { 1.002, 1.003 }, { -1e-7, 0 }, { 255, 255.5 } },
      float32 = { { 1 - 1e-10, 1 }, { 1, 1 + 1e-10 }, { -1 - 1e-10, -1 }, { 2 ^ 24, 2 ^ 24 + 1 } },
    } do
      for _, ends in ipairs(list) do
        local x = lm.empty(2000, { dtype = dtype }):uniform_(ends[1], ends[2]):double()
        assert(x:amax():item() < ends[2],
        ("%s: uniform_(%.17g, %.17g) returned %.17g"):format(dtype, ends[1], ends[2], x:amax():item()))
      end
      assert.same({ 2, 2 }, lm.empty(2, { dtype = dtype }):uniform_(2, 2):totable())
    end
    local function message(f) return tostring(select(2, pcall(f))) end
    assert.matches("uniform_: from, to .* must be at most 65504 in magnitude for float16, got from 0 to 1e%+06",
      message(function() lm.empty(3, { dtype = "float16" }):uniform_(0, 1e6) end))
  end)

  it("no rate or probability is NaN, and errors name what was called", function()
    local function message(f) return tostring(select(2, pcall(f))) end
    assert.matches("bernoulli: p must be from 0 to 1, got nan", message(function() lm.bernoulli(lm.ones(3), 0 / 0) end))
    for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64" } do
      local p = lm.tensor({ 0.5, 0 / 0, 0.5 }, { dtype = dtype })
      assert.matches("bernoulli: p must be from 0 to 1, got nan", message(function() p:bernoulli() end))
      assert.matches("bernoulli_: p must be from 0 to 1, got nan", message(function() lm.ones(3):bernoulli_(p) end))
    end
    assert.matches("poisson: x must be at least 0, got nan", message(function() lm.poisson(lm.tensor { 1, 0 / 0 }) end))
    assert.matches("[^_]rand: device mismatch: x is on cpu, generator is on cpu:1", message(function()
      lm.rand(3, { generator = lm.Generator "cpu:1" })
    end))
    assert.matches("poisson: x must be at least 0, got %-2", message(function() lm.poisson(lm.tensor { 1, -2 }) end))
  end)
end)
