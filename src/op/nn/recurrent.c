/* A recurrent layer in one direction: checks, what kernels compute in, gradients of weights. Then layers that a
 * device's library computes all at once: checks. */
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "op/input_layout.h"

/* The arguments of either op, as they were given or as kernels want them: contiguous, float32 or float64. */
typedef struct layer_args {
  lm_tensor *weight_hh, *h0, *c0, *bias_hh, *weight_hr;
} layer_args;

static int gates_of(int cell) { return cell == LM_LSTM ? 4 : cell == LM_GRU ? 3 : 1; }
static int slots_of(int cell) { return cell == LM_LSTM ? 5 : cell == LM_GRU ? 4 : 1; }
static lm_dtype compute_dtype(const lm_tensor *t) { return t->dtype == LM_F64 ? LM_F64 : LM_F32; }

/* *out is a new reference, or NULL where t is. */
static lm_status readied(lm_tensor *t, lm_dtype compute, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *same = NULL;
  if (!t) return LM_OK;
  TRY(lm_at_least_1d(t, compute, &same));
  TRY(lm_to_layout(same, LM_CONTIGUOUS, out));
done:
  lm_release(same);
  return status;
}

static lm_status all_readied(const layer_args *a, lm_dtype compute, layer_args *out) {
  lm_status status = LM_OK;
  TRY(readied(a->weight_hh, compute, &out->weight_hh));
  TRY(readied(a->h0, compute, &out->h0));
  TRY(readied(a->c0, compute, &out->c0));
  TRY(readied(a->bias_hh, compute, &out->bias_hh));
  TRY(readied(a->weight_hr, compute, &out->weight_hr));
done:
  return status;
}

static void released(layer_args *a) {
  lm_release(a->weight_hh);
  lm_release(a->h0);
  lm_release(a->c0);
  lm_release(a->bias_hh);
  lm_release(a->weight_hr);
}

/* t is [m, n], or [n] for m = -1, of like's dtype and on its device. */
static lm_status check(lm_op_id op, const char *name, const lm_tensor *t, int64_t m, int64_t n, const lm_tensor *like) {
  lm_status status = LM_OK;
  if (!t) return LM_OK;
  int ndim = m < 0 ? 1 : 2;
  if (t->ndim != ndim || t->size[ndim - 1] != n || (ndim == 2 && t->size[0] != m)) {
    if (ndim == 1) { TRY(lm_fail_shape(lm_ops[op].name, name, lm_text("[%lld]", (long long)n), lm_shape_of(t))); }
    TRY(lm_fail_shape(lm_ops[op].name, name, lm_text("[%lld, %lld]", (long long)m, (long long)n), lm_shape_of(t)));
  }
  if (t->dtype != like->dtype) {
    TRY(lm_fail_dtypes(lm_ops[op].name, name, lm_dtype_name((lm_dtype)t->dtype), "weight_hh",
                       lm_dtype_name((lm_dtype)like->dtype)));
  }
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)t, (lm_tensor *)like}));
done:
  return status;
}

/* batch_sizes must not grow from step to step, begin with h0's batch size, and sum to the number of rows. */
static lm_status check_steps(lm_op_id op, const lm_tensor *sizes, int64_t batch, int64_t rows) {
  lm_status status = LM_OK;
  int64_t sum = 0, before = batch;
  if (!sizes) {
    if (batch > 0 ? rows % batch != 0 : rows != 0) {
      TRY(lm_fail_divisible(lm_ops[op].name, "the number of rows of x", rows, "the batch size of h0", batch));
    }
    return LM_OK;
  }
  if (sizes->ndim != 1 || sizes->dtype != LM_I64 || LM_DEVICE_KIND(sizes->device) != LM_CPU ||
      !lm_is_contiguous(sizes)) {
    TRY(lm_fail_value(lm_ops[op].name, "batch_sizes", "int64 [steps] on the CPU",
                      lm_text("%s %s on %s", lm_dtype_name((lm_dtype)sizes->dtype), lm_shape_of(sizes),
                              lm_device_name(sizes->device))));
  }
  const int64_t *size = (const int64_t *)sizes->data;
  bool good = sizes->size[0] == 0 || size[0] == batch;
  for (int64_t t = 0; good && t < sizes->size[0]; t++) {
    good = size[t] >= 0 && size[t] <= before;
    sum += before = size[t];
  }
  if (!good || sum != rows) {
    TRY(lm_fail(LM_E_SHAPE, "%s: batch_sizes must begin with h0's batch size %lld, not grow, and sum to %lld",
                lm_ops[op].name, (long long)batch, (long long)rows));
  }
done:
  return status;
}

