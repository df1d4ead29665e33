/* Bytes of files, for readers and writers of formats that are written in Lua:
 *
 *   file_open(path, mmap)             an open file, and its size in bytes
 *   file_text(file, at, n)            n bytes from byte `at` on (from 0): a string
 *   file_section(file, at, n)         the same as uint8 [n], over the mapped file or read
 *   file_inflate(file, at, packed, n, start) uint8 [n]: what `packed` bytes unfold to, deflated; or its start
 *   file_close(file)                  what was taken out of it stays
 *   view_as(bytes, dtype, sizes, strides, at)  a view of the memory of a uint8 tensor from byte `at` on
 *   crc32(tensor, before)             of a contiguous tensor's bytes; before: 0, or that of what stands before them
 *   write_pieces(path, list)          strings and contiguous tensors one after the other: a file, whole or not at all
 */
#include "io/file_sections.h"
#include "base/message.h"
#include "bind/bind.h"
#include "io/atomic_write.h"
#include "op/backend.h"

static void close_file(void *object) {
  lm_sections **f = object;
  lm_sections_close(*f);
  *f = NULL;
}
static const lm_object_type file_type = {"luminary.sections", sizeof(lm_sections *), close_file, "a file", NULL};

typedef struct opening {
  const char *path;
  bool mmap;
  lm_sections *file;
} opening;

static lm_status open_file(lua_State *L, lm_lua *s, void *arg) {
  opening *v = arg;
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  (void)L, (void)s;
  return lm_sections_open(v->path, v->mmap ? 0 : cpu ? cpu->get_threads() : 1, &v->file);
}

static int bind_open(lua_State *L) {
  lua_settop(L, 2);
  opening v = {lm_need_text(L, 1, "load", "path"), lm_need_bool(L, 2, "load", "mmap"), NULL};
  lm_sections **file = lm_object_new(L, &file_type);
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), open_file, &v));
  *file = v.file;
  lua_pushnumber(L, (double)lm_sections_bytes(v.file));
  return 2;
}

static lm_status read_count(lua_State *L, lm_lua *s, int i, uint64_t *out) {
  int64_t v;
  lm_status status = lm_read_int(L, s, i, "load", "a place or size", &v);
  if (status == LM_OK && v < 0) status = lm_fail_int("load", "offsets and sizes", "at least 0", v);
  *out = (uint64_t)v;
  return status;
}

static int bind_text(lua_State *L) {
  lm_sections *f = lm_need_held(L, 1, &file_type, "file_text");
  uint64_t at, n;
  lm_need(L, read_count(L, LM_STATE(L), 2, &at));
  lm_need(L, read_count(L, LM_STATE(L), 3, &n));
  if (n > lm_sections_bytes(f)) n = lm_sections_bytes(f) + 1; /* the core words the error */
  if (n > (uint64_t)1 << 30) {
    return lm_raise(
        L, lm_fail_file("read", lm_sections_path(f), lm_text("a header of %.0f bytes is longer than 2^30", (double)n)));
  }
  char *to = n <= lm_sections_bytes(f) ? lua_newuserdata(L, (size_t)n + 1) : NULL;
  lm_need(L, lm_sections_copy(f, at, n, to));
  lua_pushlstring(L, to, (size_t)n);
  return 1;
}

static lm_status take_section(lua_State *L, lm_lua *s, void *arg) {
  uint64_t at, n;
  lm_sections **f = lm_to_object(L, 1, &file_type);
  NEED(read_count(L, s, 2, &at));
  NEED(read_count(L, s, 3, &n));
  return lm_sections_tensor(*f, at, n, arg);
}

static int bind_section(lua_State *L) {
  lm_need_held(L, 1, &file_type, "file_section");
  return lm_return_tensor(L, 3, take_section);
}

