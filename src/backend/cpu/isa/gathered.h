/* Declares products of gathered rows with a matrix in panels, which compute convolutions: a row is the pixels under the
 * kernel at one position, in runs that are contiguous in memory. Panels are those of isa/matmul/panels.h. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* A run: `depth` contiguous elements at[r] of each row r of a tile, for a panel's rows from panel_row on. */
enum {
  LM_GATHERED_ROWS = 12,   /* rows of a tile, at most */
  LM_GATHERED_BYTES = 2048 /* bytes of a chunk of a row, short enough for a panel to stay in the L1 cache */
};
typedef struct lm_gathered_run {
  int64_t panel_row, depth;
  const void *at[LM_GATHERED_ROWS];
} lm_gathered_run;

/* Rows in tiles, each with its own runs; elements that are zero for all rows of a tile belong to none. In the last
 * tile, addresses beyond `rows` are valid too. */
typedef struct lm_gathered {
  int64_t rows;
  const lm_gathered_run *runs; /* tile by tile */
  const int64_t *count;        /* number of each tile's runs */
  const void *panels;
  int64_t panel_step; /* elements from one panel to the next */
  int64_t columns;
  void *const *to;   /* address of the result's columns for each row */
  const void *bias;  /* bias of each column, or NULL */
  bool add;          /* true: adds to the results so far, not the bias */
  const char *next;  /* memory to prefetch meanwhile */
  int64_t next_step; /* bytes of `next` for each row of a panel that a tile multiplies */
  /* Rows of the panels if runs fill a vector: a few columns beyond whole vectors are then summed along runs; else 0. */
  int64_t along;
} lm_gathered;

/* Computes sums [panel][count * depth][width] = the gathered matrix [rows, count * depth], transposed, times panels,
 * whose row i belongs to row i. Here runs are [run][row]; the sums are in panels of `width` columns too, panel_step
 * apart. */
typedef struct lm_gathered_transposed {
  int64_t rows, count, depth; /* rows; runs of a row; elements of a run */
  const void *const *runs;
  const void *panels;
  int64_t columns;
  void *sums;
  int64_t panel_step;
  bool add;
  const char *next, *next_y; /* memory to prefetch meanwhile */
  int64_t next_step, next_y_step;
  bool along; /* true if runs fill a vector */
} lm_gathered_transposed;

struct lm_gathered_loops {
  int64_t width, tile; /* columns of a panel; rows of a tile */
  void (*product)(const lm_gathered *g);
  void (*transposed)(const lm_gathered_transposed *g);
  void (*add)(void *to, const void *from, int64_t n); /* adds n elements of from to `to` */
};

LM_ISA_DECLARE_REAL(struct lm_gathered_loops, lm_gathered_loops)
