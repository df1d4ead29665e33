-- Groups whose calls only enqueue, and groups of several backends. The group is built outside the tree (support/plugin/
-- queue_group.c), as is a second kind of device for it (tiny_backend.c): what is tested here is the core.
local temp = require "spec.support.temp"
local ranks = require "spec.support.ranks"
local plugin = require "spec.support.plugin"
local within = require("spec.support.time").within

-- First lines of each script below.
local prelude = [[
  local lm = require "luminary"
  local dist, ffi = lm.dist, require "ffi"
  ffi.cdef "int queue_count(const char *); int usleep(unsigned);"
  local function count(name) return ffi.load(os.getenv "QUEUE_FILE").queue_count(name) end
  local function sleep(seconds) ffi.C.usleep(seconds * 1e6) end
  local function start(backend, opts)
    opts = opts or {}
    opts.timeout = opts.timeout or 20
    dist.init_process_group(backend or "queue", opts)
    return dist.get_rank(), dist.get_world_size()
  end
  local function list(t) return table.concat(t:flatten():tolist(), " ") end
]]

describe("a group that enqueues", function()
  local ready
  local folder = temp.during(setup, teardown)

  it("compiles against the installed headers", function()
    if not plugin.build(folder, "group_queue", "backend_tiny") then
      return pending("the module does not come from a build")
    end
    ready = true
  end)

  local function job(options)
    if not ready then return pending("there is no plug-in") end
    local env = {
      LM_GROUP_PATH = folder, LM_BACKEND_PATH = folder, LM_TOKEN = "a token for specs", LM_HEARTBEAT_TIMEOUT = 10,
      QUEUE_FILE = folder .. "/luminary_group_queue.so",
    }
    for name, value in pairs(options.env or {}) do env[name] = value end
    options.env, options.timeout, options.script = env, options.timeout or 40, prelude .. options.script
    return ranks.start(options)
  end

  local function run(options)
    local started = job(options)
    return started and started:wait()
  end

  it("gives the results", function()
    local got = run { n = 3, script = [[
      local rank, size = start()
      assert(dist.get_backend() == "queue")
      local t = lm.tensor{1, 2} * (rank + 1)
      assert(dist.all_reduce(t) == t)
      print(list(t))
      local b = lm.full({2, 3}, rank + 5):t()                  -- strided: a stand-in, copied back
      dist.broadcast(b, 1)
      local gathered = {lm.zeros{2}, lm.zeros{2}, lm.zeros{2}}
      dist.all_gather(gathered, lm.tensor{rank, 7})
      local whole = lm.zeros{size * 2}
      dist.all_gather_into_tensor(whole, lm.tensor{rank, 9})
      local r = lm.tensor{rank + 1}
      dist.reduce(r, 2)
      print(list(b), list(gathered[1]), list(gathered[3]), list(whole), list(r))
      dist.all_reduce(lm.zeros{0})                             -- ranks meet, nothing moves
      dist.barrier()
      dist.gather(lm.tensor{rank, 1}, {dst = 2, gather_list = rank == 2 and gathered or nil})
      local part, rest = lm.zeros{2}, lm.zeros{2}
      dist.scatter(part, {src = 2, scatter_list = rank == 2 and gathered or nil})
      dist.reduce_scatter(rest, {lm.tensor{1, 2}, lm.tensor{3, 4}, lm.tensor{5, 6}})
      -- Rank r sends one row to rank 0, one to 1, and r + 1 to 2.
      local splits = rank == 2 and {1, 2, 3} or {1, 1, 1}
      local sum = splits[1] + splits[2] + splits[3]
      local output = lm.zeros{sum, 2}
      dist.all_to_all_single(output, lm.full({rank + 3, 2}, rank + 1),
        {input_split_sizes = {1, 1, rank + 1}, output_split_sizes = splits})
      local none = lm.zeros{0, 2}                              -- all to rank 1
      dist.all_to_all_single(rank == 1 and output[{{1, 3}}] or none, lm.full({1, 2}, rank), {
        input_split_sizes = {0, 1, 0}, output_split_sizes = rank == 1 and {1, 1, 1} or {0, 0, 0},
      })
      print(list(part), list(rest), output:sum():item())
      print(select(2, pcall(dist.all_to_all_single, output, output, {input_split_sizes = {1, 1}})))
      print(select(2, pcall(dist.all_to_all_single, output, output, {output_split_sizes = {1, 1, 9}})))
      dist.destroy_process_group()
      print(count "open", count "close", count "abort")
    ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 2 do
      local lines = got[rank].output
      assert.matches("^6 12\n6 6 6 6 6 6\t0 7\t2 7\t0 9 1 9 2 9\t" .. (rank == 2 and 6 or rank + 1) .. "\n", lines)
      assert.matches(("\n%d 1\t%s\t%d\n"):format(rank, ({ [0] = "3 6", "9 12", "15 18" })[rank],
        ({ [0] = 12, 6, 28 })[rank]), lines)
      assert.matches("all_to_all_single: input_split_sizes must have 3 entries, one for each rank", lines, 1, true)
      assert.matches("all_to_all_single: output_split_sizes adds up to 11 rows, but the tensor has", lines, 1, true)
      assert.matches("\n1\t1\t0\n$", lines)
    end
  end)

  it("gives works: done once the rank before has told of the call too", function()
    local got = run { n = 2, script = [[
      local rank = start()
      if rank == 1 then sleep(2) end
      local t = lm.tensor{rank + 1}
      local works = {}
      works[1] = dist.all_reduce(lm.zeros{0}, {async_op = true})
      if rank == 0 then                                        -- rank 1 has not come
        assert(not works[1]:is_completed())
        assert(works[1]:wait())                                -- later ops wait, the host does not
        assert(not works[1]:is_completed())
        local ok, message = pcall(works[1].wait, works[1], 0.05)
        assert(not ok and message:find("is not done after 0.05 s and continues", 1, true), message)
        assert(works[1]:wait(10) and works[1]:is_completed())
      end
      for i = 2, 20 do works[i] = dist.all_reduce(t, {async_op = true, op = "max"}) end
      for i = 20, 1, -1 do assert(works[i]:wait(10)) end
      assert(works[7]:is_completed() and tostring(works[7]) == "Work(all_reduce, completed)")
      local kept = dist.all_reduce(t, {async_op = true})
      dist.destroy_process_group()                             -- waits for it
      assert(kept:is_completed() and kept:wait())
      print(list(t))
    ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("4\n", got[rank].output) end
  end)

  it("scales before it sums", function()
    for _, mode in ipairs { "", "plain" } do
      local got = run { n = 2, env = { QUEUE_MODE = mode }, script = [[
        local rank = start()
        local t = lm.tensor{1, 10}
        dist.all_reduce(t, {scale = rank + 0.5})               -- each rank has its own scale
        local half = lm.tensor({3}, {dtype = "bfloat16"})
        dist.all_reduce(half, {scale = 1 / 3, async_op = true}):wait()
        local bad = lm.full({2}, rank == 0 and 0 / 0 or 2)
        dist.all_reduce(bad, {scale = rank})                   -- 0 times NaN is to be 0
        print(list(t), list(half), list(bad))
        print(select(2, pcall(dist.all_reduce, lm.zeros({2}, {dtype = "int64"}), {scale = 2})))
        print(select(2, pcall(dist.all_reduce, t, {scale = 2, op = "max"})))
        print(pcall(dist.gather, t, {dst = 0, gather_list = rank == 0 and {lm.zeros{2}, lm.zeros{2}} or nil}))
      ]] }
      if not got then return end
      assert(got.ok, got.text)
      for rank = 0, 1 do
        assert.matches("^2 20\t2\t2 2\n", got[rank].output)
        assert.matches("all_reduce: tensor must be float for scale, got int64; convert it with :float()",
          got[rank].output, 1, true)
        assert.matches("scale requires op = 'sum', got 'max'", got[rank].output, 1, true)
        assert.matches(mode == "" and "\ntrue" or "gather: not implemented for backend 'queue'\n",
          got[rank].output, 1, true)
      end
    end
  end)

  it("sends and receives, in a batch too", function()
    for _, mode in ipairs { "", "plain" } do
      local got = run { n = 2, env = { QUEUE_MODE = mode }, script = [[
        local rank = start()
        local there = 1 - rank
        if rank == 0 then dist.send(lm.tensor{1, 2, 3}, 1) end
        local t = lm.zeros{3}
        if rank == 1 then assert(dist.recv(t, 0) == 0, "the sender") end
        local all = lm.zeros{2, 2}
        local works
        if rank == 0 then
          works = dist.batch_isend_irecv{dist.P2POp(dist.isend, lm.tensor{7, 8}, there),
            dist.P2POp(dist.irecv, all[{{}, 1}], there), {op = "isend", tensor = lm.zeros{0}, peer = there}}
        else
          works = dist.batch_isend_irecv{{op = "isend", tensor = lm.tensor{5, 6}, peer = there},
            {op = "irecv", tensor = all[{{}, 1}], peer = there}, dist.P2POp("irecv", lm.zeros{0}, there)}
        end
        for _, work in ipairs(works) do assert(work:wait(10)) end
        print(#works, list(t), list(all), works[rank == 0 and 2 or 3]:source_rank(), count "batch")
        local function fails(...) print(select(2, pcall(...))) end
        fails(dist.recv, t)
        fails(dist.P2POp, "send", t, there)
        fails(dist.batch_isend_irecv, {{op = "isend", tensor = t, pear = there}})
        fails(dist.batch_isend_irecv, {{op = "isend", tensor = t, peer = 9}})
        fails(dist.batch_isend_irecv, {})
      ]] }
      if not got then return end
      assert(got.ok, got.text)
      for rank = 0, 1 do
        local text = got[rank].output
        assert.matches(("^3\t%s\t%s\t%d\t%d\n"):format(rank == 1 and "1 2 3" or "0 0 0",
          rank == 0 and "5 0 6 0" or "7 0 8 0", 1 - rank, mode == "" and 1 or 0), text)
        assert.matches("recv: src is required; backend 'queue' cannot receive from any rank", text, 1, true)
        assert.matches("P2POp: op must be dist.isend or dist.irecv, got string 'send'", text, 1, true)
        assert.matches("batch_isend_irecv: entry 1: unknown option 'pear'; did you mean 'peer'?", text, 1, true)
        assert.matches("batch_isend_irecv: rank 9 is not in this group of 2 ranks", text, 1, true)
        assert.matches("batch_isend_irecv: the list must not be empty", text, 1, true)
      end
    end
  end)

  it("finds out that ranks disagree, beside what it enqueued", function()
    for n = 2, 3 do -- a third rank, whose neighbor agrees with it, hears of it a call later
      local got = run { n = n, script = [[
        local rank = start()
        dist.all_reduce(lm.zeros{2})
        print(pcall(function()
          return dist.all_reduce(lm.zeros{rank == 1 and 3 or 2}, {async_op = true}):wait(10)
        end))
        print(pcall(dist.barrier))
      ]] }
      if not got then return end
      for rank = 0, n - 1 do
        local text = got[rank].output
        if n == 2 then
          assert.matches("^false\t[^\n]*all_reduce: ranks 0 and 1 made different calls", text)
        end
        assert.matches("float32 [2] at", text, 1, true)
        assert.matches("float32 [3] at", text, 1, true)
        assert.matches("\nfalse\t[^\n]*barrier: [^\n]* made a? ?different calls?", text)
        within(got[rank].seconds, 10, got.text)
      end
    end
  end)

  it("is freed by another rank's death", function()
    local started = job { n = 2, env_of = function(rank) return { QUEUE_MODE = rank == 0 and "hang" or "" } end,
      script = [[
        local rank = start()
        if rank == 1 then print "ready" io.stdout:flush() sleep(30) end
        print(pcall(dist.all_reduce, lm.zeros{2}))
        print(count "abort")
        print(pcall(dist.barrier))
        dist.destroy_process_group()
        print(count "close")
      ]] }
    if not started then return end
    assert(started:wait_for(1, "ready"), started:output(1))
    ranks.sleep(0.3)
    started:kill(1)
    local got = started:wait()
    assert.matches("^false\t[^\n]*all_reduce: [^\n]*rank 1 on %S+ died %(killed or crashed%)", got[0].output)
    assert.matches("\n1\nfalse\t[^\n]*barrier: rank 1 .*\n1\n$", got[0].output)
    within(got[0].seconds, 10, got.text)
  end)

  it("ends at the timeout, after a warning that knows where to look", function()
    local got = run { n = 2, env_of = function(rank) return { QUEUE_MODE = rank == 0 and "hang" or "" } end,
      script = [[
        local rank = start()
        if rank == 1 then sleep(2.5) end
        print(pcall(dist.all_reduce, lm.zeros{2}, {timeout = 1}))
      ]] }
    if not got then return end
    local text = got[0].output
    assert.matches("luminary: rank 0 on %S+ has waited for [%d.]+ s in all_reduce sum float32 %[2%] at [^\n]*" ..
      "rank 1 [^\n]*run `luminary doctor` on each host", text)
    assert.matches("false\t[^\n]*all_reduce: rank 1 on %S+ did not reach the call: rank 0 [^\n]*waited for 1 s", text)
    assert.matches("`luminary doctor`", text:match("false\t.*"), 1, true)
    assert.matches("all_reduce: rank 1 on %S+ did not reach the call", got[1].output)
    within(got[0].seconds, 8, got.text)
  end)

  it("ends all calls when its health does", function()
    local got = run { n = 2, env_of = function(rank) return { QUEUE_MODE = rank == 1 and "sick" or "" } end,
      script = [[
        local rank = start()
        pcall(dist.all_reduce, lm.zeros{2})
        if rank == 0 then sleep(3) end
        print(pcall(function() return dist.all_reduce(lm.zeros{0}, {async_op = true}):wait(10) end))
      ]] }
    if not got then return end
    for rank = 0, 1 do
      assert.matches("false\t[^\n]*rank 1 on %S+ failed at %S+script.lua:%d+: [^\n]*the queue has a cold",
        got[rank].output)
    end
  end)

  it("passes on what the group refuses", function()
    local got = run { n = 2, env = { QUEUE_MODE = "refuse" }, script = [[
      start()
      print(pcall(dist.all_reduce, lm.zeros{2}))
      print(pcall(dist.all_reduce, lm.zeros{2}, {async_op = true}))
      dist.all_reduce(lm.zeros{0})
      dist.destroy_process_group()
      print(count "abort")
    ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do
      local line = "false\t[^\n]*all_reduce: the queue is closed today\n"
      assert.matches("^" .. line .. line .. "0\n$", got[rank].output)
    end
  end)

  it("waits at its end for what is under way", function()
    local got = run { n = 2, env_of = function(rank) return { QUEUE_MODE = rank == 1 and "slow" or "" } end,
      script = [[
        local rank = start()
        local t = lm.tensor{rank + 1}
        for _ = 1, 3 do dist.all_reduce(t, {async_op = true}) end
        collectgarbage()
        dist.destroy_process_group()
        print(list(t))
      ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("12\n", got[rank].output) end
  end)

  it("is cut out of the first group where it can be", function()
    local got = run { n = 3, script = [[
      local rank = start()
      local pair = dist.new_group{0, 2}
      local t = lm.tensor{rank}
      if rank ~= 1 then dist.all_reduce(t, {group = pair}) end
      dist.all_reduce(t)
      local other = dist.new_group({0, 1, 2}, {backend = "gloo"})
      dist.all_reduce(t, {group = other, op = "max"})
      print(list(t), dist.get_backend(other), count "split", count "open")
    ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 2 do assert.equal(("5\tgloo\t1\t%d\n"):format(rank == 1 and 1 or 2), got[rank].output) end
  end)

  it("leaves nothing in the store", function() -- the store takes 256 MiB; these are 320
    local got = run { n = 2, script = [[
      start("gloo", {timeout = 30})
      for _ = 1, 20 do
        local group = dist.new_group({0, 1}, {backend = "queue"})
        dist.all_reduce(lm.zeros{2 ^ 21}, {group = group})
        dist.destroy_process_group(group)
      end
      dist.barrier()
      print "there was room"
    ]] }
    if not got then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("there was room\n", got[rank].output) end
  end)

  describe("beside another backend", function()
    local tiny = { QUEUE_KINDS = 4 } -- the first kind of device that is not the core's own

    it("serves its device's tensors", function()
      local got = run { n = 2, env = tiny, script = [[
        local rank = start("tiny:QUEUE, cpu:gloo")
        assert(dist.get_backend() == "cpu:gloo,tiny:queue", dist.get_backend())
        local host, card = lm.tensor{rank + 1}, lm.tensor({rank + 1}, {device = "tiny:0"})
        dist.all_reduce(host)
        dist.all_reduce(card)
        local work = dist.all_reduce(card, {async_op = true, op = "max"})
        local other = dist.all_reduce(host, {async_op = true})
        assert(work:wait(10) and other:wait(10))
        local part = dist.new_group{1}
        if rank == 1 then dist.all_reduce(card, {group = part}) end
        assert(dist.get_backend(rank == 1 and part or nil) == "cpu:gloo,tiny:queue")
        local works = dist.batch_isend_irecv{{op = "isend", tensor = host, peer = 1 - rank},
          {op = "irecv", tensor = card, peer = 1 - rank}, {op = "isend", tensor = card:clone(), peer = 1 - rank},
          {op = "irecv", tensor = host, peer = 1 - rank}}
        for _, w in ipairs(works) do w:wait(10) end
        dist.barrier()
        print(list(host), list(card:to "cpu"), card.device, count "open", count "split")
      ]] }
      if not got then return end
      assert(got.ok, got.text)
      for rank = 0, 1 do assert.equal("6\t3\ttiny:0\t" .. (1 + rank) .. "\t1\n", got[rank].output) end
    end)

    it("tells ranks apart whose tensors lie elsewhere", function()
      local got = run { n = 2, env = tiny, script = [[
        local rank = start("cpu:gloo,tiny:queue")
        print(pcall(dist.all_reduce, lm.zeros({2}, {device = rank == 0 and "cpu" or "tiny:1"})))
      ]] }
      if not got then return end
      for rank = 0, 1 do
        assert.matches("^false\t[^\n]*all_reduce: ", got[rank].output)
        assert.matches("all_reduce sum float32 [2] on tiny", got[rank].output, 1, true)
        within(got[rank].seconds, 10, got.text)
      end
    end)

    it("takes what lies on another device by way of its own", function()
      local got = run { n = 2, env = { QUEUE_KINDS = 4 }, script = [[
        local rank = start("queue")
        print(select(2, pcall(dist.barrier)))
        local card = lm.tensor({rank}, {device = "tiny:1"})
        dist.barrier()
        local t = lm.tensor{rank + 1, 5}
        dist.all_reduce(t)
        local strided = lm.zeros{2, 2}:t()
        local work = dist.broadcast(strided, 1, {async_op = true})
        if rank == 1 then assert(work:wait()) end
        local gathered = {lm.zeros{1}, lm.zeros{1}}
        dist.all_gather(gathered, lm.tensor{rank * 3})
        dist.all_reduce(card, {scale = 2})
        work:wait()
        local r = lm.zeros{2}
        local works = dist.batch_isend_irecv{{op = "isend", tensor = lm.tensor{rank, 4}, peer = 1 - rank},
          {op = "irecv", tensor = r, peer = 1 - rank}}
        for _, w in ipairs(works) do w:wait() end
        print(list(t), list(gathered[1]), list(gathered[2]), list(card:to "cpu"), list(r))
      ]] }
      if not got then return end
      assert(got.ok, got.text)
      for rank = 0, 1 do
        assert.matches("barrier: group 'queue' has no device on this rank\n", got[rank].output, 1, true)
        assert.matches(("\n3 10\t0\t3\t2\t%d 4\n$"):format(1 - rank), got[rank].output)
      end
    end)

    it("is agreed on", function()
      local got = run { n = 2, env = tiny, timeout = 20, script = [[
        local backends = {[0] = "cpu:gloo,tiny:queue", "gloo"}
        print(pcall(start, backends[tonumber(os.getenv "RANK")]))
        print(pcall(dist.barrier))
      ]] }
      if not got then return end
      for rank = 0, 1 do
        assert.matches("false\t[^\n]*rank %d on %S+ asks for ", got[rank].output)
        assert.matches(" cpu:gloo,tiny:queue with ranks 0, 1 at ", got[rank].output, 1, true)
        assert.matches(" gloo with ranks 0, 1 at ", got[rank].output, 1, true)
      end
    end)

    it("is written right", function()
      local got = run { n = 1, env = tiny, script = [[
        for _, text in ipairs{"cpu:gloo,cpu:queue", "cpu:gloo,tpu:queue", "gloo,queue", "cpu:", ":gloo", "cpu:gloo,",
                              "cpu:gloo,tiny:quene", "cpu:gloo:queue", "nothere"} do
          print((select(2, pcall(dist.init_process_group, text))))
        end
        print(dist.is_backend_available "cpu:gloo,tiny:queue", dist.is_backend_available "cpu:gloo,tiny:what")
      ]] }
      if not got then return end
      assert(got.ok, got.text)
      local lines = {}
      for line in got[0].output:gmatch "[^\n]+" do lines[#lines + 1] = line end
      for i, text in ipairs {
        "cpu is listed twice", "unknown device 'tpu'",
        "'gloo' must name its device, as in \"cpu:gloo,cuda:nccl\"",
        "'cpu:' must be a device and its backend", "':gloo' must be a device and its backend",
        "'' must name its device",
        "unknown backend 'quene'; did you mean 'queue'?", "unknown backend", "available: solo",
      } do
        assert.matches(text, lines[i], 1, true)
        assert.matches("init_process_group: ", lines[i], 1, true)
      end
      assert.equal("true\tfalse", lines[10])
    end)
  end)

  it("is not the default where there is no card, and nothing of CUDA is loaded to find out", function()
    local got = run { n = 2, script = [[
      start(false or nil)
      dist.destroy_process_group()
      dist.init_process_group()
      print(dist.get_backend())
      for line in io.lines "/proc/self/maps" do
        if line:find "cuda" and not os.getenv "LD_PRELOAD" then print(line) end
      end
    ]], env = { LM_SPEC_DEVICE = false } }
    if not got then return end
    if os.getenv "LD_PRELOAD" or io.open "/dev/nvidiactl" then return end
    assert(got.ok, got.text)
    for rank = 0, 1 do assert.equal("gloo\n", got[rank].output) end
  end)
end)
