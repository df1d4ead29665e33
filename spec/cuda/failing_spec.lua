-- Each call of the CUDA runtime and its libraries fails in turn, in a training step and in what surrounds it: a Lua
-- error with call, code and op each time, nothing leaked, and the next step works. Runs over the fake runtime alone.
local lm = require "luminary"
local core = require "luminary.core"
local ffi = require "ffi"
if core.device_count("cuda") == 0 then return end
ffi.cdef [[
  void lm_fake_fail(const char *name, long nth, int code);
  long lm_fake_call_count(const char *name);
  const char *lm_fake_call_names(void);
  long lm_fake_live(const char *what);
  void lm_fake_reset(void);
]]
local C = ffi.C
if not pcall(function() return C.lm_fake_call_count end) then return end
local nn, F, optim = lm.nn, lm.nn.functional, lm.optim

-- Runs a LeNet's step (convolution, pooling, products, loss, backward, optimizer, the value on the host), a
-- factorization and a transform.
local function program()
  lm.manual_seed(1)
  local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    nn.Dropout(0.1), nn.Linear(36, 3)):to("cuda")
  local opt = optim.Adam(net:parameters(), {lr = 0.01})
  local x = lm.rand({2, 1, 8, 8}):pin_memory():cuda(0, {non_blocking = true})
  local y = lm.randint(1, 4, {2}):cuda()
  local side = lm.cuda.Stream()
  local loss = F.cross_entropy(net(x), y)
  loss:backward()
  opt:step()
  local sorted = lm.cuda.stream(side, function() return x:reshape(-1):topk(3) end)
  local matrix = lm.eye(3, {device = "cuda"}) * 2
  local solved = lm.inverse(matrix) + lm.linalg.eigvalsh(matrix) + lm.fft_r2c(matrix):sum()
  local event = lm.cuda.Event()
  event:record(side)
  event:synchronize()
  lm.cuda.synchronize()
  return loss:item() + sorted:sum():item() + solved:sum():item()
end

local function settle()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
  lm.cuda.synchronize()
  lm.cuda.empty_cache()
end

local kinds = {"memory", "pinned", "event", "graph", "handle", "plan"}
local function living()
  settle()
  local n = {}
  for i, kind in ipairs(kinds) do n[i] = tonumber(C.lm_fake_live(kind)) end
  return table.concat(n, " ")
end

local function calls_of(f)
  local before, made = {}, {}
  local function each(g) for name in ffi.string(C.lm_fake_call_names()):gmatch("[^,]+") do g(name) end end
  each(function(name) before[name] = tonumber(C.lm_fake_call_count(name)) end)
  f()
  each(function(name) made[name] = tonumber(C.lm_fake_call_count(name)) - (before[name] or 0) end)
  return made
end

-- Asking what went wrong must not go wrong, and giving back always works.
local spared = {cudaGetLastError = true, cudaPeekAtLastError = true, cudaGetErrorName = true, cudaGetErrorString = true,
  cudaEventDestroy = true, cudnnBackendDestroyDescriptor = true, cudnnGetLastErrorString = true,
  cudnnGetErrorString = true, cublasLtMatmulDescDestroy = true, cublasLtMatrixLayoutDestroy = true,
  cublasLtMatmulPreferenceDestroy = true, cudaFree = true, cudaFreeHost = true, cublasLtGetStatusString = true,
  cublasLtGetStatusName = true, cudnnGetVersion = true, cudaGetDevice = true} -- the last: the libraries' own

describe("a CUDA call that fails", function()
  it("is a Lua error with call, code and op; nothing leaks and the next step works", function()
    local long = os.getenv "LM_TEST_LONG" == "1"
    program()
    settle()
    local expected, made = program(), calls_of(program)
    local before = living()
    local tried, silent = 0, {}
    for name, times in pairs(made) do
      local step = long and 1 or math.max(1, math.floor(times / 6))
      for nth = 1, spared[name] and 0 or times, step do
        local so_far = tonumber(C.lm_fake_call_count(name))
        C.lm_fake_fail(name, nth, 800)
        local ok, err = pcall(program)
        local hit = tonumber(C.lm_fake_call_count(name)) - so_far >= nth -- streams are made but so often
        C.lm_fake_fail(nil, 0, 0)
        C.lm_fake_reset()
        tried = tried + (hit and 1 or 0)
        if ok and hit then
          silent[name] = (silent[name] or 0) + 1 -- tried another way, or once more
        elseif hit then
          assert.is_string(err)
          assert(err:find(name, 1, true) or err:find("out of memory", 1, true), name .. " failed: " .. err)
          assert(err:find("800", 1, true) or err:find("out of memory", 1, true), name .. " failed: " .. err)
          assert(err:find("[%w_]+: "), err)
        end
        assert.near(expected, program(), 1e-6)
        assert.equal(before, living(), ("after call %d of %s failed"):format(nth, name))
      end
    end
    assert.is_true(tried > 40, "only " .. tried .. " calls tried")
    -- A failure may go unseen only where there is another way.
    for name in pairs(silent) do
      assert(name:find("^cudnn") or name:find("^cublasLt") or name:find("^cudaMalloc") or name:find("Query")
        or name:find("Peer") or name:find("^cudaHost"), name .. " failed and nobody was told")
    end
  end)
end)
