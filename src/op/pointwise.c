/* Runs elementwise ops: chooses the dtype they compute in, broadcasts, chooses the output's layout.
 *
 * Promotion is PyTorch's: tensors with dims have priority over 0-d ones, those over Lua numbers; a lower priority
 * matters only if its category (bool < integer < floating) is higher. The op's entry then decides the result's dtype.
 * */
#include "op/pointwise.h"

#include <math.h>
#include <string.h>

#include "base/message.h"
#include "op/check.h"
#include "op/op_recorder.h"
#include "op/stream_order.h"

_Thread_local lm_op_recorder *lm_ops_recorded;

static const char *name_of(int kernel) { return lm_ops[lm_pointwise_op(kernel)].name; }

static int dtype_category(lm_dtype d) { return lm_dtype_is_float(d) ? 2 : d == LM_BOOL ? 0 : 1; }

lm_dtype lm_result_type(int n, lm_tensor *const *tensors) {
  enum { DIMS, ZERO_DIM, NUMBER, STANDINGS };
  lm_dtype of[STANDINGS] = {LM_NO_DTYPE, LM_NO_DTYPE, LM_NO_DTYPE};
  if (n == 2 && tensors[0] && tensors[1] && tensors[0]->dtype == tensors[1]->dtype && tensors[0]->ndim > 0) {
    return tensors[0]->dtype; /* the most frequent case */
  }
  for (int i = 0; i < n; i++) {
    const lm_tensor *t = tensors[i];
    if (!t) continue;
    lm_dtype d = t->dtype;
    if (t->number && lm_dtype_is_float(d)) d = lm_default_dtype();
    lm_dtype *best = &of[t->number ? NUMBER : t->ndim == 0 ? ZERO_DIM : DIMS];
    *best = *best == LM_NO_DTYPE || *best == d ? d : lm_dtype_promote(*best, d);
  }
  lm_dtype result = of[DIMS];
  for (int s = ZERO_DIM; s < STANDINGS; s++) {
    if (of[s] == LM_NO_DTYPE || of[s] == result) continue;
    if (result == LM_NO_DTYPE) {
      result = of[s];
    } else if (dtype_category(of[s]) > dtype_category(result)) {
      result = lm_dtype_promote(result, of[s]);
    }
  }
  return result == LM_NO_DTYPE ? lm_default_dtype() : result;
}

static lm_status check_mask(int kernel, const char *arg, const lm_tensor *mask) {
  if (mask->dtype == LM_BOOL) return LM_OK;
  return lm_remedy(lm_fail_dtype(name_of(kernel), arg, "bool", lm_dtype_name(mask->dtype)), "convert it with :bool()");
}

/* Finds the common dtype of the inputs that are not masks. */
static lm_status common_beside_masks(const lm_op *op, int nin, lm_tensor *const *in, lm_dtype *common) {
  lm_tensor *values[LM_POINTWISE_MAX_IN] = {NULL};
  int n = 0;
  bool numbers = true;
  for (int i = 0; i < nin; i++) {
    if (op->masks >> i & 1) {
      NEED(check_mask((int)(op - lm_ops), op->arg[i].name, in[i]));
    } else {
      numbers = numbers && in[i]->number;
      values[n++] = in[i];
    }
  }
  /* Lua numbers alone do not tell an integer from a float that is integral. */
  *common = numbers ? lm_default_dtype() : lm_result_type(n, values);
  return LM_OK;
}

static bool is_integral(double v) { return !isinf(v) && v == floor(v); }

/* Checks the restrictions of an op for a dtype that is not floating. */
static lm_status check_integers(const lm_op *op, lm_dtype common, const double *number) {
  if (common == LM_BOOL && op->not_bool) {
    return lm_remedy(lm_fail(LM_E_DTYPE, "%s: not defined for bool", op->name), "%s", op->not_bool);
  }
  if (op->integral_arg >= 0 && !is_integral(number[op->integral_arg])) {
    return lm_fail_number(op->name, op->arg[op->ntensor + op->integral_arg].name, "an integer for integer tensors",
                          number[op->integral_arg]);
  }
  /* Integer kernels convert the op's numbers to integers; comparisons and floating results do not. NaN: left out. */
  bool as_integers = op->result_dtype != LM_RESULT_DTYPE_FLOAT && op->result_dtype != LM_RESULT_DTYPE_BOOL;
  for (int i = 0; number && as_integers && i < op->nnumber; i++) {
    if (isnan(number[i])) continue;
    NEED(lm_check_number(op->name, op->arg[op->ntensor + i].name, common, number[i]));
  }
  return LM_OK;
}

