/* Joins a convolution or linear layer of float32 on the CPU, whose weights are constants, with the batch norm, the sum,
 * the activation and the limits that follow it (conv2d_with_epilogue, linear_with_epilogue). Batch norm is folded into
 * the weights, once. */
#include <math.h>

#include "autograd/expr.h"
#include "autograd/tape.h"
#include "base/message.h"
#include "plan/passes.h"

/* A convolution or linear layer while steps are joined to it; indices of values. */
typedef struct joined {
  lm_op_id op;
  int x, weight, bias, other, out, activation;
  int first; /* its own result, whose layout that of the joined op is */
  bool is_limited;
  double min, max;
  const lm_conv2d_args *conv; /* NULL for a linear layer */
} joined;

/* Returns true if nothing follows the sum of products and bias yet. */
static bool is_plain(const joined *j) { return j->other < 0 && !j->activation && !j->is_limited; }

/* Returns the index of the value of a tensor argument of that name; -1: none. */
static int value_at(const lm_segment_step *s, const char *name) {
  const lm_op *op = &lm_ops[s->op];
  for (int i = 0, k = 0; i < op->nargs; i++) {
    const lm_arg_kind kind = op->arg[i].kind;
    if (kind != LM_ARG_T && kind != LM_ARG_T_OPT && kind != LM_ARG_S && kind != LM_ARG_S_OPT) continue;
    if (strcmp(op->arg[i].name, name) == 0) return s->in[k];
    k++;
  }
  return -1;
}

static bool writes(const lm_segment_step *s) {
  for (int k = 0; k < s->nin; k++)
    if (lm_step_writes(s, k)) return true;
  return false;
}

/* Returns true if value v can be made in the layout of another: it has that, or is contiguous, as that is. */
static bool has_layout_of(const lm_segment *g, int other, int v) {
  const lm_place *p = &g->value[v].place, *q = &g->value[other].place;
  return lm_place_equals(p, q) ||
         (p->at == 0 && q->at == 0 && p->dtype == q->dtype && lm_place_numel(p) == lm_place_numel(q) &&
          lm_place_is_contiguous(p) && lm_place_is_contiguous(q));
}

/* Returns true if two values are the same elements in the same order, as views of a contiguous tensor are. */
static bool is_same(const lm_segment *g, int a, int b) {
  return a == b ||
         (a >= 0 && lm_buffer_of(g, a) >= 0 && lm_buffer_of(g, a) == lm_buffer_of(g, b) && has_layout_of(g, b, a));
}

static bool has_sizes_of(const lm_segment *g, int other, int v) {
  const lm_place *p = &g->value[v].place, *q = &g->value[other].place;
  return p->ndim == q->ndim && memcmp(p->size, q->size, p->ndim * sizeof *p->size) == 0;
}

/* Returns in *v the value of the same elements as *v, which is contiguous, in the sizes of another. */
static lm_status reshape(lm_segment *g, int other, int *v) {
  lm_place p = g->value[other].place;
  p.at = g->value[*v].place.at;
  return has_sizes_of(g, other, *v) ? LM_OK : lm_segment_place(g, g->value[*v].buffer, &p, v);
}

/* Returns the step after i that alone reads the value, or that replaces it in place; -1 if there is none within FAR
 * steps, or if a step between them writes to any tensor, since the convolution moves there. */
static int next_reader(const lm_segment *g, int i, int value) {
  enum { FAR = 1000 };
  const lm_segment_buffer *b = &g->buffer[g->value[value].buffer];
  int found = -1, readers = 0;
  for (int k = i + 1; k <= b->last_use && b->last_use <= i + FAR; k++) {
    const lm_segment_step *s = &g->step[k];
    if (s->is_removed) continue;
    if (lm_step_reads(g, s, g->value[value].buffer)) {
      readers++;
      if (found < 0) found = k;
      if (found == k && s->form == LM_RUN_IN_PLACE && s->in[0] == value) return k;
    }
    if (found < 0 && writes(s)) return -1;
  }
  return readers == 1 && !b->is_result ? found : -1;
}

/* Returns true for a tensor that each call reads as it is; for none too. */
static bool is_constant(const lm_segment *g, int value) {
  return value < 0 || (!g->value[value].number && g->buffer[g->value[value].buffer].origin == LM_CONSTANT);
}

