/* Casts an op's tensors before it runs, by the `autocast` of its entry in op/entries/families/, as PyTorch's
 * ATen/autocast_mode.cpp does.
 *
 * A weight is used many times in a scope, and cast once: a leaf that requires grad keeps its low-precision copy until
 * the thread's outermost scope ends. The copy is recorded like any op, so the gradients of all its uses add up on it
 * and reach the leaf through one cast. On a GPU the parameters of an optimizer that the last scope has used are cast in
 * one launch, when the first of them is needed. */
#include <string.h>

#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/address_map.h"
#include "base/mem.h"
#include "op/op_recorder.h"
#include "op/run.h"
#include "op/stream_order.h"
#include "op_entries.h"

struct lm_cast_group {
  int n;
  lm_tensor *leaf[];
};

typedef struct weight_copy { /* the low-precision copy of one leaf */
  lm_tensor *leaf, *low;
  uint32_t version; /* the leaf's version that `low` was cast from */
  bool used;        /* false: cast with its group, and not recorded yet */
} weight_copy;

typedef struct copy_table {
  int depth; /* number of nested scopes */
  int n;
  size_t capacity;
  weight_copy *copy;
  lm_address_map index; /* in copy, by leaf */
} copy_table;

static _Thread_local copy_table weight_copies;
static _Thread_local uint32_t scopes; /* number of outermost scopes so far */

static void clear(copy_table *c) {
  for (int i = 0; i < c->n; i++) {
    const weight_copy *k = &c->copy[i];
    if (k->leaf->grad) k->leaf->grad->is_cast = k->used;
    lm_release(k->low);
    lm_release(k->leaf);
  }
  lm_free(c->copy);
  lm_free(c->index.entry);
  *c = (copy_table){.depth = c->depth};
}

lm_autocast lm_autocast_enter(lm_autocast mode) {
  lm_autocast before = lm_autocast_get();
  if (weight_copies.depth++ == 0) scopes++;
  lm_autocast_set(mode);
  return before;
}

void lm_autocast_leave(lm_autocast before) {
  if (--weight_copies.depth == 0) clear(&weight_copies);
  lm_autocast_set(before);
}

uint32_t lm_autocast_scope(void) { return weight_copies.depth > 0 ? scopes : 0; }

void lm_autocast_forget(void) { clear(&weight_copies); }

static lm_status convert(lm_tensor *t, lm_dtype dtype, lm_tensor **out) {
  lm_to_copy_args args = {.x = t, .dtype = dtype, .device = LM_NO_DEVICE, .memory_format = LM_PRESERVE};
  bool recorded = false;
  if (t->grad && !lm_modes_here.no_grad) NEED(lm_record_call(LM_OP_to_copy, &args, &recorded, out));
  if (!recorded) NEED(lm_run_unrecorded(LM_OP_to_copy, &args, false, out));
  if (lm_modes_here.tape) lm_tape_add(lm_modes_here.tape, LM_OP_to_copy, &args, false, out);
  return LM_OK;
}

static bool is_weight(const lm_tensor *t) {
  return t->dtype == LM_F32 && t->grad && lm_is_leaf(t) && lm_requires_grad(t) && !lm_view_base(t);
}

/* Returns t's copy in dtype, or NULL. A copy made within no_grad is used only within no_grad. */
static weight_copy *find_copy(const lm_tensor *t, lm_dtype dtype) {
  const int i = lm_address_find(&weight_copies.index, t);
  weight_copy *k = i < 0 ? NULL : &weight_copies.copy[i];
  bool fits = k && k->version == lm_version(t) && k->low->dtype == dtype &&
              (!k->used || lm_requires_grad(k->low) || !lm_grad_enabled());
  return fits ? k : NULL;
}

static lm_status keep_copy(lm_tensor *t, lm_tensor *low, bool used) {
  copy_table *c = &weight_copies;
  int i = lm_address_find(&c->index, t);
  if (i < 0) {
    if (!lm_list_grow(&c->copy, &c->capacity, (size_t)c->n + 1, sizeof *c->copy) || !lm_address_set(&c->index, t, c->n))
      return LM_E_OOM;
    i = c->n++;
    c->copy[i] = (weight_copy){.leaf = lm_retain(t)};
  }
  weight_copy *k = &c->copy[i];
  lm_release(k->low);
  k->low = lm_retain(low);
  k->version = lm_version(t);
  k->used = used;
  return LM_OK;
}

/* ---- casting a group in one launch */

