-- Devices are distinct, their memory is counted, reused and given back, and a loop needs no collectgarbage.
local lm = require "luminary"
local core = require "luminary.core"
local on_fake_cuda = require("spec.support.cuda_scripts").tests(it, pending, "")
local MB = 2 ^ 20

local function settle(device)
  collectgarbage()
  collectgarbage()
  lm.empty_cache(device)
  lm.reset_peak_memory_stats(device)
end

describe("memory statistics", function()
  local device = "cpu:5" -- nobody else's
  before_each(function() settle(device) end)

  it("count what lives on a device, and nothing of the others", function()
    local before, elsewhere = lm.memory_allocated(device), lm.memory_allocated "cpu:6"
    assert.equal(0, before)
    local x = lm.zeros({ 3 * 256, 1024 }, { device = device }) -- 3 MB
    local used = lm.memory_allocated(device)
    assert(used >= 3 * MB and used <= 3 * MB * 9 / 8, used)
    assert.equal(elsewhere, lm.memory_allocated "cpu:6")
    local view = x[{ { 1, 10 } }] -- costs nothing
    assert.equal(used, lm.memory_allocated(device))
    local y = x + 1
    assert(lm.memory_allocated(device) >= 2 * used)
    y:free()
    x:free()
    assert.equal(used, lm.memory_allocated(device)) -- the view holds it
    view:free()
    assert.equal(0, lm.memory_allocated(device))
  end)

  it("take the collector's word too", function()
    do
      local x = lm.zeros({ MB }, { device = device })
      assert(lm.memory_allocated(device) >= 4 * MB)
      assert.equal(0, x[1])
    end
    collectgarbage()
    assert.equal(0, lm.memory_allocated(device))
  end)

  it("remember the peak until it is reset", function()
    local x = lm.zeros({ MB }, { device = device })
    local one = lm.memory_allocated(device)
    local y = lm.zeros({ MB }, { device = device })
    y:free()
    assert.equal(2 * one, lm.max_memory_allocated(device))
    assert.equal(one, lm.memory_allocated(device))
    assert(lm.max_memory_reserved(device) >= 2 * one)
    lm.reset_peak_memory_stats(device)
    assert.equal(one, lm.max_memory_allocated(device))
    assert.equal(lm.memory_reserved(device), lm.max_memory_reserved(device))
    x:free()
  end)

  it("show that freed blocks are used again, and given back by empty_cache", function()
    local x = lm.zeros({ MB }, { device = device })
    local held = lm.memory_reserved(device)
    assert(held >= lm.memory_allocated(device))
    for _ = 1, 20 do
      x:free()
      x = lm.zeros({ MB - 5 }, { device = device }) -- near enough for the same block
    end
    assert(lm.memory_reserved(device) <= held)
    x:free()
    assert(lm.memory_reserved(device) >= lm.memory_allocated(device))
    lm.empty_cache(device)
    assert.equal(0, lm.memory_allocated(device))
    assert.equal(0, lm.memory_reserved(device))
  end)

  it("show that smaller blocks lie in freed larger ones, but not in those in use soon #unsanitized", function()
    local function block(bytes) return lm.empty({ bytes / 4 }, { device = device }) end
    local kept = {}
    for k = 1, 20 do -- a step of training whose results are garbage that is not collected yet
      kept[k] = { block(MB / 4), block(MB / 4) }
      block(MB):free()
    end
    local held = lm.memory_reserved(device)
    assert(held <= 12 * MB, held)
    for _, pair in ipairs(kept) do
      pair[1]:free()
      pair[2]:free()
    end
    local smaller = {}
    for k = 1, 20 do smaller[k] = block(MB / 8) end
    assert.equal(held, lm.memory_reserved(device))
    for _, x in ipairs(smaller) do x:free() end
  end)

  it("show that smaller blocks get memory of their own once memory ran out #unsanitized", function()
    local of = "cpu:7" -- nobody else's
    local function reserved_by_half_of_freed()
      settle(of)
      lm.empty({ MB }, { device = of }):free()
      local y = lm.empty({ MB / 2 }, { device = of })
      local held = lm.memory_reserved(of)
      y:free()
      return held
    end
    local before = reserved_by_half_of_freed()
    assert.error_matches(function() lm.empty({ 2 ^ 45 }, { device = of }) end, "out of memory")
    assert.equal(4 * MB, before)
    assert.equal(6 * MB, reserved_by_half_of_freed())
  end)

  it("are cpu's by default, by any of its names", function()
    local x = lm.zeros(MB)
    for _, name in ipairs { "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved" } do
      assert.equal(lm[name](), lm[name] "cpu")
      assert.equal(lm[name](), lm[name] "cpu:0")
      assert(lm[name]() >= x.nbytes, name)
      assert.error_matches(function() lm[name] "gpu" end, name .. ".*gpu")
      assert.error_matches(function() lm[name](true) end, name .. ".*true")
    end
    assert.error_matches(function() lm.empty_cache "cpu:900" end, "empty_cache.*cpu:900")
    assert.error_matches(function() lm.reset_peak_memory_stats {} end, "reset_peak_memory_stats.*table")
  end)
end)

