/* Runs every elementwise kernel: walks over strided tensors of any dtype, tile by tile.
 *
 * Dims are ordered by the result's strides and merged if every tensor allows it. Contiguous operands of the compute
 * type are used in place; the others pass through tiles, converted on the way. If an input runs across the result's
 * order (a transposed one), both are processed in blocks that stay in cache. */
#pragma once

#include <string.h>

#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/memory.h"
#include "tensor/tensor.h"

lm_tile_numbers lm_tile_numbers_of(lm_dtype compute, const double *number);

/* Pads n elements of `num` bytes to a multiple of LM_LANES by repeating the last one, so that no new value appears. */
static inline void lm_tile_pad(char *tile, int n, size_t num) {
  int end = lm_round_up(n, LM_LANES);
  if (n == end) return;
#define PAD(type)                            \
  case sizeof(type): {                       \
    type *t = (type *)tile, last = t[n - 1]; \
    while (n < end) t[n++] = last;           \
    break;                                   \
  }
  switch (num) { LM_EACH_WIDTH(PAD) }
#undef PAD
}

typedef struct lm_operand {
  char *data;
  lm_dtype dtype;
  int64_t stride[LM_MAX_DIMS]; /* in elements, along the result's dims; 0 where broadcast */
  /* Found by lm_tiles_run: */
  size_t bytes;        /* bytes of an element */
  bool linear, scalar; /* linear: its elements are contiguous in the order of the walk; scalar: it has only one */
  /* The input's innermost `period` elements repeat (0: they do not). `copies` has them in the compute type, one after
   * another, so that a whole tile can begin at any of the first `period`; NULL: they have not been made. */
  int64_t period;
  char *copies;
  /* The input's `block` contiguous elements repeat from dim `repeated` on (0: none), `group` elements in all. */
  int repeated;
  int64_t block, group;
} lm_operand;

typedef struct lm_tiles {
  lm_dtype compute;
  lm_pointwise_loop *kernel; /* NULL: in[0] is copied */
  /* Instead of a kernel: makes elements first .. first + n - 1, counted row-major over the result as given,
   * from no input. Dims are then not reordered. */
  void (*source)(const void *context, int64_t first, int n, void *tile);
  const void *context;
  double number[LM_POINTWISE_MAX_NUMBERS];
  int nin;
  int ndim;
  int64_t size[LM_MAX_DIMS];
  lm_operand out, in[LM_POINTWISE_MAX_IN];
  bool tests; /* true if the kernel returns 0 or 1 */
  /* The kernel is one of lm_half_loops; compute is then LM_I16, the type in which halves are moved. Operands are halves
   * of one dtype; inputs of one element may have any dtype. */
  bool halves;
} lm_tiles;

/* Returns an operand with t's own strides. */
lm_operand lm_operand_of(const lm_tensor *t);
/* Fills ndim, size and out from a result. */
void lm_tiles_result(lm_tiles *t, const lm_tensor *out);
/* Runs t on as many threads as pay off, and changes it. */
void lm_tiles_run(lm_tiles *t);
