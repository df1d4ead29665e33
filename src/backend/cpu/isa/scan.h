/* Declares scans of contiguous numbers of a compute type (double, int64), in place. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"
#include "scan_kinds.h"
#include "tensor/dtype.h"

enum { LM_SCAN_TILE = 2048, LM_SCAN_COLS = 512 };

/* A call's operands. carry and last: the state before these elements, which becomes the state after them. */
typedef struct lm_scan_part {
  void *x;
  const void *decay; /* LM_SCAN_RECURRENCE: laid out like x */
  int64_t *position; /* LM_SCAN_MAX and LM_SCAN_MIN: positions of the results */
  int64_t first;     /* position of x's first element, or of its row */
  void *carry;       /* the state: one number, or one for each column */
  int64_t *last;     /* position of the carried extreme, if there are positions */
} lm_scan_part;

/* Scans n elements of one line, at most LM_SCAN_TILE; or n columns, at most LM_SCAN_COLS, of one row. */
typedef void lm_scan_loop(const lm_scan_part *part, int n);

struct lm_scan_loops {
  void (*reverse)(void *x, int n);                        /* reverses n numbers of 8 bytes, or positions */
  lm_scan_loop *row[LM_SCAN_KINDS], *cols[LM_SCAN_KINDS]; /* NULL where the compute type has no such scan */
};

LM_ISA_DECLARE(struct lm_scan_loops, lm_scan_F64);
LM_ISA_DECLARE(struct lm_scan_loops, lm_scan_I64);
