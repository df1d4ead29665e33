#include "data/gather_batch.h"

#include <string.h>

#include "base/message.h"
#include "base/parallel.h"
#include "op/input_layout.h"
#include "op/kernels.h"
#include "op/op.h"
#include "op_entries.h"
#include "philox.h"

static lm_status check_index(const lm_tensor *x, const lm_tensor *index) {
  if (x->ndim == 0) return lm_fail_shape("gather_rows", "x", "[N, *]", "[]");
  if (index->dtype != LM_I64 || index->ndim != 1) {
    return lm_fail_dtype("gather_rows", "index", "a 1-d int64 tensor",
                         lm_text("%s %s", lm_dtype_name(index->dtype), lm_shape_of(index)));
  }
  bool x_is_elsewhere = LM_DEVICE_KIND(x->device) != LM_CPU;
  if (x_is_elsewhere || LM_DEVICE_KIND(index->device) != LM_CPU) {
    return lm_fail(LM_E_DEVICE, "gather_rows: %s must be on cpu, got %s", x_is_elsewhere ? "x" : "index",
                   lm_device_name(x_is_elsewhere ? x->device : index->device));
  }
  const int64_t *at = (const int64_t *)index->data;
  for (int64_t k = 0; k < index->numel; k++) {
    if (at[k] < 1 || at[k] > x->size[0]) { return lm_fail_index("gather_rows", at[k], 1, x->size[0]); }
  }
  return LM_OK;
}

typedef struct conversion {
  double scale, bias;
  float value[UINT8_MAX + 1];
  bool is_set;
} conversion;

/* Returns the float for each byte, computed in double, so that a scale of 1/255 equals division by 255. */
static const float *values_of(double scale, double bias) {
  static _Thread_local conversion latest;
  if (!latest.is_set || latest.scale != scale || latest.bias != bias) {
    latest = (conversion){.scale = scale, .bias = bias, .is_set = true};
    for (int i = 0; i <= UINT8_MAX; i++) latest.value[i] = (float)(i * scale + bias);
  }
  return latest.value;
}

static void convert_row(const uint8_t *restrict p, int64_t n, const float *restrict value, float *restrict q) {
  for (int64_t i = 0; i < n; i++) q[i] = value[p[i]];
}

typedef struct rows_job {
  const lm_tensor *x, *out;
  const int64_t *at;
  const float *value;
} rows_job;

static void convert_some(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  int64_t width = j->out->numel / j->out->size[0];
  for (int64_t k = first; k < last; k++)
    convert_row((const uint8_t *)j->x->data + (j->at[k] - 1) * width, width, j->value,
                (float *)j->out->data + k * width);
}

/* Converts rows of x, which is uint8 and contiguous. */
static lm_status convert_rows(const lm_tensor *x, const int64_t *at, double scale, double bias, lm_tensor *out) {
  rows_job job = {x, out, at, values_of(scale, bias)};
  return lm_parallel(out->size[0], (double)out->numel * 0.5, 0, convert_some, &job);
}

/* Computes t = t * scale + bias in place. */
static lm_status rescale(lm_tensor *t, double scale, double bias) {
  lm_status status = LM_OK;
  lm_tensor *number = NULL, *same = NULL;
  TRY(lm_tensor_number(scale, &number));
  TRY(lm_op_run_inplace(LM_OP_mul, &(lm_mul_args){.x = t, .other = number}, &same));
  lm_release(same);
  lm_release(number);
  same = number = NULL;
  TRY(lm_tensor_number(bias, &number));
  TRY(lm_op_run_inplace(LM_OP_add, &(lm_add_args){.x = t, .other = number, .alpha = 1}, &same));
done:
  lm_release(same);
  lm_release(number);
  return status;
}

lm_status lm_rows_gather(lm_tensor *x, lm_tensor *given, lm_dtype dtype, double scale, double bias, lm_tensor **out) {
  lm_tensor *converted = NULL;
  LM_OWNED *index = NULL, *rows = NULL;
  if (dtype == LM_NO_DTYPE) dtype = x->dtype;
  NEED(lm_to_private_copy(given, &index));
  NEED(check_index(x, index));
  if (x->dtype == LM_U8 && dtype == LM_F32 && lm_is_contiguous(x)) {
    int64_t size[LM_MAX_DIMS];
    memcpy(size, x->size, sizeof size);
    size[0] = index->numel;
    NEED(lm_tensor_empty(LM_F32, x->device, x->ndim, size, LM_CONTIGUOUS, &rows));
    NEED(convert_rows(x, (const int64_t *)index->data, scale, bias, rows));
  } else {
    NEED(lm_op_run(LM_OP_index_select, &(lm_index_select_args){.x = x, .dim = 0, .index = index}, &rows));
    if (dtype != rows->dtype) {
      lm_to_copy_args args = {.x = rows, .dtype = dtype, .device = rows->device, .memory_format = LM_PRESERVE};
      NEED(lm_op_run(LM_OP_to_copy, &args, &converted));
      lm_release(rows);
      rows = converted;
      converted = NULL;
    }
    if (scale != 1 || bias != 0) NEED(rescale(rows, scale, bias));
  }
  *out = lm_tensor_take(&rows);
  return LM_OK;
}

lm_status lm_row_gather(lm_tensor *x, int64_t k, lm_dtype dtype, double scale, double bias, lm_tensor **out) {
  LM_OWNED *index = NULL, *rows = NULL;
  bool converts = x->dtype == LM_U8 && dtype == LM_F32 && lm_is_contiguous(x) && x->ndim > 0 &&
                  LM_DEVICE_KIND(x->device) == LM_CPU && k >= 1 && k <= x->size[0];
  if (converts) {
    NEED(lm_tensor_empty(LM_F32, x->device, x->ndim - 1, x->size + 1, LM_CONTIGUOUS, out));
    int64_t width = (*out)->numel;
    convert_row((const uint8_t *)x->data + (k - 1) * width, width, values_of(scale, bias), (float *)(*out)->data);
    return LM_OK;
  }
  NEED(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){1}, LM_CONTIGUOUS, &index));
  *(int64_t *)index->data = k;
  NEED(lm_rows_gather(x, index, dtype, scale, bias, &rows));
  return lm_tensor_view(rows, rows->ndim - 1, rows->size + 1, rows->stride + 1, 0, out);
}

/* Returns the seed's i-th number, from 0 to below - 1. */
static int64_t random_below(uint64_t seed, int64_t i, int64_t below) {
  return (int64_t)lm_uniform_below(lm_philox_u64(lm_philox(seed, (uint64_t)i >> 1), (int)(i & 1)), (uint64_t)below);
}

lm_status lm_draws(int64_t n, int64_t count, uint64_t seed, lm_tensor **out) {
  if (count > 0 && n < 1) return lm_fail_int("draws", "n", "at least 1", n);
  NEED(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &count, LM_CONTIGUOUS, out));
  int64_t *p = (int64_t *)(*out)->data;
  for (int64_t i = 0; i < count; i++) p[i] = 1 + random_below(seed, i, n);
  return LM_OK;
}

lm_status lm_permutation(int64_t n, uint64_t seed, lm_tensor **out) {
  NEED(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &n, LM_CONTIGUOUS, out));
  int64_t *p = (int64_t *)(*out)->data;
  for (int64_t i = 0; i < n; i++) p[i] = i + 1;
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t j = random_below(seed, i, i + 1), kept = p[i];
    p[i] = p[j];
    p[j] = kept;
  }
  return LM_OK;
}
