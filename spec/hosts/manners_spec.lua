-- Manners of a guest: Luminary changes nothing of its host's, starts named threads when there is much to compute, and
-- meets scarce resources with errors. spec/support/manners.lua looks; each host runs it.
-- LM_TEST_LONG=1: 1,000 states, 1,000,000 requests, 5,000 forks, every system call.
local ffi = require "ffi"
local needs = require "spec.support.needs"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local long = os.getenv "LM_TEST_LONG" ~= nil

ffi.cdef "char *getcwd(char *, size_t);"
local TREE = ffi.string(ffi.C.getcwd(ffi.new "char[4096]", 4096))

local folder = temp.during(setup, teardown)

local function write(name, text, ...) return temp.write(folder .. "/" .. name, text:format(...)) end

-- Runs a command, with a limit on its time; returns what it printed, and its exit code.
local function run(command, ...)
  local seconds = long and 3600 or 400
  local _, text, code = temp.run(folder, ("ulimit -c 0; timeout -k 2 %d "):format(seconds) .. command:format(...))
  return text, code
end

-- Returns the path of the host in C; nil and the reason where it cannot be compiled.
local function c_host()
  local program, flags = folder .. "/host", temp.output_of "pkg-config --cflags --libs luajit"
  if flags == "" or needs.program "cc" then return nil, "no C compiler, or no headers of LuaJIT" end
  if not temp.exists(program) then
    local ok, text = temp.run(folder, ("unset LD_PRELOAD; cc -O1 -Wall -Wextra -Werror spec/support/host.c -o %s %s "
      .. "-pthread"):format(program, flags))
    assert(ok, text)
  end
  return program
end

-- ---- one script in each host

-- Reports of manners.work, where each host has started no thread of ours before.
local REPORT = "a large op: threads lm-compute\nlm.async: threads lm-lua\ndone\n"

-- A host: run(script) runs it; its result is what the host printed, which `prints` matches if not "".
local HOSTS = {
  {name = "luajit", run = function(script) return run("luajit %s", script) end},
  {name = "luajit without its compiler", run = function(script) return run("luajit -joff %s", script) end},
  {
    name = "a C program with several Lua states", reports = REPORT .. REPORT:gsub("a large[^\n]*\n", ""):rep(2),
    missing = function() return select(2, c_host()) end,
    run = function(script) return run("%s %s 3 keep", c_host(), script) end,
  },
  {
    name = "Neovim", missing = function() return needs.program "nvim" end,
    run = function(script) return run("nvim --headless -u NONE -c 'luafile %s' -c 'qa!'", script) end,
  },
  {
    name = "sysbench", missing = function() return needs.program "sysbench" end,
    prints = "total number of events: +1\n",
    run = function(script)
      return run("sysbench --threads=1 --events=1 %s run",
        write("sysbench.lua", "function event() dofile %q end", script))
    end,
  },
  {
    name = "wrk", missing = function() return needs.program "wrk" end, prints = "Running 1s test",
    run = function(script)
      return run("wrk -t1 -c1 -d1s -s %s http://127.0.0.1:1/", write("wrk.lua", [[
        function wrk.connect() return true end -- nobody listens
        function init() dofile %q end]], script))
    end,
  },
  {
    name = "LÖVE", missing = function() return needs.program "love" end,
    run = function(script)
      os.execute("mkdir -p " .. folder .. "/game")
      write("game/conf.lua", [[function love.conf(t)
        t.window, t.modules.audio, t.modules.video = false, false, false
      end]])
      write("game/main.lua", "function love.load() dofile %q love.event.quit() end", script)
      return run("env SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy HOME=%s love %s/game", folder, folder)
    end,
  },
  {
    name = "kresd", missing = function() return needs.program "kresd" end, prints = "", -- it warns of limits
    run = function(script)
      return run("kresd -n -c %s %s", write("kresd.conf", "dofile %q quit()", script), folder)
    end,
  },
  {
    name = "nginx, after its fork",
    missing = function()
      if needs.program "nginx" or temp.output_of "ls /usr/lib/nginx/modules/ngx_http_lua_module.so" == "" then
        return "no nginx with its Lua module (on Debian: nginx-light libnginx-mod-http-lua)"
      end
    end,
    run = function(script)
      os.execute("mkdir -p " .. folder .. "/logs")
      write("nginx.conf", [[
        %s load_module /usr/lib/nginx/modules/ndk_http_module.so;
        load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
        daemon off; pid nginx.pid; env LUA_PATH; env LUA_CPATH; error_log stderr error;
        events {}
        http {
          access_log off;
          init_by_lua_block { require "luminary" }
          init_worker_by_lua_block {
            dofile %q
            os.execute("kill -QUIT " .. io.open(%q):read())
          }
        }]], temp.output_of "id -u" == "0" and "user root;" or "", script, folder .. "/nginx.pid")
      return run("nginx -p %s -c nginx.conf", folder)
    end,
  },
}

