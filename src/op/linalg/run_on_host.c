/* Runs an op on the CPU, on copies, for devices that have no kernel for it or for these tensors. */
#include <string.h>

#include "op/check.h"

static lm_status to_host(const lm_tensor *t, lm_tensor **out) {
  lm_status status;
  lm_tensor *host = NULL;
  TRY(lm_tensor_empty_like(t, t->dtype, LM_DEVICE(LM_CPU, 0), &host));
  TRY(lm_copy(t, host));
  *out = host;
  host = NULL;
done:
  lm_release(host);
  return status;
}

static lm_status run_on_host(lm_op_id op, const void *args, lm_tensor *const *out) {
  lm_status status = LM_OK;
  const lm_op *d = &lm_ops[op];
  const int outs = d->outs + d->aux;
  lm_args_union copy;
  lm_tensor *in[LM_MAX_TENSOR_ARGS] = {NULL}, *result[LM_MAX_OUTS] = {NULL};
  memcpy(&copy, args, d->size);
  for (int i = 0; i < d->ntensor; i++) {
    lm_tensor *t = LM_ARG_TENSOR(&copy, d->tensor[i]);
    if (!t) continue;
    TRY(to_host(t, &in[i]));
    LM_ARG_TENSOR(&copy, d->tensor[i]) = in[i];
  }
  for (int i = 0; i < outs; i++) {
    if (out[i]) TRY(lm_tensor_empty_like(out[i], out[i]->dtype, LM_DEVICE(LM_CPU, 0), &result[i]));
  }
  TRY(lm_dispatch(op, LM_DEVICE(LM_CPU, 0), &copy, result));
  for (int i = 0; i < outs; i++) {
    if (out[i] && out[i]->numel) TRY(lm_copy(result[i], out[i]));
  }
done:
  for (int i = 0; i < LM_MAX_TENSOR_ARGS; i++) lm_release(in[i]);
  for (int i = 0; i < LM_MAX_OUTS; i++) lm_release(result[i]);
  return status;
}

lm_status lm_dispatch_or_host(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out) {
  const lm_backend *backend = lm_backend_of(device);
  if (!backend) return LM_E_MISSING;
  bool host = LM_DEVICE_KIND(device) == LM_CPU;
  lm_status status = backend->op[op] || host ? lm_dispatch(op, device, args, out) : LM_E_MISSING;
  return status == LM_E_MISSING && !host ? run_on_host(op, args, out) : status;
}