/* Returns in *index a new constant; takes over the reference to t. */
static lm_status add_constant(lm_segment *g, lm_tensor *t, int *index) {
  LM_OWNED *owned = t;
  int buffer;
  NEED(lm_segment_new_buffer(g, LM_CONSTANT, t->storage, &buffer));
  NEED(lm_segment_value_at(g, buffer, t, index));
  lm_segment_set_constant(g, *index, owned);
  return LM_OK;
}

/* Sets f->folded to the product and bias that the batch norm's statistics and parameters make of weight and bias. */
static lm_status fold_parameters(lm_segment_fold *f) {
  lm_tensor *w = f->from[0], *bias = f->from[1], *const *t = f->from + 2;
  lm_expr e;
  lm_expr_begin(&e);
  lm_tensor *scale = lm_e_rsqrt(&e, lm_e_add(&e, t[1], lm_e_number(&e, f->eps), 1));
  if (t[2]) scale = lm_e_mul(&e, scale, t[2]);
  lm_tensor *shift = bias ? lm_e_sub(&e, bias, t[0], 1) : lm_e_mul(&e, t[0], lm_e_number(&e, -1));
  shift = lm_e_mul(&e, shift, scale);
  if (t[3]) shift = lm_e_add(&e, shift, t[3], 1);
  lm_tensor *folded = lm_e_mul(&e, w, lm_e_view(&e, scale, (lm_ints){w->ndim, {w->size[0], 1, 1, 1}}));
  return lm_expr_results(&e, 2, 0, (lm_tensor *[]){folded, shift}, f->folded);
}

/* Sets f->folded to new references to what segment `like` (NULL: none) has folded of the same tensors; else returns
 * false. */
static bool find_fold(const lm_segment *like, lm_segment_fold *f) {
  for (int i = 0; like && i < like->nfolds; i++) {
    const lm_segment_fold *known = &like->fold[i];
    if (known->eps != f->eps || memcmp(known->from, f->from, sizeof f->from) != 0) continue;
    for (int k = 0; k < 2; k++) f->folded[k] = lm_retain(known->folded[k]);
    return true;
  }
  return false;
}

static lm_status fold_batch_norm(lm_segment *g, const lm_segment *like, joined *j, const lm_segment_step *bn,
                                 double eps, bool *done_) {
  const int values[] = {
      j->weight,           j->bias, value_at(bn, "running_mean"), value_at(bn, "running_var"), value_at(bn, "weight"),
      value_at(bn, "bias")};
  lm_segment_fold f = {.eps = eps};
  for (int k = 0; k < 6; k++) {
    if (!is_constant(g, values[k])) return LM_OK;
    NEED(lm_segment_header(g, values[k], false, &f.from[k]));
    if (f.from[k] && f.from[k]->dtype != LM_F32) return LM_OK;
  }
  if (!f.from[2] || !f.from[3]) return LM_OK;
  if (!lm_list_grow(&g->fold, &g->fold_capacity, (size_t)g->nfolds + 1, sizeof *g->fold)) return LM_E_OOM;
  if (!find_fold(like, &f)) NEED(fold_parameters(&f));
  g->fold[g->nfolds++] = f;
  lm_status status = add_constant(g, f.folded[0], &j->weight), second = add_constant(g, f.folded[1], &j->bias);
  *done_ = status == LM_OK && second == LM_OK;
  return status == LM_OK ? second : status;
}

/* Returns true if the value can be added to the result, which a step reads as y, as the joined op's `other`. */
static bool is_addend(const lm_segment *g, const joined *j, int y, int value) {
  if (value < 0 || g->value[value].number || lm_buffer_of(g, value) == lm_buffer_of(g, y)) return false;
  const lm_place *a = &g->value[value].place;
  return is_plain(j) && a->dtype == LM_F32 && has_sizes_of(g, y, value) &&
         (has_sizes_of(g, y, j->first) || lm_place_is_contiguous(a));
}

