-- Elastic jobs, `luminary run --nnodes MIN:MAX`: launchers on this machine that come, go and are lost.
local core = require "luminary.core"
local netns = require "spec.support.netns"
local pty = require "spec.support.pty"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
local with_lookup = require "spec.support.with_lookup"

local folder = temp.during(before_each, after_each)

local PROLOGUE = [[
local ffi = require "ffi"
ffi.cdef "int usleep(unsigned); int raise(int);"
local lm = require "luminary"
local rank, size = tonumber(os.getenv "RANK"), tonumber(os.getenv "WORLD_SIZE")
local round = tonumber(os.getenv "LM_RESTART_COUNT")
local function sleep(seconds) ffi.C.usleep(seconds * 1e6) end
local function touch(name) io.open(os.getenv "FOLDER" .. "/" .. name, "w"):close() end
local function wait_for(name)
  for _ = 1, 6000 do if io.open(os.getenv "FOLDER" .. "/" .. name) then break end sleep(0.01) end
end
local function train(name)
  lm.dist.init_process_group()
  for step = 1, 2000 do
    lm.dist.all_reduce(lm.ones(2))
    if step == 3 then touch(name or "round" .. round) end
    sleep(0.01)
  end
end
]]

-- `body`: a shell script with functions `node NAME OPTION...`, which starts a launcher of the script `text`,
-- `head NAME`, which waits until it is the head, `linked N`, which waits until the head has N connections, `seen FILE`,
-- which waits for a file of a rank, `pid NAME`, and `ended NAME`; $HOST is the head's, $IN comes before a launcher's
-- command. Returns a table: the output of each node by name.
local function job(text, body)
  temp.write(folder .. "/script.lua", PROLOGUE:gsub("\n", " ") .. text)
  temp.write(folder .. "/job.sh", ([[
    export FOLDER=%s LM_TOKEN=secret OMP_NUM_THREADS=1 PORT=%d
    node() {
      name=$1; shift
      timeout -s KILL 90 $IN sh -c 'echo $$ >$0.pid; exec luajit bin/luminary run "$@"' $FOLDER/$name \
        --rdzv tcp://${HOST:-127.0.0.1}:$PORT "$@" $FOLDER/script.lua >$FOLDER/$name.out 2>&1 &
      eval W_$name=$!
    }
    ended() { eval wait \$W_$1; echo "exit $?" >>$FOLDER/$1.out; }
    head() { for i in $(seq 1500); do grep -q "the head of the job" $FOLDER/$1.out && break; sleep 0.02; done; }
    linked() {
      established=$(printf ': [0-9A-F]*:%%04X [0-9A-F:]* 01 ' $PORT)
      for i in $(seq 1500); do [ $(grep -c "$established" /proc/net/tcp) -ge $1 ] && break; sleep 0.02; done
    }
    seen() { for i in $(seq 1500); do [ -e $FOLDER/$1 ] && break; sleep 0.02; done; }
    pid() { cat $FOLDER/$1.pid; }
  ]]):format(folder, ranks.free_port()) .. body)
  os.execute(("timeout 120 sh %s/job.sh >%s/shell 2>&1"):format(folder, folder))
  return setmetatable({}, {__index = function(_, name) return temp.read(("%s/%s.out"):format(folder, name)) end})
end

local function count(text, words)
  local n = 0
  for _ in text:gmatch(words) do n = n + 1 end
  return n
end

