-- The same calls on the CPU and on a CUDA device, their results compared. Shared by spec/cuda/compare*_spec.lua.
local lm = require "luminary"

local compare = {
  long = os.getenv "LM_TEST_LONG" == "1",
  floats = { "float32", "float64", "float16", "bfloat16" },
  integers = { "int64", "int32", "int16", "int8", "uint16", "uint8", "bool" },
  -- a few units in the last place, of 1 and more
  tolerance = { float16 = 2e-3, bfloat16 = 1.6e-2, float32 = 3e-6, float64 = 1e-12 },
}
local random = math.random

function compare.is_float(dtype) return compare.tolerance[dtype] ~= nil end

-- Runs `short` rounds, an eighth of them under sanitizers, or `long` ones, of body(seed); a failure names its seed.
function compare.rounds(short, long, body)
  if os.getenv "LM_SPEC_SANITIZED" == "1" then short = math.ceil(short / 8) end
  for seed = 1, compare.long and long or short do
    math.randomseed(seed)
    lm.manual_seed(seed)
    local ok, wrong = pcall(body, seed)
    if not ok then error(("seed %d: %s"):format(seed, tostring(wrong)), 0) end
  end
end

-- Returns nil or the difference; tol is relative, and absolute below 1.
local function differs(here, there, tol)
  there = there:cpu()
  local shape, other = table.concat(here.shape, "x"), table.concat(there.shape, "x")
  if shape ~= other then return ("shape %s instead of %s"):format(other, shape) end
  if here.dtype ~= there.dtype then return ("dtype %s instead of %s"):format(there.dtype, here.dtype) end
  if here:numel() == 0 then return nil end
  local a, b = here:double():reshape {-1}, there:double():reshape {-1}
  local alike = a:eq(b):logical_or(a:isnan():logical_and(b:isnan()))
  local close = a:sub(b):abs():le((a:abs() + 1) * tol):logical_and(a:isfinite())
  local wrong = alike:logical_or(close):logical_not()
  if not wrong:any():item() then return nil end
  local at = wrong:to_copy({ dtype = "uint8" }):argmax():item()
  return ("element %d of %s is %.9g instead of %.9g (%s)"):format(at, shape, b[at], a[at], here.dtype)
end

-- A tensor and its copy on the device, to which the same is done.
local twin = {}
twin.__index = twin

function compare.twin(here) return setmetatable({ here = here, there = here:cuda() }, twin) end

function twin:map(f) return setmetatable({ here = f(self.here), there = f(self.there) }, twin) end

local function results(f, side, ...)
  local args = { ... }
  for i = 1, select("#", ...) do
    if getmetatable(args[i]) == twin then args[i] = args[i][side] end
  end
  lm.manual_seed(11) -- both sides draw the same numbers
  return { pcall(f, unpack(args, 1, select("#", ...))) }
end

-- Expects that f of the arguments, where twins stand for their tensors, returns the same on both sides, or fails on
-- both. f may return several tensors. tol: for results in floats; nil: by their dtype. True if there were results.
function compare.same(what, tol, f, ...)
  local here, there = results(f, "here", ...), results(f, "there", ...)
  if here[1] ~= there[1] then
    error(("%s: the CPU says %s, the device %s"):format(what, tostring(here[2]), tostring(there[2])), 0)
  end
  if not here[1] then return false end
  assert(#here == #there and #here > 1, what .. ": number of results")
  for i = 2, #here do
    local by_dtype = compare.tolerance[here[i].dtype]
    local wrong = differs(here[i], there[i], by_dtype and (tol or by_dtype) or 0)
    if wrong then error(("%s, result %d: %s"):format(what, i - 1, wrong), 0) end
  end
  return true
end

-- Returns the gradients of `f(inputs...)`, weighted by w, by each of the inputs.
function compare.gradients(f, w, ...)
  local leaves = { ... }
  for i, x in ipairs(leaves) do leaves[i] = x:detach():clone():requires_grad_() end
  f(unpack(leaves)):backward(w)
  for i, x in ipairs(leaves) do leaves[i] = x.grad end
  return unpack(leaves)
end

function compare.one_of(list) return list[random(#list)] end

-- Returns some numbers around `middle` of a dtype.
function compare.numbers(dtype, size, middle)
  local x = lm.randn(size, { dtype = "float64" }) * 3 + (middle or 0)
  if dtype == "bool" then return x:gt(0) end
  if dtype == "uint8" then x = x:abs() end
  return x:to_copy({ dtype = dtype })
end

-- Returns sizes of all kinds, of at most some 100,000 elements.
function compare.shape()
  local kinds = {
    function() return { random(70000) } end,
    function() return { random(40), random(3000) } end,
    function() return { random(3000), random(40) } end,
    function() return { random(9), random(70), random(70) } end,
    function() return { 4 * random(9), 8 * random(20), 8 * random(9) } end,
    function() return { random(6), random(12), random(12), random(12) } end,
    function() return { random(5), random(5), random(5), random(5), random(5) } end,
    function() return { random(3), random(200, 300) * 64 } end,
    function() return { random(200, 400) * 8, 8 * random(8) } end,
    function() return { random(2000), random(8) } end,
  }
  return compare.one_of(kinds)()
end

-- Names of views that have the same elements or some of them, otherwise laid out.
compare.views = { "as it is", "turned", "last two swapped", "narrowed", "channels last", "expanded", "every second" }
function compare.view(x, name)
  local n = x.ndim
  if name == "turned" then return x:transpose(1, n) end
  if name == "last two swapped" and n > 1 then return x:transpose(n - 1, n) end
  if name == "narrowed" and x.shape[n] > 3 then return x:narrow(n, 2, x.shape[n] - 2) end
  if name == "channels last" and n == 4 then return x:contiguous({ memory_format = "channels_last" }) end
  if name == "every second" then return x:slice(n, 1, -1, 2) end
  if name ~= "expanded" then return x end
  local shape = x.shape
  shape[n + 1] = 3
  return x:unsqueeze(n + 1):expand(shape)
end

return compare
