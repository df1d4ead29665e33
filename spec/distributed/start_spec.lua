-- However ranks are started, they find each other: mpirun, srun, torchrun, several nodes, one address family or the
-- other, several interfaces. What cannot be says why, in time.
local lm = require "luminary"
local core = require "luminary.core"
local environment = require "luminary.distributed.rank_from_environment"
local ranks, temp = require "spec.support.ranks", require "spec.support.temp"
local netns, slurm = require "spec.support.netns", require "spec.support.slurm"
local needs, with_lookup = require "spec.support.needs", require "spec.support.with_lookup"
local within = require("spec.support.time").within

local function have(program) return os.execute("command -v " .. program .. " >/dev/null 2>&1") == 0 end

local folder = temp.during(setup, teardown)

-- Two worlds one after the other; or what went wrong. arg: timeout [, init_method].
local MEET = [[
local lm = require "luminary"
local dist = lm.dist
for _ = 1, 2 do
  local ok, problem = pcall(dist.init_process_group, {timeout = tonumber(arg[1]), init_method = arg[2]})
  if not ok then print(problem) os.exit(7) end
  io.write(("%d\t%d\n"):format(dist.get_rank(), dist.all_reduce(lm.ones(1)):item())) -- at once: ranks share a pipe
  dist.destroy_process_group()
end
]]

local function sorted(text)
  local lines = {}
  for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
  table.sort(lines)
  return table.concat(lines, "\n")
end

-- Returns what n ranks print that have met.
local function met(n)
  local lines = {}
  for i = 0, 2 * n - 1 do lines[i + 1] = ("%d\t%d"):format((i - i % 2) / 2, n) end
  return table.concat(lines, "\n")
end

-- Runs a command for at most 120 s; {FOLDER} and {MEET} in it are the spec's folder and a script.
local function run(command)
  temp.write(folder .. "/meet.lua", MEET)
  local before = lm.time()
  local ok, text, code = temp.run(folder, (("timeout -k 2 120 %s"):format(command):gsub("{(%w+)}",
    { FOLDER = folder, MEET = folder .. "/meet.lua", LUAJIT = ranks.ours .. "luajit" })))
  return ok, text, code, lm.time() - before
end

-- Ranks that know nothing of each other but by `env` and env_of(rank).
local function start(n, script, options)
  options.n, options.script = n, script
  local env = { WORLD_SIZE = false, RANK = false, LOCAL_RANK = false, LOCAL_WORLD_SIZE = false, MASTER_ADDR = false,
    MASTER_PORT = false, LM_JOB = false, LM_TOKEN = "t", ME = false }
  for name, value in pairs(options.env or {}) do env[name] = value end
  options.env = env
  return ranks.start(options)
end

local function assert_met(got, n)
  for rank = 0, n - 1 do assert.equal(("%d\t%d\n%d\t%d\n"):format(rank, n, rank, n), got[rank].output, got.text) end
end

