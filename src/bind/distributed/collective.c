/* Runs collectives, and returns works (handles to wait on) for asynchronous ones. */
#include "distributed/group/collective.h"

#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/message.h"
#include "bind/distributed/group.h"

typedef struct work_handle {
  lm_dependent of_group; /* link in the group, which the handle's environment keeps alive */
  lm_work *work;
  lm_group *group; /* NULL once closed; the work has then succeeded or failed */
  lm_collective kind;
} work_handle;

static const lm_object_type work_type;

static int in_world(const lm_group *g, int rank) { return rank < 0 || !g->ranks ? rank : g->ranks[rank]; }

/* ---- works */

static void lose_group(void *work) { ((work_handle *)work)->group = NULL; }

static work_handle *self(lua_State *L, const char *fn) {
  work_handle *handle = lm_to_object(L, 1, &work_type);
  if (!handle || !handle->work)
    lm_raise_text(L, "%s: expected a work, got %s; call it with a colon: work:%s()", fn,
                  lm_describe_arg(L, LM_STATE(L), 1), fn);
  return handle;
}

static void close_work(void *object) {
  work_handle *handle = object;
  lm_dependent_leave(&handle->of_group);
  lm_work *work = handle->work;
  handle->work = NULL;
  lm_work_release(work);
}

/* work:wait([seconds]) -> true once it is done on this rank. Raises its failure, or a timeout. */
static int work_wait(lua_State *L) {
  work_handle *handle = self(L, "wait");
  double seconds = lua_isnoneornil(L, 2) ? -1 : lm_need_number(L, 2, "wait", "seconds");
  if (!lua_isnoneornil(L, 2) && !(seconds >= 0))
    return lm_raise(L, lm_fail_number("wait", "seconds", "at least 0", seconds));
  lm_note_line(L, LM_STATE(L));
  lm_need(L, lm_work_wait(handle->work, seconds));
  lm_need(L, lm_truncation_check());
  return lm_return_bool(L, 1);
}

/* work:is_completed() -> whether wait would return (or raise) at once */
static int work_is_completed(lua_State *L) { return lm_return_bool(L, lm_work_done(self(L, "is_completed")->work)); }

/* work:source_rank() -> the rank from which a finished irecv received; nil before, and once the group is closed */
static int work_source(lua_State *L) {
  work_handle *handle = self(L, "source_rank");
  int peer = lm_work_done(handle->work) ? lm_work_peer(handle->work) : -1;
  if (peer < 0 || !handle->group) return 0;
  return lm_return_int(L, in_world(handle->group, peer));
}

static int work_text(lua_State *L) {
  work_handle *handle = self(L, "tostring");
  lua_pushfstring(L, "Work(%s%s)", lm_collective_name(handle->kind), lm_work_done(handle->work) ? ", completed" : "");
  return 1;
}

static const luaL_Reg work_methods[] = {{"wait", work_wait},
                                        {"is_completed", work_is_completed},
                                        {"source_rank", work_source},
                                        {"__tostring", work_text},
                                        {NULL, NULL}};
static const lm_object_type work_type = {"luminary.work", sizeof(work_handle), close_work, "a work", work_methods};

/* Pushes and returns an empty work, which keeps the group handle at index `group` alive. */
static work_handle *new_work(lua_State *L, int group) {
  work_handle *handle = lm_object_new(L, &work_type);
  handle->of_group.close = lose_group;
  lm_object_keeps(L, group);
  return handle;
}

/* ---- the call */

typedef struct collective_call {
  lm_group *g;
  lm_group_call call;
  lm_list first, second; /* own the lists of `call` */
} collective_call;

enum { KIND = 1, GROUP, ASYNC, TIMEOUT, OP, PEER, TAG, TENSOR, FIRST, SECOND, SCALE };

static lm_status read_name(lua_State *L, int i, const char *fn, int n, const char *(*name)(int), int *out) {
  const char *text = lm_to_text(L, i);
  if (!text) return lm_fail_value(fn, "the name", "a string", lm_describe_arg(L, LM_STATE(L), i));
  for (*out = 0; *out < n; ++*out) {
    if (strcmp(text, name(*out)) == 0) return LM_OK;
  }
  return lm_fail(LM_E_ARG, "%s: unknown name '%s'", fn, text);
}

