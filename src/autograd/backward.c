/* Runs the backward pass. It claims every node that the roots lead to and counts the gradients that each will get. Then
 * it runs nodes whose gradients are complete, the latest recorded first, so that memory is freed in reverse order of
 * allocation. Nothing recurses. Graphs of other threads may share leaves, so a pass keeps their state in a table of its
 * own; any other node serves one pass at a time. */
#include <stdlib.h>
#include <string.h>

#include "autograd/backward_pass.h"
#include "base/bytes.h"
#include "base/interned.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/recorder.h"
#include "op/stream_order.h"

typedef struct lm_finally {
  lm_hook hook;
  struct lm_finally *next;
} lm_finally;

static _Thread_local lm_pass *innermost;

static void end_run(lm_pass *r) {
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    for (int s = 0; s < n->nout; s++) {
      lm_release(n->out[s].grad);
      lm_release(n->out[s].more);
      n->out[s].grad = n->out[s].more = NULL;
    }
    atomic_store_explicit(&n->run, NULL, memory_order_release);
  }
  for (int i = 0; i < r->leaf_capacity; i++) lm_release(r->leaf[i].grad);
  for (int i = 0; i < r->nedges; i++) lm_node_release(r->edge[i].node);
  if (r->node != r->node_small) lm_free(r->node);
  if (r->ready != r->ready_small) lm_free(r->ready);
  if (r->leaf != r->leaf_small) lm_free(r->leaf);
  if (r->edge != r->edge_small) lm_free(r->edge);
  if (r->input != r->input_small) lm_free(r->input);
}

/* ---- the table of leaves */

static lm_leaf_state *leaf_slot(lm_leaf_state *table, int capacity, const lm_node *n) {
  size_t i = lm_hash_number(LM_NO_HASH, (uintptr_t)n);
  for (;; i++) {
    lm_leaf_state *l = &table[i & (size_t)(capacity - 1)];
    if (l->node == n || !l->node) return l;
  }
}

static lm_status leaf_of(lm_pass *r, lm_node *n, lm_leaf_state **out) {
  lm_leaf_state *l = leaf_slot(r->leaf, r->leaf_capacity, n);
  if (!l->node && 2 * (r->nleaves + 1) > r->leaf_capacity) {
    lm_leaf_state *more = lm_calloc((size_t)r->leaf_capacity * 2, sizeof *more);
    if (!more) return LM_E_OOM;
    for (int i = 0; i < r->leaf_capacity; i++) {
      if (r->leaf[i].node) *leaf_slot(more, r->leaf_capacity * 2, r->leaf[i].node) = r->leaf[i];
    }
    if (r->leaf != r->leaf_small) lm_free(r->leaf);
    r->leaf = more;
    r->leaf_capacity *= 2;
    l = leaf_slot(r->leaf, r->leaf_capacity, n);
  }
  if (!l->node) {
    l->node = n;
    l->needed = r->a->ninputs == 0;
    r->nleaves++;
  }
  *out = l;
  return LM_OK;
}

/* ---- finding the nodes */

static lm_status claim(lm_pass *r, lm_node *n) {
  lm_pass *before = NULL;
  if (!atomic_compare_exchange_strong_explicit(&n->run, &before, r, memory_order_acq_rel, memory_order_acquire)) {
    if (before == r) return LM_OK;
    return lm_fail(LM_E_STATE,
                   "%s: cannot run while another backward pass uses this graph, in a hook or on another thread",
                   r->name);
  }
  if (!lm_list_grow_from(r->node_small, &r->node, &r->capacity, (size_t)r->nnodes + 1, sizeof *r->node)) {
    atomic_store_explicit(&n->run, NULL, memory_order_release);
    return LM_E_OOM;
  }
  r->node[r->nnodes++] = n;
  n->waits_for = 0;
  n->queued = false;
  n->needed = n->passes_on = r->a->ninputs == 0;
  r->several_devices |= n->out[0].meta.device != r->node[0]->out[0].meta.device;
  return LM_OK;
}

