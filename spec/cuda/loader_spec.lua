-- A loader's batches on a device, and in page-locked memory. Runs where there is a device (or a fake one).
local lm = require "luminary"
local core = require "luminary.core"
if core.device_count("cuda") == 0 then return end
local data = lm.data
local transfer = require "luminary.data.copy_to_gpu"
-- luacheck: no self

local Deep = data.Dataset:extend("Deep")
function Deep:len() return 6 end
function Deep:get(i) return {x = i, more = {lm.ones {2} * i, "text"}}, lm.rand(3) end

local ways = {{}, {num_workers = 2}, {num_workers = 1, worker_type = "process"}}
local function with(how, more)
  local opts = {}
  for key, value in pairs(how) do opts[key] = value end
  for key, value in pairs(more) do opts[key] = value end
  return opts
end

local function plain(v)
  if lm.is_tensor(v) then return v:cpu():totable() end
  if type(v) ~= "table" then return v end
  local list = {}
  for key, value in pairs(v) do list[key] = plain(value) end
  return list
end

-- Lets transfer.measure return these milliseconds.
local function measuring(pageable, stage, pinned)
  local before = transfer.measure
  finally(function() transfer.measure = before end)
  transfer.measure = function()
    return {pageable = pageable / 1e3, stage = stage / 1e3, pinned = pinned / 1e3}
  end
end

