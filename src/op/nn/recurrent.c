/* Checks recurrent layers in one direction, and computes gradients of their weights; then checks layers that a device's
 * library computes at once. */
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "op/operand_checks.h"

static int gates_of(int cell) { return cell == LM_LSTM ? 4 : cell == LM_GRU ? 3 : 1; }
int64_t lm_recurrent_slots(int cell) { return cell == LM_LSTM ? 5 : cell == LM_GRU ? 4 : 1; }

/* Checks that t is [m, n], or [n] for m = -1, of like's dtype and on its device. */
static lm_status check_rnn(lm_op_id op, const char *name, const lm_tensor *t, int64_t m, int64_t n,
                           const lm_tensor *like) {
  if (!t) return LM_OK;
  int ndim = m < 0 ? 1 : 2;
  if (t->ndim != ndim || t->size[ndim - 1] != n || (ndim == 2 && t->size[0] != m)) {
    if (ndim == 1) return lm_fail_shape(lm_ops[op].name, name, lm_text("[%lld]", (long long)n), lm_shape_of(t));
    return lm_fail_shape(lm_ops[op].name, name, lm_text("[%lld, %lld]", (long long)m, (long long)n), lm_shape_of(t));
  }
  if (t->dtype != like->dtype) {
    return lm_fail_dtypes(lm_ops[op].name, name, lm_dtype_name(t->dtype), "weight_hh", lm_dtype_name(like->dtype));
  }
  return lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)t, (lm_tensor *)like});
}

/* Checks that batch_sizes begin with h0's batch size, never grow, and sum to the number of rows. */
lm_status lm_check_steps(lm_op_id op, const lm_tensor *sizes, int64_t batch, int64_t rows) {
  int64_t sum = 0, before = batch;
  if (!sizes) {
    if (batch > 0 ? rows % batch != 0 : rows != 0) {
      return lm_fail_divisible(lm_ops[op].name, "the number of rows of x", rows, "the batch size of h0", batch);
    }
    return LM_OK;
  }
  if (sizes->ndim != 1 || sizes->dtype != LM_I64 || LM_DEVICE_KIND(sizes->device) != LM_CPU ||
      !lm_is_contiguous(sizes)) {
    return lm_fail_value(
        lm_ops[op].name, "batch_sizes", "int64 [steps] on the CPU",
        lm_text("%s %s on %s", lm_dtype_name(sizes->dtype), lm_shape_of(sizes), lm_device_name(sizes->device)));
  }
  const int64_t *size = (const int64_t *)sizes->data;
  bool good = sizes->size[0] == 0 || size[0] == batch;
  for (int64_t t = 0; good && t < sizes->size[0]; t++) {
    good = size[t] >= 0 && size[t] <= before;
    sum += before = size[t];
  }
  if (!good || sum != rows) {
    return lm_fail(LM_E_SHAPE, "%s: batch_sizes must begin with h0's batch size %lld, not grow, and sum to %lld",
                   lm_ops[op].name, (long long)batch, (long long)rows);
  }
  return LM_OK;
}

lm_status lm_check_cell(lm_op_id op, int cell, const lm_tensor *weight_hh, bool has_c0, bool has_projection,
                        int64_t *hidden) {
  const int64_t gates = weight_hh->size[0], width = weight_hh->size[1];
  *hidden = gates / gates_of(cell);
  if (*hidden == 0 || gates % gates_of(cell) != 0 || (!has_projection && width != *hidden))
    return lm_fail_shape(lm_ops[op].name, "weight_hh",
                         lm_text("[%d * H, %s]", gates_of(cell), has_projection ? "P" : "H"), lm_shape_of(weight_hh));
  if ((cell == LM_LSTM) == has_c0 && (!has_projection || cell == LM_LSTM)) return LM_OK;
  return lm_fail(LM_E_ARG, "%s: c0 must be given for lstm and for no other cell; weight_hr is for lstm",
                 lm_ops[op].name);
}

lm_status lm_compute_recurrent_layer(lm_frame *f, const void *args) {
  const lm_recurrent_layer_args *run = args;
  if (run->gates->size[0] > 0) return lm_frame_dispatch_or_host(f, run->gates->device, run);
  NEED(lm_copy(run->h0, f->result[1]));
  if (run->c0) NEED(lm_copy(run->c0, f->result[2]));
  return LM_OK;
}