static lm_status take_inflated(lua_State *L, lm_lua *s, void *arg) {
  uint64_t at, packed, n;
  lm_sections **f = lm_to_object(L, 1, &file_type);
  NEED(read_count(L, s, 2, &at));
  NEED(read_count(L, s, 3, &packed));
  NEED(read_count(L, s, 4, &n));
  return lm_sections_inflate(*f, at, packed, n, lua_toboolean(L, 5), arg);
}

static int bind_inflate(lua_State *L) {
  lm_need_held(L, 1, &file_type, "file_inflate");
  return lm_return_tensor(L, 5, take_inflated);
}

static int bind_close(lua_State *L) {
  close_file(lm_need_object(L, 1, &file_type, "file_close"));
  return 0;
}

static lm_status view_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor *t;
  lm_dtype dtype;
  lm_ints size, stride;
  uint64_t at;
  NEED(lm_read_tensor(L, s, 1, "view_as", "bytes", &t));
  NEED(lm_read_dtype(L, s, 2, "view_as", "dtype", &dtype));
  NEED(lm_read_ints(L, s, 3, "view_as", "sizes", false, &size));
  NEED(lm_read_ints(L, s, 4, "view_as", "strides", false, &stride));
  NEED(read_count(L, s, 5, &at));
  if (t->dtype != LM_U8 || !lm_is_contiguous(t) || size.n != stride.n) {
    return lm_fail(LM_E_ARG, "view_as: x must be contiguous uint8, with one stride for each size");
  }
  return lm_tensor_view_as(t, dtype, size.n, size.v, stride.v, (size_t)at, arg);
}

static int bind_view_as(lua_State *L) { return lm_return_tensor(L, 5, view_bytes); }

static lm_status read_bytes(lua_State *L, lm_lua *s, int i, const char *fn, lm_tensor **out) {
  NEED(lm_read_tensor(L, s, i, fn, "a tensor", out));
  if (LM_DEVICE_KIND((*out)->device) != LM_CPU || !lm_is_contiguous(*out)) {
    return lm_fail(LM_E_ARG, "%s: x must be contiguous and on cpu", fn);
  }
  return LM_OK;
}

static int bind_crc32(lua_State *L) {
  lm_tensor *t;
  double before = lm_need_number(L, 2, "crc32", "before");
  lm_need(L, read_bytes(L, LM_STATE(L), 1, "crc32", &t));
  return lm_return_number(L, lm_crc32((uint32_t)before, t));
}

static lm_status write_pieces(lua_State *L, lm_lua *s, void *arg) {
  lm_status status;
  lm_new_file f = {.fd = -1};
  const char *path;
  (void)arg;
  TRY(lm_read_text(L, s, 1, "save", "path", &path));
  TRY(lm_new_file_open(path, &f));
  for (int i = 1, n = (int)lua_objlen(L, 2); i <= n; i++) {
    lua_rawgeti(L, 2, i);
    if (lua_type(L, -1) == LUA_TSTRING) {
      size_t bytes;
      const char *text = lua_tolstring(L, -1, &bytes);
      TRY(lm_new_file_write(&f, text, bytes));
    } else {
      lm_tensor *t;
      TRY(read_bytes(L, s, lua_gettop(L), "save", &t));
      TRY(lm_new_file_write(&f, t->data, lm_nbytes(t)));
    }
    lua_pop(L, 1);
  }
  TRY(lm_new_file_commit(&f));
done:
  lm_new_file_abandon(&f);
  return status;
}

static int bind_write_pieces(lua_State *L) {
  lua_settop(L, 2);
  if (lua_type(L, 2) != LUA_TTABLE) return lm_raise_arg(L, 2, "write_pieces", "pieces", "a list");
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), write_pieces, NULL));
  return 0;
}

const luaL_Reg lm_section_functions[] = {{"file_open", bind_open},
                                         {"file_text", bind_text},
                                         {"file_section", bind_section},
                                         {"file_inflate", bind_inflate},
                                         {"file_close", bind_close},
                                         {"view_as", bind_view_as},
                                         {"crc32", bind_crc32},
                                         {"write_pieces", bind_write_pieces},
                                         {NULL, NULL}};