lm_status lm_cast_group_new(int n, lm_tensor *const *leaves, lm_cast_group **out) {
  lm_status status = LM_OK;
  lm_cast_group *g = lm_malloc(sizeof *g + (size_t)n * sizeof *g->leaf);
  lm_grad *m;
  if (!g) return LM_E_OOM;
  for (g->n = 0; g->n < n; g->n++) {
    TRY(lm_grad_need(leaves[g->n], &m));
    m->cast_group = g;
    g->leaf[g->n] = lm_retain(leaves[g->n]);
  }
  *out = g;
  g = NULL;
done:
  lm_cast_group_free(g);
  return status;
}

void lm_cast_group_free(lm_cast_group *g) {
  for (int i = 0; g && i < g->n; i++) {
    lm_grad *m = g->leaf[i]->grad;
    if (m && m->cast_group == g) m->cast_group = NULL;
    lm_release(g->leaf[i]);
  }
  lm_free(g);
}

lm_status lm_cast_together(lm_device device, int n, lm_tensor *const *from, lm_tensor *const *low) {
  LM_RUNNING before = lm_run_begin("autocast", -1);
  lm_stream *s;
  NEED(lm_stream_order_begin(device, &s));
  for (int i = 0; i < n; i++) {
    NEED(lm_stream_order_read(s, from[i]));
    NEED(lm_stream_order_write(s, low[i]));
  }
  return lm_stream_order_end(s, lm_backend_of(device)->rescale(n, from, low, 1, NULL));
}

static lm_status convert_group(const lm_cast_group *g, lm_dtype dtype, lm_device device) {
  LM_FREED lm_tensor **from = lm_calloc((size_t)g->n, sizeof *from);
  LM_OWNED_LIST low = {g->n, lm_calloc((size_t)g->n, sizeof *from)};
  int n = 0;
  if (!from || !low.v) return LM_E_OOM;
  for (int i = 0; i < g->n; i++) {
    lm_tensor *t = g->leaf[i];
    bool fits = is_weight(t) && t->device == device && t->grad->cast_group == g && t->grad->is_cast && lm_is_dense(t);
    if (!fits || find_copy(t, dtype)) continue;
    NEED(lm_tensor_empty_like(t, dtype, device, &low.v[n]));
    from[n++] = t;
  }
  if (n > 0) NEED(lm_cast_together(device, n, from, low.v));
  for (int i = 0; i < n; i++) NEED(keep_copy(from[i], low.v[i], false));
  return LM_OK;
}

static lm_status convert_weight(lm_tensor *t, lm_dtype dtype, lm_tensor **out) {
  if (weight_copies.depth == 0) return convert(t, dtype, out);
  weight_copy *k = find_copy(t, dtype);
  const bool is_recorded = lm_compiled_call_runs() && lm_ops_recorded; /* as an op for each weight */
  if (!k && !is_recorded && t->grad->is_cast && t->grad->cast_group && lm_is_ordered(t->device) &&
      lm_backend_of(t->device)->rescale) {
    NEED(convert_group(t->grad->cast_group, dtype, t->device));
    k = find_copy(t, dtype);
  }
  if (!k) {
    lm_tensor *low;
    NEED(convert(t, dtype, &low));
    lm_status status = keep_copy(t, low, true);
    lm_release(low);
    if (status != LM_OK) return status;
    k = find_copy(t, dtype);
  }
  if (!k->used) { /* recorded here, so that backward runs it right after the op that uses it */
    lm_to_copy_args args = {.x = t, .dtype = dtype, .device = LM_NO_DEVICE, .memory_format = LM_PRESERVE};
    NEED(lm_record_made(LM_OP_to_copy, &args, k->low));
    k->used = true;
  }
  *out = lm_retain(k->low);
  return LM_OK;
}

typedef struct target {
  const lm_autocast *mode;
  lm_cast_rule rule;
  lm_dtype widest;
  bool reused; /* for LM_SUMMED: the formula reads the tensor several times */
} target;

/* Returns the target dtype of t; its own if unchanged. */
static lm_dtype dtype_for(const target *to, const lm_tensor *t) {
  lm_dtype own = t->dtype;
  int kind = LM_DEVICE_KIND(t->device);
  bool applies = to->rule == LM_WIDENED || to->rule == LM_SUMMED || to->mode->on >> kind & 1;
  if (t->number || !lm_dtype_is_float(own) || own == LM_F64 || !applies) return own;
  switch (to->rule) {
    case LM_LOWER: return to->mode->dtype[kind];
    case LM_KEEP: return LM_F32;
    case LM_KEEP_GPU:
    case LM_BANNED_GPU: return kind == LM_CPU && to->rule == LM_KEEP_GPU ? own : LM_F32;
    case LM_WIDEST: return to->widest;
    case LM_WIDENED: return LM_F32;
    case LM_SUMMED: return to->reused && lm_requires_grad(t) ? LM_F32 : own;
    default: return own;
  }
}

