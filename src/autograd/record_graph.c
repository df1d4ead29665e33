/* Records op calls as nodes. All steps that can fail come before the op runs, since some ops change their arguments
 * (in-place writes, running statistics); only headers that save visible results come after it. */
#include "autograd/record_graph.h"

#include <string.h>

#include "autograd/composite.h"
#include "op_entries.h"

lm_status lm_run_unrecorded(lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  return in_place ? lm_op_run_inplace(id, args, out) : lm_op_run_visible(id, args, out);
}

/* ---- finding which inputs of a call require grad, and which tensors must be saved */

typedef struct input_scan {
  lm_edge edge[LM_MAX_TENSOR_ARGS]; /* borrowed */
  bool any;                         /* true if an input requires grad */
  lm_touched touched;               /* tensors that the formulas need saved */
} input_scan;

static void add_touched(lm_touched *all, lm_touched more) {
  all->args |= more.args;
  all->results |= more.results;
  all->list = all->list || more.list;
}

static const char *argument_name(const lm_op *op, int k) {
  for (int i = 0; i < op->nargs; i++) {
    if (op->arg[i].offset == op->tensor[k]) return op->arg[i].name;
  }
  return "x";
}

static lm_status scan_inputs(lm_op_id id, const void *args, input_scan *s) {
  const lm_op *op = &lm_ops[id];
  const lm_rules *rules = &lm_rule_table[id];
  for (int k = 0; k < op->ntensor; k++) {
    NEED(lm_history(LM_ARG_TENSOR(args, op->tensor[k]), &s->edge[k]));
    if (!s->edge[k].node) continue;
    s->any = true;
    const lm_row *row = &rules->arg[k];
    if (rules->decompose) continue;
    if (row->kind == LM_RULE_MISSING) {
      return lm_fail(LM_E_MISSING, "%s: no gradient is implemented for %s; detach() it, or call this within no_grad",
                     op->name, argument_name(op, k));
    }
    add_touched(&s->touched, row->touches ? row->touches(args) : row->touched);
  }
  if (rules->each) {
    const lm_list *list = lm_record_list(op, args);
    for (int i = 0; i < list->n; i++) s->any = s->any || (list->v[i] && lm_requires_grad(list->v[i]));
    add_touched(&s->touched, rules->list.touched);
  }
  return LM_OK;
}

/* ---- nodes */

/* Returns the tensor to save for t: an alias, or a clone if t shares storage with `written`, which the op writes. */
static lm_status saved_form(lm_tensor *t, const lm_tensor *written, lm_tensor **out) {
  if (written && t->storage == written->storage) {
    return lm_op_run(LM_OP_clone, &(lm_clone_args){.x = t, .memory_format = LM_PRESERVE}, out);
  }
  return lm_save(t, out);
}

/* Creates a node that has saved everything except the results. */
static lm_status new_node(lm_op_id id, const void *args, const input_scan *s, const lm_tensor *written, lm_node **out) {
  const lm_op *op = &lm_ops[id];
  const lm_rules *rules = &lm_rule_table[id];
  const lm_list *list = op->list >= 0 && (rules->each || s->touched.list) ? lm_record_list(op, args) : NULL;
  size_t n = list ? (size_t)list->n : 0, head = lm_round_up(op->size, 16);
  size_t bytes = head + n * (sizeof(lm_tensor *) + (rules->each ? sizeof(lm_ints) : 0) + sizeof(uint32_t));
  LM_OWNED_NODE *node = NULL;
  NEED(lm_node_new(LM_NODE_OP, op->outs, op->ntensor + (rules->each ? (int)n : 0), bytes, &node));
  node->op = (int16_t)id;
  node->widens = lm_halves_widen;
  memcpy(node->payload, args, op->size);
  for (int k = 0; k < op->ntensor; k++) LM_ARG_TENSOR(node->payload, op->tensor[k]) = NULL;
  lm_list *saved_list = op->list >= 0 ? (lm_list *)((char *)node->payload + op->list) : NULL;
  if (saved_list) saved_list->v = NULL;
  if (list) {
    char *p = (char *)node->payload + head;
    saved_list->v = (lm_tensor **)p;
    p += n * sizeof(lm_tensor *);
    if (rules->each) {
      node->list_size = (lm_ints *)p;
      p += n * sizeof(lm_ints);
    }
    node->list_version = (uint32_t *)p;
  }

  for (int k = 0; k < op->ntensor; k++) {
    node->edge[k] = (lm_edge){lm_node_retain(s->edge[k].node), s->edge[k].slot};
    lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[k]), **geometry = &LM_ARG_TENSOR(node->payload, op->tensor[k]);
    node->given |= (uint16_t)((t != NULL) << k);
    if (!(s->touched.args >> k & 1) || !t) continue;
    node->saves = node->saves || !t->number;
    NEED(saved_form(t, written, geometry));
    node->fetches = node->fetches || lm_is_placeholder(*geometry);
    node->version[k] = lm_version(*geometry);
  }
  for (size_t i = 0; i < n; i++) {
    lm_tensor *t = list->v[i];
    if (!t) continue;
    if (rules->each) {
      lm_edge *e = &node->edge[op->ntensor + (int)i];
      NEED(lm_history(t, e));
      lm_node_retain(e->node);
      node->list_size[i].n = t->ndim;
      memcpy(node->list_size[i].v, t->size, sizeof t->size);
    }
    if (!s->touched.list) continue;
    node->saves = true;
    NEED(saved_form(t, written, &saved_list->v[i]));
    node->fetches = node->fetches || lm_is_placeholder(saved_list->v[i]);
    node->list_version[i] = lm_version(t);
  }
  *out = node;
  node = NULL;
  return LM_OK;
}

