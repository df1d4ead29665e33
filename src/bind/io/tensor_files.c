/* Files: safetensors and IDX. */
#include "base/mem.h"
#include "base/regular_file.h"
#include "bind/bind.h"
#include "io/idx.h"
#include "io/safetensors.h"
#include "op/backend.h"

/* ---- safetensors_save(path, tensors by name, metadata of strings by name, names in order) */

typedef struct saving {
  int n, nmeta;
  const char **name, **key, **value;
  lm_tensor **tensor; /* owned: on the CPU */
} saving;

static void drop_saving(saving *v) {
  for (int i = 0; i < v->n && v->tensor; i++) lm_release(v->tensor[i]);
  lm_free(v->name);
  lm_free(v->key);
  lm_free(v->value);
  lm_free(v->tensor);
}

static lm_status read_tensors(lua_State *L, const lm_lua *s, saving *v) {
  size_t n = lua_objlen(L, 4);
  v->name = lm_malloc(n * sizeof *v->name);
  v->tensor = lm_malloc(n * sizeof *v->tensor);
  if (!v->name || !v->tensor) return LM_E_OOM;
  for (size_t i = 0; i < n; i++) {
    lm_tensor *t, *out[LM_MAX_OUTS];
    lua_rawgeti(L, 4, (int)i + 1);
    NEED(lm_read_text(L, s, lua_gettop(L), "save", "a tensor's name", &v->name[v->n])); /* kept alive by the list */
    lua_rawget(L, 2);
    NEED(lm_read_tensor(L, s, lua_gettop(L), "safetensors_save", v->name[v->n], &t));
    lua_pop(L, 1);
    if (LM_DEVICE_KIND(t->device) == LM_CPU) {
      out[0] = lm_retain(t);
    } else {
      lm_to_copy_args a = {.x = t, .dtype = LM_NO_DTYPE, .device = LM_DEVICE(LM_CPU, 0), .memory_format = LM_PRESERVE};
      NEED(lm_op_run(LM_OP_to_copy, &a, out));
    }
    v->tensor[v->n++] = out[0];
  }
  return LM_OK;
}

static lm_status read_metadata(lua_State *L, const lm_lua *s, saving *v) {
  if (lua_isnil(L, 3)) return LM_OK;
  size_t n = 0;
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1)) n++;
  v->key = lm_malloc(n * sizeof *v->key);
  v->value = lm_malloc(n * sizeof *v->value);
  if (!v->key || !v->value) return LM_E_OOM;
  for (lua_pushnil(L); lua_next(L, 3); lua_pop(L, 1)) {
    NEED(lm_read_text(L, s, lua_gettop(L) - 1, "save", "a key of the metadata", &v->key[v->nmeta]));
    NEED(lm_read_text(L, s, lua_gettop(L), "save", "metadata", &v->value[v->nmeta]));
    v->nmeta++;
  }
  return LM_OK;
}

static lm_status save_tensors(lua_State *L, lm_lua *s, void *arg) {
  lm_status status;
  saving v = {0};
  const char *path;
  (void)arg;
  TRY(lm_read_text(L, s, 1, "save", "path", &path));
  TRY(read_tensors(L, s, &v));
  TRY(read_metadata(L, s, &v));
  TRY(lm_safetensors_write(path, v.n, v.name, v.tensor, v.nmeta, v.key, v.value));
done:
  drop_saving(&v);
  return status;
}

static int bind_save(lua_State *L) {
  lua_settop(L, 4);
  if (lua_type(L, 2) != LUA_TTABLE) return lm_raise_arg(L, 2, "safetensors_save", "tensors", "a table");
  if (lua_type(L, 3) != LUA_TTABLE && !lua_isnil(L, 3)) {
    return lm_raise_arg(L, 3, "safetensors_save", "metadata", "a table of strings");
  }
  if (lua_type(L, 4) != LUA_TTABLE) return lm_raise_arg(L, 4, "safetensors_save", "names", "a list of strings");
  lm_need(L, lm_retry_after_gc(L, LM_STATE(L), save_tensors, NULL));
  return 0;
}

/* ---- safetensors_load(path, {device, mmap}) -> tensors by name, metadata, names in file order, and of the tensors
 * that have no dtype here "'name' (dtype)": a list */