describe("running out of memory", function()
  it("is an error that tells what was asked for and what is held, and passes", function()
    local ok, err = pcall(lm.empty, 2 ^ 30, 2 ^ 20, 2)
    assert.is_false(ok)
    assert.matches("cannot allocate 8.0 PiB on cpu: out of memory; ", err)
    assert.matches("allocated", err)
    assert.matches("reserved", err)
    assert.error_matches(function() lm.zeros(2 ^ 40, 2 ^ 40) end,
      "%[1099511627776, 1099511627776%]") -- no integer holds this size
    assert.equal(6, lm.ones(2, 3):sum():item())
  end)

  it("anywhere in an op leaves its inputs and memory as they were", function()
    local x, y = lm.arange(6):float():view(2, 3), lm.ones(3)
    local calls = {
      function() return (x + y):sum() end, function() x:add_(0) end, function() return x[{ {}, lm.tensor({ 1,
        3 }):long() }] end,
      function() x[x:gt(100)] = 1 end, function() return tostring(x) end, function() return x:totable() end,
      function() return lm.cat { x, x } end, function() return x:t():contiguous():view(-1) end,
      function() return lm.tensor { { 1, 2 }, { 3, 4 } } end, function() return x:to("float64", "cpu:1") end,
      function() return lm.get_rng_state() end, function() return lm.scope(function() return x * 2 end) end,
    }
    for k, call in ipairs(calls) do
      core._fail_alloc_from(1000000000)
      call()
      local total = core._alloc_count()
      core._fail_alloc_from(0)
      for n = 1, total do
        core._fail_alloc_from(n)
        local ok, err = pcall(call)
        core._fail_alloc_from(0)
        if not ok then assert(tostring(err):find("out of memory", 1, true), ("call %d: %s"):format(k,
          tostring(err))) end
        assert.same({ { 0, 1, 2 }, { 3, 4, 5 } }, x:totable())
        assert.same({ 1, 1, 1 }, y:totable())
      end
    end
  end)
end)

