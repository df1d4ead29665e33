/* Implements requires_grad, .grad and hooks of single tensors. */
#include <limits.h>
#include <string.h>

#include "autograd/follow.h"
#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "base/address_map.h"
#include "base/mem.h"
#include "base/message.h"

static _Atomic int64_t last_id;

const char *lm_grad_fn_name(const lm_tensor *t) {
  if (lm_is_leaf(t)) return NULL;
  return t->grad->node ? lm_node_name(t->grad->node) : "view"; /* the view's base joined a graph since */
}

lm_status lm_set_requires_grad(lm_tensor *t, bool on) {
  lm_grad *m;
  if (lm_requires_grad(t) == on) return LM_OK;
  NEED(lm_leave());
  if (!on && !lm_is_leaf(t)) {
    return lm_fail(LM_E_STATE, "requires_grad: cannot set to false on the result of an op; use detach()");
  }
  if (!on) {
    lm_node_release(t->grad->node);
    t->grad->node = NULL;
    return LM_OK;
  }
  if (!lm_dtype_is_float(t->dtype)) {
    return lm_fail_dtype("requires_grad", "x", "floating point", lm_dtype_name(t->dtype));
  }
  NEED(lm_grad_need(t, &m));
  if (!m->watch) NEED(lm_watch_new(&m->watch));
  lm_node *leaf;
  NEED(lm_leaf_node(t, m->watch, &leaf));
  lm_node_release(m->node); /* left over if t is a view whose base has left its graph */
  m->node = leaf;
  m->slot = 0;
  lm_release(m->base); /* a leaf has no base */
  m->base = NULL;
  return LM_OK;
}

/* ---- .grad */

lm_tensor *lm_grad_of(const lm_tensor *t) {
  lm_watch *w = t->grad ? t->grad->watch : NULL;
  if (!w) return NULL;
  pthread_mutex_lock(&w->lock);
  lm_tensor *grad = w->grad;
  pthread_mutex_unlock(&w->lock);
  return grad;
}

lm_status lm_set_grad(lm_tensor *t, lm_tensor *grad) {
  lm_grad *m;
  if (!grad && !lm_grad_of(t)) return LM_OK;
  if (grad && (!lm_same_shape(t, grad) || t->dtype != grad->dtype || t->device != grad->device)) {
    return lm_fail_value(
        "grad", "the gradient",
        lm_text("%s %s on %s as its tensor", lm_dtype_name(t->dtype), lm_shape_of(t), lm_device_name(t->device)),
        lm_text("%s %s on %s", lm_dtype_name(grad->dtype), lm_shape_of(grad), lm_device_name(grad->device)));
  }
  if (grad == t) return lm_fail_value("grad", "the gradient", "another tensor", "the tensor itself");
  NEED(lm_grad_need(t, &m));
  if (!m->watch) NEED(lm_watch_new(&m->watch));
  pthread_mutex_lock(&m->watch->lock);
  lm_tensor *old = m->watch->grad;
  m->watch->grad = lm_retain(grad);
  pthread_mutex_unlock(&m->watch->lock);
  lm_release(old);
  return LM_OK;
}

lm_status lm_set_grad_buffer(lm_tensor *leaf, lm_tensor *grad_buffer) {
  lm_watch *w = leaf->grad ? leaf->grad->watch : NULL;
  if (!grad_buffer && !w) return LM_OK;
  if (grad_buffer && (!lm_is_leaf(leaf) || !lm_requires_grad(leaf))) {
    return lm_fail_value("grad", "the tensor", "a leaf that requires grad", "another tensor");
  }
  if (grad_buffer && (!lm_same_shape(leaf, grad_buffer) || leaf->dtype != grad_buffer->dtype ||
                      leaf->device != grad_buffer->device || !lm_is_dense(grad_buffer))) {
    return lm_fail_value("grad", "the buffer",
                         lm_text("dense and, as the leaf, %s %s on %s", lm_dtype_name(leaf->dtype), lm_shape_of(leaf),
                                 lm_device_name(leaf->device)),
                         lm_text("%s %s on %s", lm_dtype_name(grad_buffer->dtype), lm_shape_of(grad_buffer),
                                 lm_device_name(grad_buffer->device)));
  }
  if (!w) NEED(lm_watch_need(leaf, &w));
  pthread_mutex_lock(&w->lock);
  lm_tensor *old = w->grad_buffer;
  w->grad_buffer = lm_retain(grad_buffer);
  pthread_mutex_unlock(&w->lock);
  lm_release(old);
  return LM_OK;
}