describe("an elastic job #unsanitized", function()
  it("starts again with a node that comes, and ends with exit code 0 on all", function()
    local out = job([[
      if round == 0 then train() end
      print(rank, size, os.getenv "LOCAL_RANK", os.getenv "LOCAL_WORLD_SIZE", os.getenv "NODE_RANK", round)
    ]], [[
      node a --nnodes 1:2 --nproc 2; seen round0
      node b --nnodes 1:2; ended a; ended b
    ]])
    assert.matches("round 0: node 0 of 1, ranks 0 to 1 of 2\n", out.a)
    assert.matches("the node %S+ joined; the ranks are stopped\n", out.a)
    assert.matches("[rank 1] 1\t3\t1\t2\t0\t1\n", out.a, 1, true)
    assert.matches("exit 0\n$", out.a)
    assert.equal(1, count(out.b, "round %d"))
    assert.matches("[rank 2] 2\t3\t0\t1\t1\t1\n", out.b, 1, true)
    assert.matches("exit 0\n$", out.b)
  end)

  it("continues without a node that is killed, which is no failure", function()
    local out = job([[if round == 0 then train() end print("ended", size)]], [[
      node a --nnodes 1:2; head a; node b --nnodes 1:2; seen round0
      kill -9 $(pid b); ended a
    ]])
    assert.matches("the node %S+ left or was lost; the ranks are stopped\n", out.a)
    assert.matches("%[rank 0%] ended\t1\nexit 0\n$", out.a)
  end)

  it("continues without its head, and with it once it is back", function()
    local out = job([[if round < 2 then train() end print("ended", size)]], [[
      node a --nnodes 1:2; head a; node b --nnodes 1:2; seen round0
      kill -9 $(pid a); seen round1
      node c --nnodes 1:2; ended b; ended c
    ]])
    assert.matches("the head of the job left or was lost\n", out.b)
    assert.matches("this node is the head of the job", out.b)
    assert.matches("ended\t2\nexit 0\n$", out.b)
    assert.matches("ended\t2\nexit 0\n$", out.c)
  end)

  it("loses a node that is silent, and takes it back", function()
    local out = job([[if round < 2 then train() end print("ended", size)]], [[
      node a --nnodes 1:2 --node-timeout 1; head a; node b --nnodes 1:2 --node-timeout 1; seen round0
      kill -STOP $(pid b); seen round1
      kill -CONT $(pid b); ended a; ended b
    ]])
    assert.matches("the node %S+ is silent for 1 s; the ranks are stopped\n", out.a)
    assert.matches("ended\t2\nexit 0\n$", out.a)
    assert.matches("ended\t2\nexit 0\n$", out.b)
  end)

  it("keeps a head whose terminal takes no output", function()
    local why = pty.lacking()
    if why then return pending(why) end
    temp.write(folder .. "/script.lua", PROLOGUE .. [[
      if rank == 0 then
        for _ = 1, 3000 do print(("x"):rep(100)) end
      end
      sleep(4)
      print("ended", round)
    ]])
    local command = ("FOLDER=%s LM_TOKEN=secret OMP_NUM_THREADS=1 timeout 60 luajit bin/luminary run --nnodes 2:2 "
      .. "--node-timeout 1 --rdzv tcp://127.0.0.1:%d %s/script.lua"):format(folder, ranks.free_port(), folder)
    local terminal = pty.open(command, 60)
    terminal:expect "the head of the job"
    local ok, text = temp.run(folder, command)
    assert(ok, text)
    assert.not_matches("silent", text)
    assert.matches("%[rank 1%] ended\t0\n$", text)
    local code, all = terminal:finish()
    assert.equal(0, code)
    assert.equal(3000, count(all, "x\r\n"))
  end)

  it("waits for MIN nodes, and not for ever", function()
    local out = job("print 'started'", "node a --nnodes 2:3 --join-timeout 1; ended a")
    assert.matches("luminary run: 1 of at least 2 nodes joined within 1 s\nexit 1\n$", out.a)
    assert.not_matches("started", out.a)
  end)

  it("keeps those beyond MAX waiting, of whom one replaces a lost node", function()
    local out = job([[if round == 0 then train() end print("ended", size)]], [[
      node a --nnodes 2:2; head a; node b --nnodes 2:2; seen round0
      node c --nnodes 2:2; linked 2; node d --nnodes 2:2; linked 3
      kill -9 $(pid b); ended a; ended c; ended d
    ]])
    assert.matches("%[rank 0%] ended\t2\nexit 0\n$", out.a)
    local new, waiting = out.c, out.d
    if #new < #waiting then new, waiting = waiting, new end -- connections are answered in any order
    assert.matches("^luminary run: round 1: node 1 of 2, ranks 1 to 1 of 2\n%[rank 1%] ended\t2\nexit 0\n$", new)
    assert.equal("exit 0\n", waiting)
  end)

  it("counts failures of ranks, and names the last one on all nodes", function()
    local out = job([[
      lm.dist.init_process_group()
      if rank == 1 then error("boom " .. round) end
      lm.dist.barrier()
    ]], [[
      node a --nnodes 2:2 --max-restarts 1; head a; node b --nnodes 2:2 --max-restarts 1; ended a; ended b
    ]])
    assert.matches("rank 1 on %S+, pid %d+, failed with exit code 1; restart 1 of 1\n", out.a)
    assert.equal(1, count(out.b, "%[rank 1%] luminary: [^\n]*boom 0"))
    assert.equal(1, count(out.b, "luminary run: rank 1 on %S+, pid %d+, failed with exit code 1\n  [^\n]*boom 1"))
    for _, name in ipairs {"a", "b"} do
      assert.matches("rank 1 on %S+, pid %d+, failed with exit code 1\nexit 1\n$", out[name])
      assert.equal(2, count(out[name], "round %d"))
    end
  end)

  it("gives the exit code of the rank that failed first to all", function()
    local out = job("if rank == 1 then os.exit(6) end sleep(20)", [[
      node a --nnodes 2:2; head a; node b --nnodes 2:2; ended a; ended b
    ]])
    for _, name in ipairs {"a", "b"} do assert.matches("exit 6\n$", out[name]) end
  end)

  it("refuses a launcher with another token, which says so", function()
    local out = job([[if size == 1 then wait_for "refused" end print("ended", size)]], [[
      node a --nnodes 1:2; head a
      LM_TOKEN=other node b --nnodes 1:2 --join-timeout 1; ended b; touch $FOLDER/refused; ended a
    ]])
    assert.matches("a launcher at an address of %-%-rdzv: it belongs to another job or has another token", out.b)
    assert.matches("no head of the job was found within 1 s at 127.0.0.1:%d+ %(it belongs to another job [^\n]*%)\n"
      .. "exit 1\n$", out.b)
    assert.matches("ended\t1\nexit 0\n$", out.a)
  end)

  it("refuses a launcher of another job with the same token, and one of another script", function()
    local out = job([[if size == 1 then wait_for "refused" end print("ended", size)]], [[
      node a --nnodes 1:3; head a
      node b --nnodes 1:3 --rdzv-id other --join-timeout 1
      cp $FOLDER/script.lua $FOLDER/other.lua
      luajit bin/luminary run --nnodes 1:3 --rdzv tcp://127.0.0.1:$PORT $FOLDER/other.lua >$FOLDER/c.out 2>&1
      echo "exit $?" >>$FOLDER/c.out
      ended b; touch $FOLDER/refused; ended a
    ]])
    assert.matches("a launcher at an address of %-%-rdzv: it belongs to another job or has another token", out.b)
    assert.matches("exit 1\n$", out.b)
    assert.matches("the job at 127.0.0.1:%d+ runs 'script.lua', got 'other.lua'; choose another port or %-%-rdzv%-id\n"
      .. "exit 1\n$", out.c)
    assert.matches("round 0: node 0 of 1, ranks 0 to 0 of 1\n%[rank 0%] ended\t1\nexit 0\n$", out.a)
  end)

  it("starts although nodes come and go all the time", function()
    local out = job([[print("ended", size)]], [[
      node a --nnodes 1:3
      ( until grep -q ended $FOLDER/a.out; do
          timeout -s KILL 0.6 luajit bin/luminary run --nnodes 1:3 --rdzv tcp://127.0.0.1:$PORT $FOLDER/script.lua
        done >/dev/null 2>&1 ) & B=$!
      for i in $(seq 300); do grep -q "round 0" $FOLDER/a.out && break; sleep 0.1; done
      echo "after $i" >$FOLDER/started.out
      touch $FOLDER/a.out; ended a; kill $B
    ]])
    local after = tonumber(out.started:match "after (%d+)")
    assert.is_true(after < 300, out.started)
    assert.matches("round 0: node 0 of", out.a)
  end)

  it("saves before a node that gets a SIGTERM leaves", function()
    local out = job([[
      lm.dist.init_process_group()
      local manager = lm.checkpoint.Manager {dir = os.getenv "FOLDER" .. "/run", every = 1000, on_sigterm = true}
      local saved = manager:load()
      local first = saved and saved.step + 1 or 1
      print("from", first > 1 and "later" or first)
      if round == 1 then os.exit(saved.seen == saved.step and 0 or 1, true) end
      for step = first, 2000 do
        manager:save(step, {seen = step})
        if step == 5 then touch "round0" end
        sleep(0.01)
      end
    ]], [[
      node a --nnodes 1:2; head a; node b --nnodes 1:2; seen round0
      kill -TERM $(pid b); ended b; ended a
    ]])
    assert.matches("stopped by SIGTERM\nexit 143\n$", out.b)
    assert.matches("warning: Manager:save: saved step %d+ after SIGTERM; the job ends\n", out.a)
    assert.matches("%[rank 0%] from\tlater\nexit 0\n$", out.a)
    assert.not_matches("failed", out.a)
  end)

  it("lets ranks finish their save, though a SIGTERM comes while a node joins, or a node joins after it", function()
    local script = [[
      while not lm.checkpoint.is_preempted() do
        touch "round0"
        sleep(0.05)
      end
      touch "saves"
      for _ = 1, 50 do sleep(0.05) end
      touch "saved"
      os.exit(75, true)
    ]]
    for _, events in ipairs {
      "node b --nnodes 1:2; seen saves; sleep 1.3; kill -TERM $(pid a)",
      "kill -TERM $(pid a); sleep 0.1; node b --nnodes 1:2",
    } do
      job(script, "node a --nnodes 1:2; seen round0; " .. events .. [[

        ended a; [ -e $FOLDER/saved ] && touch $FOLDER/in_time; kill -TERM $(pid b); ended b]])
      assert.is_true(temp.exists(folder .. "/in_time"), events)
      os.execute(("cd %s && rm -f round0 saves saved in_time"):format(folder))
    end
  end)

  it("counts no failure where ranks end because another node was stopped", function()
    local out = job([[if round == 0 then train() end print("ended", size)]], [[
      node a --nnodes 1:2; head a; node b --nnodes 1:2; seen round0
      kill -TERM $(pid b); ended b; ended a
    ]])
    assert.matches("exit 143\n$", out.b)
    assert.matches("%[rank 0%] ended\t1\nexit 0\n$", out.a)
  end)

  it("gives ranks the head's --grace to save, where a node joins and where one is preempted", function()
    local out = job([[
      if round < 2 then
        ffi.cdef "void *signal(int, void *);"
        ffi.C.signal(15, ffi.cast("void *", 1))
        train()
      end
      print("ended", round)
    ]], [[
      node a --nnodes 1:2 --grace 0.5; seen round0
      node b --nnodes 1:2 --grace 0.5; seen round1
      kill -TERM $(pid b); ended b; ended a
    ]])
    assert.matches("exit 1%d%d\n$", out.b)
    assert.matches("%[rank 0%] ended\t2\nexit 0\n$", out.a)
  end)

  it("has one head again after its network was parted", function()
    local why = require("spec.support.needs").namespaces()
    if why then return pending(why) end
    local ok, text = temp.run(folder, "timeout 200 luajit scripts/dev/elastic_soak --only cut --seconds 20 --limit 60")
    assert(ok, text)
    assert.matches("cut    node", text)
    assert.matches("start  node", text)
    assert.matches("all held\n$", text)
  end)

  it("trains on with each sample once an epoch, and the losses of one rank", function()
    local long = core.getenv "LM_TEST_LONG" ~= nil
    local ok, text = temp.run(folder, ("timeout %d luajit scripts/dev/elastic_soak --local --seconds %d --limit 60")
      :format(long and 900 or 200, long and 600 or 12))
    assert(ok, text)
    assert.matches("all held\n$", text)
  end)
end)

