-- A loader's workers: the same batches whatever their number, errors that say whose, and nothing left behind.
local lm = require "luminary"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local open_files = require "spec.support.open_files"
local is_running = require "spec.support.is_running"
local ffi = require "ffi"
local within = require("spec.support.time").within
local message = require "spec.support.error_of"
local data = lm.data
-- luacheck: no self

-- Samples with random numbers in them.
local Noisy = data.Dataset:extend("Noisy")
function Noisy:init(n) self.n = n end
function Noisy:len() return self.n end
function Noisy:get(i) return lm.rand(3) + i, i, { name = "sample " .. i } end

-- The first n numbers, in a stream.
local Stream = data.IterableDataset:extend("Stream")
function Stream:init(n) self.n = n end
function Stream:iter()
  local i = 0
  return function()
    i = i + 1
    if i <= self.n then return i, lm.rand(1) end
  end
end

-- Returns everything that a loader returns in some epochs, as plain values.
local function all(loader, epochs, first)
  local list = {}
  for epoch = 1, epochs or 1 do
    for x, y, z in loader:epoch(epoch, first) do
      list[#list + 1] = { x:totable(), lm.is_tensor(y) and y:totable() or y, z }
    end
  end
  return list
end

ffi.cdef "int getpid(void);"
local function threads()
  local n = 0
  local pipe = io.popen("ls /proc/" .. ffi.C.getpid() .. "/task")
  for _ in pipe:lines() do n = n + 1 end
  pipe:close()
  return n
end

-- Waits until there are as many threads, as one that was joined is listed for a moment; or, without an argument, until
-- their number stays. Returns it.
local function settled_threads(wanted)
  local last
  for _ = 1, 200 do
    local now = threads()
    if now == (wanted or last) then return now end
    last = now
    os.execute "sleep 0.05"
  end
  return last
end

local function settle()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
end

local numbers = { { num_workers = 1 }, { num_workers = 8 },
  { num_workers = 2, worker_type = "process" }, { num_workers = 2, persistent_workers = true, prefetch_factor = 3 } }
local function each(f)
  for _, how in ipairs(numbers) do f(how) end
end
local function with(how, more)
  local opts = {}
  for key, value in pairs(how) do opts[key] = value end
  for key, value in pairs(more) do opts[key] = value end
  return opts
end

describe("a loader's workers", function()
  it("give the batches that the loader would make itself, random numbers included", function()
    local function run(how)
      lm.manual_seed(5)
      return all(data.DataLoader(Noisy(11), with(how, { batch_size = 4, shuffle = true })), 2), lm.rand(2):totable()
    end
    local expected, after = run {}
    assert.equal(6, #expected)
    assert.not_same(expected[1], expected[4])
    each(function(how)
      local got, then_ = run(how)
      assert.same(expected, got)
      assert.same(after, then_) -- the script's own random numbers continue as if nothing were
    end)
  end)

  it("have numbers of math.random that differ from batch to batch", function()
    local Drawn = data.Dataset:extend("Drawn")
    function Drawn:len() return 60 end
    function Drawn:get() return math.random() end
    local function first_of_batches(workers)
      local list = {}
      for x in data.DataLoader(Drawn(), { batch_size = 1, num_workers = workers, seed = 7 }):iter() do
        list[#list + 1] = x:item()
      end
      return lm.tensor(list)
    end
    local x = first_of_batches(1)
    assert.same(x:totable(), first_of_batches(3):totable())
    assert(x:std():item() > 0.2 and (x[{ { 2, -1 } }] - x[{ { 1, -2 } }]):abs():mean():item() > 0.2, tostring(x))
  end)

  it("and by a seed, from any batch on", function()
    local how = { batch_size = 4, shuffle = true, seed = 7 }
    local whole = all(data.DataLoader(Noisy(11), how), 1)
    assert.same({ whole[2], whole[3] }, all(data.DataLoader(Noisy(11), with(how, { num_workers = 2 })), 1, 2))
    assert.same(whole, all(data.DataLoader(Noisy(11), with(how, { num_workers = 2 }))))
    assert.not_same(whole, all(data.DataLoader(Noisy(11), with(how, { seed = 8 }))))
  end)

  it("take sets that gather in C, samplers of one's own, batch samplers and collate_fn", function()
    local set = data.TensorDataset(lm.arange(10), lm.arange(10, 20))
    local backwards = { len = function() return 10 end, iter = function()
      local i = 11
      return function()
        i = i - 1
        if i > 0 then return i end
      end
    end }
    local factor = 3 -- an upvalue travels along
    for _, more in ipairs {
      { batch_size = 4 }, { batch_size = 4, drop_last = true }, { batch_size = 3, sampler = backwards },
      { batch_sampler = data.BatchSampler(data.SequentialSampler(set), 4) },
      { batch_size = 4, collate_fn = function(samples)
        local sum = 0
        for _, sample in ipairs(samples) do sum = sum + sample[2]:item() end
        return lm.tensor { sum * factor }, { #samples }
      end },
    } do
      local expected = all(data.DataLoader(set, more))
      assert.same(expected, all(data.DataLoader(set, with(more, { num_workers = 2 }))))
      assert.same(expected, all(data.DataLoader(set, with(more, { num_workers = 1, worker_type = "process" }))))
    end
  end)

  it("settle the dtype of numbers by the first batch", function()
    local Mixed = data.Dataset:extend("Mixed")
    function Mixed:init(halves) self.halves = halves end
    function Mixed:len() return 6 end
    function Mixed:get(i) return self.halves and i / 2 or i end
    for x in data.DataLoader(Mixed(true), { batch_size = 1, num_workers = 3 }):iter() do
      assert.equal("float32", x.dtype) -- 0.5, 1, 1.5, …
    end
    local Late = Mixed:extend("Late")
    function Late:get(i) return i < 3 and i or i / 2 end
    assert.matches("worker 1, Late: DataLoader: value 1 was an integer in", message(all, data.DataLoader(Late(),
      { batch_size = 1, num_workers = 3 })))
  end)

  it("walk streams, each its batches", function()
    local expected = all(data.DataLoader(Stream(11), { batch_size = 2, seed = 3 }), 2)
    assert.equal(12, #expected)
    each(function(how)
      assert.same(expected, all(data.DataLoader(Stream(11), with(how, { batch_size = 2, seed = 3 })), 2))
    end)
    assert.same(all(data.DataLoader(Stream(11), { batch_size = 2, seed = 3 }), 1, 4),
      all(data.DataLoader(Stream(11), { batch_size = 2, seed = 3, num_workers = 2 }), 1, 4))
    assert.same({}, all(data.DataLoader(Stream(0), { num_workers = 2 })))
  end)

  it("share a stream out that lets them", function()
    local Shared = data.IterableDataset:extend("Shared")
    function Shared:init(n) self.n, self.first, self.stride = n, 1, 1 end
    function Shared:shard(i, n) self.first, self.stride = i + 1, n end
    function Shared:iter()
      local i = self.first - self.stride
      return function()
        i = i + self.stride
        if i <= self.n then return i, self.stride end
      end
    end
    for _, count in ipairs { 1, 2, 3, 8 } do
      local seen = {}
      for _, entry in ipairs(all(data.DataLoader(Shared(11), { batch_size = 2, num_workers = count }))) do
        for k, v in ipairs(entry[1]) do
          seen[#seen + 1] = v
          assert.equal(count, entry[2][k])
        end
      end
      table.sort(seen)
      assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, seen)
    end
  end)

  it("share a stream out over ranks, too, where that is asked for", function()
    local got = ranks.run { n = 2, script = [[
      local lm = require "luminary"
      local data, dist, nn = lm.data, lm.dist, lm.nn
      dist.init_process_group "gloo"
      local rank = dist.get_rank()
      local Shared = data.IterableDataset:extend("Shared")
      function Shared:init(n) self.n, self.first, self.stride = n, 1, 1 end
      function Shared:len() return self.n end
      function Shared:shard(i, n) self.first, self.stride = i + 1, n end
      function Shared:iter()
        local i = self.first - self.stride
        return function()
          i = i + self.stride
          if i <= self.n then return i end
        end
      end
      local core, warnings = lm.core, {}
      core.warn = function(text) warnings[#warnings + 1] = text end
      local function numbers(set, opts)
        local seen = {}
        for x in data.DataLoader(set, opts):iter() do
          for _, v in ipairs(x:totable()) do seen[#seen + 1] = v end
        end
        table.sort(seen)
        return table.concat(seen, " ")
      end
      print("alone", numbers(Shared(9), {batch_size = 2, shard_ranks = true}))
      print("workers", numbers(Shared(9), {batch_size = 2, shard_ranks = true, num_workers = 2}))
      Shared.shard_ranks = true
      print("set", numbers(Shared(5), {}))
      print("off", numbers(Shared(3), {shard_ranks = false}))
      print("length", #data.DataLoader(Shared(9), {batch_size = 2}))
      print("warnings", #warnings)
      Shared.shard_ranks = nil
      print("silent", numbers(Shared(3), {}), warnings[1])
      Shared.shard_ranks = true
      -- uneven parts, under DDP
      local net = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
      local steps = 0
      net:join(function()
        for x in data.DataLoader(Shared(5), {batch_size = 2}):iter() do
          net(x:float():view(-1, 1)):sum():backward()
          steps = steps + 1
        end
      end)
      print("steps", steps)
      local loader = data.DataLoader(Shared(9), {})
      loader:iter()()
      local state = loader:state_dict()
      state.pass.rank = 1 - rank
      print("state", select(2, pcall(loader.load_state_dict, loader, state)))
      dist.destroy_process_group()]] }
    assert(got.ok, got.text)
    local function said(rank, word) return got[rank].output:match(word .. "\t([^\n]*)") end
    assert.same({ "1 3 5 7 9", "2 4 6 8" }, { said(0, "alone"), said(1, "alone") })
    assert.same({ "1 2 5 6 9", "3 4 7 8" }, { said(0, "workers"), said(1, "workers") })
    assert.same({ "1 3 5", "2 4" }, { said(0, "set"), said(1, "set") })
    assert.same({ "1 2 3", "1 2 3" }, { said(0, "off"), said(1, "off") })
    assert.same({ "3", "2" }, { said(0, "length"), said(1, "length") })
    assert.equal("0", said(0, "warnings"))
    assert.matches("1 2 3\t.*each of 2 ranks walks all of Shared; pass {shard_ranks = true} to split it by :shard",
      said(0, "silent"))
    assert.same({ "2", "1" }, { said(0, "steps"), said(1, "steps") })
    assert.matches("the state is for part 2 of 2 of the stream, this is part 1 of 2", said(0, "state"))
    assert.error_matches(function() data.DataLoader(Noisy(3), { shard_ranks = true }) end,
      "shard_ranks requires an IterableDataset; use {sampler =")
    assert.error_matches(function() data.DataLoader(Stream(3), { shard_ranks = true }) end,
      "shard_ranks requires a dataset with :shard")
  end)

  it("share a stream out that asks who they are, as PyTorch's do", function()
    local Asking = data.IterableDataset:extend("Asking")
    function Asking:init(late) self.late = late end
    function Asking:iter()
      local i, step
      local function begin()
        local info = data.get_worker_info()
        step = info and info.num_workers or 1
        i = 1 + (info and info.id or 0) - step
      end
      if not self.late then begin() end
      return function()
        if not i then begin() end -- only now
        i = i + step
        if i <= 10 then return i end
      end
    end
    for _, late in ipairs { false, true } do
      for _, count in ipairs { 0, 1, 2, 3 } do
        local seen = {}
        for x in data.DataLoader(Asking(late), { batch_size = 3, num_workers = count }):iter() do
          for _, v in ipairs(x:totable()) do seen[#seen + 1] = v end
        end
        table.sort(seen)
        assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, seen)
      end
    end
  end)

  it("walk a stream that draws its own order in the same one", function()
    local Drawn = data.IterableDataset:extend("Drawn")
    function Drawn:iter()
      local order, i = lm.randperm(10):totable(), 0
      return function()
        i = i + 1
        return order[i]
      end
    end
    local expected
    for _, count in ipairs { 0, 1, 2, 3 } do
      lm.manual_seed(1)
      local seen = {}
      for x in data.DataLoader(Drawn(), { batch_size = 3, num_workers = count }):iter() do
        for _, v in ipairs(x:totable()) do seen[#seen + 1] = v end
      end
      expected = expected or seen
      assert.same(expected, seen)
    end
  end)

  it("know who they are, and begin with worker_init_fn", function()
    local Who = data.Dataset:extend("Who")
    function Who:len() return 8 end
    function Who:get()
      local info = data.get_worker_info() -- luacheck: ignore
      return info.id, info.num_workers, WORKER_BEGAN_AS, info.dataset == self -- luacheck: ignore
    end
    assert.is_nil(data.get_worker_info())
    local ids = {}
    for id, count, began, same in data.DataLoader(Who(), { num_workers = 2, batch_size = 1, worker_init_fn = function(i)
      WORKER_BEGAN_AS = i -- luacheck: ignore
    end }):iter() do
      ids[id:item()] = true
      assert.equal(2, count:item())
      assert.equal(id:item(), began:item())
      assert.is_true(same:all():item())
    end
    assert.is_true(ids[0] and ids[1])
    assert.is_nil(rawget(_G, "WORKER_BEGAN_AS"))
  end)

  it("work for one iterator at a time", function()
    local loader = data.DataLoader(Stream(4), { num_workers = 1, persistent_workers = true })
    local first = loader:iter()
    for _ in first do end
    local second = loader:iter()
    assert.is_nil(first())
    local third = loader:iter()
    for i = 1, 4 do
      assert.equal(i, second():item())
      assert.equal(i, third():item())
    end
    assert.is_nil(second())
    assert.is_nil(third())
    assert.equal(4, #all(loader))
  end)

  it("give batches to loops whose turns are an lm.scope each", function()
    local next_batch = data.DataLoader(Stream(20), { num_workers = 2, prefetch_factor = 4 }):iter()
    for i = 1, 20 do
      lm.scope(function() assert.equal(i, next_batch():item()) end)
      local until_when = lm.time() + 0.002 -- others arrive meanwhile
      while lm.time() < until_when do end
    end
  end)

  it("send batches as they are: tables within themselves, leaves", function()
    local function collate()
      local batch = { lm.ones({ 1 }, { requires_grad = true }) }
      batch.itself, batch.again = batch, batch[1]
      return batch
    end
    for _, kind in ipairs { "thread", "process" } do
      local batch = data.DataLoader(Noisy(2), { num_workers = 1, worker_type = kind, collate_fn = collate }):iter()()
      assert.equal(batch, batch.itself)
      assert.equal(batch[1], batch.again)
      assert.is_true(batch[1].is_leaf and batch[1].requires_grad)
    end
  end)

  it("stay for all passes if they are to", function()
    local Counting = data.Dataset:extend("Counting")
    function Counting:init() self.calls = 0 end
    function Counting:len() return 3 end
    function Counting:get()
      self.calls = self.calls + 1
      return self.calls
    end
    for persistent, expected in pairs {
      [false] = { { 1, 2, 3 }, { 1, 2, 3 } }, [true] = { { 1, 2, 3 }, { 4, 5, 6 } },
    } do
      local loader = data.DataLoader(Counting(), { num_workers = 1, batch_size = 3, persistent_workers = persistent })
      local got = {}
      for _, entry in ipairs(all(loader, 2)) do got[#got + 1] = entry[1] end
      assert.same(expected, got)
    end
  end)
end)

describe("persistent workers see what changed in the set between passes:", function()
  local Fields = data.Dataset:extend("Fields")
  function Fields:init() self.epoch, self.list, self.offset, self.calls = 0, { 0 }, lm.tensor { 0 }, 0 end
  function Fields:len() return 2 end
  function Fields:get()
    self.calls = self.calls + 1
    return self.epoch + self.list[1] + self.offset:item(), self.calls
  end
  local changes = {
    ["a number"] = function(set) set.epoch = 1 end,
    ["an entry of a list"] = function(set) set.list[1] = 1 end,
    ["a tensor"] = function(set) set.offset = lm.tensor { 1 } end,
    ["a tensor's elements"] = function(set) set.offset:fill_(1) end,
  }

  for _, how in ipairs { { worker_type = "thread" }, { worker_type = "process" } } do
    it("by a " .. how.worker_type, function()
      for what, change in pairs(changes) do
        for _, wrapped in ipairs { false, true } do
          local set = Fields()
          local loader = data.DataLoader(wrapped and data.Subset(set, { 1, 2 }) or set,
            { num_workers = 1, batch_size = 2, persistent_workers = true, worker_type = how.worker_type })
          local function pass()
            local value, calls
            for x, n in loader:iter() do value, calls = x[1], n[1] end
            return value, calls
          end
          assert.same({ 0, 1 }, { pass() }, what)
          assert.same({ 0, 3 }, { pass() }, what) -- the workers' own fields stay
          change(set)
          assert.equal(1, (pass()), what)
        end
      end
    end)
  end
end)

describe("workers within workers", function()
  local Nested = data.Dataset:extend("Nested")
  function Nested:init(how)
    self.loader = data.DataLoader(Stream(4), how)
    all(self.loader)
  end
  function Nested:len() return 3 end
  function Nested:get(i)
    local sum = i
    for x in self.loader:iter() do sum = sum + x:item() end
    return sum
  end

  it("make a set's own batches, by a loader that is sent along", function()
    for _, inner in ipairs { { num_workers = 1 }, { num_workers = 1, persistent_workers = true }, {} } do
      for _, kind in ipairs { "thread", "process" } do
        local got = {}
        for x in data.DataLoader(Nested(inner), { num_workers = 1, worker_type = kind }):iter() do
          got[#got + 1] = x:item()
        end
        assert.same({ 11, 12, 13 }, got)
      end
    end
  end)
end)

describe("how many workers there are", function()
  it("is no more than there is to do", function()
    settle()
    local before = threads()
    local loader = data.DataLoader(Noisy(6), { num_workers = 1000, batch_size = 2 })
    assert.equal(3, #all(loader))
    assert.is_true(threads() <= before + 3)
  end)

  it("does not take fresh memory for each batch #unsanitized", function() -- fresh memory costs more than its numbers
    local function faults()
      local file = io.open "/proc/self/stat"
      local text = file:read "*a"
      file:close()
      return tonumber((text:gsub("^.*%) ", ""):match(("%S+ "):rep(7) .. "(%d+)"))) -- minor ones
    end
    local set = data.TensorDataset(lm.rand(256, 3, 112, 112))
    local loader = data.DataLoader(set, { batch_size = 64, num_workers = 1 }) -- 9.6 MB a batch, 2,352 pages
    local before, n
    for pass = 1, 7 do
      if pass == 3 then before, n = faults(), 0 end
      for _ in loader:iter() do n = (n or 0) + 1 end
    end
    assert.equal(20, n)
    assert.is_true((faults() - before) / n < 1200, tostring((faults() - before) / n))
  end)

  it("stays the same from pass to pass", function()
    local Named = data.Dataset:extend("Named")
    function Named:len() return 4 end
    function Named:get()
      NAME = NAME or math.random(1e9) -- luacheck: ignore
      return NAME -- luacheck: ignore
    end
    local function names(how)
      local seen, n = {}, 0
      local loader = data.DataLoader(Named(), how)
      for _ = 1, 3 do
        for x in loader:iter() do
          if not seen[x:item()] then n = n + 1 end
          seen[x:item()] = true
        end
      end
      return n
    end
    assert.equal(1, names { num_workers = 1 }) -- one worker is one Lua state
    assert.equal(3, names { num_workers = 1, worker_type = "process" })
    assert.equal(1, names { num_workers = 1, worker_type = "process", persistent_workers = true })
  end)

  it("changes between passes", function()
    local loader = data.DataLoader(Noisy(6), { num_workers = 1, batch_size = 1, seed = 1 })
    local expected = all(loader)
    for _, count in ipairs { 3, 2, 0, 1 } do
      loader.num_workers = count
      assert.same(expected, all(loader))
    end
  end)

  it("does not limit how many batches are asked for ahead", function()
    local n = 0
    for x in data.DataLoader(Stream(1500), { num_workers = 2, prefetch_factor = 2 ^ 40, batch_size = 1 }):iter() do
      n = n + 1
      assert.equal(n, x:item())
    end
    assert.equal(1500, n)
  end)

  it("is remembered by no worker between passes: sets are given back", function()
    local set = data.TensorDataset(lm.rand(100))
    local loader = data.DataLoader(set, { num_workers = 2, batch_size = 50 })
    for _ in loader:iter() do end -- luacheck: ignore
    local until_when = lm.time() + 30
    set = nil -- luacheck: ignore
    local live = lm.live_tensors()
    loader.dataset = data.TensorDataset(lm.rand(2))
    repeat settle() until lm.live_tensors() < live - 2 or lm.time() > until_when
    assert.is_true(lm.live_tensors() < live - 2) -- here's and theirs
  end)
end)

describe("an error in a worker", function()
  local Broken = data.Dataset:extend("Broken")
  function Broken:init(at) self.at = at end
  function Broken:len() return 8 end
  function Broken:get(i)
    if i == self.at then error("this file is torn") end
    return i
  end

  it("names worker, sample, set and traceback where its batch would come", function()
    for _, kind in ipairs { "thread", "process" } do
      local loader = data.DataLoader(Broken(6), { batch_size = 2, num_workers = 2, worker_type = kind })
      local seen = 0
      local problem = message(function()
        for _ in loader:iter() do seen = seen + 1 end
      end)
      assert.equal(2, seen)
      assert.matches("loader_workers_spec.lua:%d+: DataLoader: worker %d, sample 6 of Broken: "
        .. ".*loader_workers_spec.lua:%d+: this file is torn\nstack traceback of the worker:\n\t.*in function", problem)
      assert.not_matches("luminary/", problem:match("worker:(.*)"))
    end
  end)

  it("leaves the loader fit for another pass", function()
    local set = Broken(6)
    local loader = data.DataLoader(set, { batch_size = 2, num_workers = 2, persistent_workers = true })
    message(all, loader)
    set.at = nil -- workers take a copy when a pass begins
    assert.equal(4, #all(loader))
  end)

  it("of a sampler ends the workers, those at work too", function()
    local folder = temp.folder()
    local Slow = data.Dataset:extend("Slow")
    function Slow:init(log) self.log = log end
    function Slow:len() return 100 end
    function Slow:get(i)
      local f = assert(io.open(self.log, "a"))
      f:write(i, "\n")
      f:close()
      os.execute "sleep 0.02"
      return i
    end
    local sampler = {}
    function sampler:len() return 100 end
    function sampler:iter()
      local i = 0
      return function()
        i = i + 1
        if i > 20 then error("no more numbers") end
        return {i}
      end
    end
    local log = folder .. "/log"
    local loader = data.DataLoader(Slow(log), { batch_sampler = sampler, num_workers = 2, prefetch_factor = 8 })
    local nexts = loader:iter()
    local problem = message(function() while nexts() do end end)
    assert.matches("no more numbers", problem)
    local made = #temp.read(log)
    os.execute "sleep 0.1"
    assert.equal(made, #temp.read(log))
    temp.remove(folder)
  end)

  it("that ends a worker is told by its exit code", function()
    for _, kind in ipairs { "thread", "process" } do
      assert.matches("DataLoader: worker %d ended with exit code 3", message(all, data.DataLoader(Broken(),
        { num_workers = 2, worker_type = kind, worker_init_fn = function() os.exit(3, true) end })))
    end
  end)

  it("that leaves no stack to describe it is one", function()
    local Deep = Broken:extend("Deep")
    function Deep:get(i) return 1 + self:get(i) end
    for _, kind in ipairs { "thread", "process" } do
      assert.matches("DataLoader: worker %d, sample 1 of Deep: .*stack overflow", message(all,
        data.DataLoader(Deep(), { num_workers = 1, worker_type = kind })))
    end
  end)

  it("of worker_init_fn comes with the first batch", function()
    assert.matches("DataLoader: worker %d, Broken: .*no such camera", message(all, data.DataLoader(Broken(),
      { num_workers = 2, worker_init_fn = function() error("no such camera") end })))
  end)

  it("about batches that are nil, or cannot be sent", function()
    assert.matches("worker 0, Broken: DataLoader: collate_fn returned nil for", message(all, data.DataLoader(Broken(),
      { num_workers = 1, collate_fn = function() end })))
    assert.matches("a batch: %[1%]: a coroutine cannot be sent to another thread", message(all,
      data.DataLoader(Broken(), { num_workers = 1, collate_fn = function() return coroutine.create(print) end })))
  end)

  it("about a set that cannot be sent is raised at once", function()
    local set = Broken()
    set.co = coroutine.create(print)
    assert.matches("DataLoader: batch_plan.set.co: a coroutine cannot be sent to another thread",
      message(all, data.DataLoader(set, { num_workers = 1 })))
  end)

  it("a worker that is killed is named", function()
    local Suicidal = Broken:extend("Suicidal")
    function Suicidal:get(i)
      if i == 5 then
        local f = require "ffi"
        f.cdef "int raise(int);"
        f.C.raise(9)
      end
      return i
    end
    assert.matches("DataLoader: worker %d was ended by SIGKILL", message(all,
      data.DataLoader(Suicidal(), { num_workers = 2, worker_type = "process" })))
  end)

  it("a batch that takes too long is one", function()
    local Slow = Broken:extend("Slow")
    function Slow:get(i)
      while i == 2 do lm.time() end
      return i
    end
    local loader = data.DataLoader(Slow(), { num_workers = 1, timeout = 1 })
    local began = lm.time()
    assert.matches("DataLoader: timeout: batch 2 did not arrive within 1 s", message(all, loader))
    within(lm.time() - began, 5)
  end)

  it("about options", function()
    for problem, opts in pairs {
      ["num_workers must be an integer from 0 to 4096, got %-1"] = { num_workers = -1 },
      ["num_workers must be an integer from 0 to 4096, got 2147483648"] = { num_workers = 2 ^ 31 },
      ["worker_type must be one of 'thread', 'process', got string 'fork'"] = { worker_type = "fork" },
      ["prefetch_factor must be an integer of at least 1, got 0"] = { prefetch_factor = 0 },
      ["timeout must be a number of at least 0, got %-1"] = { timeout = -1 },
    } do
      assert.matches(problem, message(data.DataLoader, Broken(), opts))
    end
  end)
end)

describe("functions in workers", function()
  it("find the methods of tensors, though they do not mention the library", function()
    for _, kind in ipairs { "thread", "process" } do
      local set = data.FakeData { size = 2, transform = function(x) return x:double() end }
      local loader = data.DataLoader(set, { num_workers = 1, worker_type = kind })
      for x in loader:iter() do assert.equal("float64", x.dtype) end
    end
  end)
end)

describe("what is left of workers", function()
  it("does not keep the program from leaving #lua", function() -- an unclosed state would count as leaked
    local folder = temp.folder()
    temp.write(folder .. "/main.lua", [[
      local lm = require "luminary"
      local set = lm.data.TensorDataset(lm.arange(100))
      local loader = lm.data.DataLoader(set, {num_workers = 2, persistent_workers = true})
      for _ in loader:iter() do end
      print(lm.time())
      os.exit(5)]])
    local _, out, code = temp.run(folder, "timeout 60 luajit " .. folder .. "/main.lua")
    assert.equal(5, code)
    within(lm.time() - tonumber(out), 1.5)
    temp.remove(folder)
  end)

  it("ends with the program, in the midst of a pass, by os.exit, Ctrl-C or an error #lua", function()
    local folder = temp.folder()
    for _, kind in ipairs { "thread", "process" } do
      for how, code in pairs { ["os.exit(7)"] = 7, ["os.exit(7, true)"] = 7, ["error 'torn'"] = 1,
        ["ffi.C.raise(2) while true do next_batch() end"] = "^[1-9]" } do
        temp.write(folder .. "/main.lua", ([[
          local ffi = require "ffi"
          ffi.cdef "int raise(int);"
          local lm = require "luminary"
          local Slow = lm.data.Dataset:extend("Slow")
          function Slow:len() return 1e6 end
          function Slow:get(i)
            local ending = lm.time() + 0.01
            while lm.time() < ending do end
            return i
          end
          local loader = lm.data.DataLoader(Slow(), {num_workers = 2, worker_type = "KIND"})
          local next_batch = loader:iter()
          for _ = 1, 3 do next_batch() end
          local children = io.open("/proc/self/task/" .. io.open("/proc/self/stat"):read "*n" .. "/children"):read "*a"
          print(children)
          io.stdout:flush()
          ]]):gsub("KIND", kind) .. how)
        local began = lm.time()
        local _, out, ended = temp.run(folder, "timeout 30 luajit " .. folder .. "/main.lua")
        assert.matches(tostring(code), tostring(ended), how)
        assert.not_equal(124, ended) -- timeout's
          within(lm.time() - began, 15)
        for pid in out:match("^[^\n]*"):gmatch("%d+") do
          local gone_by = lm.time() + 60
          repeat until not is_running(pid) or lm.time() > gone_by
          assert.is_true(lm.time() < gone_by, how)
        end
      end
    end
    temp.remove(folder)
  end)

  it("is nothing after a pass, a break, an error or a forgotten iterator", function()
    local Big = data.Dataset:extend("Big")
    function Big:len() return 40 end
    function Big:get(i)
      if i == 30 then error("torn") end
      return lm.full({ 1000 }, i)
    end
    local function use(kind)
      local how = { batch_size = 4, num_workers = 2, worker_type = kind }
      for _ in data.DataLoader(data.Subset(Big(), { 1, 2, 3, 4, 5, 6 }), how):iter() do end -- luacheck: ignore
      for _ in data.DataLoader(Big(), how):iter() do break end -- luacheck: ignore
      pcall(all, data.DataLoader(Big(), how))
      data.DataLoader(Big(), how):iter()()
      data.DataLoader(Big(), how):iter()
      local loader = data.DataLoader(Big(), how) -- two at once, one of which is left
      local one, other = loader:iter(), loader:iter()
      one()
      for _ = 1, 3 do other() end
    end
    use "thread"
    settle()
    local before, tensors, files = settled_threads(), lm.live_tensors(), open_files()
    for _, kind in ipairs { "thread", "process" } do
      use(kind)
      settle()
      settle()
      assert.equal(before, settled_threads(before))
      assert.equal(tensors, lm.live_tensors())
      local now, which = open_files()
      assert.is_true(now <= files, which)
    end
    assert.equal("", (temp.read("/proc/self/task/" .. ffi.C.getpid() .. "/children")))
  end)
end)
