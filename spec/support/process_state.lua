--- Reads what a library could change in another's process: the addresses through which libraries call each other,
--- what signals do, and the environment. For scripts that run with FFI alone, before they require luminary.
local ffi = require "ffi"
ffi.cdef [[
  typedef struct link_map { uintptr_t base; const char *name; int64_t *dynamic; struct link_map *next; } link_map;
  typedef struct { uint32_t name; uint8_t info, other; uint16_t section; uint64_t value, size; } elf_symbol;
  typedef struct { uint64_t offset, info; int64_t addend; } elf_relocation;
  typedef struct { const char *file; void *base; const char *symbol; void *address; } dl_info;
  void *dlopen(const char *, int); void *dlsym(void *, const char *); int dlclose(void *);
  int dladdr(const void *, dl_info *); int sigaction(int, const void *, void *);
  extern char **environ;
]]
local C = ffi.C
local state = {}

local RTLD_LAZY, RTLD_NOLOAD = 1, 4
local STRINGS, SYMBOLS, RELOCATIONS, RELOCATION_BYTES, CALLS, CALL_BYTES = 5, 6, 7, 8, 23, 2
-- GLOB_DAT and JUMP_SLOT, whose words are addresses of functions and variables of other libraries.
local IMPORTS = ({x64 = {[6] = true, [7] = true}, arm64 = {[1025] = true, [1026] = true}})[jit.arch]

local RESTORER = 0x04000000 -- a flag that the C library sets for itself

local function library_of(address)
  local info = ffi.new "dl_info[1]"
  if C.dladdr(ffi.cast("void *", address), info) == 0 then return nil end
  return ffi.string(info[0].file)
end

-- Calls visit(library, symbol, address) for each import of a loaded library.
local function each_import(map, visit)
  local part, library = {}, ffi.string(map.name)
  local d = map.dynamic
  while d[0] ~= 0 do
    part[tonumber(d[0])] = d[1]
    d = d + 2
  end
  local symbols, strings = ffi.cast("elf_symbol *", part[SYMBOLS] or 0), ffi.cast("const char *", part[STRINGS] or 0)
  for _, table in ipairs {{RELOCATIONS, RELOCATION_BYTES}, {CALLS, CALL_BYTES}} do
    local list, n = ffi.cast("elf_relocation *", part[table[1]] or 0), tonumber(part[table[2]] or 0) / 24
    for i = 0, n - 1 do
      local symbol = tonumber(bit.rshift(list[i].info, 32))
      if IMPORTS[tonumber(bit.band(list[i].info, 0xffffffffLL))] and symbol ~= 0 then
        visit(library, ffi.string(strings + symbols[symbol].name),
          ffi.cast("uintptr_t *", map.base + list[i].offset)[0])
      end
    end
  end
end

--- Returns the imports that lead where no library has a symbol of that name, as texts: those that somebody redirected.
--- One that was not called yet leads into its own library.
function state.redirected()
  local found, exports = {}, {}
  local map = ffi.cast("link_map *", C.dlopen(nil, RTLD_LAZY))
  while map ~= nil do
    if not ffi.string(map.name):find "vdso" then
      each_import(map, function(library, symbol, address)
        if address == 0 then return end -- weak, and nowhere
        local there = library_of(address)
        if there == nil or there == library or library == "" and there:find "luajit" then return end
        if there:find "/ld%-linux" then return end -- the dynamic linker, whose symbols dlsym does not tell
        local key = there .. " " .. symbol
        if exports[key] == nil then
          local handle = C.dlopen(there, RTLD_LAZY + RTLD_NOLOAD)
          local own = C.dlsym(handle, symbol) -- the symbol may be a dependency's
          exports[key] = own ~= nil and library_of(ffi.cast("uintptr_t", own)) == there
          if handle ~= nil then C.dlclose(handle) end
        end
        if not exports[key] then found[#found + 1] = ("%s: %s leads to %s"):format(library, symbol, there) end
      end)
    end
    map = map.next
  end
  table.sort(found)
  return table.concat(found, "\n")
end

--- Returns what each signal does, as one text.
function state.signals()
  local lines, action = {}, ffi.new "uint64_t[32]"
  for signal = 1, 64 do
    ffi.fill(action, ffi.sizeof(action))
    if C.sigaction(signal, nil, action) == 0 then
      local flags = bit.band(tonumber(action[17]), bit.bnot(RESTORER))
      lines[#lines + 1] = ("%d: handler %x, flags %x"):format(signal, tonumber(action[0]), flags)
    end
  end
  for line in io.lines "/proc/self/status" do -- the C library's own two, 32 and 33, are in no other state
    local name, high, low = line:match "^(Sig%a+):%s*(%x%x%x%x%x%x%x)%x(%x%x%x%x%x%x%x%x)"
    if name and name ~= "SigQ" then lines[#lines + 1] = ("%s: %s.%s"):format(name, high, low) end
  end
  return table.concat(lines, "\n")
end

--- Returns the environment, as one text.
function state.environment()
  local list, i = {}, 0
  while C.environ[i] ~= nil do
    list[#list + 1] = ffi.string(C.environ[i])
    i = i + 1
  end
  table.sort(list)
  return table.concat(list, "\n")
end

--- Returns the number of threads.
function state.threads()
  for line in io.lines "/proc/self/status" do
    local n = line:match "^Threads:%s*(%d+)"
    if n then return tonumber(n) end
  end
end

return state
