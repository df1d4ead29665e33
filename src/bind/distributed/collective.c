/* Runs collectives, and returns works (handles to wait on) for asynchronous ones. */
#include "distributed/group/collective.h"

#include "base/bytes.h"
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

static int in_world(const lm_group *g, int rank) { return rank < 0 || !g->ranks ? rank : g->ranks[rank]; }

/* ---- works */

static void lose_group(void *work) { ((work_handle *)work)->group = NULL; }

static void close_work(void *object) {
  work_handle *handle = object;
  lm_dependent_leave(&handle->of_group);
  lm_work *work = handle->work;
  handle->work = NULL;
  lm_work_release(work);
}
LM_LIST(lm_methods_of_work);
static const lm_object_type work_type = {"luminary.work", sizeof(work_handle), close_work, "a work",
                                         LM_METHODS_OF(work)};

LM_READER(work_handle *, work) {
  work_handle *handle = lm_to_object(L, i, &work_type);
  if (!handle || !handle->work)
    lm_raise_text(L, "%s: expected a work, got %s; call it with a colon: work:%s()", fn,
                  lm_describe_arg(L, LM_STATE(L), i), fn);
  return handle;
}

/* work:wait([seconds]) -> true once it is done on this rank, or on the current stream. Raises its failure, or a
 * timeout. */
LM_OBJECT_METHOD(work, wait, "wait", (work, handle), (any, timeout)) {
  double seconds = lua_isnoneornil(L, 2) ? -1 : lm_need_number(L, 2, "wait", "seconds");
  if (!lua_isnoneornil(L, 2) && !(seconds >= 0))
    return lm_raise(L, lm_fail_number("wait", "seconds", "at least 0", seconds));
  lm_note_line(L, LM_STATE(L));
  lm_need(L, lm_work_wait(handle->work, seconds));
  lm_need(L, lm_truncation_check());
  lm_need(L, lm_work_order(handle->work, 0, NULL));
  return lm_return_bool(L, 1);
}

/* work:is_completed() -> whether wait would return (or raise) at once */
LM_OBJECT_METHOD(work, is_completed, "is_completed", (work, handle)) {
  return lm_return_bool(L, lm_work_done(handle->work));
}

/* work:source_rank() -> the rank from which a finished irecv received; nil before, and once the group is closed */
LM_OBJECT_METHOD(work, source_rank, "source_rank", (work, handle)) {
  int peer = lm_work_done(handle->work) ? lm_work_peer(handle->work) : -1;
  if (peer < 0 || !handle->group) return 0;
  return lm_return_int(L, in_world(handle->group, peer));
}

LM_OBJECT_METHOD(work, __tostring, "tostring", (work, handle)) {
  lua_pushfstring(L, "Work(%s%s)", lm_collective_name(handle->kind), lm_work_done(handle->work) ? ", completed" : "");
  return 1;
}

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

enum { KIND = 1, GROUP, ASYNC, TIMEOUT, OP, PEER, TAG, TENSOR, FIRST, SECOND, SCALE, PURPOSE };

static lm_status find_name(const char *text, const char *fn, int n, const char *(*name)(int), int *out) {
  for (*out = 0; *out < n; ++*out) {
    if (strcmp(text, name(*out)) == 0) return LM_OK;
  }
  return lm_fail(LM_E_ARG, "%s: unknown name '%s'", fn, text);
}

static const char *kind_name(int i) { return lm_collective_name((lm_collective)i); }
static const char *op_name(int i) { return lm_reduce_op_name((lm_reduce_op)i); }

/* Sets a call's root or peer, given as rank in the world (LM_NO_INT: none given), and its tag. */
static lm_status set_rank_and_tag(const lm_group *g, int64_t rank, int64_t tag, const char *fn, lm_group_call *c) {
  bool p2p = c->kind == LM_SEND || c->kind == LM_RECV;
  if (tag < 0 || tag > INT32_MAX) return lm_fail_int(fn, "tag", lm_text("an integer from 0 to %d", INT32_MAX), tag);
  c->tag = (int)tag;
  if (p2p) c->peer = -1;
  if (rank == LM_NO_INT) return LM_OK;
  int *out = p2p ? &c->peer : &c->root;
  for (*out = 0; *out < g->size; ++*out) {
    if (in_world(g, *out) == rank) return LM_OK;
  }
  const lm_ints ranks = {.n = g->size < LM_MAX_DIMS ? g->size : LM_MAX_DIMS};
  int64_t list[LM_MAX_DIMS];
  for (int k = 0; k < ranks.n; k++) list[k] = in_world(g, k);
  return lm_fail(LM_E_ARG, "%s: rank %lld is not in this group of %d ranks (%s%s, numbered as in the world)", fn,
                 (long long)rank, g->size, lm_shape_text(ranks.n, list), ranks.n < g->size ? " and more" : "");
}