/* Returns true if the value is a constant row, which can be added as a linear layer's bias. */
static bool is_bias(const lm_segment *g, const joined *j, int value) {
  if (j->conv || value < 0 || j->bias >= 0 || !is_plain(j) || !is_constant(g, value)) return false;
  const lm_place *a = &g->value[value].place;
  return a->dtype == LM_F32 && a->ndim == 1 && a->size[0] == g->value[j->weight].place.size[0];
}

static bool limit(joined *j, double low, double high) {
  if (j->is_limited || !(low <= high)) return false;
  j->min = low, j->max = high;
  j->is_limited = true;
  return true;
}

/* Returns the lm_activation that a step applies; 0: none. */
static int activation_of(const lm_segment_step *s) {
  if (s->op == LM_OP_gelu && ((const lm_gelu_args *)s->args)->approximate) return LM_ACTIVATION_GELU_TANH;
  for (int k = 1; lm_names_activation[k]; k++)
    if (strcmp(lm_ops[s->op].name, lm_names_activation[k]) == 0) return k;
  return 0;
}

/* Joins the step to the convolution or linear layer, if possible; sets *done_. */
static lm_status join_step(lm_segment *g, const lm_segment *like, joined *j, const lm_segment_step *s, bool *done_) {
  const bool is_x = s->nin > 0 && is_same(g, s->in[0], j->out);
  const bool folds =
      is_x && is_plain(j) && has_sizes_of(g, s->in[0], j->first) && (j->conv || g->value[j->first].place.ndim == 2);
  *done_ = false;
  if (s->op < 0 || !has_layout_of(g, j->first, s->out[0])) return LM_OK;
  switch (s->op) {
    case LM_OP_batch_norm: {
      const lm_batch_norm_args *a = s->args;
      return folds && !a->training ? fold_batch_norm(g, like, j, s, a->eps, done_) : LM_OK;
    }
    case LM_OP_batch_norm_relu: {
      const lm_batch_norm_relu_args *a = s->args;
      const int addend = value_at(s, "addend");
      if (!folds || a->training || (addend >= 0 && !is_addend(g, j, j->first, addend))) return LM_OK;
      NEED(fold_batch_norm(g, like, j, s, a->eps, done_));
      if (!*done_) return LM_OK;
      j->other = addend;
      limit(j, 0, a->max);
      return LM_OK;
    }
    case LM_OP_add: {
      const int x = is_x ? 0 : 1, other = s->in[1 - x];
      const bool may = ((const lm_add_args *)s->args)->alpha == 1 && is_same(g, s->in[x], j->out) &&
                       (is_x || s->form != LM_RUN_IN_PLACE);
      const bool biased = may && is_bias(g, j, other);
      *done_ = biased || (may && is_addend(g, j, s->in[x], other));
      if (*done_) *(biased ? &j->bias : &j->other) = other;
      return LM_OK;
    }
    case LM_OP_relu: *done_ = is_x && limit(j, 0, INFINITY); return LM_OK;
    case LM_OP_relu6: *done_ = is_x && limit(j, 0, 6); return LM_OK;
    case LM_OP_hardtanh: {
      const lm_hardtanh_args *a = s->args;
      *done_ = is_x && limit(j, a->min_val, a->max_val);
      return LM_OK;
    }
    case LM_OP_clamp_range: {
      const lm_clamp_range_args *a = s->args;
      *done_ = is_x && limit(j, a->min, a->max);
      return LM_OK;
    }
    default: *done_ = is_x && !j->activation && !j->is_limited && (j->activation = activation_of(s)) != 0; return LM_OK;
  }
}

/* Returns true for products whose weight is [in, out]. */
static bool is_product(const lm_segment_step *s) {
  if (s->op != LM_OP_addmm) return s->op == LM_OP_mm;
  const lm_addmm_args *a = s->args;
  return a->alpha == 1 && a->beta == 1;
}

