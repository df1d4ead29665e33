/* Implements activation checkpoints: graph parts that save no tensors; backward recomputes them at their first node.
 *
 * While such a part is recorded, each node frees at once the tensors it has just saved, and notes its position in the
 * part. Computing again records the same nodes once more; those pass their saved tensors to the first ones, and are
 * freed. So backward walks the first graph, with its edges and hooks. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/follow.h"
#include "autograd/record_graph.h"
#include "base/mem.h"

struct lm_recompute_rerun {
  lm_node_list list; /* the nodes that recomputing records, retained */
  uint32_t era;      /* the least era of memory that it makes */
};

static lm_status reserve_node_list(lm_node_list *l) {
  return lm_list_grow(&l->node, &l->capacity, (size_t)l->n + 1, sizeof *l->node) ? LM_OK : LM_E_OOM;
}

lm_status lm_recompute_begin(lm_hook again, const char *where, lm_recompute **out) {
  lm_modes *modes = &lm_modes_here;
  *out = NULL;
  if (modes->recompute || modes->no_grad) {
    if (again.release) again.release(again.ctx);
    return LM_OK;
  }
  lm_status status = lm_leave();
  lm_recompute *r = status == LM_OK ? lm_calloc(1, sizeof *r) : NULL;
  if (!r) {
    if (again.release) again.release(again.ctx);
    return status == LM_OK ? LM_E_OOM : status;
  }
  atomic_init(&r->rc, 1);
  pthread_mutex_init(&r->lock, NULL);
  r->open = true;
  r->again = again;
  r->cast = modes->cast;
  snprintf(r->where, sizeof r->where, "%s", where);
  modes->recompute = *out = r;
  return LM_OK;
}

void lm_recompute_end(lm_recompute *r) {
  if (!r) return;
  lm_modes_here.recompute = NULL;
  r->open = false;
  lm_recompute_release(r);
}

bool lm_recompute_is_active(void) { return lm_modes_here.recompute || lm_modes_here.rerun; }

bool lm_recompute_is_rerun(void) { return lm_modes_here.rerun; }

bool lm_recompute_is_older(const lm_tensor *t) {
  return lm_modes_here.rerun && (int32_t)(t->storage->era - lm_modes_here.rerun->era) < 0;
}

/* ---- recording */

lm_status lm_recompute_reserve(void) {
  lm_modes *modes = &lm_modes_here;
  if (modes->rerun) NEED(reserve_node_list(&modes->rerun->list));
  if (!modes->recompute) return LM_OK;
  pthread_mutex_lock(&modes->recompute->lock);
  lm_status status = reserve_node_list(&modes->recompute->list);
  pthread_mutex_unlock(&modes->recompute->lock);
  return status;
}

void lm_recompute_add_node(lm_node *n) {
  lm_modes *modes = &lm_modes_here;
  lm_recompute *r = modes->recompute;
  if (modes->rerun) modes->rerun->list.node[modes->rerun->list.n++] = lm_node_retain(n);
  if (!r) return;
  pthread_mutex_lock(&r->lock);
  n->recompute = r;
  n->recompute_index = r->list.n;
  r->list.node[r->list.n++] = n;
  pthread_mutex_unlock(&r->lock);
  atomic_fetch_add_explicit(&r->rc, 1, memory_order_relaxed);
  n->needs_recompute = n->saves;
  lm_tensor **t;
  for (int i = 0; n->needs_recompute && (t = lm_node_saved(n, i)); i++) {
    lm_release(*t);
    *t = NULL;
  }
}

/* ---- recomputing */

static lm_status fail_recomputed_differs(const lm_recompute *r, int i, const lm_node *was, const lm_node *is) {
  bool same_op = strcmp(lm_node_name(was), lm_node_name(is)) == 0;
  return lm_fail(LM_E_STATE, "checkpoint at %s: recomputing must run the same ops: op %d was %s, got %s", r->where,
                 i + 1, lm_node_name(was), same_op ? "the same with other shapes, dtypes or inputs" : lm_node_name(is));
}

static bool same_meta(const lm_meta *a, const lm_meta *b) {
  return a->dtype == b->dtype && a->device == b->device && a->ndim == b->ndim &&
         memcmp(a->size, b->size, a->ndim * sizeof a->size[0]) == 0;
}

static bool alike(const lm_node *a, const lm_node *b) {
  if (a->kind != b->kind || a->op != b->op || a->nout != b->nout || a->nedge != b->nedge || a->saves != b->saves)
    return false;
  if (a->kind == LM_NODE_CUSTOM &&
      ((const lm_custom_state *)a->payload)->nsaved != ((const lm_custom_state *)b->payload)->nsaved)
    return false;
  for (int i = 0; i < a->nout; i++)
    if (!same_meta(&a->out[i].meta, &b->out[i].meta)) return false;
  return true;
}

/* Returns true if saved arguments have the versions of the first run: tensors from outside the checkpoint were not
 * written since. Tensors made inside it have equal versions if the function does the same. */