/* Computes result i = xᵀ y in x's dtype, then converts it to `dtype`. */
static lm_status transposed_product(lm_frame *f, int i, lm_tensor *x, lm_tensor *y, lm_dtype dtype) {
  LM_OWNED *transposed = NULL;
  int64_t size[2] = {x->size[1], x->size[0]}, stride[2] = {1, x->size[1]};
  NEED(lm_tensor_view(x, 2, size, stride, 0, &transposed));
  NEED(lm_op_product(LM_OP_mm, &(lm_product_args){.x = transposed, .other = y, .alpha = 1}, &f->result[i]));
  return lm_frame_convert_result(f, i, dtype);
}

/* Creates a matrix [m, n] of like's dtype that the frame owns, or [0] for m = -1. */
static lm_status new_matrix(lm_frame *f, const lm_tensor *like, int64_t m, int64_t n, lm_tensor **out) {
  lm_status status =
      lm_tensor_empty(like->dtype, like->device, m < 0 ? 1 : 2, (int64_t[]){m < 0 ? 0 : m, n}, LM_CONTIGUOUS, out);
  if (status == LM_OK) lm_frame_hold(f, *out);
  return status;
}

lm_status lm_op_recurrent_layer_backward(const lm_recurrent_layer_backward_args *a, lm_tensor **out) {
  lm_recurrent_layer_backward_args run = *a;
  lm_tensor *computed[6] = {NULL}, *bias = NULL;
  const bool lstm = a->cell == LM_LSTM, gru = a->cell == LM_GRU;
  const lm_dtype dtype = a->weight_hh->dtype, compute = lm_stat_dtype(a->weight_hh);
  int64_t hidden;
  LM_FRAME(f, LM_OP_recurrent_layer_backward);
  NEED(lm_check_ndim(f.op, "y", a->y, 2));
  NEED(lm_check_ndim(f.op, "weight_hh", a->weight_hh, 2));
  NEED(lm_check_float(f.op, "weight_hh", a->weight_hh));
  NEED(lm_check_ndim(f.op, "h0", a->h0, 2));
  NEED(lm_check_cell(f.op, a->cell, a->weight_hh, a->c0 != NULL, a->weight_hr != NULL, &hidden));
  const int64_t rows = a->y->size[0], batch = a->h0->size[0], gates = a->weight_hh->size[0];
  const int64_t width = a->weight_hh->size[1];
  if (!lstm) run.grad_c = NULL;
  NEED(check_rnn(f.op, "h0", a->h0, batch, width, a->weight_hh));
  NEED(check_rnn(f.op, "c0", a->c0, batch, hidden, a->weight_hh));
  NEED(check_rnn(f.op, "bias_hh", a->bias_hh, -1, gates, a->weight_hh));
  NEED(check_rnn(f.op, "weight_hr", a->weight_hr, width, hidden, a->weight_hh));
  NEED(check_rnn(f.op, "y", a->y, rows, width, a->weight_hh));
  NEED(check_rnn(f.op, "grad_y", a->grad_y, rows, width, a->weight_hh));
  NEED(check_rnn(f.op, "grad_h", a->grad_h, batch, width, a->weight_hh));
  NEED(check_rnn(f.op, "grad_c", run.grad_c, batch, hidden, a->weight_hh));
  NEED(lm_frame_private(&f, &run.batch_sizes));
  NEED(lm_check_steps(f.op, run.batch_sizes, batch, rows));
  lm_tensor **const operands[] = {&run.weight_hh, &run.h0, &run.y,       &run.work,      &run.grad_y,
                                  &run.grad_h,    &run.c0, &run.bias_hh, &run.weight_hr, &run.grad_c};
  for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
    NEED(lm_frame_convert(&f, operands[i], compute));
    NEED(lm_frame_layout(&f, operands[i], LM_CONTIGUOUS));
  }
  NEED(check_rnn(f.op, "work", run.work, rows, lm_recurrent_slots(a->cell) * hidden, run.y));
  const lm_tensor *like = run.weight_hh;
  NEED(new_matrix(&f, like, rows, gates, &computed[0]));
  NEED(new_matrix(&f, like, batch, width, &computed[1]));
  NEED(new_matrix(&f, like, lstm ? batch : -1, hidden, &computed[2]));
  NEED(new_matrix(&f, like, gru || run.weight_hr ? rows : -1, gru ? gates : width, &computed[3]));
  NEED(new_matrix(&f, like, rows, width, &computed[4]));
  NEED(new_matrix(&f, like, run.weight_hr ? rows : -1, hidden, &computed[5]));
  NEED(lm_dispatch_or_host(f.op, like->device, &run, computed));
  lm_tensor *products = computed[gru ? 3 : 0];
  NEED(lm_at_least_1d(computed[0], dtype, &f.result[0]));
  NEED(transposed_product(&f, 1, products, computed[4], dtype));
  NEED(lm_at_least_1d(computed[1], dtype, &f.result[2]));
  NEED(lm_at_least_1d(computed[2], dtype, &f.result[3]));
  if (run.bias_hh) {
    NEED(lm_op_reduce(LM_OP_sum, &(lm_reduce_args){.x = products, .dim = {.n = 1, .v = {0}}, .dtype = LM_NO_DTYPE},
                      &bias));
    NEED(lm_at_least_1d(lm_frame_hold(&f, bias), dtype, &f.result[4]));
  } else {
    NEED(lm_frame_result(&f, 4, compute, like->device, 1, (int64_t[]){0}, LM_CONTIGUOUS));
  }
  if (run.weight_hr) {
    NEED(transposed_product(&f, 5, computed[3], computed[5], dtype));
  } else {
    NEED(lm_frame_result(&f, 5, compute, like->device, 1, (int64_t[]){0}, LM_CONTIGUOUS));
  }
  return lm_frame_end(&f, out);
}

