/* Files read in place (data/record_file.h):
 *
 *   source_open(path)        a source, its bytes, its stamp
 *   source_read(source, at, n)   a string   source_lines(source)   source_line_of(source, at)
 *   source_blocks(source, index, dtype, from, size, stride, base, below)   x, y
 */
#include "data/record_file.h"

#include "bind/bind.h"

static void close_source(void *object) {
  lm_source **source = object;
  lm_source_close(*source);
  *source = NULL;
}
static const lm_object_type source_type = {"luminary.source", sizeof(lm_source *), close_source, "a source", NULL};

static lm_source *need_source(lua_State *L, const char *fn) { return lm_need_held(L, 1, &source_type, fn); }

static int bind_source_open(lua_State *L) {
  const char *path = lm_need_text(L, 1, "source_open", "path");
  lm_source **source = lm_object_new(L, &source_type);
  lm_need(L, lm_source_open(path, source));
  lua_pushnumber(L, (double)lm_source_bytes(*source));
  lua_pushstring(L, lm_source_stamp(*source));
  return 3;
}

static int bind_source_read(lua_State *L) {
  lm_source *source = need_source(L, "source_read");
  int64_t at = lm_need_int(L, 2, "source_read", "at"), n = lm_need_int(L, 3, "source_read", "n");
  const char *text;
  lm_need(L, lm_source_read(source, at, n, &text));
  lua_pushlstring(L, text, (size_t)n);
  return 1;
}

static lm_status source_lines(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  return lm_source_lines(*(lm_source **)lua_touserdata(L, 1), arg);
}

static int bind_source_lines(lua_State *L) {
  need_source(L, "source_lines");
  return lm_return_tensor(L, 1, source_lines);
}

static int bind_source_line_of(lua_State *L) {
  lm_source *source = need_source(L, "source_line_of");
  int64_t line;
  lm_need(L, lm_source_line_of(source, lm_need_int(L, 2, "source_line_of", "at"), &line));
  return lm_return_number(L, (double)line);
}

static lm_status source_blocks(lua_State *L, lm_lua *s, void *arg) {
  static const char fn[] = "source_blocks";
  lm_tensor **made = arg, *index;
  lm_blocks b;
  NEED(lm_read_tensor(L, s, 2, fn, "index", &index));
  NEED(lm_read_text(L, s, 3, fn, "dtype", &b.dtype));
  NEED(lm_read_int(L, s, 4, fn, "from", &b.from));
  NEED(lm_read_int(L, s, 5, fn, "size", &b.size));
  NEED(lm_read_int(L, s, 6, fn, "stride", &b.stride));
  NEED(lm_read_int(L, s, 7, fn, "base", &b.base));
  NEED(lm_read_int(L, s, 8, fn, "below", &b.below));
  return lm_source_blocks(*(lm_source **)lua_touserdata(L, 1), &b, index, &made[0], &made[1]);
}

static int bind_source_blocks(lua_State *L) {
  lm_tensor *made[2];
  need_source(L, "source_blocks");
  return lm_return_tensors(L, 8, 2, source_blocks, made, made);
}

const luaL_Reg lm_source_functions[] = {{"source_open", bind_source_open},     {"source_read", bind_source_read},
                                        {"source_lines", bind_source_lines},   {"source_line_of", bind_source_line_of},
                                        {"source_blocks", bind_source_blocks}, {NULL, NULL}};
