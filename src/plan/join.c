/* Joins steps of a plan: a convolution or linear layer of float32 on the CPU with the batch norm, the sum, the
 * activation and the limits that follow it (conv2d_with_epilogue, linear_with_epilogue). Batch norm is folded into the
 * weights, once. */
#include <math.h>

#include "autograd/expr.h"
#include "base/message.h"
#include "op_entries.h"
#include "plan/plan_steps.h"

/* A convolution or linear layer while steps are joined to it; indices of values. */
typedef struct joined {
  lm_op_id op;
  int x, weight, bias, other, out, activation;
  bool is_limited;
  double min, max;
  const lm_conv2d_args *conv; /* NULL for a linear layer */
} joined;

/* Returns true if nothing follows the sum of products and bias yet. */
static bool is_plain(const joined *j) { return j->other < 0 && !j->activation && !j->is_limited; }

/* Returns the index of the value of a tensor argument of that name; -1: none. */
static int value_at(const lm_plan_step *s, const char *name) {
  const lm_op *op = &lm_ops[s->op];
  for (int i = 0, k = 0; i < op->nargs; i++) {
    const lm_arg_kind kind = op->arg[i].kind;
    if (kind != LM_ARG_T && kind != LM_ARG_T_OPT && kind != LM_ARG_S && kind != LM_ARG_S_OPT) continue;
    if (strcmp(op->arg[i].name, name) == 0) return s->in[k];
    k++;
  }
  return -1;
}

static bool reads(const lm_plan_step *s, int value) {
  for (int k = 0; k < s->nin; k++)
    if (s->in[k] == value) return true;
  return false;
}

static bool writes(const lm_plan_step *s) {
  return s->in_place || lm_ops[s->op].kind == LM_WRITE || lm_ops[s->op].writes;
}

/* Returns the step after i that alone reads the value, or that replaces it in place; -1 if there is none within FAR
 * steps, or if a step between them writes to any tensor, since the convolution moves there. */
static int next_reader(const lm_plan *p, int i, int value) {
  enum { FAR = 1000 };
  int found = -1, readers = 0, last = p->value[value].last_use;
  for (int k = i + 1; k <= last && last <= i + FAR; k++) {
    const lm_plan_step *s = &p->step[k];
    if (s->is_removed) continue;
    if (reads(s, value)) {
      readers++;
      if (found < 0) found = k;
      if (found == k && s->in_place && s->in[0] == value) return k;
    }
    if (found < 0 && writes(s)) return -1;
  }
  return readers == 1 && !p->value[value].is_output ? found : -1;
}

static bool is_constant(const lm_plan *p, int value) { return value < 0 || p->value[value].is_constant; }

/* Returns in *index a new constant value; takes over the reference to t. */
static lm_status add_constant(lm_plan *p, lm_tensor *t, int *index) {
  if (!lm_list_grow(&p->value, &p->value_capacity, (size_t)p->nvalues + 1, sizeof *p->value)) {
    lm_release(t);
    return LM_E_OOM;
  }
  p->value[p->nvalues] =
      (lm_plan_value){.t = t, .is_constant = true, .last_use = -1, .ndim = t->ndim, .dtype = t->dtype};
  memcpy(p->value[p->nvalues].size, t->size, sizeof t->size);
  *index = p->nvalues++;
  return LM_OK;
}

