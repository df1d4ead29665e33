/* Copies between layouts and dtypes. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/nontemporal_copy.h"
#include "backend/cpu/strided_tiles.h"
#include "merged_dims.h"

/* Dense, and the same order of dims in memory: the bytes are the copy. */
static bool same_layout(const lm_tensor *a, const lm_tensor *b) {
  if (lm_is_contiguous(a)) return lm_is_contiguous(b);
  return memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride) == 0 && lm_is_dense(a);
}

enum {
  MIN_RUN = 64,          /* bytes; below them tiles are as quick */
  MIN_NONTEMPORAL = 1024 /* of runs apart from each other: below them too few are whole lines of the caches */
};

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

/* The element again and again: what is there is doubled. */
static void fill_with(size_t item, int64_t n, char *dst, const char *src) {
  size_t bytes = (size_t)n * item;
  memcpy(dst, src, item);
  for (size_t done = item; done < bytes; done *= 2) memcpy(dst + done, dst, done < bytes - done ? done : bytes - done);
}

/* n elements from src on, `step` (1, 0 or -1) apart, to where the writer is. */
static void write_run(lm_nontemporal_writer *w, size_t item, int64_t n, const char *src, int64_t step) {
  enum { TILE = 4096 };
  if (step == 1) {
    lm_nontemporal_write(w, src, (size_t)n * item);
    return;
  }
  char tile[TILE];
  const int64_t max_chunk = TILE / (int64_t)item;
  if (step == 0) fill_with(item, n < max_chunk ? n : max_chunk, tile, src);
  for (int64_t i = 0, part; i < n; i += part) {
    part = n - i < max_chunk ? n - i : max_chunk;
    if (step < 0) {
      const char *from = src - i * (int64_t)item;
      if (part == max_chunk &&
          n - i >= 2 * max_chunk) { /* what comes next lies before it, which hardware does not guess */
        for (int64_t k = TILE; k < 2 * TILE; k += LM_NONTEMPORAL_LINE) __builtin_prefetch(from - k);
      }
      copy_back(item, part, tile, from);
    }
    lm_nontemporal_write(w, tile, (size_t)part * item);
  }
}

/* Whether elements came in runs, one behind (or, of a flip, before) the other in both, or all the same one, and were
 * moved as these. */
static bool copy_runs(const lm_tensor *src, lm_tensor *dst) {
  enum { TO, FROM };
  int64_t along[LM_DIMS_SIDES], item = (int64_t)lm_dtype_size(dst->dtype), n = dst->numel;
  lm_dims rows = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){dst->stride, src->stride}, true);
  int64_t run = lm_dims_pop(&rows, along, 1), step = along[FROM];
  if (along[TO] != 1 || step < -1 || step > 1 || run * item < MIN_RUN) return false;
  int threads = lm_cpu_share((double)(n * item) / 16);
  bool dense = lm_is_dense(dst); /* rows follow one another */
  bool streams = lm_use_nontemporal((size_t)(n * item)) && (dense || run * item >= MIN_NONTEMPORAL);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    lm_nontemporal_writer w;
    int64_t begin = lm_cpu_share_begin(n, t, threads), end = lm_cpu_share_begin(n, t + 1, threads);
    if (dense) lm_nontemporal_open(&w, dst->data + begin * item, streams);
    for (int64_t p = begin; p < end;) {
      int64_t row = p / run, low = p % run, high = end - row * run < run ? end - row * run : run;
      if (!dense) lm_nontemporal_open(&w, dst->data + (lm_dims_at(&rows, TO, row) + low) * item, streams);
      write_run(&w, (size_t)item, high - low, src->data + (lm_dims_at(&rows, FROM, row) + low * step) * item, step);
      if (!dense) lm_nontemporal_close(&w);
      p = row * run + high;
    }
    if (dense) lm_nontemporal_close(&w);
  }
  return true;
}

lm_status lm_cpu_copy(const lm_tensor *src, lm_tensor *dst) {
  if (src->dtype == dst->dtype && same_layout(src, dst)) {
    size_t bytes = lm_nbytes(src);
    int parts = lm_cpu_share((double)bytes / 16);
    bool streams = lm_use_nontemporal(bytes);
    if (bytes == 0 || src->data == dst->data) return LM_OK;
#pragma omp parallel for num_threads(parts) if (parts > 1)
    for (int i = 0; i < parts; i++) {
      size_t begin = bytes / (size_t)parts * (size_t)i,
             end = i + 1 == parts ? bytes : bytes / (size_t)parts * (size_t)(i + 1);
      lm_nontemporal_copy_if_large(streams, dst->data + begin, src->data + begin, end - begin);
      if (streams) lm_nontemporal_fence();
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