describe("a host keeps its state, and threads start with much work:", function()
  for _, host in ipairs(HOSTS) do
    it(host.name .. " #unsanitized", function()
      local why = host.missing and host.missing()
      if why then return pending(why) end
      os.remove(folder .. "/report")
      local text, code = host.run(write("script.lua", [[
        package.path, package.cpath = %q, %q
        local file = io.open(%q, "a")
        local manners = dofile %q
        local ok, problem = pcall(manners.work, %q, function(line) file:write(line, "\n") end)
        file:write(ok and "done" or problem, "\n")
        file:close()]], package.path, package.cpath, folder .. "/report",
        TREE .. "/spec/support/manners.lua", folder))
      assert.equal(host.reports or REPORT, temp.exists(folder .. "/report") and temp.read(folder .. "/report") or text)
      assert.equal(0, code, text)
      if host.prints then assert.matches(host.prints, text) end
      if host.prints then assert.not_matches("luminary", text) else assert.equal("", text) end
    end)
  end
end)

describe("a state that closes while work runs", function()
  it("prints a failure of the work in a script, and nothing in a host #unsanitized", function()
    local host, why = c_host()
    if not host then return pending(why) end
    local path = write("closing.lua", [[
      package.path, package.cpath = %q, %q
      local lm = require "luminary"
      lm.mp.spawn(function() error "it failed" end, {join = false, method = "thread"})
      lm.async(function() while true do end end)]], package.path, package.cpath)
    assert.matches("spawn: rank 0 failed: [^\n]*it failed\n", (run("luajit %s", path)))
    assert.same({"", 0}, {run("%s %s 1", host, path)})
    assert.same({"", 0}, {run("%s %s 1 keep", host, path)})
  end)
end)

-- ---- forks

local FORK = [[
local ffi = require "ffi"
ffi.cdef "int fork(void); int waitpid(int, int *, int); unsigned alarm(unsigned); void _exit(int);"
local lm = require "luminary"
local FOLDER = %q
-- Runs f in a child, 120 s at most; returns its exit code, or minus the signal that ended it.
local function in_child(f, ...)
  local status, pid = ffi.new "int[1]", ffi.C.fork()
  if pid == 0 then
    ffi.C.alarm(120)
    local ok, problem = xpcall(f, debug.traceback, ...)
    if not ok then io.stderr:write(problem, "\n") end
    ffi.C._exit(ok and 7 or 1)
  end
  ffi.C.waitpid(pid, status, 0)
  return status[0] %% 128 == 0 and status[0] / 256 or -status[0]
end
]]