/* Sets f->folded to the product and bias that the batch norm's statistics and parameters make of weight and bias. */
static lm_status fold_parameters(lm_plan_fold *f) {
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

/* Sets f->folded to new references to what plan `like` (NULL: none) folded of the same tensors; else returns false. */
static bool find_fold(const lm_plan *like, lm_plan_fold *f) {
  for (int i = 0; like && i < like->nfolds; i++) {
    const lm_plan_fold *known = &like->fold[i];
    if (known->eps != f->eps || memcmp(known->from, f->from, sizeof f->from) != 0) continue;
    for (int k = 0; k < 2; k++) f->folded[k] = lm_retain(known->folded[k]);
    return true;
  }
  return false;
}

static lm_status fold_batch_norm(lm_plan *p, const lm_plan *like, joined *j, const lm_plan_step *bn, double eps,
                                 bool *done_) {
  const char *const names[] = {"running_mean", "running_var", "weight", "bias"};
  lm_plan_fold f = {.from = {p->value[j->weight].t, j->bias < 0 ? NULL : p->value[j->bias].t}, .eps = eps};
  lm_tensor **t = f.from + 2;
  for (int k = 0; k < 4; k++) {
    const int value = value_at(bn, names[k]);
    if (!is_constant(p, value)) return LM_OK;
    if (value >= 0) t[k] = p->value[value].t;
    if (t[k] && t[k]->dtype != LM_F32) return LM_OK;
  }
  if (!t[0] || !t[1]) return LM_OK;
  if (!lm_list_grow(&p->fold, &p->fold_capacity, (size_t)p->nfolds + 1, sizeof *p->fold)) return LM_E_OOM;
  if (!find_fold(like, &f)) NEED(fold_parameters(&f));
  p->fold[p->nfolds++] = f;
  lm_status status = add_constant(p, f.folded[0], &j->weight);
  if (status == LM_OK)
    status = add_constant(p, f.folded[1], &j->bias);
  else
    lm_release(f.folded[1]);
  *done_ = status == LM_OK;
  return status;
}

/* Returns true if the value can be added to the result as the joined op's `other`. */
static bool is_addend(const lm_plan *p, const joined *j, int value) {
  if (value < 0) return false;
  const lm_plan_value *a = &p->value[value], *y = &p->value[j->out];
  return is_plain(j) && value != j->out && !(a->t && a->t->number) && a->dtype == LM_F32 && a->ndim == y->ndim &&
         memcmp(a->size, y->size, y->ndim * sizeof *y->size) == 0;
}

/* Returns true if the value is a constant row, which can be added as a linear layer's bias. */
static bool is_bias(const lm_plan *p, const joined *j, int value) {
  if (j->conv || value < 0 || j->bias >= 0 || !is_plain(j) || !p->value[value].is_constant) return false;
  const lm_plan_value *a = &p->value[value];
  return a->dtype == LM_F32 && a->ndim == 1 && a->size[0] == p->value[j->weight].size[0];
}

static bool limit(joined *j, double low, double high) {
  if (j->is_limited || !(low <= high)) return false;
  j->min = low, j->max = high;
  j->is_limited = true;
  return true;
}

/* Returns the lm_activation that a step applies; 0: none. */
static int activation_of(const lm_plan_step *s) {
  if (s->op == LM_OP_gelu && ((const lm_gelu_args *)s->args)->approximate) return LM_ACTIVATION_GELU_TANH;
  for (int k = 1; lm_names_activation[k]; k++)
    if (strcmp(lm_ops[s->op].name, lm_names_activation[k]) == 0) return k;
  return 0;
}

/* Returns in *bound the number of an argument of clamp; `otherwise` without it. False for a tensor. */
static bool read_bound(const lm_plan *p, const lm_plan_step *s, const char *name, double otherwise, double *bound) {
  const int value = value_at(s, name);
  *bound = otherwise;
  if (value < 0) return true;
  const lm_tensor *t = p->value[value].t;
  return t && t->number && lm_tensor_item_f64(t, bound) == LM_OK;
}

/* Joins the step to the convolution or linear layer, if possible; sets *done_. */
static lm_status join_step(lm_plan *p, const lm_plan *like, joined *j, const lm_plan_step *s, bool *done_) {
  const bool is_x = s->nin > 0 && s->in[0] == j->out, folds = is_plain(j) && (j->conv || p->value[j->out].ndim == 2);
  double low, high;
  *done_ = false;
  switch (s->op) {
    case LM_OP_batch_norm: {
      const lm_batch_norm_args *a = s->args;
      return folds && is_x && !a->training ? fold_batch_norm(p, like, j, s, a->eps, done_) : LM_OK;
    }
    case LM_OP_batch_norm_relu: {
      const lm_batch_norm_relu_args *a = s->args;
      const int addend = value_at(s, "addend");
      if (!folds || !is_x || a->training || (addend >= 0 && !is_addend(p, j, addend))) return LM_OK;
      NEED(fold_batch_norm(p, like, j, s, a->eps, done_));
      if (!*done_) return LM_OK;
      j->other = addend;
      limit(j, 0, a->max);
      return LM_OK;
    }
    case LM_OP_add: {
      const lm_add_args *a = s->args;
      const int other = is_x ? s->in[1] : s->in[0];
      const bool may = a->alpha == 1 && (is_x || !s->in_place), biased = may && is_bias(p, j, other);
      *done_ = biased || (may && is_addend(p, j, other));
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
    case LM_OP_clamp:
      *done_ = is_x && read_bound(p, s, "min", -INFINITY, &low) && read_bound(p, s, "max", INFINITY, &high) &&
               limit(j, low, high);
      return LM_OK;
    default: *done_ = is_x && !j->activation && !j->is_limited && (j->activation = activation_of(s)) != 0; return LM_OK;
  }
}

/* Returns true for products whose weight is [in, out]. */
static bool is_product(const lm_plan_step *s) {
  if (s->op != LM_OP_addmm) return s->op == LM_OP_matmul || s->op == LM_OP_mm;
  const lm_addmm_args *a = s->args;
  return a->alpha == 1 && a->beta == 1;
}

/* Returns true, with *j set, if steps can be joined to this one. */
static bool is_joinable(const lm_plan *p, const lm_plan_step *s, joined *j) {
  if (s->is_removed || (s->op != LM_OP_conv2d && s->op != LM_OP_linear && !is_product(s))) return false;
  *j = (joined){.op = s->op == LM_OP_conv2d ? LM_OP_conv2d_with_epilogue : LM_OP_linear_with_epilogue,
                .x = value_at(s, "x"),
                .weight = value_at(s, is_product(s) ? "other" : "weight"),
                .bias = value_at(s, s->op == LM_OP_addmm ? "input" : "bias"),
                .other = -1,
                .out = s->out[0],
                .min = -INFINITY,
                .max = INFINITY,
                .conv = s->op == LM_OP_conv2d ? s->args : NULL};
  if (j->weight < 0 || !is_constant(p, j->weight) || !is_constant(p, j->bias)) return false;
  if (j->conv && j->conv->padding[0] == LM_PAD_SAME) return false;
  const lm_tensor *w = p->value[j->weight].t, *bias = j->bias < 0 ? NULL : p->value[j->bias].t;
  if (!j->conv && (w->ndim != 2 || p->value[j->x].ndim < 2 ||
                   (bias && (bias->ndim != 1 || bias->size[0] != (is_product(s) ? w->size[1] : w->size[0])))))
    return false;
  return w->dtype == LM_F32 && LM_DEVICE_KIND(w->device) == LM_CPU && p->value[j->x].dtype == LM_F32;
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
static lm_status put_joined(lm_plan *p, int at, const joined *j) {
  lm_plan_step *s = &p->step[at];
  void *args = make_join_args(j);
  int *in = lm_calloc(5, sizeof *in);
  if (!args || !in) {
    lm_free(args);
    lm_free(in);
    return LM_E_OOM;
  }
  const int values[] = {j->x, j->weight, j->bias, j->other};
  memcpy(in, values, sizeof values);
  lm_args_free(s->op, s->args);
  lm_free(s->in);
  *s = (lm_plan_step){.op = j->op, .nin = 4, .nout = 1, .args = args, .in = in};
  for (int k = 0; k < LM_MAX_OUTS; k++) s->out[k] = -1;
  s->out[0] = j->out;
  return LM_OK;
}

/* Replaces the weight of a product, [in, out], by a view of it as that of a linear layer. */
static lm_status transpose_weight(lm_plan *p, joined *j) {
  lm_tensor *w = p->value[j->weight].t, *view = NULL;
  const int64_t size[] = {w->size[1], w->size[0]}, stride[] = {w->stride[1], w->stride[0]};
  NEED(lm_tensor_view(w, 2, size, stride, 0, &view));
  return add_constant(p, view, &j->weight);
}

lm_status lm_plan_join(lm_plan *p, const lm_plan *like) {
  for (int i = 0; i < p->nsteps; i++) {
    joined j;
    if (!is_joinable(p, &p->step[i], &j)) continue;
    const bool transposes = is_product(&p->step[i]);
    if (transposes) NEED(transpose_weight(p, &j));
    int last = i;
    for (int next; (next = next_reader(p, last, j.out)) >= 0; last = next) {
      bool done_;
      NEED(join_step(p, like, &j, &p->step[next], &done_));
      if (!done_) break;
      p->step[last].is_removed = true;
      j.out = p->step[next].out[0];
    }
    if (last > i || transposes) NEED(put_joined(p, last, &j));
  }
  return LM_OK;
}
