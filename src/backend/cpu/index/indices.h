/* Checks indices, and makes positions of tuples of them, for ops that take or put elements. Indices are int64,
 * contiguous except dims that are expanded, and count from 1; all are checked before the first write. */
#pragma once

#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"

/* Checks that each index is in 1 .. high or, with `negative`, in -high .. -1; sets *negative if one is below 0. */
lm_status lm_cpu_check_indices(const char *op, const char *what, int64_t n, const int64_t *index, int64_t high,
                               bool *negative);
/* Checks an index tensor, which may be expanded, without negative indices. */
lm_status lm_cpu_check_index(const char *op, const lm_tensor *index, int64_t high);

/* Tuples of index tensors [n] for the first dims of x: the entry that tuple i names begins (position[i] - 1) * step
 * elements after x. */
typedef struct lm_index_tuples {
  const int64_t *position;
  int64_t n, step, entries;
  int64_t apart;    /* elements from one of the entries to the next */
  lm_workspace own; /* memory of `position`, unless that is an index tensor's */
} lm_index_tuples;

static inline void lm_tuples_close(lm_index_tuples *t) { lm_workspace_release(&t->own); }
/* Declares tuples, {0} or opened, whose memory is released at the end of the block. */
#define LM_INDEX_TUPLES __attribute__((cleanup(lm_tuples_close))) lm_index_tuples

lm_status lm_tuples_open(const char *op, const lm_tensor *x, const lm_list *indices, int64_t n, lm_index_tuples *t);
