#include "backend/cuda/libraries/cublas.h"

#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/libraries/plan_cache.h"
#include "backend/cuda/runtime/context.h"
#include "backend/known/plan_searches.h"
#include "backend/known/setting.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "device/graph.h"

enum { WORKSPACE = 32 << 20, MAX_ALIGN = 256, CHOICES = 4 };

lm_status lm_cuda_check_blas(int code, const char *call) {
  if (code == CUBLAS_STATUS_SUCCESS) return LM_OK;
  return lm_fail_call(code == CUBLAS_STATUS_ALLOC_FAILED ? LM_E_OOM : LM_E_STATE, lm_op_running(), call, code,
                      cublasLtGetStatusName((cublasStatus_t)code), cublasLtGetStatusString((cublasStatus_t)code));
}

/* ---- algorithms chosen for products */

/* A product that algorithms are chosen for; a key, in which every byte counts. cuBLASLt's matrices are column-major:
 * its y is ours transposed, [n, m], and so its first factor is our b. */
typedef struct product {
  lm_cuda_gemm_shape shape;
  int32_t device, tf32;
  int32_t epilogue;                  /* cublasLtEpilogue_t */
  int32_t align_a, align_b, align_y; /* bytes; the library takes no alignment of a bias */
} product;
LM_KEY_WITHOUT_PADDING(product, align_y);
LM_KEY_WITHOUT_PADDING(lm_cuda_gemm_shape, tb);

typedef struct choice {
  lm_cached head;
  product key;
  bool found; /* false if there is no kernel for it */
  cublasLtMatmulDescOpaque_t how;
  cublasLtMatrixLayoutOpaque_t a, b, y;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
} choice;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `choices` and `handles` */
static lm_cache choices;
static cublasLtHandle_t handles[LM_DEVICE_MAX]; /* indexed by physical ordinal; any thread may use one */

static int32_t alignment(const void *p) {
  uintptr_t low = (uintptr_t)p & -(uintptr_t)p;
  return low == 0 || low > MAX_ALIGN ? MAX_ALIGN : (int32_t)low;
}

/* The library's first factor is our b. */
static cublasLtEpilogue_t epilogue_of(const lm_cuda_gemm_job *job) {
  if (job->before && job->is_gradient) return CUBLASLT_EPILOGUE_DGELU;
  if (job->before) return job->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (job->sums) return job->sums_b ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  return job->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static product product_of(const lm_cuda_gemm_job *job) {
  return (product){.shape = job->shape,
                   .device = lm_device_physical(job->device),
                   .epilogue = (int32_t)epilogue_of(job),
                   .tf32 = job->shape.dtype == LM_F32 && lm_setting_get(LM_SETTING_MATMUL_TF32),
                   .align_a = alignment(job->a),
                   .align_b = alignment(job->b),
                   .align_y = alignment(job->y)};
}

static cudaDataType_t data_type(int dtype) {
  switch (dtype) {
    case LM_F16: return CUDA_R_16F;
    case LM_BF16: return CUDA_R_16BF;
    case LM_F64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

static lm_status init_layout(const lm_cuda_gemm_shape *p, int dtype, bool transposed, int64_t rows, int64_t columns,
                             int64_t ld, int64_t step, cublasLtMatrixLayout_t out) {
  int32_t batch = (int32_t)p->batch;
  NEED(BLAS(cublasLtMatrixLayoutInit(out, data_type(dtype), (uint64_t)(transposed ? columns : rows),
                                     (uint64_t)(transposed ? rows : columns), ld)));
  if (batch > 1) {
    NEED(BLAS(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch)));
    NEED(BLAS(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step)));
  }
  return LM_OK;
}

/* Sets the pointers that differ from call to call. */
static lm_status set_pointers(cublasLtMatmulDesc_t how, const lm_cuda_gemm_job *job) {
  const void *vector = job->bias ? job->bias : job->sums;
  if (vector)
    NEED(BLAS(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector)));
  if (!job->before) return LM_OK;
  return BLAS(
      cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &job->before, sizeof job->before));
}

static lm_status describe(const product *p, const lm_cuda_gemm_job *job, choice *c) {
  const lm_cuda_gemm_shape *s = &p->shape;
  bool wide = s->dtype == LM_F64;
  cublasComputeType_t compute = wide ? CUBLAS_COMPUTE_64F : p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasOperation_t first = s->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = s->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
  NEED(BLAS(cublasLtMatmulDescInit(&c->how, compute, wide ? CUDA_R_64F : CUDA_R_32F)));
  NEED(BLAS(cublasLtMatmulDescSetAttribute(&c->how, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first)));
  NEED(BLAS(cublasLtMatmulDescSetAttribute(&c->how, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second)));
  NEED(BLAS(cublasLtMatmulDescSetAttribute(&c->how, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue)));
  if (job->before)
    NEED(BLAS(cublasLtMatmulDescSetAttribute(&c->how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &s->ldy, sizeof s->ldy)));
  NEED(set_pointers(&c->how, job));
  NEED(init_layout(s, s->dtype, s->tb, s->n, s->k, s->ldb, s->step_b, &c->b));
  NEED(init_layout(s, s->dtype, s->ta, s->k, s->m, s->lda, s->step_a, &c->a));
  return init_layout(s, s->dtype_y, false, s->n, s->m, s->ldy, s->step_y, &c->y);
}

