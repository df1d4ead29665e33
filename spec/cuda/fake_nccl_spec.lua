-- The stand-in for NCCL that the specs of the group "nccl" run on: does it what NCCL's documentation says, and does it
-- hang where NCCL does? Ranks are processes here that know nothing of luminary.
local nccl = require "spec.support.fake_nccl"
local ranks = require "spec.support.ranks"
local temp = require "spec.support.temp"
if not nccl.is_there then return end

describe("the stand-in for NCCL", function()
  local folder = temp.during(setup, teardown)

  local turn = 0
  -- Runs n ranks, each with its own card, a communicator `comm` and a stream, unless `bare`.
  local function run(n, script, env, bare)
    turn = turn + 1
    local before = ([[
      local ffi, nccl = require "ffi", require "spec.support.fake_nccl"
      local C, ok, path, n = ffi.C, nccl.ok, %q, %d
      local me = tonumber(os.getenv "RANK")
      local function same(want, got)
        local a, b = table.concat(want, " "), table.concat(got, " ")
        if a ~= b then error(("want %%s; got %%s"):format(a, b), 2) end
      end
      local function live(what) return tonumber(C.lm_fake_live(what)) end
      ok(C.cudaSetDevice(me %% tonumber(os.getenv "LM_FAKE_CUDA_DEVICES")))
    ]]):format(("%s/id%d"):format(folder, turn), n)
    if not bare then before = before .. "local comm, stream = nccl.comm(path, n, me), nccl.stream()\n" end
    local all = { LM_FAKE_CUDA_DEVICES = n, CUDA_VISIBLE_DEVICES = false, LM_FAKE_NCCL = false }
    for name, value in pairs(env or {}) do all[name] = value end
    local got = ranks.run { n = n, timeout = 30, env = all, script = before .. script }
    assert(got.ok, got.text)
    return got
  end

  it("reduces every dtype by every operation, on all ranks alike", function()
    run(3, [[
      local functions = {
        sum = function(a, b) return a + b end, product = function(a, b) return a * b end,
        max = math.max, min = math.min, mean = function(a, b) return a + b end,
      }
      local function sorted(set)
        local names = {}
        for name in pairs(set) do names[#names + 1] = name end
        table.sort(names)
        return names
      end
      for _, ctype in ipairs(sorted(nccl.types)) do
        for _, op in ipairs(sorted(functions)) do
          local dtype, f = nccl.types[ctype], functions[op]
          local mine, want = {}, {}
          for i = 1, 6 do
            local function value(rank) return (rank + i) % 4 + 1 end
            mine[i], want[i] = value(me), f(f(value(0), value(1)), value(2))
            if op == "mean" and dtype < nccl.types.float then want[i] = math.floor(want[i] / 3) end
          end
          local x, y = nccl.device(ctype, 6, mine, stream), nccl.device(ctype, 6)
          local function get(p, count)
            local values = nccl.values(ctype, count or 6, p, stream)
            for i, v in ipairs(values) do
              if op == "mean" and dtype >= nccl.types.float then values[i] = math.floor(3 * v + 0.5) end
            end
            return values
          end
          nccl.done(comm, C.ncclAllReduce(x, y, 6, dtype, nccl.ops[op], comm, stream))
          same(want, get(y))
          nccl.done(comm, C.ncclReduceScatter(x, y, 2, dtype, nccl.ops[op], comm, stream))
          same({ want[2 * me + 1], want[2 * me + 2] }, get(y, 2))
          nccl.done(comm, C.ncclReduce(x, me == 1 and x or nil, 6, dtype, nccl.ops[op], 1, comm, stream))
          if me == 1 or op ~= "mean" then same(me == 1 and want or mine, get(x)) end
        end
      end
    ]])
  end)

  it("moves data, in place too", function()
    run(3, [[
      local t = nccl.types.int32_t
      local x = nccl.device("int32_t", 2, { me, 10 * me }, stream)
      local all = nccl.device("int32_t", 6)
      nccl.done(comm, C.ncclAllGather(x, all, 2, t, comm, stream))
      same({ 0, 0, 1, 10, 2, 20 }, nccl.values("int32_t", 6, all, stream))
      local place = ffi.cast("int32_t *", all) + 2 * me
      nccl.done(comm, C.ncclAllReduce(place, place, 2, t, 0, comm, stream))
      nccl.done(comm, C.ncclAllGather(place, all, 2, t, comm, stream))
      same({ 3, 30, 3, 30, 3, 30 }, nccl.values("int32_t", 6, all, stream))
      nccl.done(comm, C.ncclBroadcast(x, x, 2, t, 2, comm, stream))
      same({ 2, 20 }, nccl.values("int32_t", 2, x, stream))
      ok(C.ncclAllReduce(x, x, 0, t, 0, comm, stream)) -- nothing to do, and not in progress
      -- Around the ring and to itself, at once.
      local from = nccl.device("int32_t", 3, { me, 0, 0 }, stream)
      local at = ffi.cast("int32_t *", from)
      ok(C.ncclGroupStart())
      ok(C.ncclSend(at, 1, t, (me + 1) % 3, comm, stream))
      ok(C.ncclRecv(at + 1, 1, t, (me - 1) % 3, comm, stream))
      ok(C.ncclSend(at, 1, t, me, comm, stream))
      ok(C.ncclRecv(at + 2, 1, t, me, comm, stream))
      nccl.done(comm, C.ncclGroupEnd())
      same({ me, (me - 1) % 3, me }, nccl.values("int32_t", 3, from, stream))
    ]])
  end)

  it("connects ranks at first use, and buffers small sends, on demand", function()
    local got = run(2, [[
      local state, t = ffi.new "int[1]", nccl.types.int32_t
      local x = nccl.device("int32_t", 4, { me, 2, 3, 4 }, stream)
      local turn = 0
      local function in_turn(f) -- returns f() on rank 0, for which rank 1 waits
        turn = turn + 1
        local file = path .. "-" .. turn
        if me == 0 then
          local result = f()
          assert(io.open(file, "w")):close()
          return result
        end
        for _ = 1, 5000 do
          if io.open(file) then return nil end
          C.usleep(1000)
        end
        error "rank 0 did not come"
      end
      local function all_reduce() return C.ncclAllReduce(x, x, 1, t, 0, comm, stream) end
      local function pass() -- from rank 0 to 1
        return me == 0 and C.ncclSend(x, 4, t, 1, comm, stream) or C.ncclRecv(x, 4, t, 0, comm, stream)
      end
      local seen = {}
      for i, call in ipairs { all_reduce, all_reduce, pass, pass } do
        local code = me == 0 and call()
        seen[i] = tostring(in_turn(function()
          for _ = 1, 50 do
            C.usleep(1000)
            ok(C.ncclCommGetAsyncError(comm, state))
          end
          return state[0] == 7
        end))
        nccl.done(comm, code or call())
      end
      nccl.done(comm, all_reduce())
      ok(C.cudaStreamSynchronize(stream)) -- all is received
      -- Two of three sends have a slot, and end before they are received.
      local events = {}
      local function pass_three()
        for i = 1, 3 do
          events[i] = nccl.event()
          nccl.done(comm, pass())
          ok(C.cudaEventRecord(events[i], stream))
        end
      end
      if me == 0 then pass_three() end
      in_turn(function()
        for _ = 1, 10000 do
          if C.cudaEventQuery(events[2]) == 0 then break end
          C.usleep(1000)
        end
        C.usleep(100000) -- in which the third would end
        for i = 1, 3 do seen[#seen + 1] = tostring(C.cudaEventQuery(events[i])) end
        print(table.concat(seen, " "))
      end)
      if me == 1 then pass_three() end
      ok(C.cudaStreamSynchronize(stream))
      nccl.done(comm, all_reduce())
      ok(C.cudaStreamSynchronize(stream))
    ]], { LM_FAKE_NCCL = "connect=1,eager=16,slots=2" })
    assert.equal("true false true false 0 0 600\n", got[0].output)
  end)

  it("runs in the order of its stream, and nobody has to wait for it", function()
    run(2, [[
      local t, side, event = nccl.types.int32_t, nccl.stream(), nccl.event()
      local x = nccl.device("int32_t", 1, { 0 }, stream)
      ok(C.cudaMemcpyAsync(x, ffi.new("int32_t[1]", me + 1), 4, 1, side))
      ok(C.cudaEventRecord(event, side))
      ok(C.cudaStreamWaitEvent(stream, event, 0))
      nccl.done(comm, C.ncclAllReduce(x, x, 1, t, 0, comm, stream))
      nccl.done(comm, C.ncclAllReduce(x, x, 1, t, 0, comm, stream))
      ok(C.cudaEventRecord(event, stream))
      for _ = 1, 1000 do
        if C.cudaEventQuery(event) == 0 then break end
        C.usleep(1000)
      end
      ok(C.cudaEventQuery(event))
      ok(C.cudaStreamWaitEvent(side, event, 0))
      same({ 6 }, nccl.values("int32_t", 1, x, side))
    ]])
  end)

  it("is in progress for as many polls as was told, and takes no call meanwhile", function()
    run(2, [[
      local out, x = ffi.new "spec_nccl[1]", nccl.device("int32_t", 1, { 1 }, nil)
      local t = nccl.types.int32_t
      assert(C.ncclCommInitRankConfig(out, 2, nccl.id(path, me), me, nccl.config(0)) == 7)
      local comm = out[0]
      assert(C.ncclAllReduce(x, x, 1, t, 0, comm, nil) == 4)
      local state, times = nccl.poll(comm)
      assert(state == 0 and times >= 3)
      local event = nccl.event()
      assert(C.ncclAllReduce(x, x, 1, t, 0, comm, nil) == 7)
      ok(C.cudaEventRecord(event, nil)) -- too early: the collective is not on the stream yet
      ok(C.cudaDeviceSynchronize())
      ok(C.cudaEventQuery(event))
      state, times = nccl.poll(comm)
      assert(state == 0 and times == 3)
      same({ 2 }, nccl.values("int32_t", 1, x, nil))
      nccl.done(comm, C.ncclCommFinalize(comm))
      assert(C.ncclAllReduce(x, x, 1, t, 0, comm, nil) == 4)
      ok(C.ncclCommDestroy(comm))
      assert(live "communicator" == 0)
    ]], { LM_FAKE_NCCL = "polls=3" }, true)
  end)

  it("splits; the new handle is there once the parent has settled", function()
    run(3, [[
      local t, out, count = nccl.types.int32_t, ffi.new "spec_nccl[1]", ffi.new "int[1]"
      ok(C.ncclCommSplit(comm, me == 1 and -1 or 0, -me, out, nil), 7)
      assert(out[0] == nil)
      ok((nccl.poll(comm)))
      if me == 1 then
        assert(out[0] == nil and live "communicator" == 1)
      else
        ok((nccl.poll(out[0])))
        ok(C.ncclCommUserRank(out[0], count))
        assert(count[0] == (me == 2 and 0 or 1)) -- ranks are in order of the keys
        local x = nccl.device("int32_t", 1, { me + 1 }, stream)
        nccl.done(out[0], C.ncclAllReduce(x, x, 1, t, 0, out[0], stream))
        same({ 4 }, nccl.values("int32_t", 1, x, stream))
        ok(C.ncclCommDestroy(out[0]))
      end
      local y = nccl.device("int32_t", 1, { me + 1 }, stream)
      nccl.done(comm, C.ncclAllReduce(y, y, 1, t, 0, comm, stream))
      same({ 6 }, nccl.values("int32_t", 1, y, stream))
    ]])
  end)

  it("hangs where ranks do not agree, until it is aborted", function()
    run(2, [[
      local t, event = nccl.types.int32_t, nccl.event()
      local x = nccl.device("int32_t", 8, { 1 }, stream)
      nccl.done(comm, C.ncclAllReduce(x, x, me == 0 and 8 or 4, t, 0, comm, stream))
      ok(C.cudaEventRecord(event, stream))
      C.usleep(200000)
      for _ = 1, me == 0 and 200 or 0 do assert(C.cudaEventQuery(event) == 600) end
      ok(C.ncclCommAbort(comm))
      ok(C.cudaStreamSynchronize(stream))
      ok(C.cudaEventQuery(event))
      assert(C.ncclAllReduce(x, x, 8, t, 0, comm, stream) == 4 and C.ncclCommAbort(comm) == 4)
      assert(live "communicator" == 0)
    ]])
  end)

  it("hangs when a rank is gone, or says so if told to", function()
    for _, lost in ipairs { 0, 1 } do
      local got = run(2, [[
        local x = nccl.device("int32_t", 1, { 1 }, stream)
        if me == 0 then
          local file = assert(io.open(path .. ".gone", "w"))
          file:close()
          return ffi.C.usleep(1000)
        end
        repeat until io.open(path .. ".gone")
        nccl.done(comm, C.ncclAllReduce(x, x, 1, nccl.types.int32_t, 0, comm, stream))
        local state
        for _ = 1, os.getenv "LM_FAKE_NCCL" == "lost=1" and 1000 or 30 do
          C.usleep(10000)
          state = nccl.poll(comm)
          if state == 6 then break end
        end
        print(state)
        ok(C.ncclCommAbort(comm))
        ok(C.cudaStreamSynchronize(stream))
      ]], { LM_FAKE_NCCL = "lost=" .. lost })
      assert.equal(lost == 1 and "6\n" or "0\n", got[1].output)
    end
  end)

  it("fails, errs and gets stuck on demand", function()
    run(1, [[
      local x, t, state = nccl.device("int32_t", 1, { 1 }, stream), nccl.types.int32_t, ffi.new "int[1]"
      C.lm_fake_fail("ncclAllReduce", 2, 3)
      nccl.done(comm, C.ncclAllReduce(x, x, 1, t, 0, comm, stream))
      assert(C.ncclAllReduce(x, x, 1, t, 0, comm, stream) == 3)
      C.lm_fake_fail("ncclSend", 1, 2)
      ok(C.ncclGroupStart())
      assert(C.ncclSend(x, 1, t, 0, comm, stream) == 2)
      assert(C.ncclGroupEnd() == 2)
      local event = nccl.event()
      assert(C.lm_fake_nccl("stuck", 1) == 0 and C.lm_fake_nccl("stick", 1) == -1)
      nccl.done(comm, C.ncclAllReduce(x, x, 1, t, 0, comm, stream))
      ok(C.cudaEventRecord(event, stream))
      C.usleep(100000)
      assert(C.cudaEventQuery(event) == 600)
      C.lm_fake_nccl("async", 2)
      ok(C.ncclCommGetAsyncError(comm, state))
      assert(state[0] == 0)
      for _ = 1, 2 do
        ok(C.ncclCommGetAsyncError(comm, state))
        assert(state[0] == 6 and C.ncclAllReduce(x, x, 1, t, 0, comm, stream) == 6)
      end
      ok(C.ncclCommAbort(comm))
      ok(C.cudaDeviceSynchronize())
    ]])
  end)

  it("refuses two ranks on one card", function()
    run(2, [[
      ok(C.cudaSetDevice(1))
      local out = ffi.new "spec_nccl[1]"
      assert(C.ncclCommInitRankConfig(out, 2, nccl.id(path, me), me, nccl.config(1)) == 5)
      local text = ffi.string(C.ncclGetLastError(nil))
      assert(text:match "Duplicate GPU detected : rank 0 and rank 1", text)
      assert(live "communicator" == 0)
    ]], nil, true)
    run(2, [[
      local out = ffi.new "spec_nccl[1]"
      ok(C.ncclCommInitRankConfig(out, 2, nccl.id(path, me), me, nccl.config(1)))
      ok(C.ncclCommDestroy(out[0]))
    ]], { LM_FAKE_CUDA_DEVICES = 2 }, true)
  end)

  it("serves several ranks of one thread by groups, and only so", function()
    run(1, [[
      local out, t = ffi.new "spec_nccl[2]", nccl.types.int32_t
      ok(C.ncclCommInitAll(out, 2, ffi.new("int[2]", 1, 0)))
      assert(C.ncclCommInitAll(out + 0, 2, ffi.new("int[2]", 1, 1)) == 5)
      ok(C.ncclCommInitAll(out, 2, nil))
      local x, streams = {}, {}
      for i = 0, 1 do
        ok(C.cudaSetDevice(i))
        streams[i] = nccl.stream()
        x[i] = nccl.device("int32_t", 1, { i + 1 }, streams[i])
      end
      assert(C.ncclAllReduce(x[0], x[0], 1, t, 0, out[0], streams[0]) == 5)
      assert(C.ncclAllReduce(x[0], x[0], 1, t, 0, out[0], streams[1]) == 5)
      ok(C.ncclGroupStart())
      for i = 0, 1 do ok(C.ncclReduce(x[i], x[i], 1, t, 0, 0, out[i], streams[i])) end
      ok(C.ncclGroupEnd())
      same({ 3 }, nccl.values("int32_t", 1, x[0], streams[0]))
      same({ 2 }, nccl.values("int32_t", 1, x[1], streams[1]))
      ok(C.ncclGroupStart())
      assert(C.ncclAllReduce(x[0], x[1], 1, t, 0, out[0], streams[0]) == 4) -- another card's memory
      assert(C.ncclGroupEnd() == 4)
      for i = 0, 1 do ok(C.ncclCommDestroy(out[i])) end
    ]], { LM_FAKE_CUDA_DEVICES = 2 }, true)
  end)
end)
