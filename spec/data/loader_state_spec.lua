-- A loader's state: the rest of a pass is the same after it was loaded, whatever makes the batches.
local lm = require "luminary"
local temp = require "spec.support.temp"
local data = lm.data
-- luacheck: no self

local Noisy = data.Dataset:extend("Noisy") -- samples with random numbers in them
function Noisy:init(n) self.n = n end
function Noisy:len() return self.n end
function Noisy:get(i) return lm.rand(2), i, { name = "sample " .. i } end

local function plain(...)
  local batch = { ... }
  for i, v in ipairs(batch) do batch[i] = lm.is_tensor(v) and v:totable() or v end
  return batch
end

-- Returns the batches that an iterator returns, `most` of them.
local function take(next_batch, most)
  local list = {}
  while #list < (most or math.huge) do
    local batch = plain(next_batch())
    if batch[1] == nil then break end
    list[#list + 1] = batch
  end
  return list
end

local folder, count
setup(function() folder, count = temp.folder(), 0 end)
teardown(function() temp.remove(folder) end)

-- Returns a state as it comes back from a file.
local function through_file(state)
  count = count + 1
  local path = folder .. "/" .. count .. ".safetensors"
  lm.save(path, state)
  return lm.load(path)
end

local workers = { { num_workers = 0 }, { num_workers = 1 }, { num_workers = 2, prefetch_factor = 3 },
  { num_workers = 8 }, { num_workers = 2, worker_type = "process" } }

local function with(how, more)
  local opts = {}
  for key, value in pairs(how) do opts[key] = value end
  for key, value in pairs(more) do opts[key] = value end
  return opts
end

-- Compares two passes in one go with those after a stop behind k batches of the first. make(how) returns a loader; made
-- by the first of `ways` to make batches, it continues with the next.
local function check(make, begin, ways, k)
  begin = begin or function(loader) return loader:iter() end
  ways = ways or workers
  for w, how in ipairs(ways) do
    lm.manual_seed(9)
    local loader = make(how)
    local whole = { take(begin(loader, 1)), take(begin(loader, 2)) }
    lm.manual_seed(9)
    loader = make(how)
    local first = take(begin(loader, 1), k or 3)
    local state, random = through_file(loader:state_dict()), lm.get_rng_state()
    lm.manual_seed(1234) -- another process's
    loader = make(ways[w % #ways + 1])
    loader:load_state_dict(state)
    lm.set_rng_state(random)
    for _, batch in ipairs(take(begin(loader, 1))) do first[#first + 1] = batch end
    assert.same(whole, { first, take(begin(loader, 2)) })
  end
end

describe("a loader's state", function()
  it("goes on in the midst of a shuffled pass, random numbers included", function()
    check(function(how) return data.DataLoader(Noisy(11), with(how, { batch_size = 2, shuffle = true })) end)
    check(function(how) return data.DataLoader(Noisy(11), with(how, { batch_size = 2, shuffle = true, seed = 4 })) end,
      nil, { workers[1], workers[2] })
  end)

  it("goes on in a later pass whose order is a generator's", function()
    local function make(how)
      return data.DataLoader(Noisy(11), with(how, { batch_size = 2, shuffle = true,
        generator = lm.Generator():manual_seed(7) }))
    end
    check(make)
    local loader = make {}
    take(loader:iter())
    local pass = loader:iter()
    take(pass, 2)
    local state, random = through_file(loader:state_dict()), lm.get_rng_state()
    local rest = take(pass)
    loader = make {}
    loader:load_state_dict(state)
    lm.set_rng_state(random)
    assert.equal(4, #rest)
    assert.same(rest, take(loader:iter()))
  end)

  it("goes on in an epoch that has a number, and in no other", function()
    local function make(how)
      return data.DataLoader(Noisy(11), with(how, { batch_size = 2, shuffle = true, seed = 4 }))
    end
    check(make, function(loader, epoch) return loader:epoch(epoch) end, { workers[1], workers[3] })
    local loader = make {}
    take(loader:epoch(7), 2)
    local state = loader:state_dict()
    loader = make {}
    loader:load_state_dict(state)
    assert.error_matches(function() loader:epoch(8) end, "the loaded state resumes in epoch 7 after batch 2")
    assert.error_matches(function() loader:epoch(7, 3) end, "the loaded state resumes in epoch 7 after batch 2")
    assert.equal(4, #take(loader:epoch(7)))
    assert.equal(6, #take(loader:epoch(8)))
  end)

  it("goes on with every sampler", function()
    local set = Noisy(12)
    local weights = {}
    for i = 1, 12 do weights[i] = i end
    local drawing = { len = function() return 6 end, iter = function() -- draws at each step
      local i = 0
      return function()
        i = i + 1
        return i <= 6 and lm.randint(1, 13, { 2 }) or nil
      end
    end }
    for _, made in ipairs {
      function() return { sampler = data.WeightedRandomSampler(weights, 12), batch_size = 2 } end,
      function() return { sampler = data.WeightedRandomSampler(weights, 12, { seed = 3 }), batch_size = 2 } end,
      function() return { sampler = data.RandomSampler(set, { replacement = true }), batch_size = 2 } end,
      function() return { sampler = data.SubsetRandomSampler({ 1, 2, 3, 4, 5, 6, 7, 8 }), batch_size = 2 } end,
      function()
        return { sampler = data.DistributedSampler(set, { num_replicas = 2, rank = 1, seed = 5 }), batch_size = 1 }
      end,
      function() return { batch_sampler = data.BatchSampler(data.RandomSampler(set), 2) } end,
      function() return { batch_sampler = data.BatchSampler(data.RandomSampler(set, { seed = 2 }), 2) } end,
      function() return { batch_sampler = drawing } end,
    } do
      local function make(how) return data.DataLoader(set, with(how, made())) end
      check(make, nil, { workers[1], workers[3] })
      check(make, function(loader, n) return loader:epoch(n) end, { workers[1] }, 1)
    end
  end)

  it("lets a batch sampler draw the same whatever the workers, and the script's numbers alone", function()
    local drawing = { len = function() return 4 end, iter = function()
      local i = 0
      return function()
        i = i + 1
        return i <= 4 and lm.randint(1, 13, { 2 }) or nil
      end
    end }
    local expected
    for _, how in ipairs(workers) do
      lm.manual_seed(2)
      local got = {}
      for _, i in data.DataLoader(Noisy(12), with(how, { batch_sampler = drawing })):iter() do
        got[#got + 1] = { i:totable(), lm.rand(1):totable() } -- the script draws, too
      end
      expected = expected or got
      assert.same(expected, got)
    end
  end)

  it("reads no sample of a set with :get twice", function()
    local asked
    local Counting = data.Dataset:extend("Counting")
    function Counting:len() return 10 end
    function Counting:get(i)
      asked[#asked + 1] = i
      return i
    end
    asked = {}
    local loader = data.DataLoader(Counting(), { batch_size = 2 })
    take(loader:iter(), 3)
    local state = loader:state_dict()
    asked = {}
    loader = data.DataLoader(Counting(), { batch_size = 2 })
    loader:load_state_dict(state)
    take(loader:iter())
    assert.same({ 7, 8, 9, 10 }, asked)
  end)

  it("at the end of a pass, or before any, begins the next one", function()
    local function make() return data.DataLoader(Noisy(5), { batch_size = 2, shuffle = true, seed = 1 }) end
    local loader = make()
    local first = take(loader:iter())
    local state = through_file(loader:state_dict())
    local second = take(loader:iter())
    assert.not_same(first, second)
    loader = make()
    loader:load_state_dict(state)
    assert.same(second, take(loader:iter()))
    loader = make()
    loader:load_state_dict(make():state_dict())
    assert.same(first, take(loader:iter()))
    -- after the last batch, but before the loop has seen the end: nothing is left
    loader = make()
    take(loader:iter(), 3)
    state = loader:state_dict()
    loader = make()
    loader:load_state_dict(state)
    assert.same({}, take(loader:iter()))
    assert.same(second, take(loader:iter()))
  end)

  it("can be asked for again before the pass goes on", function()
    local function make() return data.DataLoader(Noisy(5), { batch_size = 1, shuffle = true, seed = 1 }) end
    local whole = take(make():iter())
    local loader = make()
    take(loader:iter(), 2)
    for _ = 1, 3 do
      local state = through_file(loader:state_dict())
      loader = make()
      loader:load_state_dict(state)
    end
    assert.same({ whole[3], whole[4], whole[5] }, take(loader:iter()))
  end)

  it("keeps the dtype that a column of numbers has", function()
    local Late = data.Dataset:extend("Late") -- halves first, then whole numbers
    function Late:len() return 4 end
    function Late:get(i) return i < 3 and i + 0.5 or i end
    local loader = data.DataLoader(Late(), { batch_size = 2 })
    loader:iter()()
    local state = through_file(loader:state_dict())
    loader = data.DataLoader(Late(), { batch_size = 2 })
    loader:load_state_dict(state)
    assert.equal("float32", loader:iter()().dtype)
  end)

  it("is refused by a loader that is another", function()
    local loader = data.DataLoader(Noisy(10), { batch_size = 2 })
    take(loader:iter(), 2)
    local state = loader:state_dict()
    for problem, other in pairs {
      ["the state has batch_size 2, this loader 5"] = data.DataLoader(Noisy(10), { batch_size = 5 }),
      ["the state has 5 batches per epoch, this loader 6"] = data.DataLoader(Noisy(12), { batch_size = 2 }),
    } do
      assert.error_matches(function() other:load_state_dict(state) end, problem)
    end
    for problem, wrong in pairs {
      ["expected a result of loader:state_dict%(%), got a"] = {}, ["the state must be a table, got 5"] = 5,
    } do
      assert.error_matches(function() loader:load_state_dict(wrong) end, problem)
    end
    local function refused(where, key, value)
      local before = where[key]
      where[key] = value
      local ok, problem = pcall(function()
        loader:load_state_dict(state)
        return loader:iter()
      end)
      where[key] = before
      assert.is_false(ok)
      return problem
    end
    assert.matches("pass.seed", refused(state.pass, "seed", "x"))
    assert.matches("pass%.rank must be an integer of at least 0, got a table", refused(state.pass, "rank", {}))
    assert.matches("pass%.world is missing or nil; expected an integer of at least 1",
      refused(state.pass, "world", nil))
    assert.matches("pass%.workers must be an integer of at least 1, got nan", refused(state.pass, "workers", 0 / 0))
    assert.matches("the state is after batch 6, but an epoch has 5", refused(state.pass, "batch", 6))
    assert.matches("pass must be a table, got 7", refused(state, "pass", 7))
    assert.matches("passes must be an integer of at least 0, got nan", refused(state, "passes", 0 / 0))
    assert.matches("dtype", refused(state, "dtypes", { [""] = "none" }))
    loader = data.DataLoader(Noisy(10), { batch_size = 2, shuffle = true, seed = 3 })
    take(loader:iter(), 2)
    state = loader:state_dict()
    assert.matches("pass%.sampler must be a table, got true", refused(state.pass, "sampler", true))
    assert.matches("the sampler's epoch must be an integer of at least 0, got string 'x'",
      refused(state.pass.sampler, "epoch", "x"))
    assert.matches("the sampler's epoch is missing or nil; expected an integer of at least 0",
      refused(state.pass, "sampler", {}))
    loader:load_state_dict(state)
    assert.equal(3, #take(loader:iter(), 9))
  end)
end)

describe("a stream's state", function()
  local Stream = data.IterableDataset:extend("Stream") -- knows nothing of states
  function Stream:init(n) self.n = n end
  function Stream:iter()
    local i, base = 0, lm.rand(1)
    return function()
      i = i + 1
      if i <= self.n then return i, base + lm.rand(1) end
    end
  end

  -- Resumes where it was. Counts the samples it has made since.
  local Going = data.IterableDataset:extend("Going")
  function Going:init(n, shards) self.n, self.at, self.first, self.stride, self.made = n, nil, 1, 1, 0
    if shards then
      function self.shard(me, i, parts) me.first, me.stride = i + 1, parts end
    end
  end
  function Going:state_dict() return { at = self.at } end
  function Going:load_state_dict(state) self.at, self.loaded = state.at, true end
  function Going:iter()
    if not self.loaded then self.at = self.first - self.stride end
    self.loaded = nil
    return function()
      if self.at + self.stride > self.n then return nil end
      self.at, self.made = self.at + self.stride, self.made + 1
      return self.at, lm.rand(1), self.made
    end
  end

  it("goes on by walking it again", function()
    check(function(how) return data.DataLoader(Stream(11), with(how, { batch_size = 2 })) end)
  end)

  it("goes on by the set's own state, without walking it again", function()
    for _, how in ipairs(workers) do
      for _, resumed_by in ipairs { how, workers[1] } do
        local whole = take(data.DataLoader(Going(11), { batch_size = 2, seed = 3 }):iter())
        local loader = data.DataLoader(Going(11), with(how, { batch_size = 2, seed = 3 }))
        take(loader:iter(), 3)
        local state = through_file(loader:state_dict())
        loader = data.DataLoader(Going(11), with(resumed_by, { batch_size = 2, seed = 3 }))
        loader:load_state_dict(state)
        local rest = take(loader:iter())
        assert.equal(3, #rest)
        assert.same(whole[4][1], rest[1][1])
        assert.same(whole[4][2], rest[1][2])
        assert.same(whole[6][2], rest[3][2])
        if resumed_by == workers[1] then assert.same({ 1, 2 }, rest[1][3]) end
        assert.is_true(rest[1][3][1] <= 3) -- a worker may pass over batches that are others'
      end
    end
  end)

  it("that is shared out goes on in each worker", function()
    for _, shards in ipairs { true, false } do
      for _, k in ipairs { 1, 2, 4 } do
        local how = { batch_size = 2, num_workers = 3, seed = 1 }
        local function make()
          if shards then return data.DataLoader(Going(17, true), how) end
          local Asking = Stream:extend("Asking")
          function Asking:iter()
            local info = data.get_worker_info()
            local i = info.id + 1 - info.num_workers
            return function()
              i = i + info.num_workers
              if i <= self.n then return i, lm.rand(1) end
            end
          end
          return data.DataLoader(Asking(17), how)
        end
        local function numbers(list)
          for i, batch in ipairs(list) do list[i] = { batch[1], batch[2] } end
          return list
        end
        local whole = numbers(take(make():iter()))
        local loader = make()
        local got = take(loader:iter(), k)
        local state = through_file(loader:state_dict())
        loader = make()
        loader:load_state_dict(state)
        for _, batch in ipairs(take(loader:iter())) do got[#got + 1] = batch end
        assert.same(whole, numbers(got))
        how.num_workers = 2
        assert.error_matches(function() make():load_state_dict(state) end,
          "the state has 3 workers, this loader 2")
      end
    end
  end)

  it("of a set that has none is refused by one that has lost it", function()
    local loader = data.DataLoader(Going(11), { batch_size = 2 })
    take(loader:iter(), 2)
    local state = loader:state_dict()
    assert.error_matches(function() data.DataLoader(Stream(11), { batch_size = 2 }):load_state_dict(state) end,
      "the state has a dataset state, but the dataset has no :load_state_dict%(state%)")
  end)
end)

describe("an epoch of a DistributedSampler that ranks of changing number take", function()
  -- Counts each sample of an epoch in which random numbers of ranks take random numbers of batches.
  local function count_samples(seed, make)
    math.randomseed(seed)
    local n, counts, state, sizes = math.random(8, 60), {}, nil, {}
    local set = data.TensorDataset(lm.arange(1, n + 1))
    for i = 1, n do counts[i] = 0 end
    repeat
      local size, most, is_over, after = math.random(1, 4), math.random(1, 6), true, nil
      sizes[#sizes + 1] = size .. "x" .. most
      for rank = 0, size - 1 do
        local order = data.DistributedSampler(set, {num_replicas = size, rank = rank, seed = seed})
        local loader = make(set, order, size)
        if state then loader:load_state_dict(through_file(state)) end
        local next_batch, taken = loader:epoch(2), 0
        while taken < most do
          local batch = next_batch()
          if batch == nil then break end
          taken = taken + 1
          for _, i in ipairs(batch:totable()) do counts[i] = counts[i] + 1 end
        end
        is_over = is_over and taken < most
        after = loader:state_dict()
      end
      state = after
    until is_over
    return counts, table.concat(sizes, " ")
  end

  local function check_counts(seed, make)
    local counts, sizes = count_samples(seed, make)
    local extra = 0
    for i, times in ipairs(counts) do
      assert(times >= 1, ("seed %d, ranks %s: sample %d was not taken"):format(seed, sizes, i))
      extra = extra + times - 1
    end
    assert(extra <= 3, ("seed %d, ranks %s: %d samples too many"):format(seed, sizes, extra)) -- the padding of 4 ranks
  end

  it("has each sample once, but for the padding", function()
    for seed = 1, 60 do
      local size = seed % 5 + 1
      check_counts(seed, function(set, order) return data.DataLoader(set, {batch_size = size, sampler = order}) end)
    end
  end)

  it("... with workers, with batch samplers, and where the batches differ with the number of ranks", function()
    for seed = 1, 6 do
      check_counts(seed, function(set, order)
        return data.DataLoader(set, {batch_size = 2, sampler = order, num_workers = 1})
      end)
    end
    for seed = 1, 20 do
      check_counts(seed, function(set, order)
        return data.DataLoader(set, {batch_sampler = data.BatchSampler(order, 3)})
      end)
      check_counts(seed, function(set, order, ranks)
        return data.DataLoader(set, {batch_size = 12 / ranks, sampler = order})
      end)
    end
  end)

  local function loader_of(rank, ranks, n)
    local set = data.TensorDataset(lm.arange(1, n + 1))
    return data.DataLoader(set, {
      batch_size = 2, sampler = data.DistributedSampler(set, {num_replicas = ranks, rank = rank, seed = 1}),
    })
  end

  it("continues with the same numbers of batches, and the next epoch is a whole one", function()
    local loader = loader_of(0, 2, 20)
    take(loader:epoch(1), 3)
    local other = loader_of(0, 1, 20)
    other:load_state_dict(loader:state_dict())
    local rest = take(other:epoch(1))
    assert.equal(4, #rest) -- 20 samples, less 3 batches of 2 on 2 ranks
    assert.equal(10, #take(other:epoch(2)))
    assert.same(take(loader_of(0, 1, 20):epoch(2)), take(other:epoch(2)))
  end)

  it("cannot be another dataset's, nor of ranks at different batches", function()
    local loader = loader_of(0, 2, 20)
    take(loader:epoch(1), 3)
    local state = loader:state_dict()
    assert.error_matches(function() loader_of(0, 1, 21):load_state_dict(state) end,
      "the state is of a dataset with 20 samples, this one has 21")
    take(loader:epoch(1), 4)
    assert.error_matches(function() loader_of(0, 1, 20):check_rank_states {state, loader:state_dict()} end,
      "rank 0 was after batch 3, rank 1 after batch 4; such a state needs 2 ranks again")
    state.pass.offset = 7
    assert.error_matches(function() loader_of(0, 1, 20):load_state_dict(state) end,
      "pass.offset must be at most 3, the batch, got 7")
  end)
end)
