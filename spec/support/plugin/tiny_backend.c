/* A device built outside the tree, against the installed headers alone: two "cards" of 1 MiB each, whose memory is the
 * host's and whose kernels are plain loops. Slow, and short: it has what a small network's first layer needs. */
#include <stdlib.h>
#include <string.h>

#include "op/backend.h"
#include "op/pointwise.h"

/* ---- the driver */

enum { CARDS = 2, CARD_BYTES = 1 << 20 };
static long bytes_held[CARDS], segments_held[CARDS];

/* Return counts for the spec, which reads them by LuaJIT's ffi. */
LM_API long tiny_bytes(int card) { return bytes_held[card]; }
LM_API long tiny_segments(int card) { return segments_held[card]; }

static int tiny_count(void) { return CARDS; }

static lm_status tiny_alloc(int card, size_t bytes, void **out) {
  *out = NULL;
  if (bytes_held[card] + (long)bytes > CARD_BYTES || posix_memalign(out, 64, bytes) != 0)
    return lm_fail(LM_E_OOM, "tiny: card %d is full", card);
  memset(*out, 0xff, bytes); /* floats read before they are written are NaN */
  bytes_held[card] += (long)bytes;
  segments_held[card]++;
  return LM_OK;
}

static void tiny_free(int card, void *p, size_t bytes) {
  bytes_held[card] -= (long)bytes;
  segments_held[card]--;
  free(p);
}

static lm_status tiny_memory(int card, size_t *left, size_t *total) {
  *total = CARD_BYTES;
  *left = *total - (size_t)bytes_held[card];
  return LM_OK;
}

static lm_status tiny_bytes_copy(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes,
                                 bool later) {
  (void)stream, (void)to, (void)from, (void)later;
  memmove(dst, src, bytes);
  return LM_OK;
}

static lm_status tiny_synchronize(int card) {
  (void)card;
  return LM_OK;
}

static const lm_driver driver = {
    .abi = LM_DRIVER_ABI,
    .name = "tiny",
    .rules = {.round = 64,
              .small_limit = 4096,
              .small_segment = 16384,
              .large_segment = 65536,
              .large_limit = 32768,
              .large_round = 4096},
    .count = tiny_count,
    .alloc = tiny_alloc,
    .free = tiny_free,
    .memory = tiny_memory,
    .copy = tiny_bytes_copy,
    .synchronize = tiny_synchronize,
};

/* ---- elements */

static double get(const lm_tensor *t, int64_t at) {
  switch (t->dtype) {
    case LM_F32: return (double)((const float *)t->data)[at];
    case LM_F64: return ((const double *)t->data)[at];
    case LM_I64: return (double)((const int64_t *)t->data)[at];
    case LM_BOOL: return ((const uint8_t *)t->data)[at] != 0;
    default: return 0;
  }
}

static void put(lm_tensor *t, int64_t at, double v) {
  switch (t->dtype) {
    case LM_F32: ((float *)t->data)[at] = (float)v; break;
    case LM_F64: ((double *)t->data)[at] = v; break;
    case LM_I64: ((int64_t *)t->data)[at] = (int64_t)v; break;
    default: ((uint8_t *)t->data)[at] = v != 0; break;
  }
}

static lm_status check(const lm_tensor *t) {
  if (t->dtype == LM_F32 || t->dtype == LM_F64 || t->dtype == LM_I64 || t->dtype == LM_BOOL) return LM_OK;
  return lm_fail(LM_E_DTYPE, "%s: tiny has no %s", lm_op_running() ? lm_op_running() : "copy", lm_dtype_name(t->dtype));
}

/* Returns the offset of element k of a tensor of these sizes, in row-major order. */
static int64_t place(int64_t k, int ndim, const int64_t *size, const int64_t *stride) {
  int64_t at = 0;
  for (int d = ndim - 1; d >= 0; d--) {
    at += k % size[d] * stride[d];
    k /= size[d];
  }
  return at;
}

/* ---- kernels */

