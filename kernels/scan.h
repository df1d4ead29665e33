/* Scans lines. Functions enqueue on the stream and return a cudaError_t. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "c_linkage.h"
#include "merged_dims.h"
#include "scan_kinds.h"

/* LM_SCAN_CHUNK: elements that a block scans at a time. LM_SCAN_STATE: most bytes of a scan's state. */
enum { LM_SCAN_CHUNK = 2048, LM_SCAN_STATE = 16 };
enum { LM_SCAN_X, LM_SCAN_OUT, LM_SCAN_SIDES }; /* the layout of decay is x's, that of indices is out's */

typedef struct lm_scan_job {
  lm_scan_kind kind;
  bool reverse;
  bool columns; /* true if neighbors in memory are in different lines: a thread scans a part of a line, else a block */
  int x_dtype, decay_dtype, out_dtype;
  lm_dims lines; /* first elements of lines, LM_SCAN_SIDES sides */
  int64_t n, step[LM_SCAN_SIDES];
  const void *x, *decay; /* decay: for LM_SCAN_RECURRENCE only */
  void *out;
  int64_t *indices; /* indices of LM_SCAN_MAX's and LM_SCAN_MIN's results, from 1 */
  int parts;        /* parts of each line */
  void *totals;     /* LM_SCAN_STATE bytes for each part of each line; needed if there are several */
} lm_scan_job;

LM_C int lm_scan_run(const lm_scan_job *job, void *stream);