/* Returns true, with *j set, if steps can be joined to this one. */
static bool is_joinable(lm_segment *g, const lm_segment_step *s, joined *j) {
  if (s->is_removed || s->out[0] < 0 || (s->op != LM_OP_conv2d && s->op != LM_OP_linear && !is_product(s)))
    return false;
  *j = (joined){.op = s->op == LM_OP_conv2d ? LM_OP_conv2d_with_epilogue : LM_OP_linear_with_epilogue,
                .x = value_at(s, "x"),
                .weight = value_at(s, is_product(s) ? "other" : "weight"),
                .bias = value_at(s, s->op == LM_OP_addmm ? "input" : "bias"),
                .other = -1,
                .out = s->out[0],
                .first = s->out[0],
                .min = -INFINITY,
                .max = INFINITY,
                .conv = s->op == LM_OP_conv2d ? s->args : NULL};
  if (j->weight < 0 || !is_constant(g, j->weight) || !is_constant(g, j->bias) || g->value[j->x].number) return false;
  if (j->conv && j->conv->padding[0] == LM_PAD_SAME) return false;
  const lm_place *w = &g->value[j->weight].place, *x = &g->value[j->x].place;
  const lm_place *bias = j->bias < 0 ? NULL : &g->value[j->bias].place;
  if (!j->conv && (w->ndim != 2 || x->ndim < 2 ||
                   (bias && (bias->ndim != 1 || bias->size[0] != (is_product(s) ? w->size[1] : w->size[0])))))
    return false;
  return w->dtype == LM_F32 && LM_DEVICE_KIND(w->device) == LM_CPU && x->dtype == LM_F32;
}

static void *make_join_args(const joined *j) {
  if (!j->conv) {
    lm_linear_with_epilogue_args *args = lm_calloc(1, sizeof *args);
    if (args) args->activation = j->activation, args->min = j->min, args->max = j->max;
    return args;
  }
  const lm_conv2d_args *a = j->conv;
  lm_conv2d_with_epilogue_args *args = lm_calloc(1, sizeof *args);
  if (args)
    *args = (lm_conv2d_with_epilogue_args){.stride = {a->stride[0], a->stride[1]},
                                           .padding = {a->padding[0], a->padding[1]},
                                           .dilation = {a->dilation[0], a->dilation[1]},
                                           .groups = a->groups,
                                           .activation = j->activation,
                                           .min = j->min,
                                           .max = j->max};
  return args;
}

/* Replaces step `at`, the last that was joined, by the joined op. */
static lm_status put_joined(lm_segment *g, int at, const joined *j) {
  int values[] = {j->x, j->weight, j->bias, j->other}, out = j->out;
  if (j->other >= 0) NEED(reshape(g, j->first, &values[3]));
  NEED(reshape(g, j->first, &out));
  lm_segment_step *s = &g->step[at];
  void *args = make_join_args(j);
  int *in = lm_calloc(5, sizeof *in);
  if (!args || !in) {
    lm_free(args);
    lm_free(in);
    return LM_E_OOM;
  }
  memcpy(in, values, sizeof values);
  lm_args_free(s->op, s->args);
  lm_free(s->in);
  *s = (lm_segment_step){.op = j->op, .nin = 4, .nout = 1, .args = args, .in = in};
  for (int k = 0; k < LM_MAX_OUTS; k++) s->out[k] = -1;
  s->out[0] = out;
  return LM_OK;
}

/* Replaces the weight of a product, [in, out], by a view of it as that of a linear layer. */
static lm_status transpose_weight(lm_segment *g, joined *j) {
  lm_place p = g->value[j->weight].place;
  const int64_t size = p.size[0], stride = p.stride[0];
  p.size[0] = p.size[1], p.stride[0] = p.stride[1];
  p.size[1] = size, p.stride[1] = stride;
  return lm_segment_place(g, g->value[j->weight].buffer, &p, &j->weight);
}

lm_status lm_segment_join_layers(lm_segment *g, const lm_segment *like) {
  for (int i = 0; i < g->nsteps; i++) {
    joined j;
    if (!is_joinable(g, &g->step[i], &j)) continue;
    const bool transposes = is_product(&g->step[i]);
    if (transposes) NEED(transpose_weight(g, &j));
    int last = i;
    for (int next; (next = next_reader(g, last, j.out)) >= 0; last = next) {
      bool done_;
      NEED(join_step(g, like, &j, &g->step[next], &done_));
      if (!done_) break;
      g->step[last].is_removed = true;
      j.out = g->step[next].out[0];
    }
    if (last > i || transposes) NEED(put_joined(g, last, &j));
  }
  return LM_OK;
}