describe("a fork's child", function()
  local function run_forking(script)
    return run("luajit %s", temp.write(folder .. "/fork.lua", FORK:format(folder) .. script))
  end

  it("runs ops, pools of threads, loaders, lm.async, queues and files", function()
    assert.equal("7\n7\n", (run_forking [[
      local function everything(threads)
        local x = lm.ones(300, 300)
        assert(x:mm(x):sum():item() == 300 ^ 3 and lm.get_num_threads() == threads)
        lm.set_num_threads(2)
        assert(x:mm(x):sum():item() == 300 ^ 3 and lm.get_num_threads() == 2)
        assert(math.abs(lm.linalg.svdvals(lm.eye(30)):sum():item() - 30) < 1e-3)
        local net = lm.nn.Conv2d(3, 8, 3)
        net(lm.rand(2, 3, 20, 20)):sum():backward()
        for _, kind in ipairs {"thread", "process"} do
          local set, sum = lm.data.TensorDataset(lm.ones(8, 2)), 0
          local loader = lm.data.DataLoader(set, {batch_size = 2, num_workers = 2, worker_type = kind})
          for batch in loader:iter() do sum = sum + batch:sum():item() end
          local pool = lm.mp.Pool(2, {method = kind})
          assert(sum == 16 and pool:map(function(i) return i * 2 end, {1, 2, 3})[3] == 6)
          pool:close()
          pool:join()
        end
        assert(lm.async(net, lm.rand(2, 3, 20, 20)):get(120).shape[1] == 2)
        lm.save(FOLDER .. "/x.safetensors", net:state_dict())
        lm.load(FOLDER .. "/x.safetensors")
        local queue = lm.mp.Queue()
        queue:put(lm.ones(3))
        assert(queue:get():sum():item() == 3)
      end
      lm.set_num_threads(2)
      print(in_child(everything, 1)) -- before the parent has threads
      everything(2)
      print(in_child(everything, 1))
      everything(2)
    ]]))
  end)

  it("finds no lock that a thread of its parent held #unsanitized", function()
    local text = run_forking(([[
      lm.set_async {workers = 2, threads = 1}
      local function work(first, last, stop)
        local lm = require "luminary"
        local n, bfloat16 = first, {dtype = "bfloat16"}
        while n <= last and not (stop and stop:is_set()) do
          lm.fft.rfft(lm.rand(64 + n %% 500))
          lm.rand({1 + n %% 50, 32}, bfloat16):mm(lm.rand({32, 8}, bfloat16))
          lm.ones(3):share_memory_()
          n = n + 1
        end
      end
      local stop = lm.mp.Event()
      local futures = {lm.async(work, 1, math.huge, stop), lm.async(work, 1, math.huge, stop)}
      for i = 1, %d do
        local code = in_child(work, i, i)
        if code ~= 7 then print(i, code) break end
      end
      stop:set()
      futures[1]:get(120)
      futures[2]:get(120)
      print "done"
    ]]):format(long and 5000 or 60))
    assert.equal("done\n", text)
  end)

  it("has no part in a process group of its parent", function()
    local got = ranks.run {env = {LM_TOKEN = "a secret of the spec"}, script = FORK:format(folder) .. [[
      lm.dist.init_process_group "gloo"
      local code = in_child(function()
        local ok, problem = pcall(lm.dist.all_reduce, lm.ones(1))
        assert(not ok)
        io.stderr:write(problem:match "this process.*", "\n")
      end)
      local x = lm.ones(1)
      lm.dist.all_reduce(x)
      print(code, x:item())
      lm.dist.destroy_process_group()
    ]]}
    assert(got.ok, got.text)
    for rank = 0, 1 do
      assert.equal("this process was forked after init_process_group(); only its parent can use the process group\n"
        .. "7\t2\n", got[rank].output)
    end
  end)
end)

-- ---- copies