/* cuBLASLt reports an epilogue that it does not support by either code; without one the second is a bug of ours. */
static bool is_unsupported(const product *p, int code) {
  return code == CUBLAS_STATUS_NOT_SUPPORTED ||
         (p->epilogue != CUBLASLT_EPILOGUE_DEFAULT && code == CUBLAS_STATUS_INVALID_VALUE);
}

static lm_status ask_heuristics(cublasLtHandle_t handle, const product *p, choice *c) {
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t result[CHOICES];
  int found = 0;
  size_t workspace = WORKSPACE;
  /* Partial sums of 16-bit products stay in float. */
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  const struct {
    cublasLtMatmulPreferenceAttributes_t name;
    uint32_t bytes;
  } align[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)p->align_b},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)p->align_a},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)p->align_y},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)p->align_y}};
  NEED(BLAS(cublasLtMatmulPreferenceInit(&preference)));
  NEED(BLAS(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                 sizeof workspace)));
  if (lm_dtype_is_half(p->shape.dtype))
    NEED(BLAS(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction,
                                                   sizeof reduction)));
  for (int i = 0; i < 4; i++)
    NEED(
        BLAS(cublasLtMatmulPreferenceSetAttribute(&preference, align[i].name, &align[i].bytes, sizeof align[i].bytes)));
  int code =
      cublasLtMatmulAlgoGetHeuristic(handle, &c->how, &c->b, &c->a, &c->y, &c->y, &preference, CHOICES, result, &found);
  if (is_unsupported(p, code)) return LM_OK;
  NEED(lm_cuda_check_blas(code, "cublasLtMatmulAlgoGetHeuristic"));
  for (int i = 0; i < found && !c->found; i++) {
    c->found = result[i].state == CUBLAS_STATUS_SUCCESS;
    c->algorithm = result[i].algo;
    c->workspace = result[i].workspaceSize;
  }
  return LM_OK;
}

/* Makes a card's handle; the caller holds the lock, also for choose_algorithm and choose_relaxed. */
static lm_status make_handle(int ordinal) { return handles[ordinal] ? LM_OK : BLAS(cublasLtCreate(&handles[ordinal])); }

static lm_status choose_algorithm(const product *p, const lm_cuda_gemm_job *job, const choice **out) {
  LM_FREED choice *fresh = lm_calloc(1, sizeof *fresh);
  if (!fresh) return LM_E_OOM;
  fresh->key = *p;
  lm_plan_search_count();
  NEED(make_handle(p->device));
  NEED(describe(p, job, fresh));
  NEED(ask_heuristics(handles[p->device], p, fresh));
  lm_cache_put(&choices, &fresh->head, sizeof *p);
  *out = fresh;
  fresh = NULL;
  return LM_OK;
}

/* Chooses in relaxed mode. A capture may still forbid runtime calls that the library makes to choose or start. */
static lm_status choose_relaxed(const product *p, const lm_cuda_gemm_job *job, const choice **out) {
  int mode;
  NEED(lm_cuda_relax(&mode));
  lm_status status = choose_algorithm(p, job, out);
  lm_cuda_unrelax(mode);
  if (status != LM_E_STATE || !lm_graph_capturing()) return status;
  return lm_remedy(status, "run the same once before the capture");
}

lm_status lm_cuda_blas_prepare(int ordinal) {
  LM_LOCKED(&lock);
  return make_handle(ordinal);
}

lm_status lm_cuda_gemm(const lm_cuda_gemm_job *job, void *stream, bool *done) {
  lm_status status = LM_OK;
  const choice *c = NULL;
  LM_CUDA_SCRATCH workspace = {0};
  *done = false;
  if (job->shape.batch > INT32_MAX) return LM_OK;
  product p = product_of(job);
  pthread_mutex_lock(&lock);
  c = lm_cache_find(&choices, &p, sizeof p); /* never evicted */
  if (!c) status = choose_relaxed(&p, job, &c);
  cublasLtHandle_t handle = handles[p.device];
  pthread_mutex_unlock(&lock);
  if (status != LM_OK || !c->found) return status;
  cublasLtMatmulDescOpaque_t how = c->how;
  NEED(set_pointers(&how, job));
  NEED(lm_cuda_scratch(job->device, c->workspace, &workspace));
  float alpha = (float)job->alpha, beta = (float)job->beta;
  bool wide = job->shape.dtype == LM_F64;
  int code = cublasLtMatmul(handle, &how, wide ? (const void *)&job->alpha : &alpha, job->b, (void *)&c->b, job->a,
                            (void *)&c->a, wide ? (const void *)&job->beta : &beta, job->y, (void *)&c->y, job->y,
                            (void *)&c->y, &c->algorithm, workspace.p, c->workspace, stream);
  if (is_unsupported(&p, code)) return LM_OK; /* despite the heuristics */
  NEED(lm_cuda_check_blas(code, "cublasLtMatmul"));
  *done = true;
  return LM_OK;
}