/* batch_sizes, which are checked and then used; NULL if there are none. */
static lm_status private_sizes(lm_tensor *sizes, lm_tensor **out) {
  return sizes ? lm_to_private_copy(sizes, out) : LM_OK;
}

static lm_status check_layer(lm_op_id op, const layer_args *a, int cell, int64_t rows, const lm_tensor *sizes) {
  lm_status status = LM_OK;
  const lm_tensor *w = a->weight_hh;
  TRY(lm_check_ndim(op, "weight_hh", w, 2));
  TRY(lm_check_float(op, "weight_hh", w));
  int64_t hidden = w->size[0] / gates_of(cell), width = w->size[1];
  if (hidden == 0 || w->size[0] % gates_of(cell) != 0 || (!a->weight_hr && width != hidden)) {
    TRY(lm_fail_shape(lm_ops[op].name, "weight_hh", lm_text("[%d * H, %s]", gates_of(cell), a->weight_hr ? "P" : "H"),
                      lm_shape_of(w)));
  }
  if ((cell == LM_LSTM) != (a->c0 != NULL) || (a->weight_hr && cell != LM_LSTM)) {
    TRY(lm_fail(LM_E_ARG, "%s: c0 must be given for lstm and for no other cell; weight_hr is for lstm",
                lm_ops[op].name));
  }
  TRY(lm_check_ndim(op, "h0", a->h0, 2));
  TRY(check(op, "h0", a->h0, a->h0->size[0], width, w));
  TRY(check(op, "c0", a->c0, a->h0->size[0], hidden, w));
  TRY(check(op, "bias_hh", a->bias_hh, -1, w->size[0], w));
  TRY(check(op, "weight_hr", a->weight_hr, width, hidden, w));
  TRY(check_steps(op, sizes, a->h0->size[0], rows));
done:
  return status;
}

static lm_status matrix(const lm_tensor *like, int64_t m, int64_t n, lm_tensor **out) {
  return lm_tensor_empty((lm_dtype)like->dtype, like->device, 2, (int64_t[]){m, n}, LM_CONTIGUOUS, out);
}
static lm_status nothing(const lm_tensor *like, lm_tensor **out) {
  return lm_tensor_empty((lm_dtype)like->dtype, like->device, 1, (int64_t[]){0}, LM_CONTIGUOUS, out);
}

lm_status lm_op_recurrent_layer(const lm_recurrent_layer_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_layer;
  lm_status status = LM_OK;
  const layer_args given = {a->weight_hh, a->h0, a->c0, a->bias_hh, a->weight_hr};
  layer_args in = {.weight_hh = NULL};
  lm_tensor *gates = NULL, *result[4] = {NULL}, *sizes = NULL;
  const bool lstm = a->cell == LM_LSTM;
  TRY(lm_check_ndim(op, "gates", a->gates, 2));
  TRY(private_sizes(a->batch_sizes, &sizes));
  TRY(check_layer(op, &given, a->cell, a->gates->size[0], sizes));
  int64_t rows = a->gates->size[0], batch = a->h0->size[0], width = a->weight_hh->size[1];
  int64_t hidden = a->weight_hh->size[0] / gates_of(a->cell);
  TRY(check(op, "gates", a->gates, rows, a->weight_hh->size[0], a->weight_hh));
  lm_dtype compute = compute_dtype(a->weight_hh);
  TRY(readied(a->gates, compute, &gates));
  TRY(all_readied(&given, compute, &in));
  TRY(matrix(gates, rows, width, &result[0]));
  TRY(matrix(gates, batch, width, &result[1]));
  TRY(lstm ? matrix(gates, batch, hidden, &result[2]) : nothing(gates, &result[2]));
  TRY(matrix(gates, rows, slots_of(a->cell) * hidden, &result[3]));
  if (rows > 0) {
    lm_recurrent_layer_args job = {.gates = gates,
                                   .weight_hh = in.weight_hh,
                                   .h0 = in.h0,
                                   .c0 = in.c0,
                                   .bias_hh = in.bias_hh,
                                   .weight_hr = in.weight_hr,
                                   .cell = a->cell,
                                   .reverse = a->reverse,
                                   .batch_sizes = sizes};
    TRY(lm_dispatch_or_host(op, gates->device, &job, result));
  } else {
    TRY(lm_copy(in.h0, result[1]));
    if (lstm) TRY(lm_copy(in.c0, result[2]));
  }
  for (int k = 0; k < 3; k++) TRY(lm_at_least_1d(result[k], (lm_dtype)a->gates->dtype, &out[k]));
  out[3] = lm_retain(result[3]);
done:
  lm_release(sizes);
  lm_release(gates);
  released(&in);
  for (int k = 0; k < 4; k++) lm_release(result[k]);
  return status;
}

