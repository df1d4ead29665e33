/* Chooses the kernel of an elementwise op, and prepares its operands. */
#include <math.h>
#include <string.h>

#include "backend/cuda/strided.h"
#include "convert.h"
#include "op/pointwise.h"
#include "pointwise.h"

#include "base/message.h"
#include "pointwise_table.inc"

static lm_pointwise_value number_in(lm_dtype compute, double v) {
  switch (compute) {
    case LM_F32: return (lm_pointwise_value){.f32 = (float)v};
    case LM_F64: return (lm_pointwise_value){.f64 = v};
    default: return (lm_pointwise_value){.i64 = LM_PUT_I64(v)};
  }
}

lm_pointwise_value lm_cuda_value(const lm_tensor *t, lm_dtype compute) {
  lm_dtype dtype = t->dtype;
  if (lm_dtype_is_float(dtype)) return number_in(compute, lm_real_at(dtype, t->data, 0));
  int64_t whole = lm_integer_at(dtype, t->data, 0);
  switch (compute) {
    case LM_F32: return (lm_pointwise_value){.f32 = (float)whole};
    case LM_F64: return (lm_pointwise_value){.f64 = (double)whole};
    default: return (lm_pointwise_value){.i64 = whole};
  }
}

const char *lm_cuda_row_name(int kernel) { return names[kernel]; }

lm_status lm_cuda_pointwise(const lm_pointwise *job) {
  void *stream;
  int kernel = job->kernel;
  const lm_op *op = &lm_ops[lm_pointwise_op(kernel)];
  lm_device device = job->out->device;
  lm_pointwise_launcher *launcher = (job->compute == LM_F32 ? f32 : job->compute == LM_F64 ? f64 : i64)[kernel];
  if (!launcher) return lm_fail_missing(op->name, lm_dtype_name(job->compute));
  if (job->out->numel == 0) return LM_OK;
  int by = job->compute == LM_I64 ? lm_pointwise_divisor(kernel) - 1 : -1;
  lm_pointwise_launch launch = {.at = lm_cuda_strided(job->out), .bad_kind = LM_BAD_DIVISION};
  for (int i = 0; i < job->nin; i++) {
    const lm_tensor *t = job->in[i];
    int k = lm_cuda_strided_add(&launch.at, t, job->in_stride[i]);
    if (t->device == device) continue;
    launch.at.data[k] = NULL; /* a number in host memory is passed with the launch */
    launch.value[k] = lm_cuda_value(t, job->compute);
    if (i == by && launch.value[k].i64 == 0) return lm_fail_division(op->name);
  }
  for (int i = 0; i < op->nnumber; i++) launch.number[i] = number_in(job->compute, job->number[i]);
  lm_cuda_strided_order(&launch.at, LM_BY_MEMORY);
  NEED(lm_cuda_enter(device, &stream));
  if (by >= 0) NEED(lm_cuda_bad(device, &launch.bad));
  return lm_cuda_pointwise_launch(op->name, launcher, &launch, device, stream);
}
