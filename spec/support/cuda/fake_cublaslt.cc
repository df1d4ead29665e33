/* cuBLASLt's matrix products, as far as the backend uses them, by plain loops. Its checks are the real one's: types and
 * sizes of attributes, leading dimensions, pointers as aligned as was promised to the heuristics, and an algorithm that
 * was chosen for the very product. A bias, of which nothing can be promised, is read 16 bytes at a time. Sums are in
 * double; TF32 rounds the inputs of a float product. */
#include <cublasLt.h>

#include "fake_library.h"

namespace {
enum {
  LAYOUT = 0x4c41594f,
  PRODUCT = 0x50524f44,
  WISH = 0x57495348,
  ALGORITHM = 0x414c474f,
  WORKSPACE = 4096,
  BIAS_ALIGN = 16
};

struct layout {
  int magic, type;
  uint64_t rows, columns;
  int64_t ld, step;
  int32_t batch;
};
struct product {
  int magic, compute, scale, transa, transb, epilogue;
  void *bias; /* or what gets the sums of the second factor */
  void *aux;  /* the input of gelu */
  int64_t aux_ld;
};
struct wish {
  int magic;
  uint32_t reduction, align[4]; /* a, b, c, d */
  uint64_t workspace;
};
struct algorithm {
  int magic;
  uint32_t align[4];
  uint64_t workspace, described; /* a hash of what it was chosen for */
};
static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t) &&
                  sizeof(wish) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
                  sizeof(product) <= sizeof(cublasLtMatmulDescOpaque_t) &&
                  sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t),
              "they live in the caller's memory");
struct handle {
  int device;
  void *memory;
};
}  // namespace

static int dtype_of(int type) {
  switch (type) {
    case CUDA_R_16F: return LM_F16;
    case CUDA_R_16BF: return LM_BF16;
    case CUDA_R_32F: return LM_F32;
    case CUDA_R_64F: return LM_F64;
    default: return LM_NO_DTYPE;
  }
}

/* Returns the bytes of all its matrices, each once; a step of 0 is one matrix for the whole batch. */
static uint64_t bytes_of(const layout &m) {
  return m.rows * m.columns * (uint64_t)(m.step ? m.batch : 1) * lm_fake_bytes_of(dtype_of(m.type));
}

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29); }

static uint64_t mix_layout(uint64_t hash, const layout &m) {
  for (uint64_t v : {(uint64_t)m.type, m.rows, m.columns, (uint64_t)m.ld, (uint64_t)m.step, (uint64_t)m.batch})
    hash = mix(hash, v);
  return hash;
}

