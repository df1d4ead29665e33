/* One step of a recurrent layer after its product with the weights: a pass over the gates, of float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Some rows of one step, and units first to last of each. Rows of every tensor are `_row` elements apart. */
typedef struct lm_cell_rows {
  int64_t rows, first, last, hidden;
  const void *gates; /* [rows, G * hidden]: what the inputs give */
  void *work;        /* [rows, slots * hidden]: products with the state come in, and gates go out (recurrent.inc) */
  const void *bias;  /* [G * hidden], of the products, or NULL */
  const void *state; /* [rows, hidden] before the step: LSTM: of cells; GRU: h */
  void *out;         /* [rows, hidden] h */
  int64_t gates_row, work_row, state_row, out_row;
} lm_cell_rows;

typedef struct lm_cell_back {
  int64_t rows, first, last, hidden;
  const void *work, *state; /* as after the step */
  const void *grad;         /* [rows, hidden] of h, or NULL */
  void *carry;     /* [rows, hidden] of h: what later steps add to grad; GRU: leaves what passes by the product */
  void *cells;     /* LSTM: of cells, after the step to before it */
  void *dgates;    /* [rows, G * hidden]: gradient of gates */
  void *dproducts; /* GRU: [rows, G * hidden], that of the products */
  void *out;       /* LSTM: h again, before its projection, or NULL */
  int64_t work_row, state_row, grad_row, carry_row, dgates_row, out_row;
} lm_cell_back;

struct lm_recurrent_loops {
  /* By recurrent_cell. */
  void (*forward[4])(const lm_cell_rows *c);
  void (*backward[4])(const lm_cell_back *c);
};

LM_ISA_DECLARE(struct lm_recurrent_loops, lm_recurrent_F32);
LM_ISA_DECLARE(struct lm_recurrent_loops, lm_recurrent_F64);