static bool same_versions(const lm_node *was, const lm_node *is) {
  if (was->kind == LM_NODE_CUSTOM) {
    const lm_custom_state *a = was->payload, *b = is->payload;
    return memcmp(a->version, b->version, (size_t)a->nsaved * sizeof *a->version) == 0;
  }
  const lm_op *op = &lm_ops[was->op];
  for (int k = 0; k < op->ntensor; k++)
    if (was->version[k] != is->version[k]) return false;
  const lm_list *list = op->list >= 0 ? (const lm_list *)((const char *)was->payload + op->list) : NULL;
  for (int i = 0; list && list->v && i < list->n; i++)
    if (was->list_version[i] != is->list_version[i]) return false;
  return true;
}

/* Returns an array of the nodes that still exist, retained, NULL for the others; *n is the number that was recorded. */
static lm_status retain_nodes(lm_recompute *r, lm_node ***out, int *n) {
  pthread_mutex_lock(&r->lock);
  *n = r->list.n;
  *out = lm_calloc((size_t)*n, sizeof **out);
  for (int i = 0; *out && i < *n; i++) {
    lm_node *node = r->list.node[i];
    int32_t rc = node ? atomic_load(&node->rc) : 0;
    while (rc > 0 && !atomic_compare_exchange_weak(&node->rc, &rc, rc + 1)) continue;
    if (rc > 0) (*out)[i] = node; /* rc 0: the node waits for the lock, to remove itself */
  }
  pthread_mutex_unlock(&r->lock);
  return *out ? LM_OK : LM_E_OOM;
}

/* Moves `was` into the inner (nested) part that `is` belongs to, in place of `is`. */
static void move_in(lm_node *was, lm_node *is) {
  lm_recompute *outer = was->recompute, *inner = is->recompute;
  pthread_mutex_lock(&outer->lock);
  outer->list.node[was->recompute_index] = NULL;
  pthread_mutex_unlock(&outer->lock);
  pthread_mutex_lock(&inner->lock);
  inner->list.node[is->recompute_index] = was;
  pthread_mutex_unlock(&inner->lock);
  was->recompute =
      inner; /* takes over is's reference; never NULL in between: other threads read it (backward_devices.c) */
  was->recompute_index = is->recompute_index;
  is->recompute = NULL;
  is->needs_recompute = false;
  lm_recompute_release(outer);
}

static lm_status hand_over(lm_recompute *r, int n, lm_node *const *was, const lm_node_list *now) {
  if (now->n != n && !(r->open && now->n > n)) {
    return lm_fail(LM_E_STATE, "checkpoint at %s: recomputing must run the same ops: it recorded %d ops, expected %d",
                   r->where, now->n, n);
  }
  for (int i = 0; i < n; i++) { /* before any tensor moves */
    if (!was[i]) continue;
    if (!alike(was[i], now->node[i])) NEED(fail_recomputed_differs(r, i, was[i], now->node[i]));
    if (was[i]->needs_recompute && !same_versions(was[i], now->node[i])) {
      return lm_fail(LM_E_STATE,
                     "checkpoint at %s: cannot recompute: an input of %s (op %d) was changed in place since", r->where,
                     lm_node_name(was[i]), i + 1);
    }
  }
  for (int i = 0; i < n; i++) {
    if (!was[i] || !was[i]->needs_recompute) continue;
    if (now->node[i]->needs_recompute) {
      move_in(was[i], now->node[i]);
      continue;
    }
    lm_tensor **t;
    for (int k = 0; (t = lm_node_saved(was[i], k)); k++) { /* move each saved tensor */
      lm_tensor **full = lm_node_saved(now->node[i], k);
      *t = *full;
      *full = NULL;
      if (!*t || (*t)->number || !(*t)->grad) continue;
      lm_grad_free((*t)->grad); /* a backward pass within the function attached a history */
      (*t)->grad = NULL;
    }
    was[i]->fetches = now->node[i]->fetches;
    memcpy(was[i]->result_version, now->node[i]->result_version, sizeof was[i]->result_version);
    was[i]->needs_recompute = false;
  }
  return LM_OK;
}

static lm_status rerun(lm_recompute *r) {
  lm_status status = LM_OK;
  lm_node **was = NULL;
  lm_tensor *unused = NULL;
  int n = 0;
  struct lm_recompute_rerun now = {{NULL, 0, 0}, atomic_fetch_add(&lm_storage_era, 1) + 1};
  lm_modes before = lm_modes_swap((lm_modes){.cast = r->cast, .rerun = &now});
  status = r->again.fn(r->again.ctx, NULL, &unused);
  lm_modes_swap(before);
  if (status != LM_OK) goto done;
  TRY(retain_nodes(r, &was, &n));
  TRY(hand_over(r, n, was, &now.list));
  if (!r->open) { /* nodes are not needed again, and may keep graphs alive */
    if (r->again.release) r->again.release(r->again.ctx);
    r->again.release = NULL;
  }
done:
  for (int i = 0; was && i < n; i++) lm_node_release(was[i]);
  for (int i = 0; i < now.list.n; i++) lm_node_release(now.list.node[i]);
  lm_free(was);
  lm_free(now.list.node);
  return status;
}

lm_status lm_recompute_run(lm_node *n) {
  while (n->needs_recompute) { /* the node may move into an inner part, to be recomputed in turn */
    lm_recompute *r = n->recompute;
    atomic_fetch_add_explicit(&r->rc, 1, memory_order_relaxed);
    lm_status status = rerun(r);
    lm_recompute_release(r);
    NEED(status);
  }
  return LM_OK;
}