describe("the endpoint of an elastic job", function()
  it("is apart from the store's port, which --master-port sets", function()
    local out = job("print('at', os.getenv 'MASTER_PORT')", [[
      node a --nnodes 1:2 --master-port $((PORT + 1)); ended a; echo $((PORT + 1)) >$FOLDER/port.out
    ]])
    assert.matches("at\t" .. out.port .. "exit 0\n$", out.a)
  end)

  local TWO = [[
    lm.dist.init_process_group()
    print("ended", lm.dist.all_reduce(lm.ones(1)):item())
  ]]

  it("is named with what failed there, where no head is found", function()
    local out = job(TWO, "HOST=192.0.2.1; node a --nnodes 1:2 --join-timeout 2; ended a") -- no machine's (RFC 5737)
    assert.matches("no head of the job was found within 2 s at 192.0.2.1:%d+ %([^)\n]+%)\nexit 1\n$", out.a)
  end)

  it("may be a name that is slow to look up", function()
    local out = job(TWO, ([[
      export LD_PRELOAD='%s' HOST=localhost
      node a --nnodes 2:2 --join-timeout 20; node b --nnodes 2:2 --join-timeout 20; ended a; ended b
    ]]):format(with_lookup(folder, "slow", "usleep(1500000);")))
    for _, name in ipairs {"a", "b"} do assert.matches("ended\t2\nexit 0\n$", out[name]) end
  end)

  describe("on another host", function()
    local hosts, why
    lazy_setup(function()
      hosts, why = netns.make("lmhead", {a = {eth0 = {"one", "10.97.4.1/24"}}, b = {eth0 = {"one", "10.97.4.2/24"}}})
    end)
    lazy_teardown(function() if hosts then hosts:remove() end end)

    -- Starts two nodes that know the head by these lines of /etc/hosts.
    local function meet(of_a, of_b)
      local shell = "export HOST=anna\n"
      for name, line in pairs {a = of_a, b = of_b} do
        temp.write(("%s/hosts.%s"):format(folder, name), line)
        temp.write(("%s/in.%s"):format(folder, name), ("exec %s unshare -m sh -c 'mount --bind %s/hosts.%s /etc/hosts;"
          .. " exec \"$@\"' - \"$@\"\n"):format(hosts[name], folder, name))
      end
      for _, name in ipairs {"a", "b"} do
        shell = ("%sIN='sh %s/in.%s' node %s --nnodes 2:2 --join-timeout 20\n"):format(shell, folder, name, name)
      end
      local out = job(TWO, shell .. "ended a; ended b")
      for _, name in ipairs {"a", "b"} do assert.matches("ended\t2\nexit 0\n$", out[name]) end
    end

    it("may have a name that is an address of the loopback to itself", function()
      if not hosts then return pending(why) end
      meet("127.0.1.1 anna\n", "10.97.4.1 anna\n")
    end)

    it("may have an address first that nobody answers at", function()
      if not hosts then return pending(why) end
      local lost = "ip -n %s-b neigh add 10.97.4.3 lladdr 02:00:00:00:00:99 dev eth0" -- its packets
      os.execute(lost:format(hosts.prefix))
      meet("10.97.4.1 anna\n", "10.97.4.3 anna\n10.97.4.1 anna\n")
    end)
  end)
end)

