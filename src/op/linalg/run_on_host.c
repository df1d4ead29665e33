/* Runs an op on the CPU, on copies, for devices that have no kernel for it or for these tensors. */
#include <string.h>

#include "op/check.h"

static lm_status to_host(const lm_tensor *t, lm_tensor **out) {
  LM_OWNED *host = NULL;
  NEED(lm_tensor_empty_like(t, t->dtype, LM_DEVICE(LM_CPU, 0), &host));
  NEED(lm_copy(t, host));
  *out = lm_tensor_take(&host);
  return LM_OK;
}

static lm_status run_on_host(lm_op_id op, const void *args, lm_tensor *const *out) {
  const lm_op *d = &lm_ops[op];
  const int outs = d->outs + d->aux;
  lm_args_union copy;
  LM_OWNED_ARRAY(in, LM_MAX_TENSOR_ARGS);
  LM_OWNED_ARRAY(result, LM_MAX_OUTS);
  memcpy(&copy, args, d->size);
  for (int i = 0; i < d->ntensor; i++) {
    lm_tensor *t = LM_ARG_TENSOR(&copy, d->tensor[i]);
    if (!t) continue;
    NEED(to_host(t, &in[i]));
    LM_ARG_TENSOR(&copy, d->tensor[i]) = in[i];
  }
  for (int i = 0; i < outs; i++) {
    if (out[i]) NEED(lm_tensor_empty_like(out[i], out[i]->dtype, LM_DEVICE(LM_CPU, 0), &result[i]));
  }
  NEED(lm_dispatch(op, LM_DEVICE(LM_CPU, 0), &copy, result));
  for (int i = 0; i < outs; i++) {
    if (out[i] && out[i]->numel) NEED(lm_copy(result[i], out[i]));
  }
  return LM_OK;
}

lm_status lm_dispatch_or_host(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out) {
  const lm_backend *backend = lm_backend_of(device);
  if (!backend) return LM_E_MISSING;
  bool host = LM_DEVICE_KIND(device) == LM_CPU;
  lm_status status = backend->op[op] || host ? lm_dispatch(op, device, args, out) : LM_E_MISSING;
  return status == LM_E_MISSING && !host ? run_on_host(op, args, out) : status;
}
