/* Exports the OpenBLAS routines that the core calls; only this file is linked to it, so it can be loaded at need. */
#include <omp.h>

#include "backend/cpu/linalg/openblas.h"

#define X(name, parameters)          \
  extern void s##name##_ parameters; \
  extern void d##name##_ parameters;
LM_OPENBLAS_ROUTINES(X)
#undef X
extern void openblas_set_num_threads(int n);
extern char *openblas_get_config(void);

static int set_omp_threads(int n) {
  int before = omp_get_max_threads();
  omp_set_num_threads(n);
  return before;
}

__attribute__((visibility("default"))) void lm_openblas_plugin(lm_openblas_table *table) {
#define X(name, parameters) .s##name = s##name##_, .d##name = d##name##_,
  *table = (lm_openblas_table){LM_OPENBLAS_ROUTINES(X).set_num_threads = openblas_set_num_threads,
                               .get_config = openblas_get_config, .set_omp_threads = set_omp_threads};
#undef X
}
