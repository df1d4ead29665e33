/* Computes the gradients of one node's inputs from those of its results. */
#include <string.h>

#include "autograd/formulas.h"
#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "base/mem.h"
#include "base/message.h"
#include "op/check.h"
#include "op/op_recorder.h"
#include "op_entries.h"

/* ---- checks of saved tensors: not freed, and unchanged */

static lm_status changed(const lm_node *n, const lm_tensor *t, uint32_t expected) {
  int id = atomic_load_explicit(&t->storage->writer, memory_order_relaxed);
  const char *suffix = "", *writer = id == LM_BY_COLLECTIVE ? "a collective"
                                     : id == LM_BY_SET_DATA ? "resize_, set_ or an assignment to .data"
                                                            : "an optimizer's step";
  if (id >= 0 && id < LM_OP_COUNT) {
    writer = lm_ops[id].name;
    suffix = lm_ops[id].kind == LM_POINTWISE ? "_" : "";
  }
  return lm_fail(LM_E_STATE,
                 "backward: %s needs its saved tensor of %s %s, but %s%s changed it in place (version %u, expected "
                 "%u); clone() it before the write",
                 lm_node_name(n), lm_dtype_name(t->dtype), lm_shape_of(t), writer, suffix, lm_version(t), expected);
}

static lm_status check_version(const lm_node *n, const lm_tensor *t, uint32_t expected) {
  return !t || lm_version(t) == expected ? LM_OK : changed(n, t, expected);
}

static lm_status check_saved(const lm_node *n) {
  if (n->saved_freed) {
    const char *name = n->kind == LM_NODE_FREED ? ((const lm_freed_state *)n->payload)->freed : lm_node_name(n);
    return lm_remedy(lm_fail_freed(name), "detach() a state that is carried from step to step");
  }
  if (!n->saves) return LM_OK;
  if (n->kind == LM_NODE_CUSTOM) {
    const lm_custom_state *c = n->payload;
    for (int i = 0; i < c->nsaved; i++) NEED(check_version(n, c->saved[i], c->version[i]));
  }
  if (n->kind == LM_NODE_OP) {
    const lm_op *op = &lm_ops[n->op];
    for (int k = 0; k < op->ntensor; k++) {
      NEED(check_version(n, LM_ARG_TENSOR(n->payload, op->tensor[k]), n->version[k]));
    }
    for (int i = 0; i < LM_MAX_OUTS; i++) NEED(check_version(n, n->result[i], n->result_version[i]));
    if (op->list >= 0) {
      const lm_list *list = (const lm_list *)((const char *)n->payload + op->list);
      for (int i = 0; list->v && i < list->n; i++) NEED(check_version(n, list->v[i], n->list_version[i]));
    }
  }
  return LM_OK;
}

/* ---- formulas */

/* Arguments and results for create_graph: saved tensors have their history again, results that of the node itself. Lua
 * numbers have the gradient's precision, since ops on numbers alone would compute in the default dtype. */
typedef struct unpacked {
  lm_args_union args;
  lm_tensor *y[LM_MAX_OUTS];
} unpacked;

static lm_status unpack(lm_node *n, lm_dtype dtype, lm_expr *e, unpacked *u) {
  const lm_op *op = &lm_ops[n->op];
  for (int k = 0; k < op->ntensor; k++) {
    lm_tensor **t = &LM_ARG_TENSOR(&u->args, op->tensor[k]);
    if (*t && (*t)->number) {
      lm_full_args full = {.value = *t, .dtype = dtype, .device = LM_DEVICE(LM_CPU, 0)};
      lm_tensor *exact;
      NEED(lm_op_run(LM_OP_full, &full, &exact));
      if (!(*t = lm_e_own(e, exact))) NEED(LM_E_OOM);
    } else if (*t && !(*t)->number) {
      NEED(lm_attach(*t, n->edge[k]));
    }
  }
  for (int i = 0; i < LM_MAX_OUTS; i++) {
    u->y[i] = n->result[i];
    if (!n->result[i] || i >= op->outs || !lm_dtype_is_float(n->result[i]->dtype)) continue;
    lm_tensor *y;
    NEED(lm_alias(n->result[i], &y));
    if (!(u->y[i] = lm_e_own(e, y))) NEED(LM_E_OOM);
    NEED(lm_attach(y, (lm_edge){n, i}));
  }
  return LM_OK;
}

