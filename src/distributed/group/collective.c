/* The front door: what each collective takes, and what it makes of lists and strided tensors. */
#include "distributed/group/collective.h"

#include "base/mem.h"
#include "distributed/group/call.h"
#include "distributed/group/issued.h"

/* ---- lists: one tensor a rank, or one for all of them */

/* Entry `rank` of one tensor whose first dim holds the parts of n ranks, each with `like`'s sizes (NULL: a part of the
 * first dim). whole is contiguous. */
static lm_status part_of(lm_tensor *whole, int n, int rank, const lm_tensor *like, lm_tensor **out) {
  int64_t numel = whole->numel / n, offset = rank * numel, size[LM_MAX_DIMS], stride[LM_MAX_DIMS], step = 1;
  int ndim = like ? like->ndim : whole->ndim;
  for (int d = ndim - 1; d >= 0; d--) {
    size[d] = like ? like->size[d] : d == 0 ? whole->size[0] / n : whole->size[d];
    stride[d] = step;
    step *= size[d] > 0 ? size[d] : 1;
  }
  return lm_tensor_view(whole, ndim, size, stride, offset, out);
}

/* t's sizes n times one after the other, or one above the other. */
static bool holds(const lm_tensor *whole, int n, const lm_tensor *t) {
  int stacked = whole->ndim == t->ndim + 1;
  if (!stacked && (t->ndim == 0 || whole->ndim != t->ndim)) return false;
  if (whole->size[0] != (stacked ? n : n * t->size[0])) return false;
  for (int d = 1; d < whole->ndim; d++)
    if (whole->size[d] != t->size[d - stacked]) return false;
  return true;
}

static lm_status differs(const lm_exchange *c, const lm_tensor *t, const lm_tensor *entry, int i) {
  return lm_fail(entry->dtype != t->dtype     ? LM_E_DTYPE
                 : entry->device != t->device ? LM_E_DEVICE
                                              : LM_E_SHAPE,
                 "%s: tensor %d of the list is %s %s on %s, but %s %s on %s is wanted", lm_collective_name(c->kind),
                 i + 1, lm_dtype_name((lm_dtype)entry->dtype), lm_shape_of(entry), lm_device_name(entry->device),
                 lm_dtype_name((lm_dtype)t->dtype), lm_shape_of(t), lm_device_name(t->device));
}

/* n tensors in a list `from`, which fit t (NULL: all_to_all, where they only have one dtype and device). */
static lm_status check_list(const lm_exchange *c, const lm_tensor *t, int n, lm_tensor *const *from, bool write) {
  lm_status status = LM_OK;
  int size = c->core->g.size;
  bool whole = n == 1 && (size > 1 || (t && !lm_same_shape(from[0], t)));
  for (int i = 0; i < n; i++) TRY(lm_call_check(c, from[i], write));
  if (whole) {
    lm_tensor *w = from[0];
    if (t && (w->dtype != t->dtype || w->device != t->device || !holds(w, size, t)))
      status = lm_fail(w->dtype != t->dtype     ? LM_E_DTYPE
                       : w->device != t->device ? LM_E_DEVICE
                                                : LM_E_SHAPE,
                       "%s: one tensor for all %d ranks is %s %s on %s; %d times %s %s on %s would fit",
                       lm_collective_name(c->kind), size, lm_dtype_name((lm_dtype)w->dtype), lm_shape_of(w),
                       lm_device_name(w->device), size, lm_dtype_name((lm_dtype)t->dtype), lm_shape_of(t),
                       lm_device_name(t->device));
    else if (!t && (w->ndim == 0 || w->size[0] % size != 0))
      status = lm_fail(LM_E_SHAPE, "%s: the first dim of %s cannot be divided among %d ranks",
                       lm_collective_name(c->kind), lm_shape_of(w), size);
    goto done;
  }
  if (n != size) {
    status = lm_fail(LM_E_ARG, "%s: %d tensors in the list for %d ranks; one for each is wanted",
                     lm_collective_name(c->kind), n, size);
    goto done;
  }
  const lm_tensor *like = t ? t : from[0];
  for (int i = 0; i < n; i++)
    if (from[i]->dtype != like->dtype || from[i]->device != like->device || (t && !lm_same_shape(from[i], t))) {
      status = differs(c, like, from[i], i);
      goto done;
    }
done:
  return status;
}

