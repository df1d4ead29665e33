/* tril, triu. */
#include "backend/cpu/cpu.h"

lm_status lm_cpu_triangle(const void *args, lm_tensor *const *out) {
  const lm_triangle_args *a = args;
  const lm_tensor *x = a->x;
  size_t item = lm_dtype_size(x->dtype);
  int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1], lines = x->numel / columns;
  int threads = lm_cpu_share((double)x->numel * (double)item / 16);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t line = 0; line < lines; line++) {
    int64_t cut = line % rows + a->diagonal + (a->upper ? 0 : 1); /* the first column of the right part */
    size_t left = (size_t)(cut < 0 ? 0 : cut > columns ? columns : cut) * item, all = (size_t)columns * item;
    char *to = out[0]->data + (size_t)line * all;
    const char *from = x->data + (size_t)line * all;
    size_t kept = a->upper ? left : 0, n = a->upper ? all - left : left;
    memset(to + (a->upper ? 0 : left), 0, all - n);
    if (to != from) memcpy(to + kept, from + kept, n);
  }
  return LM_OK;
}
