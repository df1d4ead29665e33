/* Runs the backward pass. It claims every node that the roots lead to and counts the gradients that each will get. Then
 * it runs nodes whose gradients are complete, the latest recorded first, so that memory is freed in reverse order of
 * allocation. Nothing recurses. Graphs of other threads may share leaves, so a pass keeps their state in a table of its
 * own; any other node serves one pass at a time. */
#include <stdlib.h>
#include <string.h>

#include "autograd/backward_pass.h"
#include "autograd/follow.h"
#include "autograd/tape.h"
#include "base/mem.h"
#include "base/message.h"
#include "device/recorder.h"
#include "op/op_recorder.h"
#include "op_entries.h"

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

static lm_status find_or_add_leaf(lm_pass *r, lm_node *n, lm_leaf_state **out) {
  lm_leaf_state *l = lm_pass_leaf(r, n);
  if (!l->node && 2 * (r->nleaves + 1) > r->leaf_capacity) {
    lm_leaf_state *more = lm_calloc((size_t)r->leaf_capacity * 2, sizeof *more);
    if (!more) return LM_E_OOM;
    for (int i = 0; i < r->leaf_capacity; i++) {
      if (r->leaf[i].node) *lm_leaf_slot(more, r->leaf_capacity * 2, r->leaf[i].node) = r->leaf[i];
    }
    if (r->leaf != r->leaf_small) lm_free(r->leaf);
    r->leaf = more;
    r->leaf_capacity *= 2;
    l = lm_pass_leaf(r, n);
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
    NEED(n->kind == LM_NODE_LEAF ? find_or_add_leaf(r, n, &leaf) : claim(r, n));
  }
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    for (int k = 0; k < n->nedge; k++) {
      lm_node *to = n->edge[k].node;
      if (!to) continue;
      if (to->kind == LM_NODE_LEAF) {
        NEED(find_or_add_leaf(r, to, &leaf));
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

static int by_number(const void *a, const void *b) {
  const lm_node *m = *(lm_node *const *)a, *n = *(lm_node *const *)b;
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
      lm_leaf_state *l = lm_pass_leaf(r, n);
      if (l->node) l->needed = true;
    }
  }
  qsort(r->input, (size_t)r->a->ninputs, sizeof *r->input, lm_pass_compare_inputs);
  qsort(r->node, (size_t)r->nnodes, sizeof *r->node, by_number); /* edges lead to smaller numbers */
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    for (int k = 0; k < n->nedge && !n->passes_on; k++)
      n->passes_on = n->edge[k].node && lm_pass_is_needed(r, n->edge[k].node);
    n->needed = n->needed || n->passes_on;
  }
  return LM_OK;
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

static lm_status run_backward_pass(lm_pass *r) {
  lm_status status = LM_OK;
  const lm_backward_args *a = r->a;
  NEED(take_edges(r));
  NEED(find_nodes(r));
  if (a->ninputs > 0) NEED(mark_needed(r));
  for (int i = 0; i < r->leaf_capacity && a->ninputs == 0; i++) {
    if (r->leaf[i].node) NEED(lm_watch_begin(r->leaf[i].node->out[0].watch, a->create_graph));
  }
  for (int i = 0; i < a->nroots; i++) {
    lm_tensor *g = NULL;
    NEED(root_gradient(r, i, &g));
    NEED(lm_pass_deliver(r, NULL, r->edge[i], g));
  }
  for (int i = 0; i < a->nroots; i++) {
    lm_node *n = r->edge[i].node;
    if (n->kind == LM_NODE_LEAF) {
      lm_leaf_state *l = lm_pass_leaf(r, n);
      if (l->waits_for == 0) NEED(lm_pass_finish_leaf(r, l));
    } else if (n->waits_for == 0 && n->needed && !n->queued) {
      lm_pass_push_ready(r, n);
    }
  }
  if (!r->several_devices || !lm_backward_run_parallel(r, &status)) {
    while (r->nready > 0) NEED(lm_pass_step_ready(r));
  }
  NEED(status);
  for (int i = 0; i < a->ninputs && !a->allow_unused; i++) {
    if (r->out[i]) continue;
    return lm_fail(LM_E_STATE,
                   "%s: inputs[%d] was not used to make the outputs; pass {allow_unused = true} for a gradient of nil",
                   r->name, i + 1);
  }
  return LM_OK;
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
    const lm_leaf_state *l = lm_pass_leaf(r, n);
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

static void begin_run(lm_pass *r, const lm_backward_args *a, lm_tensor **out) {
  memset(r, 0, offsetof(lm_pass, edge_small));
  r->outer = innermost;
  r->last_finally = &r->finally;
  r->a = a;
  r->out = out;
  r->name = a->ninputs > 0 ? "grad" : "backward";
  r->anomaly = lm_anomaly();
  r->edge = r->edge_small;
  r->input = r->input_small;
  r->nnodes = r->nready = r->nleaves = 0;
  r->node = r->node_small;
  r->ready = r->ready_small;
  r->capacity = r->leaf_capacity = LM_PASS_SMALL;
  r->leaf = r->leaf_small;
  memset(r->leaf_small, 0, sizeof r->leaf_small);
}

lm_status lm_backward(const lm_backward_args *a, lm_tensor **out) {
  lm_pass r;
  begin_run(&r, a, out);
  lm_tape_note_call(r.name);
  for (int i = 0; i < a->ninputs; i++) out[i] = NULL;

  lm_modes during = {.no_grad = !a->create_graph}, before = lm_modes_swap(during);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_BACKWARD, r.name, LM_NO_DEVICE);
  innermost = &r;
  lm_status status = run_backward_pass(&r);
  innermost = r.outer;
  end_run(&r);
  lm_op_recorder *recorder = lm_recorder_begin();
  status = run_nodes(r.finally, status);
  lm_recorder_end(recorder);
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

lm_status lm_backward_by_script(const lm_backward_args *a, lm_tensor **out) {
  lm_follower *f = lm_modes_here.tape ? NULL : lm_modes_here.follower;
  if (!f) return lm_backward(a, out);
  if (a->ninputs == 0 && !a->create_graph) return f->backward(f, a);
  NEED(f->leave(f));
  return lm_backward(a, out);
}

/* ---- gradients from elsewhere */

static const lm_backward_args of_delivery = {0};

lm_status lm_delivery_begin(int n, lm_tensor *const *leaf, lm_pass **out) {
  lm_pass *r = *out = lm_malloc(sizeof *r);
  lm_status status = LM_OK;
  lm_leaf_state *state;
  if (!r) return LM_E_OOM;
  begin_run(r, &of_delivery, NULL);
  innermost = r;
  for (int i = 0; i < n && status == LM_OK; i++) status = find_or_add_leaf(r, leaf[i]->grad->node, &state);
  const lm_modes before = lm_modes_swap((lm_modes){.no_grad = true});
  for (int i = 0; i < n && status == LM_OK; i++) status = lm_watch_begin(leaf[i]->grad->node->out[0].watch, false);
  lm_modes_swap(before);
  return status;
}

lm_status lm_deliver_gradient(lm_pass *r, const lm_tensor *leaf, lm_tensor *g) {
  const lm_modes before = lm_modes_swap((lm_modes){.no_grad = true});
  lm_leaf_state *state = lm_pass_leaf(r, leaf->grad->node);
  state->grad = g;
  lm_status status = lm_pass_finish_leaf(r, state);
  lm_modes_swap(before);
  return status;
}

lm_status lm_delivery_end(lm_pass *r, lm_status status) {
  if (!r) return status;
  const lm_modes before = lm_modes_swap((lm_modes){.no_grad = true});
  innermost = r->outer;
  end_run(r);
  status = run_nodes(r->finally, status);
  lm_modes_swap(before);
  lm_free(r);
  return status;
}
