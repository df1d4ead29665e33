/* DistributedDataParallel's core: reducers as Lua holds them, and what the ranks of a model share. */
#include "dist/reducer.h"

#include "base/mem.h"
#include "bind/bind.h"

typedef struct reducer_box {
  lm_user user;  /* of its group, which its environment keeps alive */
  lm_reducer *r; /* NULL once closed */
  int local;     /* depth of no_sync */
} reducer_box;

static const char reducer_key; /* registry: the metatable */
static const char ddp[] = "DistributedDataParallel";

static void close_reducer(lm_user *user) {
  reducer_box *box = (reducer_box *)user;
  lm_reducer *r = box->r;
  lm_user_leave(user);
  box->r = NULL;
  lm_reducer_close(r);
}

static reducer_box *to_reducer(lua_State *L) {
  reducer_box *box = lua_touserdata(L, 1);
  if (!box || !lua_getmetatable(L, 1)) return NULL;
  lm_reg_get(L, &reducer_key);
  bool same = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return same ? box : NULL;
}

static int gc_reducer(lua_State *L) {
  reducer_box *box = to_reducer(L);
  if (box) close_reducer(&box->user);
  return 0;
}

static reducer_box *self(lua_State *L) {
  reducer_box *box = to_reducer(L);
  if (!box) lm_raise_text(L, "%s: a reducer expected", ddp);
  if (!box->r) lm_raise_text(L, "%s: its process group was destroyed", ddp);
  return box;
}

static reducer_box *new_reducer(lua_State *L, int group) {
  reducer_box *box = lua_newuserdata(L, sizeof *box);
  memset(box, 0, sizeof *box);
  box->user.close = close_reducer;
  lm_reg_get(L, &reducer_key);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    lua_createtable(L, 0, 2);
    lua_pushcfunction(L, gc_reducer);
    lua_setfield(L, -2, "__gc");
    lua_pushliteral(L, "luminary.reducer");
    lua_setfield(L, -2, "__metatable");
    lua_pushlightuserdata(L, (void *)&reducer_key);
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_setmetatable(L, -2);
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, group);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, -2);
  return box;
}

/* ---- making one */

static lm_status flag(lua_State *L, const lm_lua *s, const char *name, bool *out) {
  if (!lm_field(L, 4, name)) return LM_OK;
  lm_status status = lm_read_bool(L, s, lua_gettop(L), ddp, name, out);
  lua_pop(L, 1);
  return status;
}

static lm_status bytes(lua_State *L, const lm_lua *s, const char *name, size_t *out) {
  int64_t n = 0;
  if (!lm_field(L, 4, name)) return LM_OK;
  lm_status status = lm_read_int(L, s, lua_gettop(L), ddp, name, &n);
  lua_pop(L, 1);
  if (status == LM_OK && n < 1) status = lm_fail(LM_E_ARG, "%s: %s: at least 1 expected", ddp, name);
  *out = (size_t)n;
  return status;
}

static lm_status make(lua_State *L, const lm_lua *s, reducer_box *box) {
  lm_status status;
  lm_group *g;
  lm_tensor **params = NULL;
  const char **names = NULL;
  int n = 0;
  lm_reducer_config config = {.first_bytes = (size_t)1 << 20, .cap_bytes = (size_t)25 << 20, .weighted = true};
  TRY(lm_read_group(L, s, 1, ddp, &g));
  TRY(lm_read_list(L, s, 2, ddp, "parameters", false, &n, &params));
  TRY(bytes(L, s, "first_bytes", &config.first_bytes));
  TRY(bytes(L, s, "cap_bytes", &config.cap_bytes));
  TRY(flag(L, s, "find_unused", &config.find_unused));
  TRY(flag(L, s, "static_graph", &config.static_graph));
  TRY(flag(L, s, "weighted", &config.weighted));
  names = lm_malloc((size_t)n * sizeof *names);
  if (!names) TRY(LM_E_OOM);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1); /* the list keeps the string alive */
    names[i] = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "?";
    lua_pop(L, 1);
  }
  if (n == 0 || g->size < 2) {
    TRY(lm_fail(LM_E_ARG, "%s: %d parameters on %d ranks: nothing to average", ddp, n, g->size));
  }
  TRY(lm_reducer_new(g, n, params, names, &config, &box->r));
done:
  lm_free(params);
  lm_free(names);
  return status;
}

/* reducer_new(group, parameters, names, {first_bytes, cap_bytes, find_unused, static_graph, weighted}) */
static int bind_new(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 4);
  if (lua_type(L, 3) != LUA_TTABLE || lua_type(L, 4) != LUA_TTABLE) {
    return lm_raise_text(L, "%s: a list of names and a table of options expected", ddp);
  }
  reducer_box *box = new_reducer(L, 1);
  lm_note_line(L, s);
  lm_status status = make(L, s, box);
  if (status != LM_OK) return lm_raise(L, status);
  lm_group_join(L, 1, &box->user);
  return 1;
}