lm_status lm_watch_need(lm_tensor *t, lm_watch **out) {
  lm_edge e;
  NEED(lm_history(t, &e));
  if (!e.node) return lm_fail_value("register_hook", "x", "a tensor that requires grad", "one that does not");
  lm_watch *_Atomic *seen = &e.node->out[e.slot].watch;
  if (!t->grad->watch) {
    if (*seen) {
      t->grad->watch = *seen;
      atomic_fetch_add(&t->grad->watch->rc, 1);
    } else {
      NEED(lm_watch_new(&t->grad->watch));
    }
  }
  if (!*seen) {
    atomic_fetch_add(&t->grad->watch->rc, 1);
    *seen = t->grad->watch;
  }
  *out = *seen;
  return LM_OK;
}

lm_status lm_retain_grad(lm_tensor *t) {
  lm_watch *w;
  NEED(lm_leave());
  NEED(lm_watch_need(t, &w));
  if (!lm_is_leaf(t)) w->retain = true;
  return LM_OK;
}

/* ---- hooks */

static lm_status add_hook(lm_tensor *t, lm_hook_entry entry, int64_t *id) {
  lm_status status = LM_OK;
  lm_watch *w;
  lm_hook_entry *h = NULL;
  TRY(lm_leave());
  TRY(lm_watch_need(t, &w));
  if (entry.after && !lm_is_leaf(t)) {
    status = lm_remedy(lm_fail_value("register_post_accumulate_grad_hook", "x", "a leaf", "the result of an op"),
                       "use register_hook");
    goto done;
  }
  h = lm_calloc(1, sizeof *h);
  if (!h) TRY(LM_E_OOM);
  *h = entry;
  atomic_init(&h->rc, 1);
  h->id = *id = atomic_fetch_add(&last_id, 1) + 1;
  pthread_mutex_lock(&w->lock);
  if (h->begin) w->begins = true;
  lm_hook_entry **at = &w->hooks;
  while (*at && (h->begin || !(*at)->begin)) at = &(*at)->next;
  h->next = *at;
  *at = h;
  pthread_mutex_unlock(&w->lock);
done:
  if (status != LM_OK && entry.hook.release) entry.hook.release(entry.hook.ctx);
  return status;
}

lm_status lm_register_hook(lm_tensor *t, lm_hook hook, int64_t *id) {
  return add_hook(t, (lm_hook_entry){.hook = hook}, id);
}

lm_status lm_register_accumulate_hook(lm_tensor *t, lm_hook hook, lm_hook_begin begin, int64_t *id) {
  return add_hook(t, (lm_hook_entry){.after = true, .hook = hook, .begin = begin}, id);
}

/* Removes the hook from t's current watch only; an in-place write leaves hooks with the earlier result. */
void lm_remove_hook(lm_tensor *t, int64_t id) {
  lm_watch *w = t->grad ? t->grad->watch : NULL;
  if (!w) return;
  lm_hook_entry *found = NULL;
  pthread_mutex_lock(&w->lock);
  for (lm_hook_entry **h = &w->hooks; *h; h = &(*h)->next) {
    if ((*h)->id != id) continue;
    found = *h;
    *h = found->next;
    break;
  }
  pthread_mutex_unlock(&w->lock);
  if (found) lm_hook_release(found);
}

