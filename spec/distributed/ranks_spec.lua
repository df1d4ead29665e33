-- dist between real ranks: processes of this machine.
require "luminary"
local core = require "luminary.core"
local within = require("spec.support.time").within
local ranks, temp = require "spec.support.ranks", require "spec.support.temp"
local images = require "spec.support.images"

local prelude = [[
local lm = require "luminary"
local message = require "spec.support.error_of"
local dist = lm.dist
local function nap(seconds)
  local t = lm.time()
  while lm.time() < t + seconds do end
end
local function same(want, got)
  local function text(v)
    if lm.is_tensor(v) then v = v:totable() end
    if type(v) ~= "table" then return tostring(v) end
    local parts = {}
    for key, value in pairs(v) do parts[#parts + 1] = tostring(key) .. "=" .. text(value) end
    table.sort(parts)
    return "{" .. table.concat(parts, " ") .. "}"
  end
  if text(want) ~= text(got) then error(("%s wanted, got %s"):format(text(want), text(got)), 2) end
end
]]

-- Runs a script's text on n ranks; it fails unless all end well. A token keeps rank 0 quiet.
local function run(n, script, options)
  options = options or {}
  options.n, options.script = n, prelude .. script
  options.env = options.env or { LM_TOKEN = "a token for specs" }
  local got = ranks.run(options)
  if not options.may_fail then assert(got.ok, got.text) end
  return got
end

local joined = "dist.init_process_group()\nlocal me, n = dist.get_rank(), dist.get_world_size()\n"

describe("ranks meet", function()
  it("by env://", function()
    local got = run(3, [[
      dist.init_process_group()
      print(dist.get_rank(), dist.get_world_size(), dist.get_local_rank(), dist.get_backend(), dist.local_device())
      print(dist.group.WORLD)
    ]])
    for rank = 0, 2 do
      assert.equal(("%d\t3\t%d\tgloo\tcpu\nProcessGroup(gloo, rank %d of 3)\n"):format(rank, rank, rank),
        got[rank].output)
    end
  end)

  it("by tcp:// and file://, with ranks given", function()
    local bare = { RANK = false, WORLD_SIZE = false, LOCAL_RANK = false, LOCAL_WORLD_SIZE = false, MASTER_ADDR = false,
      MASTER_PORT = false, LM_TOKEN = "t" }
    local folder = temp.folder()
    local port = ranks.free_port()
    for _, method in ipairs { "tcp://127.0.0.1:" .. port, "file://" .. folder .. "/meet" } do
      local got = run(2, [[
        local method, me = arg[1], tonumber(os.getenv "ME")
        dist.init_process_group("gloo", { init_method = method, rank = me, world_size = 2, timeout = 20 })
        local t = dist.all_reduce(lm.ones(2))
        print(dist.get_rank(), dist.get_local_rank(), t:sum():item())
        dist.destroy_process_group()
        -- and once more at the same place, in other words
        dist.init_process_group{init_method = method .. "?world_size=2&rank=" .. me}
        dist.barrier()
      ]], { args = method, env = bare, env_of = function(rank) return { ME = rank } end })
      for rank = 0, 1 do assert.equal(("%d\t%d\t4\n"):format(rank, rank), got[rank].output) end
    end
    temp.remove(folder)
  end)

  it("by a file, and leave alone what is none of theirs", function()
    local folder = temp.folder()
    local path = folder .. "/meet"
    local ready = "luminary 127.0.0.1:1 0123456789abcdef\n"
    for what, make in pairs {
      ["exists and is not a rendezvous file"] = function()
        temp.write(path, "luminary is what this text is about\n")
      end,
      ["is not a rendezvous file"] = function() temp.write(path, ready .. "and more") end,
      ["and is not a rendezvous file"] = function() temp.write(path, ready:gsub("abc", "a\0bc")) end,
      ["a FIFO"] = function() os.execute("mkfifo " .. path) end,
      ["a folder"] = function() os.execute("mkdir " .. path) end,
      ["a link"] = function()
        temp.write(folder .. "/text", "words")
        os.execute(("ln -s %s/text %s"):format(folder, path))
      end,
      ["a device"] = function() -- a copy of /dev/null, which a failure of this would replace
        return os.execute(("mknod %s c 1 3 2>/dev/null"):format(path)) == 0
      end,
    } do
      if make() ~= false then
        local function state()
          return select(2, temp.run(folder, ("ls -ld --time-style=full-iso %s; test -f %s && cat %s"):format(path, path,
            path)))
        end
        local before = state()
        local got = run(2, "print(message(dist.init_process_group, {init_method = 'file://' .. arg[1], timeout = 20}))",
          { args = path, timeout = 30 })
        for rank = 0, 1 do
          assert.matches("init_process_group: init_method: [^\n]*" .. path .. "[^\n]*" .. what, got[rank].output)
          within(got[rank].seconds, 10, got.text)
        end
        assert.equal(before, state())
        os.execute("rm -rf " .. path)
        local left = select(2, temp.run(folder, "ls " .. folder)):gsub("text\n", ""):gsub("output\n", "")
        assert.equal("", left)
      end
    end
    temp.remove(folder)
  end)

  it("and rank 0 says once that no token was set", function()
    local got = run(2, [[
      for _ = 1, 2 do
        dist.init_process_group()
        dist.destroy_process_group()
      end
    ]], { env = { LM_TOKEN = false } })
    assert.matches("^luminary: no LM_TOKEN is set: the job's id alone %('spec%-[^\n]*\n$", got[0].output)
    assert.equal("", got[1].output)
  end)

  it("only with the same token", function()
    local got = run(2, [[print(message(dist.init_process_group, { timeout = 8 }))]],
      { env_of = function(rank) return { LM_TOKEN = "token " .. rank } end })
    assert.matches("init_process_group: .*token", got[1].output)
  end)

  it("or say who is missing", function()
    local got = run(1, [[print(message(dist.init_process_group, { timeout = 1 }))]],
      { env = { WORLD_SIZE = 2, LM_TOKEN = "t" } })
    assert.matches("init_process_group: .*rank 1", got[0].output)
    within(got[0].seconds, 5, got.text)
  end)

  it("and two that claim one number are told so", function()
    local got = run(2, [[print(message(dist.init_process_group, { rank = 0, timeout = 8 }))]], { may_fail = true })
    assert.matches("is another rank 0 of this job running", got[0].output .. got[1].output)
  end)
end)

describe("collectives", function()
  it("of tensors", function()
    run(3, joined .. [[
      local t = lm.tensor { 1, 2 } * (me + 1)
      same(lm.tensor { 6, 12 }, dist.all_reduce(t:clone()))
      same(lm.tensor { 2, 4 }, dist.all_reduce(t:clone(), { op = "mean" }))
      same(lm.tensor { 6, 48 }, dist.all_reduce(t:clone(), { op = "product" }))
      same(lm.tensor { 1, 2 }, dist.all_reduce(t:clone(), { op = dist.ReduceOp.MIN }))
      same(lm.tensor { 3, 6 }, dist.all_reduce(t:clone(), { op = "max" }))
      local bits = lm.tensor({ 2 ^ me }, { dtype = "int64" })
      same({ 7 }, dist.all_reduce(bits:clone(), { op = "bor" }))
      same({ 0 }, dist.all_reduce(bits:clone(), { op = "band" }))
      same(lm.tensor { 2, 4 }, dist.broadcast(t:clone(), 1))
      same(lm.tensor { 3, 6 }, dist.broadcast(t:clone(), { src = 2 }))
      same(me == 1 and lm.tensor { 6, 12 } or t, dist.reduce(t:clone(), 1))
      local function list() return { lm.zeros(2), lm.zeros(2), lm.zeros(2) } end
      local all = { lm.tensor { 1, 2 }, lm.tensor { 2, 4 }, lm.tensor { 3, 6 } }
      same(all, dist.all_gather(list(), t))
      same(lm.tensor { 1, 2, 2, 4, 3, 6 }, dist.all_gather_into_tensor(lm.zeros(6), t))
      same(lm.tensor { { 1, 2 }, { 2, 4 }, { 3, 6 } }, dist.all_gather_into_tensor(lm.zeros(3, 2), t))
      local whole = lm.full({ n, 50000 }, me) -- an input that is its part of the output is not copied
      lm.reset_peak_memory_stats()
      local before = lm.memory_allocated()
      dist.all_gather_into_tensor(whole, whole[me + 1])
      same(lm.tensor { 0, 1, 2 }, whole:select(2, 50000))
      assert(lm.max_memory_allocated() - before < 100000, "a copy was made")
      same(me == 0 and all or nil, dist.gather(t, me == 0 and list() or nil))
      same(me == 2 and all or nil, dist.gather(t, { gather_list = me == 2 and list() or nil, dst = 2 }))
      same(t, dist.scatter(lm.zeros(2), me == 1 and all or nil, 1))
      same(t * 3, dist.reduce_scatter(lm.zeros(2), all))
      same(t * 3, dist.reduce_scatter_tensor(lm.zeros(2), lm.tensor { 1, 2, 2, 4, 3, 6 }))
      same(t, dist.reduce_scatter_tensor(lm.zeros(2), lm.tensor { { 1, 2 }, { 2, 4 }, { 3, 6 } }, { op = "mean" }))
      local ins, outs = {}, {}
      for r = 0, n - 1 do ins[r + 1], outs[r + 1] = lm.full({ r + 1 }, me), lm.zeros(me + 1) end
      dist.all_to_all(outs, ins)
      for r = 0, n - 1 do same(lm.full({ me + 1 }, r), outs[r + 1]) end
      same(lm.tensor { 0, 1, 2 } + 10 * me,
        dist.all_to_all_single(lm.zeros(3), lm.tensor { 0, 10, 20 } + me))
      local strided = lm.zeros(2, 3):t()
      strided:copy_(lm.arange(6):view(3, 2))
      same((lm.arange(6) * 3):view(3, 2), dist.all_reduce(strided))
      dist.all_reduce(lm.zeros(0))
      dist.barrier()
      dist.monitored_barrier()
    ]])
  end)

  it("that average float16 whose sums exceed its range", function()
    local script = joined .. [[
      for _, count in ipairs { 10, 20000, 1500000 } do
        local t = (48000 + 96 * (lm.arange(count) % 50)):to "float16" -- multiples of thirds have no rounding errors
        local function is_mean(got, what) assert(lm.equal(got, t), what .. " of " .. count) end
        is_mean(dist.all_reduce(t:clone(), { op = "mean" }), "all_reduce")
        is_mean(dist.reduce(t:clone(), 1, { op = "mean" }), "reduce") -- the other ranks' tensors do not change
        local all = lm.stack(lists_of(t))
        is_mean(dist.reduce_scatter_tensor(lm.zeros_like(t), all, { op = "mean" }), "reduce_scatter")
        is_mean(all[n], "the input of reduce_scatter")
      end
    ]]
    for size = 2, 3 do
      for _, shared in ipairs { "0", "1" } do
        run(size, (script:gsub("lists_of%(t%)", "{ t" .. (", t"):rep(size - 1) .. " }")),
          { env = { LM_TOKEN = "t", LM_SHM = shared } })
      end
    end
  end)

  it("that run while the script goes on", function()
    run(3, joined .. [[
      local works, tensors = {}, {}
      for i = 1, 20 do
        tensors[i] = lm.full({ 1000 }, i + me)
        works[i] = dist.all_reduce(tensors[i], { async_op = true })
      end
      for i = 20, 1, -1 do
        assert(works[i]:wait(10))
        assert(works[i]:is_completed())
        same(3 * i + 3, tensors[i][1])
      end
      local first = dist.barrier { async_op = true }
      same(lm.tensor { 3 }, dist.all_reduce(lm.ones(1))) -- comes after it
      assert(first:is_completed())
      assert(tostring(first):find "completed")
    ]])
  end)

  it("from rank to rank", function()
    run(3, joined .. [[
      local left, right = (me - 1) % n, (me + 1) % n
      local t = lm.zeros(4)
      local got, sent = dist.irecv(t, left), dist.isend(lm.full({ 4 }, me), right)
      got:wait()
      sent:wait()
      same(lm.full({ 4 }, left), t)
      if me == 0 then
        dist.send(lm.ones(1), 1, { tag = 5 })
        dist.send(lm.zeros(1), 1)
        local seen = {}
        for _ = 1, 2 do
          local from = dist.recv(t)
          same(lm.full({ 4 }, from), t)
          seen[from] = true
        end
        assert(seen[1] and seen[2])
      else
        dist.send(lm.full({ 4 }, me), 0)
        if me == 1 then
          local one = lm.zeros(1)
          same(0, dist.recv(one, 0))
          same({ 0 }, one)
          same(0, dist.recv(one, 0, { tag = 5 }))
          same({ 1 }, one)
        end
      end
      if me == 2 then dist.send(lm.ones(1), 1) end
      if me == 1 then
        local work = dist.irecv(lm.zeros(1))
        work:wait()
        same(2, work:source_rank())
      end
      dist.barrier()
    ]])
  end)

  it("in groups of some ranks", function()
    run(4, joined .. [[
      local odd, even = dist.new_group { 3, 1 }, dist.new_group { ranks = { 0, 2 }, timeout = 30 }
      local mine, other = odd, even
      if me % 2 == 0 then mine, other = even, odd end
      assert(other == dist.NON_MEMBER and mine ~= other)
      same(-1, dist.get_rank(other))
      same({ math.floor(me / 2), 2 }, { dist.get_rank(mine), dist.get_world_size(mine) })
      same({ me % 2, me % 2 + 2 }, dist.get_process_group_ranks(mine))
      same(me % 2 + 2, dist.get_global_rank(mine, 1))
      same(dist.get_rank(mine), dist.get_group_rank(mine, me))
      same(("ProcessGroup(gloo, rank %d of 2 of the world's {%d, %d})"):format(me / 2, me % 2, me % 2 + 2),
        tostring(mine))
      same({ 2 * (me % 2) + 2 }, dist.all_reduce(lm.tensor { me }, { group = mine }))
      same({ me % 2 + 2 }, dist.broadcast(lm.tensor { me }, me % 2 + 2, { group = mine })) -- ranks of the world
      local peer = (me + 2) % 4
      if me < 2 then
        dist.send(lm.tensor { me }, peer, { group = mine })
      else
        local t = lm.zeros(1)
        same(peer, dist.recv(t, peer, { group = mine }))
        same({ peer }, t)
      end
      assert(message(dist.broadcast, lm.ones(1), (me + 1) % 4, { group = mine })
        :find "not in this group of 2 ranks %(%[")
      assert(message(dist.all_reduce, lm.ones(1), { group = other }):find "is not in the group")
      local list = dist.all_gather_object({}, "from " .. me, { group = mine })
      same({ "from " .. me % 2, "from " .. me % 2 + 2 }, list)
      dist.destroy_process_group(mine)
      same({ 4 }, dist.all_reduce(lm.ones(1)))
    ]])
  end)

  it("of plain values", function()
    run(3, joined .. [[
      local value = { rank = me, list = { 1 / 0, "a\0b", { true } }, [2 ^ 60] = ("x"):rep(1000 * me) }
      local all = dist.all_gather_object({}, value)
      for r = 0, n - 1 do
        same(r, all[r + 1].rank)
        same(1000 * r, #all[r + 1][2 ^ 60])
        same({ 1 / 0, "a\0b", { true } }, all[r + 1].list)
      end
      same({ "three", 3, { 4 } }, dist.broadcast_object_list(me == 2 and { "three", 3, { 4 } } or {}, 2))
      local got = dist.gather_object(me * 10, nil, 1)
      same(me == 1 and { 0, 10, 20 } or nil, got)
      local out = {}
      same("for " .. me, dist.scatter_object_list(out, me == 0 and { "for 0", "for 1", "for 2" } or nil, 0))
      same({ "for " .. me }, out)
      same({}, dist.all_gather_object({}, nil))
    ]])
  end)

  it("of values with tensors, which share what they shared", function()
    run(3, joined .. [[
      for _, dtype in ipairs { "float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool" } do
        local t = lm.arange(0, 6 + me):view(-1, 1):expand(-1, 2):t():to(dtype):requires_grad_(dtype == "float32")
        local sent = { t = t, none = lm.empty(0, 3, { dtype = dtype }), big = -2LL ^ 62 + me }
        sent.twice = sent.t
        for r, got in ipairs(dist.all_gather_object({}, sent)) do
          same(lm.arange(0, 5 + r):view(-1, 1):expand(-1, 2):t():to(dtype):totable(), got.t:totable())
          same({ dtype, false, { 0, 3 } }, { got.t.dtype, got.t.requires_grad, { unpack(got.none.shape) } })
          assert(rawequal(got.t, got.twice) and got.big == -2LL ^ 62 + r - 1)
        end
      end
      local x = dist.broadcast_object_list(me == 1 and { lm.ones(2, { dtype = "float16" }) } or {}, 1)[1]
      same({ 1, 1 }, x:totable())
      local list = me == 0 and { 1, lm.ones(40), lm.zeros(1) } or nil
      local mine = dist.scatter_object_list({}, list, 0)
      same(me == 0 and 1 or me == 1 and 40 or 0, me == 0 and mine or mine:sum():item())
      local all = dist.gather_object({ lm.full({ 1000 }, me) }, nil, 2)
      same(me == 2 and 3000 or nil, me == 2 and (all[1][1] + all[2][1] + all[3][1]):sum():item() or nil)
    ]])
  end)
end)

describe("a failure", function()
  local waits = [[
    local ok, err = pcall(dist.all_reduce, lm.ones(1))
    assert(not ok)
    print(err)
    print(message(dist.barrier)) -- every later call fails, too
  ]]

  it("of a script is known to all with its text and line", function()
    local got = run(3, joined .. "dist.barrier()\nif me == 1 then nap(0.3) error('boom on purpose') end\n" .. waits,
      { command = ranks.luminary, may_fail = true })
    assert.equal(1, got[1].code)
    assert.matches("script.lua:%d+: boom on purpose\nstack traceback", got[1].output)
    for _, rank in ipairs { 0, 2 } do
      assert.equal(0, got[rank].code, got.text)
      for _, call in ipairs { "all_reduce", "barrier" } do
        assert.matches(call .. "[^\n]*rank 1 on [^\n]*script.lua:%d+[^\n]*boom on purpose", got[rank].output)
      end
      within(got[rank].seconds, got[1].seconds + 2, got.text)
    end
  end)

  it("of a script is known to all though its text has a zero byte, or is long", function()
    local got = run(3, joined .. [[
      dist.barrier()
      if me == 1 then nap(0.3) error("bad \0 byte") end
    ]] .. waits, { command = ranks.luminary, may_fail = true })
    assert.equal(1, got[1].code)
    assert.matches("script.lua:%d+: bad \\0 byte\nstack traceback", got[1].output)
    for _, rank in ipairs { 0, 2 } do
      assert.equal(0, got[rank].code, got.text)
      assert.matches("all_reduce[^\n]*rank 1 on [^\n]*script.lua:%d+[^\n]*bad \\0 byte", got[rank].output)
    end
    got = run(2, joined .. [[
      dist.barrier()
      if me == 1 then nap(0.3) error("bad " .. ("x"):rep(1e7) .. " the end") end
    ]] .. waits, { command = ranks.luminary, may_fail = true })
    assert.matches("script.lua:%d+: bad x[^\n]*bytes[^\n]* the end\nstack traceback", got[1].output)
    assert(#got[1].output < 10000)
    assert.matches("all_reduce[^\n]*rank 1 on [^\n]*script.lua:%d+[^\n]*bad x[^\n]*bytes[^\n]* the end",
      got[0].output)
    assert(#got[0].output < 10000)
  end)

  it("is left in the files a launcher reads", function()
    local folder = temp.folder()
    run(2, joined .. "dist.barrier()\nif me == 1 then error { code = 3 } end\ndist.all_reduce(lm.ones(1))\n", {
      command = ranks.luminary, may_fail = true,
      env_of = function(rank)
        return { LM_ERROR_FILE = folder .. "/error." .. rank, TORCHELASTIC_ERROR_FILE = folder .. "/torch." .. rank }
      end,
    })
    local function read(name) return core.json_decode(temp.read(folder .. "/" .. name)) end
    local one, zero = read "error.1", read "error.0"
    assert.same({ 1, "error", 1 }, { one.rank, one.kind, one.cause_rank })
    assert.matches("error object is a table value", one.message)
    assert.same({ 0, "error", 1 }, { zero.rank, zero.kind, zero.cause_rank })
    assert.matches("rank 1", zero.message)
    assert.matches("stack traceback", zero.traceback)
    assert.is_number(one.time)
    local torch = read "torch.0"
    assert.matches("rank 1", torch.message.message)
    assert.matches("stack traceback", torch.message.extraInfo.py_callstack)
    assert.is_string(torch.message.extraInfo.timestamp)
    temp.remove(folder)
  end)

  it("is a rank that was killed", function()
    local job = ranks.start { n = 3, env = { LM_TOKEN = "t" },
      script = prelude .. joined .. "dist.barrier()\nprint 'ready' io.flush()\nif me == 2 then while true do end end\n"
        .. waits }
    for rank = 0, 2 do assert(job:wait_for(rank, "ready"), job:output(rank)) end
    ranks.sleep(0.2)
    job:kill(2)
    local got = job:wait()
    for rank = 0, 1 do
      assert.equal(0, got[rank].code, got.text)
      assert.matches("all_reduce: [^\n]*rank 2 on", got[rank].output)
      within(got[rank].seconds, got[2].seconds + 2, got.text)
    end
  end)

  it("is a rank that left while others wait", function()
    -- An os.exit that does not close the state leaves what it owns; under a sanitizer that is no leak of ours.
    local env = { LM_TOKEN = "t", ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":detect_leaks=0" }
    for _, leave in ipairs { "os.exit(0)", "os.exit(0, true)", "return" } do
      local script = joined .. "dist.barrier()\nif me == 1 then nap(0.3) do " .. leave .. " end end\n" .. waits
      assert.matches("all_reduce: [^\n]*rank 1 on [^\n]* left while other ranks",
        run(2, script, { env = env })[0].output)
    end
  end)

  it("is ranks that meet in different calls", function()
    local got = run(3, joined .. [[
      local ok, err
      if me == 1 then
        ok, err = pcall(dist.all_reduce, lm.ones(3))
      else
        ok, err = pcall(dist.all_reduce, lm.ones(2))
      end
      assert(not ok)
      print(err)
    ]])
    for rank = 0, 2 do
      assert.matches("all_reduce sum float32 [2]", got[rank].output, 1, true)
      assert.matches("all_reduce sum float32 [3]", got[rank].output, 1, true)
      assert.matches("rank 1", got[rank].output)
    end
  end)

  it("is a rank that does not come: a monitored barrier names it", function()
    local got = run(3, joined .. [[
      dist.barrier()
      if me == 1 then nap(2.5) end
      print(message(dist.monitored_barrier, { timeout = 1 }))
    ]])
    for _, rank in ipairs { 0, 2 } do assert.matches("rank 1", got[rank].output) end
  end)

  it("of a group's call does not keep a script from ending", function()
    local got = run(2, joined .. [[
      local work = dist.irecv(lm.zeros(1), 1 - me)
      print(work:is_completed())
      dist.barrier()
    ]])
    for rank = 0, 1 do
      assert.equal("false\n", got[rank].output)
      within(got[rank].seconds, 10, got.text)
    end
  end)
end)

describe("another call than the others'", function()
  it("is one whose root is another rank, and no rank goes on", function()
    for _, n in ipairs { 2, 3 } do
      for _, call in ipairs {
        "broadcast(lm.full({ 4 }, me), me)", "broadcast(lm.full({ 2 ^ 18 }, me), me)",
        "scatter(lm.zeros { 4 }, list, me)", "reduce(lm.zeros { 4 }, me)", "gather(lm.zeros { 4 }, list, me)",
      } do
        local name = call:match "%a+"
        local got = run(n, joined .. ([[
          local list = {}
          for i = 1, dist.get_world_size() do list[i] = lm.full({ 4 }, 10 * me + i) end
          print(message(function() dist.%s end))
        ]]):format(call))
        for rank = 0, n - 1 do
          local output = got[rank].output
          assert.matches("^[^\n]*" .. name .. ": [^\n]* made a? ?different calls?", output)
          assert.matches("rank [01] [^\n]* rank [01] at [^\n]*, rank [12] [^\n]* rank [12] at", output)
          if n == 2 then assert.matches("ranks 0 and 1 made different calls: ", output) end
        end
      end
    end
  end)

  it("is found even where they have passed on", function() -- rank 0 waits in shared memory for a call they never make
    for odd = 0, 2, 2 do -- a lower rank has a link to it, or has to wait for one
      local got = run(3, joined .. ("local odd, root = %d, %d"):format(odd, 2 - odd) .. [[

        dist.all_reduce(lm.ones { 1000 })
        if me == odd then
          print(message(dist.all_reduce, lm.ones { 1000 }))
        else
          print(message(function()
            dist.broadcast(lm.ones { 1000 }, root)
            dist.barrier()
          end))
        end
      ]])
      for rank = 0, 2 do
        local output = got[rank].output -- a peer that compares, or the store, notices first
        assert(output:find "made a? ?different calls?[^:]*: .*rank 2 on %S+ called "
          or output:find "made a? ?different calls?[^:]*: .*rank 2 on %S+ waits in ", output)
        assert.matches("broadcast float32 %[1000%] from rank " .. 2 - odd, got[rank].output)
        within(got[rank].seconds, 5, got.text)
      end
    end
  end)
end)

describe("train_ddp.lua on several ranks", function()
  local folder = temp.during(setup, teardown)
  setup(function() images.write(folder, 1024, 64) end)

  local function train(n, name, args, options)
    options = options or {}
    options.n, options.file = n, "scripts/train_ddp.lua"
    options.env = options.env or { LM_TOKEN = "t" }
    options.args = ("--model mlp --threads 1 --data %s --log %s/%s.log %s"):format(folder, folder, name, args)
    local got = ranks.run(options)
    assert(got.ok, got.text)
    local losses = {}
    local log = temp.read(("%s/%s.log"):format(folder, name))
    for loss, step in log:gmatch '"loss":([^,}]+),[^\n]-"step":(%d+)' do losses[tonumber(step)] = tonumber(loss) end
    return losses, got
  end

  it("computes what one computes", function()
    local args = "--dtype float64 --batch-size 64 --max-steps 6 --seed 5"
    local alone = train(1, "alone", args)
    assert.equal(6, #alone)
    for _, n in ipairs { 2, 4 } do
      local shared, got = train(n, "of" .. n, args)
      for k = 1, 6 do assert(math.abs(shared[k] - alone[k]) < 1e-12, ("%d ranks, step %d"):format(n, k)) end
      assert.matches("test accuracy", got[0].output)
      for rank = 1, n - 1 do assert.equal("", got[rank].output) end
    end
  end)

  it("goes on where it was, if it was anywhere #unsanitized", function()
    local args = "--batch-size 64 --seed 3 --optimizer lamb --schedule warmup --ema 0.9 --max-steps "
    local whole = train(2, "whole", args .. 8)
    local auto = args .. "%d --auto-resume " .. folder .. "/part.safetensors"
    train(2, "part", auto:format(5))
    local part, got = train(2, "part", auto:format(8))
    assert.matches("resuming after step 5.*average of the weights: test accuracy", got[0].output)
    for k = 1, 8 do assert.equal(whole[k], part[k]) end
  end)
end)
