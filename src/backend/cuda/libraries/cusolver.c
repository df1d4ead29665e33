#include "backend/cuda/libraries/cusolver.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>
#include <string.h>

#include "backend/cuda/libraries/cublas.h"
#include "backend/cuda/libraries/lazy_library.h"
#include "backend/cuda/runtime/context.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "copy.h"
#include "device/graph.h"
#include "linalg.h"

/* clang-format off */
#define BOTH(X, before, after) X(before##S##after) X(before##D##after)
#define SOLVERS(X)                                                                             \
  X(cusolverDnCreate) X(cusolverDnSetStream)                                                   \
  X(cusolverDnCreateSyevjInfo) X(cusolverDnCreateGesvdjInfo)                                   \
  BOTH(X, cusolverDn, getrf_bufferSize) BOTH(X, cusolverDn, getrf)                             \
  BOTH(X, cusolverDn, getrs)                                                                   \
  BOTH(X, cusolverDn, potrf_bufferSize) BOTH(X, cusolverDn, potrf)                             \
  BOTH(X, cusolverDn, potrfBatched)                                                            \
  BOTH(X, cusolverDn, geqrf_bufferSize) BOTH(X, cusolverDn, geqrf)                             \
  BOTH(X, cusolverDn, orgqr_bufferSize) BOTH(X, cusolverDn, orgqr)                             \
  BOTH(X, cusolverDn, ormqr_bufferSize) BOTH(X, cusolverDn, ormqr)                             \
  BOTH(X, cusolverDn, syevd_bufferSize) BOTH(X, cusolverDn, syevd)                             \
  BOTH(X, cusolverDn, syevjBatched_bufferSize) BOTH(X, cusolverDn, syevjBatched)               \
  BOTH(X, cusolverDn, gesvdj_bufferSize) BOTH(X, cusolverDn, gesvdj)                           \
  BOTH(X, cusolverDn, gesvdjBatched_bufferSize) BOTH(X, cusolverDn, gesvdjBatched)
#define PRODUCTS(X)                                                                            \
  X(cublasCreate_v2) X(cublasSetStream_v2)                                                     \
  X(cublasStrsm_v2) X(cublasDtrsm_v2)                                                          \
  BOTH(X, cublas, getrfBatched) BOTH(X, cublas, getrsBatched) BOTH(X, cublas, trsmBatched)
/* clang-format on */
LM_LAZY_LIBRARY(solver_library, dense, SOLVERS, "cusolver", LM_FILE_OF("libcusolver.so.", CUSOLVER_VER_MAJOR));
LM_LAZY_LIBRARY(blas_library, blas, PRODUCTS, "cublas", LM_FILE_OF("libcublas.so.", CUBLAS_VER_MAJOR));

static const char *name_of(int code) {
  switch (code) {
    case CUSOLVER_STATUS_NOT_INITIALIZED: return "CUSOLVER_STATUS_NOT_INITIALIZED";
    case CUSOLVER_STATUS_ALLOC_FAILED: return "CUSOLVER_STATUS_ALLOC_FAILED";
    case CUSOLVER_STATUS_INVALID_VALUE: return "CUSOLVER_STATUS_INVALID_VALUE";
    case CUSOLVER_STATUS_ARCH_MISMATCH: return "CUSOLVER_STATUS_ARCH_MISMATCH";
    case CUSOLVER_STATUS_EXECUTION_FAILED: return "CUSOLVER_STATUS_EXECUTION_FAILED";
    case CUSOLVER_STATUS_INTERNAL_ERROR: return "CUSOLVER_STATUS_INTERNAL_ERROR";
    case CUSOLVER_STATUS_NOT_SUPPORTED: return "CUSOLVER_STATUS_NOT_SUPPORTED";
    default: return "CUSOLVER_STATUS_UNKNOWN";
  }
}

