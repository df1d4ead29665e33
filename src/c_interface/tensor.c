/* Makes and reads tensors for C programs: a lum_tensor is a lm_tensor, without a Lua state. */
#include <string.h>

#include "autograd/autograd.h"
#include "base/message.h"
#include "c_interface/session.h"
#include "op/op.h"
#include "op_entries.h"

/* Requires that luminary.h's enums have the core's numbers, since functions here only cast one to the other. */
_Static_assert((int)LUM_UINT8 == (int)LM_U8 && (int)LUM_INT64 == (int)LM_I64 && (int)LUM_FLOAT16 == (int)LM_F16 &&
                   (int)LUM_FLOAT64 == (int)LM_F64 && (int)LUM_MAX_DIMS == (int)LM_MAX_DIMS,
               "other numbers than the core's");

static bool is_dtype(lum_dtype dtype) { return (int)dtype >= 0 && (int)dtype < LM_DTYPE_COUNT; }

const char *lum_dtype_name(lum_dtype dtype) { return is_dtype(dtype) ? lm_dtype_name((lm_dtype)dtype) : "none"; }
size_t lum_dtype_size(lum_dtype dtype) { return is_dtype(dtype) ? lm_dtype_size((lm_dtype)dtype) : 0; }

lum_status lum_dtype_find(const char *name, lum_dtype *out) {
  lm_dtype dtype;
  if (out) *out = LUM_NO_DTYPE;
  lm_status status = lm_given("out", out);
  if (status == LM_OK) status = lm_dtype_parse(name ? name : "", &dtype);
  if (status == LM_OK) *out = (lum_dtype)dtype;
  return lm_noted(NULL, status);
}

/* ---- making */

/* lm_tensor and lum_tensor are one object, under the name of each side. */
static lm_tensor *unwrap(const lum_tensor *t) { return (lm_tensor *)t; }

/* Stores the result t of a function, or releases it where the caller has no place for it. */
static lum_status return_tensor(lm_status status, lm_tensor *t, lum_tensor **out) {
  if (status == LM_OK) status = lm_given("out", out);
  if (out) *out = status == LM_OK ? (lum_tensor *)t : NULL;
  if (status != LM_OK) lm_release(t);
  return lm_noted(NULL, status);
}

static void do_nothing(void *user) { (void)user; }

static lm_status check_dims(lum_dtype dtype, int ndim, const int64_t *shape) {
  if (!is_dtype(dtype)) return lm_fail_int("tensor", "dtype", "one of lum_dtype", dtype);
  if (ndim < 0 || ndim > LM_MAX_DIMS) return lm_fail_int("tensor", "ndim", "from 0 to 8", ndim);
  if (ndim > 0 && !shape) return lm_fail_value("tensor", "shape", "a list of ndim sizes", "NULL");
  return LM_OK;
}

/* Makes a tensor with these sizes and strides over the memory. Calls release before it returns a failure. */
static lm_status wrap_memory(lm_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides, void *data,
                             size_t bytes, void (*release)(void *), void *user, lm_tensor **out) {
  const lm_device cpu = LM_DEVICE(LM_CPU, 0);
  const int64_t elements = (int64_t)(bytes / lm_dtype_size(dtype));
  lm_tensor *memory;
  if (!strides) return lm_tensor_foreign(dtype, cpu, ndim, shape, data, bytes, release, user, out);
  NEED(lm_tensor_foreign(dtype, cpu, 1, &elements, data, bytes, release, user, &memory));
  lm_status status = lm_tensor_view(memory, ndim, shape, strides, 0, out);
  lm_release(memory);
  return status;
}

lum_status lum_tensor_from_memory(lum_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides, void *data,
                                  size_t bytes, void (*release)(void *user), void *user, lum_tensor **out) {
  lm_tensor *t = NULL;
  if (!release) release = do_nothing;
  lm_status status = check_dims(dtype, ndim, shape);
  if (status == LM_OK && !data && bytes > 0) status = lm_fail(LM_E_ARG, "tensor: data must not be NULL");
  if (status == LM_OK) {
    status = wrap_memory((lm_dtype)dtype, ndim, shape, strides, data, bytes, release, user, &t);
  } else {
    release(user);
  }
  return return_tensor(status, t, out);
}

lm_status lm_named_device(const char *name, lm_device *out) {
  *out = LM_DEVICE(LM_CPU, 0);
  return name ? lm_device_parse(name, out) : LM_OK;
}

/* Returns a contiguous tensor with the dtype and device: t itself, with a reference more, if it has them. */
static lm_status convert_tensor(lm_tensor *t, lm_dtype dtype, lm_device device, lm_tensor **out) {
  if (t->dtype == dtype && t->device == device && lm_is_contiguous(t)) {
    *out = lm_retain(t);
    return LM_OK;
  }
  lm_to_copy_args args = {.x = t, .dtype = dtype, .device = device, .memory_format = LM_CONTIGUOUS};
  const bool grad = lm_grad_enabled();
  lm_set_grad_enabled(false);
  lm_status status = lm_call(LM_OP_to_copy, &args, out);
  lm_set_grad_enabled(grad);
  return status;
}

