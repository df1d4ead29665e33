/* Defines which cdata count as 64-bit integers (5LL, 5ULL), and makes such integers and pointers. */
#include "bind/bind.h"

/* Lua code that needs the FFI. Integers are passed as two 32-bit halves. */
static const char ffi_glue[] =
    "local ok, ffi = pcall(require, 'ffi')\n"
    "if not ok then return end\n"
    "local i64, u64 = ffi.typeof('int64_t'), ffi.typeof('uint64_t')\n"
    "local function int64(high, low) return i64(high) * 4294967296LL + i64(low) end\n"
    "local function pointer(p) return ffi.cast('void *', p) end\n"
    "local function is_int64(v)\n"
    "  return ffi.istype(i64, v) or (ffi.istype(u64, v) and v <= 9223372036854775807ULL)\n"
    "end\n"
    "return int64, pointer, is_int64\n";

void lm_load_int64_cdata(lua_State *L) {
  static const char *const keys[] = {&lm_reg_int64, &lm_reg_pointer, &lm_reg_is_int64};
  int top = lua_gettop(L);
  if (luaL_loadbuffer(L, ffi_glue, sizeof ffi_glue - 1, "=luminary.core") || lua_pcall(L, 0, 3, 0)) lua_error(L);
  for (int i = 2; i >= 0; i--) lm_reg_set(L, keys[i]);
  lua_settop(L, top);
}
