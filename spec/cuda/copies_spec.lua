-- Copies from memory that nobody has pinned, on cards that read it by themselves (pageableMemoryAccess) and on others,
-- on the fake runtime of support/cuda.
local scripts = require "spec.support.cuda_scripts"

local preamble = [[
local MB = 2 ^ 20
-- Copies a tensor of n bytes to the device, overwrites it, and returns how often the host waited.
local function upload(bytes, options)
  local x = lm.full({bytes / 4}, 7)
  local waits = calls "cudaStreamSynchronize"
  local y = x:to("cuda", options)
  x:fill_(8)
  waits = calls "cudaStreamSynchronize" - waits
  assert(y:cpu():eq(7):all():item(), "the copy reads what was written after it")
  return waits
end
]]

describe("copies from pageable memory #fake", function()
  local script = scripts.tests(it, pending, preamble)

  script("are read at once where a card cannot read them, by the driver or into pinned memory #unsanitized", [[
    ffi.cdef "long lm_fake_pending(void);"
    for _, bytes in ipairs {4, 4096, MB / 16, MB / 16 + 4, MB, MB + 4, 4 * MB, 40 * MB + 4} do
      assert(upload(bytes) == 0)
      lm.cuda.synchronize()
      local y = lm.ones({4}, {device = "cuda"}) + 1
      local before, x = fake.lm_fake_pending(), lm.zeros{bytes / 4}
      assert(before > 0)
      x = x:to "cuda"
      assert(fake.lm_fake_pending() > before, bytes .. " bytes wait for the stream")
    end
  ]])

  script("are staged where a card reads them late, and waited for where they are very large", [[
    for _, bytes in ipairs {4, 4096, MB + 4, 40 * MB + 4} do assert(upload(bytes) == 0, bytes) end
    local function waits_for(x)
      local waits = calls "cudaStreamSynchronize"
      x:to "cuda"
      return calls "cudaStreamSynchronize" - waits
    end
    assert(waits_for(lm.zeros({256 * MB + 4}, {dtype = "uint8"})) == 1)
    assert(waits_for(lm.zeros({4 * MB}, {dtype = "uint8"}):pin_memory()) == 1, "a second copy of pinned memory")
    assert(waits_for(lm.zeros({MB}, {dtype = "uint8"}):pin_memory()) == 0)
  ]], "LM_FAKE_CUDA_PAGEABLE=1")

  script("of a save in the background are waited for once", [[
    local net = lm.nn.Sequential()
    for i = 1, 8 do net:append(lm.nn.Linear(i, 300, {dtype = i % 2 == 0 and "float64" or "float32"})) end
    net:cuda()
    net[1].weight.data = net[1].weight:detach():t():contiguous():t()
    local want, path = {}, os.tmpname()
    for name, t in pairs(net:state_dict()) do want[name] = t:cpu() end
    local function waits() return calls "cudaStreamSynchronize" + calls "cudaDeviceSynchronize" end
    local before = waits()
    local pending = lm.checkpoint.save(path, {net = net}, {async = true})
    assert(waits() - before <= 2, "waits for each tensor: " .. waits() - before)
    lm.no_grad(function() for _, p in ipairs(net:parameters()) do p:zero_() end end)
    pending:wait()
    lm.checkpoint.load(path, {net = net})
    for name, t in pairs(net:state_dict()) do assert(t:cpu():equal(want[name]), name) end
    os.remove(path)
  ]])

  script("are right on a stream of one's own, strided and of other dtypes, where a card reads them late", [[
    local side = lm.cuda.Stream()
    for _, n in ipairs {10, 300000} do
      local x = lm.arange(1, 2 * n):to "float32":narrow(1, 1, n)
      local y, z
      lm.cuda.stream(side, function() y = x:cuda() end)
      local every = lm.arange(1, 2 * n + 1):view{n, 2}:select(2, 1)
      z = every:cuda()
      local want_x, want_every = x:clone(), every:clone()
      x:fill_(0)
      every:fill_(0)
      side:synchronize()
      assert(y:cpu():equal(want_x) and z:cpu():equal(want_every))
    end
    local step = lm.data.DataLoader(lm.data.TensorDataset(lm.rand{8, 70000}), {batch_size = 4, device = "cuda"})
    for batch in step:iter() do assert((batch.is_cuda and batch or batch[1]):isfinite():all():item()) end
  ]], "LM_FAKE_CUDA_PAGEABLE=1")
end)
