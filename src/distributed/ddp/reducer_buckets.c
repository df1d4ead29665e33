/* Assigns gradients to buckets and allocates the buckets' memory.
 *
 * If ranks share memory (lm_shared), all buckets are one region: two copies of the facts, then the buckets in order.
 * Each gradient starts on a cache line, so the total size does not depend on the order. */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"
#include "op_entries.h"

bool lm_is_same_view(const lm_tensor *t, const lm_tensor *view) {
  if (t == view) return true;
  if (t->storage != view->storage || t->data != view->data || !lm_same_shape(t, view)) return false;
  for (int d = 0; d < t->ndim; d++) {
    if (t->size[d] > 1 && t->stride[d] != view->stride[d]) return false;
  }
  return true;
}

lm_status lm_slot_set_grad(lm_slot *s) {
  lm_tensor *grad = lm_grad_of(s->param);
  LM_OWNED *shown = NULL;
  if (grad && lm_is_same_view(grad, s->view)) return LM_OK;
  NEED(lm_tensor_view(s->view, s->view->ndim, s->view->size, s->view->stride, 0, &shown));
  return lm_set_grad(s->param, shown);
}

char *lm_slot_data(const lm_reducer *r, int i) { return r->bucket[r->slot[i].bucket].flat->data + r->slot[i].at; }

/* ---- layout */

typedef struct layout {
  int nbuckets;
  lm_bucket *bucket; /* [nbuckets], at most n */
  int *of;           /* [n] each slot's bucket */
  size_t *at;        /* [n] each slot's byte offset in its bucket */
  size_t bytes;      /* total of all buckets */
} layout;

static void layout_free(layout *l) {
  lm_free(l->bucket);
  lm_free(l->of);
  lm_free(l->at);
}

typedef struct filling { /* a bucket being filled */
  lm_bucket b;
  bool first;
  int number; /* bucket's number from 1, once it is closed; 0: open */
} filling;

/* Computes the layout for `order`. One bucket for each dtype and device is open at a time; buckets are numbered when
 * they are closed, which is the order in which backward fills them. */
static lm_status lay_out(const lm_reducer *r, const int *order, layout *l) {
  int n = r->n, nfillings = 0;
  LM_FREED filling *all = lm_calloc((size_t)n, sizeof *all);
  *l = (layout){.bucket = lm_calloc((size_t)n, sizeof *l->bucket),
                .of = lm_calloc((size_t)n, sizeof *l->of),
                .at = lm_calloc((size_t)n, sizeof *l->at)};
  if (!all || !l->bucket || !l->of || !l->at) return LM_E_OOM;
  for (int k = 0; k < n; k++) {
    const lm_slot *s = &r->slot[order[k]];
    lm_dtype dtype = s->param->dtype;
    lm_device device = s->param->device;
    int f = nfillings - 1;
    while (f >= 0 && (all[f].b.dtype != dtype || all[f].b.device != device)) f--;
    if (f < 0 || all[f].number > 0) {
      all[nfillings] = (filling){.b = {.dtype = dtype, .device = device}, .first = f < 0};
      f = nfillings++;
    }
    l->of[order[k]] = f;
    l->at[order[k]] = all[f].b.bytes;
    all[f].b.bytes += lm_whole_lines(s->bytes);
    all[f].b.nslots++;
    if (all[f].b.bytes >= (all[f].first ? r->config.first_bytes : r->config.cap_bytes)) all[f].number = ++l->nbuckets;
  }
  for (int f = 0; f < nfillings; f++) {
    if (all[f].number == 0) all[f].number = ++l->nbuckets;
    l->bucket[all[f].number - 1] = all[f].b;
  }
  for (int i = 0; i < n; i++) l->of[i] = all[l->of[i]].number - 1;
  for (int b = 0; b < l->nbuckets; b++) {
    l->bucket[b].waits_for = l->bucket[b].nslots;
    l->bucket[b].at = l->bytes;
    l->bytes += l->bucket[b].bytes;
  }
  return LM_OK;
}

static uint64_t buckets_hash_of(const lm_reducer *r, const layout *l) {
  uint64_t hash = lm_hash(LM_NO_HASH, &r->first_call, sizeof r->first_call);
  for (int i = 0; i < r->n; i++) {
    const lm_slot *s = &r->slot[i];
    hash = lm_hash(hash, &l->of[i], sizeof l->of[i]);
    hash = lm_hash(hash, &l->at[i], sizeof l->at[i]);
    hash = lm_hash(hash, &s->param->dtype, sizeof s->param->dtype);
    hash = lm_hash(hash, s->param->size, sizeof(int64_t) * s->param->ndim);
  }
  return hash;
}

/* ---- memory */

static void drop_shared(void *owner) { lm_shared_release(owner); }

lm_status lm_fill_with_zeros(lm_tensor *t) {
  LM_OWNED *same = NULL;
  return lm_op_run(LM_OP_zero_, &(lm_zero__args){.x = t}, &same);
}

