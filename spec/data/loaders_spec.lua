-- Loaders.
local lm = require "luminary"
local passes = require "spec.support.batches"
local data = lm.data
local message, Numbers, batches = passes.message, passes.Numbers, passes.of
local flat, sorted, count_to = passes.flat, passes.sorted, passes.count_to

describe("a loader", function()
  it("leaves the random numbers where they are, an error in the set or not", function()
    local Broken = data.Dataset:extend("Broken")
    function Broken:len() return 4 end -- luacheck: ignore self
    function Broken:get(i) -- luacheck: ignore self
      if i == 3 then error("torn") end
      return lm.rand(1)
    end
    lm.manual_seed(3)
    local expected = lm.rand(2):totable()
    for _, opts in ipairs {
      { batch_size = 2 }, { batch_size = 4 }, { batch_size = 2, collate_fn = function() error("bent") end },
    } do
      lm.manual_seed(3)
      local ok, problem = xpcall(function()
        for _ in data.DataLoader(Broken(), opts):epoch(1) do end -- luacheck: ignore
      end, debug.traceback)
      assert.is_false(ok)
      assert.matches(opts.collate_fn and "bent" or "torn", problem)
      assert.same(expected, lm.rand(2):totable())
    end
  end)

  it("does nothing for pin_memory or a device where there is no GPU", function()
    if require("luminary.core").device_count "cuda" > 0 then return end
    local x = lm.arange(4)
    local set = { len = function() return 1 end, get = function() return 1 end, get_batch = function() return x end }
    for _, opts in ipairs { { pin_memory = true }, { device = "cpu" }, { device = "cpu", pin_memory = true } } do
      assert.is_true(data.DataLoader(set, opts):iter()() == x)
    end
    assert.equal("cpu:1", data.DataLoader(set, { device = "cpu:1" }):iter()().device)
    assert.error_matches(function() data.DataLoader(set, { device = "cuda" }):iter()() end, "cuda")
  end)

  it("goes in order, the last batch smaller", function()
    local loader = data.DataLoader(Numbers(7), { batch_size = 3 })
    assert.equal(3, loader:len())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 }, { 7 } }, batches(loader:iter()))
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 }, { 7 } }, batches(loader:epoch(1))) -- again, and again
    assert.same({ { 1 }, { 2 } }, batches(data.DataLoader(Numbers(2)):iter())) -- batch_size 1
    assert.same({}, batches(data.DataLoader(Numbers(0), { batch_size = 3 }):iter()))
  end)

  it("drops the last batch", function()
    local loader = data.DataLoader(Numbers(7), { batch_size = 3, drop_last = true })
    assert.equal(2, loader:len())
    assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, batches(loader:iter()))
    assert.equal(2, #batches(data.DataLoader(Numbers(6), { batch_size = 3, drop_last = true }):iter()))
  end)

  it("shuffles: another order each epoch, decided by the seed", function()
    local loader = data.DataLoader(Numbers(50), { batch_size = 8, shuffle = true })
    local function two()
      lm.manual_seed(5)
      return flat(batches(loader:epoch(1))), flat(batches(loader:epoch(2)))
    end
    local a, b = two()
    assert.same(count_to(50), sorted(a))
    assert.same(count_to(50), sorted(b))
    assert.not_same(count_to(50), a)
    assert.not_same(a, b)
    local again_a, again_b = two()
    assert.same(a, again_a)
    assert.same(b, again_b)
  end)

  it("begins an epoch at a later batch", function()
    local loader = data.DataLoader(Numbers(7), { batch_size = 2 })
    assert.same({ { 5, 6 }, { 7 } }, batches(loader:epoch(1, 3)))
    assert.same({}, batches(loader:epoch(1, 9)))
    local sampler = data.DistributedSampler(Numbers(7), { seed = 4 })
    loader = data.DataLoader(Numbers(7), { batch_size = 2, sampler = sampler })
    local whole, rest = batches(loader:epoch(3)), batches(loader:epoch(3, 3))
    assert.same({ whole[3], whole[4] }, rest)
    assert.matches("first batch", message(loader.epoch, loader, 1, 0))
    assert.matches("epoch", message(loader.epoch, loader))
  end)

  it("gives the same batches from tensors at once as from samples one by one", function()
    local x = lm.randn { 23, 4, 3 }
    local columns = { x, x:transpose(2, 3), lm.randint(1, 11, { 23 }), x:to("float16"), x:to("bfloat16"), x:gt(0),
      x:double(), lm.randint(0, 255, { 23, 2 }, { dtype = "uint8" }) }
    local set = data.TensorDataset(unpack(columns))
    local slow = data.Dataset:extend("Slow")
    function slow.len() return 23 end
    function slow.get(_, i) return set:get(i) end
    local opts = { batch_size = 6, shuffle = true }
    local fast_loader, slow_loader = data.DataLoader(set, opts), data.DataLoader(slow(), opts)
    lm.manual_seed(1)
    local fast = {}
    for a, b, c, d, e, f, g, h in fast_loader:iter() do fast[#fast + 1] = { a, b, c, d, e, f, g, h } end
    lm.manual_seed(1)
    local k = 0
    for a, b, c, d, e, f, g, h in slow_loader:iter() do
      k = k + 1
      for n, t in ipairs { a, b, c, d, e, f, g, h } do
        assert(fast[k][n]:equal(t), ("batch %d, column %d"):format(k, n))
        assert.equal(t.dtype, fast[k][n].dtype)
      end
    end
    assert.equal(4, k)
  end)

  it("collates what samples hold", function()
    local Mixed = data.Dataset:extend("Mixed")
    function Mixed:len() return 2 end -- luacheck: ignore self
    function Mixed:get(i) -- luacheck: ignore self
      return lm.full({ 2 }, i), i, i + 0.5, i == 1, "text " .. i, { left = lm.full({ 1 }, i), right = { i } }
    end
    local x, whole, real, flag, text, fields = data.DataLoader(Mixed(), { batch_size = 2 }):iter()()
    assert.same({ { 1, 1 }, { 2, 2 } }, x:totable())
    assert.same({ "int64", "float32", "bool" }, { whole.dtype, real.dtype, flag.dtype })
    assert.same({ { 1, 2 }, { 1.5, 2.5 } }, { whole:totable(), real:totable() })
    assert.same({ true, false }, flag:totable())
    assert.same({ "text 1", "text 2" }, text)
    assert.same({ { 1 }, { 2 } }, fields.left:totable())
    assert.same({ 1, 2 }, fields.right[1]:totable())
  end)

  it("gives a column of numbers one dtype in all batches", function()
    local function loader_of(values)
      local Given = data.Dataset:extend("Given")
      function Given.len() return #values end
      function Given.get(_, i) return values[i], { t = { values[i] } } end
      return data.DataLoader(Given(), { batch_size = 2 })
    end
    local loader = loader_of { 0.5, 1, 2, 3 }
    for _ = 1, 2 do
      for x, y in loader:iter() do assert.same({ "float32", "float32" }, { x.dtype, y.t[1].dtype }) end
    end
    local walk = loader_of({ 1, 2, 0.5, 3 }):iter()
    assert.equal("int64", walk().dtype)
    assert.matches("value 1 was an integer in earlier batches, which made it int64, and now has a", message(walk))
  end)

  it("refuses samples that contain themselves", function()
    local sample = { 1 }
    sample.again = sample
    local expected = "DataLoader: a sample's tables must be at most 100 deep, got more; "
      .. "a sample must not contain itself$"
    assert.matches(expected, message(data.default_collate, { sample, sample }))
    local set = { get = function() return sample end, len = function() return 2 end }
    assert.matches(expected, message(function() data.DataLoader(set, { batch_size = 2 }):iter()() end))
  end)

  it("says what cannot be collated", function()
    local Odd = data.Dataset:extend("Odd")
    function Odd:len() return 2 end -- luacheck: ignore self
    function Odd:get(i) return i == 1 and lm.ones { 2 } or self.other end
    local odd = Odd()
    for problem, other in pairs {
      ["shapes of tensors[1] and tensors[2] must match, got [2] and [3]"] = lm.ones { 3 },
      ["tensors[2] must be a tensor, got a table"] = { a = 1 },
    } do
      odd.other = other
      assert.matches("DataLoader: samples of a batch cannot be stacked; a collate_fn can pad them: stack: " .. problem,
        message(batches, data.DataLoader(odd, { batch_size = 2 }):iter()), 1, true)
    end
    assert.matches("DataLoader: a batch's sample 1 is string 'x', but 2 a tensor [2]",
      message(data.default_collate, { { "x" }, { lm.ones(2) } }), 1, true)
  end)

  it("has collate_fn", function()
    local loader = data.DataLoader(Numbers(3), {
      batch_size = 2,
      collate_fn = function(samples)
        local sum = 0
        for _, sample in ipairs(samples) do sum = sum + sample[1] end
        return { sum, #samples }
      end,
    })
    assert.same({ { 3, 2 }, { 3, 1 } }, batches(loader:iter()))
    local Fields = Numbers:extend("Fields") -- a sample that is one table is that table
    function Fields:get(i) -- luacheck: ignore self
      return { i, name = i * 2 }
    end
    assert.same({ { 1, 2 }, { 2, 4 }, { 3, 6 } }, batches(data.DataLoader(Fields(3), { collate_fn = function(samples)
      return { samples[1][1], samples[1].name }
    end }):iter()))
    local tensors = data.DataLoader(data.TensorDataset(lm.arange(4), lm.arange(4) * 2), {
      batch_size = 4, collate_fn = function(samples) return { #samples, samples[3][2]:item() } end,
    })
    assert.same({ { 4, 4 } }, batches(tensors:iter()))
  end)

  it("has default_collate for a collate_fn that does more", function()
    local set = data.TensorDataset(lm.arange(4), lm.arange(4) * 2)
    for a, b in data.DataLoader(set, { batch_size = 4, collate_fn = function(samples)
      local x, y = data.default_collate(samples)
      return y, x
    end }):iter() do
      assert.same({ { 0, 2, 4, 6 }, { 0, 1, 2, 3 } }, { a:totable(), b:totable() })
    end
    local batch = data.default_collate { { n = 1, t = lm.ones { 2 } }, { n = 2.5, t = lm.ones { 2 } } }
    assert.same({ "float32", { 1, 2.5 }, { 2, 2 } }, { batch.n.dtype, batch.n:totable(), batch.t.shape })
    assert.matches("default_collate: expected a list of samples, each a", message(data.default_collate, { 1, 2 }))
    assert.matches("default_collate: expected a list of samples, each a", message(data.default_collate))
  end)

  it("says that a batch is nil, which would end the loop", function()
    local set = Numbers(3)
    assert.matches("DataLoader: collate_fn returned nil for a batch, which", message(batches, data.DataLoader(set, {
      collate_fn = function() end }):iter()))
    local Gaps = data.Dataset:extend("Gaps")
    function Gaps:len() return 3 end -- luacheck: ignore self
    function Gaps:get(i) if i ~= 2 then return lm.ones(1) end end -- luacheck: ignore self
    assert.matches("DataLoader: :get(2) of the dataset returned nil", message(batches, data.DataLoader(Gaps(),
      { batch_size = 3 }):iter()), 1, true)
    assert.same({ { 2 } }, batches(data.DataLoader(Gaps(), { batch_size = 3, collate_fn = function(samples)
      local n = 0 -- a loader may leave out what is not there
      for _, sample in ipairs(samples) do n = n + #sample end
      return { n }
    end }):iter()))
    function Gaps:get_batch() end -- luacheck: ignore self
    assert.matches("DataLoader: the set's :get_batch returned nil", message(batches, data.DataLoader(Gaps()):iter()))
  end)

  it("wants a length that is one", function()
    local Odd, n = data.Dataset:extend("Odd"), nil
    function Odd:len() return n end -- luacheck: ignore self
    function Odd:get() return lm.ones(1) end -- luacheck: ignore self
    local odd, good = Odd(), Numbers(3)
    local order = { len = function() return n end, iter = function() return function() end end }
    for _, wrong in ipairs { "5", false, -1, 1.5, 0 / 0, math.huge, {}, lm.ones(1) } do
      n = wrong or nil
      for _, f in ipairs {
        function() data.DataLoader(odd):iter() end, function() data.DataLoader(odd):len() end,
        function() data.DataLoader(odd, { shuffle = true }):iter() end, function() data.random_split(odd, { 1, 1 }) end,
        function() data.Subset(odd, { 1 }) end, function() data.DistributedSampler(odd) end,
        function() odd:index(1) end, function() data.DataLoader(good, { sampler = order }):len() end,
        function() data.DataLoader(good, { batch_sampler = order }):len() end,
      } do
        assert.matches(" must return an integer of at least 0, got ", message(f), 1, true)
      end
      assert.is_string(tostring(odd))
    end
  end)

  it("takes samplers of one's own", function()
    local Evens = data.Sampler:extend("Evens")
    function Evens:init(n) self.n = n end
    function Evens:len() return math.floor(self.n / 2) end
    function Evens:iter()
      local i = 0
      return function()
        i = i + 2
        if i <= self.n then return i end
      end
    end
    local loader = data.DataLoader(Numbers(7), { sampler = Evens(7), batch_size = 2 })
    assert.equal(2, loader:len())
    assert.same({ { 2, 4 }, { 6 } }, batches(loader:iter()))
    local told
    local sampler = {
      len = function() return 2 end,
      indices = function() return lm.tensor({ 3, 1 }, { dtype = "int64" }) end,
      set_epoch = function(_, n) told = n end,
    }
    assert.same({ { 3, 1 } }, batches(data.DataLoader(Numbers(3), { sampler = sampler, batch_size = 2 }):epoch(7)))
    assert.equal(7, told)
    assert.matches("define function Bare:len()", message(function() return data.Sampler:extend("Bare")():len() end), 1,
      true)
  end)

  it("refuses sample numbers that are none", function()
    local function first(opts) return data.DataLoader(data.TensorDataset(lm.arange(8)), opts):iter()() end
    local function one(numbers)
      local function iter()
        local given
        return function()
          if not given then
            given = true
            return numbers
          end
        end
      end
      return { len = function() return 1 end, iter = iter, indices = function() return numbers end }
    end
    for _, numbers in ipairs { {}, 3, "abc", lm.zeros(0), lm.ones(2, 2) } do
      assert.error_matches(function() first({ batch_sampler = one(numbers) }) end,
        "a value of the batch sampler must be a non%-empty list of sample numbers, got ")
    end
    for _, numbers in ipairs { { 1.5 }, { 0 / 0 }, lm.tensor { 1.5 } } do
      assert.error_matches(function() first({ batch_sampler = one(numbers) }) end, "indices must be integers, got ")
      assert.error_matches(function() first({ sampler = one(numbers) }) end, "the sampler: indices must be integers,")
    end
    assert.error_matches(function() first({ sampler = one(3) }) end, "the sampler: the list of indices must be a")
    local no_iterator = { len = function() return 1 end, iter = function() return 3 end }
    assert.error_matches(function() first({ batch_sampler = no_iterator }) end,
      "the result of the batch sampler's :iter%(%) must be a function, got 3")
  end)

  it("takes batch samplers", function()
    local batch_sampler = {
      len = function() return 2 end,
      iter = function()
        local lists, k = { { 3 }, { 1, 2 } }, 0
        return function()
          k = k + 1
          return lists[k]
        end
      end,
    }
    for _, set in ipairs { Numbers(3), data.TensorDataset(lm.arange(1, 4)) } do
      local loader = data.DataLoader(set, { batch_sampler = batch_sampler })
      assert.equal(2, loader:len())
      assert.same({ { 3 }, { 1, 2 } }, batches(loader:iter()))
      assert.same({ { 1, 2 } }, batches(loader:epoch(1, 2)))
    end
    assert.matches("batch_sampler excludes batch_size, shuffle, sampler and drop_last",
      message(data.DataLoader, Numbers(3), { batch_sampler = batch_sampler, batch_size = 2 }))
  end)

  it("names wrong arguments", function()
    local set = Numbers(3)
    local sampler = data.DistributedSampler(set)
    assert.matches("DistributedSampler(set, {shuffle = true})",
      message(data.DataLoader, set, { sampler = sampler, shuffle = true }), 1, true)
    assert.matches("shuffle must be true or false, got 32", message(data.DataLoader, set, 32, 32), 1, true)
    assert.matches("did you mean 'batch_size'", message(data.DataLoader, set, { batchsize = 2 }))
    assert.matches("batch_size must be an integer of at least 1,", message(data.DataLoader, set, { batch_size = 0 }))
    assert.matches("dataset", message(data.DataLoader, lm.ones { 3 }))
    assert.matches("sampler", message(data.DataLoader, set, { sampler = 3 }))
    assert.matches("batch_size must be an integer of at least 1, got a table",
      message(data.DataLoader, set, {}, true))
  end)

  it("is no function", function()
    assert.error_matches(function()
      for _ in data.DataLoader(Numbers(3)) do error "it was" end
    end, "DataLoader: this object cannot be called; for x, y in loader:iter%(%) do … end walks its batches, #loader")
    local sampler = { len = function() return 1 end, iter = function() return { 1 } end }
    assert.error_matches(function() data.DataLoader(Numbers(3), { sampler = sampler }):iter() end,
      "DataLoader: the result of the sampler's :iter%(%) must be a function, got a table")
  end)

  it("keeps what it gives through lm.scope only if asked", function()
    local loader = data.DataLoader(data.TensorDataset(lm.arange(10)), { batch_size = 4, shuffle = true })
    local sum = 0
    local step = loader:iter()
    for _ = 1, 3 do
      lm.scope(function() sum = sum + step():sum():item() end) -- the order drawn outside survives each scope
    end
    assert.equal(45, sum)
  end)
end)

describe("sets and loaders", function()
  it("print as what they are", function()
    assert.equal("Numbers(7 samples)", tostring(Numbers(7)))
    assert.equal("DataLoader(Numbers(7 samples), batch_size=3, 3 batches)",
      tostring(data.DataLoader(Numbers(7), { batch_size = 3 })))
  end)
end)
