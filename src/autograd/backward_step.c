/* Runs one node of a backward pass: sums up its gradients, computes those of its inputs and adds each to the sums of
 * the node or leaf that made the input. */
#include "autograd/backward_pass.h"
#include "base/interned.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/recorder.h"
#include "op/op_recorder.h"
#include "op/stream_order.h"
#include "op_entries.h"

/* ---- inputs of lm.grad */

int lm_pass_compare_inputs(const void *a, const void *b) {
  const lm_pass_input *m = a, *n = b;
  uintptr_t p = (uintptr_t)m->edge.node, q = (uintptr_t)n->edge.node;
  if (p != q) return p < q ? -1 : 1;
  if (m->edge.slot != n->edge.slot) return m->edge.slot < n->edge.slot ? -1 : 1;
  return (m->number > n->number) - (m->number < n->number);
}

/* ---- the heap of ready nodes */

void lm_pass_push_ready(lm_pass *r, lm_node *n) {
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
    if (lm_pass_compare_inputs(&r->input[middle], &wanted) < 0) {
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

/* Returns the recorder, which records nothing until lm_recorder_end, if it takes a leaf's gradient; else NULL. */
static lm_op_recorder *give_to_recorder(const lm_pass *r, const lm_node *leaf, lm_tensor *g) {
  lm_op_recorder *recorder = r->a->ninputs > 0 ? NULL : lm_recorder_begin();
  if (!recorder || recorder->leaf(recorder, leaf, g)) return recorder;
  lm_recorder_end(recorder);
  return NULL;
}

lm_status lm_pass_finish_leaf(lm_pass *r, lm_leaf_state *l) {
  lm_status status = LM_OK;
  lm_tensor *g = NULL;
  lm_op_recorder *recorder = NULL;
  lm_node *n = l->node;
  lm_node_out *o = &n->out[0];
  if (r->parallel) TRY(lm_parallel_pass_collect(r, n, 0, &l->grad));
  g = l->grad;
  l->grad = NULL;
  recorder = give_to_recorder(r, n, g);
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
  lm_recorder_end(recorder);
  lm_release(g);
  return status;
}

/* Returns a new reference to the leaf's grad_buffer if the edge's next gradient may be computed in it: no other has
 * arrived or is still to come. Else NULL. */
static lm_tensor *grad_buffer_of(lm_pass *r, lm_edge e) {
  if (e.node->kind != LM_NODE_LEAF || r->a->create_graph || r->a->ninputs > 0 || lm_ops_recorded) return NULL;
  if (!atomic_load_explicit(&e.node->out[0].watch->grad_buffer, memory_order_relaxed)) return NULL;
  const lm_leaf_state *l = lm_pass_leaf(r, e.node);
  bool is_free = r->parallel ? lm_parallel_pass_leaf_is_free(r, l) : l->waits_for == 1 && !l->grad;
  return is_free ? lm_leaf_grad_buffer(e.node) : NULL;
}

static lm_status fit_edge_gradient(lm_pass *r, lm_edge e, lm_tensor **g) {
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

lm_status lm_pass_deliver(lm_pass *r, const lm_node *from, lm_edge e, lm_tensor *g) {
  lm_status status = LM_OK;
  lm_leaf_state *leaf = NULL;
  lm_tensor **sum = &e.node->out[e.slot].grad;
  if (e.node->kind == LM_NODE_LEAF) {
    leaf = lm_pass_leaf(r, e.node);
    sum = &leaf->grad;
  }
  if (g) {
    TRY(fit_edge_gradient(r, e, &g));
    if (r->parallel) TRY(lm_parallel_pass_sum_slot(r, from->device_queue, e, &sum));
    status = sum_up(r, e, sum, g);
    g = NULL;
    if (status != LM_OK) goto done;
  }
  if (!from) goto done;
  bool last = r->parallel ? lm_parallel_pass_arrived(r, from, e.node, leaf)
                          : --*(leaf ? &leaf->waits_for : &e.node->waits_for) == 0;
  if (last && leaf) {
    bool queued = false;
    if (r->parallel) status = lm_parallel_pass_queue_leaf(r, leaf, &queued);
    if (!queued) status = lm_pass_finish_leaf(r, leaf);
  } else if (last && !r->parallel) {
    lm_pass_push_ready(r, e.node);
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
  lm_tensor *sum = leaf ? lm_pass_leaf(r, e.node)->grad : e.node->out[e.slot].grad;
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
    grad_request[k].wanted = n->edge[k].node && lm_pass_is_needed(r, n->edge[k].node);
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
    lm_tensor *g_in = gin[k];
    gin[k] = NULL;
    status = lm_pass_deliver(r, n, n->edge[k], g_in);
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
  while (*n > 1) lm_pass_push_ready(r, part[--*n]);
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
    lm_tensor *whole = sum;
    sum = NULL;
    if (!r->a->retain_graph) lm_node_free_saved(part[k]);
    TRY(lm_pass_deliver(r, part[k], node->edge[0], whole));
  }
done:
  lm_release(sum);
  for (int k = 0; k < n; k++) lm_release(g[k]);
  return status;
}

lm_status lm_pass_step_ready(lm_pass *r) {
  lm_node *n = pop_ready(r);
  bool done;
  NEED(step_parts(r, n, &done));
  return done ? LM_OK : lm_pass_step(r, n);
}