static lm_status cast_input(const target *to, lm_tensor *t, lm_tensor **out) {
  lm_dtype dtype = t ? dtype_for(to, t) : LM_NO_DTYPE;
  if (!t || dtype == t->dtype) {
    *out = lm_retain(t);
    return LM_OK;
  }
  bool recomputes = lm_recompute_is_active(); /* recomputing must record the same nodes as the first time */
  bool keep = to->rule == LM_LOWER && !to->mode->uncached && !recomputes && is_weight(t);
  return keep ? convert_weight(t, dtype, out) : convert(t, dtype, out);
}

static const lm_list *list_of(const lm_op *op, const void *args) {
  static const lm_list none = {0, NULL};
  return op->list >= 0 ? (const lm_list *)((const char *)args + op->list) : &none;
}

static lm_dtype widest_of(const lm_op *op, const void *args) {
  lm_dtype widest = LM_NO_DTYPE;
  bool first = true;
  const lm_list *list = list_of(op, args);
  for (int i = 0; i < op->ntensor + list->n; i++) {
    const lm_tensor *t = i < op->ntensor ? LM_ARG_TENSOR(args, op->tensor[i]) : list->v[i - op->ntensor];
    if (!t || t->number || !lm_dtype_is_float(t->dtype)) continue;
    widest = first ? t->dtype : lm_dtype_promote(widest, t->dtype);
    first = false;
  }
  return widest;
}

lm_dtype lm_widened_dtype(lm_op_id id, const void *args) {
  const lm_op *op = &lm_ops[id];
  lm_tensor *deciding[LM_MAX_TENSOR_ARGS] = {NULL};
  bool any = false;
  for (int k = 0; op->widens && k < op->ntensor; k++) {
    lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[k]);
    any = any || (t && lm_dtype_is_half(t->dtype));
    if (op->widens >> k & 1) deciding[k] = t;
  }
  return any ? lm_result_type(op->ntensor, deciding) : LM_NO_DTYPE;
}

/* Fails if autocast is on for the GPU of the op's first tensor: the op is unsafe in a low dtype's range. */
static lm_status check_banned(const lm_op *op, const void *args, const lm_autocast *mode) {
  const lm_tensor *x = LM_ARG_TENSOR(args, op->tensor[0]);
  int kind = LM_DEVICE_KIND(x->device);
  if (kind == LM_CPU || !(mode->on >> kind & 1)) return LM_OK;
  return lm_fail(
      LM_E_STATE,
      "%s: unsafe under autocast, where its logarithms and gradients exceed the range of a low dtype; use "
      "bce_with_logits (nn.BCEWithLogitsLoss) without the sigmoid, or lm.autocast({enabled = false}, f) with x:float()",
      op->name);
}

lm_status lm_autocast_args(lm_op_id id, const void *args, lm_cast_rule rule, lm_cast_args *c) {
  const lm_op *op = &lm_ops[id];
  target to = {.mode = &c->before, .rule = rule};
  c->before = lm_autocast_get();
  memset(c->tensor, 0, sizeof c->tensor);
  c->list = NULL;
  c->nlist = 0;
  if (rule == LM_BANNED_GPU) NEED(check_banned(op, args, &c->before));
  if (rule == LM_WIDEST) to.widest = widest_of(op, args);
  memcpy(&c->args, args, op->size);
  for (int k = 0; k < op->ntensor; k++) {
    lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[k]);
    to.reused = op->reuses >> k & 1;
    NEED(cast_input(&to, t, &c->tensor[k]));
    LM_ARG_TENSOR(&c->args, op->tensor[k]) = c->tensor[k];
  }
  if (op->list >= 0) {
    lm_list *list = (lm_list *)((char *)&c->args + op->list);
    if (!(c->list = lm_malloc(sizeof *c->list * (size_t)list->n))) return LM_E_OOM;
    for (; c->nlist < list->n; c->nlist++) NEED(cast_input(&to, list->v[c->nlist], &c->list[c->nlist]));
    list->v = c->list;
  }
  const bool widens = c->before.on & LM_WIDENS;
  unsigned keeps = widens ? c->before.keeps : rule == LM_KEEP_RESULT ? c->before.on : 0;
  lm_autocast_set((lm_autocast){.on = widens ? LM_WIDENS : 0, .keeps = keeps});
  return LM_OK;
}

void lm_autocast_args_free(lm_cast_args *c) {
  lm_autocast_set(c->before);
  for (int i = 0; i < c->nlist; i++) lm_release(c->list[i]);
  lm_free(c->list);
  for (int k = 0; k < LM_MAX_TENSOR_ARGS; k++) lm_release(c->tensor[k]);
}