static lm_status find_nodes(lm_pass *r) {
  lm_leaf_state *leaf;
  for (int i = 0; i < r->a->nroots; i++) {
    lm_node *n = r->edge[i].node;
    NEED(n->kind == LM_NODE_LEAF ? leaf_of(r, n, &leaf) : claim(r, n));
  }
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    for (int k = 0; k < n->nedge; k++) {
      lm_node *to = n->edge[k].node;
      if (!to) continue;
      if (to->kind == LM_NODE_LEAF) {
        NEED(leaf_of(r, to, &leaf));
        leaf->waits_for++;
      } else {
        NEED(claim(r, to));
        to->waits_for++;
      }
    }
  }
  if (r->nnodes > LM_PASS_SMALL) {
    r->ready = lm_malloc(sizeof *r->ready * (size_t)r->nnodes);
    if (!r->ready) {
      r->ready = r->ready_small;
      return LM_E_OOM;
    }
  }
  return LM_OK;
}

static bool is_needed(lm_pass *r, const lm_node *n) {
  return n->kind == LM_NODE_LEAF ? leaf_slot(r->leaf, r->leaf_capacity, n)->needed : n->needed;
}

static int by_number(const void *a, const void *b) {
  const lm_node *m = *(lm_node *const *)a, *n = *(lm_node *const *)b;
  return (m->number > n->number) - (m->number < n->number);
}

static int by_edge(const void *a, const void *b) {
  const lm_pass_input *m = a, *n = b;
  uintptr_t p = (uintptr_t)m->edge.node, q = (uintptr_t)n->edge.node;
  if (p != q) return p < q ? -1 : 1;
  if (m->edge.slot != n->edge.slot) return m->edge.slot < n->edge.slot ? -1 : 1;
  return (m->number > n->number) - (m->number < n->number);
}

/* Marks the nodes between the inputs and the roots; with inputs only these run. */
static lm_status mark_needed(lm_pass *r) {
  if (r->a->ninputs > LM_PASS_SMALL) {
    lm_pass_input *more = lm_malloc(sizeof *more * (size_t)r->a->ninputs);
    if (!more) return LM_E_OOM;
    r->input = more;
  }
  for (int i = 0; i < r->a->ninputs; i++) {
    r->input[i] = (lm_pass_input){r->edge[r->a->nroots + i], i};
    lm_node *n = r->input[i].edge.node;
    if (n->kind != LM_NODE_LEAF) {
      n->needed = atomic_load_explicit(&n->run, memory_order_relaxed) == r;
    } else {
      lm_leaf_state *l = leaf_slot(r->leaf, r->leaf_capacity, n);
      if (l->node) l->needed = true;
    }
  }
  qsort(r->input, (size_t)r->a->ninputs, sizeof *r->input, by_edge);
  qsort(r->node, (size_t)r->nnodes, sizeof *r->node, by_number); /* edges lead to smaller numbers */
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    for (int k = 0; k < n->nedge && !n->passes_on; k++) n->passes_on = n->edge[k].node && is_needed(r, n->edge[k].node);
    n->needed = n->needed || n->passes_on;
  }
  return LM_OK;
}

/* ---- the heap of ready nodes */