describe("mpirun", function()
  local mpirun = ranks.others .. "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe "
  if not have "mpirun" or select(2, core.dist_pmix()):find "this build has no" then
    return pending("needs Open MPI, and a build with PMIx")
  end
  -- Returns a command under which rank `who` never comes.
  local function without(who)
    return ("sh -c 'test $OMPI_COMM_WORLD_RANK = %d && exec sleep 25; exec \"$@\"' - {LUAJIT} {MEET} 1"):format(who)
  end

  for n = 2, 3 do
    it(("needs nothing else to start %d ranks"):format(n), function()
      local ok, text = run(mpirun .. "-np " .. n .. " {LUAJIT} {MEET} 20")
      assert(ok, text)
      assert.equal(met(n), sorted(text)) -- mpirun adds nothing, and nothing is about a token
    end)
  end

  it("does not hide that a rank is missing", function()
    for who, words in pairs { [0] = "rank 0 has not published its address yet", "rank 1 has not joined" } do
      local _, text, _, took = run(mpirun .. "-np 2 " .. without(who))
      assert.matches("init_process_group: timed out after 1 s: " .. words, text)
      within(took, 20, text)
    end
  end)

  it("is second to an address that is given", function()
    local port = ranks.free_port()
    local ok, text = run(("env LM_TOKEN=t MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s -np 2 {LUAJIT} {MEET} 20")
      :format(port, mpirun))
    assert(ok, text)
    assert.equal(met(2), sorted(text))
  end)

  it("without PMIx says what would do", function()
    local _, text = run(mpirun .. "-np 2 env -u PMIX_NAMESPACE {LUAJIT} {MEET} 20")
    assert.matches("mpirun has 2 processes but no address to meet at, and PMIx has none "
      .. "(PMIX_NAMESPACE and PMIX_RANK are not set, as ", text, 1, true)
    assert.matches("set MASTER_ADDR", text, 1, true)
  end)

  it("may start nodes of its own by another way", function()
    local hosts, why = netns.make("lmstart", {
      a = { eth0 = { "one", "10.97.1.1/24" } }, b = { eth0 = { "one", "10.97.1.2/24" } },
    })
    if not hosts then return pending(why) end
    finally(function() hosts:remove() end)
    temp.write(folder .. "/login", ("#!/bin/sh\nshift\nexec %s %s sh -c \"$*\"\n"):format(hosts.b, ranks.others))
    os.execute("chmod +x " .. folder .. "/login")
    local function job(what)
      return run(hosts.a .. " " .. mpirun .. "--host a:1,b:1 -np 2 --mca plm_rsh_agent {FOLDER}/login "
        .. "-x LUA_PATH -x LUA_CPATH " .. what)
    end
    local ok, text = job "{LUAJIT} {MEET} 20"
    assert(ok, text)
    text = text:gsub("[^\n]*plm:rsh: Warning: setpgid[^\n]*\n", "") -- a race inside mpirun, on a busy machine
    assert.equal(met(2), sorted(text))
    local _, missing, _, took = job(without(0))
    assert.matches("timed out after 1 s: rank 0 has not published its address yet", missing)
    within(took, 20, text)
  end)
end)

describe("Slurm #unsanitized", function()
  it("has a short form for lists of hosts, of which the first counts", function()
    for list, first in pairs {
      ["node01"] = "node01", ["node[01-03,7],x5"] = "node01", ["node[7,01-03]"] = "node7", ["a,b"] = "a",
      ["rack[1-2]n[08-12]"] = "rack1n08", ["rack[3,1]n[5]x,y"] = "rack3n5x", ["n-[0010-0100].cluster.org"] =
      "n-0010.cluster.org",
    } do
      assert.equal(first, environment.first_host(list))
    end
  end)

  -- Returns the variables of a step as srun describes it to its tasks.
  local function step(more)
    local env = { SLURM_STEP_NUM_TASKS = 2, SLURM_STEP_NODELIST = "localhost", SLURMD_NODENAME = "localhost",
      SLURM_JOB_ID = 4000 + ranks.free_port(), SLURM_STEP_ID = 0 }
    for name, value in pairs(more or {}) do env[name] = value end
    return { args = 20, env = env, env_of = function(rank) return { SLURM_PROCID = rank, SLURM_LOCALID = rank } end }
  end

  it("steps meet on their first host, at a port that follows from their number", function()
    assert_met(start(2, MEET, step()):wait(), 2)
    assert_met(start(2, MEET, step { MASTER_ADDR = "127.0.0.1", MASTER_PORT = ranks.free_port(),
      SLURM_STEP_NODELIST = "elsewhere" }):wait(), 2)
    local other = step() -- as mpi=pmi2 does
    other.env_of = function(rank) return { PMI_RANK = rank, PMI_SIZE = 2 } end
    assert_met(start(2, MEET, other):wait(), 2)
  end)

  it("steps whose rank 0 is elsewhere say so", function()
    local elsewhere = step { SLURMD_NODENAME = "x7", SLURM_STEP_NODELIST = "x[2,7]" }
    elsewhere.args = 0.5
    local got = start(2, MEET, elsewhere):wait()
    assert.matches("rank 0 runs on x7, but the other ranks look for it on x2, the step's first node; "
      .. "set MASTER_ADDR to x7", got[0].output, 1, true)
  end)

  it("steps of a job without a number are not understood", function()
    local odd = step { SLURM_JOB_ID = "x" }
    local got = start(2, MEET, odd):wait()
    assert.matches("srun has 2 processes but no address to meet at", got[0].output, 1, true)
  end)

  it("jobs have variables of steps in their scripts", function()
    assert.equal("0\t1\n0\t1\n", start(1, MEET, { args = 20, env = { SLURM_NTASKS = 2, SLURM_PROCID = 0,
      SLURM_JOB_ID = 7, SLURM_JOB_NODELIST = "x[2,7]" } }):wait()[0].output)
  end)

  it("runs all that", function()
    local cluster, why = slurm.start()
    if not cluster then return pending(why) end
    finally(function() cluster:stop() end)
    local plugins = select(2, run(cluster.env .. " srun --mpi=list"))
    for _, mpi in ipairs { "none", "pmi2", "pmix" } do
      if plugins:find(mpi, 1, true) and (mpi ~= "pmix" or have "mpirun") then
        local ok, text = run(("%s LM_TOKEN=t srun -Q --mpi=%s -n 3 --overcommit {LUAJIT} {MEET} 10"):format(cluster.env,
          mpi))
        assert(ok, mpi .. ": " .. text)
        assert.equal(met(3), sorted(text))
      end
    end
    local ok, text = run(cluster.env .. " sbatch -n 2 --overcommit -o {FOLDER}/batch "
      .. "--wrap \"{LUAJIT} {MEET} 5; echo end\" "
      .. "&& for i in $(seq 100); do grep -sq end {FOLDER}/batch && break; sleep 0.1; done")
    assert(ok, text)
    assert.equal("0\t1\n0\t1\nend\n", temp.read(folder .. "/batch"))
  end)
end)

