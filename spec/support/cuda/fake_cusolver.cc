/* cuSOLVER's and cuBLAS's routines, as far as the backend uses them. Their checks are the real ones': leading
 * dimensions, sizes that batched routines take, workspaces as large as was said, on the handle's device, and written
 * over; matrices that they may destroy are. They may wait, so a capture of their thread fails them. */
#if __has_include(<cusolverDn.h>)
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <atomic>

#include "dense_solver.h"
#include "fake_library.h"

namespace {
struct handle {
  int device;
  void *memory;
  cudaStream_t stream;
};
}  // namespace

enum { LARGEST_OF_MANY = 32, MORE = 7 }; /* elements of workspace beyond a matrix */

static bool make_handle(handle **out) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  lm_fake_waits_for(device);
  handle *made = new handle{device, NULL, NULL};
  if (cudaMalloc(&made->memory, 256) != cudaSuccess) {
    delete made;
    return false;
  }
  *out = made;
  lm_fake_count("handle", 1);
  return true;
}

/* Returns whether all pointers lie on the handle's device, which must be the current one. */
static bool on_device(const void *h, std::initializer_list<const void *> pointers) {
  int device = -1;
  cudaGetDevice(&device);
  if (!h || ((const handle *)h)->device != device) return false;
  for (const void *p : pointers)
    if (lm_fake_device_of(p) != device) return false;
  return true;
}

template <class T>
static bool fits(const void *h, const T *work, int given, int wanted) {
  return given >= wanted && on_device(h, {work, work + given - 1});
}

template <class F>
static int enqueue(const void *h, F work) {
  if (lm_fake_forbidden() != 0) return CUSOLVER_STATUS_INTERNAL_ERROR;
  return lm_fake_enqueue(((const handle *)h)->stream, work) ? CUSOLVER_STATUS_EXECUTION_FAILED
                                                            : CUSOLVER_STATUS_SUCCESS;
}

static std::atomic<bool> will_diverge;
extern "C" LM_FAKE_API void lm_fake_diverge(void) { will_diverge = true; }
static int diverged() { return will_diverge.exchange(false) ? 99 : 0; }

template <class T>
static void spoil(T *p, long n) {
  for (long i = 0; i < n; i++) p[i] = (T)NAN;
}

template <class T>
static void destroy(T *a, int m, int n, int ld) {
  for (int c = 0; c < n; c++) spoil(a + (long)c * ld, m);
}

/* ---- of any type: statuses are cuSOLVER's, whose first few numbers are not cuBLAS's */

template <class T>
static int getrf(const void *h, int m, int n, T *a, int lda, T *work, int *pivots, int *info) {
  if (m < 1 || n < 1 || lda < m) return CUSOLVER_STATUS_INVALID_VALUE;
  if (!on_device(h, {a, pivots, info}) || !fits(h, work, m * n + MORE, m * n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense x(m, n, a, lda);
    spoil(work, (long)m * n + MORE);
    *info = lm_dense_getrf(x, pivots);
    x.put(a, lda);
  });
}

template <class T>
static int getrs(const void *h, int trans, int n, int k, const T *a, int lda, const int *pivots, T *b, int ldb,
                 int *info) {
  if (n < 1 || k < 1 || lda < n || ldb < n || !on_device(h, {a, pivots, b, info})) return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense lu(n, n, a, lda), x(n, k, b, ldb);
    lm_dense_getrs(lu, pivots, trans == CUBLAS_OP_T, x);
    x.put(b, ldb);
    *info = 0;
  });
}

template <class T>
static int potrf(const void *h, int part, int n, T *a, int lda, T *work, int lwork, int *info) {
  if (n < 1 || lda < n || !on_device(h, {a, info}) || !fits(h, work, lwork, n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense x(n, n, a, lda);
    spoil(work, lwork);
    *info = lm_dense_potrf(x, part == CUBLAS_FILL_MODE_UPPER);
    x.put(a, lda);
  });
}

template <class T>
static int potrf_batched(const void *h, int part, int n, T **a, int lda, int *info, int count) {
  if (n < 1 || lda < n || count < 1 || !on_device(h, {a, info})) return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    for (int i = 0; i < count; i++) {
      lm_dense x(n, n, a[i], lda);
      info[i] = lm_dense_potrf(x, part == CUBLAS_FILL_MODE_UPPER);
      x.put(a[i], lda);
    }
  });
}

