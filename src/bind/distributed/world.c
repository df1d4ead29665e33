/* Opens and closes worlds (all ranks of a job), and reports their failures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "bind/distributed/group.h"
#include "distributed/store/failure_text.h"
#include "distributed/store/pmix.h"
#include "distributed/store/sigterm.h"

void lm_dependent_join(lm_dependent **list, lm_dependent *d) {
  d->next = *list;
  d->pprev = list;
  if (d->next) d->next->pprev = &d->next;
  *list = d;
}

void lm_dependent_leave(lm_dependent *d) {
  if (!d->pprev) return;
  *d->pprev = d->next;
  if (d->next) d->next->pprev = d->pprev;
  d->pprev = NULL;
}

void lm_dependents_close(lm_dependent **list) {
  while (*list) {
    lm_dependent *d = *list;
    lm_dependent_leave(d);
    d->close(d);
  }
}

/* ---- handles */

static void close_world(void *object) {
  lm_world_handle *handle = object;
  if (!handle->world) return;
  lm_dependents_close(&handle->groups);
  lm_world *world = handle->world;
  handle->world = NULL;
  handle->s->worlds--;
  lm_world_close(world);
}
static const lm_object_type world_type = {
    "luminary.world", sizeof(lm_world_handle), close_world, "a world", NULL, NULL};

lm_world_handle *lm_need_world(lua_State *L, int i, const char *fn, const char *arg) {
  (void)arg;
  lm_world_handle *handle = lm_need_object(L, i, &world_type, fn);
  if (!handle->world) lm_raise_text(L, "%s: the process group was destroyed", fn);
  return handle;
}

/* ---- opening and closing */

/* Warns rank 0 that no token is set, once a process even if several of its threads are ranks. */
static void warn_without_token(const lm_world_config *c) {
  static _Atomic bool said;
  /* Only the job's own user can read a file or PMIx's data, where a secret lies beside the store's address. */
  bool secret = strncmp(c->init_method, "pmix:", 5) == 0 || strncmp(c->init_method, "file:", 5) == 0;
  if (c->rank != 0 || c->token || secret || atomic_exchange(&said, true)) return;
  fprintf(stderr,
          "luminary: no LM_TOKEN is set: the job's id alone ('%s') keeps other programs out of this process group; "
          "`luminary run` makes a token, or set LM_TOKEN to a secret on all ranks\n",
          c->job && *c->job ? c->job : c->init_method);
}

/* dist_open{init_method, rank, size, timeout, heartbeat_timeout, offers_nccl [, job] [, token]} -> world */
LM_FUNCTION(dist_open) {
  static const char fn[] = "init_process_group";
  lm_lua *s = LM_STATE(L);
  int64_t rank = INT64_MAX, size = INT64_MAX;
  lm_world_config c = {.generation = s->worlds_before, .timeout = NAN, .heartbeat_timeout = NAN};
  lua_settop(L, 1);
  lm_world_handle *handle = lm_object_new(L, &world_type);
  handle->s = s;
  lm_need_table(L, 1, fn, "the plan");
  lm_need(L, LM_READ_OPTIONS(L, s, 1, fn, {"init_method", LM_ARG_TEXT, &c.init_method}, {"rank", LM_ARG_I, &rank},
                             {"size", LM_ARG_I, &size}, {"timeout", LM_ARG_F, &c.timeout},
                             {"heartbeat_timeout", LM_ARG_F, &c.heartbeat_timeout},
                             {"offers_nccl", LM_ARG_B, &c.offers_nccl}, {"job", LM_ARG_TEXT, &c.job},
                             {"token", LM_ARG_TEXT, &c.token}));
  const char *missing = !c.init_method               ? "init_method"
                        : rank == INT64_MAX          ? "rank"
                        : size == INT64_MAX          ? "size"
                        : isnan(c.timeout)           ? "timeout"
                        : isnan(c.heartbeat_timeout) ? "heartbeat_timeout"
                                                     : NULL;
  if (missing) return lm_raise_text(L, "%s: %s is missing", fn, missing);
  if (rank < INT32_MIN || rank > INT32_MAX || size < INT32_MIN || size > INT32_MAX)
    return lm_raise(L, lm_fail_rank(fn, rank, size));
  c.rank = (int)rank;
  c.size = (int)size;
  s->worlds++; /* lm_note_line then passes the script's line on to the ranks that wait for this one */
  lm_note_line(L, s);
  lm_status status = lm_world_open(&c, &handle->world);
  if (status != LM_OK) s->worlds--;
  lm_need(L, status);
  s->worlds_before++;
  warn_without_token(&c);
  return 1;
}

