/* Checks each collective's tensors and lists and passes them to the backend as dense tensors, one for each rank. */
#include "distributed/group/collective.h"

#include "base/mem.h"
#include "base/message.h"
#include "distributed/group/call.h"
#include "distributed/group/enqueued_calls.h"

/* ---- lists: one tensor for each rank, or one for all of them */

/* Returns in *out a view of rank's part of `whole`, a contiguous tensor whose first dim holds n ranks' parts, each with
 * `like`'s sizes (NULL: 1/n of the first dim). */
static lm_status view_collective_part(lm_tensor *whole, int n, int rank, const lm_tensor *like, lm_tensor **out) {
  int64_t numel = whole->numel / n, offset = rank * numel, size[LM_MAX_DIMS], stride[LM_MAX_DIMS];
  int ndim = like ? like->ndim : whole->ndim;
  for (int d = 0; d < ndim; d++) size[d] = like ? like->size[d] : d == 0 ? whole->size[0] / n : whole->size[d];
  lm_dense_strides(ndim, size, stride);
  return lm_tensor_view(whole, ndim, size, stride, offset, out);
}

/* Returns true if `whole` has t's sizes, n times concatenated along the first dim, or stacked along a new one. */
static bool collective_holds(const lm_tensor *whole, int n, const lm_tensor *t) {
  int stacked = whole->ndim == t->ndim + 1;
  if (!stacked && (t->ndim == 0 || whole->ndim != t->ndim)) return false;
  if (whole->size[0] != (stacked ? n : n * t->size[0])) return false;
  for (int d = 1; d < whole->ndim; d++)
    if (whole->size[d] != t->size[d - stacked]) return false;
  return true;
}

static lm_status difference(const lm_tensor *a, const lm_tensor *b) {
  return a->dtype != b->dtype ? LM_E_DTYPE : a->device != b->device ? LM_E_DEVICE : LM_E_SHAPE;
}

static lm_status fail_entry_differs(const lm_exchange *c, const lm_tensor *t, const lm_tensor *entry, int i) {
  return lm_fail(difference(entry, t), "%s: tensor %d of the list must be %s %s on %s, got %s %s on %s",
                 lm_collective_name(c->call.kind), i + 1, lm_dtype_name(t->dtype), lm_shape_of(t),
                 lm_device_name(t->device), lm_dtype_name(entry->dtype), lm_shape_of(entry),
                 lm_device_name(entry->device));
}

/* Returns true if a list is one tensor for all ranks. t: a tensor of one rank's sizes, or NULL. */
static bool is_whole(const lm_exchange *c, const lm_tensor *t, int n, lm_tensor *const *list) {
  return n == 1 && (c->core->g.size > 1 || (t && !lm_same_shape(list[0], t)));
}

static lm_status check_whole(const lm_exchange *c, const lm_tensor *t, const lm_tensor *w) {
  int size = c->core->g.size;
  const char *name = lm_collective_name(c->call.kind);
  if (t && (w->dtype != t->dtype || w->device != t->device || !collective_holds(w, size, t)))
    return lm_fail(difference(w, t), "%s: one tensor for all ranks must be %d times %s %s on %s, got %s %s on %s", name,
                   size, lm_dtype_name(t->dtype), lm_shape_of(t), lm_device_name(t->device), lm_dtype_name(w->dtype),
                   lm_shape_of(w), lm_device_name(w->device));
  if (!t && (w->ndim == 0 || w->size[0] % size != 0))
    return lm_fail(LM_E_SHAPE, "%s: the first dim of %s must be divisible by the number of ranks (%d)", name,
                   lm_shape_of(w), size);
  return LM_OK;
}

/* Checks a list `from` of n tensors against t (NULL, all_to_all: they must only have one dtype and device). */
static lm_status check_list(const lm_exchange *c, const lm_tensor *t, int n, lm_tensor *const *from, bool write) {
  for (int i = 0; i < n; i++) NEED(lm_call_check(c, from[i], write));
  if (is_whole(c, t, n, from)) return check_whole(c, t, from[0]);
  if (n != c->core->g.size)
    return lm_fail_length(lm_collective_name(c->call.kind), "the list", c->core->g.size, "rank", n);
  const lm_tensor *like = t ? t : from[0];
  for (int i = 0; i < n; i++)
    if (from[i]->dtype != like->dtype || from[i]->device != like->device || (t && !lm_same_shape(from[i], t)))
      return fail_entry_differs(c, like, from[i], i);
  return LM_OK;
}

static lm_status check_apart(const lm_exchange *c, int n, lm_tensor *const *out) {
  for (int i = 0; i < n; i++) {
    if (!lm_is_contiguous(out[i]) || out[i]->numel == 0) continue;
    const char *begin = out[i]->data, *end = begin + out[i]->numel * (int64_t)lm_dtype_size(out[i]->dtype);
    for (int j = 0; j < i; j++) { /* strided ones are skipped: they may interleave */
      if (!lm_is_contiguous(out[j]) || out[j]->numel == 0 || out[j]->data >= end) continue;
      if (begin < out[j]->data + out[j]->numel * (int64_t)lm_dtype_size(out[j]->dtype))
        return lm_fail(LM_E_ARG, "%s: tensors %d and %d of the list must not share memory",
                       lm_collective_name(c->call.kind), j + 1, i + 1);
    }
  }
  return LM_OK;
}

typedef enum use { READ, WRITE, UPDATE } use; /* UPDATE: read and written */

static lm_status take_tensor(lm_exchange *c, lm_tensor *t, use as, lm_tensor **into) {
  return as == READ ? lm_call_read(c, t, into) : lm_call_write(c, t, as == UPDATE, into);
}

