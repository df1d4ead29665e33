#include <stdio.h>
#include <string.h>

#include "distributed/nccl/nccl.h"

lm_status lm_nccl_type(const char *who, lm_dtype dtype, ncclDataType_t *out) {
  switch (dtype) {
    case LM_BOOL:
    case LM_U8: *out = ncclUint8; return LM_OK;
    case LM_I8: *out = ncclInt8; return LM_OK;
    case LM_I32: *out = ncclInt32; return LM_OK;
    case LM_I64: *out = ncclInt64; return LM_OK;
    case LM_F16: *out = ncclFloat16; return LM_OK;
    case LM_BF16: *out = ncclBfloat16; return LM_OK;
    case LM_F32: *out = ncclFloat32; return LM_OK;
    case LM_F64: *out = ncclFloat64; return LM_OK;
    default:
      return lm_fail(LM_E_DTYPE, "%s: NCCL has no reductions of %s; convert it, as with :float()", who,
                     lm_dtype_name(dtype));
  }
}

/* Converts a reduction. A bool is a byte of 0 or 1, so "or" is its maximum and "and" its minimum. */
lm_status lm_nccl_op(const char *who, lm_reduce_op op, lm_dtype dtype, ncclRedOp_t *out) {
  bool truth = dtype == LM_BOOL;
  switch (op) {
    case LM_REDUCE_SUM: *out = truth ? ncclMax : ncclSum; return LM_OK;
    case LM_REDUCE_MEAN: *out = ncclAvg; return LM_OK;
    case LM_REDUCE_PRODUCT: *out = truth ? ncclMin : ncclProd; return LM_OK;
    case LM_REDUCE_MIN: *out = ncclMin; return LM_OK;
    case LM_REDUCE_MAX: *out = ncclMax; return LM_OK;
    default: break;
  }
  if (truth) {
    *out = op == LM_REDUCE_BAND ? ncclMin : ncclMax;
    return LM_OK;
  }
  return lm_fail(LM_E_MISSING,
                 "%s: NCCL has no bitwise reductions of integers; use all_gather and combine the results, or a group "
                 "of backend 'gloo', which has %s",
                 who, lm_reduce_op_name(op));
}

const char *lm_nccl_caller(const lm_group *g) {
  static _Thread_local char name[sizeof((lm_ticket *)0)->what];
  snprintf(name, sizeof name, "%s", lm_group_ticket(g)->what);
  name[strcspn(name, " ")] = 0;
  return *name ? name : "nccl";
}

int lm_nccl_version(void) {
  int code = 0;
  return ncclGetVersion(&code) == ncclSuccess ? code : 0;
}

const char *lm_nccl_version_text(void) {
  static _Thread_local char text[24];
  int code = lm_nccl_version();
  snprintf(text, sizeof text, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
  return text;
}

lm_status lm_nccl_fail(const char *who, ncclResult_t result, const char *last) {
  const char *version = lm_nccl_version_text(), *code = ncclGetErrorString(result);
  lm_status status = result == ncclUnhandledCudaError ? LM_E_DEVICE : LM_E_STATE;
  const char *advice = strstr(code, " ("); /* cut NCCL's advice: ours follows */
  if (!advice) advice = strstr(code, " - ");
  int length = (int)(advice ? (size_t)(advice - code) : strlen(code));
  if (strstr(last, "Duplicate GPU") || strstr(last, "using the same GPU"))
    return lm_fail(LM_E_DEVICE,
                   "%s: two ranks of the group use one GPU, which NCCL %s refuses (%s); give each rank its own GPU "
                   "(lm.cuda.set_device, CUDA_VISIBLE_DEVICES), or use backend 'gloo'; NCCL 2.30 and later allows "
                   "several ranks on a GPU with NCCL_MULTI_RANK_GPU_ENABLE=1",
                   who, version, last);
  return lm_fail(
      status, "%s: NCCL %s: %.*s%s%s; set NCCL_DEBUG=INFO for details, and run `luminary doctor` to check this machine",
      who, version, length, code, *last ? ": " : "", last);
}
