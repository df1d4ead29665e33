-- A process that has other things in it: requiring the library and training change nothing of theirs.
local needs, temp = require "spec.support.needs", require "spec.support.temp"

local folder = temp.during(setup, teardown)

local SCRIPT = [[
local state = require "spec.support.process_state"
local before = {imports = state.redirected(), signals = state.signals(), environment = state.environment()}

local function compare(when)
  for name, get in pairs {imports = state.redirected, signals = state.signals, environment = state.environment} do
    local now = get()
    if now ~= before[name] then print(("%s, %s: was\n%s\nis\n%s"):format(name, when, before[name], now)) end
  end
end

local lm = require "luminary"
compare "required"
lm.set_num_threads(2)
lm.manual_seed(1)
local nn, F = lm.nn, lm.nn.functional
local net = nn.Sequential(nn.Conv2d(3, 20, 5, {stride = 2}), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2),
  nn.Conv2d(20, 32, 3), nn.Flatten(), nn.Linear(32 * 4 * 4, 300), nn.ReLU(), nn.Linear(300, 10))
local opt = lm.optim.Adam(net:parameters(), {lr = 0.01})
local images, labels = lm.rand {64, 3, 28, 28}, lm.randint(1, 11, {64})
for _ = 1, 3 do
  local loss = F.cross_entropy(net(images), labels)
  opt:zero_grad()
  loss:backward()
  opt:step()
end
local x = lm.randn({300, 300}, {dtype = "float64"})
lm.linalg.svd(x:mm(x))
lm.fft.rfft(lm.randn {64, 1000})
compare "trained"
print(state.threads() .. " threads")
]]

describe("a process of others", function()
  it("keeps its imports, signals and environment, and gets no threads but those asked for", function()
    temp.write(folder .. "/script.lua", SCRIPT)
    local _, text, code = temp.run(folder, "timeout -k 2 60 luajit " .. folder .. "/script.lua")
    assert.equal("2 threads\n", text)
    assert.equal(0, code)
  end)

  it("may restrict the globals of its thread once luminary is required, as Minetest does", function()
    temp.write(folder .. "/script.lua", ([[
      local lm = require "luminary"
      local sandbox = setmetatable({}, {__index = function(_, name) error("the sandbox has no " .. name, 0) end})
      setfenv(0, sandbox)
      local nn = lm.nn
      local net = nn.Sequential(nn.Linear(4, 3), nn.GRU(3, 2))
      local opt = lm.optim.Adam(net:parameters())
      net(lm.ones(5, 1, 4)):sum():backward()
      opt:step()
      for _, part in ipairs {"amp", "autograd", "data", "distributions", "fft", "func", "linalg", "metrics", "models",
        "mp", "paths", "serve", "text", "vision", "watch"} do
        assert(type(lm[part]) == "table", part)
      end
      lm.vision.transforms.Compose {lm.vision.transforms.Resize(4)}(lm.ones(3, 8, 8))
      lm.save("%s/net.safetensors", net:state_dict())
      assert(lm.async(nn.Linear(2, 2), lm.ones(1, 2)):get().shape[2] == 2 and tostring(lm.ones(2)))
      assert(getfenv(0) == sandbox) -- print would need its tostring
      io.write(select(2, pcall(function() return lm.nothing end)))
    ]]):format(folder))
    local ok, text = temp.run(folder, "timeout -k 2 60 luajit " .. folder .. "/script.lua")
    assert(ok, text)
    assert.matches("luminary has no 'nothing'", text)
  end)

  it("has a handler of SIGBUS while a mapped file is in use, and not longer", function()
    temp.write(folder .. "/script.lua", [[
      local state = require "spec.support.process_state"
      local before, file = state.signals(), arg[1]
      local lm = require "luminary"
      lm.save(file, {x = lm.ones {1000}})
      lm.load(file)
      print(state.signals() == before)
      local mapped = lm.load(file, {mmap = true})
      print(state.signals() == before, mapped.x:sum():item())
      mapped = nil
      collectgarbage()
      collectgarbage()
      print(state.signals() == before)
    ]])
    local _, text = temp.run(folder, ("timeout -k 2 60 luajit %s/script.lua %s/x.safetensors"):format(folder, folder))
    assert.equal("true\nfalse\t1000\ntrue\n", text)
  end)
end)

describe("the pool of threads", function()
  it("runs loops of many callers, nested, after a fork, at the exit and on cores of their own #unsanitized", function()
    local program = folder .. "/pool"
    local compile = "unset LD_PRELOAD; gcc -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -Isrc "
      .. "spec/support/pool_check.c -o %s -L%s -Wl,-rpath,%s -lluminary -lpthread"
    local library = package.searchpath("luminary.core", package.cpath):match "^(.*)/"
    local _, report, failed = temp.run(folder, compile:format(program, library, library))
    if os.execute "gcc --version >/dev/null 2>&1" ~= 0 then return pending "there is no compiler" end
    assert.equal(0, failed, report)
    for _, how in ipairs {"callers", "nested", "fork", "exit", "failing", "noted", "cores", "spare"} do
      local _, text, code = temp.run(folder, ("timeout -k 2 60 %s %s"):format(program, how))
      assert.equal(how .. ": good\n", text)
      assert.equal(0, code)
    end
  end)
end)

