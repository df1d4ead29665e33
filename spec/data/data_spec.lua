-- Datasets, samplers, loaders, and MNIST's files.
local lm = require "luminary"
local temp = require "spec.support.temp"
local data = lm.data

local function message(f, ...)
  local ok, err = pcall(f, ...)
  assert(not ok, "no error")
  return tostring(err)
end

-- A set that gives its sample numbers, one by one.
local Numbers = data.Dataset:extend("Numbers")
function Numbers:init(n) self.n = n end
function Numbers:len() return self.n end
function Numbers:get(i) return self:index(i) end

-- All samples of one pass over a loader, batch by batch: {{1, 2}, {3}}.
local function batches(iterator)
  local list = {}
  for x in iterator do list[#list + 1] = lm.is_tensor(x) and x:totable() or x end
  return list
end

local function flat(lists)
  local all = {}
  for _, list in ipairs(lists) do
    for _, v in ipairs(list) do all[#all + 1] = v end
  end
  return all
end

local function sorted(list)
  local copy = { unpack(list) }
  table.sort(copy)
  return copy
end

local function count_to(n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end

describe("rows of a tensor", function()
  it("are gathered by an index, and one by its number, in the dtype asked for", function()
    local core = require "luminary.core"
    local bytes = lm.randint(0, 256, { 5, 2, 3 }, { dtype = "uint8" })
    local index = lm.tensor({ 4, 1, 4 }, { dtype = "int64" })
    for _, x in ipairs { bytes, bytes:transpose(2, 3), bytes:float(), bytes:to "int32" } do
      for _, opts in ipairs { {}, { dtype = "float32", scale = 1 / 255 }, { dtype = "float32", scale = 2, bias = 1 },
        { dtype = "float64", scale = 0.5 } } do
        local rows = core.gather_rows(x, index, opts)
        local expected = x:double() * (opts.scale or 1) + (opts.bias or 0)
        assert.equal(opts.dtype or x.dtype, rows.dtype)
        expected = expected:index_select(1, index)
        assert(x == bytes and lm.equal(rows, expected:to(rows.dtype)) or lm.allclose(rows:double(), expected))
        for k, i in ipairs { 4, 1, 4 } do
          local row = core.gather_row(x, i, opts)
          assert.same({ x.shape[2], x.shape[3] }, row.shape)
          assert(lm.equal(row, rows:select(1, k)))
        end
        for _, wrong in ipairs { 0, 6, -1 } do
          assert.matches("index %-?%d at place 1 is not in 1 to 5", message(core.gather_row, x, wrong, opts))
        end
      end
    end
    assert.matches("gather_row: number: an integer expected", message(core.gather_row, bytes, 1.5))
    assert.matches("a 0%-d tensor has no rows", message(core.gather_row, lm.tensor(3), 1))
  end)
end)

describe("a Dataset", function()
  it("is extended with get and len", function()
    local set = Numbers(3)
    assert.equal(3, set:len())
    assert.equal(2, set:get(2))
    assert.equal(3, set:get(-1))
    assert.matches("sample 4 is not among the 3, which count from 1", message(set.get, set, 4))
    assert.matches("sample 0", message(set.get, set, 0))
    assert.matches("sample 1.5", message(set.get, set, 1.5))
    assert.is_true(set:is(Numbers) and set:is(data.Dataset))
    local Empty = data.Dataset:extend("Empty")
    assert.matches("define function Empty:get(i)", message(Empty().get, Empty(), 1), 1, true)
    assert.matches("define function Empty:len()", message(Empty().len, Empty()), 1, true)
  end)

  it("of tensors gives their rows", function()
    local x, y = lm.arange(6):view(3, 2), lm.tensor({ 3, 1, 2 }, { dtype = "int64" })
    local set = data.TensorDataset(x, y)
    assert.equal(3, set:len())
    local row, label = set:get(2)
    assert.same({ 2, 3 }, row:totable())
    assert.equal(1, label:item())
    local rows, labels = set:get_batch(lm.tensor({ 3, 1 }, { dtype = "int64" }))
    assert.same({ { 4, 5 }, { 0, 1 } }, rows:totable())
    assert.same({ 2, 3 }, labels:totable())
    assert.equal("int64", labels.dtype)
    assert.matches("first sizes differ", message(data.TensorDataset, x, lm.zeros { 4 }))
    assert.matches("at least one", message(data.TensorDataset))
    assert.matches("argument 2", message(data.TensorDataset, x, 3))
    assert.matches("[1-3]", message(set.get_batch, set, lm.tensor({ 4 }, { dtype = "int64" })))
  end)

  it("has subsets", function()
    local set = Numbers(5)
    local part = data.Subset(set, { 5, 2 })
    assert.equal(2, part:len())
    assert.same({ 5, 2, 2 }, { part:get(1), part:get(2), part:get(-1) })
    assert.same({ 2 }, { data.Subset(part, { 2 }):get(1) })
    assert.matches("samples 1 to 5", message(data.Subset, set, { 6 }))
    assert.matches("from 0 to 1", message(data.Subset, set, { 0, 1 }))
    assert.matches("dataset", message(data.Subset, 3, { 1 }))
    assert.equal(0, data.Subset(set, {}):len())
    local tensors = data.Subset(data.TensorDataset(lm.arange(4)), lm.tensor({ 4, 2 }, { dtype = "int64" }))
    assert.same({ 1, 3 }, tensors:get_batch(lm.tensor({ 2, 1 }, { dtype = "int64" })):totable())
    local Own = data.TensorDataset:extend "Own" -- whose get counts
    function Own.get(_, i) return i * 10 end
    assert.same({ 10, 20 }, data.DataLoader(Own(lm.zeros(2)), { batch_size = 2 }):iter()():totable())
  end)

  it("is split at random into parts that are disjoint and complete", function()
    local function members(parts)
      local lists = {}
      for k, part in ipairs(parts) do
        lists[k] = {}
        for i = 1, part:len() do lists[k][i] = part:get(i) end
      end
      return lists
    end
    local set = Numbers(20)
    local lists = members(data.random_split(set, { 12, 5, 3 }))
    assert.same({ 12, 5, 3 }, { #lists[1], #lists[2], #lists[3] })
    assert.same(count_to(20), sorted(flat(lists)))
    assert.not_same(count_to(20), flat(lists))
    local shares = data.random_split(set, { 0.5, 0.28, 0.22 })
    assert.same({ 11, 5, 4 }, { shares[1]:len(), shares[2]:len(), shares[3]:len() }) -- as PyTorch rounds
    assert.same(members(data.random_split(set, { 10, 10 }, { seed = 3 })),
      members(data.random_split(set, { 10, 10 }, { seed = 3 })))
    assert.matches("sum to 19, the set has 20", message(data.random_split, set, { 10, 9 }))
    assert.matches("length", message(data.random_split, set, {}))
    assert.matches("{seed = 3}", message(data.random_split, set, { 20 }, 3), 1, true)
  end)
end)

describe("sets one after the other", function()
  local a = data.TensorDataset(lm.arange(3), lm.tensor { 1, 2, 3 })
  local b = data.TensorDataset(lm.arange(10, 12), lm.tensor { 4, 5 })

  it("are one set", function()
    local both = data.ConcatDataset { a, b }
    assert.equal(5, #both)
    assert.same({ 3, 5 }, both.cumulative_sizes)
    assert.equal(10, (both:get(4)):item())
    assert.equal(11, (both:get(-1)):item())
    assert.error_matches(function() both:get(6) end, "sample 6 is not among the 5")
  end)

  it("give batches over their borders, in the order asked for", function()
    local both = data.ConcatDataset { a, b }
    local x, y = both:get_batch(lm.tensor({ 5, 1, 4, 3 }, { dtype = "int64" }))
    assert.same({ 11, 0, 10, 2 }, x:totable())
    assert.same({ 5, 1, 4, 3 }, y:totable())
    local mixed = data.ConcatDataset { Numbers(2), data.ConcatDataset { Numbers(3) } }
    assert.same({ { 1, 2, 1 }, { 2, 3 } }, batches(data.DataLoader(mixed, { batch_size = 3 }):iter()))
  end)

  it("give the same number of values", function()
    local one, two = data.TensorDataset(lm.ones(2)), data.TensorDataset(lm.ones(2), lm.ones(2))
    local index = lm.tensor({ 1, 3 }, { dtype = "int64" })
    for _, sets in ipairs { { one, two }, { two, one } } do
      local set = data.ConcatDataset(sets)
      assert.error_matches(function() set:get_batch(index) end,
        "ConcatDataset: set 2 gives %d values? a sample, those before it %d")
    end
  end)

  it("are a list of sets", function()
    assert.error_matches(function() data.ConcatDataset(a, b) end, "ConcatDataset: takes at most 1 argument, got 2")
    assert.error_matches(function() data.ConcatDataset(a) end, "ConcatDataset{a, b}, got a TensorDataset")
    assert.error_matches(function() data.ConcatDataset {} end, "a list of sets wanted")
    assert.error_matches(function() data.ConcatDataset { a, 3 } end, "a dataset wanted, .* got number 3")
  end)
end)

describe("a stream of samples", function()
  local Stream = data.IterableDataset:extend("Stream")
  function Stream:init(n) self.n = n end
  function Stream:iter()
    local i = 0
    return function()
      i = i + 1
      if i <= self.n then return i, { twice = 2 * i } end
    end
  end

  it("comes in batches", function()
    local loader = data.DataLoader(Stream(5), { batch_size = 2 })
    local seen, twice = {}, {}
    for x, y in loader:iter() do
      seen[#seen + 1], twice[#twice + 1] = x:totable(), y.twice:totable()
    end
    assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, seen)
    assert.same({ { 2, 4 }, { 6, 8 }, { 10 } }, twice)
    assert.same({ { 3, 4 }, { 5 } }, batches(loader:epoch(1, 2)))
    assert.same({ { 1, 2 }, { 3, 4 } },
      batches(data.DataLoader(Stream(5), { batch_size = 2, drop_last = true }):iter()))
    assert.same({ 2, 2, 1 }, batches(data.DataLoader(Stream(5), { batch_size = 2, collate_fn = function(list)
      return #list
    end }):iter()))
    assert.same({}, batches(data.DataLoader(Stream(0)):iter()))
  end)

  it("has a length if it says so", function()
    local loader = data.DataLoader(Stream(5), { batch_size = 2 })
    assert.error_matches(function() return #loader end, "Stream: a stream of samples has no length")
    assert.equal("DataLoader(Stream, batch_size=2)", tostring(loader))
    local Known = Stream:extend("Known")
    function Known:len() return self.n end
    assert.equal(3, #data.DataLoader(Known(5), { batch_size = 2 }))
  end)

  it("has its own order", function()
    for _, opts in ipairs { { shuffle = true }, { sampler = data.SequentialSampler(Numbers(2)) } } do
      assert.error_matches(function() data.DataLoader(Stream(5), opts) end,
        "an IterableDataset comes in its own order: give no " .. next(opts))
    end
    local Bare = data.IterableDataset:extend("Bare")
    assert.error_matches(function() data.DataLoader(Bare()):iter()() end, "Bare: define function Bare:iter%(%)")
    function Bare:iter() return { self } end
    assert.error_matches(function() data.DataLoader(Bare()):iter()() end,
      ":iter%(%) has to give a function, got a table")
  end)
end)

describe("samplers of parts", function()
  it("SubsetRandomSampler: those numbers, in another order each epoch", function()
    local wanted = { 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 }
    local sampler = data.SubsetRandomSampler(wanted, { seed = 3 })
    assert.equal(10, #sampler)
    local first, second = sampler:indices():totable(), sampler:indices():totable()
    assert.same(wanted, sorted(first))
    assert.same(wanted, sorted(second))
    assert.not_same(first, second)
    sampler:set_epoch(0)
    assert.same(first, sampler:indices():totable())
    assert.same({}, data.SubsetRandomSampler({}):indices():totable())
    assert.error_matches(function() data.SubsetRandomSampler("x") end, "list of indices has to be a tensor")
  end)

  it("WeightedRandomSampler: as often as their weights say", function()
    local sampler = data.WeightedRandomSampler({ 1, 0, 3 }, 40000, { seed = 1 })
    local counts = { 0, 0, 0 }
    for i in sampler:iter() do counts[i] = counts[i] + 1 end
    assert.equal(0, counts[2])
    assert.near(10000, counts[1], 400) -- 4.6 standard deviations
    assert.equal(40000, #sampler)
    assert.same(data.WeightedRandomSampler({ 1, 0, 3 }, 5, { seed = 1 }):indices():totable(),
      data.WeightedRandomSampler(lm.tensor { 1, 0, 3 }, 5, { seed = 1 }):indices():totable())
  end)

  it("WeightedRandomSampler without replacement: none twice, the heavier ones first", function()
    local first = { 0, 0, 0 }
    local sampler = data.WeightedRandomSampler({ 1, 2, 0, 1 }, 3, { replacement = false, seed = 9 })
    for _ = 1, 4000 do
      local order = sampler:indices():totable()
      assert.same({ 1, 2, 4 }, sorted(order))
      first[order[1]] = (first[order[1]] or 0) + 1
    end
    assert.near(2000, first[2], 150) -- 4.7 standard deviations
  end)

  it("WeightedRandomSampler refuses what cannot be drawn from", function()
    for problem, try in pairs {
      ["weight 2 has to be a number of at least 0, got number %-1"] = { { 1, -1 }, 1 },
      ["no weight is above 0"] = { { 0, 0 }, 1 },
      ["weight 2 has to be a number of at least 0, got nil"] = { { 1, nil, 1 }, 1 },
      ["the weights are too large: their sum is infinite"] = { { 1e308, 1e308 }, 1 },
      ["num_samples has to be an integer of at least 1"] = { { 1 }, 0 },
      ["3 samples without replacement of 2 whose weight is above 0"] = { { 1, 0, 1 }, 3, { replacement = false } },
      ["a list or a 1%-d tensor of weights wanted, got number 3"] = { 3, 1 },
    } do
      assert.error_matches(function() data.WeightedRandomSampler(unpack(try)) end, problem)
    end
  end)

  it("BatchSampler: batches of another's numbers", function()
    local function lists(...)
      local all = {}
      for numbers in data.BatchSampler(data.SequentialSampler(Numbers(5)), ...):iter() do all[#all + 1] = numbers end
      return all
    end
    assert.same({ { 1, 2 }, { 3, 4 }, { 5 } }, lists(2))
    assert.same({ { 1, 2 }, { 3, 4 } }, lists(2, true))
    assert.equal(3, #data.BatchSampler(data.SequentialSampler(Numbers(5)), 2))
    local batch_sampler = data.BatchSampler(data.RandomSampler(Numbers(5), { seed = 1 }), { batch_size = 2 })
    local loader = data.DataLoader(Numbers(5), { batch_sampler = batch_sampler })
    local first = batches(loader:epoch(1))
    assert.same(first, batches(loader:epoch(1)))
    assert.same(count_to(5), sorted(flat(first)))
    assert.error_matches(function() data.BatchSampler(Numbers(5), 2) end, "a sampler wanted, with :iter")
  end)
end)

describe("a random sampler", function()
  local set = Numbers(6)
  local function order(sampler) return sampler:indices():totable() end

  it("draws from all each time with replacement, as many as asked", function()
    local sampler = data.RandomSampler(set, { replacement = true, num_samples = 600 })
    assert.equal(600, #sampler)
    local counts = {}
    for i in sampler:iter() do counts[i] = (counts[i] or 0) + 1 end
    for i = 1, 6 do assert(counts[i] > 50 and counts[i] < 160, counts[i]) end -- 100, and 6 standard deviations are 55
    assert.equal(6, #data.RandomSampler(set, { replacement = true }))
    assert.equal(2, #batches(data.DataLoader(set, {
      batch_size = 3, sampler = data.RandomSampler(set, { replacement = true, num_samples = 4 }),
    }):iter()))
  end)

  it("gives one order after the other without replacement", function()
    local sampler = data.RandomSampler(set, { num_samples = 14 })
    local all = order(sampler)
    assert.equal(14, #all)
    assert.same({ 1, 2, 3, 4, 5, 6 }, sorted { unpack(all, 1, 6) })
    assert.same({ 1, 2, 3, 4, 5, 6 }, sorted { unpack(all, 7, 12) })
    assert.equal(4, #order(data.RandomSampler(set, { num_samples = 4 })))
    assert.same({}, order(data.RandomSampler(Numbers(0))))
  end)

  it("finds no room for a number of samples beyond all bounds", function()
    local sampler = data.RandomSampler(data.TensorDataset(lm.arange(3)), { num_samples = 2 ^ 50 })
    assert.error_matches(function() sampler:indices() end, "out of memory")
  end)

  it("repeats itself from a seed, another order each pass", function()
    for _, replacement in ipairs { false, true } do
      local options = { seed = 5, replacement = replacement, num_samples = 20 }
      local a, b = data.RandomSampler(set, options), data.RandomSampler(set, options)
      local first, second = order(a), order(a)
      assert.same(first, order(b))
      assert.same(second, order(b))
      assert.not_same(first, second)
      a:set_epoch(0)
      assert.same(first, order(a))
      lm.manual_seed(1)
      local before = lm.rand({ 3 }):totable()
      lm.manual_seed(1)
      order(a)
      assert.same(before, lm.rand({ 3 }):totable()) -- the default generator is left alone
    end
  end)

  it("and the sequential one refuse what they do not know", function()
    assert.matches("no option 'replacment'; did you mean 'replacement'",
      message(data.RandomSampler, set, { replacment = true }))
    assert.matches("num_samples has to be an integer of at least 1",
      message(data.RandomSampler, set, { num_samples = 0 }))
    assert.matches("{replacement = true}", message(data.RandomSampler, set, true), 1, true)
    assert.matches("at most 2 arguments, got 3", message(data.RandomSampler, set, nil, 4))
    assert.matches("of a set that has none", message(data.RandomSampler, Numbers(0), { num_samples = 4 }))
    assert.matches("SequentialSampler: takes no options, got 'shuffle'",
      message(data.SequentialSampler, set, { shuffle = true }))
  end)
end)

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
    assert.matches("value [12][%.t1]* was whole in earlier batches, which made it int64, and", message(walk))
  end)

  it("says what cannot be collated", function()
    local Odd = data.Dataset:extend("Odd")
    function Odd:len() return 2 end -- luacheck: ignore self
    function Odd:get(i) return i == 1 and lm.ones { 2 } or self.other end
    local odd = Odd()
    odd.other = lm.ones { 3 }
    assert.matches("stack", message(batches, data.DataLoader(odd, { batch_size = 2 }):iter()))
    odd.other = { a = 1 }
    assert.error(function() batches(data.DataLoader(odd, { batch_size = 2 }):iter()) end)
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
    assert.matches("default_collate: a list of samples expected", message(data.default_collate, { 1, 2 }))
    assert.matches("default_collate: a list of samples expected", message(data.default_collate))
  end)

  it("says that a batch is nil, which would end the loop", function()
    local set = Numbers(3)
    assert.matches("DataLoader: collate_fn gave nil for a batch", message(batches, data.DataLoader(set, {
      collate_fn = function() end }):iter()))
    local Gaps = data.Dataset:extend("Gaps")
    function Gaps:len() return 3 end -- luacheck: ignore self
    function Gaps:get(i) if i ~= 2 then return lm.ones(1) end end -- luacheck: ignore self
    assert.matches("DataLoader: the set's :get(2) gave nil", message(batches, data.DataLoader(Gaps(),
      { batch_size = 3 }):iter()), 1, true)
    assert.same({ { 2 } }, batches(data.DataLoader(Gaps(), { batch_size = 3, collate_fn = function(samples)
      local n = 0 -- which may leave out what is not there
      for _, sample in ipairs(samples) do n = n + #sample end
      return { n }
    end }):iter()))
    function Gaps:get_batch() end -- luacheck: ignore self
    assert.matches("DataLoader: the set's :get_batch gave nil", message(batches, data.DataLoader(Gaps()):iter()))
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
        assert.matches(":len() has to give an integer of at least 0, got", message(f), 1, true)
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
        "the batch sampler has to give lists of sample numbers, of at least one each")
    end
    for _, numbers in ipairs { { 1.5 }, { 0 / 0 }, lm.tensor { 1.5 } } do
      assert.error_matches(function() first({ batch_sampler = one(numbers) }) end, "indices have to be integers")
      assert.error_matches(function() first({ sampler = one(numbers) }) end, "the sampler: indices have to be integers")
    end
    assert.error_matches(function() first({ sampler = one(3) }) end, "the sampler: .*got number 3")
    local no_iterator = { len = function() return 1 end, iter = function() return 3 end }
    assert.error_matches(function() first({ batch_sampler = no_iterator }) end,
      "the batch sampler's :iter%(%) has to give a function, got number 3")
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
    assert.matches("batch_sampler decides alone",
      message(data.DataLoader, Numbers(3), { batch_sampler = batch_sampler, batch_size = 2 }))
  end)

  it("names wrong arguments", function()
    local set = Numbers(3)
    local sampler = data.DistributedSampler(set)
    assert.matches("DistributedSampler(set, {shuffle = true})",
      message(data.DataLoader, set, { sampler = sampler, shuffle = true }), 1, true)
    assert.matches("{batch_size = 32}", message(data.DataLoader, set, 32), 1, true)
    assert.matches("did you mean 'batch_size'", message(data.DataLoader, set, { batchsize = 2 }))
    assert.matches("batch_size has to be", message(data.DataLoader, set, { batch_size = 0 }))
    assert.matches("dataset", message(data.DataLoader, lm.ones { 3 }))
    assert.matches("sampler", message(data.DataLoader, set, { sampler = 3 }))
    assert.matches("at most 2 arguments, got 3", message(data.DataLoader, set, {}, true))
  end)

  it("is no function", function()
    assert.error_matches(function()
      for _ in data.DataLoader(Numbers(3)) do error "it was" end
    end, "DataLoader: an object, which cannot be called; for x, y in loader:iter%(%) do")
    local sampler = { len = function() return 1 end, iter = function() return { 1 } end }
    assert.error_matches(function() data.DataLoader(Numbers(3), { sampler = sampler }):iter() end,
      "DataLoader: the sampler's :iter%(%) has to give a function, got a table")
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

describe("DistributedSampler", function()
  -- What each rank gets: a list of lists.
  local function shares(n, world, opts, epoch)
    local all = {}
    for rank = 0, world - 1 do
      local o = { num_replicas = world, rank = rank }
      for key, value in pairs(opts or {}) do o[key] = value end
      local sampler = data.DistributedSampler(Numbers(n), o)
      if epoch then sampler:set_epoch(epoch) end
      all[rank + 1] = sampler:indices():totable()
      assert.equal(sampler:len(), #all[rank + 1])
    end
    return all
  end

  -- PyTorch's rule (torch/utils/data/distributed.py) for an order that is given.
  local function rule(order, world, drop_last)
    local n = #order
    local share = drop_last and math.floor(n / world) or math.ceil(n / world)
    local padded, total = { unpack(order) }, share * world
    for i = n + 1, total do padded[i] = order[i - n] end
    local all = {}
    for rank = 1, world do
      all[rank] = {}
      for i = rank, total, world do table.insert(all[rank], padded[i]) end
    end
    return all
  end

  it("shares as PyTorch's does, padding and dropping alike", function()
    for _, n in ipairs { 4, 7, 8, 10, 13, 64 } do
      for world = 1, 4 do
        for _, drop_last in ipairs { false, true } do
          local plain = { shuffle = false, drop_last = drop_last }
          assert.same(rule(count_to(n), world, drop_last), shares(n, world, plain))
          local shuffled = { seed = 3, drop_last = drop_last }
          local order = shares(n, 1, { seed = 3 }, 2)[1]
          assert.same(count_to(n), sorted(order))
          assert.same(rule(order, world, drop_last), shares(n, world, shuffled, 2))
        end
      end
    end
  end)

  it("gives disjoint shares that make the whole", function()
    assert.same(count_to(12), sorted(flat(shares(12, 4))))
  end)

  it("draws another order each epoch and for each seed, the same for the same", function()
    local first = shares(40, 2, { seed = 1 }, 1)
    assert.same(first, shares(40, 2, { seed = 1 }, 1))
    assert.not_same(first, shares(40, 2, { seed = 1 }, 2))
    assert.not_same(first, shares(40, 2, { seed = 2 }, 1))
    assert.not_same(first, shares(40, 2, { seed = 9 }, 1))
    lm.manual_seed(3) -- does not ask the default generator, and leaves it alone
    local state = lm.get_rng_state()
    assert.same(first, shares(40, 2, { seed = 1 }, 1))
    assert.is_true(state:equal(lm.get_rng_state()))
  end)

  it("is told the epoch by the loader", function()
    local set = Numbers(20)
    local sampler = data.DistributedSampler(set, { num_replicas = 2, rank = 1 })
    local loader = data.DataLoader(set, { sampler = sampler, batch_size = 4 })
    assert.equal(3, loader:len())
    local first = flat(batches(loader:epoch(1)))
    assert.not_same(first, flat(batches(loader:epoch(2))))
    assert.same(first, flat(batches(loader:epoch(1))))
  end)

  it("without a process group is one of one", function()
    local sampler = data.DistributedSampler(Numbers(5), { shuffle = false })
    assert.same(count_to(5), sampler:indices():totable())
  end)

  it("refuses a set smaller than the world, and says what to do", function()
    local text = message(data.DistributedSampler, Numbers(3), { num_replicas = 4, rank = 0 })
    assert.matches("3 samples cannot be shared by 4 ranks: run at most 3 processes, or use a larger set", text)
    assert.matches("rank 2 is outside a world of 2", message(data.DistributedSampler, Numbers(3),
      { num_replicas = 2, rank = 2 }))
    assert.matches("{num_replicas = 2}", message(data.DistributedSampler, Numbers(3), 2), 1, true)
  end)
end)

describe("MNIST's files", function()
  local folder
  setup(function() folder = temp.folder() end)
  teardown(function() temp.remove(folder) end)

  local function big_endian(n)
    return string.char(math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 2 ^ 8) % 256, n % 256)
  end
  local function idx(sizes, bytes)
    local head = string.char(0, 0, 8, #sizes)
    for _, size in ipairs(sizes) do head = head .. big_endian(size) end
    return head .. bytes
  end
  local function images(n)
    local bytes = {}
    for i = 0, n * 28 * 28 - 1 do bytes[i + 1] = string.char(i * 7 % 256) end
    return idx({ n, 28, 28 }, table.concat(bytes))
  end
  -- Two images to train, one to test; labels as given.
  local function write(where, labels)
    assert(os.execute("mkdir -p " .. where) == 0)
    temp.write(where .. "/train-images-idx3-ubyte", images(2))
    temp.write(where .. "/train-labels-idx1-ubyte", idx({ 2 }, labels or "\9\0"))
    temp.write(where .. "/t10k-images-idx3-ubyte", images(1))
    temp.write(where .. "/t10k-labels-idx1-ubyte", idx({ 1 }, "\4"))
    return where
  end

  local function check(set)
    assert.equal(2, set:len())
    local x, y = set:get(1)
    assert.same({ 1, 28, 28 }, x.shape)
    assert.equal("float32", x.dtype)
    assert.equal(10, y) -- 9 in the file
    assert(math.abs(x[{ 1, 1, 3 }] - 14 / 255) < 1e-7)
    assert(x:max():item() <= 1 and x:min():item() >= 0)
    local xs, ys = data.DataLoader(set, { batch_size = 2 }):iter()()
    assert.same({ 2, 1, 28, 28 }, xs.shape)
    assert.same({ 10, 1 }, ys:totable())
    assert.equal("int64", ys.dtype)
    assert.is_true(xs[1]:allclose(x))
    assert.is_true(xs[2]:allclose((set:get(2))))
  end

  it("plain and gzipped, in every place they are looked for", function()
    for k, place in ipairs { "", "/mnist", "/MNIST/raw", "/MNIST" } do
      local root = ("%s/place%d"):format(folder, k)
      write(root .. place)
      check(data.MNIST { root = root })
      assert(os.execute(("gzip %s/*ubyte"):format(root .. place)) == 0)
      check(data.MNIST { root = root })
    end
    write(folder .. "/fashion/FashionMNIST/raw")
    check(data.FashionMNIST { root = folder .. "/fashion" })
    local test = data.FashionMNIST { root = folder .. "/fashion/", train = false }
    assert.equal(1, test:len())
    assert.equal(5, (select(2, test:get(1))))
    assert.equal("Ankle boot", test.classes[10])
  end)

  it("under LUMINARY_DATA", function()
    write(folder .. "/variable/mnist")
    local before = lm.getenv "LUMINARY_DATA"
    lm.setenv("LUMINARY_DATA", folder .. "/variable")
    local ok, err = pcall(function() check(data.MNIST()) end)
    lm.setenv("LUMINARY_DATA", before)
    assert(ok, err)
  end)

  it("of Debian's dataset-fashion-mnist, where it is installed", function()
    if not io.open("/usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz") or lm.getenv "LUMINARY_DATA" then
      return
    end
    local set = data.FashionMNIST { train = false }
    assert.equal(10000, set:len())
    local x, y = set:get(1)
    assert.equal("Ankle boot", set.classes[y])
    assert.same({ 1, 28, 28 }, x.shape)
    assert.is_true(set.labels:min():item() == 1 and set.labels:max():item() == 10)
  end)

  it("with another base, and transforms", function()
    local root = write(folder .. "/transforms")
    local _, y = data.MNIST { root = root, base = 0 }:get(1)
    assert.equal(9, y)
    local set = data.MNIST {
      root = root, transform = function(x) return x:flatten() end,
      target_transform = function(label) return label * 2 end,
    }
    local x
    x, y = set:get(1)
    assert.same({ 784 }, x.shape)
    assert.equal(20, y)
    local xs, ys = data.DataLoader(set, { batch_size = 2 }):iter()()
    assert.same({ 2, 784 }, xs.shape)
    assert.same({ 20, 2 }, ys:totable())
  end)

  it("where they are missing or broken", function()
    local text = message(data.MNIST, { root = folder .. "/nowhere" })
    assert.matches("MNIST: no train-images-idx3-ubyte nor train-images-idx3-ubyte.gz in any of\n  " .. folder
      .. "/nowhere\n", text, 1, true)
    assert.matches("root", text)
    assert.matches("dataset-fashion-mnist", message(data.FashionMNIST, { root = folder .. "/nowhere" }), 1, true)
    assert.matches("{root = \"x\"}", message(data.MNIST, "x"), 1, true)
    assert.matches("did you mean 'root'", message(data.MNIST, { rot = "x" }))
    local root = write(folder .. "/broken", "\1\2\3")
    assert.matches("labels", message(data.MNIST, { root = root })) -- goes on after its elements
    local path = root .. "/train-labels-idx1-ubyte"
    for bytes, what in pairs {
      [idx({ 2 }, "\1")] = "cut short", [idx({ 1 }, "\1")] = "labels", [idx({ 2 }, "\1\2\3")] = "goes on",
      [""] = "cut short", ["hello world"] = "no IDX", [idx({ 2, 1 }, "\1\2")] = "labels",
      [idx({ 2 ^ 31 }, "\1")] = "more than fit", ["\0\0\13\1\0\0\0\0"] = "0x0d",
      ["\31\139\8\0\0\0\0\0\0\3garbage"] = path,
    } do
      temp.write(path, bytes)
      assert.matches(what, message(data.MNIST, { root = root }), 1, true)
    end
  end)

  it("where something else is there: a FIFO is not waited for", function()
    local root = folder .. "/strange"
    os.execute(("mkdir %s; mkfifo %s/train-images-idx3-ubyte %s/train-labels-idx1-ubyte")
      :format(root, root, root))
    local ok, text = temp.run(folder, ("timeout 10 luajit -e 'require(\"luminary\").data.MNIST{root = \"%s\"}'")
      :format(root))
    assert.is_false(ok)
    assert.matches("cannot read " .. root .. "/train-images-idx3-ubyte: it is a FIFO, not a regular file", text, 1,
      true)
    assert.matches("zero byte", message(data.MNIST, { root = "a\0b" }))
  end)

  it("labels that are none", function()
    local root = write(folder .. "/labels", "\200\0")
    local set = data.MNIST { root = root } -- a file may have any; the loss says what is wrong
    assert.equal(201, (select(2, set:get(1))))
  end)
end)
