-- Cases of scripts/dev/gpu_cases.lua: what the machine is, single kernels for a profiler, NCCL.
local ffi = require "ffi"
local lm = require "luminary"
local common = require "scripts.dev.gpu.common"
local nn, F = lm.nn, lm.nn.functional
local fail, expect = common.fail, common.expect

local case = {}

-- Prints what readers of the other results want to know of the machine: the properties that decide what the backend
-- does, versions of libraries, the data that trainings have.
function case.facts()
  local properties = lm.cuda.get_device_properties()
  for _, name in ipairs { "name", "major", "minor", "multiProcessorCount", "totalGlobalMem", "l2CacheSize", "clockRate",
    "memoryClockRate", "memoryBusWidth", "pageableMemoryAccess", "pageableMemoryAccessUsesHostPageTables",
    "hostNativeAtomicSupported", "concurrentManagedAccess", "ipcEventSupported", "asyncEngineCount" } do
    print(("%-40s %s"):format(name, tostring(properties[name])))
  end
  for _, library in ipairs { "cuda", "cudnn", "cublaslt" } do
    print(("%-40s %s"):format("version of " .. library, tostring(lm.core.cuda_version(library))))
  end
  -- Versions of libraries that are loaded when needed.
  for library, call in pairs { ["libcufft.so.12"] = "cufftGetVersion", ["libcusolver.so.12"] = "cusolverGetVersion" } do
    local ok, version = pcall(function()
      ffi.cdef(("int %s(int *);"):format(call))
      local number = ffi.new "int[1]"
      assert(ffi.load(library)[call](number) == 0, call .. " failed")
      return number[0]
    end)
    print(("%-40s %s"):format("version of " .. library, ok and version or "not here"))
  end
  local major, minor, patch = lm.cuda.nccl.version()
  print(("%-40s %s"):format("version of NCCL", major and ("%d.%d.%d"):format(major, minor, patch) or minor))
  for _, train in ipairs { true, false } do
    local ok, set = pcall(lm.data.FashionMNIST, { train = train })
    print(("%-40s %s"):format("Fashion-MNIST, " .. (train and "training" or "test"),
      ok and set:len() .. " images" or "not here"))
  end
end

local of_a_machine = {totalGlobalMem = true, driverVer = true} -- these differ between cards of one kind

function case.properties(program, path)
  local function facts(text)
    local list = {}
    for name, value in text:gmatch '"([%w_]+)"%s*:%s*([^,}%s]+)' do list[name] = value end
    return list
  end
  local file = assert(io.open(path))
  local filed = facts(file:read("*a"))
  file:close()
  local pipe = io.popen(program .. " --dump")
  local own = facts(pipe:read("*a"))
  pipe:close()
  if next(own) == nil then fail("%s --dump says nothing", program) end
  local names, different = {}, 0
  for name in pairs(filed) do names[#names + 1] = name end
  for name in pairs(own) do
    if filed[name] == nil then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if own[name] ~= filed[name] and not of_a_machine[name] then
      different = different + 1
      print(("%-40s on file %s, here %s"):format(name, tostring(filed[name]), tostring(own[name])))
    end
  end
  print(different == 0 and "all as on file" or ("%d properties differ: put this card's own JSON into %s"):format(
    different, path))
end

function case.nccl()
  local dist = lm.dist
  dist.init_process_group { backend = "cpu:gloo,cuda:nccl", rank = 0, world_size = 1,
    init_method = "tcp://127.0.0.1:0" }
  local group = dist.new_group({ 0 }, { backend = "nccl" })
  local x = lm.arange(1000, { dtype = "float32", device = "cuda" })
  local before = x:clone()
  for _, op in ipairs { "sum", "max", "min", "mean" } do
    dist.all_reduce(x, { op = op, group = group })
    expect("all_reduce, " .. op, before:to("cpu"), x, 0)
  end
  dist.broadcast(x, 0, { group = group })
  expect("broadcast", before:to("cpu"), x, 0)
  local work = dist.all_reduce(x, { group = group, async_op = true })
  work:wait()
  expect("all_reduce, asynchronous", before:to("cpu"), x, 0)
  dist.destroy_process_group()
end

-- Measures what backward pays for each bucket that it sends.
function case.issue()
  local dist, taken = lm.dist, {}
  dist.init_process_group { timeout = 30 }
  local x = lm.ones({ 2 ^ 18 }, { device = "cuda:" .. dist.local_device():match "%d+" })
  for i = -20, 200 do
    local start = lm.time()
    local work = dist.all_reduce(x, { op = "mean", async_op = true })
    if i > 0 then taken[i] = 1e6 * (lm.time() - start) end
    work:wait()
    if i % 10 == 0 then lm.cuda.synchronize() end
  end
  table.sort(taken)
  print(("rank %d: %.0f us, one in ten calls more than %.0f us"):format(dist.get_rank(), taken[100], taken[180]))
  dist.destroy_process_group()
end

-- Launches kernels worth a profiler's look once each: calls nothing twice, so that ncu's time is small.
function case.kernels()
  local device = { device = "cuda" }
  local rows = common.sized(2 ^ 14, 8)
  local function leaf(size, dtype) return lm.randn(size, device):to(dtype or "float32"):detach():requires_grad_() end
  local function both(what, f, ...)
    print(what)
    f(...):sum():backward()
    lm.synchronize "cuda"
  end
  local length = common.sized(2048, 40)
  both("attention, float32", F.scaled_dot_product_attention, leaf { 1, 4, length, 64 }, leaf { 1, 4, length, 64 },
    leaf { 1, 4, length, 64 })
  local images = leaf({ common.sized(64, 2), 64, common.sized(56, 6), common.sized(56, 6) }, "bfloat16")
  local norm = nn.BatchNorm2d(64):to("cuda")
  both("batch norm, bfloat16, channels-last", function(x)
    return norm(x:contiguous { memory_format = "channels_last" })
  end, images)
  both("softmax", function(x) return x:softmax(-1) end, leaf { rows, 1024 })
  both("layer norm", nn.LayerNorm(768):to("cuda"), leaf { rows, 768 })
  both("cast of a transposed one", function(x) return x:t():to("bfloat16") end, leaf { rows, 1024 })
  both("transposed in memory", function(x) return x:t():contiguous() end, leaf { rows, 1024 })
  both("sum of columns", function(x) return x:sum(1) end, leaf { rows, 1024 })
  both("topk", function(x) return (x:topk(50, -1)) end, leaf { 16, common.sized(50257, 500) })
  both("grid_sample", function(x)
    return F.grid_sample(x, lm.rand({ 8, 96, 96, 2 }, device), { align_corners = false })
  end, leaf { 8, 16, 96, 96 })
  local p = leaf { rows * 1024 }
  p.grad = lm.randn(p.shape, device)
  print "AdamW"
  lm.optim.AdamW({ p }):step()
  lm.synchronize "cuda"
end

return case
