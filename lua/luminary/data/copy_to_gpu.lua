--- Copies batches to a GPU: measures whether page-locked memory pays on this machine, and copies ahead of their use.
local core = require "luminary.core"
local map_tensors = require "luminary.base.map_tensors"
local stream = require "luminary.cuda.stream"

local transfer = {}

-- ---- the cost of pinning

local LEAST, MOST, TIMES = 2 ^ 14, 2 ^ 26, 5 -- bytes of a timed copy; number of runs

local function time_call(f)
  local began = core.time()
  f()
  return core.time() - began
end

--- Measures how many seconds a copy of that many bytes from the host to a CUDA device takes, the best of a few runs:
--- {pageable: from ordinary memory, stage: from there to page-locked memory, pinned: from page-locked memory to the
--- device}. The script waits for the first two.
function transfer.measure(device, bytes)
  local n = math.min(math.max(bytes, LEAST), MOST)
  local here, there = core.ops.ones({n}, {dtype = "uint8"}), core.ops.empty({n}, {dtype = "uint8", device = device})
  local best = {pageable = math.huge, stage = math.huge, pinned = math.huge}
  for i = 0, TIMES do
    local staged
    local took = {}
    took.pageable = time_call(function()
      there:copy_(here)
      core.synchronize(device)
    end)
    took.stage = time_call(function() staged = core.pin_memory(here) end)
    took.pinned = time_call(function()
      there:copy_(staged, {non_blocking = true})
      core.synchronize(device)
    end)
    for name, one in pairs(i > 0 and took or {}) do -- 0 warms up
      best[name] = math.min(best[name], one * math.max(bytes, LEAST) / n)
    end
  end
  return best
end

local measured = {} -- keyed by device and by bytes, rounded up to a power of 2

local function measured_for(device, bytes)
  local log2 = math.ceil(math.log(math.max(bytes, 1)) / math.log(2))
  local key = device .. " " .. log2
  if not measured[key] then
    local ok, m = pcall(transfer.measure, device, bytes)
    measured[key] = ok and m or {pageable = 0, stage = 0, pinned = 0} -- out of memory
  end
  return measured[key]
end

-- Returns the seconds that the script waits with pinning, and without. Workers stage copies while the script works.
local function compare(device, bytes, by_worker)
  local m = measured_for(device, bytes)
  return by_worker and m.pinned or m.stage, m.pageable
end

local function bytes_of(values, n)
  local bytes, seen = 0, {}
  for i = 1, n do
    map_tensors(values[i], function(t)
      bytes = bytes + t:numel() * t:element_size()
      return t
    end, seen)
  end
  return bytes
end

--- Returns a function that moves the tensors of a batch, in a list of n values, to page-locked memory. how: device,
--- always (pin_memory = true: if pinning is slower, it warns once; otherwise it pins only where that is faster),
--- by_worker (workers already pin).
function transfer.pinner(how)
  local decided
  return function(values, n)
    if decided == nil then
      local bytes = bytes_of(values, n)
      local with, without = compare(how.device, bytes, how.by_worker)
      decided = how.always or with <= without
      if how.always and with > without then
        core.warn(("DataLoader: pin_memory makes it slower on this machine: for a batch of %.3g MB the script waits "
          .. "%.3g ms with it, %.3g ms without; leave it out"):format(bytes / 1e6, with * 1e3, without * 1e3))
      end
    end
    if not decided then return end
    local seen = {}
    for i = 1, n do values[i] = map_tensors(values[i], core.pin_memory, seen) end
  end
end

-- ---- copies ahead

--- Returns an iterator over next_batch()'s results, {…} and a batch, with the batch on a device. While the script uses
--- one batch, the next is copied on a separate stream if is_ready() returns true, so that it need not be waited for.
--- The device itself waits for the copy, and memory is reused only after the streams that use it are done. pin(values,
--- n) runs before each copy.
function transfer.ahead(device, next_batch, is_ready, pin)
  local kind, side = device:match "^%a+", nil
  if kind ~= "cpu" then side = stream.Stream(device) end
  local function move(values, n)
    local seen = {}
    for i = 1, n do
      values[i] = map_tensors(values[i], function(t) return t:to(device, {non_blocking = true}) end, seen)
    end
  end
  local function load(about, ...)
    if about == nil or ... == nil then return {} end
    local values, n = {...}, select("#", ...)
    if pin then pin(values, n) end
    if side then core.with_stream(side.device, side.id, move, values, n) else move(values, n) end
    return {about = about, n = n, values = values}
  end
  local later
  return function()
    local now = later or load(next_batch())
    later = nil
    if now.problem then error(now.problem, 0) end
    if not now.about then return nil end
    local ok, problem = pcall(function()
      if is_ready() then
        later = load(next_batch())
        core.keep(later.values or {}) -- outlive the scope of the script's iteration
      end
    end)
    if not ok then later = {problem = problem} end
    return now.about, unpack(now.values, 1, now.n)
  end
end

return transfer
