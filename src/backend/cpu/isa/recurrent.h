/* Declares loops over the gates of one step of a recurrent layer, after its product with weights; float or double. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Units first .. last - 1 of some rows of one step. NAME_row is the number of elements between rows of tensor NAME. */
typedef struct lm_cell_rows {
  int64_t rows, first, last, hidden;
  const void *gates; /* [rows, G * hidden]: the inputs' part */
  void *work;        /* [rows, slots * hidden]: products with the state, which gates replace (recurrent.inc) */
  const void *bias;  /* [G * hidden] bias of the products, or NULL */
  const void *state; /* [rows, hidden] before the step; LSTM: cells; GRU: h */
  void *out;         /* [rows, hidden] h */
  int64_t gates_row, work_row, state_row, out_row;
} lm_cell_rows;

typedef struct lm_cell_back {
  int64_t rows, first, last, hidden;
  const void *work, *state; /* as the forward step left them */
  const void *grad;         /* [rows, hidden] gradient of h, or NULL */
  void *carry;     /* [rows, hidden] gradient of h from later steps; GRU: becomes the part that bypasses the product */
  void *cells;     /* LSTM: gradient of the cells after the step, which becomes that of the cells before it */
  void *dgates;    /* [rows, G * hidden]: gradient of gates */
  void *dproducts; /* GRU: [rows, G * hidden]: gradient of the products */
  void *out;       /* LSTM: h again, before its projection, or NULL */
  int64_t work_row, state_row, grad_row, carry_row, dgates_row, out_row;
} lm_cell_back;

struct lm_recurrent_loops {
  /* Indexed by recurrent_cell. */
  void (*forward[4])(const lm_cell_rows *c);
  void (*backward[4])(const lm_cell_back *c);
};

LM_ISA_DECLARE_REAL(struct lm_recurrent_loops, lm_recurrent_loops)
