/* Computes gradients of recurrent_layer by ordinary ops, if they are recorded: runs all steps again, then backward. */
#include <stddef.h>

#include "autograd/expr.h"
#include "autograd/formulas.h"
#include "base/mem.h"
#include "op_entries.h"

typedef struct step {
  int64_t first, n;   /* range of the step's rows among those of all steps */
  lm_tensor *h, *c;   /* the state before the step: [n, P]; LSTM: c [n, H] */
  lm_tensor *part[5]; /* LSTM: i, f, g, o, tanh of the new cells. GRU: r, z, n, r's factor. RNN: the result */
  lm_tensor *out;     /* LSTM: h before the projection */
  lm_tensor *dgates, *dproducts, *dh; /* gradients of gates, of weight_hh times h, of the new h */
} step;

typedef struct layer {
  lm_expr *e;
  int cell;
  int64_t hidden;
  lm_tensor *weight_hh, *bias_hh, *weight_hr;
} layer;

static lm_tensor *take_rows(lm_expr *e, lm_tensor *t, int64_t first, int64_t n) {
  return t ? lm_e_narrow(e, t, 0, first + 1, n) : NULL;
}
static lm_tensor *add_or_null(lm_expr *e, lm_tensor *a, lm_tensor *b) { return a && b ? lm_e_add(e, a, b, 1) : NULL; }
static lm_tensor *one_minus(lm_expr *e, lm_tensor *t) { return t ? lm_e_rsub(e, t, lm_e_number(e, 1), 1) : NULL; }
static lm_tensor *concat(lm_expr *e, int n, lm_tensor **t, int64_t dim) { return lm_e_cat(e, (lm_list){n, t}, dim); }

/* Returns the first n rows of t; rows that t lacks are taken from `more`. */
static lm_tensor *resized(lm_expr *e, lm_tensor *t, int64_t n, lm_tensor *more) {
  if (!t || n <= t->size[0]) return !t || n == t->size[0] ? t : take_rows(e, t, 0, n);
  return concat(e, 2, (lm_tensor *[]){t, take_rows(e, more, t->size[0], n - t->size[0])}, 0);
}

/* Return gradients of the inputs of a sigmoid and a tanh with result y. */
static lm_tensor *sigmoid_back(lm_expr *e, lm_tensor *g, lm_tensor *y) {
  return lm_e_mul(e, g, lm_e_mul(e, y, one_minus(e, y)));
}
static lm_tensor *tanh_back(lm_expr *e, lm_tensor *g, lm_tensor *y) {
  return lm_e_mul(e, g, one_minus(e, lm_e_mul(e, y, y)));
}

static lm_tensor *chunk(const layer *l, lm_tensor *t, int k) {
  return t ? lm_e_narrow(l->e, t, 1, k * l->hidden + 1, l->hidden) : NULL;
}

/* Runs one step; h and c become the state after it. */
static void recompute_step(const layer *l, step *s, lm_tensor *gates, lm_tensor **h, lm_tensor **c) {
  lm_expr *e = l->e;
  lm_tensor *product = lm_e_linear(e, s->h, l->weight_hh, l->bias_hh), *in = take_rows(e, gates, s->first, s->n);
  lm_tensor **part = s->part;
  if (l->cell == LM_GRU) {
    for (int k = 0; k < 2; k++) part[k] = lm_e_sigmoid(e, add_or_null(e, chunk(l, in, k), chunk(l, product, k)));
    part[3] = chunk(l, product, 2);
    part[2] = lm_e_tanh(e, add_or_null(e, chunk(l, in, 2), lm_e_mul(e, part[0], part[3])));
    *h = add_or_null(e, part[2], lm_e_mul(e, part[1], lm_e_sub(e, s->h, part[2], 1)));
    return;
  }
  lm_tensor *sum = add_or_null(e, in, product);
  if (l->cell != LM_LSTM) {
    *h = part[0] = l->cell == LM_RNN_TANH ? lm_e_tanh(e, sum) : lm_e_relu(e, sum);
    return;
  }
  for (int k = 0; k < 4; k++) part[k] = k == 2 ? lm_e_tanh(e, chunk(l, sum, k)) : lm_e_sigmoid(e, chunk(l, sum, k));
  *c = add_or_null(e, lm_e_mul(e, part[1], s->c), lm_e_mul(e, part[0], part[2]));
  part[4] = lm_e_tanh(e, *c);
  *h = s->out = lm_e_mul(e, part[3], part[4]);
  if (l->weight_hr) *h = lm_e_linear(e, s->out, l->weight_hr, NULL);
}

