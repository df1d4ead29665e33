-- Programs that are started with standard input, output or error closed: nothing that the library opens may get the
-- number, or what is printed would go there.
local ranks, temp = require "spec.support.ranks", require "spec.support.temp"

local folder = temp.during(setup, teardown)

-- Asserts that those of 0, 1 and 2 that were closed when the program began are closed, while `name` is in use.
local CLOSED = [[
local ffi = require "ffi"
ffi.cdef "int fcntl(int fd, int command, ...); int usleep(unsigned microseconds);"
local function is_open(fd) return ffi.C.fcntl(fd, 1) >= 0 end
local began = {[0] = is_open(0), is_open(1), is_open(2)}
local function check(name)
  for fd = 0, 2 do
    local looks = 0
    while is_open(fd) and not began[fd] do -- a thread loads a module's file for a moment
      looks = looks + 1
      assert(looks < 5000, ("%s opened descriptor %d"):format(name, fd))
      ffi.C.usleep(1000)
    end
  end
  print("12345678" .. name) -- eight bytes are what a pointer takes
  io.stderr:write("12345678", name, "\n")
end
local function report(result)
  local file = assert(io.open(arg[1], "w"))
  file:write(tostring(result))
  file:close()
end
local function run(body) report(select(2, xpcall(body, debug.traceback))) end
]]

local WORKERS = CLOSED .. [[
local lm = require "luminary"
local data, mp = lm.data, lm.mp
run(function()
  check "the library"
  local results = {}
  for _, kind in ipairs {"thread", "process"} do
    local loader = data.DataLoader(data.TensorDataset(lm.arange(1, 33):reshape {32, 1}),
      {batch_size = 4, num_workers = 2, worker_type = kind})
    local sum = 0
    for x in loader:iter() do
      check(kind)
      sum = sum + x:sum():item()
    end
    results[#results + 1] = sum
  end
  local pool = mp.Pool(2)
  check "Pool"
  local squares = pool:map(function(i)
    print("12345678")
    return i * i
  end, {1, 2, 3, 4})
  check "Pool"
  pool:close()
  pool:join()
  results[#results + 1] = table.concat(squares, ",")
  local queue, here, there = mp.Queue(), mp.Pipe()
  mp.spawn(function(rank, q)
    io.write("12345678")
    q:put(rank)
  end, {args = {queue}, nprocs = 2})
  check "spawn"
  results[#results + 1] = queue:get() + queue:get()
  here:send(lm.ones(3):share_memory_())
  check "Pipe"
  results[#results + 1] = there:recv():sum():item()
  lm.save("x.safetensors", {x = lm.ones(2)})
  local x = lm.load("x.safetensors").x
  check "files"
  return table.concat(results, " ") .. " " .. x:sum():item()
end)
]]

local RANKS = CLOSED .. [[
arg[1] = arg[1] .. os.getenv "RANK"
local lm = require "luminary"
local dist = lm.dist
run(function()
  dist.init_process_group("gloo", {timeout = 20})
  check "init_process_group"
  local x = lm.ones(2 ^ 16)
  for _ = 1, 3 do dist.all_reduce(x) end
  check "all_reduce"
  local other = dist.new_group {0, 1}
  dist.barrier {group = other}
  check "new_group"
  local sum = x:select(1, 1):item()
  dist.destroy_process_group()
  return sum
end)
]]

local ways = {
  "<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-",
}

describe("a program started with", function()
  for _, way in ipairs(ways) do
    it(way .. " runs loaders, pools, spawned workers, pipes and files", function()
      local result = folder .. "/result"
      os.remove(result)
      local script = temp.write(folder .. "/workers.lua", WORKERS)
      temp.run(folder, ("cd %s && LUA_PATH='%s' timeout -k 2 60 luajit %s %s %s"):format(folder, package.path, script,
        result, way))
      assert(temp.exists(result), "it crashed, or did not end")
      assert.equal("528 528 1,4,9,16 1 3 2", temp.read(result))
    end)

    it(way .. " runs ranks", function()
      local result = folder .. "/sum"
      for rank = 0, 1 do os.remove(result .. rank) end
      ranks.run { script = RANKS, args = result .. " " .. way, timeout = 60 }
      for rank = 0, 1 do
        assert(temp.exists(result .. rank), "a rank crashed, or did not end")
        assert.equal("8", temp.read(result .. rank))
      end
    end)
  end

  it("all of them closed is served by luminary run", function()
    local result = folder .. "/sum"
    for rank = 0, 1 do os.remove(result .. rank) end
    local script = temp.write(folder .. "/ranks.lua", RANKS)
    temp.run(folder, ("timeout -k 2 60 %s run --nproc 2 --log-dir %s %s %s <&- >&- 2>&-"):format(ranks.luminary, folder,
      script, result))
    for rank = 0, 1 do
      assert(temp.exists(result .. rank), "a rank crashed, or did not end")
      assert.equal("8", temp.read(result .. rank))
      local log = temp.read(("%s/rank%d.stdout"):format(folder, rank))
      assert.equal(3, select(2, log:gsub("12345678", "")))
    end
  end)
end)

describe("a message that is not one of lm.mp's", function()
  it("is an error in the other thread's channel, and nothing is followed", function()
    local script = temp.write(folder .. "/foreign.lua", [[
local ffi, core = require "ffi", require "luminary.core"
ffi.cdef "long write(int fd, const void *data, size_t n); int fcntl(int fd, int command, ...);"
require "luminary"
local first = {}
for fd = 3, 60 do first[fd] = ffi.C.fcntl(fd, 1) >= 0 end
local here, there = core.mp_pipe(true)
local ends = {}
for fd = 3, 60 do
  if not first[fd] and ffi.C.fcntl(fd, 1) >= 0 then ends[#ends + 1] = fd end
end
assert(#ends == 2)
for _, text in ipairs {"loader\t1", "short", "longer than a pointer is"} do
  assert(ffi.C.write(ends[1], text, #text) == #text)
  local ok, problem = pcall(core.mp_get, there, 1)
  print(ok, problem)
end
core.mp_put(here, "text", {}, nil, 1)
print(core.mp_get(there, 1))
core.mp_put(here, "left", {}, nil, 1)
ffi.C.write(ends[1], "loader\t1", 8)
core.mp_close_handle(there)
core.mp_close_handle(here)
]])
    local ok, text = temp.run(folder, "luajit " .. script)
    assert(ok, text)
    assert.equal(3, select(2, text:gsub("received a message that is not from lm.mp", "")))
    assert.truthy(text:find("text", 1, true))
  end)
end)
