/* tar_open(path)   tar_next(tar)  a file's name, nil at the end   tar_read(tar)  its bytes   tar_close(tar) */
#include "data/tar.h"

#include "bind/bind.h"

static void close_tar(void *object) {
  lm_tar **tar = object;
  lm_tar_close(*tar);
  *tar = NULL;
}
static const lm_object_type tar_type = {"luminary.tar", sizeof(lm_tar *), close_tar, "an archive", NULL};

static int bind_tar_open(lua_State *L) {
  const char *path = lm_need_text(L, 1, "tar_open", "path");
  lm_need(L, lm_tar_open(path, lm_object_new(L, &tar_type)));
  return 1;
}

static int bind_tar_next(lua_State *L) {
  const char *name;
  size_t n;
  lm_need(L, lm_tar_next(lm_need_held(L, 1, &tar_type, "tar_next"), &name, &n));
  if (!name) return 0;
  lua_pushlstring(L, name, n);
  return 1;
}

static int bind_tar_read(lua_State *L) {
  const char *data;
  size_t n;
  lm_need(L, lm_tar_read(lm_need_held(L, 1, &tar_type, "tar_read"), &data, &n));
  lua_pushlstring(L, data, n);
  return 1;
}

static int bind_tar_close(lua_State *L) {
  close_tar(lm_need_object(L, 1, &tar_type, "tar_close"));
  return 0;
}

const luaL_Reg lm_tar_functions[] = {{"tar_open", bind_tar_open},
                                     {"tar_next", bind_tar_next},
                                     {"tar_read", bind_tar_read},
                                     {"tar_close", bind_tar_close},
                                     {NULL, NULL}};