/* ---- layers by a library */

/* Calls the kernel. Results become [0] if the library lacks such layers, and so do those that it leaves NULL. */
static lm_status run_by_library(lm_frame *f, bool empty, const lm_tensor *like, const void *run) {
  const int results = lm_ops[f->op].outs + lm_ops[f->op].aux;
  lm_status status = empty ? LM_OK : lm_dispatch(f->op, like->device, run, f->result);
  for (int i = 0; status == LM_E_MISSING && i < results; i++) {
    lm_release(f->result[i]);
    f->result[i] = NULL;
  }
  if (status == LM_E_MISSING) status = LM_OK;
  for (int i = 0; status == LM_OK && i < results; i++) {
    if (!f->result[i]) status = lm_frame_result(f, i, like->dtype, like->device, 1, (int64_t[]){0}, LM_CONTIGUOUS);
  }
  return status;
}

lm_status lm_op_recurrent_weights(const lm_recurrent_weights_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_recurrent_weights;
  lm_tensor *const *w = a->weights.v;
  const int each = a->bias ? 4 : 2, directions = a->bidirectional ? 2 : 1;
  LM_FRAME(f, op);
  if (a->weights.n == 0 || a->weights.n % (each * directions) != 0) {
    return lm_fail_int(lm_ops[op].name, "the number of weights",
                       lm_text("a multiple of %d (layers and directions)", each * directions), a->weights.n);
  }
  NEED(lm_check_ndim(op, "weights[2]", w[1], 2));
  NEED(lm_check_float(op, "weights[2]", w[1]));
  int64_t hidden = w[1]->size[1], gates = hidden * gates_of(a->cell);
  for (int i = 0; i < a->weights.n; i++) {
    char name[32];
    snprintf(name, sizeof name, "weights[%d]", i + 1);
    bool input = i % each == 0;
    if (input) NEED(lm_check_ndim(op, name, w[i], 2));
    int64_t width = i >= each * directions ? hidden * directions : w[0]->ndim == 2 ? w[0]->size[1] : 0;
    NEED(check_rnn(op, name, w[i], i % each < 2 ? gates : -1, input ? width : i % each == 1 ? hidden : gates, w[1]));
  }
  NEED(run_by_library(&f, hidden == 0, w[1], a));
  return lm_frame_end(&f, out);
}

/* Checks the sizes of layers and of their inputs, for both ops. */
static lm_status check_network(lm_op_id op, const lm_tensor *x, const lm_tensor *weights, const lm_tensor *h0,
                               const lm_tensor *c0, const lm_tensor *batch_sizes, int cell, bool bidirectional) {
  NEED(lm_check_ndim(op, "x", x, 2));
  NEED(lm_check_float(op, "x", x));
  NEED(lm_check_ndim(op, "weights", weights, 1));
  NEED(check_rnn(op, "weights", weights, -1, weights->size[0], x));
  NEED(lm_check_ndim(op, "h0", h0, 3));
  if (h0->size[0] == 0 || h0->size[0] % (bidirectional ? 2 : 1) != 0) {
    return lm_fail_shape(lm_ops[op].name, "h0", lm_text("[layers * %d, N, H]", bidirectional ? 2 : 1), lm_shape_of(h0));
  }
  if ((cell == LM_LSTM) != (c0 != NULL))
    return lm_fail(LM_E_ARG, "%s: c0 must be given for lstm and for no other cell", lm_ops[op].name);
  const lm_tensor *state[2] = {h0, c0};
  for (int k = 0; k < 2 && state[k]; k++) {
    bool alike = state[k]->ndim == 3 && state[k]->dtype == x->dtype;
    for (int d = 0; alike && d < 3; d++) alike = state[k]->size[d] == h0->size[d];
    if (!alike) {
      return lm_fail_value(lm_ops[op].name, k == 0 ? "h0" : "c0",
                           lm_text("%s %s", lm_dtype_name(x->dtype), lm_shape_of(h0)),
                           lm_text("%s %s", lm_dtype_name(state[k]->dtype), lm_shape_of(state[k])));
    }
    NEED(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)state[k], (lm_tensor *)x}));
  }
  return lm_check_steps(op, batch_sizes, h0->size[1], x->size[0]);
}

