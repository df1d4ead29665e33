/* Copies whose rows are of few elements, such as those that repeat each element or put channels side by side. */
#include "backend/cpu/cpu.h"
#include "merged_dims.h"

enum { TO, FROM }; /* sides */

/* Beyond that other ways are as quick: LONGEST of one element repeated, else fewer. */
enum { LONGEST = 32, LONGEST_OF_MANY = 8 };

typedef struct block {
  int64_t run, step; /* elements of a row, and from one to the next in src */
  int64_t pitch[2];  /* elements from a row to the next */
} block;

#define ROWS(type, length, pitch_to, pitch_from, step_from)                                                        \
  for (int64_t r = 0; r < n; r++) {                                                                                \
    for (int64_t i = 0; i < (length); i++) {                                                                       \
      ((type *restrict)to)[r * (pitch_to) + i] = ((const type *restrict)from)[r * (pitch_from) + i * (step_from)]; \
    }                                                                                                              \
  }
#define CASE(type)                                              \
  case sizeof(type):                                            \
    if (!repeats) {                                             \
      ROWS(type, b->run, b->pitch[TO], b->pitch[FROM], b->step) \
    } else if (b->run == 2) {                                   \
      ROWS(type, 2, 2, 1, 0)                                    \
    } else if (b->run == 3) {                                   \
      ROWS(type, 3, 3, 1, 0)                                    \
    } else if (b->run == 4) {                                   \
      ROWS(type, 4, 4, 1, 0)                                    \
    } else {                                                    \
      ROWS(type, b->run, b->run, 1, 0)                          \
    }                                                           \
    break;

/* n rows; elements of a line repeated a few times without a loop each. */
static void copy_rows(size_t item, const block *b, int64_t n, char *restrict to, const char *restrict from) {
  bool repeats = b->step == 0 && b->pitch[TO] == b->run && b->pitch[FROM] == 1;
  switch (item) {
    CASE(uint8_t)
    CASE(uint16_t)
    CASE(uint32_t)
    CASE(uint64_t)
  }
}

bool lm_cpu_copy_short_rows(const lm_tensor *src, lm_tensor *dst) {
  int64_t along[LM_DIMS_SIDES], item = (int64_t)lm_dtype_size(dst->dtype);
  lm_dims blocks = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){dst->stride, src->stride}, true);
  block b = {.run = lm_dims_pop(&blocks, along, 1)};
  b.step = along[FROM];
  if (along[TO] != 1 || b.run > (b.step == 0 ? LONGEST : LONGEST_OF_MANY)) return false;
  int64_t rows = lm_dims_pop(&blocks, b.pitch, 0), all = rows * lm_dims_count(&blocks);
  if (rows < 4) return false;
  int threads = lm_cpu_share((double)all * (double)b.run / 2);
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int t = 0; t < threads; t++) {
    int64_t end = lm_cpu_share_begin(all, t + 1, threads);
    for (int64_t row = lm_cpu_share_begin(all, t, threads), n; row < end; row += n) {
      int64_t u = row / rows, first = row % rows;
      n = rows - first < end - row ? rows - first : end - row;
      copy_rows((size_t)item, &b, n, dst->data + (lm_dims_at(&blocks, TO, u) + first * b.pitch[TO]) * item,
                src->data + (lm_dims_at(&blocks, FROM, u) + first * b.pitch[FROM]) * item);
    }
  }
  return true;
}
