-- Samplers: parts, random ones, those of ranks.
local lm = require "luminary"
local passes = require "spec.support.batches"
local data = lm.data
local message, Numbers, batches = passes.message, passes.Numbers, passes.of
local flat, sorted, count_to = passes.flat, passes.sorted, passes.count_to

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
    assert.error_matches(function() data.SubsetRandomSampler("x") end, "the list of indices must be a tensor, got")
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
      ["weight 2 must be a number of at least 0, got %-1"] = { { 1, -1 }, 1 },
      ["at least one weight must be above 0"] = { { 0, 0 }, 1 },
      ["weight 2 is missing or nil; expected a number of at least 0"] = { { 1, nil, 1 }, 1 },
      ["the sum of the weights must be finite"] = { { 1e308, 1e308 }, 1 },
      ["num_samples must be an integer of at least 1, got 0"] = { { 1 }, 0 },
      ["cannot draw 3 samples without replacement from 2 weights"] = { { 1, 0, 1 }, 3, { replacement = false } },
      ["expected a list or a 1%-d tensor of weights, got 3"] = { 3, 1 },
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
    assert.error_matches(function() data.BatchSampler(Numbers(5), 2) end, "expected a sampler, with :iter%(%) and")
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
    assert.matches("unknown option 'replacment'; did you mean 'replacement'%?",
      message(data.RandomSampler, set, { replacment = true }))
    assert.matches("num_samples must be an integer of at least 1, got 0",
      message(data.RandomSampler, set, { num_samples = 0 }))
    assert.matches("replacement must be true or false, got 4", message(data.RandomSampler, set, 4), 1, true)
    assert.matches("at most 5 arguments, got 6", message(data.RandomSampler, set, nil, nil, nil, nil, 4))
    assert.matches("cannot draw num_samples = 4 from an", message(data.RandomSampler, Numbers(0), { num_samples = 4 }))
    assert.matches("SequentialSampler: unknown option 'shuffle'",
      message(data.SequentialSampler, set, { shuffle = true }))
  end)
end)

describe("DistributedSampler", function()
  -- Returns what each rank gets: a list of lists.
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

  -- Applies PyTorch's rule (torch/utils/data/distributed.py) to this order.
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

  it("gets its epoch from the loader", function()
    local set = Numbers(20)
    local sampler = data.DistributedSampler(set, { num_replicas = 2, rank = 1 })
    local loader = data.DataLoader(set, { sampler = sampler, batch_size = 4 })
    assert.equal(3, loader:len())
    local first = flat(batches(loader:epoch(1)))
    assert.not_same(first, flat(batches(loader:epoch(2))))
    assert.same(first, flat(batches(loader:epoch(1))))
  end)

  it("warns once, on rank 0, of a second pass in the same order", function()
    local core, warnings = lm.core, {}
    local warn = core.warn
    core.warn = function(text) warnings[#warnings + 1] = text end
    finally(function() core.warn = warn end)
    local function three_passes(options, between)
      local loader = data.DataLoader(Numbers(4), { sampler = data.DistributedSampler(Numbers(4), options) })
      for _ = 1, 3 do
        batches(loader:iter())
        between(loader)
      end
    end
    local function nothing() end
    three_passes({ num_replicas = 2, rank = 1 }, nothing)
    three_passes({ num_replicas = 2, rank = 0, shuffle = false }, nothing)
    local epoch = 0
    three_passes({ num_replicas = 2, rank = 0 }, function(loader)
      epoch = epoch + 1
      loader.sampler:set_epoch(epoch)
    end)
    assert.same({}, warnings)
    three_passes({ num_replicas = 2, rank = 0 }, nothing)
    assert.same({ "DataLoader: this pass has the same order as the last one, that of epoch 0; call "
      .. "loader:epoch(n) instead of loader:iter(), or sampler:set_epoch(n)" }, warnings)
  end)

  it("without a process group is one of one", function()
    local sampler = data.DistributedSampler(Numbers(5), { shuffle = false })
    assert.same(count_to(5), sampler:indices():totable())
  end)

  it("refuses a set smaller than the world, and says what to do", function()
    local text = message(data.DistributedSampler, Numbers(3), { num_replicas = 4, rank = 0 })
    assert.matches("3 samples are fewer than the 4 ranks", text)
    assert.matches("rank 2 is out of range for 2 ranks %(ranks start at", message(data.DistributedSampler, Numbers(3),
      { num_replicas = 2, rank = 2 }))
    assert.equal(2, #data.DistributedSampler(Numbers(3), 2, 0))
  end)
end)