static lm_status check_apart(const lm_exchange *c, int n, lm_tensor *const *out) {
  for (int i = 0; i < n; i++) {
    if (!lm_is_contiguous(out[i]) || out[i]->numel == 0) continue;
    const char *begin = out[i]->data, *end = begin + out[i]->numel * (int64_t)lm_dtype_size((lm_dtype)out[i]->dtype);
    for (int j = 0; j < i; j++) { /* a strided one may lie between another's elements */
      if (!lm_is_contiguous(out[j]) || out[j]->numel == 0 || out[j]->data >= end) continue;
      if (begin < out[j]->data + out[j]->numel * (int64_t)lm_dtype_size((lm_dtype)out[j]->dtype))
        return lm_fail(LM_E_ARG, "%s: tensors %d and %d of the list share memory; each rank's needs its own",
                       lm_collective_name(c->kind), j + 1, i + 1);
    }
  }
  return LM_OK;
}

/* A checked list as the group gets it. */
static lm_status take_list(lm_exchange *c, const lm_tensor *t, int n, lm_tensor *const *from, bool write,
                           lm_tensor ***into) {
  lm_status status = LM_OK;
  int size = c->core->g.size;
  lm_tensor *whole = NULL;
  bool one = n == 1 && (size > 1 || (t && !lm_same_shape(from[0], t)));
  c->n = size;
  *into = lm_calloc((size_t)size, sizeof **into);
  if (!*into) return LM_E_OOM;
  if (!one) {
    for (int i = 0; i < n; i++)
      TRY(write ? lm_call_write(c, from[i], false, &(*into)[i]) : lm_call_read(c, from[i], &(*into)[i]));
    goto done;
  }
  TRY(write ? lm_call_write(c, from[0], false, &whole) : lm_call_read(c, from[0], &whole));
  for (int i = 0; i < size; i++) TRY(part_of(whole, size, i, t, &(*into)[i]));
done:
  lm_release(whole);
  return status;
}

/* ---- the collectives */

static lm_status all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op, const double *scale, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_ALL_REDUCE, t));
  c.op = op;
  c.scaled = scale != NULL;
  c.scale = scale ? *scale : 1;
  c.empty = t->numel == 0;
  TRY(lm_call_check(&c, t, true));
  TRY(lm_call_write(&c, t, true, &c.t));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op, lm_work **work) {
  return all_reduce(g, t, op, NULL, work);
}

lm_status lm_all_reduce_scaled(lm_group *g, lm_tensor *t, double scale, lm_work **work) {
  return all_reduce(g, t, LM_REDUCE_SUM, &scale, work);
}

lm_status lm_group_broadcast(lm_group *g, lm_tensor *t, int root, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_BROADCAST, t));
  c.root = root;
  c.empty = t->numel == 0;
  bool writes = root != g->rank;
  TRY(lm_call_check_rank(&c, root));
  TRY(lm_call_check(&c, t, writes));
  TRY(writes ? lm_call_write(&c, t, false, &c.t) : lm_call_read(&c, t, &c.t));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_REDUCE, t));
  c.op = op;
  c.root = root;
  c.empty = t->numel == 0;
  bool writes = root == g->rank;
  TRY(lm_call_check_rank(&c, root));
  TRY(lm_call_check(&c, t, writes));
  TRY(writes ? lm_call_write(&c, t, true, &c.t) : lm_call_read(&c, t, &c.t));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_all_gather(lm_group *g, lm_tensor *t, int n, lm_tensor *const *out, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_ALL_GATHER, t));
  c.empty = t->numel == 0;
  TRY(lm_call_check(&c, t, false));
  TRY(check_list(&c, t, n, out, true));
  TRY(check_apart(&c, n, out));
  TRY(take_list(&c, t, n, out, true, &c.out));
  TRY(lm_call_read(&c, t, &c.t));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

