-- Tests what a process's first look at its devices decides: virtual ones, visible ones, and LM_SYNC.
local core = require "luminary.core"
local temp = require "spec.support.temp"
if core.device_count("cuda") == 0 then return end

local folder = temp.during(setup, teardown)
local function run(environment, script)
  local path = temp.write(folder .. "/script.lua", 'local lm = require "luminary"\n' .. script)
  local ok, text = temp.run(folder, ("%s luajit %s"):format(environment, path))
  assert(ok, text)
  return text
end

local stand_in = [[
local ffi = require "ffi"
ffi.cdef "void lm_fake_fail(const char *, long, int); long lm_fake_live(const char *);"
]]
local is_fake = pcall(require("ffi").cdef, "long lm_fake_live(const char *);")
  and pcall(function() return require("ffi").C.lm_fake_live end)

describe("a process with CUDA devices", function()
  it("loads batches to one and captures a step without a word of lm.cuda", function()
    local text = run("", [[
      local set = lm.data.TensorDataset(lm.ones(8, 2))
      local batches = 0
      for _ in lm.data.DataLoader(set, {batch_size = 2, device = "cuda"}):iter() do batches = batches + 1 end
      local step, state = lm.compile(function(x) return x * 2 end, {warmup = 1})
      for _ = 1, 3 do step(lm.ones({4}, {device = "cuda"})) end
      print(batches, state.replays, state.reason)
    ]])
    assert.equal("4\t2\tnil\n", text)
  end)

  it("may take each card for several devices", function()
    local text = run("LM_CUDA_VIRTUAL=3", [[
      local n = lm.cuda.device_count()
      assert(n % 3 == 0)
      local a, b = lm.cuda.get_device_properties(0), lm.cuda.get_device_properties(2)
      assert(a.uuid == b.uuid)
      local x = lm.ones({1000}, {device = "cuda:0"})
      local y = x:to("cuda:1")
      print(y.device, lm.cuda.memory_allocated(0), lm.cuda.memory_allocated(1), lm.cuda.memory_allocated(2))
      print(pcall(function() return x + y end))
      print((y * 2):to("cuda:2"):sum():item())
      lm.cuda.set_device(2)
      print(lm.ones({1}, {device = "cuda"}).device, lm.cuda.current_device())
      assert(lm.cuda.can_device_access_peer(0, 1))
      lm.manual_seed(4)
      assert(lm.rand({5}, {device = "cuda:0"}):cpu():equal(lm.rand({5}, {device = "cuda:1"}):cpu()))
      print(pcall(lm.setenv, "LM_CUDA_VIRTUAL", "2"))
      print(pcall(lm.ones, {1}, {device = "cuda:" .. n}))
    ]])
    assert.matches("^cuda:1\t4096\t4096\t0\n", text)
    assert.matches("add: device mismatch: tensors are on cuda:0 and cuda:1", text, 1, true)
    assert.matches("\n2000\ncuda:2\t2\n", text, 1, true)
    assert.matches("false\t[^\n]*LM_CUDA_VIRTUAL", text)
    assert.matches(": cuda devices are cuda:0 to cuda:", text, 1, true)
  end)

  it("refuses CUDA in a child of a fork, in a sentence, and computes on the CPU there", function()
    local text = run("", [[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int); void _exit(int); unsigned alarm(unsigned);"
      local x, status = lm.ones({4}, {device = "cuda"}), ffi.new "int[1]"
      for _, f in ipairs {
        function() return x + 1 end, function() return x:cpu() end, function() return tostring(x) end,
        function() return lm.ones(3):cuda() end, lm.cuda.synchronize,
      } do
        local pid = ffi.C.fork()
        if pid == 0 then
          ffi.C.alarm(20)
          local ok, problem = pcall(f)
          local words = "this process was forked after it used CUDA, and CUDA works only in its parent; fork before "
            .. "the first use, or start processes by lm.mp"
          local good = not ok and problem:find(words, 1, true) and lm.ones(300, 300):sum():item() == 90000
          x, f = nil
          collectgarbage()
          collectgarbage()
          if not good then io.stderr:write(tostring(problem), "\n") end
          ffi.C._exit(good and 7 or 1)
        end
        ffi.C.waitpid(pid, status, 0)
        print(status[0] / 256)
      end
      print((x + 1):sum():item())
    ]])
    assert.equal("7\n7\n7\n7\n7\n8\n", text)
  end)

  it("works with cards that do not reach each other's memory", function()
    if not is_fake then pending("the stand-in alone has such cards at will") end
    -- Work behind a collective runs on NCCL's thread later, when its blocks may be free again: no guards.
    local text = run("LM_GUARD_BLOCKS= LM_CUDA_VIRTUAL= LM_FAKE_CUDA_DEVICES=3 LM_FAKE_CUDA_PEERS=0", [[
      local nn = lm.nn
      assert(not lm.cuda.can_device_access_peer(0, 1))
      local x = lm.arange(24, {dtype = "float32", device = "cuda:0"}):view(4, 6)
      local y = x:t():to("cuda:1")
      assert(y:cpu():equal(x:cpu():t()))
      local z = lm.zeros({6, 4}, {dtype = "bfloat16", device = "cuda:2"})
      z:copy_(y)
      assert(z:float():cpu():equal(x:cpu():t()))
      z[{{1, 2}, {}}] = y[{{3, 4}, {}}]
      assert(z[{1, 1}] == 2)
      lm.manual_seed(1)
      local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
      local alone = net:clone():to("cuda:0")
      local both = nn.DataParallel(net:to("cuda:0"), {device_ids = {0, 1, 2}})
      local images, labels = lm.rand({9, 1, 6, 6}), lm.randint(1, 4, {9})
      for _, model in ipairs {alone, both} do
        model:eval()
        nn.functional.cross_entropy(model(images:to("cuda:0")), labels:to("cuda:0")):backward()
      end
      local theirs = both:parameters()
      for i, p in ipairs(alone:parameters()) do
        assert(lm.allclose(p.grad:cpu(), theirs[i].grad:cpu(), {atol = 1e-6}))
      end
      local total = require("luminary.nn.parallel.comm").reduce_add({x, x:to "cuda:1", x:to "cuda:2"}, "cuda:1")
      print(total:sum():item(), total.device)
    ]])
    assert.equal("828\tcuda:1\n", text)
  end)

  it("may use its libraries for the first time within a capture", function()
    local text = run("LM_CUDA_VIRTUAL=", [[
      local F = lm.nn.functional
      local function same(f, ...)
        local here, there = {...}, {}
        for i, x in ipairs(here) do there[i] = x:cuda() end
        local graph = lm.cuda.graph(function() return f(unpack(there)) end, {warmup = 0})
        graph:replay()
        assert(graph.results[1]:cpu():allclose(f(unpack(here)), {rtol = 1e-2, atol = 1e-2}))
      end
      same(F.conv2d, lm.randn {2, 3, 8, 8}, lm.randn {4, 3, 3, 3}, lm.randn {4})
      lm.backends.cudnn.benchmark = true -- nothing can be timed
      same(F.conv2d, lm.randn {2, 3, 9, 8}, lm.randn {4, 3, 3, 3}, lm.randn {4})
      same(lm.mm, lm.randn {5, 6}, lm.randn {6, 7})
      local p = lm.nn.Parameter(lm.ones({4}, {device = "cuda"}))
      p.grad = lm.ones({4}, {device = "cuda"})
      local clipping = lm.cuda.graph(function() return lm.nn.utils.clip_grad_norm_({p}, 1) end, {warmup = 0})
      for _, size in ipairs {1, 2, 0.25} do
        p.grad:fill_(size)
        clipping:replay()
        print(clipping.results[1]:item(), p.grad:norm():item())
      end
    ]])
    assert.matches("2\t0.99999%d*\n4\t0.99999%d*\n0.5\t0.5\n", text)
  end)

  it("reads planes in the widest packs they can be cut into", function()
    if not is_fake then pending("kernels are told by the stand-in alone") end
    for _, case in ipairs {
      {"float32", 14, 4}, {"float16", 14, 4}, {"bfloat16", 28, 8}, {"float64", 14, 2}, {"float32", 7, 1},
    } do
      local dtype, side, width = unpack(case)
      local text = run("LM_FAKE_CUDA_TRACE=1", ([[
        local x = lm.randn({3, 2, %d, %d}, {device = "cuda", dtype = %q}):requires_grad_()
        lm.nn.functional.batch_norm(x, nil, nil, nil, nil, {training = true}):sum():backward()
        x.grad:cpu()
      ]]):format(side, side, dtype))
      for _, sums in ipairs {"lm_moments", "lm_sums"} do
        assert.matches(("lm_planes_sums<%d, %s"):format(width, sums), text, 1, true)
      end
      for _, map in ipairs {"lm_apply", "lm_back"} do -- elements of odd planes go in packs from one plane into the next
        assert.matches(width == 1 and "lm_seams_map<4, " .. map or ("lm_planes_map<%d, %s"):format(width, map), text, 1,
          true)
      end
    end
  end)

  it("turns small elements by words of four bytes where these are aligned", function()
    if not is_fake then pending("kernels are told by the stand-in alone") end
    local function kernel(dtype, rows, columns, from)
      local text = run("LM_FAKE_CUDA_TRACE=1", ([[
        local x = lm.arange(40000):to(%q):cuda():narrow(1, %d, %d):view(%d, %d)
        assert(x:t():contiguous():cpu():equal(x:cpu():t()))
      ]]):format(dtype, from, rows * columns, rows, columns))
      return text:match "lm_transpose[%w_]*<[%w ]+>"
    end
    assert.equal("lm_transpose_words<unsigned short>", kernel("bfloat16", 182, 190, 1))
    assert.equal("lm_transpose_words<unsigned short>", kernel("float16", 1100, 32, 3))
    assert.equal("lm_transpose_words<unsigned char>", kernel("uint8", 180, 196, 5))
    assert.equal("lm_transpose_words<unsigned char>", kernel("bool", 36, 1000, 1))
    assert.equal("lm_transpose_tile<unsigned short>", kernel("float16", 182, 190, 2))
    assert.equal("lm_transpose_tile<unsigned short>", kernel("float16", 181, 190, 1))
    assert.equal("lm_transpose_tile<unsigned char>", kernel("uint8", 182, 196, 1))
    assert.equal("lm_transpose_tile<unsigned char>", kernel("uint8", 24, 1600, 1))
    assert.equal("lm_transpose_tile<unsigned int>", kernel("float32", 180, 196, 1))
  end)

  it("collects Lua's garbage the more seldom the more memory the device has", function()
    if not is_fake then pending("a card's memory is what it is") end
    local function collections(memory)
      return tonumber(run("LM_FAKE_CUDA_MEMORY=" .. memory * 2 ^ 30, [[
        local count = 0
        local function watch()
          local proxy = newproxy(true)
          getmetatable(proxy).__gc = function()
            count = count + 1
            watch()
          end
        end
        watch()
        local size, options = {2 ^ 24}, {dtype = "uint8", device = "cuda"}
        for _ = 1, 256 do lm.empty(size, options) end
        print(count)
      ]]))
    end
    local little, much = collections(2), collections(1024)
    assert.is_true(little >= 16 and much <= little / 3, ("%d and %d times"):format(little, much))
  end)

  it("raises errors of kernels at their own line with LM_SYNC=1", function()
    local script = [[
      local t = lm.ones({3, 2}, {device = "cuda"})
      local i = lm.tensor({4}, {dtype = "int64", device = "cuda"})
      local ok, message = pcall(function()
        local y = t:index_select(1, i)
        local z = y + 1
        local v = z:sum():item()
        return v
      end)
      print(message)
    ]]
    local what = ": index_select: index 4 at position 1 is out of range for 3 entries"
    assert.matches("script.lua:5" .. what, run("LM_SYNC=1", script), 1, true)
    assert.matches("script.lua:7: item: earlier call of" .. what:sub(2), run("LM_SYNC=", script), 1, true)
  end)

  it("computes the same with its first op as with the next", function()
    for _, f in ipairs {
      "function(x) return lm.batch_norm(x, nil, nil, {training = true}) end",
      "function(x) return lm.layer_norm(x, {40}) end",
      "function(x) x = x:detach():requires_grad_() "
        .. "lm.batch_norm(x, nil, nil, {training = true}):pow(2):sum():backward() return x.grad end",
    } do
      run("LM_CUDA_VIRTUAL=", ([[
        local f = %s
        lm.manual_seed(1)
        local x = lm.randn({64, 3, 40, 40}):cuda()
        local first, second = f(x), f(x)
        assert(first:equal(second), "not the same bits")
      ]]):format(f))
    end
  end)

  it("needs cards that its kernels are made for", function()
    if not is_fake then return pending "real ones have one capability" end
    local text = run("LM_FAKE_CUDA_MAJOR=7", [[
      print(pcall(lm.ones, {1}, {device = "cuda"}))
      print(lm.cuda.get_device_properties(0).major)
    ]])
    assert.matches("^false\t[^\n]*the compute capability of Fake H200 must be at least 8%.0, got 7%.0\n7\n", text)
  end)

  it("opens a context on the cards it uses alone", function()
    if not is_fake then return pending "contexts are counted by the stand-in" end
    local text = run("LM_CUDA_VIRTUAL= LM_FAKE_CUDA_DEVICES=3", stand_in .. [[
      for i = 0, 2 do assert(lm.cuda.get_device_properties(i).uuid) end
      local x = lm.ones({2}, {device = "cuda:1"})
      lm.mp.spawn(function() require("luminary").ones({4}):pin_memory() end, {nprocs = 2, method = "thread"})
      print(tonumber(ffi.C.lm_fake_live "context"), x:sum():item())
    ]])
    assert.equal("1\t2\n", text)
  end)

  it("tells what it can of a card whose driver does not know all there is to know", function()
    if not is_fake then return pending "needs the stand-in" end
    local text = run("", stand_in .. [[
      lm.ones({1}, {device = "cuda"})
      for nth = 1, 12 do
        ffi.C.lm_fake_fail("cudaDeviceGetAttribute", nth, 1)
        assert(lm.cuda.get_device_properties(0).uuid)
        ffi.C.lm_fake_fail(nil, 0, 0)
      end
      print(lm.ones({3}, {device = "cuda"}):sum():item())
    ]])
    assert.equal("3\n", text)
  end)

  it("sees the cards that CUDA_VISIBLE_DEVICES names, until it has asked", function()
    local text = run("CUDA_VISIBLE_DEVICES=0", [[
      print(lm.cuda.device_count(), lm.cuda.get_device_properties(0).physicalIndex)
      print(pcall(lm.setenv, "CUDA_VISIBLE_DEVICES", "1"))
    ]])
    assert.matches("^1\t0\nfalse\t", text)
    text = run("", [[
      lm.setenv("CUDA_VISIBLE_DEVICES", "")
      print(lm.cuda.is_available())
      print(pcall(lm.ones, {1}, {device = "cuda"}))
    ]])
    assert.matches("^false\nfalse\t", text)
    assert.matches("CUDA_VISIBLE_DEVICES is ''", text, 1, true)
  end)
end)
