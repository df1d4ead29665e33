/* What takes and what puts elements where indices say has in common. Indices are int64, contiguous except dims that
 * are expanded, and count from 1; all are checked before the first write. */
#pragma once

#include "backend/cpu/cpu.h"

/* Every index in low .. high. Negative ones, where allowed, are in -high .. -1; *negative says whether there are. */
lm_status lm_cpu_check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool *negative);
/* The same of an index tensor that may be expanded, without negative ones. */
lm_status lm_cpu_check_index(const char *op, const lm_tensor *index, int64_t high);

/* x, indexed in its first dims by as many index tensors [n]: its entry that tuple i names begins (place[i] - 1) * step
 * elements after x. */
typedef struct lm_index_tuples {
  const int64_t *position;
  int64_t n, step, entries;
  int64_t apart; /* elements between neighbors among them */
  void *own;     /* what place points to, if it is no index tensor */
} lm_index_tuples;

lm_status lm_tuples_open(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, lm_index_tuples *t);
/* Also of those that were never opened, with own NULL. */
void lm_tuples_close(const lm_tensor *x, lm_index_tuples *t);