describe("a second copy in one process", function()
  -- Copies the core, with `edit` on its bytes; returns a cpath for it. The library and plug-ins are links.
  local function copy_of_core(name, edit)
    local core = package.searchpath("luminary.core", package.cpath)
    local to = ("%s/%s/luminary"):format(folder, name)
    local link = "mkdir -p %s && ln -s $(readlink -f %s)/*luminary* %s"
    assert(os.execute(link:format(to, core:match "^(.*)/", to)) == 0)
    temp.write(to .. "/core.so", edit and edit(temp.read(core)) or temp.read(core))
    return ("%s/%s/?.so"):format(folder, name)
  end

  -- Runs in three states with cpaths of their own; returns what their require printed.
  local function in_states(...)
    local host, why = c_host()
    if not host then return pending(why) end
    local cpaths = {}
    for i, path in ipairs {...} do cpaths[i] = ("%q"):format(path) end
    return (run("%s %s %d keep", host, write("states.lua", [[
      package.path, package.cpath = %q, ({%s})[STATE]
      local ok, problem = pcall(require, "luminary")
      if ok then problem = problem.ones(2):sum():item() end
      print(problem)]], package.path, table.concat(cpaths, ", ")), #cpaths))
  end

  it("is refused with both paths and versions, whichever was first #unsanitized", function()
    local own, copy = package.cpath, copy_of_core "copy"
    local version = require("luminary").version
    local function refusal(first, second)
      return ("luminary: version %s, '%s', is in use in this process, which cannot load a second copy, version %s, "
        .. "'%s'; set the same package.cpath in all Lua states\n"):format(version,
        package.searchpath("luminary.core", first), version, package.searchpath("luminary.core", second))
    end
    assert.equal("2\n" .. refusal(own, copy) .. "2\n", in_states(own, copy, own))
    assert.equal("2\n" .. refusal(copy, own) .. "2\n", in_states(copy, own, copy))
  end)

  it("is none if another path leads to the same files #unsanitized", function()
    local library = package.searchpath("luminary.core", package.cpath):match "^(.*)/luminary/"
    assert(os.execute(("ln -s $(readlink -f %s) %s/other"):format(library, folder)) == 0)
    assert.equal("2\n2\n2\n", in_states(package.cpath, folder .. "/other/?.so", package.cpath))
  end)

  it("is named when the first one lacks a function that it needs #unsanitized", function()
    local newer = copy_of_core("newer", function(bytes)
      local changed, n = bytes:gsub("%zlm_alloc_fail_from%z", "\0lm_alloc_fail_more\0")
      assert(n > 0)
      return changed
    end)
    assert.matches("^2\nluminary: cannot load the core of version %S+ beside another one that this process uses "
      .. "%(undefined symbol: lm_alloc_fail_more%); set the same package.path and package.cpath in all Lua states\n"
      .. "2\n$",
      in_states(package.cpath, newer, package.cpath))
  end)

  it("is refused if its Lua files are of another version than the core", function()
    assert.equal("luminary: the Lua files are of version 9.9.9, but the core is of version "
      .. require("luminary").version .. "; set package.path and package.cpath to one installation, the same in all Lua "
      .. "states\n", (run("luajit %s", write("versions.lua", [[
        package.preload["luminary.version"] = function() return "9.9.9" end
        print(select(2, pcall(require, "luminary")))]]))))
  end)
end)

-- ---- what a host withholds

describe("a sandbox", function()
  it("needs none of ffi, debug, io and os as globals", function()
    assert.equal("done\n", (run("luajit %s", write("sandbox.lua", [[
      local print = print
      ffi, debug, io, os = nil
      local lm = require "luminary"
      local nn, F = lm.nn, lm.nn.functional
      local net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
      local opt = lm.optim.Adam(net:parameters())
      F.cross_entropy(net(lm.rand(3, 4)), lm.randint(1, 3, {3})):backward()
      opt:step()
      lm.save(%q, net:state_dict())
      net:load_state_dict(lm.load(%q))
      assert(lm.async(net, lm.ones(2, 4)):get(120).shape[2] == 2)
      for _ in lm.data.DataLoader(lm.data.TensorDataset(lm.ones(8, 2)), {num_workers = 1}):iter() do end
      assert(not pcall(net, 3) and not pcall(lm.ones(2).mm, 3))
      assert(lm.help "relu" and lm.Timer():stop() >= 0 and lm.distributions.Normal(0, 1):sample())
      local _ = lm.text, lm.vision.transforms, lm.models, lm.checkpoint, lm.paths
      print "done"]], folder .. "/s.safetensors", folder .. "/s.safetensors"))))
  end)
end)

-- ---- what stays

-- Lua source: manners, and a function that fails unless the counts are those of before, after a worker that has just
-- answered has closed its sockets. Memory may have grown by the headers of freed tensors that each thread keeps, 16,384
-- at most.
local FLAT = ([[
local manners = dofile %q
local ffi = require "ffi"
ffi.cdef "int usleep(unsigned);"
local function expect_flat(before)
  local most, problem = {memory = 8000, mappings = 8, descriptors = 0, threads = 0}
  for _ = 1, 1000 do
    local after = manners.counts()
    problem = nil
    for name, by in pairs(most) do
      local was, is = before[name], after[name]
      if is > was + by then problem = ("%%d %%s became %%d"):format(was, name, is) end
    end
    if not problem then return end
    ffi.C.usleep(20000)
  end
  error(problem, 0)
end
]]):format(TREE .. "/spec/support/manners.lua")

describe("a process", function()
  it("holds nothing of Lua states that were closed #unsanitized", function()
    local host, why = c_host()
    if not host then return pending(why) end
    local states = long and 1000 or 100
    assert.equal("", (run("%s %s %d", host, write("closed.lua", [[
      package.path, package.cpath = %q, %q
      %s
      local file = %q
      local lm = require "luminary"
      local net = lm.nn.Linear(300, 300)
      X = net(lm.ones(300, 300)) -- open until the state closes
      X:sum():backward()
      if STATE %% 10 == 0 then lm.async(net, lm.ones(1, 300)):get(120) end
      if STATE %% 10 == 5 then F = lm.async(net, lm.ones(1, 300)) end
      local counts = manners.counts()
      if STATE == 50 then
        local out = io.open(file, "w")
        out:write(("return {memory = %%d, descriptors = %%d, threads = %%d, mappings = %%d}"):format(counts.memory,
          counts.descriptors, counts.threads, counts.mappings))
        out:close()
      end
      if STATE == %d then expect_flat(dofile(file)) end]],
      package.path, package.cpath, FLAT, folder .. "/counts.lua", states), states)))
  end)

  it("holds nothing of requests that were answered #unsanitized", function()
    local requests = long and 1000000 or 12000
    assert.equal("done\n", (run("luajit %s", write("requests.lua", FLAT:gsub("%%", "%%%%") .. [[
      local lm = require "luminary"
      local net, before = lm.nn.Sequential(lm.nn.Linear(16, 32), lm.nn.ReLU(), lm.nn.Linear(32, 4)), nil
      for i = 1, %d do
        if i == 6000 then before = manners.counts() end
        local x = lm.rand(1, 16)
        local y = i %% 10 == 0 and lm.async(net, x):get(120) or lm.no_grad(function() return net(x) end)
        assert(y.shape[2] == 4)
      end
      collectgarbage()
      collectgarbage()
      expect_flat(before)
      print "done"]], requests))))
  end)
end)

-- ---- what is scarce

-- Does what needs threads, descriptors, files and memory. Prints a line for each part that failed, then "done".
local EVERYTHING = [[
local lm, folder = require "luminary", %q
local function try(name, f, ...)
  local ok, problem = pcall(f, ...)
  if not ok then print(name .. ": " .. tostring(problem):gsub(":\n%%s*", ": "):gsub("\n.*", "")) end
end
lm.set_num_threads(2)
local x = lm.randn(300, 300)
try("product", x.mm, x, x)
try("svd", function() lm.linalg.svdvals(lm.eye(20)) end)
local ok, net = pcall(function()
  return lm.nn.Sequential(lm.nn.Conv2d(1, 4, 3), lm.nn.ReLU(), lm.nn.Flatten(), lm.nn.Linear(4 * 26 * 26, 10))
end)
if not ok then error(net, 0) end
try("training", function()
  local opt = lm.optim.Adam(net:parameters())
  lm.nn.functional.cross_entropy(net(lm.rand(16, 1, 28, 28)), lm.randint(1, 11, {16})):backward()
  opt:step()
end)
try("save", function() lm.save(folder .. "/x.safetensors", net:state_dict()) end)
try("load", function() lm.load(folder .. "/x.safetensors", {mmap = true}) end)
try("async", function() lm.async(net, lm.rand(1, 1, 28, 28)):get(120) end)
for _, kind in ipairs {"thread", "process"} do
  try("loader", function()
    local set = lm.data.TensorDataset(lm.ones(8, 2))
    for _ in lm.data.DataLoader(set, {num_workers = 1, worker_type = kind}):iter() do end
  end)
end
try("queue", function()
  local queue = lm.mp.Queue()
  queue:put(lm.ones(3))
  queue:get()
end)
print "done"
]]

-- The forms of refusals.
local REFUSALS = {
  "cannot ", "computing on 1 thread", "out of memory", "connection broke", "worker 0 ended with exit code",
  "the worker ended", "Too many open files", "not enough memory", "there is no memory",
}

-- Asserts that EVERYTHING ran to its end, and that each part worked or was refused in one of these forms.
local function assert_orderly(text, code, what)
  assert.equal(0, code, what .. ": " .. text)
  assert(text:find "done\n", what .. ": " .. text)
  for line in text:gmatch "[^\n]+" do
    local known = not line:find "^%a+: " or false
    -- Without a descriptor LuaJIT finds no file of a module.
    if what:find "^ulimit %-n" then known = known or line:find("module 'luminary.", 1, true) ~= nil end
    for _, words in ipairs(REFUSALS) do known = known or line:find(words, 1, true) ~= nil end
    assert(known, what .. ": " .. line)
  end
end

-- Writes EVERYTHING after other Lua source; returns its path.
local function everything(before, files)
  return temp.write(folder .. "/everything.lua", (before or "") .. EVERYTHING:format(files or folder))
end

describe("in a host", function()
  it("with a decimal comma, numbers are written and read with a point #unsanitized", function()
    local locale = folder .. "/de_DE.UTF-8"
    if os.execute(("localedef -i de_DE -f UTF-8 %s >/dev/null 2>&1"):format(locale)) ~= 0 then
      return pending "no localedef, or no sources of locales (on Debian: locales)"
    end
    local csv = write("x.csv", "a,b\n1.5,2\n0.1e-2,3\n")
    local script = write("comma.lua", [[
      local ffi = require "ffi"
      ffi.cdef "char *setlocale(int, const char *); int snprintf(char *, size_t, const char *, ...);"
      local text = ffi.new "char[16]"
      assert(not arg[1] or ffi.C.setlocale(6, arg[1]) ~= nil)
      ffi.C.snprintf(text, 16, "%%.1f", 1.5)
      io.stderr:write(ffi.string(text), "\n")
      local lm = require "luminary"
      print(lm.tensor {{1.5, -2.25}, {1e-9, 3e10}}, lm.repr {0.5, {lm.tensor(2.5)}})
      print(pcall(lm.nn.Dropout, 1.5))
      print(pcall(function() return lm.ones(2):sum(1.5) end))
      print(lm.help "leaky_relu")
      print(lm.data.CSVDataset(%q):get(2))
      print(lm.async(function(x) return {tostring(x * 1.5)} end, lm.ones(2)):get(120)[1])
      lm.save(%q, {x = lm.tensor {1.5}, lr = 0.125})
      print(lm.repr(lm.load(%q)))]], csv, folder .. "/c.safetensors", folder .. "/c.safetensors")
    local point, comma = run("luajit %s", script), run("env LOCPATH=%s luajit %s de_DE.UTF-8", folder, script)
    assert.matches("^1%.5\n.*1%.5000e%+00.*got 1%.5.*0%.125", point)
    assert.equal("1,5\n" .. point:sub(5), comma)
  end)

  it("that blocks all signals, work and the end need none #unsanitized", function()
    assert_orderly((run("luajit %s", everything [[
      local ffi = require "ffi"
      ffi.cdef "int sigfillset(void *); int pthread_sigmask(int, const void *, void *);"
      local all = ffi.new "char[128]"
      ffi.C.sigfillset(all)
      assert(ffi.C.pthread_sigmask(0, all, nil) == 0)
    ]])), 0, "blocked signals")
  end)

  it("that grants few descriptors, parts are refused #unsanitized", function()
    for n = 4, 24, long and 1 or 4 do
      local text, code = run("sh -c 'exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&-; ulimit -n %d; exec luajit %s'", n,
        everything())
      assert_orderly(text, code, "ulimit -n " .. n)
    end
  end)

  it("that grants no threads, parts are refused #unsanitized", function()
    local as_other = ""
    temp.run(folder, "chmod 777 " .. folder)
    if temp.output_of "id -u" == "0" then -- no number of processes limits root
      as_other = "setpriv --reuid 61234 --regid 61234 --clear-groups "
      if os.execute(as_other .. [[luajit -e 'require "luminary"' >/dev/null 2>&1]]) ~= 0 then
        return pending "no other user, or it cannot read the library"
      end
    end
    for n = 1, 4 do
      os.remove(folder .. "/x.safetensors")
      local text, code = run("%s prlimit --nproc=%d luajit %s", as_other, n, everything())
      assert_orderly(text, code, "ulimit -u " .. n)
    end
  end)

  -- Without LuaJIT's compiler: versions before August 2026 crash if memory ends while a trace ends at a C function
  -- (https://github.com/LuaJIT/LuaJIT/issues/1166 and 1502).
  it("that grants little address space, parts are refused #unsanitized", function()
    for _, kilobytes in ipairs {120000, 150000, 250000} do
      local _, text, code = temp.run(folder, ("ulimit -v %d; timeout 300 luajit -joff %s"):format(kilobytes,
        everything()))
      assert_orderly(text, code, "ulimit -v " .. kilobytes)
    end
  end)

  it("without /proc, /dev, /dev/shm and a /tmp to write to, parts are refused #unsanitized", function()
    local why = needs.mounts()
    if why then return pending(why) end
    for _, mounts in ipairs {
      "mount -t tmpfs none /proc", "mount -t tmpfs none /dev", "mount -t tmpfs -o ro none /dev/shm",
      "mount -t tmpfs none /dev; mount -t tmpfs none /proc",
    } do
      local text, code = run("env -u LD_PRELOAD unshare -m sh -c '%s; exec luajit %s'", mounts, everything())
      assert_orderly(text, code, mounts)
    end
    local script = everything(nil, "/media") -- a folder that no other spec uses
    local text, code = run("env -u LD_PRELOAD unshare -m sh -c 'mount -t tmpfs -o ro none /media; exec luajit %s'",
      script)
    assert_orderly(text, code, "a folder that is read-only")
    assert.matches("save: [^\n]*cannot write '/media/x.safetensors': Read%-only file system", text)
  end)

  it("that has changed its root, ops work and parts are refused #unsanitized", function()
    if temp.output_of "id -u" ~= "0" then return pending "needs root, for chroot" end
    os.execute("mkdir -p " .. folder .. "/root")
    local text, code = run("luajit %s", everything([[
      local ffi = require "ffi"
      ffi.cdef "int chroot(const char *); int chdir(const char *);"
      local lm = require "luminary"
      lm.nn.Sequential(lm.nn.Conv2d(1, 1, 1), lm.nn.ReLU(), lm.nn.Flatten(), lm.nn.Linear(1, 1))(lm.ones(1, 1, 1, 1))
      assert(ffi.C.chroot "]] .. folder .. [[/root" == 0 and ffi.C.chdir "/" == 0)
    ]], "/"))
    assert.equal(0, code, text)
    assert.matches("done\n$", text)
    assert.not_matches("product: ", text)
    assert.matches("svd: [^\n]*no file of luminary is found now; package.path or the root folder has changed\n", text)
    for line in text:gmatch "[^\n]+" do
      assert(line == "done" or line:find "not found: " or line:find "cannot ", line)
    end
  end)

  it("whose filter refuses a system call, parts are refused #unsanitized", function()
    if jit.arch ~= "x64" then return pending "the numbers of system calls are x86-64's" end
    local calls = {
      memfd_create = {319}, fallocate = {285}, madvise = {28}, setaffinity = {203}, getaffinity = {204},
      sigprocmask = {14}, sigaction = {13}, sigtimedwait = {128}, tgkill = {234}, sigaltstack = {131},
      clone = {56, 435}, socketpair = {53}, getrandom = {318}, readlink = {89}, setsockopt = {54}, getsockopt = {55},
      pidfd_open = {434}, shutdown = {48}, sendmsg = {46}, recvmsg = {47}, vfork = {57, 58}, execve = {59},
      flock = {73}, fsync = {74}, rename = {82}, fchmod = {91}, linkat = {265}, pipe2 = {293}, prlimit = {302},
      close_range = {436}, prctl = {157}, eventfd = {290}, ftruncate = {77}, sched_yield = {24}, wait4 = {61},
      poll = {7}, fcntl = {72}, kill = {62},
    }
    local plain = {"memfd_create", "getaffinity", "sigaction", "clone", "socketpair", "recvmsg", "poll"}
    if long then
      plain = {}
      for name in pairs(calls) do plain[#plain + 1] = name end
    end
    for _, name in ipairs(plain) do
      local text, code = run("luajit %s", everything(([[
        local ffi = require "ffi"
        ffi.cdef [=[
          struct sock_filter { uint16_t code; uint8_t yes, no; uint32_t k; };
          struct sock_fprog { unsigned short n; struct sock_filter *filter; };
          int prctl(int, long, const void *, long, long);
        ]=]
        local numbers = {%s}
        local filter = ffi.new("struct sock_filter[?]", #numbers + 3)
        filter[0] = {0x20, 0, 0, 0} -- loads the number
        for i, number in ipairs(numbers) do filter[i] = {0x15, #numbers - i + 1, 0, number} end
        filter[#numbers + 1], filter[#numbers + 2] = {6, 0, 0, 0x7fff0000}, {6, 0, 0, 0x50001} -- allows; EPERM
        assert(ffi.C.prctl(38, 1, nil, 0, 0) == 0)
        assert(ffi.C.prctl(22, 2, ffi.new("struct sock_fprog", {#numbers + 3, filter}), 0, 0) == 0)
      ]]):format(table.concat(calls[name], ", "))))
      assert_orderly(text, code, name)
    end
  end)
end)
