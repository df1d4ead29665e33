--- luminary.core, the C module, loaded with what the libraries under it are to find in the environment. They read it
--- while they are loaded and never again, so it stands there only meanwhile: children inherit nothing. What the user
--- has set stays.
---
--- GOMP_SPINCOUNT: OpenMP's threads wait for one another by spinning, some 7 ms long of themselves. Beside a process
--- that computes, spinning spends the time slice that the scheduler grants, and the work that was waited for has to
--- wait for the next. This many spins are some 25 us: about as long as a region is uneven while the machine is ours
--- alone. Ten times as many double a small step's time beside a neighbor; a tenth costs it half as much again when
--- alone. OPENBLAS_NUM_THREADS: it would start threads we never use.
local wanted = {GOMP_SPINCOUNT = "1000", OPENBLAS_NUM_THREADS = "1"}
local deciding = {GOMP_SPINCOUNT = "OMP_WAIT_POLICY"} -- says it in other words

-- setenv and dlopen, under names that no other declaration of them can collide with; nil where there is no FFI.
local function c_library()
  local there, ffi = pcall(require, "ffi")
  if not there then return nil end
  local declared = pcall(ffi.cdef, [[
    int lm_load_setenv(const char *name, const char *value, int replace) __asm__("setenv");
    int lm_load_unsetenv(const char *name) __asm__("unsetenv");
    void *lm_load_dlopen(const char *file, int mode) __asm__("dlopen");
    void *lm_load_mmap(void *, size_t bytes, int access, int flags, int file, long) __asm__("mmap");
    int lm_load_munmap(void *, size_t) __asm__("munmap");]])
  return declared and ffi.C or nil
end

local RTLD_LAZY, RTLD_NOLOAD = 1, 4

-- OpenBLAS asks for its first buffer again and again for ever while it is loaded: 128 MB of addresses, beside the rest.
local function check_room(c)
  local bytes, PRIVATE_ANONYMOUS_NORESERVE = 240 * 2 ^ 20, 0x4022
  local room = c.lm_load_mmap(nil, bytes, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
  if room == require("ffi").cast("void *", -1) then
    error("out of memory: loading luminary's libraries wants 240 MB of addresses (ulimit -v)", 0)
  end
  c.lm_load_munmap(room, bytes)
end

-- The names that were set. None where OpenMP is there already: the host's, or ours in another Lua state; threads that
-- set variables would not be safe then either.
local function set()
  local names, c = {}, c_library()
  if not c or c.lm_load_dlopen("libgomp.so.1", RTLD_LAZY + RTLD_NOLOAD) ~= nil then return names, c end
  check_room(c)
  for name, value in pairs(wanted) do
    local decided = os.getenv(name) or deciding[name] and os.getenv(deciding[name])
    if not decided and c.lm_load_setenv(name, value, 0) == 0 then
      names[#names + 1] = name
    end
  end
  return names, c
end

-- This file stands before the C module in require's order, under the same name.
local function load()
  local path, seen = package.searchpath("luminary.core", package.cpath)
  if not path then error("module 'luminary.core' not found:" .. seen, 0) end
  local open, why = package.loadlib(path, "luaopen_luminary_core")
  if not open then error(("error loading module 'luminary.core' from file '%s':\n\t%s"):format(path, why), 0) end
  return open("luminary.core")
end

local names, c = set()
local ok, core = pcall(load)
for _, name in ipairs(names) do c.lm_load_unsetenv(name) end
if not ok then error(core, 0) end

-- Errors are raised at the first line outside the files beside this one.
local own = debug.getinfo(1, "S").source:match("^(@.*)core%.lua$")
if own then core.own_files(own) end
return core
