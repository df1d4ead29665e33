/* A process group whose calls only enqueue (backend.h), built outside the tree against the installed headers alone, for
 * devices without streams: the CPU, and tiny_backend.c's cards. What these enqueue they also do at once, so each call
 * has moved its bytes, by the job's store, when it returns. It trusts the core to compare tickets, and to end what is
 * stuck. QUEUE_MODE says what it does wrong:
 *   slow           each call takes 0.2 s
 *   hang           each call takes until `abort`; it asks nobody
 *   sick           health reports an error once a call has been made
 *   refuse         every call fails
 *   plain          without gather, scaling of an all_reduce, batch, health and split
 * It counts its calls, for the spec to look at by LuaJIT's ffi: queue_count("abort"). */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/stream.h"
#include "distributed/group/backend.h"

typedef struct state {
  uint64_t turn;      /* number of collectives so far */
  uint64_t now;       /* number in the keys of this call's messages */
  uint64_t *messages; /* [2 * size] sent to and received from each rank */
  _Atomic bool aborted, called;
} state;

enum { ABORT, SPLIT, OPEN, CLOSE, BATCH, COUNTS };
static const char *const names[COUNTS] = {"abort", "split", "open", "close", "batch"};
static _Atomic int counts[COUNTS];

LM_API int queue_count(const char *name);
LM_API int queue_count(const char *name) {
  for (int i = 0; i < COUNTS; i++)
    if (strcmp(names[i], name) == 0) return counts[i];
  return -1;
}

static bool mode(const char *name) {
  const char *is = getenv("QUEUE_MODE");
  return is && strcmp(is, name) == 0;
}

static size_t bytes_of(const lm_tensor *t) { return (size_t)t->numel * lm_dtype_size(t->dtype); }

/* Begins each call. */
static lm_status enter(lm_group *g) {
  state *s = g->state;
  s->called = true;
  if (mode("refuse")) return lm_fail(LM_E_MISSING, "the queue is closed today");
  if (mode("slow")) usleep(200000);
  while (mode("hang") && !s->aborted) usleep(1000);
  return s->aborted ? lm_fail(LM_E_STATE, "the queue was aborted") : LM_OK;
}

/* Begins a collective. */
static lm_status begin(lm_group *g) {
  state *s = g->state;
  s->now = ++s->turn;
  return enter(g);
}

/* ---- letters */

static lm_status leave(lm_group *g, int part, const void *data, size_t n) {
  char key[64];
  snprintf(key, sizeof key, "%llu/%d/%d", (unsigned long long)((state *)g->state)->now, g->rank, part);
  return lm_group_set(g, key, data, n);
}

/* Fetches as much of the message as there is: it is not for this group to find out that sizes differ. */
static lm_status fetch(lm_group *g, int from, int part, void *out, size_t n) {
  char key[64];
  void *data = NULL;
  size_t length;
  snprintf(key, sizeof key, "%llu/%d/%d", (unsigned long long)((state *)g->state)->now, from, part);
  lm_status status = lm_group_get(g, key, &data, &length);
  if (status == LM_OK) memcpy(out, data, length < n ? length : n);
  lm_free(data);
  return status;
}

/* ---- collectives */

static lm_status reduce_all(lm_group *g, lm_tensor *t, lm_reduce_op op, int root) {
  lm_status status;
  size_t bytes = bytes_of(t);
  char *theirs = lm_calloc(1, bytes), *sum = lm_calloc(1, bytes);
  if (!theirs || !sum) TRY(LM_E_OOM);
  TRY(begin(g));
  TRY(leave(g, 0, t->data, bytes));
  for (int r = 0; r < g->size; r++) {
    TRY(fetch(g, r, 0, theirs, bytes));
    if (r == 0)
      memcpy(sum, theirs, bytes);
    else
      lm_reduce_into(t->dtype, op, sum, sum, theirs, (size_t)t->numel);
  }
  if (op == LM_REDUCE_MEAN) lm_reduce_scale(t->dtype, sum, (size_t)t->numel, 1.0 / g->size);
  if (root < 0 || root == g->rank) memcpy(t->data, sum, bytes);
done:
  lm_free(theirs);
  lm_free(sum);
  return status;
}

static lm_status queue_all_reduce(lm_group *g, const lm_group_call *c) { return reduce_all(g, c->t, c->op, -1); }

static lm_status queue_broadcast(lm_group *g, lm_tensor *t, int root) {
  lm_status status;
  TRY(begin(g));
  TRY(g->rank == root ? leave(g, 0, t->data, bytes_of(t)) : fetch(g, root, 0, t->data, bytes_of(t)));
done:
  return status;
}

static lm_status queue_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  lm_status status;
  TRY(begin(g));
  TRY(leave(g, 0, t->data, bytes_of(t)));
  for (int r = 0; g->rank == root && r < g->size; r++) TRY(fetch(g, r, 0, out[r]->data, bytes_of(t)));
done:
  return status;
}

static lm_status queue_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  lm_status status;
  TRY(begin(g));
  for (int r = 0; g->rank == root && r < g->size; r++) TRY(leave(g, r, in[r]->data, bytes_of(t)));
  TRY(fetch(g, root, g->rank, t->data, bytes_of(t)));