/* xᵀ y in x's dtype, then in `dtype`. */
static lm_status product(lm_tensor *x, lm_tensor *y, lm_dtype dtype, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *transposed = NULL, *whole = NULL;
  int64_t size[2] = {x->size[1], x->size[0]}, stride[2] = {1, x->size[1]};
  TRY(lm_tensor_view(x, 2, size, stride, 0, &transposed));
  TRY(lm_op_product(LM_OP_mm, &(lm_product_args){.x = transposed, .other = y, .alpha = 1}, &whole));
  TRY(lm_at_least_1d(whole, dtype, out));
done:
  lm_release(transposed);
  lm_release(whole);
  return status;
}

lm_status lm_op_recurrent_layer_backward(const lm_recurrent_layer_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_layer_backward;
  lm_status status = LM_OK;
  const layer_args given = {a->weight_hh, a->h0, a->c0, a->bias_hh, a->weight_hr};
  lm_tensor *const others[] = {a->y, a->work, a->grad_y, a->grad_h, a->grad_c};
  layer_args in = {.weight_hh = NULL};
  lm_tensor *other[5] = {NULL}, *result[6] = {NULL}, *bias = NULL, *sizes = NULL;
  const bool lstm = a->cell == LM_LSTM, gru = a->cell == LM_GRU;
  const lm_dtype dtype = (lm_dtype)a->weight_hh->dtype, compute = compute_dtype(a->weight_hh);
  TRY(lm_check_ndim(op, "y", a->y, 2));
  int64_t rows = a->y->size[0];
  TRY(private_sizes(a->batch_sizes, &sizes));
  TRY(check_layer(op, &given, a->cell, rows, sizes));
  int64_t batch = a->h0->size[0], width = a->weight_hh->size[1], gates = a->weight_hh->size[0];
  int64_t hidden = gates / gates_of(a->cell);
  TRY(check(op, "y", a->y, rows, width, a->weight_hh));
  TRY(check(op, "grad_y", a->grad_y, rows, width, a->weight_hh));
  TRY(check(op, "grad_h", a->grad_h, batch, width, a->weight_hh));
  if (lstm) TRY(check(op, "grad_c", a->grad_c, batch, hidden, a->weight_hh));
  for (int k = 0; k < 5; k++) TRY(readied(k < 4 || lstm ? others[k] : NULL, compute, &other[k]));
  TRY(check(op, "work", other[1], rows, slots_of(a->cell) * hidden, other[0]));
  TRY(all_readied(&given, compute, &in));
  const lm_tensor *like = in.weight_hh;
  TRY(matrix(like, rows, gates, &result[0]));
  TRY(matrix(like, batch, width, &result[1]));
  TRY(lstm ? matrix(like, batch, hidden, &result[2]) : nothing(like, &result[2]));
  TRY(gru            ? matrix(like, rows, gates, &result[3])
      : in.weight_hr ? matrix(like, rows, width, &result[3])
                     : nothing(like, &result[3]));
  TRY(matrix(like, rows, width, &result[4]));
  TRY(in.weight_hr ? matrix(like, rows, hidden, &result[5]) : nothing(like, &result[5]));
  lm_recurrent_layer_backward_args job = {.weight_hh = in.weight_hh,
                                          .h0 = in.h0,
                                          .y = other[0],
                                          .work = other[1],
                                          .grad_y = other[2],
                                          .grad_h = other[3],
                                          .grad_c = other[4],
                                          .c0 = in.c0,
                                          .bias_hh = in.bias_hh,
                                          .weight_hr = in.weight_hr,
                                          .batch_sizes = sizes,
                                          .cell = a->cell,
                                          .reverse = a->reverse};
  TRY(lm_dispatch_or_host(op, like->device, &job, result));
  lm_tensor *products = result[gru ? 3 : 0];
  TRY(lm_at_least_1d(result[0], dtype, &out[0]));
  TRY(product(products, result[4], dtype, &out[1]));
  TRY(lm_at_least_1d(result[1], dtype, &out[2]));
  TRY(lm_at_least_1d(result[2], dtype, &out[3]));
  if (in.bias_hh) {
    TRY(lm_op_reduce(LM_OP_sum, &(lm_reduce_args){.x = products, .dim = {.n = 1, .v = {0}}, .dtype = LM_NO_DTYPE},
                     &bias));
    TRY(lm_at_least_1d(bias, dtype, &out[4]));
  } else {
    TRY(nothing(like, &out[4]));
  }
  if (in.weight_hr)
    TRY(product(result[3], result[5], dtype, &out[5]));
  else
    TRY(nothing(like, &out[5]));
done:
  lm_release(sizes);
  released(&in);
  for (int k = 0; k < 5; k++) lm_release(other[k]);
  for (int k = 0; k < 6; k++) lm_release(result[k]);
  lm_release(bias);
  return status;
}

