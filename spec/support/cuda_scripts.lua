--- Scripts over the fake CUDA runtime (support/cuda), each in a new process.
local temp = require "spec.support.temp"

local scripts = {}

-- First lines of every script.
local common = [[
local lm = require "luminary"
local ffi = require "ffi"
ffi.cdef "void lm_fake_fail(const char *, long, int); void lm_fake_diverge(void);"
ffi.cdef "long lm_fake_call_count(const char *); long lm_fake_live(const char *);"
local fake = ffi.C
local function live(what) return tonumber(fake.lm_fake_live(what)) end
local function calls(name) return tonumber(fake.lm_fake_call_count(name)) end
local function refused(words, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  assert(tostring(why):find(words, 1, true), tostring(why))
end
-- Returns t on the device, `by` elements behind a boundary of 256 bytes.
local function off(t, by)
  local room = lm.zeros({t:numel() + by}, {dtype = t.dtype, device = "cuda"})
  return room:narrow(1, 1 + by, t:numel()):copy_(t:reshape{-1}):view(t.shape)
end
]]

local library = assert(package.searchpath("luminary.core", package.cpath)):gsub("core%.so$", "fake_cuda.so")

--- Its path.
scripts.library = library

-- Returns whether this build has that runtime.
local function are_possible() return temp.exists(library) end

-- Runs a script with an environment such as "LM_SYNC=1". Returns whether it succeeded, and its output.
local function run(text, environment)
  local folder = temp.folder()
  local path = temp.write(folder .. "/script.lua", common .. text)
  local ok, output = temp.run(folder, ('%s LD_PRELOAD="$LD_PRELOAD %s" timeout 1200 luajit %s'):format(
    environment or "", library, path))
  temp.remove(folder)
  return ok, output
end

--- Returns a function (name, text [, environment]) that makes a test of a script, which begins with `preamble`; `it`
--- and `pending` are the spec's.
function scripts.tests(it, pending, preamble)
  return function(name, text, environment)
    it(name, function()
      if not are_possible() then return pending("it needs a build with CUDA") end
      assert(run(preamble .. text, environment))
    end)
  end
end

return scripts
