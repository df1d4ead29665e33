/* Binds DistributedDataParallel's reducers, and shares tensors and failures among the ranks of a model. */
#include "distributed/ddp/reducer.h"

#include "base/mem.h"
#include "base/message.h"
#include "bind/distributed/group.h"
#include "distributed/store/failure.h"

typedef struct reducer_handle {
  lm_dependent of_group; /* link in the group, which the environment keeps alive */
  lm_reducer *r;         /* NULL once closed */
  int local;             /* nesting depth of no_sync */
  lm_lua *s;
} reducer_handle;

static const char ddp[] = "DistributedDataParallel";

static void close_reducer(void *object) {
  reducer_handle *handle = object;
  lm_reducer *r = handle->r;
  lm_dependent_leave(&handle->of_group);
  handle->r = NULL;
  lm_reducer_close(r);
}
static const lm_object_type reducer_type = {
    "luminary.reducer", sizeof(reducer_handle), close_reducer, "a reducer", NULL, NULL};

LM_READER(reducer_handle *, reducer) {
  reducer_handle *handle = lm_need_object(L, i, &reducer_type, fn);
  if (!handle->r) lm_raise_text(L, "%s: its process group was destroyed", fn);
  return handle;
}

/* ---- making one */

static lm_status make_reducer(lua_State *L, const lm_lua *s, reducer_handle *handle) {
  lm_status status;
  lm_group *g;
  lm_tensor **params = NULL;
  const char **names = NULL;
  int n = 0;
  int64_t first = 1 << 20, cap = 25 << 20;
  lm_reducer_config config = {.weighted = true};
  TRY(lm_read_group(L, s, 1, ddp, &g));
  TRY(lm_read_list(L, s, 2, ddp, "parameters", false, &n, &params));
  TRY(LM_READ_OPTIONS(L, s, 4, ddp, {"first_bytes", LM_ARG_I, &first}, {"cap_bytes", LM_ARG_I, &cap},
                      {"find_unused", LM_ARG_B, &config.find_unused}, {"static_graph", LM_ARG_B, &config.static_graph},
                      {"separate", LM_ARG_B, &config.separate}, {"weighted", LM_ARG_B, &config.weighted}));
  if (first < 1 || cap < 1)
    TRY(first < 1 ? lm_fail_int(ddp, "first_bytes", "at least 1", first)
                  : lm_fail_int(ddp, "cap_bytes", "at least 1", cap));
  config.first_bytes = (size_t)first;
  config.cap_bytes = (size_t)cap;
  names = lm_malloc((size_t)n * sizeof *names);
  if (!names) TRY(LM_E_OOM);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 3, i + 1);                               /* the list keeps the string alive */
    names[i] = lm_to_text(L, -1) ? lm_to_text(L, -1) : "?"; /* for messages */
    lua_pop(L, 1);
  }
  if (n == 0) TRY(lm_fail(LM_E_ARG, "%s: the module must have parameters that require grad, got none", ddp));
  TRY(lm_reducer_new(g, n, params, names, &config, &handle->r));
done:
  lm_free(params);
  lm_free(names);
  return status;
}

/* options: {first_bytes, cap_bytes, find_unused, static_graph, separate, weighted} */
LM_FUNCTION_AS(reducer_new, ddp, (any, group), (any, parameters), (table, names), (any, options)) {
  lm_lua *s = LM_STATE(L);
  reducer_handle *handle = lm_object_new(L, &reducer_type);
  handle->of_group.close = close_reducer;
  handle->s = s;
  lm_object_keeps(L, 1);
  lm_note_line(L, s);
  lm_need(L, make_reducer(L, s, handle));
  lm_group_carries(L, 1, &handle->of_group);
  return 1;
}

/* ---- forward passes */

/* Returns the rank whose buffers all ranks copy, or nothing if not due. */
LM_FUNCTION_AS(reducer_forward, ddp, (reducer, handle), (number, weight), (flag, training), (flag, buffers)) {
  lm_forward f = {.sync = handle->local == 0, .training = training, .buffers = buffers, .weight = weight};
  int root = 0;
  lm_note_line(L, LM_STATE(L));
  lm_need(L, lm_reducer_forward(handle->r, &f, &root));
  if (!f.sync || !f.training || !f.buffers) return 0;
  return lm_return_int(L, root);
}