/* ---- forward passes */

/* reducer_forward(r, weight, training, buffers) -> the rank whose buffers all take, or nil if none are due */
static int bind_forward(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  reducer_box *box = self(L);
  lm_forward f = {.sync = box->local == 0, .training = lua_toboolean(L, 3), .buffers = lua_toboolean(L, 4)};
  int root = 0;
  lm_status status;
  TRY(lm_read_number(L, s, 2, ddp, "weight", &f.weight));
  lm_note_line(L, s);
  TRY(lm_reducer_forward(box->r, &f, &root));
  if (!f.sync || !f.training || !f.buffers) return 0;
  lua_pushinteger(L, root);
  return 1;
done:
  return lm_raise(L, status);
}

/* reducer_no_sync(r, f, ...): f's results; backward passes after forward passes in f average nothing */
static int bind_no_sync(lua_State *L) {
  reducer_box *box = self(L);
  box->local++;
  int failed = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
  box->local--;
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

/* reducer_join(r, shadow, f, ...): f's results, after shadow() */
static int bind_join(lua_State *L) {
  reducer_box *box = self(L);
  lm_note_line(L, LM_STATE(L));
  lm_status status = lm_reducer_join(box->r, true);
  if (status != LM_OK) return lm_raise(L, status);
  int failed = lua_pcall(L, lua_gettop(L) - 3, LUA_MULTRET, 0);
  if (!failed && lua_checkstack(L, 4)) {
    lua_pushvalue(L, 2);
    failed = lua_pcall(L, 0, 0, 0);
  }
  if (box->r) lm_reducer_join(box->r, false);
  return failed ? lua_error(L) : lua_gettop(L) - 2;
}

/* reducer_shadow(r) -> "buffers", "backward" or "over", and a rank */
static int bind_shadow(lua_State *L) {
  static const char *const names[] = {"buffers", "backward", "over"};
  reducer_box *box = self(L);
  lm_shadow what;
  int root = 0;
  lm_status status = lm_reducer_shadow(box->r, &what, &root);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushstring(L, names[what]);
  lua_pushinteger(L, root);
  return 2;
}

/* reducer_buckets(r) -> how many, whether the ranks share their memory */
static int bind_buckets(lua_State *L) {
  bool shared;
  lua_pushinteger(L, lm_reducer_buckets(self(L)->r, &shared));
  lua_pushboolean(L, shared);
  return 2;
}

/* ---- sharing */

/* reducer_share(group, tensors, root): all become root's */
static int bind_share(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_group *g;
  lm_tensor **t = NULL;
  int n = 0;
  int64_t root = 0;
  lm_status status;
  lm_note_line(L, s);
  TRY(lm_read_group(L, s, 1, ddp, &g));
  TRY(lm_read_int(L, s, 3, ddp, "root", &root));
  TRY(lm_read_list(L, s, 2, ddp, "tensors", false, &n, &t));
  TRY(lm_share_tensors(g, n, t, (int)root));
done:
  lm_free(t);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* reducer_share_text(group, text) -> rank 0's */
static int bind_share_text(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_group *g;
  char *theirs = NULL;
  size_t n = 0;
  lm_status status;
  if (lua_type(L, 2) != LUA_TSTRING) return lm_raise_text(L, "%s: a text expected", ddp);
  const char *mine = lua_tolstring(L, 2, &n);
  lm_box *owner = lm_box_new(L); /* of the bytes, while Lua makes a string of them */
  lm_tensor *t = NULL;
  lm_note_line(L, s);
  TRY(lm_read_group(L, s, 1, ddp, &g));
  TRY(lm_share_bytes(g, 0, mine, n, &theirs, &n));
  TRY(lm_tensor_foreign(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){(int64_t)n}, theirs, n, lm_free, theirs, &t));
  lm_box_fill(s, owner, t);
  lua_pushlstring(L, theirs, n);
  return 1;
done:
  return lm_raise(L, status);
}

/* reducer_fail(group, message): tells all ranks that this one is going to raise this */
static int bind_fail(lua_State *L) {
  lm_group *g = lm_to_group(L, LM_STATE(L), 1);
  if (!g || lua_type(L, 2) != LUA_TSTRING) return lm_raise_text(L, "%s: a group and a message expected", ddp);
  lm_note_line(L, LM_STATE(L));
  if (g->size > 1) lm_share_failure(g, lua_tostring(L, 2)); /* alone there is nobody to tell */
  return 0;
}

const luaL_Reg lm_reducer_functions[] = {
    {"reducer_new", bind_new},         {"reducer_forward", bind_forward},
    {"reducer_no_sync", bind_no_sync}, {"reducer_join", bind_join},
    {"reducer_shadow", bind_shadow},   {"reducer_buckets", bind_buckets},
    {"reducer_share", bind_share},     {"reducer_share_text", bind_share_text},
    {"reducer_fail", bind_fail},       {NULL, NULL},
};
