/* Allocates and frees nodes and gradient records from this thread's free lists; a graph is released without recursion,
 * however long its chains are. */
#include "autograd/node.h"

#include <string.h>

#include "base/interned.h"
#include "base/log.h"
#include "base/mem.h"

enum { GRAIN = 64, CLASSES = 16, BIG = CLASSES };
#if defined(__SANITIZE_ADDRESS__)
enum { KEPT = 0 }; /* AddressSanitizer must see every allocation */
#else
enum { KEPT = 1 << 17 }; /* bytes kept for each size class of a thread: about what one collection of Lua may free */
#endif

typedef struct pools {
  lm_node *node[CLASSES];
  int nnodes[CLASSES];
  lm_grad *grad;
  int ngrads;
  bool armed;      /* true if drain runs when the thread ends */
  bool destroying; /* true while lm_node_release runs further up the stack */
  lm_node *doomed; /* nodes that the outermost call must destroy */
} pools;

static _Thread_local pools own;
static pthread_key_t at_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic uint64_t last_number;

static uint64_t next_number(void) { return atomic_fetch_add_explicit(&last_number, 1, memory_order_relaxed) + 1; }

void lm_run_next(lm_tensor *t) {
  if (t->grad && t->grad->node) t->grad->node->number = next_number();
}

static void drain(void *unused) {
  (void)unused;
  for (int c = 0; c < CLASSES; c++) {
    for (lm_node *n = own.node[c], *next; n; n = next) {
      next = n->next;
      lm_free(n);
    }
    own.node[c] = NULL;
    own.nnodes[c] = 0;
  }
  for (lm_grad *m = own.grad, *next; m; m = next) {
    next = m->next;
    lm_free(m);
  }
  own.grad = NULL;
  own.ngrads = 0;
  own.armed = false;
}

static void make_key(void) { pthread_key_create(&at_exit, drain); }

static void arm_thread_exit(void) {
  pthread_once(&once, make_key);
  own.armed = pthread_setspecific(at_exit, &at_exit) == 0;
}

__attribute__((constructor)) static void set_up(void) { lm_tensor_set_grad_release(lm_grad_free); }
__attribute__((destructor)) static void drain_main_thread(void) { drain(NULL); }

/* ---- nodes */

lm_status lm_node_new(lm_node_kind kind, int nout, int nedge, size_t payload, lm_node **out) {
  size_t head = lm_round_up(sizeof(lm_node), 16), outs = lm_round_up((size_t)nout * sizeof(lm_node_out), 16);
  size_t edges = lm_round_up((size_t)nedge * sizeof(lm_edge), 16), bytes = head + outs + edges + payload;
  size_t block = lm_ceil_div(bytes, GRAIN);
  lm_node *n = NULL;
  if (block < CLASSES && own.node[block] && !lm_alloc_must_fail()) {
    n = own.node[block];
    own.node[block] = n->next;
    own.nnodes[block]--;
  } else if (!(n = lm_malloc(block * GRAIN))) {
    return LM_E_OOM;
  }
  memset(n, 0, bytes);
  atomic_init(&n->rc, 1);
  n->kind = (uint8_t)kind;
  n->nout = (uint8_t)nout;
  n->nedge = nedge;
  if (lm_anomaly() || lm_traces(LM_TRACE_LINES)) n->line = lm_script_line();
  n->block = (uint16_t)(block < CLASSES ? block : BIG);
  n->number = next_number();
  n->out = (lm_node_out *)((char *)n + head);
  n->edge = (lm_edge *)((char *)n + head + outs);
  n->payload = (char *)n + head + outs + edges;
  *out = n;
  return LM_OK;
}

lm_tensor **lm_node_saved(const lm_node *n, int i) {
  if (n->kind == LM_NODE_CUSTOM) {
    const lm_custom_state *c = n->payload;
    return i < c->nsaved ? &c->saved[i] : NULL;
  }
  const lm_op *op = &lm_ops[n->op];
  if (i < op->ntensor) return &LM_ARG_TENSOR(n->payload, op->tensor[i]);
  i -= op->ntensor;
  if (i < LM_MAX_OUTS) return (lm_tensor **)&n->result[i];
  i -= LM_MAX_OUTS;
  lm_list *list = op->list >= 0 ? (lm_list *)((char *)n->payload + op->list) : NULL;
  return list && list->v && i < list->n ? &list->v[i] : NULL;
}