/* Runs the op without recording a composite's ops; results that are views get new headers without a base. */
static lm_status run_whole(lm_op_id id, const void *args, lm_tensor **results) {
  if (lm_ops[id].kind != LM_COMP) return lm_op_run(id, args, results);
  const bool was_enabled = lm_grad_enabled();
  lm_set_grad_enabled(false);
  lm_status status = lm_compositions[id].made_of(args, results);
  lm_set_grad_enabled(was_enabled);
  for (int i = 0; status == LM_OK && i < lm_ops[id].outs; i++) {
    lm_tensor *view = results[i];
    if (!view->grad) continue;
    status = lm_alias(view, &results[i]);
    lm_release(view);
  }
  return status;
}

static lm_status run_recorded(lm_op_id id, const void *args, const input_scan *s, lm_tensor **out) {
  lm_status status = LM_OK;
  const lm_op *op = &lm_ops[id];
  lm_node *node = NULL;
  lm_grad *spare[LM_MAX_OUTS] = {NULL};
  lm_tensor *results[LM_MAX_OUTS] = {NULL};
  TRY(new_node(id, args, s, NULL, &node));
  if (lm_recompute_is_active()) TRY(lm_recompute_reserve());
  for (int i = 0; i < op->outs; i++) TRY(lm_grad_new(&spare[i]));
  TRY(run_whole(id, args, results));
  for (int i = 0; i < op->outs + op->aux; i++) {
    if (!(s->touched.results >> i & 1) || !results[i]) continue;
    node->saves = true;
    if (i < op->outs) {
      TRY(lm_alias(results[i], &node->result[i]));
    } else {
      node->result[i] = lm_retain(results[i]); /* nobody else holds it */
    }
    node->result_version[i] = lm_version(results[i]);
  }
  if (op->kind == LM_VIEW) {
    lm_grad *m = spare[0];
    spare[0] = NULL;
    TRY(lm_view_track(results[0], LM_ARG_TENSOR(args, op->tensor[0]), m));
    m->node = lm_node_retain(node);
    lm_meta_of(results[0], &node->out[0].meta);
  }
  for (int i = 0; i < op->outs; i++) {
    out[i] = results[i];
    if (op->kind == LM_VIEW || !lm_dtype_is_float(out[i]->dtype)) continue;
    lm_meta_of(out[i], &node->out[i].meta);
    spare[i]->node = lm_node_retain(node);
    spare[i]->slot = i;
    out[i]->grad = spare[i];
    spare[i] = NULL;
  }
  if (lm_recompute_is_active()) lm_recompute_add_node(node);
done:
  for (int i = 0; i < op->outs + op->aux; i++) {
    if (i >= op->outs || status != LM_OK) lm_release(results[i]);
    if (i < op->outs) lm_grad_free(spare[i]);
  }
  lm_node_release(node);
  return status;
}

/* ---- writing in place */