describe("OpenBLAS", function()
  local function run(script, before)
    temp.write(folder .. "/script.lua", [[
      local lm = require "luminary"
      local function is_loaded() return io.open("/proc/self/maps"):read "*a":find("libopenblas", 1, true) ~= nil end
    ]] .. script)
    return temp.run(folder, (before or "") .. "timeout -k 2 60 luajit " .. folder .. "/script.lua")
  end

  it("is loaded when it is first needed", function()
    local _, text = run [[
      lm.set_num_threads(1)
      local x = lm.randn {64, 64}
      x:mm(x)
      print(is_loaded())
      print(lm.linalg.svdvals(lm.eye(3)):sum():item(), is_loaded())
    ]]
    assert.equal("false\n3\ttrue\n", text)
  end)

  it("loads on every CPU that its kernels serve, and refuses an older one", function()
    local levels = require "spec.support.cpu_levels"
    assert(#levels == 3 or levels.only)
    local ok, text = run("print(1)", "LM_CPU_LEVEL=0 ")
    assert.equal(levels[1] == 0, ok)
    assert.matches(ok and "^1\n$" or "luminary: this build needs vector instructions %(AVX2, AVX%-512%) that this CPU "
      .. "lacks or LM_CPU_LEVEL excludes; run scripts/setup on this machine, or scripts/setup %-%-release", text)
  end)

  it("takes kernels as new as the CPU, unless a variable names others #unsanitized", function()
    local script = [[
      local ffi = require "ffi"
      ffi.cdef "char *openblas_get_corename(void); int openblas_get_num_threads(void);"
      lm.linalg.svdvals(lm.eye(3))
      local blas = ffi.load "libopenblas.so.0"
      print(ffi.string(blas.openblas_get_corename()), blas.openblas_get_num_threads(), os.getenv "OPENBLAS_CORETYPE")
    ]]
    local why = needs.cpu_level(1)
    if why then return pending(why) end
    local flags = io.open("/proc/cpuinfo"):read(8192):match "\nflags%s*:([^\n]*)" or ""
    if flags:find " avx2" then
      local _, text = run(script, "env -u OPENBLAS_CORETYPE LM_CPU_LEVEL=1 ")
      assert.equal("Haswell\t1\tnil\n", text)
      _, text = run(script, "OPENBLAS_CORETYPE=Nehalem ")
      assert.equal("Nehalem\t1\tNehalem\n", text)
    end
  end)

  -- Runs a script in the main thread while another thread loads the library.
  local function during_the_load(script)
    local _, text = run([[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); char *getenv(const char *); int setenv(const char *, const char *, int);"
      ffi.cdef "int alarm(unsigned); int waitpid(int, int *, int); void _exit(int);"
      local function svd() return lm.linalg.svdvals(lm.eye(30)):sum():item() end
      local pool = lm.mp.Pool(1, {method = "thread"})
      pool:apply(function() return 1 end)
      ffi.C.setenv("LM_SPEC", "before", 1)
      local result = pool:apply_async(function()
        local lm = require "luminary"
        return lm.linalg.svdvals(lm.eye(30)):sum():item()
      end)
      while not ffi.C.getenv "OPENBLAS_NUM_THREADS" and not is_loaded() do end
    ]] .. script .. [[
      print(result:get())
      pool:close()
      pool:join()
    ]])
    return text
  end

  -- A fork keeps AddressSanitizer's own locks, which another thread may hold.
  it("is loaded once for a fork amid the load #unsanitized", function()
    assert.equal("0\n30\n", during_the_load [[
      local pid = ffi.C.fork()
      if pid == 0 then
        ffi.C.alarm(20)
        ffi.C._exit(svd() == 30 and 0 or 3)
      end
      local status = ffi.new "int[1]"
      ffi.C.waitpid(pid, status, 0)
      print(status[0])
    ]])
  end)

  it("keeps what another thread sets in the environment meanwhile", function()
    assert.equal("30\nafter\n30\n", during_the_load [[
      ffi.C.setenv("LM_SPEC", "after", 1)
      print(result:get())
      print(ffi.string(ffi.C.getenv "LM_SPEC"))
    ]])
  end)

  it("reports what it lacks", function()
    local _, text = run [[
      local ffi = require "ffi"
      ffi.cdef "int setrlimit(int resource, const uint64_t limits[2]);"
      local kilobytes = tonumber(io.open("/proc/self/status"):read "*a":match "VmSize:%s*(%d+)")
      local RLIMIT_AS, limit = 9, (kilobytes + 100 * 1024) * 1024
      lm.set_num_threads(1)
      local x = lm.eye(2, {dtype = "float64"})
      assert(ffi.C.setrlimit(RLIMIT_AS, ffi.new("uint64_t[2]", {limit, limit})) == 0)
      print(pcall(lm.linalg.svdvals, x))
      local ones = lm.ones({9, 9}, {dtype = "float64"})
      print(x:mm(x):sum():item(), ones:mm(ones):sum():item())
    ]]
    assert.matches("^false\t[^\n]*cannot allocate address space for OpenBLAS's buffers[^\n]*\n2\t729\n$", text)
  end)
end)