/* reducer_no_sync(r, f, ...) -> f's results; backward passes after forward passes in f do not average gradients */
LM_FUNCTION(reducer_no_sync) {
  reducer_handle *handle = lm_need_reducer(L, 1, ddp, NULL);
  handle->local++;
  int failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  handle->local--;
  return failed ? lua_error(L) : lua_gettop(L) - 1;
}

/* reducer_join(r, shadow, f, ...) -> f's results; calls shadow() after f, whose number of batches may differ by rank */
LM_FUNCTION(reducer_join) {
  reducer_handle *handle = lm_need_reducer(L, 1, ddp, NULL);
  lm_note_line(L, LM_STATE(L));
  lm_need(L, lm_reducer_join(handle->r, true));
  int failed = lm_pcall(L, lua_gettop(L) - 3, LUA_MULTRET);
  if (!failed && lua_checkstack(L, 4)) {
    lua_pushvalue(L, 2);
    failed = lm_pcall(L, 0, 0);
  }
  if (handle->r) lm_reducer_join(handle->r, false);
  return failed ? lua_error(L) : lua_gettop(L) - 2;
}

/* Returns "buffers", "backward" or "over", and a rank (lm_reducer_shadow). */
LM_FUNCTION_AS(reducer_shadow, ddp, (reducer, handle)) {
  static const char *const names[] = {"buffers", "backward", "over"};
  lm_shadow what;
  int root = 0;
  luaL_checkstack(L, LM_HOOK_SLOTS, ddp);
  lua_State *before = lm_running_begin(L, handle->s); /* the call may run a communication hook */
  lm_status status = lm_reducer_shadow(handle->r, &what, &root);
  handle->s->running = before;
  lm_need(L, status);
  lua_pushstring(L, names[what]);
  lua_pushinteger(L, root);
  return 2;
}

/* Returns the number of buckets, and whether the ranks share their memory. */
LM_FUNCTION_AS(reducer_buckets, ddp, (reducer, handle)) {
  bool shared;
  lua_pushinteger(L, lm_reducer_buckets(handle->r, &shared));
  lua_pushboolean(L, shared);
  return 2;
}

/* ---- communication hooks */

typedef struct hook_call {
  reducer_handle *handle;
  int bucket;
  bool last;
  lm_tensor *content;
} hook_call;

static int run_hook(lua_State *L, lm_lua *s, void *arg) {
  hook_call *c = arg;
  (void)s;
  lm_reg_get(L, &lm_reg_weak);
  lua_pushlightuserdata(L, c->handle);
  lua_rawget(L, -2);
  lua_pushinteger(L, c->bucket + 1);
  lua_pushboolean(L, c->last);
  lua_call(L, 2, 1);
  if (lua_isnil(L, -1)) return 0;
  c->content = lm_retain(lm_need_tensor(L, lua_gettop(L), "register_comm_hook", "the hook's result"));
  return 0;
}

static lm_status call_hook(void *ctx, int bucket, bool last, lm_tensor **content) {
  hook_call c = {.handle = ctx, .bucket = bucket, .last = last};
  lm_status status = lm_call_lua(c.handle->s->callbacks, run_hook, &c);
  *content = c.content;
  return status;
}

/* Sets a hook, "allreduce", "fp16_compress" or "bf16_compress", or f(bucket, last) -> the bucket's new contents, or nil
 * to be called again with `last` at the end of backward. Buckets count from 1. */