template <class T>
static int geqrf(const void *h, int m, int n, T *a, int lda, T *tau, T *work, int lwork, int *info) {
  if (m < 1 || n < 1 || lda < m || !on_device(h, {a, tau, info}) || !fits(h, work, lwork, n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense x(m, n, a, lda);
    std::vector<double> taus((size_t)std::min(m, n));
    spoil(work, lwork);
    lm_dense_geqrf(x, taus.data());
    for (size_t i = 0; i < taus.size(); i++) tau[i] = (T)taus[i];
    x.put(a, lda);
    *info = 0;
  });
}

template <class T>
static int orgqr(const void *h, int m, int n, int k, T *a, int lda, const T *tau, T *work, int lwork, int *info) {
  if (m < 1 || n < 1 || n > m || k < 0 || k > n || lda < m) return CUSOLVER_STATUS_INVALID_VALUE;
  if (!on_device(h, {a, tau, info}) || !fits(h, work, lwork, n + MORE)) return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense x(m, n, a, lda);
    std::vector<double> taus(tau, tau + k);
    spoil(work, lwork);
    lm_dense_orgqr(x, taus.data(), k);
    x.put(a, lda);
    *info = 0;
  });
}

template <class T>
static int ormqr(const void *h, int side, int trans, int m, int n, int k, const T *a, int lda, const T *tau, T *b,
                 int ldb, T *work, int lwork, int *info) {
  if (side != CUBLAS_SIDE_LEFT || trans != CUBLAS_OP_T) return CUSOLVER_STATUS_INVALID_VALUE; /* all that is faked */
  if (m < 1 || n < 1 || k < 1 || k > m || lda < m || ldb < m) return CUSOLVER_STATUS_INVALID_VALUE;
  if (!on_device(h, {a, tau, b, info}) || !fits(h, work, lwork, n + MORE)) return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    lm_dense x(m, k, a, lda), y(m, n, b, ldb);
    spoil(work, lwork);
    for (int d = 0; d < k; d++) lm_dense_reflect(x, d, (double)tau[d], y, 0);
    y.put(b, ldb);
    *info = 0;
  });
}

/* The other triangle is not read. */
template <class T>
static void eigen(int mode, int part, int n, T *a, int lda, T *w, int *info) {
  lm_dense x(n, n, a, lda);
  std::vector<double> values((size_t)n);
  for (int c = 0; c < n; c++)
    for (int r = 0; r < c; r++)
      (part == CUBLAS_FILL_MODE_UPPER ? x.at(c, r) : x.at(r, c)) =
          part == CUBLAS_FILL_MODE_UPPER ? x.at(r, c) : x.at(c, r);
  lm_dense_syev(x, values.data());
  for (int i = 0; i < n; i++) w[i] = (T)values[(size_t)i];
  destroy(a, n, n, lda);
  if (mode == CUSOLVER_EIG_MODE_VECTOR) x.put(a, lda);
  *info = diverged();
}

template <class T>
static int syevd(const void *h, int mode, int part, int n, T *a, int lda, T *w, T *work, int lwork, int *info) {
  if (n < 1 || lda < n || !on_device(h, {a, w, info}) || !fits(h, work, lwork, n * n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    spoil(work, lwork);
    eigen(mode, part, n, a, lda, w, info);
  });
}

template <class T>
static int syevj_batched(const void *h, int mode, int part, int n, T *a, int lda, T *w, T *work, int lwork, int *info,
                         const void *how, int count) {
  if (n < 1 || n > LARGEST_OF_MANY || lda < n || count < 1 || !how || !on_device(h, {a, w, info}) ||
      !fits(h, work, lwork, n * count + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    spoil(work, lwork);
    for (int i = 0; i < count; i++) eigen(mode, part, n, a + (long)i * lda * n, lda, w + (long)i * n, info + i);
  });
}

template <class T>
static void singular(int mode, int m, int n, int u_columns, int v_columns, T *a, int lda, T *s, T *u, int ldu, T *v,
                     int ldv, int *info) {
  lm_dense x(m, n, a, lda), left(m, u_columns), right(n, v_columns);
  std::vector<double> values((size_t)std::min(m, n));
  lm_dense_gesvd(x, values.data(), left, right);
  for (size_t i = 0; i < values.size(); i++) s[i] = (T)values[i];
  destroy(a, m, n, lda);
  if (mode == CUSOLVER_EIG_MODE_VECTOR) left.put(u, ldu), right.put(v, ldv);
  *info = diverged();
}

