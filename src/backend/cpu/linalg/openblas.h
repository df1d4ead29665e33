/* Loads OpenBLAS, its LAPACK too, when it is first needed: that takes as long as loading all the rest.
 *
 * Its matrices are column-major: to it, a row-major one is the transpose. Fortran passes everything by address, and the
 * lengths of texts at the end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Routines that exist for float32 (s) and float64 (d). */
#define LM_OPENBLAS_ROUTINES(X)                                                                                       \
  X(syevd, (const char *jobz, const char *uplo, const int *n, void *a, const int *lda, void *w, void *work,           \
            const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t))                              \
  X(sytrd, (const char *uplo, const int *n, void *a, const int *lda, void *d, void *e, void *tau, void *work,         \
            const int *lwork, int *info, size_t))                                                                     \
  X(stedc, (const char *compz, const int *n, void *d, void *e, void *z, const int *ldz, void *work, const int *lwork, \
            int *iwork, const int *liwork, int *info, size_t))                                                        \
  X(gesdd, (const char *jobz, const int *m, const int *n, void *a, const int *lda, void *s, void *u, const int *ldu,  \
            void *vt, const int *ldvt, void *work, const int *lwork, int *iwork, int *info, size_t))                  \
  X(gels, (const char *trans, const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b,          \
           const int *ldb, void *work, const int *lwork, int *info, size_t))                                          \
  X(gelsy, (const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb, int *jpvt, \
            const void *rcond, int *rank, void *work, const int *lwork, int *info))                                   \
  X(gelss, (const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb, void *s,   \
            const void *rcond, int *rank, void *work, const int *lwork, int *info))                                   \
  X(gelsd, (const int *m, const int *n, const int *nrhs, void *a, const int *lda, void *b, const int *ldb, void *s,   \
            const void *rcond, int *rank, void *work, const int *lwork, int *iwork, int *info))

typedef struct lm_openblas_table {
#define X(name, parameters)  \
  void(*s##name) parameters; \
  void(*d##name) parameters;
  LM_OPENBLAS_ROUTINES(X)
#undef X
  void (*set_num_threads)(int n);
  char *(*get_config)(void);
  int (*set_omp_threads)(int n); /* returns OpenMP's number of threads before */
} lm_openblas_table;

extern lm_openblas_table lm_openblas; /* valid once loaded */

/* Calls a routine for that dtype, as LM_CALL(LM_F64, gesdd, ...). */
#define LM_CALL(dtype, name, ...) \
  ((dtype) == LM_F64 ? lm_openblas.d##name(__VA_ARGS__) : lm_openblas.s##name(__VA_ARGS__))

lm_status lm_openblas_load(void);

/* Loads OpenBLAS, and checks that there is room for `parts` more buffers; on LM_OK the caller later calls
 * lm_openblas_leave(parts). Each thread in OpenBLAS takes 128 MB of addresses, which it keeps for the next one; without
 * room OpenBLAS retries forever. It computes on the calling thread: its own threads would compete with ours. */
lm_status lm_openblas_enter(int parts);
void lm_openblas_leave(int parts);