lm_status lm_pointwise_dtypes(int kernel, int nin, lm_tensor *const *in, const double *number, lm_dtype *compute,
                              lm_dtype *result) {
  lm_dtype common;
  if (kernel >= LM_OP_COUNT) {
    *compute = lm_result_type(nin, in) == LM_F64 ? LM_F64 : LM_F32;
    *result = in[0]->dtype;
    return LM_OK;
  }
  const lm_op *op = &lm_ops[kernel];
  if (op->masks) {
    NEED(common_beside_masks(op, nin, in, &common));
  } else {
    common = lm_result_type(nin, in);
  }
  if (op->result_dtype == LM_RESULT_DTYPE_ARGUMENT) common = in[op->result_dtype_arg]->dtype;
  if (!lm_dtype_is_float(common)) {
    NEED(check_integers(op, common, number));
    if (op->result_dtype == LM_RESULT_DTYPE_FLOAT) common = lm_default_dtype();
    if (op->result_dtype == LM_RESULT_DTYPE_NUMBER && common == LM_BOOL) common = LM_I64;
  } else if (op->integers) {
    return lm_remedy(lm_fail_dtype(op->name, "x", "an integer dtype or bool", lm_dtype_name(common)),
                     "convert it with :long()");
  }
  for (int i = 0; op->masks && i < nin; i++) NEED(lm_check_fits(op->name, common, in[i]));
  *compute = common == LM_F64 ? LM_F64 : lm_dtype_is_float(common) ? LM_F32 : LM_I64;
  *result = op->result_dtype == LM_RESULT_DTYPE_BOOL ? LM_BOOL : lm_widened(common);
  return LM_OK;
}

/* Finds the common device; numbers and 0-d CPU tensors go with any. */
static lm_status common_device(int kernel, int nin, lm_tensor *const *in, lm_device *out) {
  lm_device device = LM_NO_DEVICE;
  for (int i = 0; i < nin; i++) {
    if (in[i]->device == device || (in[i]->ndim == 0 && in[i]->device == LM_DEVICE(LM_CPU, 0))) continue;
    if (device != LM_NO_DEVICE) return lm_check_same_device((lm_op_id)lm_pointwise_op(kernel), nin, in);
    device = in[i]->device;
  }
  *out = device == LM_NO_DEVICE ? in[0]->device : device;
  return LM_OK;
}

static bool has_shape(const lm_tensor *t, int ndim, const int64_t *size) {
  if (t->ndim != ndim) return false;
  for (int d = 0; d < ndim; d++) {
    if (t->size[d] != size[d]) return false;
  }
  return true;
}

/* True for the usual call: inputs of one dtype, size and device, all contiguous. */
static bool are_alike(int nin, lm_tensor *const *in) {
  const lm_tensor *first = in[0];
  size_t bytes = sizeof(int64_t) * first->ndim;
  for (int i = 1; i < nin; i++) {
    const lm_tensor *t = in[i];
    if (t == first) continue;
    if (t->dtype != first->dtype || t->device != first->device || t->ndim != first->ndim ||
        memcmp(t->size, first->size, bytes) != 0 || memcmp(t->stride, first->stride, bytes) != 0)
      return false;
  }
  return lm_is_contiguous(first);
}

/* Computes the output's sizes from all inputs. */
static lm_status common_shape(int kernel, int nin, lm_tensor *const *in, int *ndim, int64_t *size) {
  *ndim = in[0]->ndim;
  for (int d = 0; d < *ndim; d++) size[d] = in[0]->size[d];
  for (int i = 1; i < nin; i++) {
    if (in[i]->ndim == 0 || has_shape(in[i], *ndim, size)) continue;
    int64_t wide[LM_MAX_DIMS];
    NEED(lm_broadcast(name_of(kernel), *ndim, size, in[i]->ndim, in[i]->size, ndim, wide));
    memcpy(size, wide, sizeof(int64_t) * (size_t)*ndim);
  }
  return LM_OK;
}

/* Creates a dense output in the layout of the first dense input of full shape, so that channels-last propagates. */
static lm_status new_output(int nin, lm_tensor *const *in, lm_dtype dtype, lm_device device, int ndim,
                            const int64_t *size, lm_tensor **out) {
  if (ndim > 1) {
    for (int i = 0; i < nin; i++) {
      if (!has_shape(in[i], ndim, size)) continue;
      if (lm_is_contiguous(in[i])) break;
      if (lm_is_dense(in[i])) return lm_tensor_empty_like(in[i], dtype, device, out);
    }
  }
  return lm_tensor_empty(dtype, device, ndim, size, LM_CONTIGUOUS, out);
}

