--- luminary.core, the C module, loaded with environment variables for its libraries. The libraries read them only while
--- they are loaded, so they are set only then, and children do not inherit them. Variables that the user set stay.
---
--- GOMP_SPINCOUNT: OpenMP's threads wait for each other by spinning, by default for about 7 ms. Beside another
--- computing process, spinning uses up the thread's time slice, and the awaited work must wait for the next slice. This
--- number of spins takes about 25 us, the usual imbalance of a parallel region on an idle machine. Ten times more spins
--- double the time of a small step beside a busy process; a tenth makes it 1.5 times longer on an idle machine.
--- OPENBLAS_NUM_THREADS: OpenBLAS would start threads that are never used.
local wanted = {GOMP_SPINCOUNT = "1000", OPENBLAS_NUM_THREADS = "1"}
local deciding = {GOMP_SPINCOUNT = "OMP_WAIT_POLICY"} -- by variable: another that has the same effect

-- setenv and dlopen, under names that cannot collide with other declarations of them; nil without the FFI.
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

-- OpenBLAS retries forever to allocate its first buffer while it is loaded: 128 MB of address space.
local function check_room(c)
  local bytes, PRIVATE_ANONYMOUS_NORESERVE = 240 * 2 ^ 20, 0x4022
  local room = c.lm_load_mmap(nil, bytes, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
  if room == require("ffi").cast("void *", -1) then
    error("out of memory: loading luminary's libraries requires 240 MB of address space (ulimit -v)", 0)
  end
  c.lm_load_munmap(room, bytes)
end

-- Returns the names that were set: none if OpenMP is already loaded, by the host or for another Lua state. Setting
-- variables would not be thread-safe then either.
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

-- This file precedes the C module of the same name in require's search order.
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

-- Errors are raised at the first line outside of this file's folder.
local own = debug.getinfo(1, "S").source:match("^(@.*)core%.lua$")
if own then core.own_files(own) end
return core
