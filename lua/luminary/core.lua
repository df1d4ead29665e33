--- luminary.core, the C module, loaded with environment variables for OpenBLAS. It reads them only while it is loaded,
--- so they are set only then, and children do not inherit them. Variables that the user set stay.
---
--- OPENBLAS_NUM_THREADS: OpenBLAS would start threads that are never used.
--- OPENBLAS_CORETYPE: OpenBLAS takes CPUs that are newer than itself for those of 2004, and AVX2 would stay idle.

local OPENBLAS, RTLD_LAZY, RTLD_NOLOAD = "libopenblas.so.0", 1, 4

-- The C library, under names that cannot collide with other declarations of them; nil without the FFI.
local function c_library()
  local there, ffi = pcall(require, "ffi")
  if not there then return nil end
  local declared = pcall(ffi.cdef, [[
    int lm_load_setenv(const char *name, const char *value, int replace) __asm__("setenv");
    int lm_load_unsetenv(const char *name) __asm__("unsetenv");
    void *lm_load_dlopen(const char *file, int mode) __asm__("dlopen");
    void *lm_load_dlsym(void *library, const char *symbol) __asm__("dlsym");
    int lm_load_dlclose(void *library) __asm__("dlclose");
    void *lm_load_mmap(void *, size_t bytes, int access, int flags, int file, long) __asm__("mmap");
    int lm_load_munmap(void *, size_t) __asm__("munmap");]])
  return declared and ffi.C or nil, ffi
end

-- OpenBLAS retries forever to allocate its first buffer while it is loaded: 128 MB of address space.
local function check_room(c, ffi)
  local bytes, PRIVATE_ANONYMOUS_NORESERVE = 240 * 2 ^ 20, 0x4022
  local room = c.lm_load_mmap(nil, bytes, 0, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
  if room == ffi.cast("void *", -1) then
    error("out of memory: loading luminary's libraries requires 240 MB of address space (ulimit -v)", 0)
  end
  c.lm_load_munmap(room, bytes)
end

local function cpu_flags()
  local file = io.open "/proc/cpuinfo"
  local text = file and file:read(8192) or ""
  if file then file:close() end
  return (text:match "\nflags%s*:([^\n]*)" or "") .. " "
end

-- Loads OpenBLAS. Returns the kernels that it should have taken, nil where it took any that are good.
local function better_kernels(c, ffi)
  local library = c.lm_load_dlopen(OPENBLAS, RTLD_LAZY)
  local name_of = library ~= nil and c.lm_load_dlsym(library, "openblas_get_corename")
  if not name_of or name_of == nil then return nil end
  local name = ffi.string(ffi.cast("const char *(*)(void)", name_of)())
  local old = {Prescott = true, Core2 = true, Penryn = true, Dunnington = true, Nehalem = true}
  local flags = old[name] and cpu_flags() or ""
  if not flags:find " avx2 " or not flags:find " fma " then return nil end
  c.lm_load_dlclose(library)
  return flags:find " avx512vl " and flags:find " avx512bw " and flags:find " avx512dq " and "SkylakeX" or "Haswell"
end

-- Returns the names that were set: none if OpenBLAS is already loaded, by the host or for another Lua state. Setting
-- variables would not be thread-safe then either.
local function set()
  local names, c, ffi = {}, c_library()
  if not c or c.lm_load_dlopen(OPENBLAS, RTLD_LAZY + RTLD_NOLOAD) ~= nil then return names, c end
  local function set_one(name, value)
    if value and not os.getenv(name) and c.lm_load_setenv(name, value, 0) == 0 then names[#names + 1] = name end
  end
  check_room(c, ffi)
  set_one("OPENBLAS_NUM_THREADS", "1")
  if not os.getenv "OPENBLAS_CORETYPE" then set_one("OPENBLAS_CORETYPE", better_kernels(c, ffi)) end
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