/* An open file as a userdata, so that an error in Lua closes it. */
static void close_file(void *object) {
  lm_safetensors **f = object;
  lm_safetensors_close(*f);
  *f = NULL;
}
static const lm_object_type file_type = {"luminary.file", sizeof(lm_safetensors *), close_file, NULL, NULL};

typedef struct loading {
  lm_safetensors *file;
  const char *path;
  int i;
  bool mmap;
  lm_device device;
  lm_tensor *t;
} loading;

static lm_status open_file(lua_State *L, lm_lua *s, void *arg) {
  loading *v = arg;
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  (void)L, (void)s;
  return lm_safetensors_open(v->path, v->mmap ? 0 : cpu ? cpu->get_threads() : 1, &v->file);
}

static lm_status load_tensor(lua_State *L, lm_lua *s, void *arg) {
  loading *v = arg;
  lm_tensor *t = NULL, *out[LM_MAX_OUTS];
  (void)L, (void)s;
  lm_status status = lm_safetensors_tensor(v->file, v->i, &t);
  if (status != LM_OK) return status;
  if (v->device != t->device) {
    lm_to_copy_args a = {.x = t, .dtype = LM_NO_DTYPE, .device = v->device, .memory_format = LM_PRESERVE};
    status = lm_op_run(LM_OP_to_copy, &a, out);
    lm_release(t);
    t = out[0];
  }
  if (status == LM_OK) v->t = t;
  return status;
}

static int bind_load(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  loading v = {.device = LM_DEVICE(LM_CPU, 0)};
  lua_settop(L, 2);
  v.path = lm_need_text(L, 1, "load", "path");
  lm_need(L,
          LM_READ_OPTIONS(L, s, 2, "load", {"device", LM_OPTION_DEVICE, &v.device}, {"mmap", LM_OPTION_BOOL, &v.mmap}));
  lm_gc_step_if_due(L, s);
  lm_safetensors **file = lm_object_new(L, &file_type); /* 3 */
  lm_need(L, lm_retry_after_gc(L, s, open_file, &v));
  *file = v.file;
  lua_newtable(L); /* 4: tensors */
  lua_newtable(L); /* 5: metadata */
  lua_newtable(L); /* 6: names */
  lua_newtable(L); /* 7: left out */
  for (v.i = 0; v.i < lm_safetensors_count(v.file); v.i++) {
    lua_pushstring(L, lm_safetensors_name(v.file, v.i));
    lua_pushvalue(L, -1);
    lua_rawseti(L, 6, v.i + 1);
    if (lm_safetensors_lacking(v.file, v.i)) {
      lua_pushfstring(L, "'%s' (%s)", lm_ellipsize(lua_tostring(L, -1), 200),
                      lm_ellipsize(lm_safetensors_lacking(v.file, v.i), 20));
      lua_rawseti(L, 7, (int)lua_objlen(L, 7) + 1);
      lua_pop(L, 1);
      continue;
    }
    lm_tensor_handle *handle = lm_tensor_handle_new(L);
    lm_need(L, lm_retry_after_gc(L, s, load_tensor, &v));
    lm_tensor_handle_fill(s, handle, v.t);
    lm_gc_step_count(s, v.t);
    lua_rawset(L, 4);
  }
  for (int i = 0; i < lm_safetensors_nmeta(v.file); i++) {
    lua_pushstring(L, lm_safetensors_value(v.file, i));
    lua_setfield(L, 5, lm_safetensors_key(v.file, i));
  }
  close_file(file);
  return 4;
}

/* ---- read_idx(path) */

static lm_status read_idx(lua_State *L, lm_lua *s, void *arg) {
  const char *path;
  lm_status status = lm_read_text(L, s, 1, "read_idx", "path", &path);
  return status == LM_OK ? lm_idx_read(path, arg) : status;
}

static int bind_read_idx(lua_State *L) { return lm_return_tensor(L, 1, read_idx); }

/* ---- file_kind(path) */

static int bind_file_kind(lua_State *L) {
  struct stat info;
  if (stat(lm_need_text(L, 1, "file_kind", "path"), &info) != 0) return 0;
  lua_pushstring(L, lm_file_kind(info.st_mode));
  lua_pushnumber(L, (double)info.st_size);
  return 2;
}

const luaL_Reg lm_tensor_file_functions[] = {{"safetensors_save", bind_save},
                                             {"safetensors_load", bind_load},
                                             {"read_idx", bind_read_idx},
                                             {"file_kind", bind_file_kind},
                                             {NULL, NULL}};