lum_status lum_tensor_new(lum_dtype dtype, int ndim, const int64_t *shape, const char *device, lum_tensor **out) {
  lm_status status;
  lm_device where;
  lm_tensor *zeros = NULL, *t = NULL;
  TRY(check_dims(dtype, ndim, shape));
  TRY(lm_named_device(device, &where));
  TRY(lm_tensor_empty((lm_dtype)dtype, LM_DEVICE(LM_CPU, 0), ndim, shape, LM_CONTIGUOUS, &zeros));
  if (zeros->numel > 0) memset(zeros->data, 0, lm_nbytes(zeros));
  TRY(convert_tensor(zeros, (lm_dtype)dtype, where, &t));
done:
  lm_release(zeros);
  return return_tensor(status, t, out);
}

lum_tensor *lum_tensor_retain(lum_tensor *tensor) {
  lm_retain(unwrap(tensor));
  return tensor;
}

void lum_tensor_free(lum_tensor *tensor) { lm_release(unwrap(tensor)); }

/* ---- reading */

lum_dtype lum_tensor_dtype(const lum_tensor *tensor) { return (lum_dtype)unwrap(tensor)->dtype; }
int lum_tensor_ndim(const lum_tensor *tensor) { return unwrap(tensor)->ndim; }
const int64_t *lum_tensor_shape(const lum_tensor *tensor) { return unwrap(tensor)->size; }
const int64_t *lum_tensor_strides(const lum_tensor *tensor) { return unwrap(tensor)->stride; }
int64_t lum_tensor_numel(const lum_tensor *tensor) { return unwrap(tensor)->numel; }
size_t lum_tensor_bytes(const lum_tensor *tensor) { return lm_nbytes(unwrap(tensor)); }
const char *lum_tensor_device(const lum_tensor *tensor) { return lm_device_name(unwrap(tensor)->device); }
int lum_tensor_is_contiguous(const lum_tensor *tensor) { return lm_is_contiguous(unwrap(tensor)); }

void *lum_tensor_data(const lum_tensor *tensor) {
  return LM_DEVICE_KIND(unwrap(tensor)->device) == LM_CPU ? unwrap(tensor)->data : NULL;
}

lum_status lum_tensor_to(lum_tensor *tensor, lum_dtype dtype, const char *device, lum_tensor **out) {
  lm_tensor *t = unwrap(tensor), *result = NULL;
  lm_device where = t ? t->device : LM_DEVICE(LM_CPU, 0);
  lm_status status = lm_given("tensor", t);
  if (status == LM_OK && dtype != LUM_NO_DTYPE) status = check_dims(dtype, 0, NULL);
  if (status == LM_OK && device) status = lm_named_device(device, &where);
  if (status == LM_OK) status = convert_tensor(t, dtype == LUM_NO_DTYPE ? t->dtype : (lm_dtype)dtype, where, &result);
  return return_tensor(status, result, out);
}

/* Copies between a tensor and the caller's memory. */
static lum_status copy_bytes(const char *name, lm_tensor *t, void *memory, size_t bytes, bool into_tensor) {
  lm_tensor *other = NULL;
  lm_status status;
  if (!t) {
    status = lm_given("tensor", t);
  } else if (bytes != lm_nbytes(t)) {
    status =
        lm_fail_int(name, "bytes", lm_text("%zu for %s of %s", lm_nbytes(t), lm_shape_of(t), lm_dtype_name(t->dtype)),
                    (int64_t)bytes);
  } else if (!memory && bytes > 0) {
    status = lm_fail_value(name, "memory", "an address", "NULL");
  } else {
    status = wrap_memory(t->dtype, t->ndim, t->size, NULL, memory, bytes, do_nothing, NULL, &other);
  }
  if (status == LM_OK) status = into_tensor ? lm_copy(other, t) : lm_copy(t, other);
  if (status == LM_OK && into_tensor) lm_bump(t, -1);
  lm_release(other);
  return lm_noted(NULL, status);
}

lum_status lum_tensor_read(const lum_tensor *tensor, void *to, size_t bytes) {
  return copy_bytes("lum_tensor_read", unwrap(tensor), to, bytes, false);
}

lum_status lum_tensor_write(lum_tensor *tensor, const void *from, size_t bytes) {
  return copy_bytes("lum_tensor_write", unwrap(tensor), (void *)from, bytes, true);
}

lum_status lum_tensor_item(const lum_tensor *tensor, double *out) {
  if (out) *out = 0;
  lm_status status = lm_given(tensor ? "out" : "tensor", tensor ? out : NULL);
  if (status != LM_OK) return lm_noted(NULL, status);
  if (unwrap(tensor)->numel != 1) {
    return lm_noted(NULL, lm_fail_shape("lum_tensor_item", "tensor", "one element", lm_shape_of(unwrap(tensor))));
  }
  return lm_noted(NULL, lm_tensor_item_f64(unwrap(tensor), out));
}