done:
  return status;
}

static lm_status queue_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  lm_status status;
  char *theirs = lm_calloc(1, bytes_of(t));
  if (!theirs) TRY(LM_E_OOM);
  TRY(begin(g));
  for (int r = 0; r < g->size; r++) TRY(leave(g, r, in[r]->data, bytes_of(t)));
  TRY(fetch(g, 0, g->rank, t->data, bytes_of(t)));
  for (int r = 1; r < g->size; r++) {
    TRY(fetch(g, r, g->rank, theirs, bytes_of(t)));
    lm_reduce_into(t->dtype, op, t->data, t->data, theirs, (size_t)t->numel);
  }
  if (op == LM_REDUCE_MEAN) lm_reduce_scale(t->dtype, t->data, (size_t)t->numel, 1.0 / g->size);
done:
  lm_free(theirs);
  return status;
}

static lm_status queue_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  lm_status status;
  TRY(begin(g));
  for (int r = 0; r < g->size; r++) TRY(leave(g, r, in[r]->data, bytes_of(in[r])));
  for (int r = 0; r < g->size; r++) TRY(fetch(g, r, g->rank, out[r]->data, bytes_of(out[r])));
done:
  return status;
}

static lm_status queue_run(lm_group *g, const lm_group_call *c) {
  switch (c->kind) {
    case LM_ALL_REDUCE: return queue_all_reduce(g, c);
    case LM_BROADCAST: return queue_broadcast(g, c->t, c->root);
    case LM_REDUCE: return reduce_all(g, c->t, c->op, c->root);
    case LM_ALL_GATHER: return queue_gather(g, c->t, g->rank, c->out);
    case LM_GATHER: return queue_gather(g, c->t, c->root, c->out);
    case LM_SCATTER: return queue_scatter(g, c->t, c->root, c->in);
    case LM_REDUCE_SCATTER: return queue_reduce_scatter(g, c->t, c->in, c->op);
    default: return queue_all_to_all(g, c->in, c->out);
  }
}

/* ---- from one to another: in the order of the calls, whatever the tag */

static lm_status queue_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  lm_status status;
  state *s = g->state;
  (void)tag;
  *out = NULL;
  TRY(enter(g));
  s->now = ++s->messages[2 * peer + !sending] << 32;
  TRY(sending ? leave(g, peer, t->data, bytes_of(t)) : fetch(g, peer, g->rank, t->data, bytes_of(t)));
done:
  return status;
}

/* Receives come last, since they wait for the other ranks' sends. */
static lm_status queue_batch(lm_group *g, int n, const lm_group_call *calls) {
  lm_status status = LM_OK;
  lm_request *none;
  counts[BATCH]++;
  for (int i = 0; i < 2 * n && status == LM_OK; i++) {
    const lm_group_call *c = &calls[i % n];
    bool sending = i < n;
    if ((c->kind == LM_SEND) == sending) status = queue_post(g, sending, c->t, c->peer, c->tag, &none);
  }
  return status;
}

/* ---- life */

static lm_status queue_health(lm_group *g) {
  state *s = g->state;
  return mode("sick") && s->called ? lm_fail(LM_E_STATE, "the queue has a cold") : LM_OK;
}

static void queue_abort(lm_group *g) {
  counts[ABORT]++;
  ((state *)g->state)->aborted = true;
}

static lm_status queue_split(lm_group *g, lm_group *parent, int color) {
  counts[SPLIT]++;
  return parent->state && parent->part == g->part && (color < 0) == (g->rank < 0)
             ? LM_OK
             : lm_fail(LM_E_STATE, "split: a strange parent");
}

static lm_status queue_open(lm_group *g) {
  state *s = g->state = lm_calloc(1, sizeof *s);
  if (s) s->messages = lm_calloc(2 * (size_t)g->size, sizeof *s->messages);
  counts[OPEN]++;
  if (s && s->messages) return LM_OK;
  lm_free(s);
  return LM_E_OOM;
}

static void queue_close(lm_group *g) {
  state *s = g->state;
  counts[CLOSE]++;
  lm_free(s->messages);
  lm_free(s);
}

LM_API const lm_group_table *lm_group_plugin(void) {
  static lm_group_table table = {
      .abi = LM_GROUP_ABI,
      .name = "queue",
      .enqueues = true,
      .open = queue_open,
      .close = queue_close,
      .collectives = LM_EVERY_COLLECTIVE & ~(1u << LM_BARRIER | 1u << LM_GATHER),
      .run = queue_run,
      .post = queue_post,
      .abort = queue_abort,
  };
  if (!mode("plain")) {
    table.batch = queue_batch;
    table.health = queue_health;
    table.split = queue_split;
    table.collectives |= 1u << LM_GATHER;
  }
  const char *kinds = getenv("QUEUE_KINDS"); /* a mask; the CPU without */
  table.kinds = kinds ? (unsigned)atoi(kinds) : 1u << LM_CPU;
  return &table;
}