/* Creates result i with t's dtype and sizes, contiguous. */
static lm_status result_as(lm_frame *f, int i, const lm_tensor *t, bool zeros) {
  lm_status status = lm_frame_result(f, i, t->dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS);
  if (!zeros || status != LM_OK) return status;
  lm_tensor *zeroed = NULL;
  status = lm_op_zero_(&(lm_zero__args){.x = f->result[i]}, &zeroed);
  lm_release(zeroed);
  return status;
}

lm_status lm_op_recurrent_network(const lm_recurrent_network_args *a, lm_tensor **out) {
  lm_recurrent_network_args run = *a;
  LM_FRAME(f, LM_OP_recurrent_network);
  NEED(lm_frame_private(&f, &run.batch_sizes));
  NEED(check_network(f.op, a->x, a->weights, a->h0, a->c0, run.batch_sizes, a->cell, a->bidirectional));
  const int64_t rows = a->x->size[0], width = a->h0->size[2] * (a->bidirectional ? 2 : 1);
  NEED(lm_frame_result(&f, 0, a->x->dtype, a->x->device, 2, (int64_t[]){rows, width}, LM_CONTIGUOUS));
  NEED(result_as(&f, 1, a->h0, false));
  if (a->c0) NEED(result_as(&f, 2, a->c0, false));
  if (rows == 0) {
    NEED(lm_copy(a->h0, f.result[1]));
    if (a->c0) NEED(lm_copy(a->c0, f.result[2]));
  }
  if (!a->c0) NEED(lm_frame_result(&f, 2, a->x->dtype, a->x->device, 1, (int64_t[]){0}, LM_CONTIGUOUS));
  NEED(run_by_library(&f, rows == 0, a->x, &run));
  return lm_frame_end(&f, out);
}

lm_status lm_op_recurrent_network_backward(const lm_recurrent_network_backward_args *a, lm_tensor **out) {
  lm_recurrent_network_backward_args run = *a;
  const int64_t width = a->h0->ndim == 3 ? a->h0->size[2] * (a->bidirectional ? 2 : 1) : 0;
  const lm_tensor *grad[2] = {a->grad_h, a->c0 ? a->grad_c : NULL}, *state[2] = {a->h0, a->c0};
  LM_FRAME(f, LM_OP_recurrent_network_backward);
  NEED(lm_frame_private(&f, &run.batch_sizes));
  NEED(check_network(f.op, a->x, a->weights, a->h0, a->c0, run.batch_sizes, a->cell, a->bidirectional));
  NEED(check_rnn(f.op, "y", a->y, a->x->size[0], width, a->x));
  NEED(check_rnn(f.op, "grad_y", a->grad_y, a->x->size[0], width, a->x));
  for (int k = 0; k < 2; k++) {
    if (grad[k] && (grad[k]->numel != a->h0->numel || grad[k]->dtype != a->x->dtype)) {
      return lm_fail_value(lm_ops[f.op].name, k == 0 ? "grad_h" : "grad_c",
                           lm_text("%s %s", lm_dtype_name(a->x->dtype), lm_shape_of(a->h0)),
                           lm_text("%s %s", lm_dtype_name(grad[k]->dtype), lm_shape_of(grad[k])));
    }
  }
  const bool empty = a->x->size[0] == 0;
  NEED(result_as(&f, 0, a->x, false));
  NEED(result_as(&f, 1, a->weights, empty));
  for (int k = 0; k < 2; k++) {
    if (state[k]) NEED(result_as(&f, 2 + k, state[k], empty && !grad[k]));
    if (state[k] && empty && grad[k]) NEED(lm_copy(grad[k], f.result[2 + k]));
  }
  if (!a->c0) NEED(lm_frame_result(&f, 3, a->x->dtype, a->x->device, 1, (int64_t[]){0}, LM_CONTIGUOUS));
  if (!empty) NEED(lm_dispatch(f.op, a->x->device, &run, f.result));
  return lm_frame_end(&f, out);
}