/* Computes a rule's rounded results y again, in float32, if the arguments are saved too: what rounding lost may be
 * large beside a gradient. */
static lm_status widen_results(lm_rule *r, lm_tensor **y) {
  const lm_op *op = &lm_ops[r->op];
  bool has_args = op->aux == 0, has_results = false;
  for (int k = 0; k < op->ntensor; k++) {
    has_args = has_args && (LM_ARG_TENSOR(r->args, op->tensor[k]) || !lm_rule_given(r, k));
  }
  for (int i = 0; i < LM_MAX_OUTS; i++) has_results = has_results || y[i];
  if (has_args && has_results && lm_e_run(&r->e, r->op, r->args)) memcpy(y, r->e.last, op->outs * sizeof *y);
  return r->e.status;
}

static const lm_meta *argument_meta(lm_rule *r, int k) {
  static const lm_meta none;
  lm_edge e = k < r->node->nedge ? r->node->edge[k] : (lm_edge){NULL, 0};
  if (e.node) return lm_edge_meta(e);
  lm_e_ok(&r->e, lm_fail(LM_E_STATE, "%s: cannot compute the gradient without saved sizes", lm_ops[r->op].name));
  return &none;
}

lm_ints lm_rule_size(lm_rule *r, int k) {
  const lm_meta *meta = argument_meta(r, k);
  lm_ints size = {.n = meta->ndim};
  memcpy(size.v, meta->size, sizeof size.v);
  return size;
}

bool lm_rule_is_transposed(lm_rule *r, int k) { return argument_meta(r, k)->transposed; }

/* Runs the row's fused kernel instead of its ops. in_place: g is not needed later, and is written if nobody else holds
 * it. */
static lm_status fused(const lm_node *n, const lm_row *row, lm_tensor *g, bool in_place, lm_tensor **out) {
  const lm_op *op = &lm_ops[n->op];
  lm_tensor *in[LM_MAX_TENSOR_ARGS + 2];
  double number[LM_POINTWISE_MAX_NUMBERS];
  int nin = 0;
  if (!g) return LM_OK;
  if (row->reads >> LM_READS_G & 1) in[nin++] = g;
  for (int k = 0; k < op->ntensor; k++) {
    if (row->reads >> (k + 1) & 1) in[nin++] = LM_ARG_TENSOR(n->payload, op->tensor[k]);
  }
  if (row->reads >> LM_READS_Y & 1) in[nin++] = n->result[0];
  for (int i = 0; i < op->nnumber; i++) {
    number[i] = *(const double *)((const char *)n->payload + op->arg[op->ntensor + i].offset);
  }
  in_place = in_place && in[0] == g && !lm_ops_recorded && lm_gradient_take(g); /* recorded steps have plans */
  return lm_pointwise_run(row->kernel, nin, in, op->nnumber ? number : NULL, in_place ? g : NULL, out);
}