bool lm_watch_has_hooks(lm_watch *w) {
  if (!w) return false;
  pthread_mutex_lock(&w->lock);
  bool has = w->hooks != NULL;
  pthread_mutex_unlock(&w->lock);
  return has;
}

/* Hooks, retained, since a hook may add or remove hooks. */
typedef struct hook_list {
  int n;
  lm_hook_entry **v;
} hook_list;
#define OWNED_HOOKS __attribute__((cleanup(release_hooks))) hook_list

static lm_status present_hooks(lm_watch *w, bool after, hook_list *out) {
  int n = 0;
  pthread_mutex_lock(&w->lock);
  for (lm_hook_entry *h = w->hooks; h; h = h->next) n += h->after == after;
  out->v = n > 0 ? lm_malloc(sizeof *out->v * (size_t)n) : NULL;
  for (lm_hook_entry *h = w->hooks; h && out->v; h = h->next) {
    if (h->after != after) continue;
    atomic_fetch_add(&h->rc, 1);
    out->v[out->n++] = h;
  }
  pthread_mutex_unlock(&w->lock);
  return out->n == n ? LM_OK : LM_E_OOM;
}

static void release_hooks(hook_list *hooks) {
  for (int i = 0; i < hooks->n; i++) lm_hook_release(hooks->v[i]);
  lm_free(hooks->v);
}

lm_status lm_watch_before(lm_watch *w, const lm_meta *meta, lm_tensor **g) {
  OWNED_HOOKS hooks = {0};
  NEED(present_hooks(w, false, &hooks));
  for (int i = 0; i < hooks.n; i++) {
    LM_OWNED *replacement = NULL;
    NEED(hooks.v[i]->hook.fn(hooks.v[i]->hook.ctx, *g, &replacement));
    if (!replacement) continue;
    bool fits =
        replacement->ndim == meta->ndim && memcmp(replacement->size, meta->size, sizeof(int64_t) * meta->ndim) == 0;
    if (!fits) {
      return lm_fail_shape("register_hook", "the hook's result", lm_shape_text(meta->ndim, meta->size),
                           lm_shape_of(replacement));
    }
    lm_release(*g);
    *g = lm_tensor_take(&replacement);
    NEED(lm_fit_gradient(meta, g));
  }
  return LM_OK;
}

lm_status lm_watch_after(lm_watch *w) {
  OWNED_HOOKS hooks = {0};
  NEED(present_hooks(w, true, &hooks));
  for (int i = 0; i < hooks.n; i++) {
    LM_OWNED *grad = NULL, *unused = NULL;
    pthread_mutex_lock(&w->lock);
    grad = lm_retain(w->grad); /* the tensor may be freed on another thread meanwhile, and .grad with it */
    pthread_mutex_unlock(&w->lock);
    if (!grad && !hooks.v[i]->begin) continue;
    NEED(hooks.v[i]->hook.fn(hooks.v[i]->hook.ctx, grad, &unused));
  }
  return LM_OK;
}

lm_status lm_watch_begin(lm_watch *w, bool create_graph) {
  OWNED_HOOKS hooks = {0};
  if (!w || !w->begins) return LM_OK;
  NEED(present_hooks(w, true, &hooks));
  for (int i = 0; i < hooks.n; i++) {
    if (hooks.v[i]->begin) NEED(hooks.v[i]->begin(hooks.v[i]->hook.ctx, create_graph));
  }
  return LM_OK;
}

/* ---- printing the graph */

const lm_node *lm_graph_node_of(lm_tensor *t) {
  lm_edge e;
  return lm_leave() == LM_OK && lm_requires_grad(t) && lm_history(t, &e) == LM_OK ? e.node : NULL;
}

lm_graph_node lm_graph_describe(const lm_node *n) {
  const lm_meta *meta = &n->out[0].meta;
  return (lm_graph_node){lm_node_name(n), n->line,   n->kind == LM_NODE_LEAF, n->nedge, meta->dtype,
                         meta->ndim,      meta->size};
}

