-- `luminary run`: ranks as real processes, from their environment to what is left of them.
local core = require "luminary.core"
local cause = require "luminary.cli.failure_cause"
local temp = require "spec.support.temp"
local within = require("spec.support.time").within
local command = "bin/luminary"

local folder = temp.during(setup, teardown)

-- First lines of the scripts of the ranks.
local PROLOGUE = [[
local ffi = require "ffi"
ffi.cdef "int usleep(unsigned); int kill(int, int); int getpid(void); int raise(int); void *signal(int, void *);"
local rank = tonumber(os.getenv "RANK")
local function sleep(seconds) ffi.C.usleep(seconds * 1e6) end
local function touch(name) io.open(os.getenv "FOLDER" .. "/" .. name, "w"):close() end
local function wait_for(name)
  for _ = 1, 3000 do if io.open(os.getenv "FOLDER" .. "/" .. name) then break end sleep(0.01) end
end
]]

local LIMIT = [[
ffi.cdef "int prlimit(int, int, const long *, long *); int getppid(void);"
local function limit(bytes) -- limits the size of the launcher's files
  assert(ffi.C.prlimit(ffi.C.getppid(), 1, ffi.new("long[2]", bytes, -1), nil) == 0)
end
]]

local function script(text) return temp.write(folder .. "/script.lua", PROLOGUE:gsub("\n", " ") .. text) end

-- Runs `luminary run options script` (made of `text`) for at most 120 s. Returns the exit code, standard output,
-- standard error and how long it took. `shell` may do something to $P, the launcher, meanwhile.
local function run(options, text, arguments, shell, redirect)
  local path = text and script(text) or ""
  local began = core.time()
  local code = os.execute(([[
    export FOLDER=%s; rm -f $FOLDER/launcher
    timeout -s KILL 120 sh -c 'echo $$ >$FOLDER/launcher; exec luajit "$@"' - %s run %s %s %s %s & W=$!
    exec 2>/dev/null
    until P=$(grep . $FOLDER/launcher); do sleep 0.01; done
    %s
    wait $W
  ]]):format(folder, command, options, path, arguments or "",
    redirect or (">%s/out 2>%s/err </dev/null"):format(folder, folder), shell or ""))
  local took = core.time() - began
  if redirect then return code / 256, "", "", took end
  return code / 256, temp.read(folder .. "/out"), temp.read(folder .. "/err"), took
end

-- Returns lines of a shell that wait for files that the ranks touch.
local function wait_for(...)
  local lines = {}
  for i, name in ipairs { ... } do
    lines[i] = ("for i in $(seq 1500); do [ -e %s/%s ] && break; sleep 0.02; done"):format(folder, name)
  end
  return table.concat(lines, "\n")
end