describe("a preempted job", function()
  it("ends by SIGTERM after a save at the step where it came, with several ranks", function()
    local _, text, code = temp.run(folder, ([[
      OMP_NUM_THREADS=1 timeout 60 sh -c 'echo $$ >FOLDER/launcher; exec luajit "$@"' sh \
        bin/luminary run --nproc 2 spec/support/elastic_run.lua FOLDER 1000 0.01 &
      for i in $(seq 500); do [ "$(grep -c . FOLDER/log)" -gt 50 ] 2>/dev/null && break; sleep 0.02; done
      kill -TERM $(cat FOLDER/launcher); wait $!]]):gsub("FOLDER", folder))
    assert.equal(143, code, text)
    local step = require("luminary").checkpoint.Manager({dir = folder .. "/checkpoints"}):load().step
    local last = 0
    for line in io.lines(folder .. "/log") do last = math.max(last, tonumber(line:match "^%d+ %d+ %S+ %d+ (%d+)")) end
    assert.equal(last, step)
  end)
end)

describe("links of launchers", function()
  local function links(job_id, token) return core.node_links(job_id or "job", token or "secret") end

  -- Returns the events of `l` up to the first of this kind. The other one answers meanwhile.
  local function events(l, last, other)
    local list = {}
    for _ = 1, 3000 do
      local kind, link, text = l:next()
      if kind then list[#list + 1] = {kind, link, text} else ranks.sleep(0.01) end
      if kind == last then return list end
      if other then other:next() end
    end
    error(("no '%s' came, but %d others"):format(last, #list))
  end

  it("carry messages of those who know the token", function()
    local a, b, stranger = links(), links(), links("job", "other")
    local address = "127.0.0.1:" .. ranks.free_port()
    assert.is_true(a:listen(address))
    assert.is_false(b:listen(address))
    local link = b:connect(address, 2)
    stranger:connect(address, 2)
    assert.same({{"opened", link, ""}}, events(b, "opened", a))
    local refused = events(stranger, "closed", a)
    assert.equal("closed", refused[1][1])
    assert.matches("another token", refused[1][3])
    b:send(link, "one")
    b:send(link, ("x"):rep(65536))
    b:send(link, "")
    b:close()
    local got = events(a, "closed")
    if got[1][1] == "opened" then table.remove(got, 1) end
    assert.same({"one", 65536, ""}, {got[1][3], #got[2][3], got[3][3]})
    assert.equal("closed", got[4][1])
    a:close()
    assert.error_matches(function() a:next() end, "must be open, got a closed one")
  end)

  it("drop what is no message, and refuse one that is too long", function()
    local a, b = links(), links()
    local address = "127.0.0.1:" .. ranks.free_port()
    a:listen(address)
    local link = b:connect(address, 2)
    events(b, "opened", a)
    assert.error_matches(function() b:send(link, ("x"):rep(65537)) end, "65537 bytes is too long")
    a:close()
    assert.equal("closed", events(b, "closed")[1][1])
    b:send(link, "to nobody")
    b:close()
  end)
end)
