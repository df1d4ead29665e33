/* Products of gathered rows with a matrix in panels, which is what a convolution is: a row is the pixels under the
 * kernel at one position, in runs of neighbors in memory. Panels are those of isa/matmul/panels.h. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Neighbors in memory, of each row of a tile from `at` on, that belong to `depth` rows of a panel from panel_row on. */
enum {
  LM_GATHERED_ROWS = 12, /* of a tile, at most */
  LM_GATHERED_BYTES =
      2048 /* of a chunk of a row, which panels are passed for, so that a panel stays in the first cache */
};
typedef struct lm_gathered_run {
  int64_t panel_row, depth;
  const void *at[LM_GATHERED_ROWS];
} lm_gathered_run;

/* Rows in tiles, each with runs of its own: what is zero for all rows of a tile needs none. Of the last tile, addresses
 * beyond `rows` are valid too. */
typedef struct lm_gathered {
  int64_t rows;
  const lm_gathered_run *runs; /* tile by tile */
  const int64_t *count;        /* of each tile's runs */
  const void *panels;
  int64_t panel_step; /* elements from one panel to the next */
  int64_t columns;
  void *const *to;   /* where the columns of each row go */
  const void *bias;  /* of each column, or NULL */
  bool add;          /* to the results so far, instead of to the bias */
  const char *next;  /* is loaded into the caches meanwhile, */
  int64_t next_step; /* this many bytes with each row of a panel that a tile passes */
  /* Rows of the panels, if runs are at least a vector long: a few columns beyond whole vectors are sums along runs. */
  int64_t along;
} lm_gathered;

/* sums [panel][count * depth][width] = the gathered matrix [rows, count * depth], transposed, times panels, whose row
 * i belongs to row i. Here runs[run][i]; rows of sums are in panels of `width` columns, too, panel_step apart. */
typedef struct lm_gathered_transposed {
  int64_t rows, count, depth; /* runs of a row, and elements of each */
  const void *const *runs;
  const void *panels;
  int64_t columns;
  void *sums;
  int64_t panel_step;
  bool add;
  const char *next, *next_y; /* are loaded into the caches meanwhile */
  int64_t next_step, next_y_step;
  bool along; /* as above */
} lm_gathered_transposed;

struct lm_gathered_loops {
  int64_t width, tile; /* columns of a panel; rows of a tile */
  void (*product)(const lm_gathered *g);
  void (*transposed)(const lm_gathered_transposed *g);
  void (*add)(void *to, const void *from, int64_t n); /* to each of n elements */
};

LM_ISA_DECLARE(struct lm_gathered_loops, lm_gathered_F32);
LM_ISA_DECLARE(struct lm_gathered_loops, lm_gathered_F64);