-- Processes whose command line holds `what`. Read here: a tool for each would take long where a sanitizer is preloaded.
local function alive(what)
  local found = {}
  local pipe = io.popen "ls /proc"
  for pid in pipe:lines() do
    local file = pid:match "^%d+$" and io.open("/proc/" .. pid .. "/cmdline")
    local words = file and (file:read "*a" or ""):gsub("%z", " ") or ""
    if file then file:close() end
    local program = words:match "^%S+"
    if program and (program:find "sleep" or program:find "luajit") and words:find(what, 1, true) then
      found[#found + 1] = pid
    end
  end
  pipe:close()
  return table.concat(found, " ")
end

local function none_left(what)
  for _ = 1, 50 do
    if alive(what) == "" then return end
    os.execute("sleep 0.1")
  end
  assert.equal("", alive(what))
end

local function sorted(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines, "\n")
end

describe("luminary run", function()
  it("prefixes whole lines, and keeps the two streams apart", function()
    local code, out, err = run("--nproc 2", [[
      io.write("one ", rank, "\ntwo") sleep(0.05) io.write(" ", rank, "\nlast")
      io.stderr:write("aside ", rank, "\n")
    ]])
    assert.equal(0, code)
    assert.equal("[rank 0] last\n[rank 0] one 0\n[rank 0] two 0\n[rank 1] last\n[rank 1] one 1\n[rank 1] two 1",
      sorted(out))
    assert.equal("[rank 0] aside 0\n[rank 1] aside 1", sorted(err))
  end)

  it("shows lines as they come, whatever happens to the rank then", function()
    local code, out = run("", [[print("before") ffi.C.raise(9)]])
    assert.equal(137, code)
    assert.equal("[rank 0] before\n", out)
  end)

  it("loses and tears no line of many", function()
    local code, out = run("--nproc 2", [[for i = 1, 20000 do print(i, ("x"):rep(i % 100)) end]])
    assert.equal(0, code)
    local at = { [0] = 0, 0 }
    for line in out:gmatch("[^\n]+") do
      local rank, i, x = line:match("^%[rank (%d)%] (%d+)\t(x*)$")
      rank, i = tonumber(rank), tonumber(i)
      assert(rank and i == at[rank] + 1 and #x == i % 100, line)
      at[rank] = i
    end
    assert.same({ [0] = 20000, 20000 }, at)
  end)

  it("gives each rank its environment and arguments", function()
    local names = { "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR",
      "LM_RESTART_COUNT" }
    local text = ([[
      local list = {}
      for name in ("%s"):gmatch("%%S+") do list[#list + 1] = name .. "=" .. os.getenv(name) end
      list[#list + 1] = table.concat(arg, ",")
      print(table.concat(list, " "))
      assert(tonumber(os.getenv "MASTER_PORT") > 0 and #os.getenv "LM_JOB" == 32 and #os.getenv "LM_TOKEN" == 32)
      assert(io.read() == nil)
    ]]):format(table.concat(names, " "))
    local want = {}
    for i = 0, 1 do
      want[i + 1] = ("[rank %d] RANK=%d WORLD_SIZE=2 LOCAL_RANK=%d LOCAL_WORLD_SIZE=2 NODE_RANK=0 GROUP_RANK=0 "
        .. "MASTER_ADDR=127.0.0.1 LM_RESTART_COUNT=0 --lr,0.1,two words"):format(i, i, i)
    end
    for _, spelling in ipairs { "--nproc 2", "--nproc=2", "--nproc_per_node=2", "--nproc-per-node 2 --use_env",
      "--standalone --nnodes=1 --nproc 3 --nproc 2 --" } do
      local code, out, err = run(spelling, text, "--lr 0.1 'two words'")
      assert.equal("", err)
      assert.equal(0, code)
      assert.equal(table.concat(want, "\n"), sorted(out))
    end
    local _, out = run("--nproc 2 --pass-local-rank", "print(table.concat(arg, ','))", "x")
    assert.equal("[rank 0] --local_rank=0,x\n[rank 1] --local_rank=1,x", sorted(out))
  end)

  it("keeps a token and a job id that are set, and the node's number", function()
    local text = [[print(os.getenv "LM_TOKEN", os.getenv "LM_JOB", rank, os.getenv "MASTER_PORT")]]
    core.setenv("LM_TOKEN", "secret")
    core.setenv("LM_JOB", "job 7")
    local _, out = run("--nproc 2 --nnodes 2 --node_rank 1 --master_addr somewhere --master_port 1234", text)
    core.setenv("LM_TOKEN")
    core.setenv("LM_JOB")
    assert.equal("[rank 2] secret\tjob 7\t2\t1234\n[rank 3] secret\tjob 7\t3\t1234", sorted(out))
    local _, alone, err = run("--nnodes 2 --node-rank 0 --master-addr somewhere", text)
    assert.equal("[rank 0] nil\tsomewhere:29500\t0\t29500\n", alone)
    assert.matches("set the same secret LM_TOKEN on every node", err)
  end)

  it("shares the cores among the ranks", function()
    local text = [[print(os.getenv "OMP_NUM_THREADS")]]
    local cores = core.process_cores()
    assert.equal(("[rank 0] %d\n"):format(cores), (select(2, run("", text))))
    local _, out = run("--nproc " .. cores, text)
    assert.matches("%[rank 0%] 1\n", out)
    _, out = run("--nproc cpu --dry-run", text)
    assert.matches("# rank " .. cores - 1, out, 1, true)
    assert.matches("OMP_NUM_THREADS=1 ", out, 1, true)
    _, out = run("--nproc " .. cores + 1 .. " --dry-run", text)
    assert.matches("OMP_NUM_THREADS=1 ", out, 1, true)
    core.setenv("OMP_NUM_THREADS", "5")
    _, out = run("--nproc 2", text)
    core.setenv("OMP_NUM_THREADS")
    assert.equal("[rank 0] 5\n[rank 1] 5", sorted(out))
  end)

  it("--dry-run shows what would run, as a shell takes it", function()
    local code, out = run("--nproc 2 --dry-run", [[print("it runs", arg[1])]], "\"it's\"")
    assert.equal(0, code)
    assert.not_matches("it runs\n", out)
    local line = out:match("# rank 1\n([^\n]+)")
    assert.matches("^RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 .* %S*luajit %S*bin/luminary %S*script.lua 'it'", line)
    local ok, text = temp.run(folder, line)
    assert(ok, text)
    assert.equal("it runs\tit's\n", text)
  end)

  it("gives standard input to a rank that is alone", function()
    temp.write(folder .. "/in", "from standard input")
    local redirect = (">%s/out 2>&1 <%s/in"):format(folder, folder)
    local code = run("", [[print(io.read "*a")]], nil, nil, redirect)
    assert.equal(0, code)
    assert.equal("[rank 0] from standard input\n", temp.read(folder .. "/out"))
  end)

  it("writes logs", function()
    local code = run("--nproc 2 --log-dir " .. folder .. "/a/log", [[
      io.write("out ", rank, "\nlast")
      io.stderr:write("err ", rank, "\n")
    ]])
    assert.equal(0, code)
    for rank = 0, 1 do
      assert.equal(("out %d\nlast"):format(rank), temp.read(("%s/a/log/rank%d.stdout"):format(folder, rank)))
      assert.equal(("err %d\n"):format(rank), temp.read(("%s/a/log/rank%d.stderr"):format(folder, rank)))
    end
    local other, _, err = run("--log-dir /dev/null/log", "")
    assert.equal(1, other)
    assert.matches("^luminary run: %-%-log%-dir: cannot write '/dev/null/log/rank0.stdout': ", err)
  end)
end)

describe("a log of --log-dir that cannot be written", function()
  it("is a warning, and continues once it can", function()
    local path = script(LIMIT .. [[
      for i = 1, 30 do
        if i == 11 or i == 21 then
          sleep(0.3)
          limit(i == 11 and 100 or -1)
        end
        print("line " .. i)
        io.stdout:flush()
        sleep(0.02)
      end
    ]])
    local ok, output = temp.run(folder, ([[bash -c 'trap "" XFSZ; set -o pipefail
      timeout 60 luajit %s run --log-dir %s/full %s 2>&1 | cat']]):format(command, folder, path))
    assert(ok, output)
    local lines = {}
    for i = 1, 30 do lines[i] = "line " .. i .. "\n" end
    assert.equal(table.concat(lines), temp.read(folder .. "/full/rank0.stdout"))
    assert.matches("luminary run: cannot write '[^\n]*/rank0.stdout': File too large", output)
    assert.matches("luminary run: '[^\n]*/rank0.stdout' is written again; 0 entries are lost\n", output)
  end)
end)

describe("a file of the launcher's own output that cannot be written", function()
  it("keeps the ranks running, and says what was lost", function()
    local path = script(LIMIT .. [[
      print "first"
      io.stdout:flush()
      sleep(0.3)
      limit(100)
      for _ = 1, 3000 do print(("x"):rep(1000)) end
      io.stdout:flush()
      sleep(0.5)
      if arg[1] == "again" then limit(-1) end
      print "last"
    ]])
    local function launch(argument)
      local began = core.time()
      local ok, output = temp.run(folder, ([[bash -c 'trap "" XFSZ
        timeout 60 luajit %s run %s %s >%s/full.out']]):format(command, path, argument, folder))
      assert(ok, output)
      within(core.time() - began, 15)
      return temp.read(folder .. "/full.out")
    end
    local text = launch "again"
    assert.matches("^%[rank 0%] first\n", text)
    local lost = tonumber(text:match "luminary run: (%d+) bytes of output are lost: File too large\n")
    assert.is_true(lost and lost > 1e6, text:sub(-200))
    assert.equal(#"[rank 0] first\n[rank 0] last\n" + 3000 * 1010,
      #text:gsub("\nluminary run: %d+ bytes[^\n]*\n", "") + lost)
    assert.matches("%[rank 0%] last\n$", text)
    assert.matches("^%[rank 0%] first\n", launch "never")
  end)
end)

describe("the options of luminary run", function()
  local function refused(options, ...)
    local code, out, err = run(options, "print 'started'")
    assert.equal(2, code)
    assert.equal("", out)
    for _, words in ipairs { ... } do assert.matches(words, err, 1, true) end
  end

  it("that are none name the nearest", function()
    refused("--nprco 2", "unrecognized argument '--nprco'; did you mean '--nproc'?", "luminary run --help")
    refused("--max_restart 2", "did you mean '--max-restarts'?")
    refused("--qqqqqqqq", "unrecognized argument '--qqqqqqqq'\n")
  end)

  it("that cannot be say what can", function()
    refused("--rdzv_backend=etcd", "--rdzv-backend etcd: nodes meet at --rdzv-endpoint host:port")
    refused("-m package", "-m: a rank runs a script")
    refused("--module package", "a rank runs a script")
    refused("--no-python", "a rank runs a Lua script")
    refused("--tee 3", "--log-dir")
    refused("--nnodes 1:4", "--nnodes MIN:MAX needs --rdzv tcp://HOST:PORT[,HOST:PORT...]")
    refused("--nnodes 1:4", "the hosts that may be the head of the job")
    for _, rdzv in ipairs {"file:///tmp/x", "a:1"} do
      refused("--nnodes 1:4 --rdzv " .. rdzv,
        "--nnodes MIN:MAX needs --rdzv tcp://HOST:PORT[,HOST:PORT...], got '" .. rdzv .. "'")
    end
    refused("--nnodes 1:4 --rdzv tcp://a:1,b:70000", "--rdzv must be tcp://HOST:PORT[,HOST:PORT...]")
    refused("--nnodes 1:4 --rdzv tcp://a:1 --node-rank 1", "the nodes of an elastic job number themselves")
    refused("--nnodes 1:4 --rdzv tcp://a:1 --master-addr b", "--rdzv says where to meet: leave --master-addr out")
    refused("--nnodes 4:1 --rdzv tcp://a:1",
      "--nnodes must be an integer of at least 1, or MIN:MAX with MIN at most MAX, got '4:1'")
    refused("--nnodes 1:4 --rdzv tcp://a:1 --backend mpi", "--nnodes MIN:MAX is not for --backend mpi")
    refused("--nnodes 1:4 --rdzv tcp://a:1 --node-timeout 0", "--node-timeout must be at least 0.5 s, got '0'")
    refused("--grace -1", "--grace must be a number of at least 0, got '-1'")
    refused("--grace 5 --backend mpi", "--grace cannot be used with --backend mpi: mpirun itself kills the ranks")
    refused("--nnodes two", "--nnodes must be an integer of at least 1, or MIN:MAX with MIN at most MAX, got 'two'")
    refused("--nnodes 2", "--nnodes 2 needs --node-rank, from 0 to 1")
    refused("--nnodes 2 --node-rank 0", "needs --master-addr")
    refused("--nnodes 2 --node-rank 2 --master-addr a", "--node-rank 2 is outside of 2 nodes")
    refused("--nnodes 2 --node-rank 0 --master-addr a --standalone", "--standalone means one node")
    refused("--nproc many", "--nproc must be a number from 1 to 512, auto, cpu or gpu, got 'many'")
    refused("--nproc 0", "got '0'")
    refused("--max-restarts -1", "--max-restarts must be an integer of at least 0, got '-1'")
    refused("--master-port 70000", "--master-port must be a port from 0 to 65535, got '70000'")
    refused("--dry-run=yes", "--dry-run takes no value, got 'yes'")
    if core.device_count("cuda") == 0 then refused("--nproc gpu", "no GPU is available") end
  end)

  it("need a script", function()
    local code, _, err = run("--nproc 2")
    assert.equal(2, code)
    assert.matches("SCRIPT is required", err)
    code, _, err = run("--nproc", nil)
    assert.equal(2, code)
    assert.matches("--nproc requires a value", err, 1, true)
    code, _, err = run("/nonexistent/script.lua")
    assert.equal(2, code)
    assert.matches("luminary run: /nonexistent/script.lua: No such file", err)
  end)

  it("--help", function()
    local code, out = run("--help")
    assert.equal(0, code)
    for _, word in ipairs { "usage: luminary run", "--nproc", "--max-restarts", "--log-dir", "LM_TOKEN" } do
      assert.matches(word, out, 1, true)
    end
  end)
end)

describe("a rank's failure", function()
  -- Runs rank 1's failure; the other rank continues for a moment, and ends well.
  local function fail(how, options)
    return run(options or "--nproc 2", ("if rank == 1 then %s end sleep(0.3)"):format(how))
  end

  it("is named last, with its text and traceback", function()
    local code, _, err = fail [[local function inner() error("boom\nand more") end inner()]]
    assert.equal(1, code)
    local first, rest = err:match("\nluminary run: ([^\n]+)\n(.*)$")
    assert.matches("^rank 1 on %S+, pid %d+, failed with exit code 1$", first)
    assert.matches("^  %S*script.lua:1: boom\n  and more\n  stack traceback:\n  .*in function 'inner'\n", rest)
    assert.matches("in main chunk\n$", rest)
  end)

  it("is named with what can be read of its text", function()
    local code, _, err = fail [[error("bad \0 byte")]]
    assert.equal(1, code)
    assert.matches("failed with exit code 1\n  %S*script.lua:1: bad \\0 byte\n", err)
    local _, _, long = fail [[error("bad " .. ("x"):rep(1e7) .. " the end")]]
    assert.matches("failed with exit code 1\n  %S*script.lua:1: bad x[^\n]*bytes[^\n]* the end\n", long)
    assert(#long < 10000, #long)
  end)

  it("is that ranks made different calls, where none of them is to blame", function()
    local code, _, err = run("--nproc 2", [[
      local lm = require "luminary"
      lm.dist.init_process_group("gloo", {timeout = 20})
      lm.dist.all_reduce(lm.ones { 4 + rank })
    ]])
    assert.equal(1, code)
    assert.matches("luminary run: ranks made different calls\n  [^\n]*all_reduce: ranks 0 and 1 made different "
      .. "calls: rank 0 on [^\n]* float32 %[4%] at [^\n]*, rank 1 on [^\n]* float32 %[5%] at ", err)
  end)

  it("gives its exit code, or 128 and the signal", function()
    local watched = (core.getenv "LD_PRELOAD" or ""):find "asan" -- AddressSanitizer makes an exit code of a SIGSEGV
    for how, want in pairs {
      ["os.exit(3)"] = { 3, "failed with exit code 3" },
      [watched and "os.exit(4)" or "ffi.C.raise(11)"] = watched and { 4, "failed with exit code 4" }
        or { 139, "was killed by SIGSEGV" },
      ["ffi.C.raise(6)"] = { 134, "was killed by SIGABRT" },
      ["ffi.C.raise(9)"] = { 137, "was killed by SIGKILL: from outside, or by the system for want of memory" },
    } do
      local code, _, err = fail(how)
      assert.equal(want[1], code)
      assert.matches("^luminary run: rank 1 on %S+, pid %d+, " .. want[2]:gsub("%p", "%%%0") .. "\n$", err)
    end
  end)

  it("ends the others, stubborn and stopped ones too", function()
    local code, _, err, took = run("--nproc 3", [[
      if rank == 0 then ffi.C.signal(15, ffi.cast("void *", 1)) touch "stubborn" sleep(300)
      elseif rank == 1 then touch "stopped" ffi.C.kill(ffi.C.getpid(), 19) sleep(300) end
      wait_for "stubborn" wait_for "stopped" sleep(0.1) error "the cause"
    ]])
    assert.equal(1, code)
    assert.matches("rank 2 on", err)
    assert.matches("the cause", err)
    assert(took > 2.5, took)
      within(took, 6)
    none_left(folder)
  end)

  it("takes what the ranks started with it", function()
    local code = run("--nproc 2", [[
      os.execute("sleep 7071 & setsid sleep 7071 & (setsid sh -c 'sleep 7071; true' &)")
      if rank == 1 then os.exit(4) end
    ]])
    assert.equal(4, code)
    assert.equal("", alive "7071")
    assert.equal(0, (run("", [[os.execute("setsid sleep 7071 &")]])))
    assert.equal("", alive "7071")
  end)

  it("is the cause for a rank that heard of it while it joined the group", function()
    local code, _, err = run("--nproc 2", [[
      local core, dist = require "luminary.core", require("luminary").dist
      local group = core.dist_group
      function core.dist_group(world, ...)
        if rank == 1 then error "boom" end
        for _ = 1, 3000 do if core.dist_cause(world) then break end sleep(0.01) end
        return group(world, ...)
      end
      local _, problem = pcall(dist.init_process_group)
      if rank == 1 then sleep(0.5) end
      error(problem, 0)
    ]])
    assert.equal(1, code)
    assert.matches("rank 0%][^\n]*rank 1 on [^\n]* failed[^\n]*boom\n", err)
    assert.matches("\nluminary run: rank 1 on %S+, pid %d+, failed with exit code 1\n  [^\n]*boom\n", err)
  end)

  it("is the cause even if the launcher has to end that rank", function()
    local code, _, err = run("--nproc 2", [[
      if rank == 1 then touch "ready" sleep(60) end
      sleep(0.2)
      io.open(os.getenv "LM_ERROR_FILE", "w"):write('{"rank": 0, "kind": "frozen", "cause_rank": 1, "message": "hm"}')
      os.exit(5)
    ]])
    assert.equal(5, code)
    assert.matches("luminary run: rank 1 on %S+, pid %d+, was frozen\n  rank 0 reported:\n  hm\n$", err)
  end)

  it("is a stopped rank, where no other is left to miss it", function()
    local before = core.getenv "LM_HEARTBEAT_TIMEOUT"
    core.setenv("LM_HEARTBEAT_TIMEOUT", "1")
    local code, _, err, took = run("--nproc 2", "if rank == 1 then ffi.C.raise(19) end")
    core.setenv("LM_HEARTBEAT_TIMEOUT", before)
    assert.equal(137, code)
    assert.matches("rank 1 on %S+, pid %d+, was stopped while all others ended, and did not continue\n$", err)
    within(took, 6)
  end)

  it("starts all again under --max-restarts", function()
    local code, out, err = run("--nproc 2 --max-restarts 2", [[
      local round = tonumber(os.getenv "LM_RESTART_COUNT")
      print(round, os.getenv("LM_JOB"):match("^%x+(.*)$"))
      if round < 2 and rank == 1 then error("round " .. round) end
    ]])
    assert.equal(0, code)
    assert.equal("[rank 0] 0\t\n[rank 0] 1\t.1\n[rank 0] 2\t.2\n[rank 1] 0\t\n[rank 1] 1\t.1\n[rank 1] 2\t.2",
      sorted(out))
    assert.matches("round 0.*restart 1 of 2.*round 1.*restart 2 of 2", err)
    local last, _, again = run("--max-restarts 1", "os.exit(6)")
    assert.equal(6, last)
    assert.matches("restart 1 of 1\nluminary run: rank 0 on %S+, pid %d+, failed with exit code 6\n$", again)
  end)
end)

describe("signals", function()
  local WAIT = [[touch(rank) for _ = 1, 3000 do sleep(0.1) end]]

  it("are passed on", function()
    for name, number in pairs { INT = 2, TERM = 15, HUP = 1 } do
      os.execute(("rm -f %s/0 %s/1"):format(folder, folder))
      local code, _, err, took = run("--nproc 2", WAIT, nil, wait_for("0", "1") .. "\nkill -" .. name .. " $P")
      assert.equal(128 + number, code)
      assert.matches("SIG" .. name .. " passed on to the ranks", err)
      assert.matches("luminary run: stopped by SIG" .. name .. "\n$", err)
      within(took, 10)
      none_left(folder)
    end
  end)

  it("SIGTERM goes to a rank alone, which may need its workers to save", function()
    os.execute(("rm -f %s/0 %s/worker"):format(folder, folder))
    local code, out = run("", [[
      local lm = require "luminary"
      lm.checkpoint.is_preempted()
      os.execute("sh -c 'trap \"touch $FOLDER/worker\" TERM; while :; do sleep 0.05; done' & sleep 0.2")
      touch(rank)
      while not lm.checkpoint.is_preempted() do sleep(0.02) end
      sleep(0.3)
      print "saved"
    ]], nil, wait_for("0") .. "\nkill -TERM $P")
    assert.equal(0, code)
    assert.equal("[rank 0] saved\n", out)
    assert.is_false(temp.exists(folder .. "/worker"))
    none_left(folder)
  end)

  it("leave a rank time to end well", function()
    os.execute(("rm -f %s/0"):format(folder))
    local code, out = run("", [[
      local ok, problem = pcall(function() touch(rank) for _ = 1, 100 do sleep(0.1) end end)
      sleep(0.5)
      print(ok, problem:match("interrupted"))
    ]], nil, wait_for("0") .. "\nkill -INT $P")
    assert.equal(0, code)
    assert.equal("[rank 0] false\tinterrupted\n", out)
  end)

  it("interrupt a rank that waits for the others, in the words of an interrupt", function()
    os.execute(("rm -f %s/0 %s/1"):format(folder, folder))
    local code, _, err, took = run("--nproc 2", [[
      local dist = require("luminary").dist
      dist.init_process_group()
      touch(rank)
      if rank == 0 then -- rank 0 fails only after rank 1 has had its signal, too
        local _, why = pcall(function() for _ = 1, 60 do sleep(1) end end)
        sleep(1)
        error(why, 0)
      end
      dist.barrier()
    ]], nil, wait_for("0", "1") .. "\nsleep 0.3; kill -INT $P")
    assert.equal(130, code)
    assert.matches("%[rank 1%] luminary: [^\n]*script%.lua:9: interrupted!\n", err)
    within(took, 30)
    none_left(folder)
  end)

  it("give a rank the seconds of --grace, and no more", function()
    os.execute(("rm -f %s/0"):format(folder))
    local code, out, _, took = run("--grace 1.5", [[
      ffi.C.signal(15, ffi.cast("void *", 1))
      local core = require "luminary.core"
      local began = core.time()
      touch(rank)
      for _ = 1, 1000 do sleep(0.01) print(core.time() - began) io.stdout:flush() end
    ]], nil, wait_for("0") .. "\nkill -TERM $P")
    assert.equal(143, code)
    assert.is_true(tonumber(out:match "%[rank 0%] ([%d.]+)\n$") > 1.2, out:sub(-40))
    within(took, 8)
    none_left(folder)
  end)

  it("kill with the second Ctrl-C", function()
    os.execute(("rm -f %s/0 %s/1"):format(folder, folder))
    local code, _, err, took = run("--nproc 2", [[ffi.C.signal(2, ffi.cast("void *", 1)) touch(rank) sleep(300)]], nil,
      wait_for("0", "1") .. "\nkill -INT $P; sleep 0.3; kill -INT $P")
    assert.equal(130, code)
    assert.matches("stopped by SIGINT", err)
    within(took, 10)
    none_left(folder)
  end)

  it("work while nobody reads the output", function()
    assert(os.execute(("rm -f %s/0 %s/pipe; mkfifo %s/pipe"):format(folder, folder, folder)) == 0)
    local code, _, _, took = run("", [[touch(rank) for _ = 1, 1e5 do print(("x"):rep(100)) end]], nil,
      wait_for "0" .. "\nsleep 0.5; kill -TERM $P", "1<>" .. folder .. "/pipe 2>/dev/null </dev/null")
    assert.equal(143, code)
    within(took, 10)
  end)

  it("include the end of our reader", function()
    local ok, text = temp.run(folder, ("timeout 60 %s run --nproc 2 %s 2>%s/err | head -n 1"):format(command,
      script [[for i = 1, 200 do print(i) sleep(0.1) end]], folder))
    assert(ok, text)
    assert.matches("^%[rank %d%] 1\n$", text)
    none_left(folder)
  end)

  it("that kill the launcher take its ranks and their children", function()
    os.execute(("rm -f %s/0 %s/1"):format(folder, folder))
    local code, _, _, took = run("--nproc 2", [[os.execute("sleep 7072 &") ]] .. WAIT, nil,
      wait_for("0", "1") .. "\nkill -9 $P")
    assert.equal(137, code)
    within(took, 10)
    none_left(folder)
    none_left "7072"
  end)
end)

describe("the first cause", function()
  local function rank(number, order, fields)
    local r = { rank = number, pid = 100 + number, order = order, code = 1 }
    for key, value in pairs(fields or {}) do r[key] = value end
    return r
  end
  local function own(text) return { rank = 0, kind = "error", message = text } end
  local function told(number, kind)
    return { kind = kind, cause_rank = number, message = "rank " .. number .. " " .. kind }
  end

  it("is nobody's when all went well", function()
    assert.same({ n = 2, nil, 0 }, { n = 2, cause.of({ rank(0, 2, { code = 0 }), rank(1, 1, { code = 0 }) }) })
  end)

  it("is never a consequence", function()
    local text, code = cause.of {
      rank(0, 1, { record = told(2, "died") }), rank(1, 2, { record = told(2, "died") }),
      rank(2, 3, { code = 139, signal = 11 }),
    }
    assert.matches("^rank 2 on .*killed by SIGSEGV", text)
    assert.equal(139, code)
    text, code = cause.of { rank(0, 1, { code = 3 }), rank(1, 2, { record = own "boom" }) }
    assert.matches("^rank 1 on .*\n  boom$", text)
    assert.equal(1, code)
  end)

  it("is the first of several", function()
    local text, code = cause.of {
      rank(0, 2, { record = own "late" }), rank(1, 1, { record = own "early", code = 7 }),
      rank(2, 3, { code = 143, signal = 15, ended_by_us = true }),
    }
    assert.matches("^rank 1 on .*\n  early$", text)
    assert.equal(7, code)
  end)

  it("may have ended well, or be elsewhere", function()
    local text, code = cause.of { rank(0, 1, { code = 0 }), rank(1, 2, { record = told(0, "left") }) }
    assert.matches("^rank 0 on .*ended, with exit code 0, while others waited for it\n", text)
    assert.matches("\n  rank 1 reported:\n  rank 0 left$", text)
    assert.equal(1, code)
    text, code = cause.of { rank(0, 1, { record = told(5, "error") }) }
    assert.matches("^rank 5, of another node, failed first\n  rank 0 reported:\n  rank 5 error$", text)
    assert.equal(1, code)
  end)

  it("is the signal that stopped all, unless something failed before", function()
    local text, code = cause.of({ rank(0, 1, { code = 130, signal = 2, after_signal = true }) }, 2)
    assert.equal("stopped by SIGINT", text)
    assert.equal(130, code)
    text, code = cause.of({ rank(0, 2, { code = 130, signal = 2, after_signal = true }), rank(1, 1, { code = 9 }) }, 2)
    assert.matches("^rank 1 on .*exit code 9", text)
    assert.equal(9, code)
  end)
end)

describe("a supervisor", function()
  it("says what is wrong", function()
    local ok, text = temp.run(folder, command .. " " .. temp.write(folder .. "/script.lua", [[
      local core = require "luminary.core"
      local function problem(f, ...) return (tostring(select(2, pcall(f, ...))):gsub("^%S+:%d+: ", "")) end
      local s = core.process_supervisor()
      print(problem(core.process_supervisor))
      print(problem(s.start, s, {argv = {"/nonexistent/program"}, env = {}}))
      print(problem(s.start, s, {argv = {}, env = {}}))
      print(problem(s.start, s, {argv = {1, {}}, env = {}}))
      print(problem(s.start, s, {argv = {"/bin/true"}}))
      print(problem(s.start, s))
      print(problem(s.next, {}, 1))
      print(problem(s.print, s, 3, "x"))
      s:signal(7, 9)
      s:close()
      s:close()
      print(problem(s.next, s, 0))
      core.process_supervisor():close()
      print(core.signal_name(9), core.signal_name(64))
    ]]))
    assert(ok, text)
    local lines = {}
    for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
    local want = {
      "this process already has a supervisor", "cannot start '/nonexistent/program': No such file or directory",
      "argv must have at least the program's path", "argv[1] must be a string without a NUL byte, got 1",
      "env must be a list of strings, got nil", "plan is missing; expected a table",
      "must be a supervisor, got a table", "stream must be 1 or 2, got 3",
      "the supervisor must be open, got a closed one", "SIGKILL\tsignal 64",
    }
    assert.equal(#want, #lines, text)
    for i, words in ipairs(want) do assert.matches(words, lines[i], 1, true) end
  end)
end)