static lm_status check_write(lm_op_id id, const char *suffix, const lm_tensor *x, const input_scan *s, lm_edge base) {
  const char *name = lm_ops[id].name;
  if (s->edge[0].node && s->edge[0].node->kind == LM_NODE_LEAF) {
    return lm_fail(LM_E_STATE, "%s%s: cannot write in place to a leaf that requires grad; use no_grad or a clone()",
                   name, suffix);
  }
  if (base.node && base.node->kind == LM_NODE_LEAF) {
    return lm_fail(LM_E_STATE,
                   "%s%s: cannot write in place to a view of a leaf that requires grad; use no_grad or a clone()", name,
                   suffix);
  }
  if (x->grad && x->grad->base && x->grad->without_grad) {
    return lm_fail(
        LM_E_STATE,
        "%s%s: cannot write in place to a view made within no_grad; make the view outside of it, or clone() it", name,
        suffix);
  }
  return LM_OK;
}

/* Runs and records a write to x. If an input requires grad, x's history, or its base's for a view, begins again with
 * this op. */
lm_status lm_record_write(lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  const lm_rules *rules = &lm_rule_table[id];
  const char *suffix = in_place ? "_" : "";
  lm_tensor *x = LM_ARG_TENSOR(args, op->tensor[0]), *base = NULL;
  LM_OWNED_NODE *node = NULL, *over = NULL;
  LM_OWNED_WATCH *watch = NULL;
  lm_grad *m;
  lm_edge base_edge = {NULL, 0};
  input_scan s = {0};

  if (!lm_grad_enabled() || !lm_dtype_is_float(x->dtype) || !lm_record_may(op, rules, args)) {
    return lm_run_unrecorded(id, args, in_place, out);
  }
  if (rules->none) {
    NEED(lm_history(x, &s.edge[0]));
    if (!s.edge[0].node) return lm_run_unrecorded(id, args, in_place, out);
    return lm_fail(LM_E_STATE, "%s%s: has no gradient, but x is part of a graph; detach() it or use no_grad", op->name,
                   suffix);
  }
  NEED(scan_inputs(id, args, &s));
  base = x->grad ? x->grad->base : NULL;
  if (base) NEED(lm_history(base, &base_edge));
  if (!s.any && !base_edge.node) return lm_run_unrecorded(id, args, in_place, out);
  NEED(check_write(id, suffix, x, &s, base_edge));

  NEED(new_node(id, args, &s, x, &node));
  lm_meta_of(x, &node->out[0].meta);
  if (s.touched.results & 1) {
    node->saves = true;
    NEED(lm_alias(x, &node->result[0]));
  }
  NEED(lm_grad_need(base ? base : x, &m));
  if (base) {
    lm_view_geometry geometry;
    lm_meta meta;
    lm_view_geometry_of(x, base, &geometry);
    lm_meta_of(base, &meta);
    NEED(lm_geometry_node(LM_NODE_OVERWRITE, &geometry, &meta, base_edge, (lm_edge){node, 0}, &over));
  }
  NEED(lm_watch_successor(m, &watch));
  if (lm_recompute_is_active()) NEED(lm_recompute_reserve());
  NEED(lm_run_unrecorded(id, args, in_place, out));
  node->result_version[0] = lm_version(x);
  if (lm_recompute_is_active()) lm_recompute_add_node(node);
  lm_grad_rebase(m, base ? over : node, watch);
  watch = NULL;
  if (base) {
    over = NULL;
  } else {
    node = NULL;
  }
  return LM_OK;
}

lm_status lm_record_call(lm_op_id id, const void *args, bool *recorded, lm_tensor **out) {
  input_scan s = {0};
  lm_status status = scan_inputs(id, args, &s);
  *recorded = s.any;
  if (status != LM_OK || !s.any) return status;
  return lm_rule_table[id].decompose ? lm_compositions[id].made_of(args, out) : run_recorded(id, args, &s, out);
}

lm_status lm_record_made(lm_op_id id, const void *args, lm_tensor *result) {
  input_scan s = {0};
  LM_OWNED_NODE *node = NULL;
  if (!lm_grad_enabled()) return LM_OK;
  NEED(scan_inputs(id, args, &s));
  if (!s.any) return LM_OK;
  NEED(new_node(id, args, &s, NULL, &node));
  lm_meta_of(result, &node->out[0].meta);
  return lm_attach(result, (lm_edge){node, 0});
}