/* Lists are for the root alone. */
static lm_status check_root_list(const lm_exchange *c, int n) {
  if (n == 0 || c->root == c->core->g.rank) return LM_OK;
  return lm_fail(LM_E_ARG, "%s: a list on rank %d, though rank %d is the root; only there is one wanted",
                 lm_collective_name(c->kind), lm_call_world_rank(c, c->core->g.rank), lm_call_world_rank(c, c->root));
}

lm_status lm_gather(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *out, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_GATHER, t));
  c.root = root;
  c.empty = t->numel == 0;
  TRY(lm_call_check_rank(&c, root));
  TRY(check_root_list(&c, n));
  TRY(lm_call_check(&c, t, false));
  if (root == g->rank) {
    TRY(check_list(&c, t, n, out, true));
    TRY(check_apart(&c, n, out));
    TRY(take_list(&c, t, n, out, true, &c.out));
  }
  TRY(lm_call_read(&c, t, &c.t));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_scatter(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *in, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_SCATTER, t));
  c.root = root;
  c.empty = t->numel == 0;
  TRY(lm_call_check_rank(&c, root));
  TRY(check_root_list(&c, n));
  TRY(lm_call_check(&c, t, true));
  if (root == g->rank) TRY(check_list(&c, t, n, in, false));
  TRY(lm_call_write(&c, t, false, &c.t));
  if (root == g->rank) TRY(take_list(&c, t, n, in, false, &c.in));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_reduce_scatter(lm_group *g, lm_tensor *t, int n, lm_tensor *const *in, lm_reduce_op op, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_REDUCE_SCATTER, t));
  c.op = op;
  c.empty = t->numel == 0;
  TRY(lm_call_check(&c, t, true));
  TRY(check_list(&c, t, n, in, false));
  TRY(lm_call_write(&c, t, false, &c.t));
  TRY(take_list(&c, t, n, in, false, &c.in));
  lm_call_name(&c, t);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

lm_status lm_all_to_all(lm_group *g, int n, lm_tensor *const *in, lm_tensor *const *out, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_ALL_TO_ALL, n > 0 ? in[0] : NULL));
  if (n < 1) {
    status = lm_fail(LM_E_ARG, "all_to_all: empty lists for %d ranks; one tensor for each is wanted", g->size);
    goto done;
  }
  TRY(check_list(&c, NULL, n, out, true));
  TRY(check_list(&c, NULL, n, in, false));
  TRY(check_apart(&c, n, out));
  if (in[0]->dtype != out[0]->dtype || in[0]->device != out[0]->device) {
    status = differs(&c, in[0], out[0], 0);
    goto done;
  }
  TRY(take_list(&c, NULL, n, out, true, &c.out));
  TRY(take_list(&c, NULL, n, in, false, &c.in));
  if (c.in[g->rank]->numel != c.out[g->rank]->numel) {
    status = lm_fail(LM_E_SHAPE, "all_to_all: rank %d sends itself %s, and receives %s from itself",
                     lm_call_world_rank(&c, g->rank), lm_shape_of(c.in[g->rank]), lm_shape_of(c.out[g->rank]));
    goto done;
  }
  lm_call_name(&c, in[0]);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}

/* Over one part only, but a host that waits wants to know of the others' calls too. */
static lm_status settle_others(const lm_exchange *c) {
  lm_status status = LM_OK;
  for (int i = 0; i < c->core->nparts && status == LM_OK; i++) {
    const lm_part *part = &c->core->part[i];
    if (part != c->part && part->issuer) status = lm_issuer_settle(part->issuer, false);
  }
  return status == LM_OK ? LM_OK : lm_fail_in(status, "barrier");
}

lm_status lm_barrier(lm_group *g, lm_work **work) {
  lm_status status;
  lm_exchange c;
  TRY(lm_call_begin(&c, g, LM_BARRIER, NULL));
  if (!work) TRY(settle_others(&c));
  c.empty = true;
  lm_call_name(&c, NULL);
  return lm_call_send(&c, work);
done:
  lm_call_clear(&c);
  return status;
}