static const char *kind_name(int i) { return lm_collective_name((lm_collective)i); }
static const char *op_name(int i) { return lm_reduce_op_name((lm_reduce_op)i); }

/* Reads a rank in the world and converts it to the rank in the group; -1 for nil. */
static lm_status read_peer(lua_State *L, const lm_lua *s, int i, const char *fn, const lm_group *g, int *peer) {
  int64_t rank;
  *peer = -1;
  if (lua_isnil(L, i)) return LM_OK;
  NEED(lm_read_int(L, s, i, fn, "the rank", &rank));
  for (*peer = 0; *peer < g->size; ++*peer) {
    if ((g->ranks ? g->ranks[*peer] : *peer) == rank) return LM_OK;
  }
  const lm_ints ranks = {.n = g->size < LM_MAX_DIMS ? g->size : LM_MAX_DIMS};
  int64_t list[LM_MAX_DIMS];
  for (int k = 0; k < ranks.n; k++) list[k] = in_world(g, k);
  return lm_fail(LM_E_ARG, "%s: rank %lld is not in this group of %d ranks (%s%s, numbered as in the world)", fn,
                 (long long)rank, g->size, lm_shape_text(ranks.n, list), ranks.n < g->size ? " and more" : "");
}

static lm_status read_tag(lua_State *L, const lm_lua *s, int i, const char *fn, int *out) {
  int64_t tag = 0;
  lm_status status = lua_isnil(L, i) ? LM_OK : lm_read_int(L, s, i, fn, "tag", &tag);
  if (status == LM_OK && (tag < 0 || tag > INT32_MAX))
    status = lm_fail_int(fn, "tag", lm_text("an integer from 0 to %d", INT32_MAX), tag);
  *out = (int)tag;
  return status;
}

static lm_status read_call(lua_State *L, const lm_lua *s, collective_call *r) {
  int number, peer;
  double timeout;
  lm_group_call *c = &r->call;
  NEED(read_name(L, KIND, "dist", LM_COLLECTIVES, kind_name, &number));
  c->kind = (lm_collective)number;
  const char *fn = lm_collective_name(c->kind);
  if (c->kind == LM_SETUP) return lm_fail(LM_E_ARG, "dist: %s is not a call", fn);
  NEED(lm_read_group(L, s, GROUP, fn, &r->g));
  if (!lua_isnil(L, OP)) {
    NEED(read_name(L, OP, fn, LM_REDUCE_OPS, op_name, &number));
    c->op = (lm_reduce_op)number;
  }
  NEED(read_peer(L, s, PEER, fn, r->g, &peer));
  if (c->kind == LM_SEND || c->kind == LM_RECV)
    c->peer = peer;
  else if (!lua_isnil(L, PEER))
    c->root = peer;
  NEED(read_tag(L, s, TAG, fn, &c->tag));
  c->scaled = !lua_isnil(L, SCALE);
  bool with_tensor = c->kind != LM_BARRIER && c->kind != LM_ALL_TO_ALL;
  NEED(LM_READ_ARGS(L, s, TENSOR, fn, {"tensor", with_tensor ? LM_ARG_T : LM_ARG_OTHER, &c->t},
                    {"the list of tensors", LM_ARG_TL | LM_OR_NIL, &r->first},
                    {"the list of inputs", LM_ARG_TL | LM_OR_NIL, &r->second},
                    {"scale", LM_ARG_F | LM_OR_NIL, &c->scale}));
  bool reads = c->kind == LM_SCATTER || c->kind == LM_REDUCE_SCATTER;
  const lm_list *in = reads ? &r->first : &r->second, *out = reads ? &r->second : &r->first;
  c->nin = in->n;
  c->in = in->v;
  c->nout = out->n;
  c->out = out->v;
  if (!lua_isnil(L, TIMEOUT)) {
    NEED(lm_read_number(L, s, TIMEOUT, fn, "timeout", &timeout));
    lm_collective_timeout(timeout);
  }
  return LM_OK;
}

