/* Products of gathered rows with a matrix in panels, which is what a convolution is: a row is the pixels under the
 * kernel at one position, in runs of neighbors in memory. Panels are those of isa/matmul/panels.h. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Rows i: runs[i / tile][run][i % tile] is where each run of `depth` elements of row i begins; of the last tile,
 * addresses beyond `rows` are valid too. */
typedef struct lm_gathered {
  int64_t rows, count, depth; /* runs of a row, and elements of each */
  const void *const *runs;
  const void *panels; /* row r of a panel belongs to element r % depth of run r / depth */
  int64_t panel_step; /* elements from one panel to the next */
  int64_t columns;
  void *const *to;   /* where the columns of each row go */
  const void *bias;  /* of each column, or NULL */
  bool add;          /* to the results so far, instead of to the bias */
  const char *next;  /* is loaded into the caches meanwhile, */
  int64_t next_step; /* this many bytes with each row of a panel that a tile passes */
} lm_gathered;

/* sums [panel][count * depth][width] = the gathered matrix [rows, count * depth], transposed, times panels, whose row
 * i belongs to row i. Here runs[run][i]; rows of sums are in panels of `width` columns, too, panel_step apart. */
typedef struct lm_gathered_transposed {
  int64_t rows, count, depth;
  const void *const *runs;
  const void *panels;
  int64_t columns;
  void *sums;
  int64_t panel_step;
  bool add;
  const char *next, *next_y; /* are loaded into the caches meanwhile */
  int64_t next_step, next_y_step;
} lm_gathered_transposed;

struct lm_gathered_loops {
  int64_t width, tile; /* columns of a panel; rows that are computed at a time */
  void (*product)(const lm_gathered *g);
  void (*transposed)(const lm_gathered_transposed *g);
};

LM_ISA_DECLARE(struct lm_gathered_loops, lm_gathered_F32);
LM_ISA_DECLARE(struct lm_gathered_loops, lm_gathered_F64);
