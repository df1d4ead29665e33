/* Copies one triangle of each matrix and clears the rest (tril, triu). */
#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "op_args_flip_roll_pad.h"

typedef struct triangle_job {
  const lm_triangle_args *a;
  lm_tensor *out;
} triangle_job;

static void copy_lines(void *ctx, int64_t first, int64_t last) {
  const triangle_job *j = ctx;
  const lm_triangle_args *a = j->a;
  const lm_tensor *x = a->x;
  size_t item = lm_dtype_size((lm_dtype)x->dtype);
  int64_t rows = x->size[x->ndim - 2], columns = x->size[x->ndim - 1];
  for (int64_t line = first; line < last; line++) {
    int64_t cut = line % rows + a->diagonal + (a->upper ? 0 : 1); /* the first column of the right part */
    size_t left = (size_t)(cut < 0 ? 0 : cut > columns ? columns : cut) * item, all = (size_t)columns * item;
    char *to = j->out->data + (size_t)line * all;
    const char *from = x->data + (size_t)line * all;
    size_t kept = a->upper ? left : 0, n = a->upper ? all - left : left;
    memset(to + (a->upper ? 0 : left), 0, all - n);
    if (to != from) lm_copy_run(to + kept, from + kept, n);
  }
}

lm_status lm_cpu_triangle(const lm_triangle_args *a, lm_tensor *const *out) {
  double bytes = (double)lm_nbytes(a->x);
  return lm_parallel(a->x->numel / a->x->size[a->x->ndim - 1], bytes / 16, 0, copy_lines, &(triangle_job){a, out[0]});
}