/* Runs one step backward; dh and dc, gradients of the state after it, become those of the state before it. */
static void backward(const layer *l, step *s, lm_tensor **dh, lm_tensor **dc) {
  lm_expr *e = l->e;
  lm_tensor **part = s->part, *d[4], *direct = NULL;
  s->dh = *dh;
  if (l->cell == LM_GRU) {
    d[2] = tanh_back(e, lm_e_mul(e, *dh, one_minus(e, part[1])), part[2]);
    d[1] = sigmoid_back(e, lm_e_mul(e, *dh, lm_e_sub(e, s->h, part[2], 1)), part[1]);
    d[0] = sigmoid_back(e, lm_e_mul(e, d[2], part[3]), part[0]);
    s->dgates = concat(e, 3, d, 1);
    d[2] = lm_e_mul(e, d[2], part[0]);
    s->dproducts = concat(e, 3, d, 1);
    direct = lm_e_mul(e, *dh, part[1]);
  } else if (l->cell == LM_LSTM) {
    lm_tensor *dout = l->weight_hr ? lm_e_mm(e, *dh, l->weight_hr) : *dh;
    lm_tensor *dcells = add_or_null(e, *dc, tanh_back(e, lm_e_mul(e, dout, part[3]), part[4]));
    d[0] = sigmoid_back(e, lm_e_mul(e, dcells, part[2]), part[0]);
    d[1] = sigmoid_back(e, lm_e_mul(e, dcells, s->c), part[1]);
    d[2] = tanh_back(e, lm_e_mul(e, dcells, part[0]), part[2]);
    d[3] = sigmoid_back(e, lm_e_mul(e, dout, part[4]), part[3]);
    s->dgates = s->dproducts = concat(e, 4, d, 1);
    *dc = lm_e_mul(e, dcells, part[1]);
  } else {
    lm_tensor *zero = lm_e_number(e, 0);
    s->dgates = s->dproducts =
        l->cell == LM_RNN_TANH ? tanh_back(e, *dh, part[0]) : lm_e_masked_fill(e, *dh, lm_e_le(e, part[0], zero), zero);
  }
  *dh = lm_e_mm(e, s->dproducts, l->weight_hh);
  if (direct) *dh = add_or_null(e, *dh, direct);
}

/* Concatenates the field at byte `offset` of all steps. */
static lm_tensor *all_of(lm_expr *e, const step *s, int64_t steps, size_t offset, lm_tensor **list) {
  for (int64_t t = 0; t < steps; t++) list[t] = *(lm_tensor *const *)((const char *)&s[t] + offset);
  return concat(e, (int)steps, list, 0);
}

/* Sets first and n of each step, from batch_sizes or the batch; false after an error. */
static bool find_steps(lm_expr *e, lm_tensor *sizes, int64_t batch, int64_t count, step *s) {
  lm_tensor *own = sizes ? lm_e_to_copy(e, sizes, LM_I64, LM_DEVICE(LM_CPU, 0), LM_CONTIGUOUS, false) : NULL;
  for (int64_t t = 0, first = 0; t < count && (own || !sizes); first += s[t].n, t++) {
    s[t].first = first;
    s[t].n = own ? ((const int64_t *)own->data)[t] : batch;
  }
  return own || !sizes;
}

static lm_tensor *or_zeros(lm_expr *e, lm_tensor *g, lm_tensor *like, lm_ints size) {
  return g ? lm_f_widened(e, g) : like ? lm_f_zeros_of(e, like, size) : NULL;
}