static lm_status bucket_memory(lm_reducer *r, lm_bucket *b, lm_shared *shared) {
  int64_t numel = (int64_t)(b->bytes / lm_dtype_size(b->dtype));
  if (shared) {
    char *data = lm_shared_region(shared, r->g->rank) + 2 * r->facts_bytes + b->at;
    lm_shared_retain(shared);
    return lm_tensor_foreign(b->dtype, b->device, 1, &numel, data, b->bytes, drop_shared, shared, &b->flat);
  }
  const lm_part *part = lm_part_for(r->g->core, b->device);
  if (part && part->g->table->memory) NEED(part->g->table->memory(part->g, b->dtype, b->device, numel, &b->flat));
  if (!b->flat) NEED(lm_tensor_empty(b->dtype, b->device, 1, &numel, LM_CONTIGUOUS, &b->flat));
  return lm_fill_with_zeros(b->flat);
}

/* Returns in *out a view of the slot's memory with a storage of its own, which shows whether anyone else has views. */
static lm_status slot_view(const lm_slot *s, lm_tensor *flat, size_t at, lm_tensor **out) {
  LM_OWNED *row = NULL;
  NEED(lm_tensor_part(flat, flat->dtype, 1, &s->param->numel, at, &row));
  return lm_tensor_view(row, s->param->ndim, s->param->size, s->stride, 0, out);
}

/* Returns true if the ranks may share the buckets' memory; lm_shared_open finds out if they can. A user's hook may
 * write to its bucket, so with one each rank has memory of its own. */
static bool may_share(const lm_reducer *r) {
  const lm_part *part = lm_part_for(r->g->core, LM_DEVICE(LM_CPU, 0));
  if (r->hook.call || !r->g->one_host || !part || !part->g->table->may_share) return false;
  for (int i = 0; i < r->n; i++) {
    if (LM_DEVICE_KIND(r->slot[i].param->device) != LM_CPU) return false;
  }
  return true;
}

lm_status lm_buckets_make(lm_reducer *r, const int *order) {
  lm_status status = LM_OK;
  layout l = {0};
  lm_shared *shared = NULL;
  lm_tensor **view = lm_calloc((size_t)r->n, sizeof *view);
  if (!view) TRY(LM_E_OOM);
  TRY(lay_out(r, order, &l));
  if (may_share(r)) TRY(lm_shared_open(r->g, 2 * r->facts_bytes + l.bytes, &shared));
  for (int b = 0; b < l.nbuckets; b++) TRY(bucket_memory(r, &l.bucket[b], shared));
  for (int i = 0; i < r->n; i++) {
    const lm_slot *s = &r->slot[i];
    lm_tensor *grad = lm_grad_of(s->param);
    TRY(slot_view(s, l.bucket[l.of[i]].flat, l.at[i], &view[i]));
    if (s->view && grad && lm_is_same_view(grad, s->view)) TRY(lm_copy(grad, view[i]));
  }
  /* From here on only lm_slot_set_grad can fail; .grad then stays a view of the former bucket. */
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    lm_tensor *grad = lm_grad_of(s->param), *former = s->view;
    s->view = view[i];
    view[i] = NULL;
    s->bucket = l.of[i];
    s->at = l.at[i];
    if (former && grad && lm_is_same_view(grad, former) && status == LM_OK) status = lm_slot_set_grad(s);
    lm_release(former);
  }
  if (order != r->order) memcpy(r->order, order, (size_t)r->n * sizeof *order);
  r->hash = buckets_hash_of(r, &l);
  lm_buckets_free(r->nbuckets, r->bucket);
  r->bucket = l.bucket;
  r->nbuckets = l.nbuckets;
  l.bucket = NULL;
  lm_shared_release(r->shared);
  r->shared = shared;
  shared = NULL;
done:
  for (int i = 0; i < r->n && view; i++) lm_release(view[i]);
  lm_free(view);
  lm_buckets_free(l.nbuckets, l.bucket);
  l.bucket = NULL;
  layout_free(&l);
  lm_shared_release(shared);
  return status;
}

/* ---- by order of arrival */

static bool is_present_order(const lm_reducer *r, const layout *l) {
  if (l->nbuckets != r->nbuckets) return false;
  for (int i = 0; i < r->n; i++) {
    if (l->of[i] != r->slot[i].bucket || l->at[i] != r->slot[i].at) return false;
  }
  return true;
}

lm_status lm_buckets_rebuild(lm_reducer *r) {
  __attribute__((cleanup(layout_free))) layout l = {0};
  LM_FREED char *data = NULL;
  size_t bytes = 0, whole = (size_t)r->n * sizeof(int);
  if (r->rebuilt) return LM_OK;
  r->rebuilt = true;
  if (r->config.find_unused && !r->config.static_graph) return LM_OK; /* the order may change with every pass */
  lm_collective_purpose(r->title, r->hash);
  /* If rank 0 was out of batches, it has no order of arrival and sends nothing. */
  NEED(lm_broadcast_bytes(r->g, 0, r->arrived, r->narrived == r->n ? whole : 0, &data, &bytes));
  if (bytes != whole) return LM_OK;
  NEED(lay_out(r, (int *)(void *)data, &l));
  if (!is_present_order(r, &l)) NEED(lm_buckets_make(r, (int *)(void *)data));
  return LM_OK;
}