static lm_status read_call(lua_State *L, const lm_lua *s, collective_call *r) {
  int number;
  double timeout = 0;
  int64_t rank = LM_NO_INT, tag = 0;
  const char *op = NULL, *purpose = NULL;
  lm_group_call *c = &r->call;
  if (!lm_to_text(L, KIND)) return lm_fail_value("dist", "the name", "a string", lm_describe_arg(L, s, KIND));
  NEED(find_name(lm_to_text(L, KIND), "dist", LM_SETUP, kind_name, &number));
  c->kind = (lm_collective)number;
  const char *fn = lm_collective_name(c->kind);
  NEED(lm_read_group(L, s, GROUP, fn, &r->g));
  c->scaled = !lua_isnil(L, SCALE);
  bool with_tensor = c->kind != LM_BARRIER && c->kind != LM_ALL_TO_ALL;
  NEED(LM_READ_ARGS(L, s, TIMEOUT, fn, {"timeout", LM_ARG_F | LM_OR_NIL, &timeout},
                    {"op", LM_ARG_TEXT | LM_OR_NIL, &op}, {"the rank", LM_ARG_I | LM_OR_NIL, &rank},
                    {"tag", LM_ARG_I | LM_OR_NIL, &tag}, {"tensor", with_tensor ? LM_ARG_T : LM_ARG_OTHER, &c->t},
                    {"the list of tensors", LM_ARG_TL | LM_OR_NIL, &r->first},
                    {"the list of inputs", LM_ARG_TL | LM_OR_NIL, &r->second},
                    {"scale", LM_ARG_F | LM_OR_NIL, &c->scale}, {"purpose", LM_ARG_TEXT | LM_OR_NIL, &purpose}));
  if (op) {
    NEED(find_name(op, fn, LM_REDUCE_OPS, op_name, &number));
    c->op = (lm_reduce_op)number;
  }
  NEED(set_rank_and_tag(r->g, rank, tag, fn, c));
  bool reads = c->kind == LM_SCATTER || c->kind == LM_REDUCE_SCATTER;
  const lm_list *in = reads ? &r->first : &r->second, *out = reads ? &r->second : &r->first;
  c->nin = in->n;
  c->in = in->v;
  c->nout = out->n;
  c->out = out->v;
  lm_collective_timeout(timeout);
  if (purpose) lm_collective_purpose(purpose, lm_hash(LM_NO_HASH, purpose, strlen(purpose)));
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

/* dist_run(collective, group, async, timeout, op, rank in the world, tag, t, list, list of inputs, scale, purpose) -> a
 * work if async; else a recv's sender. Arguments that a collective does not have are nil. purpose: a text that must be
 * equal on all ranks, and that errors show. */
LM_FUNCTION(dist_run) {
  lm_lua *s = LM_STATE(L);
  collective_call r = {0};
  lm_status status;
  int sender = -1;
  lua_settop(L, PURPOSE);
  work_handle *handle = lua_toboolean(L, ASYNC) ? new_work(L, GROUP) : NULL;
  lm_note_line(L, s);
  TRY(read_call(L, s, &r));
  lm_tape_note_call(lm_collective_name(r.call.kind));
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
  int64_t rank, tag = 0;
  const char *op;
  int at = lua_gettop(L);
  if (lua_type(L, at) != LUA_TTABLE)
    return lm_fail_value(batch_name, "each entry", "a table", lm_describe_arg(L, s, at));
  for (int k = 0; k < 4; k++)
    if (!lm_field(L, at, fields[k])) lua_pushnil(L);
  TRY(LM_READ_ARGS(L, s, at + 1, batch_name, {"op", LM_ARG_TEXT, &op}, {"tensor", LM_ARG_T, &out->t},
                   {"peer", LM_ARG_I, &rank}, {"tag", LM_ARG_I | LM_OR_NIL, &tag}));
  out->kind = strcmp(op, "isend") == 0 ? LM_SEND : LM_RECV;
  TRY(set_rank_and_tag(g, rank, tag, batch_name, out));
done:
  lua_settop(L, at);
  return status;
}

/* Returns a list of works, of a list of {op = "isend" or "irecv", tensor, peer in the world, tag}. */
LM_FUNCTION_AS(dist_batch, batch_name, (any, group), (any, timeout), (table, the_list)) {
  lm_lua *s = LM_STATE(L);
  lm_group *g;
  double seconds;
  lm_group_call *list = NULL;
  lm_work **works = NULL;
  lm_status status;
  int n = (int)lua_objlen(L, BATCH_LIST);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    new_work(L, BATCH_GROUP);
    lua_rawseti(L, BATCH_WORKS, i + 1);
  }
  lm_note_line(L, s);
  lm_tape_note_call(batch_name);
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
    TRY(lm_read_number(L, s, BATCH_TIMEOUT, batch_name, "timeout", &seconds));
    lm_collective_timeout(seconds);
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

/* dist_wait(work[, t[, u]]): Does work:wait(), and lm_work_order with the tensors. */
LM_FUNCTION_AS(dist_wait, "wait", (work, handle), (any, x), (any, y)) {
  lm_lua *s = LM_STATE(L);
  lm_work *work = handle->work;
  lm_tensor *t[2] = {lm_to_tensor(L, s, 2), lm_to_tensor(L, s, 3)};
  lm_note_line(L, s);
  lm_need(L, lm_work_wait(work, -1));
  lm_need(L, lm_truncation_check());
  return lm_return(L, t[0] ? lm_work_order(work, 2, t) : LM_OK, 0);
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
  lm_tape_note_call(fn);
  TRY(LM_READ_ARGS(L, s, 1, fn, {"the list of tensors", LM_ARG_TL, &list}, {"root", LM_ARG_I, &root}));
  if (root < 1 || root > list.n) TRY(lm_fail_int(fn, "root", lm_text("from 1 to %d", list.n), root));
  TRY(lm_devices_collective(list.n, list.v, (int)root - 1, lua_toboolean(L, 3), &taken));
done:
  lm_free(list.v);
  if (status != LM_OK) return lm_raise(L, status);
  return lm_return_bool(L, taken);
}