-- Each in a process of its own: how soon garbage goes depends on the size of the Lua heap, which other
-- specs have filled. Prints by how many MB the process grew.
local growth = [[
local lm = require "luminary"
lm.set_num_threads(1) -- quick on a machine that has other work, too
local function resident()
  local f = assert(io.open("/proc/self/statm"))
  local pages = tonumber(f:read("*a"):match("^%%d+ (%%d+)"))
  f:close()
  return pages / 256
end
local MB = 2 ^ 20
local x = lm.ones({ MB }, { requires_grad = true })
local data = x:detach()
local ballast = {}
for k = 1, %d do ballast[k] = { k } end
local before, most = resident(), 0
for n = 1, 160 do
  local _ = %s
  if n %% 5 == 0 then most = math.max(most, resident()) end
end
print(most - before, #ballast)
]]

local function grows(expression, ballast)
  local script = os.tmpname()
  local f = assert(io.open(script, "w"))
  f:write(growth:format(ballast or 0, expression))
  f:close()
  local pipe = assert(io.popen("LM_CACHE_BYTES=25165824 luajit " .. script .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  os.remove(script)
  return assert(tonumber(text:match("^(%S+)")), text)
end

describe("a loop without collectgarbage", function()
  for _, expression in ipairs { "data + n", "lm.zeros(MB)", "data:clone()", "lm.rand(MB)", 'data:to "float64"',
    "data[{ { 1, -1, 1 } }] * 1", "data[data:ge(0)]", "lm.stack { data, data }", "(x * 2):sum():backward()" } do
    it("stays small: " .. expression .. " #unsanitized", function()
      local grown = grows(expression)
      assert(grown < 256, ("%.0f MB more than before"):format(grown))
    end)
  end

  it("stays within the caches from its start on #unsanitized", function()
    local grown = grows("data[{ { 1, MB / 8 } }] + n")
    assert(grown < 40, ("%.0f MB more than before"):format(grown))
  end)

  it("writes results of 256 KB to a quarter of the cache, which other processes leave #unsanitized", function()
    local pipe = io.popen [[LM_CACHE_BYTES=33554432 luajit -e '
      local lm = require "luminary"
      local d, most = lm.ones(2 ^ 16), 0
      for k = 1, 3000 do
        local _ = d + d
        if k > 1000 then most = math.max(most, lm.memory_allocated()) end
      end
      print(most / 2 ^ 20)' 2>&1]]
    local text = pipe:read "*a"
    pipe:close()
    assert(assert(tonumber(text:match "^%S+"), text) < 12, text)
  end)

  it("stays within the caches beside a Lua heap of 2 MB #unsanitized", function()
    -- The least of three runs: where other work takes the CPU, results come too slowly to be worth collecting for.
    local least = math.huge
    for _ = 1, 3 do
      local pipe = io.popen [[LM_CACHE_BYTES=33554432 luajit -e '
      local lm = require "luminary"
      local heap, most = {}, 0
      for k = 1, 16000 do heap[k] = {k} end
      for k = 1, 1000 do
        local _ = lm.zeros(2 ^ 17)
        if k > 600 then most = math.max(most, lm.memory_allocated()) end -- before, new pages make the loop slow
      end
      print(most / 2 ^ 20, #heap)' 2>&1]]
      local text = pipe:read "*a"
      pipe:close()
      least = math.min(least, (assert(tonumber(text:match "^%S+"), text)))
      if least < 24 then break end
    end
    assert(least < 24, least)
  end)

  local counted = [[
    local lm = require "luminary"
    local collections = 0
    local function arm()
      getmetatable(newproxy(true)).__gc = function()
        collections = collections + 1
        arm()
      end
    end
    arm()]]

  local function collections_of(script)
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(counted, script)
    f:close()
    local pipe = assert(io.popen("LM_CACHE_BYTES=33554432 luajit " .. path .. " 2>&1"))
    local text = pipe:read "*a"
    pipe:close()
    os.remove(path)
    local collections, megabytes = text:match "^(%d+)\t(%S+)\n$"
    return assert(tonumber(collections), text), tonumber(megabytes)
  end

  it("is collected seldom while the results are held #unsanitized", function()
    local collections, count = collections_of [[
      local held = {}
      for k = 1, 400 do held[k] = lm.empty(2 ^ 19) end -- 800 MB of which no page is touched
      print(collections, #held)]]
    assert(count == 400 and collections > 3 and collections < 20, collections)
  end)

  it("is collected about once for each backward pass of many results #unsanitized", function()
    local collections, left = collections_of [[
      local x, heap, most = lm.ones({2 ^ 19}, {requires_grad = true}), {}, 0
      for k = 1, 16000 do heap[k] = {k} end
      local used, before = lm.memory_allocated()
      for k = 1, 20 do
        if k == 11 then before = collections end
        local y = x
        for _ = 1, 80 do y = y:sin() end -- 160 MB, which the graph holds
        y:sum():backward()
        y = lm.empty(1)
        if k > 10 then most = math.max(most, lm.memory_allocated() - used) end
      end
      print(collections - before, #heap > 0 and most / 2 ^ 20)]]
    assert(collections >= 10 and collections <= 15, collections)
    assert(left < 8, left)
  end)

  it("is collected before a backward pass of many results, which it then frees as it goes #unsanitized", function()
    local collections, peak = collections_of [[
      local w, heap = {}, {}
      for k = 1, 80 do w[k] = lm.ones({2 ^ 19}, {requires_grad = true}) end
      for k = 1, 16000 do heap[k] = {k} end
      local used = lm.memory_allocated()
      for k = 1, 6 do
        for i = 1, 80 do w[i].grad = nil end
        if k == 4 then lm.reset_peak_memory_stats() end
        local y = w[1]
        for i = 2, 80 do y = y * w[i] end -- 160 MB, as the gradients
        y:sum():backward()
      end
      print(collections, #heap > 0 and (lm.max_memory_allocated() - used) / 2 ^ 20)]]
    assert(collections > 0 and peak < 200, peak)
  end)

  on_fake_cuda("collects less often where results are on a GPU, which gains nothing by it", [[
    local heap, collections, before = {}, 0, 0
    for k = 1, 16000 do heap[k] = {k} end
    for _ = 1, 6000 do
      local _ = lm.empty({2 ^ 17}, {device = "cuda"})
      local now = lm.cuda.memory_allocated()
      if now < before then collections = collections + 1 end
      before = now
    end
    assert(#heap > 0 and collections < 30, collections)]], "LM_CACHE_BYTES=33554432")

  it("goes on when the Lua heap grows past what is collected at once", function()
    local pipe = io.popen [[luajit -e '
      local lm = require "luminary"
      local x, heap = lm.ones(1000, 100), {}
      for size = 1, 5 do
        for _ = 1, 300 do local y = x + x end
        for k = #heap + 1, 30000 * size do heap[k] = {k} end
      end
      for _ = 1, 300 do local y = x + x end
      heap = nil
      for _ = 1, 600 do local y = x + x end
      print "done"' 2>&1]]
    local text = pipe:read "*a"
    pipe:close()
    assert.equal("done\n", text)
  end)

  it("stays small once a large Lua heap is gone #unsanitized", function()
    local pipe = io.popen [[luajit -e '
      local lm = require "luminary"
      local x, heap = lm.randn(1000, 1000), {}
      for i = 1, 200000 do heap[i] = {i} end
      for _ = 1, 300 do local y = x + 1 end
      heap = nil
      collectgarbage() collectgarbage()
      lm.reset_peak_memory_stats()
      for _ = 1, 1000 do local y = x + 1 end
      print(lm.max_memory_allocated() / 2 ^ 20)' 2>&1]]
    local peak = tonumber(pipe:read "*a")
    pipe:close()
    assert(peak < 200, ("%.0f MB"):format(peak))
  end)

  it("stays small beside a large Lua heap #unsanitized", function()
    local grown = grows("data * n", 200000)
    assert(grown < 400, ("%.0f MB more than before"):format(grown))
  end)
end)

describe("devices", function()
  it("are equal by any of their names", function()
    assert.equal("cpu", lm.ones(1).device)
    assert.equal("cpu", lm.ones({ 1 }, { device = "cpu:0" }).device)
    assert.equal("cpu:1", lm.ones({ 1 }, { device = "cpu:1" }).device)
    assert.equal(lm.ones(1):to("cpu:0").device, "cpu")
  end)

  it("are distinct to every op: the error names both and the way out", function()
    local a, b = lm.ones(2, 2), lm.ones({ 2, 2 }, { device = "cpu:1" })
    local index = lm.ones({ 2 }, { dtype = "int64", device = "cpu:1" })
    local square = lm.ones({ 2, 2 }, { dtype = "int64", device = "cpu:1" })
    local image, weight = lm.ones(1, 2, 3, 3), lm.ones({ 2, 2, 1, 1 }, { device = "cpu:1" })
    local calls = {
      add = function() return a + b end, sub = function() return b - a end, pow = function() return a ^ b end,
      lt = function() return a:lt(b) end, add_ = function() return a:add_(b) end,
      where = function() return lm.where(a:gt(0), b, b) end, masked_fill = function() return a:masked_fill(b:gt(0),
        1) end,
      mm = function() return a:mm(b) end, bmm = function() return a[{ {} }]:unsqueeze(1):bmm(b:unsqueeze(1)) end,
      matmul = function() return lm.matmul(a, b) end, addmm = function() return lm.addmm(a, a, b) end,
      linear = function() return lm.linear(a, b) end, ["linear's bias"] = function() return lm.linear(a, a, b[1]) end,
      cat = function() return lm.cat { a, b } end, stack = function() return lm.stack { a, b } end,
      gather = function() return a:gather(1, square) end, index_select = function() return a:index_select(1, index) end,
      scatter_add_ = function() return a:scatter_add_(1, square:to "cpu", b) end,
      index_add = function() return a:index_add(1, index, a) end, index = function() return a[index] end,
      ["index assignment"] = function() a[index] = 1 end, mask = function() return a[b:gt(0)] end,
      embedding = function() return lm.embedding(index, a) end,
      conv2d = function() return lm.conv2d(image, weight) end,
      layer_norm = function() return lm.layer_norm(a, 2, b[1]) end,
      batch_norm = function() return lm.batch_norm(a, b[1], b[1]) end,
      cross_entropy = function() return lm.cross_entropy(a, index) end, nll_loss = function() return lm.nll_loss(a,
        index) end,
      mse_loss = function() return lm.mse_loss(a, b) end, bce = function() return lm.bce_with_logits(a, b) end,
      softmax_backward = function() return lm.softmax_backward(a, b, 1) end,
      allclose = function() return lm.allclose(a, b) end, equal = function() return lm.equal(a, b) end,
    }
    for name, call in pairs(calls) do
      local ok, err = pcall(call)
      assert(not ok, name .. " mixed devices")
      assert(err:find("cpu:1", 1, true) and err:find("cpu[^:]") and err:find(":to", 1, true), name .. ": " .. err)
    end
    assert.same({ { 1, 1 }, { 1, 1 } }, a:totable())
  end)

  it("compute the same, results staying where they are made", function()
    local a = lm.randn(4, 5)
    local b = a:to "cpu:1"
    assert.equal("cpu:1", b.device)
    assert.is_false(a == b)
    assert.is_false(a:data_ptr() == b:data_ptr())
    local c = (b * 2 + 1):mm(b:t()):softmax(2)
    assert.equal("cpu:1", c.device)
    assert.is_true(lm.equal((a * 2 + 1):mm(a:t()):softmax(2), c:to "cpu"))
    assert.equal("cpu:1", b:sum().device)
    assert.equal("cpu:1", b[{ 1 }].device)
    assert.equal("cpu:1", lm.zeros_like(b).device)
    assert.equal("cpu:1", b:nonzero().device)
    assert.equal("cpu", b:cpu().device)
    assert.same(a:totable(), b:totable())
    assert.equal(a[{ 2, 3 }], b[{ 2, 3 }])
  end)

  it("copy into one another, and take numbers and 0-d cpu tensors", function()
    local a, b = lm.zeros(3), lm.tensor({ 1, 2, 3 }, { device = "cpu:1" })
    a:copy_(b)
    assert.same({ 1, 2, 3 }, a:totable())
    b[{ { 1, 2 } }] = lm.tensor { 8, 9 }
    assert.same({ 8, 9, 3 }, b:totable())
    assert.same({ 16, 18, 6 }, (b * 2):totable())
    assert.same({ 16, 18, 6 }, (b * lm.tensor(2)):totable())
    assert.equal("cpu:1", (b * lm.tensor(2)).device)
  end)

  it("can be the default", function()
    assert.equal("cpu", lm.get_default_device())
    lm.set_default_device "cpu:2"
    local ok, err = pcall(function()
      assert.equal("cpu:2", lm.get_default_device())
      assert.equal("cpu:2", lm.zeros(2).device)
      assert.equal("cpu:2", lm.tensor({ 1 }).device)
      assert.equal("cpu:2", lm.rand(2).device)
      assert.equal("cpu", lm.zeros({ 2 }, { device = "cpu" }).device)
    end)
    lm.set_default_device(nil)
    assert(ok, err)
    assert.equal("cpu", lm.zeros(2).device)
  end)

  it("that are not there are named, with what there is", function()
    assert.error_matches(function() lm.ones({ 1 }, { device = "cpu:999" }) end, "cpu:999.*cpu:0 to cpu:%d+")
    assert.error_matches(function() lm.ones({ 1 }, { device = "gpu" }) end, "'gpu'.*did you mean 'c[pu]+[da]*'")
    assert.error_matches(function() lm.ones({ 1 }, { device = "cpu:x" }) end,
      "ones: unknown device 'cpu:x'; 'cpu:' must be followed by an integer")
    assert.error_matches(function() lm.ones({ 1 }, { device = "cup" }) end, "'cup'.*did you mean 'cpu'")
    assert.error_matches(function() lm.ones({ 1 }, { device = true }) end, "device.*true")
  end)

  it("answer for CUDA from the first version on", function()
    local count = lm.cuda.device_count()
    assert.equal(count > 0, lm.cuda.is_available())
    if count == 0 then
      assert.error_matches(function() lm.ones(1):cuda() end,
        "unavailable device 'cuda': this machine has no CUDA device")
      assert.error_matches(function() lm.ones(1):cuda(3) end, "cuda:3")
      assert.error_matches(function() lm.ones(1):to(0) end, "to:.*cuda:0.*cpu")
      assert.error_matches(function() lm.ones({ 1 }, { device = "cuda" }) end, "ones:.*cuda.*cpu")
      assert.error_matches(function() lm.ones({ 1 }, { device = 1 }) end, "cuda:1")
      assert.equal("cpu", lm.try_gpu())
      assert.equal("cpu", lm.try_gpu(0))
      assert.equal("cpu:1", lm.try_gpu(1))
    end
    assert.error_matches(function() lm.try_gpu(-1) end, "try_gpu.*%-1")
    assert.error_matches(function() lm.try_gpu "x" end, "try_gpu.*x")
    assert.is_false(lm.ones(1).is_cuda)
    assert.is_nil(lm.synchronize "cpu:1")
    assert.is_nil(lm.synchronize())
  end)
end)