bool lm_world_close_at(lua_State *L, int i) {
  void *world = lm_to_object(L, i, &world_type);
  if (world) close_world(world);
  return world != NULL;
}

/* dist_pmix() -> true, or false and the reason why this process cannot find others by PMIx */
LM_FUNCTION(dist_pmix) {
  bool there = lm_pmix_check() == LM_OK;
  lua_pushboolean(L, there);
  if (there) return 1;
  lua_pushstring(L, lm_error());
  return 2;
}

/* Returns this rank's index, from 0, among the ranks of its host. */
LM_FUNCTION(dist_local_rank, (world, w)) { return lm_return_int(L, lm_world_local_rank(w->world)); }

/* Returns the default backend, on which all ranks agree. */
LM_FUNCTION(dist_backend, (world, w)) {
  const char *backend;
  lm_need(L, lm_world_backend(w->world, &backend));
  return lm_return_text(L, backend);
}

/* ---- health */

static const char *failure_name(lm_failure_kind kind) {
  static const char *const names[] = {"none", "error", "died", "frozen", "mismatch", "absent", "left", "unreachable"};
  _Static_assert(sizeof names / sizeof *names == LM_FAILURE_KINDS, "a name for each");
  return (unsigned)kind < LM_FAILURE_KINDS ? names[kind] : "none";
}

static void push_party(lua_State *L, const lm_party *p) {
  static const char *const standings[] = {"",        "not joined", "no call", "waits", "came",
                                          "last in", "left",       "died",    "silent"};
  _Static_assert(sizeof standings / sizeof *standings == LM_STANDINGS, "a name for each");
  lua_createtable(L, 0, 6);
  lm_set_number(L, "rank", p->rank);
  lm_set_text(L, "host", p->host);
  if (p->standing != LM_NOT_KNOWN) lm_set_text(L, "standing", standings[p->standing]);
  if (p->seconds > 0) lm_set_number(L, "seconds", p->seconds);
  if (!p->call.what[0]) return;
  lm_set_text(L, "call", p->call.what);
  lm_set_text(L, "where", p->call.where);
}

/* Returns nil before any failure, else {kind, reported_by, where, message, text, rank, host, who, other};
 * who and other: {rank, host, standing, seconds, call, where}, as far as known */
LM_FUNCTION(dist_cause, (world, w)) {
  lm_failure f;
  char text[1024];
  if (!lm_world_cause(w->world, &f)) return 0;
  lua_createtable(L, 0, 9);
  lm_set_text(L, "kind", failure_name(f.kind));
  lm_set_number(L, "reported_by", f.reported_by);
  lm_set_text(L, "where", f.where);
  lm_set_text(L, "message", f.message);
  lm_set_text(L, "text", lm_failure_text(&f, text, sizeof text));
  lm_set_number(L, "rank", f.who.rank);
  lm_set_text(L, "host", f.who.host);
  push_party(L, &f.who);
  lua_setfield(L, -2, "who");
  if (f.other.rank >= 0) {
    push_party(L, &f.other);
    lua_setfield(L, -2, "other");
  }
  return 1;
}

/* Notifies all ranks that this one failed. */
LM_FUNCTION(dist_fail, (world, w), (text, where), (string, text)) {
  char message[LM_FAILURE_MESSAGE];
  lm_write_bytes(message, sizeof message, text.text, text.n);
  lm_world_fail(w->world, where, message);
  return 0;
}

/* sigterm_defer(): from now on the first SIGTERM only sets a flag; sigterm_came() returns the flag */
LM_FUNCTION(sigterm_defer) {
  lm_sigterm_defer();
  return 0;
}

LM_FUNCTION(sigterm_came) { return lm_return_bool(L, lm_sigterm_came()); }
