/* Copies between layouts and dtypes. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/stream_copy.h"
#include "backend/cpu/strided_tiles.h"
#include "merged_dims.h"

/* Dense, and the same order of dims in memory: the bytes are the copy. */
static bool same_layout(const lm_tensor *a, const lm_tensor *b) {
  if (lm_is_contiguous(a)) return lm_is_contiguous(b);
  return memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride) == 0 && lm_is_dense(a);
}

enum {
  LEAST_RUN = 64,
  LEAST_STREAMED = 1024
}; /* bytes; below them tiles are as quick, and the caches' lines too few */

/* n elements from src on, which lie one before the other: 16 bytes at a time, which compilers do not see by themselves.
 */
static void copy_back(size_t item, int64_t n, char *dst, const char *src) {
#define CASE(type, ...)                                            \
  case sizeof(type): {                                             \
    typedef type pack __attribute__((vector_size(16)));            \
    enum { LANES = 16 / sizeof(type) };                            \
    int64_t i = 0;                                                 \
    for (; i + LANES <= n; i += LANES) {                           \
      pack p;                                                      \
      memcpy(&p, (const type *)src - i - (LANES - 1), sizeof p);   \
      p = __builtin_shufflevector(p, p, __VA_ARGS__);              \
      memcpy((type *)dst + i, &p, sizeof p);                       \
    }                                                              \
    for (; i < n; i++) ((type *)dst)[i] = ((const type *)src)[-i]; \
    break;                                                         \
  }
  switch (item) {
    CASE(uint8_t, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
    CASE(uint16_t, 7, 6, 5, 4, 3, 2, 1, 0)
    CASE(uint32_t, 3, 2, 1, 0)
    CASE(uint64_t, 1, 0)
  }
#undef CASE
}

/* Whether elements came in runs, one behind (or, of a flip, before) the other in both, and were moved as these. */
static bool copy_runs(const lm_tensor *src, lm_tensor *dst) {
  enum { TO, FROM };
  int64_t along[LM_DIMS_SIDES], item = (int64_t)lm_dtype_size((lm_dtype)dst->dtype), n = dst->numel;
  lm_dims rows = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){dst->stride, src->stride}, true);
  int64_t run = lm_dims_pop(&rows, along, 1);
  bool back = along[FROM] == -1;
  if (along[TO] != 1 || (along[FROM] != 1 && !back) || run * item < LEAST_RUN) return false;
  int threads = lm_cpu_share((double)(n * item) / 16);
  bool streams = lm_stream_pays((size_t)(n * item)) && run * item >= LEAST_STREAMED;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t end = lm_cpu_share_begin(n, t + 1, threads);
    for (int64_t p = lm_cpu_share_begin(n, t, threads); p < end;) {
      int64_t row = p / run, low = p % run, high = end - row * run < run ? end - row * run : run;
      char *to = dst->data + (lm_dims_at(&rows, TO, row) + low) * item;
      const char *from = src->data + (lm_dims_at(&rows, FROM, row) + (back ? -low : low)) * item;
      if (back) {
        copy_back((size_t)item, high - low, to, from);
      } else {
        lm_copy_or_stream(streams, to, from, (size_t)((high - low) * item));
      }
      p = row * run + high;
    }
    if (streams) lm_stream_end();
  }
  return true;
}

lm_status lm_cpu_copy(const lm_tensor *src, lm_tensor *dst) {
  if (src->dtype == dst->dtype && same_layout(src, dst)) {
    size_t bytes = lm_nbytes(src);
    int parts = lm_cpu_share((double)bytes / 16);
    bool streams = lm_stream_pays(bytes);
    if (bytes == 0 || src->data == dst->data) return LM_OK;
#pragma omp parallel for num_threads(parts) if (parts > 1)
    for (int i = 0; i < parts; i++) {
      size_t begin = bytes / (size_t)parts * (size_t)i,
             end = i + 1 == parts ? bytes : bytes / (size_t)parts * (size_t)(i + 1);
      lm_copy_or_stream(streams, dst->data + begin, src->data + begin, end - begin);
      if (streams) lm_stream_end();
    }
    return LM_OK;
  }
  if (src->dtype == dst->dtype && dst->numel > 0 && (copy_runs(src, dst) || lm_cpu_copy_short_rows(src, dst))) {
    return LM_OK;
  }
  /* What holds every value of the source; an equal dtype comes back the same (half NaNs may lose their payload). What
   * comes to be floating is rounded once. */
  lm_dtype compute = src->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(src->dtype) ? LM_F32 : LM_I64;
  if (compute == LM_I64 && lm_dtype_is_float(dst->dtype)) compute = dst->dtype == LM_F64 ? LM_F64 : LM_F32;
  lm_tiles t = {.compute = compute, .nin = 1, .in = {lm_operand_of(src)}};
  lm_tiles_result(&t, dst);
  lm_tiles_run(&t);
  return LM_OK;
}