static lm_status check_into(int kernel, const lm_tensor *into, lm_dtype result, int ndim, const int64_t *size) {
  const char *name = name_of(kernel);
  if (!has_shape(into, ndim, size)) {
    return lm_fail_shape(lm_text("%s_", name), "the result", lm_shape_of(into), lm_shape_text(ndim, size));
  }
  lm_dtype d = into->dtype;
  if (dtype_category(result) > dtype_category(d)) {
    return lm_remedy(
        lm_fail_dtype(lm_text("%s_", name), "the result", lm_text("%s as x", lm_dtype_name(d)), lm_dtype_name(result)),
        "convert x first");
  }
  return LM_OK;
}

/* True if writing `into` element by element may overwrite elements of t before they are read. */
static bool is_clobbered(const lm_tensor *into, const lm_tensor *t) {
  if (t == into || t->storage != into->storage || t->numel == 0 || into->numel == 0) return false;
  if (t->data == into->data && t->dtype == into->dtype && has_shape(t, into->ndim, into->size) &&
      memcmp(t->stride, into->stride, sizeof(int64_t) * into->ndim) == 0) {
    return false;
  }
  int64_t last_read = 0, last_written = 0;
  for (int d = 0; d < t->ndim; d++) last_read += (t->size[d] - 1) * t->stride[d];
  for (int d = 0; d < into->ndim; d++) last_written += (into->size[d] - 1) * into->stride[d];
  size_t item = lm_dtype_size(t->dtype), width = lm_dtype_size(into->dtype);
  return t->data < into->data + ((size_t)last_written + 1) * width &&
         into->data < t->data + ((size_t)last_read + 1) * item;
}

static void set_strides(lm_pointwise *job, int i) {
  const lm_tensor *t = job->in[i], *out = job->out;
  int64_t *stride = job->in_stride[i];
  int missing = out->ndim - t->ndim;
  for (int d = 0; d < out->ndim; d++) {
    int from = d - missing;
    stride[d] = from < 0 || (t->size[from] == 1 && out->size[d] != 1) ? 0 : t->stride[from];
  }
}

lm_status lm_pointwise_run(int kernel, int nin, lm_tensor *const *in, const double *numbers, lm_tensor *into,
                           lm_tensor **out) {
  LM_OWNED *result = NULL;
  LM_OWNED_ARRAY(own, LM_POINTWISE_MAX_IN);
  lm_pointwise job;
  lm_dtype dtype = LM_NO_DTYPE;
  lm_device device = LM_NO_DEVICE;
  int ndim = in[0]->ndim;
  int64_t wide[LM_MAX_DIMS];
  const int64_t *size = in[0]->size;
  bool alike = are_alike(nin, in);

  memset(job.number, 0, sizeof job.number);
  if (numbers) { memcpy(job.number, numbers, sizeof(double) * lm_ops[lm_pointwise_op(kernel)].nnumber); }
  NEED(lm_pointwise_dtypes(kernel, nin, in, job.number, &job.compute, &dtype));
  if (alike) {
    device = in[0]->device;
  } else {
    NEED(common_device(kernel, nin, in, &device));
    NEED(common_shape(kernel, nin, in, &ndim, wide));
    size = wide;
  }
  const lm_backend *backend = lm_backend_of(device);
  if (!backend) return LM_E_MISSING;
  if (into) {
    NEED(check_into(kernel, into, dtype, ndim, size));
    if (into->device != device) {
      return lm_fail_devices(lm_text("%s_", name_of(kernel)), "x", lm_device_name(into->device), "the other tensor",
                             lm_device_name(device));
    }
    result = lm_retain(into);
  } else if (alike) {
    NEED(lm_tensor_empty(dtype, device, ndim, size, LM_CONTIGUOUS, &result));
  } else {
    NEED(new_output(nin, in, dtype, device, ndim, size, &result));
  }

  if (result->numel > 0) {
    job.kernel = kernel;
    job.nin = nin;
    job.out = result;
    for (int i = 0; i < nin; i++) {
      job.in[i] = in[i];
      if (into && is_clobbered(into, in[i])) {
        NEED(lm_tensor_empty_like(in[i], in[i]->dtype, in[i]->device, &own[i]));
        NEED(lm_copy(in[i], own[i]));
        job.in[i] = own[i];
      }
      if (alike && job.in[i] == in[i]) {
        memcpy(job.in_stride[i], in[i]->stride, sizeof(int64_t) * (size_t)ndim);
      } else {
        set_strides(&job, i);
      }
    }
    NEED(lm_is_ordered(device) ? lm_ordered_pointwise(backend, &job) : backend->pointwise(&job));
  }
  if (lm_compiled_call_runs() && lm_ops_recorded)
    lm_ops_recorded->pointwise(lm_ops_recorded, kernel, nin, in, numbers, result);
  *out = lm_tensor_take(&result);
  return LM_OK;
}