describe("another launcher", function()
  it("that gives a rank alone is not overheard", function()
    local got = start(1, MEET, { args = 1, env = { PMIX_RANK = 1 } }):wait()
    assert.matches("PMIX_RANK = 1, but the number of processes is unknown; set WORLD_SIZE too", got[0].output, 1, true)
  end)
end)

describe("PMIx without its server", function()
  it("is an error on every rank, at once", function()
    if select(2, core.dist_pmix()):find "this build has no" then return pending "this build has no PMIx" end
    for rank = 0, 1 do
      local got = start(1, MEET, { args = 20, env = { PMIX_NAMESPACE = "gone", PMIX_RANK = rank,
        OMPI_COMM_WORLD_SIZE = 2, OMPI_COMM_WORLD_RANK = rank } }):wait()
      assert(got[0].code ~= 0, got.text)
      within(got[0].seconds, 5, got.text)
      assert.matches("cannot reach the launcher's PMIx server (PMIx_Init: ", got[0].output, 1, true)
      assert.matches("set MASTER_ADDR (the host of rank 0) and MASTER_PORT", got[0].output, 1, true)
    end
  end)
end)

describe("luminary run --rdzv", function()
  local path
  before_each(function() path = folder .. "/meeting" end)
  local luminary = "luajit " .. ranks.luminary .. " run "

  -- Runs several commands at once; returns their output together, and whether each went well.
  local function together(...)
    local lines = {}
    for i, command in ipairs { ... } do
      lines[#lines + 1] = ("((%s) >{FOLDER}/out%d 2>&1; echo $? >>{FOLDER}/out%d) & "):format(command, i, i)
    end
    temp.write(folder .. "/together.sh", (table.concat(lines, "\n") .. "\nwait"):gsub("{(%w+)}",
      { FOLDER = folder, MEET = folder .. "/meet.lua", PATH = path }))
    run("sh {FOLDER}/together.sh")
    local texts = {}
    for i = 1, select("#", ...) do texts[i] = temp.read(("%s/out%d"):format(folder, i)) end
    return texts
  end

  local function gone() assert.equal(1, select(3, temp.run(folder, "ls -d " .. path .. "*")) > 0 and 1) end

  local node = luminary .. "--nnodes 2 --nproc 2 --rdzv file://{PATH} "

  it("on a file needs no addresses and no numbers of nodes", function()
    for _, left in ipairs { "", ("luminary 127.0.0.1:%d 0123456789abcdef\n"):format(ranks.free_port()) } do
      temp.write(path, left) -- left by an earlier job
      local texts = together(node .. "{MEET} 20", node .. "{MEET} 20")
      local both = table.concat(texts)
      for rank = 0, 3 do assert.matches(("[rank %d] %d\t4\n[rank"):format(rank, rank):sub(1, -6), both, 1, true) end
      assert.matches("\n0\n$", texts[1])
      assert.matches("\n0\n$", texts[2])
      assert.not_matches("LM_TOKEN", both)
      gone()
    end
  end)

  it("on a file leaves alone what is there and none of its own", function()
    for _, place in ipairs { "", ".nodes" } do
      for kind, make in pairs {
        ["exists and is not a rendezvous file"] = function() temp.write(path .. place, "a document\n") end,
        ["a FIFO"] = function() os.execute("mkfifo " .. path .. place) end,
      } do
        make()
        local function state()
          return select(2, temp.run(folder, (("ls -l --time-style=full-iso {}; test -f {} && cat {}"):gsub("{}",
            path .. place))))
        end
        local before, began = state(), lm.time()
        local text = table.concat(together(node .. "{MEET} 10", node .. "{MEET} 10"))
        local words = place == "" and kind or "it must be absent or empty"
        assert.matches(words, text, 1, true)
        assert.matches(path .. place, text, 1, true)
        within(lm.time() - began, 10)
        assert.equal(before, state())
        os.remove(path .. place)
        gone()
      end
    end
  end)

  it("on a file leaves no number taken, however a node ends", function()
    temp.write(folder .. "/stay.lua", "print 'here' io.stdout:flush() os.execute 'sleep 20'")
    together(node .. "{FOLDER}/stay.lua & P=$!; until grep -q here {FOLDER}/out1; do sleep 0.05; done; kill -9 $P")
    local texts = together(node .. "{MEET} 20", node .. "--node-rank 1 {MEET} 20")
    assert.matches("\n0\n$", texts[1])
    assert.matches("%[rank 2%] 2\t4\n", texts[2])
    gone()
  end)

  it("on a file that another job uses is refused", function()
    temp.write(folder .. "/stay.lua", "print 'here' io.stdout:flush() os.execute 'sleep 20'")
    local waits = " & P=$!; until grep -q here {FOLDER}/out1; do sleep 0.05; done; "
    local text = together(node .. "--node-rank 0 {FOLDER}/stay.lua" .. waits .. node .. "--node-rank 0 {MEET} 5; "
      .. node .. "--node-rank 1 {FOLDER}/stay.lua >{FOLDER}/out2 & Q=$!; "
      .. "until grep -q here {FOLDER}/out2; do sleep 0.05; done; " .. node .. "{MEET} 5; kill -9 $P $Q")[1]
    assert.matches("--rdzv file://" .. path .. ": another `luminary run` is already node 0; is another job",
      text, 1, true)
    assert.matches("--rdzv file://" .. path .. ": all 2 nodes have already joined; is another job", text, 1, true)
    os.remove(path .. ".nodes") -- killed, nobody tidies up
  end)

  it("says that node 0 does not come", function()
    local text = together(node .. "--node-rank 1 {MEET} 1")[1]
    assert.matches("init_process_group: timed out after 1 s: rank 0 has not published its address yet", text, 1, true)
    gone()
  end)

  it("on a file takes a fresh one for each round, and each job's", function()
    temp.write(folder .. "/again.lua", "print(os.getenv 'LM_RENDEZVOUS', os.getenv 'LM_JOB', os.getenv 'MASTER_ADDR')"
      .. " os.exit(1)")
    local text = together("env LM_JOB=j " .. luminary .. "--rdzv file://{PATH} --max-restarts 1 {FOLDER}/again.lua")[1]
    assert.matches(("[rank 0] file://%s\tj\tnil\n"):format(path), text, 1, true)
    assert.matches(("[rank 0] file://%s.1\tj.1\tnil\n"):format(path), text, 1, true)
    local alone = together("env LM_RENDEZVOUS=file:///nowhere/x " .. luminary .. "--nproc 2 {MEET} 10")[1]
    assert.matches("[rank 1] 1\t2", alone, 1, true)
  end)

  local function dry(options)
    temp.write(folder .. "/meet.lua", MEET)
    local _, text, code = temp.run(folder, luminary .. "--dry-run " .. options .. " " .. folder .. "/meet.lua")
    return text, code
  end

  it("takes an address too, and torchrun's words for it", function()
    for _, options in ipairs { "--rdzv tcp://h1:1234", "--rdzv-endpoint h1:1234",
      "--rdzv-backend=c10d --rdzv-endpoint=h1:1234", "--rdzv_backend static --rdzv_endpoint h1:1234 --rdzv_id 77" } do
      local text, code = dry("--nnodes 2 --node-rank 1 " .. options)
      assert.equal(0, code, text)
      assert.matches("RANK=1 .*MASTER_ADDR=h1 MASTER_PORT=1234", text)
      assert.equal(options:find "77" and "77" or "h1:1234", text:match "LM_JOB=(%S+)")
    end
    assert.matches("MASTER_ADDR=h1 MASTER_PORT=29500", dry "--nnodes 2 --node-rank 1 --rdzv-endpoint h1", 1, true)
    assert.matches("MASTER_ADDR=::1 MASTER_PORT=1234", dry "--nnodes 2 --node-rank 1 --rdzv tcp://[::1]:1234", 1, true)
    assert.matches("MASTER_ADDR=localhost MASTER_PORT=[1-9]", dry "--rdzv-backend c10d --rdzv-endpoint localhost:0")
    assert.matches("MASTER_ADDR=127.0.0.1 ", dry "--standalone --rdzv-backend c10d", 1, true)
  end)

  it("knows its number in a Slurm step of that many nodes", function()
    local text = select(2, temp.run(folder, "env SLURM_STEP_NUM_NODES=3 SLURM_NODEID=2 " .. luminary
      .. "--dry-run --nnodes 3 --rdzv tcp://h:1 " .. folder .. "/meet.lua"))
    assert.matches("RANK=2 WORLD_SIZE=3", text, 1, true)
  end)

  it("refuses what cannot be", function()
    for options, words in pairs {
      ["--rdzv etcd://x:1"] = "--rdzv must be tcp://host:port or file:///path, a path that all nodes share, got 'etcd:",
      ["--rdzv file://relative"] = "--rdzv must be",
      ["--rdzv tcp://x"] = "--rdzv must be",
      ["--rdzv tcp://x:1 --master-addr y"] = "leave --master-addr and --master-port out",
      ["--rdzv tcp://x:1 --rdzv-endpoint y:1"] = "--rdzv and --rdzv-endpoint: one of the two",
      ["--rdzv-backend etcd"] = "--rdzv-backend etcd: nodes meet at --rdzv-endpoint host:port, or with --rdzv",
      ["--nnodes 2 --rdzv-backend c10d --node-rank 0"] = "--rdzv-backend needs --rdzv-endpoint host:port",
      ["--nnodes 2 --rdzv-endpoint h:1"] = "needs --node-rank, from 0 to 1; with --rdzv file:///path",
      ["--rdzv-conf a=b"] = "--rdzv-conf: there is nothing to set",
      ["--nnodes 2 --node-rank 0"] = "needs --master-addr, the address of node 0, or --rdzv file:///path",
    } do
      local text, code = dry(options)
      assert.equal(2, code, options)
      assert.matches(words, text, 1, true)
    end
    local text = together(luminary .. "--rdzv file:///nonexistent/x {MEET} 1")[1]
    assert.matches("--rdzv file:///nonexistent/x: /nonexistent/x.nodes: No such file or directory", text, 1, true)
  end)
end)

describe("addresses", function()
  local function by(method, options)
    options = options or {}
    options.args = (options.timeout or 10) .. " " .. method
    options.env, options.timeout = options.env or {}, nil
    options.env.WORLD_SIZE = 2
    options.env_of = function(rank) return { RANK = rank } end
    return start(2, MEET, options):wait()
  end

  it("may be of IPv6", function()
    local why = needs.ipv6()
    if why then return pending(why) end
    assert_met(by(("tcp://[::1]:%d"):format(ranks.free_port())), 2)
    assert_met(by("env://", { env = { MASTER_ADDR = "::1", MASTER_PORT = ranks.free_port() } }), 2)
    assert_met(by("env://", { env = { MASTER_ADDR = "[::1]", MASTER_PORT = ranks.free_port() } }), 2)
  end)

  it("may be names", function()
    assert_met(by(("tcp://localhost:%d"):format(ranks.free_port())), 2)
  end)

  it("are told of the interface that is chosen", function()
    for _, pattern in ipairs { "lo", "=lo", "nonesuch,lo", "l" } do
      local got = by("file://" .. folder .. "/chosen", { env = { LM_SOCKET_IFNAME = pattern } })
      assert_met(got, 2)
    end
    for _, pattern in ipairs { "nonesuch", "=l", "^e,l,b,v,t,d,w,i,n,p,s,o,u,c,f,m,g,a" } do
      for _, method in ipairs { "file://" .. folder .. "/chosen", ("tcp://127.0.0.1:%d"):format(ranks.free_port()) } do
        local got = by(method, { env = { LM_SOCKET_IFNAME = pattern } })
        for rank = 0, 1 do
          assert.matches(("init_process_group: LM_SOCKET_IFNAME = '%s' matches no interface that is up and has an "
            .. "address; available: "):format(pattern), got[rank].output, 1, true)
          assert.matches("lo (127.0.0.1)", got[rank].output, 1, true)
          within(got[rank].seconds, 5, got.text)
        end
      end
    end
  end)

  it("may be localhost and this host's own name where nothing knows them", function()
    local preload = with_lookup(folder, "unknown", "return EAI_NONAME;")
    for _, name in ipairs { "localhost", temp.read("/proc/sys/kernel/hostname"):match "%S+" } do
      assert_met(by(("tcp://%s:%d"):format(name, ranks.free_port()), { env = { LD_PRELOAD = preload } }), 2)
    end
  end)

  it("are looked up no longer than there is time", function()
    local preload = with_lookup(folder, "slow", "sleep(30);")
    local job = start(1, MEET, { args = "1.5 tcp://somewhere:4000", env = { LD_PRELOAD = preload, WORLD_SIZE = 2,
      RANK = 1 } })
    local got = job:wait()
    assert.matches("timed out after 1.5 s: cannot reach the store of rank 0 at somewhere:4000", got[0].output, 1, true)
    within(got[0].seconds, 6, got.text)
  end)
end)

describe("hosts with several interfaces", function()
  local hosts, why
  lazy_setup(function()
    hosts, why = netns.make("lmstart", {
      a = { eth0 = { "one", "10.97.1.1/24" }, eth1 = { "two", "10.97.2.1/24" } },
      b = { eth1 = { "two", "10.97.2.2/24" } },
      v6 = { eth0 = { "three", "fd97::1/64" } },
      w6 = { eth0 = { "three", "fd97::2/64" } },
    })
  end)
  lazy_teardown(function() if hosts then hosts:remove() end end)

  -- Ranks 0 and 1 on these hosts; `names`: their /etc/hosts.
  local function meet(first, second, args, options)
    options = options or {}
    options.env = options.env or {}
    options.env.WORLD_SIZE = 2
    local enter = {}
    for i, host in ipairs { first, second } do
      local names = options.names and options.names[i] or "127.0.0.1 localhost\n"
      enter[i] = ("exec %s unshare -m sh -c 'mount --bind %s /etc/hosts; exec luajit \"$@\"' - \"$@\""):format(
        hosts[host], temp.write(("%s/hosts%d"):format(folder, i), names))
    end
    temp.write(folder .. "/enter.sh", ("if [ $RANK = 0 ]; then %s; else %s; fi\n"):format(enter[1], enter[2]))
    options.command, options.args = "sh " .. folder .. "/enter.sh", args
    local env_of = options.env_of
    options.env_of = function(rank)
      local env = env_of and env_of(rank) or {}
      env.RANK = rank
      return env
    end
    return start(2, MEET, options):wait()
  end
  local function case(text, f)
    it(text, function()
      if not hosts then return pending(why) end
      f()
    end)
  end

  case("tell the one that others reached them by", function()
    assert_met(meet("a", "b", "10 tcp://10.97.2.1:4001"), 2)
  end)

  case("tell by a file the likeliest one, or the one that is chosen", function()
    local method = "file://" .. folder .. "/interfaces"
    local got = meet("a", "b", "2 " .. method) -- eth0, which is not b's
    assert.matches("timed out after 2 s: cannot reach the store of rank 0 at 10.97.1.1:%d+", got[1].output)
    for _, pattern in ipairs { "eth1", "=eth1", "^eth0,lo", "^=eth0" } do
      local function only_a(rank) return { LM_SOCKET_IFNAME = rank == 0 and pattern or false } end
      assert_met(meet("a", "b", "10 " .. method, { env_of = only_a }), 2)
    end
    got = meet("a", "b", "2 " .. method, { env = { LM_SOCKET_IFNAME = "eth9" } })
    assert.matches("; available: lo (127.0.0.1), eth0 (10.97.1.1), eth1 (10.97.2.1)", got[0].output, 1, true)
  end)

  case("may be called by a name that means the loopback to themselves, or all that they have", function()
    local names = { "127.0.1.1 anna\n", "10.97.2.1 anna\n" }
    assert_met(meet("a", "b", "10 tcp://anna:4002", { names = names }), 2)
    names[1] = "10.97.1.1 anna\n10.97.2.1 anna\n"
    assert_met(meet("a", "b", "10 tcp://anna:4003", { names = names }), 2)
  end)

  case("may have no IPv4", function()
    local names = { "fd97::1 vera\n", "fd97::1 vera\n" }
    assert_met(meet("v6", "w6", "10 tcp://[fd97::1]:4004"), 2)
    assert_met(meet("v6", "w6", "10 tcp://vera:4005", { names = names }), 2)
    assert_met(meet("v6", "w6", "10 file://" .. folder .. "/v6"), 2)
    assert_met(meet("v6", "w6", "10 file://" .. folder .. "/v6", { env = { LM_SOCKET_IFNAME = "eth" } }), 2)
    names = { "10.97.9.9 vera\nfd97::1 vera\n", "10.97.9.9 vera\nfd97::1 vera\n" } -- one address is from elsewhere
    assert_met(meet("v6", "w6", "10 tcp://vera:4006", { names = names }), 2)
  end)

  case("tell torchrun's store the one that reaches it", function()
    local ok, text = temp.run(folder, ("env -u LD_PRELOAD cc -std=gnu11 -o %s/agent spec/support/agent.c -lpthread")
      :format(folder))
    assert(ok, text)
    os.execute((ranks.others .. "%s %s/agent %s/port >/dev/null 2>&1 &"):format(hosts.a, folder, folder))
    local port, pid
    for _ = 1, 500 do
      local file = io.open(folder .. "/port")
      if file then
        port, pid = file:read("*n", "*n")
        file:close()
        break
      end
      ranks.sleep(0.01)
    end
    local env = { TORCHELASTIC_USE_AGENT_STORE = "True", TORCHELASTIC_RUN_ID = "spec", MASTER_PORT = port,
      MASTER_ADDR = "10.97.2.1" }
    local got = meet("a", "b", "10", { env = env })
    os.execute("kill " .. pid)
    assert_met(got, 2)
  end)
end)