/* Checks a list of a call, and makes from it the g->size tensors that the backend gets: to read, else to write. */
static lm_status take_list(lm_exchange *c, const lm_tensor *t, int n, lm_tensor *const *from, bool read) {
  int size = c->core->g.size;
  LM_OWNED *whole = NULL;
  NEED(check_list(c, t, n, from, !read));
  if (!read) NEED(check_apart(c, n, from));
  lm_tensor **list = lm_calloc((size_t)size, sizeof *list);
  if (!list) return LM_E_OOM;
  *(read ? &c->call.in : &c->call.out) = list;
  *(read ? &c->call.nin : &c->call.nout) = size;
  use as = read ? READ : WRITE;
  if (!is_whole(c, t, n, from)) {
    for (int i = 0; i < n; i++) NEED(take_tensor(c, from[i], as, &list[i]));
    return LM_OK;
  }
  NEED(take_tensor(c, from[0], as, &whole));
  for (int i = 0; i < size; i++) NEED(view_collective_part(whole, size, i, t, &list[i]));
  return LM_OK;
}

/* ---- the collectives */

/* The use of a collective's tensor at the root and elsewhere, and of the root's list. Without a root, all ranks count
 * as roots. */
static const struct rule {
  bool has_root, has_list;
  use at_root, elsewhere, list;
} rules[LM_COLLECTIVES] = {
    [LM_ALL_REDUCE] = {.at_root = UPDATE},
    [LM_BROADCAST] = {.has_root = true, .at_root = READ, .elsewhere = WRITE},
    [LM_REDUCE] = {.has_root = true, .at_root = UPDATE, .elsewhere = READ},
    [LM_ALL_GATHER] = {.has_list = true, .at_root = READ, .list = WRITE},
    [LM_GATHER] = {.has_root = true, .has_list = true, .at_root = READ, .elsewhere = READ, .list = WRITE},
    [LM_SCATTER] = {.has_root = true, .has_list = true, .at_root = WRITE, .elsewhere = WRITE, .list = READ},
    [LM_REDUCE_SCATTER] = {.has_list = true, .at_root = WRITE, .list = READ},
};

/* Checks the root, and that only the root passes a list. */
static lm_status check_root(const lm_exchange *c, int n) {
  lm_status status = lm_call_check_rank(c, c->call.root);
  if (status != LM_OK || n == 0 || c->call.root == c->core->g.rank) return status;
  return lm_fail(LM_E_ARG, "%s: only the root, rank %d, may pass a list, got one on rank %d",
                 lm_collective_name(c->call.kind), lm_call_world_rank(c, c->call.root),
                 lm_call_world_rank(c, c->core->g.rank));
}

/* Takes the tensors of a call with t. Written ones come first: see lm_call_read. */
static lm_status take_by_rule(lm_exchange *c, const lm_group_call *a) {
  const struct rule *rule = &rules[a->kind];
  bool at_root = !rule->has_root || a->root == c->core->g.rank, listed = rule->has_list && at_root;
  use as = at_root ? rule->at_root : rule->elsewhere;
  c->empty = a->t->numel == 0;
  if (rule->has_root) NEED(check_root(c, a->nin + a->nout));
  NEED(lm_call_check(c, a->t, as != READ));
  if (listed && rule->list == WRITE) NEED(take_list(c, a->t, a->nout, a->out, false));
  NEED(take_tensor(c, a->t, as, &c->call.t));
  return listed && rule->list == READ ? take_list(c, a->t, a->nin, a->in, true) : LM_OK;
}

static lm_status take_all_to_all(lm_exchange *c, const lm_group_call *a) {
  int rank = c->core->g.rank;
  if (a->nin != a->nout)
    return lm_fail(LM_E_ARG, "all_to_all: the numbers of outputs and inputs must match, got %d and %d", a->nout,
                   a->nin);
  if (a->nin < 1) return lm_fail_length("all_to_all", "inputs", c->core->g.size, "rank", 0);
  NEED(take_list(c, NULL, a->nout, a->out, false));
  NEED(take_list(c, NULL, a->nin, a->in, true));
  if (a->in[0]->dtype != a->out[0]->dtype || a->in[0]->device != a->out[0]->device)
    return fail_entry_differs(c, a->in[0], a->out[0], 0);
  if (c->call.in[rank]->numel == c->call.out[rank]->numel) return LM_OK;
  return lm_fail_shapes("all_to_all", lm_text("inputs[%d]", rank + 1), lm_shape_of(c->call.in[rank]),
                        lm_text("outputs[%d]", rank + 1), lm_shape_of(c->call.out[rank]));
}

/* Prepares a barrier, which runs on one part only. One that blocks waits for the enqueued calls of the other parts. */
static lm_status take_barrier(lm_exchange *c, bool blocks) {
  lm_status status = LM_OK;
  c->empty = true;
  for (int i = 0; i < c->core->nparts && status == LM_OK && blocks; i++) {
    const lm_part *part = &c->core->part[i];
    if (part != c->part && part->issuer) status = lm_issuer_wait(part->issuer, false);
  }
  return status == LM_OK ? LM_OK : lm_fail_in(status, "barrier");
}

lm_status lm_collective_start(lm_group *g, const lm_group_call *call, lm_work **work) {
  lm_status status;
  lm_exchange c;
  if (lm_kind_is_p2p(call->kind)) return lm_p2p_start(g, call, work);
  TRY(lm_call_begin(&c, g, call));
  TRY(call->kind == LM_BARRIER      ? take_barrier(&c, work == NULL)
      : call->kind == LM_ALL_TO_ALL ? take_all_to_all(&c, call)
                                    : take_by_rule(&c, call));
  lm_call_name(&c, call->t ? call->t : call->nin > 0 ? call->in[0] : NULL);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}
