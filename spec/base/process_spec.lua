-- The process the library lives in: signals that others catch, few threads, little memory, neighbors that compute.
-- LM_TEST_LONG=1: 10,000 signals, every few megabytes of memory, and the neighbor itself.
local temp = require "spec.support.temp"
local long = os.getenv "LM_TEST_LONG" ~= nil

local folder = temp.during(setup, teardown)

-- Runs a script for at most that many seconds; returns what it said, and its exit code. how.before: what the shell does
-- before; how.under: a command that runs it; how.arguments: the script's.
local function run(script, seconds, how)
  how = how or {}
  temp.write(folder .. "/script.lua", script)
  local _, text, code = temp.run(folder, ("ulimit -c 0; %s timeout -k 2 %d %s luajit %s/script.lua %s"):format(
    how.before or "", seconds, how.under or "", folder, how.arguments or ""))
  return text, code
end

-- Works through `work` again and again, each time with the same results as undisturbed, until that many signals came.
local STORM = [[
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
local library, threads, signals = arg[1], tonumber(arg[2]), tonumber(arg[3])
lm.set_num_threads(threads)

local work = {}

-- Products each by another kernel: few and many terms, either side transposed, thin ones.
local sizes = {{128, 784, 120}, {64, 96, 200}, {300, 300, 300}, {16, 128, 16}, {40, 20, 40}, {1, 500, 90}, {90, 500, 1}}
function work.products(out)
  lm.manual_seed(1)
  for _, s in ipairs(sizes) do
    local m, k, n = s[1], s[2], s[3]
    out[#out + 1] = lm.randn({m, k}):mm(lm.randn {k, n})
    out[#out + 1] = lm.randn({k, m}):t():mm(lm.randn {k, n})
    out[#out + 1] = lm.randn({m, k}):mm(lm.randn({n, k}):t())
    out[#out + 1] = lm.randn({m, k}, {dtype = "float16"}):mm(lm.randn({k, n}, {dtype = "float16"}))
  end
  out[#out + 1] = lm.randn({128, 784}, {dtype = "bfloat16"}):mm(lm.randn({784, 120}, {dtype = "bfloat16"}))
  out[#out + 1] = lm.randn({8, 32, 90}):bmm(lm.randn {8, 90, 32})
end

function work.layers(out)
  lm.manual_seed(2)
  local layer = nn.Linear(784, 130)
  local x = lm.randn({100, 784}, {requires_grad = true})
  local y = layer(x)
  y:sum():backward()
  local groups = nn.Conv2d(24, 24, 3, {groups = 3, dilation = 2})
  local z = groups(lm.randn({2, 24, 12, 12}))
  for _, t in ipairs {y:detach(), x.grad, layer.weight.grad, z:detach()} do out[#out + 1] = t end
end

function work.training(out)
  lm.manual_seed(3)
  local net = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(864, 100),
    nn.ReLU(), nn.Linear(100, 10))
  local opt = lm.optim.SGD(net:parameters(), {lr = 0.05, momentum = 0.9})
  local images, labels = lm.rand {64, 1, 28, 28}, lm.randint(1, 11, {64})
  for _ = 1, 3 do
    local loss = F.cross_entropy(net(images), labels)
    opt:zero_grad()
    loss:backward()
    opt:step()
    out[#out + 1] = loss:detach()
  end
  for _, p in ipairs(net:parameters()) do out[#out + 1] = p:detach() end
end

local expected = {}
for name, f in pairs(work) do
  expected[name] = {}
  f(expected[name])
end

local ffi = require "ffi"
ffi.cdef "int storm_begin(int microseconds); long storm_caught(void); void storm_end(void);"
local storm = ffi.load(library)
assert(storm.storm_begin(500) == 0)
local rounds = 0
repeat
  for name, f in pairs(work) do
    local got = {}
    f(got)
    for k, t in ipairs(got) do assert(lm.equal(t, expected[name][k]), name .. ": result " .. k .. " has changed") end
  end
  rounds = rounds + 1
until tonumber(storm.storm_caught()) >= signals and rounds >= 3
storm.storm_end()
print "as undisturbed"
]]

describe("signals that others catch", function()
  for _, threads in ipairs {1, 2} do
    it(("keep values and the heap, with %d %s #unsanitized"):format(threads, threads == 1 and "thread" or "threads"),
      function()
        local library = folder .. "/storm.so"
        local compile = "unset LD_PRELOAD; gcc -O1 -shared -fPIC -pthread spec/support/storm.c -o %s 2>/dev/null"
        if os.execute(compile:format(library)) ~= 0 then return pending("there is no compiler") end
        local arguments = ("%s %d %d"):format(library, threads, long and 10000 or 800)
        local text, code = run(STORM, long and 500 or 100, {arguments = arguments})
        assert.equal("as undisturbed\n", text)
        assert.equal(0, code)
      end)
  end

  it("do not come to OpenMP's threads", function()
    local text = run([[
      local lm = require "luminary"
      lm.set_num_threads(3)
      local x = lm.randn {400, 400}
      x:mm(x)
      local exp = lm.randn({1000, 1000}):exp()
      local own, seen = io.open("/proc/self/stat"):read("*n"), 0
      for id in io.popen("ls /proc/" .. own .. "/task"):lines() do
        if tonumber(id) ~= own then
          local status = io.open("/proc/self/task/" .. id .. "/status"):read("*a")
          local mask = tonumber(status:match("SigBlk:%s*%x*(%x%x%x%x%x%x%x%x)"), 16)
          local function has(number) return math.floor(mask / 2 ^ (number - 1)) % 2 == 1 end
          print(has(2) and has(27) and has(15), has(11) or has(7) or has(8))
          seen = seen + 1
        end
      end
      print(seen >= 2)]], 30)
    assert.equal("true\tfalse\ntrue\tfalse\ntrue\n", text)
  end)
end)

-- A little of everything that starts threads, loads libraries, or makes machine code.
local EVERYTHING = [[
local lm = require "luminary"
local nn, F = lm.nn, lm.nn.functional
lm.set_num_threads(2)
local x = lm.randn {300, 300}
x:mm(x)
x:double():mm(x:double())
local net = nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.Flatten(),
  nn.Linear(4050, 10))
local opt = lm.optim.SGD(net:parameters(), {lr = 0.01})
for _ = 1, 2 do
  local loss = F.cross_entropy(net(lm.rand {32, 1, 28, 28}), lm.randint(1, 11, {32}))
  opt:zero_grad()
  loss:backward()
  opt:step()
end
print("done on " .. lm.get_num_threads())
]]

local refusals = {"out of memory", "not enough memory", "failed to map", "annot allocate", "no room"}

-- Returns whether a script worked, or said that it cannot, and ended in time.
local function is_orderly(text, code)
  if code == 0 then return text:find "done on [12]\n$" ~= nil end
  if code ~= 1 then return false end
  for _, words in ipairs(refusals) do if text:find(words, 1, true) then return true end end
  return false
end

describe("too little", function()
  it("memory is an error, and nothing crashes or hangs #unsanitized", function()
    local worked, refused = 0, 0
    local sizes = long and {} or {80000, 100000, 122500, 140000, 200000, 300000}
    if long then for kilobytes = 60000, 600000, 2500 do sizes[#sizes + 1] = kilobytes end end
    -- About here oneDNN's library fits in part, or does while what its constructors allocate does not.
    for kilobytes = 79000, 82000, long and 20 or 300 do sizes[#sizes + 1] = kilobytes end
    for _, kilobytes in ipairs(sizes) do
      local text, code = run(EVERYTHING, 60, {before = ("ulimit -v %d;"):format(kilobytes)})
      local held = is_orderly(text, code) and not text:find "onednn.*to map"
      assert(held, ("ulimit -v %d: exit code %s, %s"):format(kilobytes, code, text))
      if code == 0 then worked = worked + 1 else refused = refused + 1 end
    end
    assert(refused > 0)
    assert(run(EVERYTHING, 60):find "^done on 2\n$")
  end)

  it("threads are fewer threads #unsanitized", function()
    local as_other = ""
    if os.execute "test $(id -u) = 0" == 0 then -- no number of processes limits root
      as_other = "setpriv --reuid 61234 --regid 61234 --clear-groups"
      temp.run(folder, "chmod 755 " .. folder)
      local see = as_other .. [[ luajit -e 'require "luminary"']]
      if os.execute(see .. " >/dev/null 2>&1") ~= 0 then return pending("no other user, or it cannot read") end
    end
    for _, n in ipairs {1, 2} do
      local text, code = run(EVERYTHING, 60, {under = ("%s prlimit --nproc=%d --"):format(as_other, n)})
      assert(is_orderly(text, code), ("ulimit -u %d: exit code %s, %s"):format(n, code, text))
      if n == 1 then
        assert.equal("luminary: computing on 1 thread, since the system does not grant 2 (ulimit -u, ulimit -v)\n" ..
          "done on 1\n", text)
      end
    end
  end)
end)

describe("a child by a bare fork()", function()
  it("computes, on one thread", function()
    local text, code = run([[
      local lm, ffi = require "luminary", require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int); void _exit(int);"
      lm.set_num_threads(2)
      local x = lm.ones {300, 300}
      x:mm(x)
      local child = ffi.C.fork()
      if child == 0 then ffi.C._exit(x:mm(x):sum():item() == 300 ^ 3 and 5 or 1) end
      local status = ffi.new "int[1]"
      ffi.C.waitpid(child, status, 0)
      print(status[0] / 256, x:mm(x):sum():item() == 300 ^ 3)
    ]], 20, {})
    assert.equal("5\ttrue\n", text)
    assert.equal(0, code)
  end)
end)

describe("threads that compute", function()
  if long then
    it("yield to a neighbour that computes #unsanitized", function()
      local ok, text = temp.run(folder, "timeout 900 " .. "scripts/dev/busy_neighbor")
      assert(ok, text)
    end)
  end
end)

-- A quota of two cores or more or more would look like the affinity of a small machine: these grant one.
describe("a control group's quota", function()
  local needs = require "spec.support.needs"
  local missing = needs.namespaces()
  local PRINT = 'print(require "luminary".get_num_threads(), require "luminary.core".process_cores())'
  local function threads(groups, files)
    temp.write(folder .. "/groups", groups)
    local mount = {"mount -t tmpfs none /sys/fs/cgroup", ("mount --bind %s/groups /proc/$$/cgroup"):format(folder)}
    for path, text in pairs(files) do
      mount[#mount + 1] = ("mkdir -p $(dirname /sys/fs/cgroup/%s); echo '%s' > /sys/fs/cgroup/%s"):format(path, text,
        path)
    end
    return run(PRINT, 20, {before = "unset OMP_NUM_THREADS;", under = ("env -u LD_PRELOAD unshare -m sh -c "
      .. "'%s; exec \"$@\"' -"):format(table.concat(mount, "; "):gsub("'", '"'))})
  end

  if missing then
    it("bounds threads #full", function() pending(missing) end)
    return
  end
  it("bounds threads #full #unsanitized", function()
    local free = threads("0::/job/step\n", {["job/cpu.max"] = "max 100000"})
    assert.equal(free, (run(PRINT, 20, {before = "unset OMP_NUM_THREADS;"})))
    assert.equal("1\t1\n", (threads("0::/job/step\n", {["job/cpu.max"] = "170000 100000"})))
    assert.equal("1\t1\n", (threads("0::/\n", {["cpu.max"] = "50000 100000"})))
    assert.equal("1\t1\n", (threads("4:memory:/a\n3:cpu,cpuacct:/a/b\n",
      {["cpu,cpuacct/a/cpu.cfs_quota_us"] = "150000", ["cpu,cpuacct/a/cpu.cfs_period_us"] = "100000"})))
    assert.equal(free, (threads("3:cpu:/\n",
      {["cpu/cpu.cfs_quota_us"] = "-1", ["cpu/cpu.cfs_period_us"] = "100000"})))
    for _, text in ipairs {"", "x", "1", "-3 0", ("9"):rep(4000)} do
      assert.equal(free, (threads("0::/\n", {["cpu.max"] = text})))
    end
  end)
end)