lm_tensor *lm_f_recurrent_gradients(lm_expr *e, lm_tensor *gates, lm_tensor *weight_hh, lm_tensor *h0, lm_tensor *gy,
                                    lm_tensor *gh, lm_tensor *gc, lm_tensor *c0, lm_tensor *bias_hh,
                                    lm_tensor *weight_hr, lm_tensor *batch_sizes, int cell, bool reverse) {
  if (!gates) return NULL;
  const lm_dtype dtype = weight_hh->dtype;
  lm_tensor *const narrow = weight_hh;
  const int64_t batch = h0->size[0], total = gates->size[0];
  const int64_t steps = total == 0 ? 0 : batch_sizes ? batch_sizes->size[0] : total / batch;
  gates = lm_f_widened(e, gates), weight_hh = lm_f_widened(e, weight_hh), h0 = lm_f_widened(e, h0);
  bias_hh = bias_hh ? lm_f_widened(e, bias_hh) : NULL, weight_hr = weight_hr ? lm_f_widened(e, weight_hr) : NULL;
  c0 = c0 ? lm_f_widened(e, c0) : NULL;
  if (e->status != LM_OK) return NULL;
  const int64_t hidden = weight_hh->size[0] / (cell == LM_LSTM ? 4 : cell == LM_GRU ? 3 : 1);
  const layer l = {e, cell, hidden, weight_hh, bias_hh, weight_hr};
  gy = or_zeros(e, gy, h0, (lm_ints){2, {total, h0->size[1]}});
  gh = or_zeros(e, gh, h0, (lm_ints){2, {batch, h0->size[1]}});
  gc = c0 ? or_zeros(e, gc, c0, lm_f_size_of(c0)) : NULL;
  step *s = lm_calloc((size_t)steps + 1, sizeof *s);
  lm_tensor **list = lm_malloc(((size_t)steps + 2) * sizeof *list), *result[6] = {NULL}, *ended_h = NULL,
            *ended_c = NULL;
  if (!s || !list) lm_e_ok(e, LM_E_OOM);
  if (e->status != LM_OK || !find_steps(e, batch_sizes, batch, steps, s)) goto done;
  lm_tensor *h = h0, *c = c0;
  for (int64_t i = 0; i < steps; i++) {
    step *now = &s[reverse ? steps - 1 - i : i];
    now->h = h = resized(e, i == 0 ? take_rows(e, h0, 0, now->n) : h, now->n, h0);
    if (c0) now->c = c = resized(e, i == 0 ? take_rows(e, c0, 0, now->n) : c, now->n, c0);
    recompute_step(&l, now, gates, &h, &c);
    if (e->status != LM_OK) goto done;
  }
  /* dh, dc: gradients of the state after a step, from later steps or, for sequences that end there, the last state */
  lm_tensor *dh = steps > 0 ? take_rows(e, gh, 0, s[reverse ? 0 : steps - 1].n) : gh;
  lm_tensor *dc = gc && steps > 0 ? take_rows(e, gc, 0, s[reverse ? 0 : steps - 1].n) : gc;
  for (int64_t i = steps - 1; i >= 0 && e->status == LM_OK; i--) {
    step *now = &s[reverse ? steps - 1 - i : i];
    if (dh->size[0] > now->n) { /* sequences that begin at the next step */
      ended_h = !ended_h ? take_rows(e, dh, now->n, dh->size[0] - now->n)
                         : concat(e, 2, (lm_tensor *[]){take_rows(e, dh, now->n, dh->size[0] - now->n), ended_h}, 0);
      if (dc) {
        ended_c = !ended_c ? take_rows(e, dc, now->n, dc->size[0] - now->n)
                           : concat(e, 2, (lm_tensor *[]){take_rows(e, dc, now->n, dc->size[0] - now->n), ended_c}, 0);
      }
    }
    dh = add_or_null(e, resized(e, dh, now->n, gh), take_rows(e, gy, now->first, now->n));
    if (dc) dc = resized(e, dc, now->n, gc);
    backward(&l, now, &dh, &dc);
  }
  if (e->status != LM_OK) goto done;
  result[2] = ended_h ? concat(e, 2, (lm_tensor *[]){dh, ended_h}, 0) : dh;
  result[3] = ended_c ? concat(e, 2, (lm_tensor *[]){dc, ended_c}, 0) : dc;
  if (steps == 0) {
    result[0] = lm_f_zeros_of(e, gates, lm_f_size_of(gates));
  } else {
    lm_tensor *products = all_of(e, s, steps, offsetof(step, dproducts), list);
    result[0] = all_of(e, s, steps, offsetof(step, dgates), list);
    result[1] = lm_e_mm(e, lm_e_t(e, products), all_of(e, s, steps, offsetof(step, h), list));
    if (bias_hh) result[4] = lm_e_sum(e, products, (lm_ints){1, {0}}, false, LM_NO_DTYPE);
    if (weight_hr) {
      result[5] = lm_e_mm(e, lm_e_t(e, all_of(e, s, steps, offsetof(step, dh), list)),
                          all_of(e, s, steps, offsetof(step, out), list));
    }
  }
  for (int i = 0; i < 6 && dtype != weight_hh->dtype; i++) {
    if (result[i]) result[i] = lm_f_in_dtype_of(e, result[i], narrow);
  }
done:
  lm_free(s);
  lm_free(list);
  if (e->status != LM_OK) return NULL;
  for (int i = 0; i < 6; i++) e->last[i] = result[i];
  return result[0];
}