static lm_status tiny_pointwise(const lm_pointwise *job) {
  lm_status status = check(job->out);
  lm_tensor *y = job->out;
  for (int i = 0; i < job->nin && status == LM_OK; i++) status = check(job->in[i]);
  for (int64_t k = 0; k < y->numel && status == LM_OK; k++) {
    double v[LM_POINTWISE_MAX_IN] = {0}, result;
    for (int i = 0; i < job->nin; i++) v[i] = get(job->in[i], place(k, y->ndim, y->size, job->in_stride[i]));
    switch (job->kernel) {
      case LM_OP_add: result = v[0] + job->number[0] * v[1]; break;
      case LM_OP_sub: result = v[0] - job->number[0] * v[1]; break;
      case LM_OP_mul:
      case LM_GRAD_mul_x: /* inputs: g and other */
      case LM_GRAD_mul_other: result = v[0] * v[1]; break;
      case LM_OP_relu: result = v[0] < 0 ? 0 : v[0]; break;
      case LM_OP_ne: result = v[0] != v[1]; break;
      default: return lm_fail(LM_E_MISSING, "%s: tiny has no kernel for it", lm_op_running());
    }
    put(y, place(k, y->ndim, y->size, y->stride), result);
  }
  return status;
}

static lm_status tiny_copy(const lm_tensor *src, lm_tensor *dst) {
  lm_status status;
  TRY(check(src));
  TRY(check(dst));
  for (int64_t k = 0; k < dst->numel; k++)
    put(dst, place(k, dst->ndim, dst->size, dst->stride), get(src, place(k, src->ndim, src->size, src->stride)));
done:
  return status;
}

static lm_status tiny_fill_(const void *args, lm_tensor *const *out) {
  const lm_fill__args *a = args;
  lm_status status = check(out[0]);
  for (int64_t k = 0; status == LM_OK && k < out[0]->numel; k++)
    put(out[0], place(k, out[0]->ndim, out[0]->size, out[0]->stride), get(a->value, 0));
  return status;
}

/* Computes sums over all dims alone. */
static lm_status tiny_reduce(const void *args, lm_tensor *const *out) {
  const lm_reduce_args *a = args;
  lm_status status = check(a->x);
  double total = 0;
  if (a->statistic != LM_STATISTIC_SUM) return lm_fail(LM_E_MISSING, "%s: tiny has no kernel for it", lm_op_running());
  if (out[0]->numel != 1) return lm_fail(LM_E_MISSING, "sum: tiny sums all dims at once");
  for (int64_t k = 0; k < a->x->numel; k++) total += get(a->x, place(k, a->x->ndim, a->x->size, a->x->stride));
  put(out[0], 0, total);
  return status;
}

/* Computes mm alone. */
static lm_status tiny_product(const void *args, lm_tensor *const *out) {
  const lm_product_args *a = args;
  const lm_tensor *x = a->x, *w = a->other;
  lm_status status = check(x);
  if (x->ndim != 2 || a->transposed || a->beta != 0 || a->alpha != 1) {
    return lm_fail(LM_E_MISSING, "%s: tiny multiplies two matrices only", lm_op_running());
  }
  for (int64_t i = 0; status == LM_OK && i < x->size[0]; i++) {
    for (int64_t j = 0; j < w->size[1]; j++) {
      double total = 0;
      for (int64_t k = 0; k < x->size[1]; k++)
        total += get(x, i * x->stride[0] + k * x->stride[1]) * get(w, k * w->stride[0] + j * w->stride[1]);
      put(out[0], i * out[0]->stride[0] + j * out[0]->stride[1], total);
    }
  }
  return status;
}

static const lm_backend backend = {
    .abi = LM_BACKEND_ABI,
    .driver = &driver,
    .op =
        (const lm_kernel[LM_SLOT_COUNT]){
            [LM_OP_fill_] = tiny_fill_, [LM_OP_reduce] = tiny_reduce, [LM_OP_product] = tiny_product},
    .pointwise = tiny_pointwise,
    .copy = tiny_copy,
};

LM_API lm_status lm_backend_plugin(void) { return lm_backend_register(&backend); }
