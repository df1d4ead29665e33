/* Copies between layouts and dtypes. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/strided_tiles.h"

/* Dense, and the same order of dims in memory: the bytes are the copy. */
static bool same_layout(const lm_tensor *a, const lm_tensor *b) {
  if (lm_is_contiguous(a)) return lm_is_contiguous(b);
  return memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride) == 0 && lm_is_dense(a);
}

lm_status lm_cpu_copy(const lm_tensor *src, lm_tensor *dst) {
  if (src->dtype == dst->dtype && same_layout(src, dst)) {
    size_t bytes = lm_nbytes(src);
    int parts = lm_cpu_share((double)bytes / 16);
    if (bytes == 0 || src->data == dst->data) return LM_OK;
#pragma omp parallel for num_threads(parts) if (parts > 1)
    for (int i = 0; i < parts; i++) {
      size_t begin = bytes / (size_t)parts * (size_t)i,
             end = i + 1 == parts ? bytes : bytes / (size_t)parts * (size_t)(i + 1);
      memcpy(dst->data + begin, src->data + begin, end - begin);
    }
    return LM_OK;
  }
  /* What holds every value of the source; an equal dtype comes back the same (half NaNs may lose their payload). */
  lm_dtype compute = src->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(src->dtype) ? LM_F32 : LM_I64;
  lm_tiles t = {.compute = compute, .nin = 1, .in = {lm_operand_of(src)}};
  lm_tiles_result(&t, dst);
  lm_tiles_run(&t);
  return LM_OK;
}
