--- Sets that read files, for the specs in spec/data: a folder of the file's own, what sets say of broken files, and
--- whether workers change nothing. A spec file ends with teardown(sets.remove).
local lm = require "luminary"
local temp = require "spec.support.temp"
local assert = require "luassert"
local message = require "spec.support.error_of"
local data = lm.data

local folder = temp.folder()
local sets = { folder = folder }

function sets.remove() temp.remove(folder) end

local function write(name, text)
  local path = folder .. "/" .. name
  assert(os.execute("mkdir -p " .. path:match("^(.*)/")) == 0)
  return temp.write(path, text)
end

local function says(expected, f, ...) assert.matches(expected, message(f, ...), 1, true) end

local function plain(v)
  if lm.is_tensor(v) then return v:totable() end
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, value in pairs(v) do copy[key] = plain(value) end
  return copy
end

-- Returns all batches of an epoch, as plain values.
local function all(set, opts)
  local list = {}
  for x, y, z in data.DataLoader(set, opts):epoch(1) do list[#list + 1] = {plain(x), plain(y), plain(z)} end
  return list
end

local function with(opts, more)
  local both = {}
  for _, t in ipairs {opts, more} do
    for key, value in pairs(t) do both[key] = value end
  end
  return both
end

local numbers = {{num_workers = 1}, {num_workers = 2}, {num_workers = 8},
  {num_workers = 1, worker_type = "process"}}

-- Expects the same bytes whoever makes the batches.
local function same_with_workers(set)
  local opts = {batch_size = 2, shuffle = true, seed = 3}
  local expected = all(set, opts)
  assert.equal(math.ceil(#set / 2), #expected)
  for _, how in ipairs(numbers) do assert.same(expected, all(set, with(opts, how))) end
end

-- Reads all of a set in two workers, threads and processes; returns what skipped() says then.
local function skipped_by_workers(set)
  local counts = {}
  for _, kind in ipairs {"thread", "process"} do
    local before = set:skipped()
    all(set, {num_workers = 2, worker_type = kind})
    counts[#counts + 1] = set:skipped() - before
  end
  return counts
end

sets.write, sets.message, sets.says, sets.plain = write, message, says, plain
sets.all, sets.with, sets.same_with_workers, sets.skipped_by_workers = all, with, same_with_workers, skipped_by_workers
return sets