/* U and V must be there in either mode. */
template <class T>
static int gesvdj(const void *h, int mode, int econ, int m, int n, T *a, int lda, T *s, T *u, int ldu, T *v, int ldv,
                  T *work, int lwork, int *info, const void *how) {
  if (m < 1 || n < 1 || lda < m || ldu < m || ldv < n || !how || !on_device(h, {a, s, u, v, info}) ||
      !fits(h, work, lwork, m * n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    spoil(work, lwork);
    singular(mode, m, n, econ ? std::min(m, n) : m, econ ? std::min(m, n) : n, a, lda, s, u, ldu, v, ldv, info);
  });
}

template <class T>
static int gesvdj_batched(const void *h, int mode, int m, int n, T *a, int lda, T *s, T *u, int ldu, T *v, int ldv,
                          T *work, int lwork, int *info, const void *how, int count) {
  if (m < 1 || n < 1 || m > LARGEST_OF_MANY || n > LARGEST_OF_MANY || lda < m || ldu < m || ldv < n || !how ||
      count < 1 || !on_device(h, {a, s, u, v, info}) || !fits(h, work, lwork, m * n + MORE))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    spoil(work, lwork);
    for (long i = 0; i < count; i++)
      singular(mode, m, n, m, n, a + i * lda * n, lda, s + i * std::min(m, n), u + i * ldu * m, ldu, v + i * ldv * n,
               ldv, info + i);
  });
}

/* ---- cuBLAS */

static cublasStatus_t of_blas(int code) {
  switch (code) {
    case CUSOLVER_STATUS_SUCCESS: return CUBLAS_STATUS_SUCCESS;
    case CUSOLVER_STATUS_INVALID_VALUE: return CUBLAS_STATUS_INVALID_VALUE;
    case CUSOLVER_STATUS_INTERNAL_ERROR: return CUBLAS_STATUS_INTERNAL_ERROR;
    default: return CUBLAS_STATUS_EXECUTION_FAILED;
  }
}

template <class T>
static int getrf_batched(const void *h, int n, T *const *a, int lda, int *pivots, int *info, int count) {
  if (n < 1 || lda < n || count < 1 || !on_device(h, {a, pivots, info})) return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    for (int i = 0; i < count; i++) {
      lm_dense x(n, n, a[i], lda);
      info[i] = lm_dense_getrf(x, pivots + (long)i * n);
      x.put(a[i], lda);
    }
  });
}

/* info is the host's, and says which argument is wrong. */
template <class T>
static int getrs_batched(const void *h, int trans, int n, int k, const T *const *a, int lda, const int *pivots,
                         T *const *b, int ldb, int *info, int count) {
  if (!info || lm_fake_device_of(info) >= 0) return CUSOLVER_STATUS_INVALID_VALUE;
  *info = 0;
  if (n < 1 || k < 1 || lda < n || ldb < n || count < 1 || !on_device(h, {a, pivots, b}))
    return CUSOLVER_STATUS_INVALID_VALUE;
  return enqueue(h, [=] {
    for (int i = 0; i < count; i++) {
      lm_dense lu(n, n, a[i], lda), x(n, k, b[i], ldb);
      lm_dense_getrs(lu, pivots + (long)i * n, trans == CUBLAS_OP_T, x);
      x.put(b[i], ldb);
    }
  });
}

template <class T>
static void solve_triangle(int part, int trans, int diagonal, int m, int n, T one, const T *a, int lda, T *b, int ldb) {
  lm_dense x(m, m, a, lda), y(m, n, b, ldb);
  for (double &v : y.v) v *= (double)one;
  lm_dense_trsm(x, part == CUBLAS_FILL_MODE_UPPER, trans == CUBLAS_OP_T, diagonal == CUBLAS_DIAG_UNIT, y);
  y.put(b, ldb);
}