static void push_ready(lm_pass *r, lm_node *n) {
  int i = r->nready++;
  n->queued = true;
  while (i > 0 && r->ready[(i - 1) / 2]->number < n->number) {
    r->ready[i] = r->ready[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  r->ready[i] = n;
}

static lm_node *pop_ready(lm_pass *r) {
  lm_node *top = r->ready[0], *last = r->ready[--r->nready];
  int i = 0;
  for (int child; (child = 2 * i + 1) < r->nready; i = child) {
    if (child + 1 < r->nready && r->ready[child + 1]->number > r->ready[child]->number) child++;
    if (r->ready[child]->number <= last->number) break;
    r->ready[i] = r->ready[child];
  }
  r->ready[i] = last;
  return top;
}

/* ---- running nodes */

/* Stores g in `out` for each input of lm.grad that is result `slot` of n. */
static void capture(lm_pass *r, const lm_node *n, int slot, lm_tensor *g) {
  const lm_pass_input wanted = {{(lm_node *)n, slot}, 0};
  int k = 0;
  for (int end = r->a->ninputs; k < end;) { /* binary search for the first that is not smaller */
    int middle = k + (end - k) / 2;
    if (by_edge(&r->input[middle], &wanted) < 0) {
      k = middle + 1;
    } else {
      end = middle;
    }
  }
  for (; k < r->a->ninputs && r->input[k].edge.node == n && r->input[k].edge.slot == slot; k++) {
    lm_tensor **out = &r->out[r->input[k].number];
    if (!*out) *out = lm_retain(g);
  }
}

lm_status lm_pass_finish_leaf(lm_pass *r, lm_leaf_state *l) {
  lm_status status = LM_OK;
  lm_tensor *g = NULL;
  lm_node *n = l->node;
  lm_node_out *o = &n->out[0];
  if (r->parallel) TRY(lm_parallel_pass_collect(r, n, 0, &l->grad));
  g = l->grad;
  l->grad = NULL;
  if (!g || !l->needed) goto done;
  TRY(lm_watch_before(o->watch, &o->meta, &g));
  if (r->a->ninputs > 0) {
    capture(r, n, 0, g);
    goto done;
  }
  status = lm_leaf_accumulate(n, g, r->a->create_graph);
  g = NULL;
  if (status == LM_OK) status = lm_watch_after(o->watch);
done:
  lm_release(g);
  return status;
}

/* Returns a new reference to the leaf's grad_buffer if the edge's next gradient may be computed in it: no other has
 * arrived or is still to come. Else NULL. */
static lm_tensor *grad_buffer_of(lm_pass *r, lm_edge e) {
  if (e.node->kind != LM_NODE_LEAF || r->a->create_graph || r->a->ninputs > 0) return NULL;
  if (!atomic_load_explicit(&e.node->out[0].watch->grad_buffer, memory_order_relaxed)) return NULL;
  const lm_leaf_state *l = leaf_slot(r->leaf, r->leaf_capacity, e.node);
  bool is_free = r->parallel ? lm_parallel_pass_leaf_is_free(r, l) : l->waits_for == 1 && !l->grad;
  return is_free ? lm_leaf_grad_buffer(e.node) : NULL;
}

static lm_status fit(lm_pass *r, lm_edge e, lm_tensor **g) {
  lm_tensor *grad_buffer = grad_buffer_of(r, e);
  if (grad_buffer) lm_tensor_set_next_out(grad_buffer);
  lm_status status = lm_fit_gradient(lm_edge_meta(e), g);
  if (grad_buffer) lm_tensor_set_next_out(NULL);
  lm_release(grad_buffer);
  return status;
}

/* Adds g to the edge's gradient so far, or keeps it for the node's formula to add. */
static lm_status sum_up(lm_pass *r, lm_edge e, lm_tensor **sum, lm_tensor *g) {
  lm_node_out *o = &e.node->out[e.slot];
  bool is_kept = *sum && e.node->kind == LM_NODE_OP && lm_rule_table[e.node->op].arg[0].takes_more && !r->parallel &&
                 !r->a->create_graph && lm_is_ordered(g->device);
  if (!is_kept) return lm_sum_gradient(sum, g, r->a->create_graph);
  lm_tensor *before = o->more;
  o->more = g;
  return before ? lm_sum_gradient(sum, before, false) : LM_OK;
}

/* Adds g, which it takes over, to the gradient of the edge's target; NULL: no gradient. `from`: the node that computed
 * g, and that the target waits for; NULL for a root. */
static lm_status deliver(lm_pass *r, const lm_node *from, lm_edge e, lm_tensor *g) {
  lm_status status = LM_OK;
  lm_leaf_state *leaf = NULL;
  lm_tensor **sum = &e.node->out[e.slot].grad;
  if (e.node->kind == LM_NODE_LEAF) {
    leaf = leaf_slot(r->leaf, r->leaf_capacity, e.node);
    sum = &leaf->grad;
  }
  if (g) {
    TRY(fit(r, e, &g));
    if (r->parallel) TRY(lm_parallel_pass_sum_slot(r, from->device_queue, e, &sum));
    status = sum_up(r, e, sum, g);
    g = NULL;
    if (status != LM_OK) goto done;
  }
  if (!from) goto done;
  bool last = r->parallel ? lm_parallel_pass_arrived(r, from, e.node, leaf)
                          : --*(leaf ? &leaf->waits_for : &e.node->waits_for) == 0;
  if (last && leaf) {
    status = r->parallel ? lm_parallel_pass_finish_leaf(r, leaf) : lm_pass_finish_leaf(r, leaf);
  } else if (last && !r->parallel) {
    push_ready(r, e.node);
  }
done:
  lm_release(g);
  return status;
}

/* Returns in g[nout] the summed gradient of each result, after its hooks; *any: true if one is not NULL. */
static lm_status collect(lm_pass *r, lm_node *n, lm_tensor **g, bool *any) {
  for (int s = 0; s < n->nout; s++) {
    lm_node_out *o = &n->out[s];
    if (r->parallel) NEED(lm_parallel_pass_collect(r, n, s, &o->grad));
    if (o->more && (o->watch || r->a->ninputs > 0)) { /* hooks and lm.grad need the sum */
      lm_tensor *more = o->more;
      o->more = NULL;
      NEED(lm_sum_gradient(&o->grad, more, false));
    }
    g[s] = o->grad;
    o->grad = NULL;
    if (!g[s]) continue;
    *any = true;
    if (o->watch) {
      NEED(lm_watch_before(o->watch, &o->meta, &g[s]));
      if (o->watch->retain) NEED(lm_watch_keep(o->watch, g[s], r->a->create_graph));
    }
    if (r->a->ninputs > 0) capture(r, n, s, g[s]);
  }
  return LM_OK;
}

/* Adds the gradient of a select, narrow or slice to its part of the input's gradient, without a tensor of the input's
 * full size; *added: false if not possible. */
static lm_status add_part(lm_pass *r, lm_node *n, const lm_grad_request *grad_request, lm_tensor *g, bool *added) {
  *added = false;
  bool is_part = n->kind == LM_NODE_OP && (n->op == LM_OP_select || n->op == LM_OP_narrow || n->op == LM_OP_slice);
  if (!is_part || !grad_request[0].wanted || r->parallel || r->a->create_graph || r->anomaly) return LM_OK;
  lm_edge e = n->edge[0];
  bool leaf = e.node->kind == LM_NODE_LEAF;
  lm_tensor *sum = leaf ? leaf_slot(r->leaf, r->leaf_capacity, e.node)->grad : e.node->out[e.slot].grad;
  return lm_sum_part_gradient(n, sum, g, added);
}

/* Computes a node's gradients, traced under the script's line that the node was recorded at. */
static lm_status traced_gradients(lm_pass *r, lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request,
                                  lm_tensor **gin) {
  lm_span span;
  const char *line = lm_script_line(), *name = lm_interned(lm_text("%s backward", lm_node_name(n)));
  if (n->line) lm_set_script_line(n->line);
  lm_span_begin(&span, LM_SPAN_BACKWARD, name ? name : "backward of an op", n->out[0].meta.device);
  lm_status status = lm_node_gradients(n, g, grad_request, r->a->create_graph, gin);
  lm_span_end(&span);
  lm_set_script_line(line);
  return status;
}

lm_status lm_pass_step(lm_pass *r, lm_node *n) {
  lm_status status = LM_OK;
  lm_tensor *small[2 * LM_PASS_SMALL] = {NULL}, **g = small, **gin;
  lm_grad_request grad_request_small[LM_PASS_SMALL], *grad_request = grad_request_small;
  bool any = false, added = false;
  void *big = NULL;
  if (n->nout + n->nedge > 2 * LM_PASS_SMALL || n->nedge > LM_PASS_SMALL) {
    size_t pointers = (size_t)(n->nout + n->nedge);
    big = lm_calloc(1, pointers * sizeof *g + (size_t)n->nedge * sizeof *grad_request);
    if (!big) return LM_E_OOM;
    g = big;
    grad_request = (lm_grad_request *)(g + pointers);
  }
  gin = g + n->nout;
  TRY(collect(r, n, g, &any));
  if (!n->passes_on) goto done;
  for (int k = 0; k < n->nedge; k++) {
    grad_request[k].wanted = n->edge[k].node && is_needed(r, n->edge[k].node);
    grad_request[k].grad_buffer =
        any && grad_request[k].wanted && n->kind == LM_NODE_OP ? grad_buffer_of(r, n->edge[k]) : NULL;
  }
  if (any) {
    status = add_part(r, n, grad_request, g[0], &added);
    if (status == LM_OK && !added) {
      status = lm_traces(LM_TRACE_CALLS) ? traced_gradients(r, n, g, grad_request, gin)
                                         : lm_node_gradients(n, g, grad_request, r->a->create_graph, gin);
    }
    for (int k = 0; k < n->nedge; k++) lm_release(grad_request[k].grad_buffer);
    if (status == LM_OK && r->anomaly)
      status = lm_anomaly_check(n, g, gin);
    else if (status != LM_OK)
      status = lm_anomaly_words(n, status);
    if (status != LM_OK) goto done;
    for (int s = 0; s < n->nout; s++) { /* first, so that the receiver may write in place */
      lm_release(g[s]);
      lm_release(n->out[s].more);
      g[s] = n->out[s].more = NULL;
    }
    if (!r->a->retain_graph) lm_node_free_saved(n);
  }
  for (int k = 0; k < n->nedge; k++) {
    if (!grad_request[k].wanted) continue;
    lm_tensor *mine = gin[k];
    gin[k] = NULL;
    status = deliver(r, n, n->edge[k], mine);
    if (status == LM_OK) continue;
    if (status != LM_E_LUA && status != LM_E_OOM && n->kind == LM_NODE_CUSTOM) lm_fail_in(status, lm_node_name(n));
    goto done;
  }
done:
  for (int i = 0; i < n->nout + n->nedge; i++) lm_release(g[i]);
  lm_free(big);
  return status;
}

/* ---- parts that together cover a tensor */

/* Returns true if the node selects [*from, *to) of its input in dim *dim, counted from 0. */
static bool takes_range(const lm_node *n, int *dim, int64_t *from, int64_t *to) {
  if (n->kind != LM_NODE_OP || (n->op != LM_OP_select && n->op != LM_OP_narrow) || !n->edge[0].node) return false;
  const lm_select_args *select = n->payload;
  const lm_narrow_args *narrow = n->payload;
  const bool one = n->op == LM_OP_select;
  const lm_meta *whole = lm_edge_meta(n->edge[0]);
  if (lm_dim(lm_ops[n->op].name, one ? select->dim : narrow->dim, whole->ndim, dim) != LM_OK) return false;
  int64_t first = one ? select->index : narrow->start;
  *from = first < 0 ? first + whole->size[*dim] : first - 1;
  *to = *from + (one ? 1 : narrow->length);
  return true;
}

/* Takes the parts before `last` from the ready nodes: part[*n], the last first. *n = 0 if a part is missing. */
static void take_parts(lm_pass *r, lm_node *last, lm_node **part, int *n, int *dim) {
  int64_t from, to;
  *n = 0;
  if (!last->passes_on || !takes_range(last, dim, &from, &to)) return;
  lm_edge e = last->edge[0];
  part[(*n)++] = last;
  bool fits = to == lm_edge_meta(e)->size[*dim] && last->out[0].grad;
  while (fits && from > 0 && *n < LM_PASS_SMALL && r->nready > 0) {
    lm_node *next = r->ready[0];
    int next_dim;
    int64_t next_from, next_to;
    fits = next->op == last->op && takes_range(next, &next_dim, &next_from, &next_to) && next->edge[0].node == e.node &&
           next->edge[0].slot == e.slot && next_dim == *dim && next_to == from && next->out[0].grad;
    if (!fits) break;
    part[(*n)++] = pop_ready(r);
    from = next_from;
  }
  if (fits && from == 0 && *n > 1) return;
  while (*n > 1) push_ready(r, part[--*n]);
  *n = 0;
}

/* Concatenates the gradients of the parts that chunk, split or unbind made. *done: false, and nothing was done, if n is
 * not the last of such parts. */
static lm_status step_parts(lm_pass *r, lm_node *node, bool *done) {
  lm_status status = LM_OK;
  lm_node *part[LM_PASS_SMALL];
  lm_tensor *g[LM_PASS_SMALL] = {NULL}, *sum = NULL;
  int n = 0, dim = 0;
  bool any;
  if (!r->a->create_graph && !r->anomaly) take_parts(r, node, part, &n, &dim);
  *done = n > 0;
  for (int k = 0; k < n; k++) TRY(collect(r, part[k], &g[n - 1 - k], &any));
  if (n > 0) {
    const lm_list list = {n, g};
    TRY(node->op == LM_OP_select ? lm_call(LM_OP_stack, &(lm_stack_args){list, dim}, &sum)
                                 : lm_call(LM_OP_cat, &(lm_cat_args){list, dim}, &sum));
  }
  for (int k = 0; k < n; k++) {
    lm_tensor *mine = sum;
    sum = NULL;
    if (!r->a->retain_graph) lm_node_free_saved(part[k]);
    TRY(deliver(r, part[k], node->edge[0], mine));
  }
done:
  lm_release(sum);
  for (int k = 0; k < n; k++) lm_release(g[k]);
  return status;
}

static lm_status step(lm_pass *r, lm_node *n) {
  bool done;
  NEED(step_parts(r, n, &done));
  return done ? LM_OK : lm_pass_step(r, n);
}

/* ---- the pass */

static lm_status root_gradient(const lm_pass *r, int i, lm_tensor **out) {
  const lm_tensor *root = r->a->roots[i];
  lm_tensor *given = r->a->grads ? r->a->grads[i] : NULL;
  if (given) {
    if (!lm_same_shape(given, root)) {
      return lm_fail_shapes(r->name, "gradient", lm_shape_of(given), "the tensor", lm_shape_of(root));
    }
    *out = lm_retain(given);
    return LM_OK;
  }
  if (root->numel != 1) {
    return lm_remedy(lm_fail_value(r->name, "the tensor", "one element where no gradient is given", lm_shape_of(root)),
                     "reduce it with :sum() or :mean(), or pass a gradient of its shape");
  }
  return lm_op_run(LM_OP_ones_like,
                   &(lm_ones_like_args){.x = r->a->roots[i], .dtype = LM_NO_DTYPE, .device = LM_NO_DEVICE}, out);
}

static lm_status take_edges(lm_pass *r) {
  const lm_backward_args *a = r->a;
  if (a->nroots + a->ninputs > LM_PASS_SMALL) {
    lm_edge *more = lm_malloc(sizeof *more * (size_t)(a->nroots + a->ninputs));
    if (!more) return LM_E_OOM;
    r->edge = more;
  }
  for (int i = 0; i < a->nroots + a->ninputs; i++) {
    lm_edge e;
    NEED(lm_history(i < a->nroots ? a->roots[i] : a->inputs[i - a->nroots], &e));
    if (!e.node && i < a->nroots) {
      return lm_fail(
          LM_E_STATE,
          "%s: the tensor does not require grad; none of its inputs does, or it was made within no_grad or detached",
          r->name);
    }
    if (!e.node)
      return lm_fail_value(r->name, lm_text("inputs[%d]", i - a->nroots + 1), "a tensor that requires grad",
                           "one that does not");
    r->edge[r->nedges++] = (lm_edge){lm_node_retain(e.node), e.slot};
  }
  return LM_OK;
}

static lm_status go(lm_pass *r) {
  lm_status status = LM_OK;
  const lm_backward_args *a = r->a;
  lm_tensor *g = NULL;
  TRY(take_edges(r));
  TRY(find_nodes(r));
  if (a->ninputs > 0) TRY(mark_needed(r));
  for (int i = 0; i < a->nroots; i++) {
    TRY(root_gradient(r, i, &g));
    status = deliver(r, NULL, r->edge[i], g);
    g = NULL;
    if (status != LM_OK) goto done;
  }
  for (int i = 0; i < a->nroots; i++) {
    lm_node *n = r->edge[i].node;
    if (n->kind == LM_NODE_LEAF) {
      lm_leaf_state *l = leaf_slot(r->leaf, r->leaf_capacity, n);
      if (l->waits_for == 0) TRY(lm_pass_finish_leaf(r, l));
    } else if (n->waits_for == 0 && n->needed && !n->queued) {
      push_ready(r, n);
    }
  }
  if (!r->several_devices || !lm_backward_run_parallel(r, &status)) {
    while (r->nready > 0) TRY(step(r, pop_ready(r)));
  }
  if (status != LM_OK) goto done;
  for (int i = 0; i < a->ninputs && !a->allow_unused; i++) {
    if (r->out[i]) continue;
    return lm_fail(LM_E_STATE,
                   "%s: inputs[%d] was not used to make the outputs; pass {allow_unused = true} for a gradient of nil",
                   r->name, i + 1);
  }
done:
  return status;
}

/* ---- calls by hooks of the running pass */

lm_status lm_backward_finally(lm_hook hook) {
  lm_status status = LM_OK;
  lm_pass *r = innermost;
  lm_finally *f = NULL;
  if (!r) TRY(lm_fail(LM_E_STATE, "backward: cannot add a callback outside of a backward pass"));
  while (r->outer) r = r->outer;
  f = lm_malloc(sizeof *f);
  if (!f) TRY(LM_E_OOM);
  *f = (lm_finally){.hook = hook};
  *r->last_finally = f;
  r->last_finally = &f->next;
done:
  if (status != LM_OK && hook.release) hook.release(hook.ctx);
  return status;
}

bool lm_backward_reaches(const lm_tensor *leaf) {
  const lm_node *n = leaf->grad ? leaf->grad->node : NULL;
  for (lm_pass *r = innermost; n && r; r = r->outer) {
    const lm_leaf_state *l = leaf_slot(r->leaf, r->leaf_capacity, n);
    if (l->node && l->needed) return true;
  }
  return false;
}

static lm_status run_nodes(lm_finally *f, lm_status status) {
  while (f) {
    lm_finally *next = f->next;
    lm_tensor *unused = NULL;
    if (status == LM_OK) status = f->hook.fn(f->hook.ctx, NULL, &unused);
    lm_release(unused);
    if (f->hook.release) f->hook.release(f->hook.ctx);
    lm_free(f);
    f = next;
  }
  return status;
}

lm_status lm_backward(const lm_backward_args *a, lm_tensor **out) {
  lm_pass r;
  memset(&r, 0, offsetof(lm_pass, edge_small));
  r.outer = innermost;
  r.last_finally = &r.finally;
  r.a = a;
  r.out = out;
  r.name = a->ninputs > 0 ? "grad" : "backward";
  r.anomaly = lm_anomaly();
  r.edge = r.edge_small;
  r.input = r.input_small;
  r.nnodes = r.nready = r.nleaves = 0;
  r.node = r.node_small;
  r.ready = r.ready_small;
  r.capacity = r.leaf_capacity = LM_PASS_SMALL;
  r.leaf = r.leaf_small;
  memset(r.leaf_small, 0, sizeof r.leaf_small);
  for (int i = 0; i < a->ninputs; i++) out[i] = NULL;

  lm_modes during = {.no_grad = !a->create_graph}, before = lm_modes_swap(during);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_BACKWARD, r.name, LM_NO_DEVICE);
  innermost = &r;
  lm_status status = go(&r);
  innermost = r.outer;
  end_run(&r);
  status = run_nodes(r.finally, status);
  if (traced) lm_span_end(&span);
  lm_modes_swap(before);
  if (status != LM_OK) {
    for (int i = 0; i < a->ninputs; i++) {
      lm_release(out[i]);
      out[i] = NULL;
    }
  }
  return status;
}
