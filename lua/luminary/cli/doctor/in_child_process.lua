--- Runs the doctor's steps that a hung driver would block in a separate process. A line announces each step before it
--- starts, so that the last line names the step that hung.
local ffi = require "ffi"

local child = {}

local function say(...)
  io.stdout:write(string.format(...):gsub("%s*\n%s*", " "), "\n")
  io.stdout:flush()
end

-- Makes the kernel kill this process when the doctor ends (prctl, PR_SET_PDEATHSIG, SIGKILL).
local function end_with_parent()
  pcall(ffi.cdef, "int prctl(int option, ...);")
  ffi.C.prctl(1, ffi.cast("unsigned long", 9))
end

-- Returns an error's text without the position in our files.
local function plain(problem) return (tostring(problem):gsub("^[^\n]-:%d+: ", "")) end

local NAMES = {libcuda = true, libcudart = true, libcudnn = true, libnccl = true}

-- Returns NCCL's version: of the one our process group uses, else of the one that the loader finds.
local function nccl_version(core)
  if core and core.nccl_version then
    local ok, version = pcall(core.nccl_version)
    if ok and version then return tonumber(version) end
  end
  local found, library = pcall(ffi.load, "libnccl.so.2")
  if not found then return nil end
  pcall(ffi.cdef, "int ncclGetVersion(int *version);")
  local version = ffi.new "int[1]"
  return library.ncclGetVersion(version) == 0 and version[0] or nil
end

--- Prints lines "name value": core (yes), core_problem, cuda, cudnn, nccl (versions), count (CUDA devices), why (the
--- reason for none), loaded (a library's path, any number of these).
function child.versions()
  end_with_parent()
  say "step loading luminary's core"
  local ok, core = pcall(require, "luminary.core")
  if ok then
    say "core yes"
    say "step loading the CUDA libraries and asking the driver for devices"
    say("count %d", core.device_count "cuda")
    local why = core.device_why_none "cuda"
    if why then say("why %s", plain(why)) end
    for _, name in ipairs {"cuda", "cudnn"} do
      local version = core.cuda_version(name)
      if version then say("%s %d", name, version) end
    end
  else
    say("core_problem %s", plain(core):match("^%s*(.-)%s*$"):sub(1, 500)) -- the second line has the loader's reason
    core = nil
  end
  say "step loading NCCL"
  local version = nccl_version(core)
  if version then say("nccl %d", version) end
  local maps, seen = io.open "/proc/self/maps", {}
  for line in maps and maps:lines() or function() end do
    local path, name = line:match("%s(/%S*/(lib%a+)%.so[%d.]*)$")
    if NAMES[name] and not seen[path] then
      seen[path] = true
      say("loaded %s", path)
    end
  end
  if maps then maps:close() end
  say "step end"
end

local BATCH = 16 * 2 ^ 20
local BYTES, SMALL = 64 * 2 ^ 20, 4 * 2 ^ 20 -- bytes of a timed copy; of a checked copy
local ENOUGH = 0.05 -- seconds of measuring

-- Returns the GB/s of copy(), which moves `bytes`, after one call to warm up.
local function speed(core, devices, bytes, copy)
  local function synchronize()
    for _, device in ipairs(devices) do core.synchronize(device) end
  end
  copy()
  synchronize()
  local began, times = core.time(), 0
  repeat
    copy()
    synchronize()
    times = times + 1
  until core.time() - began > ENOUGH or times == 20
  return bytes * times / (core.time() - began) / 1e9
end

local function measure_host(lm, core, i, bytes)
  local device = "cuda:" .. i
  local there = lm.empty({bytes / 4}, {device = device})
  for _, kind in ipairs {"pinned", "pageable"} do
    local here = lm.ones {bytes / 4}
    if kind == "pinned" then here = here:pin_memory() end
    say("step copying between %s memory of the host and %s", kind, device)
    local up = speed(core, {device}, bytes, function() there:copy_(here, {non_blocking = true}) end)
    local down = speed(core, {device}, bytes, function() here:copy_(there, {non_blocking = true}) end)
    say("host %d %s %.2f %.2f", i, kind, up, down)
  end
end

-- Prints the milliseconds that a loader's batch takes with pinning and without.
local function measure_batch(i, bytes)
  say("step pinning a batch for cuda:%d", i)
  local m = require("luminary.data.copy_to_gpu").measure("cuda:" .. i, bytes)
  say("batch %d %.1f %.3f %.3f %.3f", i, bytes / 1e6, m.pageable * 1e3, m.stage * 1e3, m.pinned * 1e3)
end

local function measure_peer(lm, core, i, j, bytes)
  local from, to = "cuda:" .. i, "cuda:" .. j
  say("step copying from %s to %s", from, to)
  local direct = lm.cuda.can_device_access_peer(to, from)
  local sent, n = lm.arange(math.min(bytes, SMALL) / 4):to "float32", math.min(bytes, SMALL) / 4
  local source, target = sent:to(from), lm.zeros({n}, {device = to})
  target:copy_(source)
  core.synchronize(from)
  core.synchronize(to)
  local right = target:to("cpu"):eq(sent):all():item()
  source, target = lm.ones({bytes / 4}, {device = from}), lm.empty({bytes / 4}, {device = to})
  local rate = speed(core, {from, to}, bytes, function() target:copy_(source) end)
  say("peer %d %d %s %.2f %s", i, j, direct and "direct" or "host", rate,
    (right == true or right == 1) and "right" or "wrong")
end

--- Prints lines "host i pinned|pageable up down" and "peer i j direct|host rate right|wrong" (GB/s), "batch i MB
--- pageable stage pinned" (ms), "device i name", and "problem text" for failures.
function child.measure()
  end_with_parent()
  say "step loading CUDA"
  local lm, core = require "luminary", require "luminary.core"
  local n = lm.cuda.device_count()
  say("count %d", n)
  local function try(f, ...)
    local ok, problem = pcall(f, ...)
    if not ok then say("problem %s", plain(problem)) end
    collectgarbage()
  end
  local bytes = BYTES
  for i = 0, n - 1 do
    say("step starting work on cuda:%d", i)
    try(function()
      say("device %d %s", i, lm.cuda.get_device_name(i))
      lm.ones({1}, {device = "cuda:" .. i}):add_(1):item() -- runs a kernel: the library may have none for this GPU
      local free = lm.cuda.mem_get_info(i)
      while bytes > SMALL and bytes > free / 8 do bytes = bytes / 2 end
    end)
  end
  for i = 0, n - 1 do try(measure_host, lm, core, i, bytes) end
  for i = 0, n - 1 do
    for j = 0, n - 1 do
      if i ~= j then try(measure_peer, lm, core, i, j, bytes) end
    end
  end
  for i = 0, n - 1 do try(measure_batch, i, math.min(bytes, BATCH)) end
  say "step end"
end

return child
