/* Multiplies many tensors by one number, with a change of dtype, and reports whether any value was infinite or NaN: for
 * loss scaling, and copies between float32 master weights and lower-precision weights. */
#include "base/mem.h"
#include "base/message.h"
#include "op/check.h"
#include "op/stream_order.h"
#include "op_entries.h"
#include "optim/optim.h"

static lm_status check_rescale_pair(const char *name, int i, const lm_tensor *from, const lm_tensor *to) {
  const lm_tensor *both[] = {from, to};
  for (int k = 0; k < 2; k++) {
    if (!lm_dtype_is_float(both[k]->dtype))
      return lm_fail_dtype(name, lm_text("tensor %d", i + 1), "floating point", lm_dtype_name(both[k]->dtype));
  }
  if (!lm_same_shape(from, to))
    return lm_fail_shapes(name, lm_text("from[%d]", i + 1), lm_shape_of(from), lm_text("to[%d]", i + 1),
                          lm_shape_of(to));
  if (from->device != to->device)
    return lm_fail_devices(name, lm_text("from[%d]", i + 1), lm_device_name(from->device), lm_text("to[%d]", i + 1),
                           lm_device_name(to->device));
  if (lm_overlaps_itself(to)) return lm_fail_overlap(name, lm_text("tensor %d", i + 1), lm_shape_of(to));
  const lm_backend *backend = lm_backend_of(to->device);
  if (!backend) return lm_fail_in(LM_E_MISSING, name);
  if (!backend->rescale) return lm_fail_missing(name, lm_device_name(to->device));
  return LM_OK;
}

/* Sets `in` and `out` to from and to, or to copies if their elements differ in memory order. */
static lm_status prepare_rescale_pair(lm_tensor *from, lm_tensor *to, lm_tensor **in, lm_tensor **out) {
  NEED(lm_optim_layout(to, NULL, to->dtype, out));
  return lm_optim_layout(from, *out, from->dtype, in);
}

static lm_status new_flag(lm_device device, lm_tensor **out) {
  return lm_op_run(LM_OP_zeros, &(lm_zeros_args){.size = {.n = 0}, .dtype = LM_F32, .device = device}, out);
}

static lm_status run_rescale(lm_device device, int n, lm_tensor **in, lm_tensor **out, double factor, lm_tensor *flag) {
  lm_stream *s;
  NEED(lm_stream_order_begin(device, &s));
  for (int i = 0; s && i < n; i++) {
    NEED(lm_stream_order_read(s, in[i]));
    NEED(lm_stream_order_write(s, out[i]));
  }
  NEED(lm_stream_order_write(s, flag));
  return lm_stream_order_end(s, lm_backend_of(device)->rescale(n, in, out, factor, flag));
}

/* Sets *found to 1 if flag, on any device, is 1. */
static lm_status join_flags(lm_tensor **found, lm_tensor *flag) {
  lm_tensor *larger = NULL;
  LM_OWNED *here = NULL;
  NEED(new_flag((*found)->device, &here));
  NEED(lm_copy(flag, here));
  lm_tensor *in[] = {*found, here};
  NEED(lm_pointwise_run(LM_OP_maximum, 2, in, NULL, NULL, &larger));
  lm_release(*found);
  *found = larger;
  return LM_OK;
}

lm_status lm_rescale(const char *name, int n, lm_tensor *const *from, lm_tensor *const *to, double factor,
                     lm_tensor **found) {
  LM_RUNNING before = lm_run_begin(name, -1);
  LM_OWNED_LIST all = {2 * n, lm_calloc(2 * (size_t)n + 1, sizeof *all.v)};
  lm_tensor **in = all.v, **out = in ? in + n : NULL;
  LM_OWNED *any = NULL;
  *found = NULL;
  if (!in) return LM_E_OOM;
  for (int i = 0; i < n; i++) NEED(check_rescale_pair(name, i, from[i], to[i]));
  for (int i = 0; i < n; i++) NEED(prepare_rescale_pair(from[i], to[i], &in[i], &out[i]));
  if (n == 0) NEED(new_flag(LM_DEVICE(LM_CPU, 0), &any));
  for (int begin = 0, end; begin < n; begin = end) {
    LM_OWNED *flag = NULL;
    lm_device device = to[begin]->device;
    for (end = begin + 1; end < n && to[end]->device == device;) end++;
    NEED(new_flag(device, &flag));
    NEED(run_rescale(device, end - begin, in + begin, out + begin, factor, flag));
    for (int i = begin; i < end; i++) {
      if (out[i] != to[i]) NEED(lm_copy(out[i], to[i]));
      lm_bump(to[i], LM_OP_mul);
    }
    if (any) {
      NEED(join_flags(&any, flag));
    } else {
      any = lm_tensor_take(&flag);
    }
  }
  *found = lm_tensor_take(&any);
  return LM_OK;
}