template <class T>
static int trsm(const void *h, int side, int part, int trans, int diagonal, int m, int n, const T *alpha, const T *a,
                int lda, T *b, int ldb) {
  if (side != CUBLAS_SIDE_LEFT || m < 1 || n < 1 || lda < m || ldb < m || !on_device(h, {a, b}))
    return CUSOLVER_STATUS_INVALID_VALUE;
  T one = *alpha; /* the host's */
  return enqueue(h, [=] { solve_triangle(part, trans, diagonal, m, n, one, a, lda, b, ldb); });
}

template <class T>
static int trsm_batched(const void *h, int side, int part, int trans, int diagonal, int m, int n, const T *alpha,
                        const T *const *a, int lda, T *const *b, int ldb, int count) {
  if (side != CUBLAS_SIDE_LEFT || m < 1 || n < 1 || lda < m || ldb < m || count < 1 || !on_device(h, {a, b}))
    return CUSOLVER_STATUS_INVALID_VALUE;
  T one = *alpha;
  return enqueue(h, [=] {
    for (int i = 0; i < count; i++) solve_triangle(part, trans, diagonal, m, n, one, a[i], lda, b[i], ldb);
  });
}

#define SOLVER(name, call, ...)                                \
  LM_FAKE_API cusolverStatus_t cusolverDn##name(__VA_ARGS__) { \
    LM_FAKE_ENTER(cusolverStatus_t);                           \
    return (cusolverStatus_t)(call);                           \
  }
#define SIZE(name, size, ...)                                  \
  LM_FAKE_API cusolverStatus_t cusolverDn##name(__VA_ARGS__) { \
    LM_FAKE_ENTER(cusolverStatus_t);                           \
    *lwork = (size);                                           \
    return CUSOLVER_STATUS_SUCCESS;                            \
  }
#define BLAS(name, call, ...)                            \
  LM_FAKE_API cublasStatus_t cublas##name(__VA_ARGS__) { \
    LM_FAKE_ENTER(cublasStatus_t);                       \
    return of_blas(call);                                \
  }
typedef cusolverDnHandle_t H;
typedef cublasHandle_t B;
typedef cublasFillMode_t fill;
typedef cublasOperation_t op;
typedef cusolverEigMode_t eig;