local function warnings(f)
  local said, warn = {}, core.warn
  finally(function() core.warn = warn end)
  core.warn = function(text) said[#said + 1] = text end
  f()
  core.warn = warn
  return said
end

describe("a loader with a device", function()
  it("gives the same batches there", function()
    local expected = {}
    for batch, noise in data.DataLoader(Deep(), {batch_size = 2, seed = 1}):iter() do
      expected[#expected + 1] = {plain(batch), plain(noise)}
    end
    for _, how in ipairs(ways) do
      for _, pin in ipairs {true, false} do
        local got = {}
        local loader = data.DataLoader(Deep(), with(how, {batch_size = 2, seed = 1, device = "cuda", pin_memory = pin}))
        for batch, noise in loader:iter() do
          assert.is_true(batch.x.is_cuda and batch.more[1].is_cuda and noise.is_cuda)
          got[#got + 1] = {plain(batch), plain(noise)}
        end
        assert.same(expected, got)
      end
    end
  end)

  it("copies the next one while one is used, and uses no memory too early", function()
    local n, size = 40, 20000
    local set = data.TensorDataset(lm.arange(n):to("float32"):view(n, 1):expand(n, size):contiguous())
    for _, how in ipairs {{}, {num_workers = 1}} do
      local sums, k = {}, 0
      local loader = data.DataLoader(set, with(how, {batch_size = 2, device = "cuda:0", pin_memory = true}))
      for x in loader:iter() do
        for _ = 1, 5 do x = x * 2 end -- a queue of work behind which the copies run
        sums[#sums + 1] = x:sum()
        x = nil -- luacheck: ignore
        k = k + 1
        if k % 5 == 0 then collectgarbage() end
      end
      for i, sum in ipairs(sums) do assert.equal((4 * i - 3) * 32 * size, sum:item()) end
      assert.equal(n / 2, #sums)
    end
  end)

  it("makes a batch ahead, whose error comes where the batch would", function()
    local made = 0
    local Broken = data.Dataset:extend("Broken")
    function Broken:len() return 4 end
    function Broken:get(i)
      if i == 3 then error("torn") end
      made = made + 1
      return i
    end
    local next_batch = data.DataLoader(Broken(), {device = "cuda"}):iter()
    assert.equal(1, next_batch():item())
    assert.equal(2, made)
    assert.equal(2, next_batch():item())
    assert.error_matches(next_batch, "torn")
  end)

  it("gives batches to loops whose turns are an lm.scope each", function()
    for _, how in ipairs(ways) do
      local next_batch = data.DataLoader(data.TensorDataset(lm.arange(6)), with(how, {device = "cuda"})):iter()
      for i = 0, 5 do lm.scope(function() assert.equal(i, next_batch():item()) end) end
      next_batch = data.DataLoader(Deep(), with(how, {device = "cuda"})):iter()
      for i = 1, 6 do lm.scope(function() assert.equal(i, next_batch().more[1][{1, 1}]) end) end
    end
  end)

  it("counts in its state what the script has got, not what is under way", function()
    for _, how in ipairs(ways) do
      local opts = with(how, {batch_size = 1, device = "cuda", shuffle = true, seed = 2})
      local whole, loader = {}, data.DataLoader(Deep(), opts)
      for _, noise in loader:iter() do whole[#whole + 1] = plain(noise) end
      loader = data.DataLoader(Deep(), opts)
      local next_batch = loader:iter()
      next_batch()
      next_batch()
      local state = loader:state_dict()
      loader = data.DataLoader(Deep(), opts)
      loader:load_state_dict(state)
      local rest = {}
      for _, noise in loader:iter() do rest[#rest + 1] = plain(noise) end
      assert.same({whole[3], whole[4], whole[5], whole[6]}, rest)
    end
  end)

  it("pins where that was measured to be quicker", function()
    local pin, pinned = core.pin_memory, 0
    finally(function() core.pin_memory = pin end)
    core.pin_memory = function(x)
      pinned = pinned + 1
      return pin(x)
    end
    measuring(3, 2, 1)
    local set = data.TensorDataset(lm.rand {4, 1000})
    local opts = {batch_size = 2, device = "cuda"}
    for _ in data.DataLoader(set, opts):iter() do end -- luacheck: ignore
    assert.equal(2, pinned)
    measuring(1, 2, 1)
    set = data.TensorDataset(lm.rand {4, 9000}) -- measured once for a size
    for _ in data.DataLoader(set, opts):iter() do end -- luacheck: ignore
    assert.equal(2, pinned)
  end)
end)

describe("pin_memory", function()
  it("needs no memory to measure in", function()
    local before = transfer.measure
    finally(function() transfer.measure = before end)
    transfer.measure = function() error "out of memory" end
    local x = data.DataLoader(data.TensorDataset(lm.rand {4, 70000}), {batch_size = 4, pin_memory = true}):iter()()
    assert.is_true(x:is_pinned())
  end)

  it("is for every tensor of a batch, in workers that are threads too", function()
    for _, how in ipairs(ways) do
      local batch, noise = data.DataLoader(Deep(), with(how, {batch_size = 2, pin_memory = true})):iter()()
      assert.is_true(batch.x:is_pinned() and batch.more[1]:is_pinned() and noise:is_pinned())
      assert.same({"text", "text"}, batch.more[2])
      batch = data.DataLoader(Deep(), with(how, {batch_size = 2, pin_memory = true, device = "cpu"})):iter()()
      assert.is_true(batch.x:is_pinned())
      batch, noise = data.DataLoader(Deep(), with(how, {batch_size = 2})):iter()()
      assert.is_false(batch.x:is_pinned() or batch.more[1]:is_pinned() or noise:is_pinned())
    end
  end)

  it("is done by the workers, not by the script", function()
    local pin, pinned = core.pin_memory, 0
    finally(function() core.pin_memory = pin end)
    local function run(how)
      pinned = 0
      core.pin_memory = function(x)
        if not x:is_pinned() then pinned = pinned + 1 end
        return pin(x)
      end
      measuring(1, 1, 1)
      for x in data.DataLoader(data.TensorDataset(lm.rand {4, 50}), how):iter() do assert.is_true(x:is_pinned()) end
      core.pin_memory = pin
      return pinned
    end
    assert.equal(4, run {pin_memory = true})
    assert.equal(0, run {pin_memory = true, num_workers = 1})
  end)

  it("says once where it was measured to be slower", function()
    measuring(1, 3, 0.5)
    local set = data.TensorDataset(lm.rand {8, 3000000 / 8})
    local said = warnings(function()
      for _ in data.DataLoader(set, {batch_size = 2, pin_memory = true}):iter() do end -- luacheck: ignore
    end)
    assert.equal(1, #said)
    assert.matches("pin_memory makes it slower on this machine: for a batch of 3 MB the script waits "
      .. "3 ms with it, 1 ms without; leave it out", said[1])
    assert.same({}, warnings(function() -- in a worker it costs the script only the copy
      local opts = {batch_size = 2, pin_memory = true, num_workers = 1}
      for _ in data.DataLoader(set, opts):iter() do end -- luacheck: ignore
    end))
  end)

  it("is measured", function()
    for _, bytes in ipairs {1, 1e6, 1e12} do -- the last one is more than there is
      local m = transfer.measure("cuda:0", bytes)
      for _, name in ipairs {"pageable", "stage", "pinned"} do
        assert.is_true(m[name] > 0 and m[name] < 10 * math.max(bytes / 1e6, 1), name)
      end
    end
  end)
end)