/* ---- layers by a library */

static bool is_missing(lm_status *status) {
  bool missing = *status == LM_E_MISSING;
  if (missing) *status = LM_OK;
  return missing;
}

/* What was made becomes the caller's. */
static void hand_over(lm_tensor **made, int n, lm_tensor **out) {
  memcpy(out, made, (size_t)n * sizeof *out);
  memset(made, 0, (size_t)n * sizeof *made);
}

lm_status lm_op_recurrent_weights(const lm_recurrent_weights_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_weights;
  lm_status status = LM_OK;
  lm_tensor *result[2] = {NULL};
  lm_tensor *const *w = a->weights.v;
  const int each = a->bias ? 4 : 2, directions = a->bidirectional ? 2 : 1;
  if (a->weights.n == 0 || a->weights.n % (each * directions) != 0) {
    TRY(lm_fail_int(lm_ops[op].name, "the number of weights",
                    lm_text("a multiple of %d (layers and directions)", each * directions), a->weights.n));
  }
  TRY(lm_check_ndim(op, "weights[2]", w[1], 2));
  TRY(lm_check_float(op, "weights[2]", w[1]));
  int64_t hidden = w[1]->size[1], gates = hidden * gates_of(a->cell);
  for (int i = 0; i < a->weights.n; i++) {
    char name[32];
    snprintf(name, sizeof name, "weights[%d]", i + 1);
    bool input = i % each == 0;
    if (input) TRY(lm_check_ndim(op, name, w[i], 2));
    int64_t width = i >= each * directions ? hidden * directions : w[0]->ndim == 2 ? w[0]->size[1] : 0;
    TRY(check(op, name, w[i], i % each < 2 ? gates : -1, input ? width : i % each == 1 ? hidden : gates, w[1]));
  }
  if (hidden > 0) {
    status = lm_dispatch(op, w[1]->device, a, result);
    if (is_missing(&status)) lm_release(result[0]), lm_release(result[1]), result[0] = result[1] = NULL;
    TRY(status);
  }
  for (int k = 0; k < 2; k++) {
    if (!result[k]) TRY(nothing(w[1], &result[k]));
  }
  hand_over(result, 2, out);
done:
  for (int k = 0; k < 2; k++) lm_release(result[k]);
  return status;
}

/* Sizes of layers and of what they are given, for either op. */
static lm_status check_network(lm_op_id op, const lm_tensor *x, const lm_tensor *weights, const lm_tensor *h0,
                               const lm_tensor *c0, const lm_tensor *batch_sizes, int cell, bool bidirectional) {
  lm_status status = LM_OK;
  TRY(lm_check_ndim(op, "x", x, 2));
  TRY(lm_check_float(op, "x", x));
  TRY(lm_check_ndim(op, "weights", weights, 1));
  TRY(check(op, "weights", weights, -1, weights->size[0], x));
  TRY(lm_check_ndim(op, "h0", h0, 3));
  if (h0->size[0] == 0 || h0->size[0] % (bidirectional ? 2 : 1) != 0) {
    TRY(lm_fail_shape(lm_ops[op].name, "h0", lm_text("[layers * %d, N, H]", bidirectional ? 2 : 1), lm_shape_of(h0)));
  }
  if ((cell == LM_LSTM) != (c0 != NULL))
    TRY(lm_fail(LM_E_ARG, "%s: c0 must be given for lstm and for no other cell", lm_ops[op].name));
  const lm_tensor *state[2] = {h0, c0};
  for (int k = 0; k < 2 && state[k]; k++) {
    bool alike = state[k]->ndim == 3 && state[k]->dtype == x->dtype;
    for (int d = 0; alike && d < 3; d++) alike = state[k]->size[d] == h0->size[d];
    if (!alike) {
      TRY(lm_fail_value(lm_ops[op].name, k == 0 ? "h0" : "c0",
                        lm_text("%s %s", lm_dtype_name((lm_dtype)x->dtype), lm_shape_of(h0)),
                        lm_text("%s %s", lm_dtype_name((lm_dtype)state[k]->dtype), lm_shape_of(state[k]))));
    }
    TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)state[k], (lm_tensor *)x}));
  }
  TRY(check_steps(op, batch_sizes, h0->size[1], x->size[0]));