static lm_status check_solver(int code, const char *call) {
  if (code == CUSOLVER_STATUS_SUCCESS) return LM_OK;
  return lm_fail_call(code == CUSOLVER_STATUS_ALLOC_FAILED ? LM_E_OOM : LM_E_STATE, lm_op_running(), call, code,
                      name_of(code), NULL);
}

/* SOLVE(c, getrf, …): the routine for the call's dtype. */
#define SOLVE(c, name, ...)                                                                       \
  ((c)->dtype == LM_F64 ? check_solver(dense.cusolverDnD##name(__VA_ARGS__), "cusolverDnD" #name) \
                        : check_solver(dense.cusolverDnS##name(__VA_ARGS__), "cusolverDnS" #name))
#define PRODUCT(c, name, ...)                                                                  \
  ((c)->dtype == LM_F64 ? lm_cuda_check_blas(blas.cublasD##name(__VA_ARGS__), "cublasD" #name) \
                        : lm_cuda_check_blas(blas.cublasS##name(__VA_ARGS__), "cublasS" #name))

/* ---- handles, made at need and lent out: one thread uses one at a time */

struct lm_solver {
  lm_solver *next;
  bool alone; /* true while it prevents captures */
  cusolverDnHandle_t dense;
  cublasHandle_t blas;
  syevjInfo_t syevj;
  gesvdjInfo_t gesvdj;
  void *stream;     /* stream that used it last; streams are never freed */
  cudaEvent_t done; /* recorded for another stream to wait for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static lm_solver *idle[LM_DEVICE_MAX]; /* indexed by physical ordinal */

/* Creates the handles that are missing; after a failure the next call creates the rest. */
static lm_status complete(lm_solver *s) {
  if (!s->dense) NEED(check_solver(dense.cusolverDnCreate(&s->dense), "cusolverDnCreate"));
  if (!s->blas) NEED(lm_cuda_check_blas(blas.cublasCreate_v2(&s->blas), "cublasCreate_v2"));
  if (!s->syevj) NEED(check_solver(dense.cusolverDnCreateSyevjInfo(&s->syevj), "cusolverDnCreateSyevjInfo"));
  if (!s->gesvdj) NEED(check_solver(dense.cusolverDnCreateGesvdjInfo(&s->gesvdj), "cusolverDnCreateGesvdjInfo"));
  if (!s->done) NEED(CUDA(cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming)));
  return LM_OK;
}

static void put_back(lm_device device, void *handle) {
  lm_solver *s = handle, **first = &idle[lm_device_physical(device)];
  if (s->alone) lm_graph_unblock();
  LM_LOCKED(&lock);
  s->next = *first;
  *first = s;
}

static lm_status take_solver(lm_solver_call *c) {
  int ordinal = lm_device_physical(c->device);
  pthread_mutex_lock(&lock);
  c->solver = idle[ordinal];
  if (c->solver) idle[ordinal] = c->solver->next;
  pthread_mutex_unlock(&lock);
  if (!c->solver) c->solver = lm_calloc(1, sizeof *c->solver);
  if (!c->solver) return LM_E_OOM;
  c->f->handle = c->solver;
  c->f->put = put_back;
  c->solver->alone = lm_graph_block();
  if (!c->solver->alone) return lm_fail(LM_E_MISSING, "%s: cannot run while a graph is captured", lm_op_running());
  NEED(complete(c->solver));
  if (c->solver->stream != c->stream) { /* the handles' own memory serves one stream at a time */
    if (c->solver->stream) {
      NEED(CUDA(cudaEventRecord(c->solver->done, c->solver->stream)));
      NEED(CUDA(cudaStreamWaitEvent(c->stream, c->solver->done, 0)));
    }
    c->solver->stream = c->stream;
  }
  NEED(check_solver(dense.cusolverDnSetStream(c->solver->dense, c->stream), "cusolverDnSetStream"));
  return lm_cuda_check_blas(blas.cublasSetStream_v2(c->solver->blas, c->stream), "cublasSetStream_v2");
}

lm_status lm_solver_open(lm_cuda_frame *f, const lm_tensor *x, int64_t count, lm_solver_call *c) {
  size_t bytes = 2 * sizeof(int) * (size_t)count;
  *c = (lm_solver_call){.f = f, .dtype = x->dtype, .device = f->device, .count = count, .stream = f->stream};
  c->item = lm_dtype_size(c->dtype);
  if (count > INT32_MAX / 2)
    return lm_fail(LM_E_MISSING, "%s: the number of matrices must be at most %d on CUDA, got %lld", lm_op_running(),
                   INT32_MAX / 2, (long long)count);
  NEED(lm_lazy_load(&solver_library));
  NEED(lm_lazy_load(&blas_library));
  NEED(take_solver(c));
  NEED(lm_cuda_take_tensor(f, LM_I32, 1, &(int64_t){2 * count}, &c->infos));
  c->info = (int *)c->infos->data;
  c->flag = c->info + count;
  return lm_cuda_check(lm_set_bytes(c->info, 0, bytes, c->stream), "cudaMemsetAsync");
}

lm_status lm_solver_infos(const lm_solver_call *c, lm_bad_matrix *bad) {
  LM_OWNED *host = NULL;
  *bad = (lm_bad_matrix){0, -1};
  NEED(lm_tensor_empty(LM_I32, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){2 * c->count}, LM_CONTIGUOUS, &host));
  NEED(lm_copy(c->infos, host));
  const int *info = (const int *)host->data, *flag = info + c->count;
  for (int64_t i = 0; i < c->count && bad->at < 0; i++) {
    if (info[i] != 0 || flag[i] != 0) *bad = (lm_bad_matrix){flag[i] ? LM_NOT_FINITE : info[i], i};
  }
  return LM_OK;
}

lm_status lm_solver_converged(const lm_solver_call *c, const lm_tensor *x) {
  lm_bad_matrix bad;
  lm_status status = lm_solver_infos(c, &bad);
  if (status != LM_OK || bad.at < 0) return status;
  status = lm_matrix_fail_not_converged("the computation", "A", x, bad);
  return bad.info == LM_NOT_FINITE ? status : LM_E_MISSING;
}

lm_status lm_solver_scratch(const lm_solver_call *c, int64_t n, lm_tensor **out) {
  return lm_cuda_take_tensor(c->f, c->dtype, 2, (int64_t[]){c->count, n > 0 ? n : 1}, out);
}

/* Allocates a routine's workspace of `elements` elements. */
static lm_status workspace(const lm_solver_call *c, int64_t elements, void **out) {
  return lm_cuda_take(c->f, (size_t)(elements > 0 ? elements : 1) * c->item, out);
}

/* Computes the address of each matrix, on the device. */
static lm_status addresses(const lm_solver_call *c, const void *base, int64_t elements, void **out) {
  NEED(lm_cuda_take(c->f, (size_t)c->count * sizeof base, out));
  return LAUNCH("addresses", lm_k_addresses(*out, base, elements * (int64_t)c->item, c->count, c->stream));
}

/* Returns the i-th of items that are `elements` elements apart. */
static void *item_at(const lm_solver_call *c, const void *base, int64_t i, int64_t elements) {
  return (char *)base + (size_t)(i * elements) * c->item;
}

/* Matrices up to these sizes share one launch; larger ones fill the card one at a time. PyTorch has the same limits. */
enum { SMALL = 512, TINY = 32 };

/* ---- LU */

lm_status lm_solver_getrf(const lm_solver_call *c, int m, int n, void *a, int *pivots) {
  void *work, *list;
  int size, least = m < n ? m : n;
  if (c->count > 1 && m == n && n < SMALL) {
    NEED(addresses(c, a, (int64_t)n * n, &list));
    NEED(PRODUCT(c, getrfBatched, c->solver->blas, n, list, n, pivots, c->info, (int)c->count));
    return LM_OK;
  }
  NEED(SOLVE(c, getrf_bufferSize, c->solver->dense, m, n, a, m, &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, getrf, c->solver->dense, m, n, item_at(c, a, i, (int64_t)m * n), m, work, pivots + i * least,
               c->info + i));
  return LM_OK;
}

lm_status lm_solver_getrs(const lm_solver_call *c, bool transposed, int n, int k, const void *lu, const int *pivots,
                          void *b) {
  void *factors, *sides, *spare;
  cublasOperation_t how = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  int wrong = 0; /* would report bad arguments, a bug of ours */
  if (c->count > 1 && n < SMALL) {
    NEED(addresses(c, lu, (int64_t)n * n, &factors));
    NEED(addresses(c, b, (int64_t)n * k, &sides));
    NEED(PRODUCT(c, getrsBatched, c->solver->blas, how, n, k, factors, n, pivots, sides, n, &wrong, (int)c->count));
    return LM_OK;
  }
  NEED(lm_cuda_take(c->f, sizeof(int), &spare));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, getrs, c->solver->dense, how, n, k, item_at(c, lu, i, (int64_t)n * n), n, pivots + i * n,
               item_at(c, b, i, (int64_t)n * k), n, spare));
  return LM_OK;
}

/* ---- triangles */

lm_status lm_solver_potrf(const lm_solver_call *c, bool upper, int n, void *a) {
  void *work, *list;
  cublasFillMode_t part = upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  int size;
  if (c->count > 1 && n < SMALL) {
    NEED(addresses(c, a, (int64_t)n * n, &list));
    NEED(SOLVE(c, potrfBatched, c->solver->dense, part, n, list, n, c->info, (int)c->count));
    return LM_OK;
  }
  NEED(SOLVE(c, potrf_bufferSize, c->solver->dense, part, n, a, n, &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, potrf, c->solver->dense, part, n, item_at(c, a, i, (int64_t)n * n), n, work, size, c->info + i));
  return LM_OK;
}

lm_status lm_solver_trsm(const lm_solver_call *c, const lm_solver_triangle *t, const void *a, void *b) {
  enum { FEW = 8, LARGE = 64 };
  void *triangles, *sides;
  cublasFillMode_t part = t->upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  cublasOperation_t how = t->transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasDiagType_t diagonal = t->ones ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
  double wide_one = 1;
  float narrow_one = 1;
  const void *one = c->dtype == LM_F64 ? (void *)&wide_one : (void *)&narrow_one;
  if (c->count > 1 && (c->count > FEW || t->n < LARGE)) {
    NEED(addresses(c, a, t->a_step, &triangles));
    NEED(addresses(c, b, t->b_step, &sides));
    NEED(PRODUCT(c, trsmBatched, c->solver->blas, CUBLAS_SIDE_LEFT, part, how, diagonal, t->n, t->k, one, triangles,
                 t->lda, sides, t->ldb, (int)c->count));
    return LM_OK;
  }
  for (int64_t i = 0; i < c->count; i++)
    NEED(PRODUCT(c, trsm_v2, c->solver->blas, CUBLAS_SIDE_LEFT, part, how, diagonal, t->n, t->k, one,
                 item_at(c, a, i, t->a_step), t->lda, item_at(c, b, i, t->b_step), t->ldb));
  return LM_OK;
}

/* ---- QR */

lm_status lm_solver_geqrf(const lm_solver_call *c, int m, int n, void *a, void *tau) {
  void *work;
  int size, least = m < n ? m : n;
  NEED(SOLVE(c, geqrf_bufferSize, c->solver->dense, m, n, a, m, &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, geqrf, c->solver->dense, m, n, item_at(c, a, i, (int64_t)m * n), m, item_at(c, tau, i, least), work,
               size, c->info + i));
  return LM_OK;
}

lm_status lm_solver_orgqr(const lm_solver_call *c, int m, int columns, int k, void *a, const void *tau) {
  void *work;
  int size;
  NEED(SOLVE(c, orgqr_bufferSize, c->solver->dense, m, columns, k, a, m, tau, &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, orgqr, c->solver->dense, m, columns, k, item_at(c, a, i, (int64_t)m * columns), m,
               item_at(c, tau, i, k), work, size, c->info + i));
  return LM_OK;
}

lm_status lm_solver_ormqr(const lm_solver_call *c, int m, int columns, int k, const void *a, const void *tau, void *b) {
  void *work;
  int size;
  NEED(SOLVE(c, ormqr_bufferSize, c->solver->dense, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, m, columns, k, a, m, tau, b, m,
             &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < c->count; i++)
    NEED(SOLVE(c, ormqr, c->solver->dense, CUBLAS_SIDE_LEFT, CUBLAS_OP_T, m, columns, k,
               item_at(c, a, i, (int64_t)m * k), m, item_at(c, tau, i, k), item_at(c, b, i, (int64_t)m * columns), m,
               work, size, c->info + i));
  return LM_OK;
}

/* ---- eigenvalues and singular values */

lm_status lm_solver_syevd(const lm_solver_call *c, bool vectors, bool upper, int n, void *a, void *w) {
  void *work;
  cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  cublasFillMode_t part = upper ? CUBLAS_FILL_MODE_UPPER : CUBLAS_FILL_MODE_LOWER;
  lm_solver *s = c->solver;
  int size, count = (int)c->count;
  if (count > 1 && n <= TINY) {
    NEED(SOLVE(c, syevjBatched_bufferSize, s->dense, mode, part, n, a, n, w, &size, s->syevj, count));
    NEED(workspace(c, size, &work));
    NEED(SOLVE(c, syevjBatched, s->dense, mode, part, n, a, n, w, work, size, c->info, s->syevj, count));
    return LM_OK;
  }
  NEED(SOLVE(c, syevd_bufferSize, s->dense, mode, part, n, a, n, w, &size));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < count; i++)
    NEED(SOLVE(c, syevd, s->dense, mode, part, n, item_at(c, a, i, (int64_t)n * n), n, item_at(c, w, i, n), work, size,
               c->info + i));
  return LM_OK;
}

bool lm_solver_is_complete(const lm_solver_call *c, bool whole, int m, int n) {
  return whole || (c->count > 1 && m <= TINY && n <= TINY);
}

/* Decomposes by Jacobi's rotations, which take wide matrices too and are PyTorch's choice. */
lm_status lm_solver_gesvd(const lm_solver_call *c, bool vectors, bool whole, int m, int n, void *a, void *s, void *u,
                          void *v) {
  void *work;
  cusolverEigMode_t mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  lm_solver *x = c->solver;
  int size, count = (int)c->count, least = m < n ? m : n, u_columns, v_columns;
  whole = lm_solver_is_complete(c, whole, m, n);
  u_columns = whole ? m : least;
  v_columns = whole ? n : least;
  if (count > 1 && m <= TINY && n <= TINY) {
    NEED(SOLVE(c, gesvdjBatched_bufferSize, x->dense, mode, m, n, a, m, s, u, m, v, n, &size, x->gesvdj, count));
    NEED(workspace(c, size, &work));
    NEED(SOLVE(c, gesvdjBatched, x->dense, mode, m, n, a, m, s, u, m, v, n, work, size, c->info, x->gesvdj, count));
    return LM_OK;
  }
  NEED(SOLVE(c, gesvdj_bufferSize, x->dense, mode, !whole, m, n, a, m, s, u, m, v, n, &size, x->gesvdj));
  NEED(workspace(c, size, &work));
  for (int64_t i = 0; i < count; i++)
    NEED(SOLVE(c, gesvdj, x->dense, mode, !whole, m, n, item_at(c, a, i, (int64_t)m * n), m, item_at(c, s, i, least),
               item_at(c, u, i, (int64_t)m * u_columns), m, item_at(c, v, i, (int64_t)n * v_columns), n, work, size,
               c->info + i, x->gesvdj));
  return LM_OK;
}