#define ALL(L, T)                                                                                                     \
  SIZE(L##getrf_bufferSize, m *n + MORE, H, int m, int n, T *, int, int *lwork)                                       \
  SOLVER(L##getrf, getrf(h, m, n, a, lda, work, ipiv, info), H h, int m, int n, T *a, int lda, T *work, int *ipiv,    \
         int *info)                                                                                                   \
  SOLVER(L##getrs, getrs(h, t, n, k, a, lda, ipiv, b, ldb, info), H h, op t, int n, int k, const T *a, int lda,       \
         const int *ipiv, T *b, int ldb, int *info)                                                                   \
  SIZE(L##potrf_bufferSize, n + MORE, H, fill, int n, T *, int, int *lwork)                                           \
  SOLVER(L##potrf, potrf(h, part, n, a, lda, work, lwork, info), H h, fill part, int n, T *a, int lda, T *work,       \
         int lwork, int *info)                                                                                        \
  SOLVER(L##potrfBatched, potrf_batched(h, part, n, a, lda, info, count), H h, fill part, int n, T **a, int lda,      \
         int *info, int count)                                                                                        \
  SIZE(L##geqrf_bufferSize, n + MORE, H, int, int n, T *, int, int *lwork)                                            \
  SOLVER(L##geqrf, geqrf(h, m, n, a, lda, tau, work, lwork, info), H h, int m, int n, T *a, int lda, T *tau, T *work, \
         int lwork, int *info)                                                                                        \
  SIZE(L##orgqr_bufferSize, n + MORE, H, int, int n, int, const T *, int, const T *, int *lwork)                      \
  SOLVER(L##orgqr, orgqr(h, m, n, k, a, lda, tau, work, lwork, info), H h, int m, int n, int k, T *a, int lda,        \
         const T *tau, T *work, int lwork, int *info)                                                                 \
  SIZE(L##ormqr_bufferSize, n + MORE, H, cublasSideMode_t, op, int, int n, int, const T *, int, const T *, const T *, \
       int, int *lwork)                                                                                               \
  SOLVER(L##ormqr, ormqr(h, side, t, m, n, k, a, lda, tau, c, ldc, work, lwork, info), H h, cublasSideMode_t side,    \
         op t, int m, int n, int k, const T *a, int lda, const T *tau, T *c, int ldc, T *work, int lwork, int *info)  \
  SIZE(L##syevd_bufferSize, n *n + MORE, H, eig, fill, int n, const T *, int, const T *, int *lwork)                  \
  SOLVER(L##syevd, syevd(h, mode, part, n, a, lda, w, work, lwork, info), H h, eig mode, fill part, int n, T *a,      \
         int lda, T *w, T *work, int lwork, int *info)                                                                \
  SIZE(L##syevjBatched_bufferSize, n *count + MORE, H, eig, fill, int n, const T *, int, const T *, int *lwork,       \
       syevjInfo_t, int count)                                                                                        \
  SOLVER(L##syevjBatched, syevj_batched(h, mode, part, n, a, lda, w, work, lwork, info, how, count), H h, eig mode,   \
         fill part, int n, T *a, int lda, T *w, T *work, int lwork, int *info, syevjInfo_t how, int count)            \
  SIZE(L##gesvdj_bufferSize, m *n + MORE, H, eig, int, int m, int n, const T *, int, const T *, const T *, int,       \
       const T *, int, int *lwork, gesvdjInfo_t)                                                                      \
  SOLVER(L##gesvdj, gesvdj(h, mode, econ, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, how), H h, eig mode,    \
         int econ, int m, int n, T *a, int lda, T *s, T *u, int ldu, T *v, int ldv, T *work, int lwork, int *info,    \
         gesvdjInfo_t how)                                                                                            \
  SIZE(L##gesvdjBatched_bufferSize, m *n + MORE, H, eig, int m, int n, const T *, int, const T *, const T *, int,     \
       const T *, int, int *lwork, gesvdjInfo_t, int)                                                                 \
  SOLVER(L##gesvdjBatched, gesvdj_batched(h, mode, m, n, a, lda, s, u, ldu, v, ldv, work, lwork, info, how, count),   \
         H h, eig mode, int m, int n, T *a, int lda, T *s, T *u, int ldu, T *v, int ldv, T *work, int lwork,          \
         int *info, gesvdjInfo_t how, int count)                                                                      \
  BLAS(L##getrfBatched, getrf_batched(h, n, a, lda, ipiv, info, count), B h, int n, T *const a[], int lda, int *ipiv, \
       int *info, int count)                                                                                          \
  BLAS(L##getrsBatched, getrs_batched(h, t, n, k, a, lda, ipiv, b, ldb, info, count), B h, op t, int n, int k,        \
       const T *const a[], int lda, const int *ipiv, T *const b[], int ldb, int *info, int count)                     \
  BLAS(L##trsm_v2, trsm(h, side, part, t, d, m, n, alpha, a, lda, b, ldb), B h, cublasSideMode_t side, fill part,     \
       op t, cublasDiagType_t d, int m, int n, const T *alpha, const T *a, int lda, T *b, int ldb)                    \
  BLAS(L##trsmBatched, trsm_batched(h, side, part, t, d, m, n, alpha, a, lda, b, ldb, count), B h,                    \
       cublasSideMode_t side, fill part, op t, cublasDiagType_t d, int m, int n, const T *alpha, const T *const a[],  \
       int lda, T *const b[], int ldb, int count)

extern "C" {

ALL(S, float)
ALL(D, double)

LM_FAKE_API cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *out) {
  LM_FAKE_ENTER(cusolverStatus_t);
  return make_handle((handle **)out) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_ALLOC_FAILED;
}

LM_FAKE_API cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t h, cudaStream_t stream) {
  LM_FAKE_ENTER(cusolverStatus_t);
  ((handle *)h)->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}

LM_FAKE_API cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t *out) {
  LM_FAKE_ENTER(cusolverStatus_t);
  static int made;
  *out = (syevjInfo_t)&made;
  return CUSOLVER_STATUS_SUCCESS;
}

LM_FAKE_API cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t *out) {
  LM_FAKE_ENTER(cusolverStatus_t);
  static int made;
  *out = (gesvdjInfo_t)&made;
  return CUSOLVER_STATUS_SUCCESS;
}

LM_FAKE_API cublasStatus_t cublasCreate_v2(cublasHandle_t *out) {
  LM_FAKE_ENTER(cublasStatus_t);
  return make_handle((handle **)out) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

LM_FAKE_API cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) {
  LM_FAKE_ENTER(cublasStatus_t);
  ((handle *)h)->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
#endif