/* Runs a recv and returns in *peer the sender, which only the call's work knows. */
static lm_status receive(const collective_call *r, int *peer) {
  lm_work *work = NULL;
  lm_status status;
  TRY(lm_collective_start(r->g, &r->call, &work));
  TRY(lm_work_wait(work, -1));
  *peer = lm_work_peer(work);
done:
  lm_work_release(work);
  return status;
}

/* dist_run(collective, group, async, timeout, op, rank in the world, tag, t, list, list of inputs, scale) -> a work if
 * async; else a recv's sender. Arguments that a collective does not have are nil. */
LM_FUNCTION(dist_run) {
  lm_lua *s = LM_STATE(L);
  collective_call r = {0};
  lm_status status;
  int sender = -1;
  lua_settop(L, SCALE);
  work_handle *handle = lua_toboolean(L, ASYNC) ? new_work(L, GROUP) : NULL;
  lm_note_line(L, s);
  TRY(read_call(L, s, &r));
  if (handle) {
    TRY(lm_collective_start(r.g, &r.call, &handle->work));
    handle->group = r.g;
    handle->kind = r.call.kind;
    lm_group_carries(L, GROUP, &handle->of_group);
  } else if (r.call.kind == LM_RECV) {
    TRY(receive(&r, &sender));
  } else {
    TRY(lm_collective_start(r.g, &r.call, NULL));
  }
  if (!handle) TRY(lm_truncation_check());
done:
  lm_free(r.first.v);
  lm_free(r.second.v);
  if (status != LM_OK) return lm_raise(L, lm_fail_in(status, lm_collective_name(r.call.kind)));
  if (!handle && r.call.kind == LM_RECV) lua_pushinteger(L, in_world(r.g, sender));
  return handle || r.call.kind == LM_RECV;
}

/* ---- several at once */

enum { BATCH_GROUP = 1, BATCH_TIMEOUT, BATCH_LIST, BATCH_WORKS };
static const char batch_name[] = "batch_isend_irecv";

/* Reads the entry on top of the stack: {op, tensor, peer, tag}. */
static lm_status read_p2p(lua_State *L, const lm_lua *s, const lm_group *g, lm_group_call *out) {
  lm_status status;
  static const char *const fields[] = {"op", "tensor", "peer", "tag"};
  int at = lua_gettop(L);
  if (lua_type(L, at) != LUA_TTABLE)
    return lm_fail_value(batch_name, "each entry", "a table", lm_describe_arg(L, s, at));
  for (int k = 0; k < 4; k++)
    if (!lm_field(L, at, fields[k])) lua_pushnil(L);
  bool sending = lm_to_text(L, at + 1) && strcmp(lua_tostring(L, at + 1), "isend") == 0;
  out->kind = sending ? LM_SEND : LM_RECV;
  TRY(lm_read_tensor(L, s, at + 2, batch_name, "tensor", &out->t));
  TRY(read_peer(L, s, at + 3, batch_name, g, &out->peer));
  TRY(read_tag(L, s, at + 4, batch_name, &out->tag));
done:
  lua_settop(L, at);
  return status;
}

