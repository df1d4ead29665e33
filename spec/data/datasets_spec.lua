-- Datasets: rows of tensors, sets of sets, streams.
local lm = require "luminary"
local passes = require "spec.support.batches"
local data = lm.data
local message, Numbers, batches = passes.message, passes.Numbers, passes.of
local flat, sorted, count_to = passes.flat, passes.sorted, passes.count_to

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
          assert.matches("gather_rows: index " .. wrong .. " is out of range for dimension 1 of size 5",
            message(core.gather_row, x, wrong, opts), 1, true)
        end
      end
    end
    assert.matches("gather_row: number must be an integer", message(core.gather_row, bytes, 1.5))
    assert.matches("gather_rows: expected x to have shape %[N, %*%], got %[%]", message(core.gather_row, lm.tensor(3),
      1))
  end)
end)

describe("a Dataset", function()
  it("is extended with get and len", function()
    local set = Numbers(3)
    assert.equal(3, set:len())
    assert.equal(2, set:get(2))
    assert.equal(3, set:get(-1))
    assert.matches("index 4 is out of range for 3 samples %(indices start at 1%)", message(set.get, set, 4))
    assert.matches("index 0 is out of range for 3 samples %(indices start at 1%)", message(set.get, set, 0))
    assert.matches("index 1%.5 is out of range for 3 samples %(indices start at 1%)", message(set.get, set, 1.5))
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
    assert.matches("all tensors must have the same first size:", message(data.TensorDataset, x, lm.zeros { 4 }))
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
    assert.matches("indices must be from 1 to 5, got 6 to 6", message(data.Subset, set, { 6 }))
    assert.matches("indices must be from 1 to 5, got 0 to 1", message(data.Subset, set, { 0, 1 }))
    assert.matches("dataset", message(data.Subset, 3, { 1 }))
    assert.equal(0, data.Subset(set, {}):len())
    local tensors = data.Subset(data.TensorDataset(lm.arange(4)), lm.tensor({ 4, 2 }, { dtype = "int64" }))
    assert.same({ 1, 3 }, tensors:get_batch(lm.tensor({ 2, 1 }, { dtype = "int64" })):totable())
    local Own = data.TensorDataset:extend "Own" -- a class whose get counts
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
    assert.matches("lengths must add up to 1 or the number of samples,", message(data.random_split, set, { 10, 9 }))
    assert.matches("length", message(data.random_split, set, {}))
    assert.matches("generator must be an lm.Generator, got 3", message(data.random_split, set, { 20 }, 3), 1,
      true)
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
    assert.error_matches(function() both:get(6) end, "index 6 is out of range for 5 samples %(indices start at 1%)")
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
        "ConcatDataset: dataset 2 returns %d values per sample, those before it %d")
    end
  end)

  it("are a list of sets", function()
    assert.error_matches(function() data.ConcatDataset(a, b) end, "ConcatDataset: takes at most 1 argument, got 2")
    assert.error_matches(function() data.ConcatDataset(a) end, "ConcatDataset{a, b}, got a TensorDataset")
    assert.error_matches(function() data.ConcatDataset {} end, "expected a list of sets, ConcatDataset{a, b}, got a")
    assert.error_matches(function() data.ConcatDataset { a, 3 } end, "expected a dataset, with :get%(i%) and")
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
    assert.error_matches(function() return #loader end, "Stream: an IterableDataset has no length unless it defines")
    assert.equal("DataLoader(Stream, batch_size=2)", tostring(loader))
    local Known = Stream:extend("Known")
    function Known:len() return self.n end
    assert.equal(3, #data.DataLoader(Known(5), { batch_size = 2 }))
  end)

  it("has its own order", function()
    for _, opts in ipairs { { shuffle = true }, { sampler = data.SequentialSampler(Numbers(2)) } } do
      assert.error_matches(function() data.DataLoader(Stream(5), opts) end,
        "an IterableDataset has its own order; leave out " .. next(opts))
    end
    local Bare = data.IterableDataset:extend("Bare")
    assert.error_matches(function() data.DataLoader(Bare()):iter()() end, "Bare: define function Bare:iter%(%)")
    function Bare:iter() return { self } end
    assert.error_matches(function() data.DataLoader(Bare()):iter()() end,
      "the result of the dataset's :iter%(%) must be a function, got a table")
  end)
end)
