--- Ranks for the specs of the group "nccl": each with a card of its own of the fake CUDA runtime, over its stand-in for
--- NCCL. In their scripts: lm, core, dist, nn, F, ffi, the stand-in (fake_nccl.lua), rank, size, device, the functions
--- below, and the group unless `opts.bare`.
---   nccl_ranks.script(text, opts)  the whole script; opts: bare, init ("timeout = 20", of init_process_group)
---   nccl_ranks.start, .run(n, text [, opts])  as ranks.start and ranks.run; env, env_of, timeout too
---   nccl_ranks.succeeds(n, text [, opts])     and fails unless every rank came to its end
---   nccl_ranks.are_there                 whether there is anything to run
local ffi = require "ffi"
local nccl = require "spec.support.fake_nccl"
local ranks = require "spec.support.ranks"

local nccl_ranks = { are_there = nccl.is_there and require "luminary".dist.is_nccl_available() }

local prelude = [[
local lm = require "luminary"
local core = require "luminary.core"
local dist, nn, F, ffi, nccl = lm.dist, lm.nn, lm.nn.functional, require "ffi", require "spec.support.fake_nccl"
local message = require "spec.support.error_of"
local C = ffi.C
local rank, size = tonumber(os.getenv "RANK"), tonumber(os.getenv "WORLD_SIZE")
lm.cuda.set_device(rank % lm.cuda.device_count())
local device = "cuda:" .. lm.cuda.current_device()
local function on(list, opts)
  opts = opts or {}
  opts.device = device
  return lm.tensor(list, opts)
end
local function full(shape, value, dtype) return lm.full(shape, value, { device = device, dtype = dtype }) end
local function live(what) return tonumber(C.lm_fake_live(what)) end
local function calls(name) return tonumber(C.lm_fake_call_count(name)) end
ffi.cdef "int clock_gettime(int, long *);"
local function now() -- in seconds
  local clock = ffi.new "long[2]"
  C.clock_gettime(1, clock)
  return tonumber(clock[0]) + 1e-9 * tonumber(clock[1])
end
local function until_true(f, seconds)
  for _ = 1, (seconds or 20) * 1000 do
    if f() then return true end
    C.usleep(1000)
  end
  return false
end
local function same(want, t)
  local got = t:to("cpu"):reshape(-1):totable()
  for i, v in ipairs(want) do
    if got[i] ~= v then
      error(("want %s; got %s"):format(table.concat(want, " "), table.concat(got, " ")), 2)
    end
  end
  assert(#want == #got)
end
local function contains(text, ...)
  for _, wanted in ipairs { ... } do
    if not text:find(wanted, 1, true) then error("no '" .. wanted .. "' in: " .. text, 2) end
  end
end
]]

local epilogue = [[

if dist.is_initialized() then dist.destroy_process_group() end
assert(live "communicator" == 0, "communicators are left")
assert(live "exposed" == 0, "NCCL's threads would take signals that are the script's")
print "finished"
]]

function nccl_ranks.script(text, opts)
  local init = opts.bare and "" or ("dist.init_process_group { %s }\n"):format(opts.init or "timeout = 20")
  return prelude .. init .. text .. epilogue
end

local function with_defaults(n, text, opts)
  opts = opts or {}
  -- Work is left to whoever waits for it, as the fake runtime does if it is not set otherwise. What follows a
  -- collective comes later than its call whatever is set, so that freed blocks cannot be guarded (segments.c).
  local env = {
    LM_TOKEN = "a token for specs", LM_FAKE_CUDA_DEVICES = n, CUDA_VISIBLE_DEVICES = false, LM_CUDA_VIRTUAL = false,
    LM_FAKE_NCCL = false, LM_FAKE_CUDA_EAGER = false, LM_GUARD_BLOCKS = false,
  }
  for name, value in pairs(opts.env or {}) do env[name] = value end
  return {
    n = n, script = nccl_ranks.script(text, opts), timeout = opts.timeout or 40, env = env, env_of = opts.env_of,
    command = opts.command,
  }
end

function nccl_ranks.start(n, text, opts) return ranks.start(with_defaults(n, text, opts)) end
function nccl_ranks.run(n, text, opts) return ranks.run(with_defaults(n, text, opts)) end

function nccl_ranks.succeeds(n, text, opts)
  local got = nccl_ranks.run(n, text, opts)
  assert(got.ok, got.text)
  for rank = 0, n - 1 do
    assert(got[rank].output:find("finished\n", 1, true) and not got[rank].output:find("fake nccl:", 1, true), got.text)
  end
  return got
end

--- Returns a list of NCCL's symbols that a file of this build needs and the stand-in lacks.
function nccl_ranks.unknown_symbols(path)
  local pipe = io.popen(("LD_PRELOAD= nm -D --undefined-only '%s'"):format(path))
  local missing, seen = {}, 0
  for name in pipe:read("*a"):gmatch("U (nccl%w+)") do
    seen = seen + 1
    pcall(ffi.cdef, ("void spec_has_%s(void) __asm__(%q);"):format(name, name))
    if not pcall(function() return ffi.C["spec_has_" .. name] end) then missing[#missing + 1] = name end
  end
  pipe:close()
  return missing, seen
end

return nccl_ranks