static bool adds_up(const product &p) {
  return p.epilogue == CUBLASLT_EPILOGUE_BGRADA || p.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_bias(const product &p) {
  return p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
static bool has_gelu(const product &p) {
  return p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
         p.epilogue == CUBLASLT_EPILOGUE_DGELU;
}

/* gelu by its tanh approximation, and its derivative. */
static double gelu(double x, bool derives) {
  double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  double slope = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x) * (1 - t * t);
  return derives ? 0.5 * (1 + t) + 0.5 * x * slope : 0.5 * x * (1 + t);
}

static uint64_t describe(const product &how, const layout &a, const layout &b, const layout &c, const layout &d) {
  uint64_t hash = 1;
  for (int v : {how.compute, how.scale, how.transa, how.transb, how.epilogue}) hash = mix(hash, (uint64_t)v);
  for (const layout *m : {&a, &b, &c, &d}) hash = mix_layout(hash, *m);
  return hash;
}

static bool is_layout(const layout &m) {
  return m.magic == LAYOUT && dtype_of(m.type) >= 0 && m.rows > 0 && m.columns > 0 && m.ld >= (int64_t)m.rows &&
         m.batch > 0;
}

/* Types that go together, and sizes that fit. */
static bool fits(const product &how, const layout &a, const layout &b, const layout &c, const layout &d) {
  if (how.magic != PRODUCT) return false;
  for (const layout *m : {&a, &b, &c, &d}) {
    if (!is_layout(*m) || m->batch != d.batch) return false;
  }
  bool widens =
      d.type == CUDA_R_32F && (a.type == CUDA_R_16F || a.type == CUDA_R_16BF); /* into float, without a bias */
  if (a.type != b.type || c.type != d.type || (a.type != d.type && (!widens || has_bias(how) || has_gelu(how))))
    return false;
  bool wide = d.type == CUDA_R_64F;
  if (wide != (how.compute == CUBLAS_COMPUTE_64F) || wide != (how.scale == CUDA_R_64F)) return false;
  if (how.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && d.type != CUDA_R_32F) return false;
  if ((has_bias(how) || adds_up(how)) != (how.bias != NULL) || has_gelu(how) != (how.aux != NULL)) return false;
  if (has_gelu(how) && (how.aux_ld < (int64_t)d.rows || how.aux_ld % 8 != 0 || !lm_fake_aligned(how.aux, 16)))
    return false;
  uint64_t m = how.transa == CUBLAS_OP_T ? a.columns : a.rows, k = how.transa == CUBLAS_OP_T ? a.rows : a.columns;
  uint64_t l = how.transb == CUBLAS_OP_T ? b.columns : b.rows, n = how.transb == CUBLAS_OP_T ? b.rows : b.columns;
  return k == l && d.rows == m && d.columns == n && c.rows == m && c.columns == n;
}

/* Computes the product. Column-major. */
static void multiply(product how, layout A, layout B, layout C, layout D, double alpha, double beta, const void *a,
                     const void *b, const void *c, void *d) {
  int type = dtype_of(D.type), read = dtype_of(A.type);
  bool rounds = how.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  bool ta = how.transa == CUBLAS_OP_T, tb = how.transb == CUBLAS_OP_T;
  int64_t inner = (int64_t)(ta ? A.rows : A.columns);
  for (int64_t n = 0; n < (int64_t)D.rows && how.epilogue == CUBLASLT_EPILOGUE_BGRADA; n++) {
    double sum = 0;
    for (int64_t k = 0; k < inner; k++) sum += lm_fake_read(read, a, ta ? k + n * A.ld : n + k * A.ld);
    lm_fake_write(type, how.bias, n, sum);
  }
  for (int64_t n = 0; n < (int64_t)D.columns && how.epilogue == CUBLASLT_EPILOGUE_BGRADB; n++) {
    double sum = 0;
    for (int64_t k = 0; k < inner; k++) sum += lm_fake_read(read, b, tb ? n + k * B.ld : k + n * B.ld);
    lm_fake_write(type, how.bias, n, sum);
  }
  for (int64_t i = 0; i < D.batch; i++) {
    for (int64_t column = 0; column < (int64_t)D.columns; column++) {
      for (int64_t row = 0; row < (int64_t)D.rows; row++) {
        double sum = 0;
        for (int64_t k = 0; k < inner; k++) {
          double x = lm_fake_read(read, a, i * A.step + (ta ? k + row * A.ld : row + k * A.ld));
          double y = lm_fake_read(read, b, i * B.step + (tb ? column + k * B.ld : k + column * B.ld));
          sum += rounds ? lm_fake_tf32(x) * lm_fake_tf32(y) : x * y;
        }
        double value = alpha * sum;
        if (beta != 0) value += beta * lm_fake_read(type, c, i * C.step + row + column * C.ld);
        if (has_bias(how)) value += lm_fake_read(type, how.bias, row);
        if (how.epilogue == CUBLASLT_EPILOGUE_DGELU) {
          value *= gelu(lm_fake_read(type, how.aux, row + column * how.aux_ld), true);
        } else if (has_gelu(how)) {
          lm_fake_write(type, how.aux, row + column * how.aux_ld, value);
          value = gelu(value, false);
        }
        lm_fake_write(type, d, i * D.step + row + column * D.ld, value);
      }
    }
  }
}

#define ENTER() LM_FAKE_ENTER(cublasStatus_t)

extern "C" {

LM_FAKE_API cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
  ENTER();
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  lm_fake_waits_for(device);
  handle *made = new handle{device, NULL};
  if (cudaMalloc(&made->memory, 256) != cudaSuccess) { /* a capture forbids cudaMalloc */
    delete made;
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  *out = (cublasLtHandle_t)made;
  lm_fake_count("handle", 1);
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  int code = lm_fake_enter(__func__);
  cudaFree(((handle *)h)->memory);
  delete (handle *)h;
  lm_fake_count("handle", -1);
  return (cublasStatus_t)code;
}

LM_FAKE_API size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

LM_FAKE_API const char *cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

LM_FAKE_API const char *cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_ALLOC_FAILED ? "the resource allocation failed" : "the fake library says so";
}

LM_FAKE_API cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t out, size_t size, cudaDataType type,
                                                             uint64_t rows, uint64_t columns, int64_t ld) {
  ENTER();
  if (size < sizeof *out || dtype_of(type) < 0) return CUBLAS_STATUS_INVALID_VALUE;
  layout m = {LAYOUT, type, rows, columns, ld, 0, 1};
  memcpy(out, &m, sizeof m);
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t out,
                                                            cublasLtMatrixLayoutAttribute_t name, const void *value,
                                                            size_t size) {
  ENTER();
  layout *m = (layout *)out;
  if (m->magic != LAYOUT) return CUBLAS_STATUS_INVALID_VALUE;
  if (name == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof m->batch) {
    memcpy(&m->batch, value, size);
  } else if (name == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == sizeof m->step) {
    memcpy(&m->step, value, size);
  } else {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t out, size_t size,
                                                           cublasComputeType_t compute, cudaDataType_t scale) {
  ENTER();
  if (size < sizeof *out) return CUBLAS_STATUS_INVALID_VALUE;
  product how = {PRODUCT, compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0};
  memcpy(out, &how, sizeof how);
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t out, cublasLtMatmulDescAttributes_t name,
                                                          const void *value, size_t size) {
  ENTER();
  product *how = (product *)out;
  if (how->magic != PRODUCT) return CUBLAS_STATUS_INVALID_VALUE;
  if (name == CUBLASLT_MATMUL_DESC_BIAS_POINTER) {
    if (size != sizeof how->bias) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&how->bias, value, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER || name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) {
    if (size != sizeof how->aux) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(name == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD ? (void *)&how->aux_ld : (void *)&how->aux, value, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  int number;
  if (size != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&number, value, size);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA: how->transa = number; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: how->transb = number; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: how->epilogue = number; break;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t out, size_t size) {
  ENTER();
  if (size < sizeof *out) return CUBLAS_STATUS_INVALID_VALUE;
  wish w = {WISH, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}, 0};
  memcpy(out, &w, sizeof w);
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t out,
                                                                cublasLtMatmulPreferenceAttributes_t name,
                                                                const void *value, size_t size) {
  ENTER();
  wish *w = (wish *)out;
  if (w->magic != WISH) return CUBLAS_STATUS_INVALID_VALUE;
  if (name == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (size != sizeof w->workspace) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&w->workspace, value, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  uint32_t number;
  if (size != sizeof number) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&number, value, size);
  switch (name) {
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: w->reduction = number; break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: w->align[0] = number; break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: w->align[1] = number; break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: w->align[2] = number; break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: w->align[3] = number; break;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

/* Finds one algorithm; large sums split their inner dimension and need a workspace. No bias is added to a product of
 * one column: whoever asks for that has to add it in another way. */
LM_FAKE_API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t how,
                                                          cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                          cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                          cublasLtMatmulPreference_t preference, int wanted,
                                                          cublasLtMatmulHeuristicResult_t *result, int *found) {
  ENTER();
  const product &p = *(product *)how;
  const layout &A = *(layout *)a, &B = *(layout *)b, &C = *(layout *)c, &D = *(layout *)d;
  const wish &w = *(wish *)preference;
  *found = 0;
  if (lm_fake_forbidden() != 0) return CUBLAS_STATUS_INTERNAL_ERROR; /* since CUDA 13.3 */
  if (!h || w.magic != WISH || wanted < 1 || !fits(p, A, B, C, D)) return CUBLAS_STATUS_INVALID_VALUE;
  if (has_bias(p) && D.rows == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_gelu(p) && (D.batch > 1 || (D.type != CUDA_R_16F && D.type != CUDA_R_16BF)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (adds_up(p) && (B.batch > 1 || D.columns % 8 != 0)) return CUBLAS_STATUS_NOT_SUPPORTED;
  uint64_t workspace = A.columns > 32 && w.workspace >= WORKSPACE ? WORKSPACE : 0;
  algorithm chosen = {ALGORITHM, {w.align[0], w.align[1], w.align[2], w.align[3]}, workspace, describe(p, A, B, C, D)};
  memset(result, 0, sizeof *result);
  memcpy(&result->algo, &chosen, sizeof chosen);
  result->workspaceSize = workspace;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t how, const void *alpha,
                                          const void *a, cublasLtMatrixLayout_t la, const void *b,
                                          cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                                          cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                                          const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                                          cudaStream_t stream) {
  if (lm_fake_null) return CUBLAS_STATUS_SUCCESS;
  ENTER();
  const product p = *(product *)how;
  const layout A = *(layout *)la, B = *(layout *)lb, C = *(layout *)lc, D = *(layout *)ld;
  const algorithm &chosen = *(const algorithm *)algo;
  int device = -1;
  cudaGetDevice(&device);
  if (!h || ((handle *)h)->device != device || !fits(p, A, B, C, D)) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.magic != ALGORITHM || chosen.described != describe(p, A, B, C, D)) return CUBLAS_STATUS_INVALID_VALUE;
  const void *operand[4] = {a, b, c, d};
  for (int i = 0; i < 4; i++) {
    if (!lm_fake_aligned(operand[i], chosen.align[i]) || lm_fake_device_of(operand[i]) < 0)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (p.bias && !lm_fake_aligned(p.bias, BIAS_ALIGN)) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.workspace > bytes || (chosen.workspace > 0 && lm_fake_device_of(workspace) < 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  bool wide = p.scale == CUDA_R_64F;
  double times = wide ? *(const double *)alpha : *(const float *)alpha;
  double plus = wide ? *(const double *)beta : *(const float *)beta;
  uint64_t scratch = chosen.workspace;
  uint64_t inner = p.transa == CUBLAS_OP_T ? A.rows : A.columns;
  lm_fake_cost cost = {lm_fake_product_of(dtype_of(A.type), p.compute == CUBLAS_COMPUTE_32F_FAST_TF32),
                       "cublasLtMatmul",
                       2.0 * (double)D.rows * (double)D.columns * (double)inner * D.batch,
                       {{a, bytes_of(A), false}, {b, bytes_of(B), false}, {d, bytes_of(D), true}}};
  if (plus != 0) cost.operands.push_back({c, bytes_of(C), false});
  if (has_gelu(p)) cost.operands.push_back({p.aux, bytes_of(D), p.epilogue != CUBLASLT_EPILOGUE_DGELU});
  if (has_bias(p)) cost.operands.push_back({p.bias, D.rows * lm_fake_bytes_of(dtype_of(D.type)), false});
  if (adds_up(p))
    cost.operands.push_back(
        {p.bias, (p.epilogue == CUBLASLT_EPILOGUE_BGRADB ? D.columns : D.rows) * lm_fake_bytes_of(dtype_of(D.type)),
         true});
  return lm_fake_enqueue(
             stream,
             [=] {
               if (scratch > 0) memset(workspace, 0xee, scratch);
               multiply(p, A, B, C, D, times, plus, a, b, c, d);
             },
             cost)
             ? CUBLAS_STATUS_EXECUTION_FAILED
             : CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