done:
  return status;
}

static lm_status like(const lm_tensor *t, lm_tensor **out) {
  return lm_tensor_empty((lm_dtype)t->dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, out);
}

static lm_status zeros(lm_tensor *t, lm_tensor **out) {
  return lm_op_zeros_like(&(lm_zeros_like_args){.x = t, .dtype = LM_NO_DTYPE, .device = LM_NO_DEVICE}, out);
}

lm_status lm_op_recurrent_network(const lm_recurrent_network_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_network;
  lm_status status = LM_OK;
  lm_tensor *result[4] = {NULL};
  lm_recurrent_network_args run = *a;
  run.batch_sizes = NULL;
  TRY(private_sizes(a->batch_sizes, &run.batch_sizes));
  TRY(check_network(op, a->x, a->weights, a->h0, a->c0, run.batch_sizes, a->cell, a->bidirectional));
  TRY(matrix(a->x, a->x->size[0], a->h0->size[2] * (a->bidirectional ? 2 : 1), &result[0]));
  TRY(like(a->h0, &result[1]));
  TRY(a->c0 ? like(a->c0, &result[2]) : nothing(a->x, &result[2]));
  if (a->x->size[0] > 0) {
    status = lm_dispatch(op, a->x->device, &run, result);
    if (is_missing(&status)) {
      for (int k = 0; k < 4; k++) lm_release(result[k]), result[k] = NULL;
    }
    TRY(status);
  } else {
    TRY(lm_copy(a->h0, result[1]));
    if (a->c0) TRY(lm_copy(a->c0, result[2]));
  }
  for (int k = 0; k < 4; k++) {
    if (!result[k]) TRY(nothing(a->x, &result[k]));
  }
  hand_over(result, 4, out);
done:
  lm_release(run.batch_sizes);
  for (int k = 0; k < 4; k++) lm_release(result[k]);
  return status;
}

lm_status lm_op_recurrent_network_backward(const lm_recurrent_network_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_network_backward;
  lm_status status = LM_OK;
  lm_tensor *result[4] = {NULL};
  lm_recurrent_network_backward_args run = *a;
  const int64_t width = a->h0->ndim == 3 ? a->h0->size[2] * (a->bidirectional ? 2 : 1) : 0;
  run.batch_sizes = NULL;
  TRY(private_sizes(a->batch_sizes, &run.batch_sizes));
  TRY(check_network(op, a->x, a->weights, a->h0, a->c0, run.batch_sizes, a->cell, a->bidirectional));
  TRY(check(op, "y", a->y, a->x->size[0], width, a->x));
  TRY(check(op, "grad_y", a->grad_y, a->x->size[0], width, a->x));
  const lm_tensor *grad[2] = {a->grad_h, a->c0 ? a->grad_c : NULL};
  for (int k = 0; k < 2; k++) {
    if (grad[k] && (grad[k]->numel != a->h0->numel || grad[k]->dtype != a->x->dtype)) {
      TRY(lm_fail_value(lm_ops[op].name, k == 0 ? "grad_h" : "grad_c",
                        lm_text("%s %s", lm_dtype_name((lm_dtype)a->x->dtype), lm_shape_of(a->h0)),
                        lm_text("%s %s", lm_dtype_name((lm_dtype)grad[k]->dtype), lm_shape_of(grad[k]))));
    }
  }
  bool empty = a->x->size[0] == 0;
  TRY(like(a->x, &result[0]));
  TRY(empty ? zeros(a->weights, &result[1]) : like(a->weights, &result[1]));
  TRY(empty && !a->grad_h ? zeros(a->h0, &result[2]) : like(a->h0, &result[2]));
  TRY(!a->c0 ? nothing(a->x, &result[3]) : empty && !a->grad_c ? zeros(a->c0, &result[3]) : like(a->c0, &result[3]));
  if (!empty) {
    TRY(lm_dispatch(op, a->x->device, &run, result));
  } else {
    for (int k = 0; k < 2; k++) {
      if (grad[k]) TRY(lm_copy(grad[k], result[2 + k]));
    }
  }
  hand_over(result, 4, out);
done:
  lm_release(run.batch_sizes);
  for (int k = 0; k < 4; k++) lm_release(result[k]);
  return status;
}