static void free_saved_op(lm_node *n) {
  const lm_op *op = &lm_ops[n->op];
  for (int k = 0; k < op->ntensor; k++) {
    lm_tensor **t = &LM_ARG_TENSOR(n->payload, op->tensor[k]);
    lm_release(*t);
    *t = NULL;
  }
  if (op->list >= 0) {
    lm_list *list = (lm_list *)((char *)n->payload + op->list);
    for (int i = 0; list->v && i < list->n; i++) {
      lm_release(list->v[i]);
      list->v[i] = NULL;
    }
  }
  for (int i = 0; i < LM_MAX_OUTS; i++) {
    lm_release(n->result[i]);
    n->result[i] = NULL;
  }
}

static void free_saved_custom(lm_custom_state *c) {
  for (int i = 0; i < c->nsaved; i++) {
    lm_release(c->saved[i]);
    c->saved[i] = NULL;
  }
  if (c->release) c->release(c->ctx);
  c->release = NULL;
}

static void drop_saved(lm_node *n) {
  if (n->kind == LM_NODE_OP) free_saved_op(n);
  if (n->kind == LM_NODE_CUSTOM) free_saved_custom(n->payload);
}

void lm_node_free_saved(lm_node *n) {
  if (!n->saves) return;
  n->saved_freed = true;
  drop_saved(n);
}

void lm_recompute_release(lm_recompute *r) {
  if (atomic_fetch_sub_explicit(&r->rc, 1, memory_order_acq_rel) != 1) return;
  if (r->again.release) r->again.release(r->again.ctx);
  pthread_mutex_destroy(&r->lock);
  lm_free(r->list.node);
  lm_free(r);
}

static void leave_recompute(lm_node *n) {
  lm_recompute *r = n->recompute;
  pthread_mutex_lock(&r->lock);
  r->list.node[n->recompute_index] = NULL;
  pthread_mutex_unlock(&r->lock);
  n->recompute = NULL;
  lm_recompute_release(r);
}

static void destroy(lm_node *n) {
  if (n->recompute) leave_recompute(n);
  drop_saved(n);
  for (int i = 0; i < n->nedge; i++) lm_node_release(n->edge[i].node);
  for (int i = 0; i < n->nout; i++) {
    lm_watch_release(n->out[i].watch);
    lm_release(n->out[i].grad);
  }
  if (!own.armed) arm_thread_exit();
  if (own.armed && n->block < CLASSES && own.nnodes[n->block] * n->block < KEPT / GRAIN) {
    n->next = own.node[n->block];
    own.node[n->block] = n;
    own.nnodes[n->block]++;
  } else {
    lm_free(n);
  }
}

void lm_node_release(lm_node *n) {
  if (!n || atomic_fetch_sub_explicit(&n->rc, 1, memory_order_acq_rel) != 1) return;
  n->next = own.doomed;
  own.doomed = n;
  if (own.destroying) return;
  own.destroying = true;
  while ((n = own.doomed)) {
    own.doomed = n->next;
    destroy(n);
  }
  own.destroying = false;
}

const char *lm_node_name(const lm_node *n) {
  switch ((lm_node_kind)n->kind) {
    case LM_NODE_OP: return lm_ops[n->op].name;
    case LM_NODE_CUSTOM: return ((const lm_custom_state *)n->payload)->name;
    case LM_NODE_LEAF: return "leaf";
    case LM_NODE_FREED: return ((const lm_freed_state *)n->payload)->name;
    case LM_NODE_OVERWRITE: return "write to a view";
    default: return "view";
  }
}

void lm_meta_of(const lm_tensor *t, lm_meta *out) {
  out->dtype = t->dtype;
  out->ndim = t->ndim;
  out->transposed = t->ndim == 2 && t->stride[0] == 1 && t->stride[1] != 1 && t->stride[1] == t->size[0];
  out->device = t->device;
  for (int d = 0; d < t->ndim; d++) out->size[d] = t->size[d];
}

/* ---- records of tensors */

lm_status lm_grad_new(lm_grad **out) {
  lm_grad *m = NULL;
  if (own.grad && !lm_alloc_must_fail()) {
    m = own.grad;
    own.grad = m->next;
    own.ngrads--;
  } else if (!(m = lm_malloc(sizeof *m))) {
    return LM_E_OOM;
  }
  *m = (lm_grad){0};
  *out = m;
  return LM_OK;
}