const lm_node *lm_graph_edge(const lm_node *n, int k) { return n->edge[k].node; }

/* ---- for followers */

bool lm_is_plain_leaf(const lm_tensor *t) {
  if (!lm_is_leaf(t) || !lm_requires_grad(t)) return false;
  const lm_watch *w = t->grad->watch;
  return !w || (!w->hooks && !w->grad_buffer && !w->orphaned);
}

typedef struct history { /* the nodes behind a tensor, and how many gradients each of them waits for */
  int n;
  size_t capacity;
  const lm_node **node;
  lm_address_map waits;
} history;

static bool add_to_history(history *h, const lm_node *n) {
  const int waits = lm_address_find(&h->waits, n);
  return (waits >= 0 || LM_APPEND(h->node, h->n, h->capacity, n)) &&
         lm_address_set(&h->waits, n, waits < 0 ? 1 : waits + 1);
}

/* Returns the node that a backward pass runs next, as lm_pass_step_ready does. */
static const lm_node *next_of_history(history *h) {
  const lm_node *next = NULL;
  for (int i = 0; i < h->n; i++)
    if (lm_address_find(&h->waits, h->node[i]) == 0 && (!next || h->node[i]->number > next->number)) next = h->node[i];
  return next;
}

/* Returns the node whose freed tensors a pass from n on needs before it uses others or completes a leaf's gradient: ops
 * that save none, and write to none, come before. NULL: there is none. */
static const lm_node *find_freed(history *h, const lm_node *n) {
  if (!add_to_history(h, n)) return NULL;
  for (int i = 0; i < h->n; i++)
    for (int k = 0; k < h->node[i]->nedge; k++)
      if (h->node[i]->edge[k].node && !add_to_history(h, h->node[i]->edge[k].node)) return NULL;
  for (lm_address_set(&h->waits, n, 0); (n = next_of_history(h)) && !n->saved_freed;
       lm_address_set(&h->waits, n, INT_MAX)) {
    if (n->kind == LM_NODE_CUSTOM || n->saves || (n->kind == LM_NODE_OP && lm_ops[n->op].kind == LM_WRITE)) return NULL;
    for (int k = 0; k < n->nedge; k++) {
      const lm_node *to = n->edge[k].node;
      const int waits = to ? lm_address_find(&h->waits, to) - 1 : 1;
      if (to) lm_address_set(&h->waits, to, waits);
      if (waits == 0 && to->kind == LM_NODE_LEAF) return NULL;
    }
  }
  return n;
}

bool lm_has_freed_history(const lm_tensor *t, const char **name, const char **freed) {
  const lm_node *n = t->grad ? t->grad->node : NULL, *found = n;
  history h = {0};
  if (!n || n->kind == LM_NODE_LEAF || n->kind == LM_NODE_CUSTOM) return false;
  if (!n->saved_freed) found = n->saves ? NULL : find_freed(&h, n);
  lm_free(h.node);
  lm_free(h.waits.entry);
  if (!found || found->kind == LM_NODE_CUSTOM) return false;
  *name = lm_node_name(n);
  *freed = lm_node_name(found);
  return true;
}

lm_status lm_set_freed_history(lm_tensor *t, const char *name, const char *freed, int n, lm_tensor *const *leaf) {
  LM_OWNED_NODE *node = NULL;
  NEED(lm_node_new(LM_NODE_FREED, 1, n, sizeof(lm_freed_state), &node));
  *(lm_freed_state *)node->payload = (lm_freed_state){name, freed};
  node->saves = node->saved_freed = true;
  for (int k = 0; k < n; k++) node->edge[k] = (lm_edge){lm_node_retain(leaf[k]->grad->node), 0};
  lm_meta_of(t, &node->out[0].meta);
  return lm_attach(t, (lm_edge){node, 0});
}