LM_FUNCTION_AS(reducer_set_hook, ddp, (reducer, handle), (text, name), (any, f)) {
  lm_comm_hook hook = {.name = name, .wire = LM_DTYPE_COUNT};
  if (strcmp(name, "fp16_compress") == 0) hook.wire = LM_F16;
  if (strcmp(name, "bf16_compress") == 0) hook.wire = LM_BF16;
  if (lua_type(L, f) == LUA_TFUNCTION) {
    hook.call = call_hook;
    hook.ctx = handle;
  }
  lm_note_line(L, LM_STATE(L));
  lm_need(L, lm_reducer_set_hook(handle->r, &hook));
  if (!hook.call) return 0;
  lua_getfenv(L, 1); /* keeps the function alive */
  lua_pushvalue(L, 3);
  lua_rawseti(L, -2, 2);
  lm_reg_get(L, &lm_reg_weak); /* run_hook finds it there */
  lua_pushlightuserdata(L, handle);
  lua_pushvalue(L, 3);
  lua_rawset(L, -3);
  return 0;
}

static lm_status get_buffer(lua_State *L, lm_lua *s, void *arg) {
  (void)s;
  const reducer_handle *handle = lua_touserdata(L, 1);
  if (!handle->r) return lm_fail(LM_E_STATE, "%s: its process group was destroyed", ddp); /* a finalizer closed it */
  return lm_reducer_buffer(handle->r, (int)lua_tointeger(L, 2) - 1, arg);
}

/* Returns a bucket's memory, and the list of its parameters' numbers in the order of their positions. */
LM_FUNCTION_AS(reducer_buffer, ddp, (reducer, handle), (int, k)) {
  bool shared;
  if (k < 1 || k > lm_reducer_buckets(handle->r, &shared)) lm_raise_text(L, "%s: no bucket %lld", ddp, (long long)k);
  lm_return_tensor(L, 2, get_buffer); /* 3 */
  lm_reducer *r = lm_need_reducer(L, 1, ddp, NULL)->r;
  int *param = lua_newuserdata(L, (size_t)lm_reducer_params(r) * sizeof *param); /* 4 */
  int n = lm_reducer_members(lm_need_reducer(L, 1, ddp, NULL)->r, (int)k - 1, param);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, param[i] + 1);
    lua_rawseti(L, -2, i + 1);
  }
  lua_remove(L, -2);
  return 2;
}

static lm_status get_gradient(lua_State *L, lm_lua *s, void *arg) {
  int64_t i;
  const reducer_handle *handle = lua_touserdata(L, 1);
  NEED(lm_read_int(L, s, 2, ddp, "parameter", &i));
  if (!handle->r) NEED(lm_fail(LM_E_STATE, "%s: its process group was destroyed", ddp));
  if (i < 1 || i > lm_reducer_params(handle->r)) NEED(lm_fail(LM_E_INDEX, "%s: no parameter %lld", ddp, (long long)i));
  return lm_reducer_gradient(handle->r, (int)i - 1, arg);
}

/* Returns parameter i's gradient, a view of its bucket's memory. */
LM_FUNCTION_AS(reducer_gradient, ddp, (reducer, r), (any, i)) { return lm_return_tensor(L, 2, get_gradient); }

/* ---- sharing */

/* reducer_share(group, tensors, root): copies root's tensors to all ranks */
LM_FUNCTION(reducer_share) {
  lm_lua *s = LM_STATE(L);
  lm_group *g;
  lm_list list = {0};
  int64_t root = 0;
  lm_status status;
  lm_note_line(L, s);
  TRY(lm_read_group(L, s, 1, ddp, &g));
  TRY(LM_READ_ARGS(L, s, 2, ddp, {"tensors", LM_ARG_TL, &list}, {"root", LM_ARG_I, &root}));
  TRY(lm_broadcast_tensors(g, list.n, list.v, (int)root));
done:
  lm_free(list.v);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* Notifies all ranks that this rank is about to raise the message. */
LM_FUNCTION_AS(reducer_fail, ddp, (any, group), (string, text)) {
  lm_group *g = lm_to_group(L, group);
  if (!g) return lm_raise_arg(L, group, ddp, "group", "a process group");
  lm_note_line(L, LM_STATE(L));
  char message[LM_FAILURE_MESSAGE];
  lm_write_bytes(message, sizeof message, text.text, text.n);
  lm_publish_failure(g, message);
  return 0;
}