bool lm_requires_grad(const lm_tensor *t) {
  const lm_grad *m = t->grad;
  if (!m) return false;
  if (m->base && m->version != lm_version(t)) return m->base->grad && m->base->grad->node;
  return m->node != NULL;
}

bool lm_is_leaf(const lm_tensor *t) {
  return !lm_requires_grad(t) || (t->grad->node && t->grad->node->kind == LM_NODE_LEAF);
}

lm_tensor *lm_view_base(const lm_tensor *t) { return t->grad ? t->grad->base : NULL; }

lm_status lm_grad_need(lm_tensor *t, lm_grad **out) {
  if (!t->grad) NEED(lm_grad_new(&t->grad));
  *out = t->grad;
  return LM_OK;
}

/* Frees .grad with its tensor, even while a graph still leads to the leaf: a gradient with a graph of its own
 * (create_graph) would otherwise keep itself alive through it. */
static void orphan(lm_watch *w) {
  pthread_mutex_lock(&w->lock);
  lm_tensor *grad = w->grad;
  w->grad = NULL;
  w->orphaned = true;
  pthread_mutex_unlock(&w->lock);
  lm_release(grad);
}

void lm_grad_free(lm_grad *m) {
  if (!m) return;
  if (m->watch) {
    orphan(m->watch);
    lm_watch_release(m->watch);
  }
  lm_node_release(m->node);
  lm_release(m->base);
  if (!own.armed) arm_thread_exit();
  if (own.armed && own.ngrads < KEPT / (int)sizeof *m) {
    m->next = own.grad;
    own.grad = m;
    own.ngrads++;
  } else {
    lm_free(m);
  }
}

lm_status lm_watch_new(lm_watch **out) {
  lm_watch *w = lm_calloc(1, sizeof *w);
  if (!w) return LM_E_OOM;
  atomic_init(&w->rc, 1);
  pthread_mutex_init(&w->lock, NULL);
  *out = w;
  return LM_OK;
}

void lm_hook_release(lm_hook_entry *h) {
  if (atomic_fetch_sub(&h->rc, 1) != 1) return;
  if (h->hook.release) h->hook.release(h->hook.ctx);
  lm_free(h);
}

void lm_watch_release(lm_watch *w) {
  if (!w || atomic_fetch_sub(&w->rc, 1) != 1) return;
  for (lm_hook_entry *h = w->hooks, *next; h; h = next) {
    next = h->next;
    lm_hook_release(h);
  }
  lm_release(w->grad);
  lm_release(w->grad_buffer);
  pthread_mutex_destroy(&w->lock);
  lm_free(w);
}

lm_status lm_alias(lm_tensor *t, lm_tensor **out) {
  if (t->number) {
    *out = lm_retain(t);
    return LM_OK;
  }
  return lm_tensor_view(t, t->ndim, t->size, t->stride, 0, out);
}

lm_status lm_attach(lm_tensor *t, lm_edge e) {
  lm_grad *m;
  if (!e.node || t->grad) return LM_OK;
  NEED(lm_grad_new(&m));
  m->node = lm_node_retain(e.node);
  m->slot = e.slot;
  t->grad = m;
  return LM_OK;
}

lm_status lm_watch_successor(const lm_grad *m, lm_watch **out) {
  *out = NULL;
  if (!m || !m->watch || !m->watch->retain) return LM_OK;
  lm_status status = lm_watch_new(out);
  if (status == LM_OK) (*out)->retain = true;
  return status;
}

void lm_grad_rebase(lm_grad *m, lm_node *node, lm_watch *watch) {
  lm_node_release(m->node);
  m->node = node;
  m->slot = 0;
  if (node && m->watch) {
    m->watch->retain = false;
    lm_watch_release(m->watch);
    m->watch = NULL;
  }
  if (!watch) return;
  m->watch = watch;
  atomic_fetch_add(&watch->rc, 1);
  node->out[0].watch = watch;
}

lm_status lm_leaf_node(const lm_tensor *t, lm_watch *watch, lm_node **out) {
  NEED(lm_node_new(LM_NODE_LEAF, 1, 0, sizeof t->stride, out));
  memcpy((*out)->payload, t->stride, sizeof(int64_t) * t->ndim);
  lm_meta_of(t, &(*out)->out[0].meta);
  atomic_fetch_add(&watch->rc, 1);
  (*out)->out[0].watch = watch;
  return LM_OK;
}