/* dist_batch(group, timeout, list of {op = "isend" or "irecv", tensor, peer in the world, tag}) -> list of works */
LM_FUNCTION(dist_batch) {
  lm_lua *s = LM_STATE(L);
  lm_group *g;
  double timeout;
  lm_group_call *list = NULL;
  lm_work **works = NULL;
  lm_status status;
  lua_settop(L, BATCH_LIST);
  lm_need_table(L, BATCH_LIST, batch_name, "the list");
  int n = (int)lua_objlen(L, BATCH_LIST);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    new_work(L, BATCH_GROUP);
    lua_rawseti(L, BATCH_WORKS, i + 1);
  }
  lm_note_line(L, s);
  TRY(lm_read_group(L, s, BATCH_GROUP, batch_name, &g));
  list = lm_calloc((size_t)n + 1, sizeof *list);
  works = lm_calloc((size_t)n + 1, sizeof *works);
  if (!list || !works) TRY(LM_E_OOM);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, BATCH_LIST, i + 1);
    TRY(read_p2p(L, s, g, &list[i]));
    lua_pop(L, 1);
  }
  if (!lua_isnil(L, BATCH_TIMEOUT)) {
    TRY(lm_read_number(L, s, BATCH_TIMEOUT, batch_name, "timeout", &timeout));
    lm_collective_timeout(timeout);
  }
  if (n > 0) TRY(lm_batch_p2p(g, n, list, works));
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, BATCH_WORKS, i + 1);
    work_handle *handle = lm_to_object(L, -1, &work_type);
    handle->work = works[i];
    handle->group = g;
    handle->kind = list[i].kind;
    lm_group_carries(L, BATCH_GROUP, &handle->of_group);
    lua_pop(L, 1);
  }
done:
  lm_free(list);
  lm_free(works);
  if (status != LM_OK) return lm_raise(L, lm_fail_in(status, batch_name));
  lua_settop(L, BATCH_WORKS);
  return 1;
}

/* device_collective(list, root, reduce) -> whether it was possible: copies list[root] to the list's tensors, each on a
 * different device, or, with reduce, sums them into list[root] */
LM_FUNCTION(device_collective) {
  static const char fn[] = "device_collective";
  lm_lua *s = LM_STATE(L);
  lm_list list = {0};
  int64_t root;
  bool taken = false;
  lm_status status;
  lua_settop(L, 3);
  TRY(LM_READ_ARGS(L, s, 1, fn, {"the list of tensors", LM_ARG_TL, &list}, {"root", LM_ARG_I, &root}));
  if (root < 1 || root > list.n) TRY(lm_fail_int(fn, "root", lm_text("from 1 to %d", list.n), root));
  TRY(lm_devices_collective(list.n, list.v, (int)root - 1, lua_toboolean(L, 3), &taken));
done:
  lm_free(list.v);
  if (status != LM_OK) return lm_raise(L, status);
  return lm_return_bool(L, taken);
}

/* ---- bytes, as which objects are sent */

static lm_status make_bytes(lua_State *L, lm_lua *s, void *arg) {
  lm_tensor **out = arg;
  int64_t size = 0;
  size_t n;
  const char *data;
  NEED(lm_read_string(L, s, 1, "dist_bytes", "text", &data, &n));
  NEED(LM_READ_ARGS(L, s, 2, "dist_bytes", {"n", LM_ARG_I | LM_OR_NIL, &size}));
  if (size < 0) NEED(lm_fail_int("dist_bytes", "n", "at least 0", size));
  if ((size_t)size < n) size = (int64_t)n;
  NEED(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, out));
  memcpy((*out)->data, data, n);
  memset((*out)->data + n, 0, (size_t)size - n);
  return LM_OK;
}

/* dist_bytes(string [, n]) -> uint8 tensor of it, with zeros after it up to n */
LM_FUNCTION(dist_bytes) { return lm_return_tensor(L, 2, make_bytes); }

/* dist_text(uint8 tensor, n) -> its first n bytes as a string */
LM_FUNCTION(dist_text) {
  lm_lua *s = LM_STATE(L);
  lm_tensor *t;
  lm_tensor_handle *held =
      lm_tensor_handle_new(L); /* making the string may collect, which may free the tensor or its memory */
  lm_need(L, lm_read_plain(L, s, 1, "dist_text", "the tensor", LM_U8, &t));
  int64_t n = lm_need_int(L, 2, "dist_text", "n");
  if (n < 0 || n > t->numel)
    return lm_raise_text(L, "dist_text: n must be from 0 to %lld, got %lld", (long long)t->numel, (long long)n);
  lm_need(L, lm_tensor_view(t, t->ndim, t->size, t->stride, 0, &t));
  lm_tensor_handle_fill(s, held, t);
  lua_pushlstring(L, t->data, (size_t)n);
  return 1;
}
