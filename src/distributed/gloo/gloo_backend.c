/* The group "gloo": CPU tensors between processes, on one host or several. gloo's algorithms (gloo_collectives.cc) over
 * our own links (message_transport.c); all_reduce within a host through shared memory (shared_memory_all_reduce.c). */
#include <string.h>

#include "base/mem.h"
#include "distributed/gloo/gloo_collectives.h"
#include "distributed/gloo/message_transport.h"
#include "distributed/gloo/reduce_scatter.h"
#include "distributed/gloo/shared_memory_all_reduce.h"
#include "distributed/group/backend.h"

typedef struct state {
  lm_transport *transport;
  lm_shim *shim;
  lm_local *local;  /* NULL: sockets */
  bool local_known; /* whether all ranks have agreed on that */
} state;

static lm_shim *shim_of(const lm_group *g) { return ((state *)g->state)->shim; }
static lm_transport *transport_of(const lm_group *g) { return ((state *)g->state)->transport; }

static void fold_into(const lm_fold *fold, void *out, const void *a, const void *b, size_t n) {
  lm_reduce_into(fold->dtype, (lm_reduce_op)fold->op, out, a, b, n);
}

static lm_fold fold_of(const lm_tensor *t, lm_reduce_op op) {
  return (lm_fold){lm_dtype_size(t->dtype), t->dtype, (int)op, fold_into};
}

/* The data of a list of tensors; to be freed. */
static char **data_of(const lm_group *g, lm_tensor *const *list) {
  char **data = lm_malloc((size_t)g->size * sizeof *data);
  for (int r = 0; data && r < g->size; r++) data[r] = list[r]->data;
  return data;
}

/* ---- collectives */

static lm_status gloo_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op) {
  state *s = g->state;
  lm_fold fold = fold_of(t, op);
  if (g->one_host && !s->local_known) {
    NEED(lm_local_open(g, &s->local));
    s->local_known = true;
  }
  if (s->local) return lm_local_all_reduce(s->local, g, t, op);
  NEED(lm_shim_all_reduce(s->shim, t->data, (size_t)t->numel, &fold));
  lm_reduce_mean(g, t, op);
  return LM_OK;
}

static lm_status gloo_broadcast(lm_group *g, lm_tensor *t, int root) {
  return lm_shim_broadcast(shim_of(g), t->data, lm_nbytes(t), root);
}

static lm_status gloo_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op) {
  lm_fold fold = fold_of(t, op);
  void *sum = g->rank == root ? t->data : lm_malloc(lm_nbytes(t)); /* the other ranks' tensors are only read */
  if (!sum) return LM_E_OOM;
  lm_status status = lm_shim_reduce(shim_of(g), t->data, sum, (size_t)t->numel, &fold, root);
  if (g->rank != root) lm_free(sum);
  if (g->rank == root && status == LM_OK) lm_reduce_mean(g, t, op);
  return status;
}

static lm_status gloo_all_gather(lm_group *g, const lm_tensor *t, lm_tensor *const *out) {
  char **data = data_of(g, out);
  if (!data) return LM_E_OOM;
  memmove(data[g->rank], t->data, lm_nbytes(t));
  lm_status status = lm_shim_all_gather(shim_of(g), data, lm_nbytes(t));
  lm_free(data);
  return status;
}

static lm_status gloo_gather(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out) {
  char **data = out ? data_of(g, out) : NULL;
  if (out && !data) return LM_E_OOM;
  lm_status status = lm_shim_gather(shim_of(g), t->data, data, lm_nbytes(t), root);
  lm_free(data);
  return status;
}

static lm_status gloo_scatter(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in) {
  char **data = in ? data_of(g, in) : NULL;
  if (in && !data) return LM_E_OOM;
  lm_status status = lm_shim_scatter(shim_of(g), t->data, data, lm_nbytes(t), root);
  lm_free(data);
  return status;
}

static lm_status gloo_all_to_all(lm_group *g, lm_tensor *const *in, lm_tensor *const *out) {
  lm_status status = LM_OK;
  char **from = data_of(g, in), **to = data_of(g, out);
  size_t *bytes = lm_malloc(2 * (size_t)g->size * sizeof *bytes);
  if (!from || !to || !bytes) TRY(LM_E_OOM);
  for (int r = 0; r < g->size; r++) {
    bytes[r] = lm_nbytes(in[r]);
    bytes[g->size + r] = lm_nbytes(out[r]);
  }
  TRY(lm_shim_all_to_all(shim_of(g), from, bytes, to, bytes + g->size));
done:
  lm_free(from);
  lm_free(to);
  lm_free(bytes);
  return status;
}

static lm_status gloo_barrier(lm_group *g) { return lm_shim_barrier(shim_of(g)); }

static lm_status gloo_reduce_scatter(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op) {
  lm_fold fold = fold_of(t, op);
  char **data = data_of(g, in);
  if (!data) return LM_E_OOM;
  lm_status status = lm_ring_reduce_scatter(transport_of(g), g->rank, g->size, t->data, data, (size_t)t->numel, &fold);
  if (status == LM_OK) lm_reduce_mean(g, t, op);
  lm_free(data);
  return status;
}

/* ---- send and receive */

static lm_status gloo_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out) {
  lm_transport *e = transport_of(g);
  return sending ? lm_transport_send(e, peer, (uint64_t)tag, t->data, lm_nbytes(t), out)
                 : lm_transport_recv(e, peer, (uint64_t)tag, t->data, lm_nbytes(t), out);
}

static lm_status gloo_finish(lm_group *g, lm_request *request, bool wait, bool *done, int *peer) {
  lm_transport *e = transport_of(g);
  *done = true;
  lm_status status = wait ? lm_transport_wait(e, request) : lm_transport_test(e, request, done);
  if (status != LM_OK) *done = false;
  if (*done) *peer = lm_transport_peer(request);
  return status;
}

static void gloo_forget(lm_group *g, lm_request *request) { lm_transport_forget(transport_of(g), request); }

/* ---- opening and closing */

static void gloo_close_group(lm_group *g) {
  state *s = g->state;
  if (!s) return;
  lm_local_close(s->local);
  lm_shim_close(s->shim);
  lm_transport_close(s->transport);
  lm_free(s);
  g->state = NULL;
}

static lm_status gloo_open_group(lm_group *g) {
  lm_status status = LM_OK;
  state *s = g->state = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  TRY(lm_transport_open(g, &s->transport));
  TRY(lm_shim_open(s->transport, g->rank, g->size, &s->shim));
done:
  if (status != LM_OK) gloo_close_group(g);
  return status;
}

static lm_status gloo_test(lm_group *g) { return lm_transport_peek(transport_of(g)); }

static const lm_group_table table = {
    .abi = LM_GROUP_ABI,
    .name = "gloo",
    .kinds = 1u << LM_CPU,
    .may_share = true,
    .open = gloo_open_group,
    .close = gloo_close_group,
    .all_reduce = gloo_all_reduce,
    .broadcast = gloo_broadcast,
    .reduce = gloo_reduce,
    .all_gather = gloo_all_gather,
    .gather = gloo_gather,
    .scatter = gloo_scatter,
    .reduce_scatter = gloo_reduce_scatter,
    .all_to_all = gloo_all_to_all,
    .barrier = gloo_barrier,
    .post = gloo_post,
    .finish = gloo_finish,
    .forget = gloo_forget,
    .test = gloo_test,
};

LM_API lm_group_plugin_fn lm_group_plugin;
const lm_group_table *lm_group_plugin(void) { return &table; }
