/* Scans of contiguous numbers of a compute type (double, int64), in place. */
#pragma once

#include <stdint.h>

#include "backend/cpu/isa.h"
#include "scan_kinds.h"
#include "tensor/dtype.h"

enum { LM_SCAN_TILE = 2048, LM_SCAN_COLS = 512 };

/* What a call works on. carry and last: of what came before, and then of this too. */
typedef struct lm_scan_part {
  void *x;
  const void *decay; /* of LM_SCAN_RECURRENCE, like x */
  int64_t *position; /* of LM_SCAN_MAX and LM_SCAN_MIN: the results' */
  int64_t first;     /* the place of x's first element, or row */
  void *carry;       /* one number, or of columns one for each */
  int64_t *last;     /* its place, where there are positions */
} lm_scan_part;

/* n: elements of one line, at most LM_SCAN_TILE; or columns, at most LM_SCAN_COLS, of one row. */
typedef void lm_scan_loop(const lm_scan_part *part, int n);

struct lm_scan_loops {
  void (*reverse)(void *x, int n);                        /* n numbers of 8 bytes, or positions */
  lm_scan_loop *row[LM_SCAN_KINDS], *cols[LM_SCAN_KINDS]; /* NULL where the compute type has no such scan */
};

LM_ISA_DECLARE(struct lm_scan_loops, lm_scan_F64);
LM_ISA_DECLARE(struct lm_scan_loops, lm_scan_I64);
