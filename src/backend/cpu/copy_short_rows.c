/* Copies tensors whose rows have few elements, such as repeats of each element or channels put side by side. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "merged_dims.h"

enum { TO, FROM }; /* indices of the sides of lm_dims (merged_dims.h) and of `pitch`: dst, src */

/* Most elements of a row: LONGEST for one repeated element, else LONGEST_OF_MANY. Other copies are as fast for more. */
enum { LONGEST = 32, LONGEST_OF_MANY = 8 };

typedef struct block {
  int64_t run, step; /* elements of a row; elements from one to the next in src */
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

/* Copies n rows; few repeats of one element take no inner loop. */
static void copy_rows(size_t item, const block *b, int64_t n, char *restrict to, const char *restrict from) {
  bool repeats = b->step == 0 && b->pitch[TO] == b->run && b->pitch[FROM] == 1;
  switch (item) { LM_EACH_WIDTH(CASE) }
}

typedef struct short_copy {
  const lm_tensor *src, *dst;
  lm_dims blocks;
  block b;
  int64_t rows, item; /* rows of a block; bytes of an element */
} short_copy;

static void copy_some_rows(void *ctx, int64_t begin, int64_t end) {
  const short_copy *c = ctx;
  for (int64_t row = begin, n; row < end; row += n) {
    int64_t u = row / c->rows, first = row % c->rows;
    n = c->rows - first < end - row ? c->rows - first : end - row;
    copy_rows((size_t)c->item, &c->b, n,
              c->dst->data + (lm_dims_at(&c->blocks, TO, u) + first * c->b.pitch[TO]) * c->item,
              c->src->data + (lm_dims_at(&c->blocks, FROM, u) + first * c->b.pitch[FROM]) * c->item);
  }
}

bool lm_cpu_copy_short_rows(const lm_tensor *src, lm_tensor *dst) {
  int64_t along[LM_DIMS_SIDES];
  short_copy c = {.src = src, .dst = dst, .item = (int64_t)lm_dtype_size((lm_dtype)dst->dtype)};
  c.blocks = lm_dims_of(dst->ndim, dst->size, NULL, 2, (const int64_t *[]){dst->stride, src->stride}, true);
  c.b.run = lm_dims_pop(&c.blocks, along, 1);
  c.b.step = along[FROM];
  if (along[TO] != 1 || c.b.run > (c.b.step == 0 ? LONGEST : LONGEST_OF_MANY)) return false;
  c.rows = lm_dims_pop(&c.blocks, c.b.pitch, 0);
  /* Transposed squares are faster for 8 columns (strided_tiles.c), except for bytes, whose squares have 16. */
  const bool has_squares = c.b.run == LONGEST_OF_MANY && c.b.step > 1 && c.b.pitch[FROM] == 1 && c.item > 1;
  if (c.rows < 4 || has_squares) return false;
  int64_t all = c.rows * lm_dims_numel(&c.blocks);
  lm_parallel(all, (double)all * (double)c.b.run / 2, 0, copy_some_rows, &c);
  return true;
}