static lm_status op_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request, bool create_graph,
                              lm_tensor **gin) {
  lm_status status = LM_OK;
  const lm_op *op = &lm_ops[n->op];
  const lm_rules *rules = &lm_rule_table[n->op];
  unpacked u;
  lm_rule r = {.op = (lm_op_id)n->op, .args = n->payload, .node = n, .g = g, .y = n->result};
  const lm_dtype own = (lm_dtype)n->out[0].meta.dtype;
  const bool half = lm_dtype_is_half(own) && (op->widens || (create_graph && op->kind == LM_POINTWISE));
  bool joint = false, wide = half || n->widens;
  int last = n->nedge - 1; /* the last edge that needs a gradient */
  lm_tensor *parts[LM_MAX_OUTS] = {NULL};
  const lm_autocast mode = wide ? lm_widen_begin() : lm_autocast_get();
  lm_expr_begin(&r.e);
  if (create_graph || wide) {
    memcpy(&u.args, n->payload, op->size);
    memcpy(u.y, n->result, sizeof u.y);
    r.args = &u.args;
    r.y = u.y;
  }
  if (create_graph) TRY(unpack(n, wide ? LM_F32 : own, &r.e, &u));
  if (half) TRY(widen_results(&r, u.y));
  while (last > 0 && !grad_request[last].wanted) last--;
  for (int k = 0; k < n->nedge; k++) {
    const lm_row *row = k < op->ntensor ? &rules->arg[k] : &rules->list;
    lm_tensor *result = NULL;
    if (!grad_request[k].wanted) continue;
    lm_tensor_set_next_out(row->kind == LM_RULE_JOINT || wide ? NULL : grad_request[k].grad_buffer); /* several ops */
    if (row->kind == LM_RULE_POINTWISE && !create_graph) {
      const bool in_place = k == last && !wide && !grad_request[k].grad_buffer && !lm_anomaly();
      TRY(fused(n, row, g[0], in_place, &gin[k]));
      continue;
    }
    if (row->kind == LM_RULE_JOINT) {
      if (!joint && row->fn(&r)) memcpy(parts, r.e.last, sizeof parts);
      joint = true;
      result = parts[row->part];
    } else {
      r.at = k - op->ntensor;
      result = row->fn(&r);
    }
    TRY(r.e.status);
    gin[k] = lm_retain(result);
  }
done:
  lm_tensor_set_next_out(NULL);
  lm_expr_end(&r.e);
  if (wide) lm_autocast_set(mode);
  return status;
}

static lm_status custom_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request,
                                  lm_tensor **gin) {
  const lm_custom_state *c = n->payload;
  lm_status status = c->fn(c->ctx, n->nout, g, n->nedge, gin);
  for (int k = 0; k < n->nedge; k++) {
    if (grad_request[k].wanted) continue;
    lm_release(gin[k]);
    gin[k] = NULL;
  }
  return status;
}

static lm_status compute_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request,
                                   bool create_graph, lm_tensor **gin) {
  NEED(check_saved(n));
  switch ((lm_node_kind)n->kind) {
    case LM_NODE_OP: NEED(op_gradients(n, g, grad_request, create_graph, gin)); break;
    case LM_NODE_CUSTOM: NEED(custom_gradients(n, g, grad_request, gin)); break;
    default: NEED(lm_view_geometry_backward(n, g[0], gin)); break;
  }
  return LM_OK;
}

/* Computes the gradients with memory in place of saved placeholders, which then replace it again. */
static lm_status compute_fetched(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request,
                                 bool create_graph, lm_tensor **gin) {
  lm_status status = LM_OK;
  lm_tensor **slot;
  int count = 0;
  while (lm_node_saved(n, count)) count++;
  lm_tensor **was = lm_calloc((size_t)count, sizeof *was);
  if (!was) return LM_E_OOM;
  for (int i = 0; i < count; i++) {
    slot = lm_node_saved(n, i);
    if (!*slot || !lm_is_placeholder(*slot)) continue;
    lm_tensor *fetched;
    TRY(lm_tensor_fetch_source(*slot, &fetched));
    was[i] = *slot;
    *slot = fetched;
  }
  status = compute_gradients(n, g, grad_request, create_graph, gin);
done:
  for (int i = 0; i < count; i++) {
    if (!was[i]) continue;
    slot = lm_node_saved(n, i);
    lm_release(*slot);
    *slot = was[i];
  }
  lm_free(was);
  return status;
}

lm_status lm_node_gradients(lm_node *n, lm_tensor *const *g, const lm_grad_request *grad_request, bool create_graph,
                            lm_tensor **gin) {
  if (n->needs_recompute) NEED(lm_recompute_run(n));
  return n->fetches && !n->saved_freed ? compute_fetched(n, g, grad_request, create_graph, gin)
                                       : compute_gradients(n, g, grad_request, create_graph, gin);
}
