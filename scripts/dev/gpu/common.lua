-- Shares functions between the cases of scripts/dev/gpu_cases.lua.
local lm = require "luminary"
local bench = require "scripts.bench.cuda_networks"

local common = {}

function common.fail(...) error(string.format(...), 0) end

common.stand_in, common.sized, common.networks = bench.stand_in, bench.sized, bench.networks

-- Returns the largest difference relative to the largest value.
local function apart(here, there)
  here, there = here:double(), there:to("cpu"):double()
  local scale = here:abs():max():item()
  return (here - there):abs():max():item() / (scale > 0 and scale or 1)
end

local function judge(what, worst, limit)
  print(("%-40s off by %.2e"):format(what, worst))
  if worst > limit or worst ~= worst then common.fail("%s: off by %.2e, which may be %.0e", what, worst, limit) end
end

function common.expect(what, here, there, limit) judge(what, apart(here, there), limit) end

--- Expects the values of one list beside another's, as one line.
function common.expect_all(what, here, there, limit)
  local worst = 0
  for i, t in ipairs(here) do
    local off = apart(t, there[i])
    if off ~= off or off > worst then worst = off end
    if off ~= off then break end
  end
  judge(what, worst, limit)
end

local function timed(f, calls)
  lm.synchronize("cuda")
  local start = lm.time()
  for _ = 1, calls do f() end
  lm.synchronize("cuda")
  return (lm.time() - start) / calls
end

--- Seconds of the next call of f, the device idle before and after.
function common.once(f) return timed(f, 1) end

--- Seconds of a call of f once it is warm: the median of five rounds of 20 ms at least.
function common.seconds(f)
  f()
  local calls = common.sized(math.min(2000, math.ceil(0.02 / timed(f, 1))), 1)
  local rounds = {}
  for i = 1, common.sized(5, 1) do rounds[i] = timed(f, calls) end
  table.sort(rounds)
  return rounds[math.ceil(#rounds / 2)]
end

function common.milliseconds(f, inputs)
  return 1000 * common.seconds(function() f(unpack(inputs)) end)
end

local ceilings = {}

--- Measures the card's best: GB/s of "copy", read and written; TFLOP/s of products in "bfloat16", "tf32" and
--- "float32". Measures once in a process.
function common.ceiling(what)
  if ceilings[what] then return ceilings[what] end
  local on, before = { device = "cuda" }, lm.backends.cuda.matmul.allow_tf32
  if what == "copy" then
    local x = lm.rand({ common.sized(2 ^ 28, 2 ^ 10) }, on)
    local y = lm.empty_like(x)
    ceilings[what] = 2 * common.bytes(x) / common.seconds(function() y:copy_(x) end) / 1e9
  else
    local n, dtype = common.sized(8192, 16), what == "bfloat16" and what or "float32"
    local a, b = lm.randn({ n, n }, on):to(dtype), lm.randn({ n, n }, on):to(dtype)
    lm.backends.cuda.matmul.allow_tf32 = what == "tf32"
    ceilings[what] = 2 * n ^ 3 / common.seconds(function() return a:mm(b) end) / 1e12
    lm.backends.cuda.matmul.allow_tf32 = before
  end
  common.sweep()
  return ceilings[what]
end

--- Frees what earlier cases of this process held.
function common.sweep()
  collectgarbage()
  collectgarbage()
  lm.cuda.empty_cache()
  lm.reset_peak_memory_stats("cuda")
end

--- Bytes of a tensor's elements.
function common.bytes(t) return t:numel() * t:element_size() end

return common
