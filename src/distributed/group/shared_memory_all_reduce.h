/* Runs all_reduce between ranks of one host through shared memory, and halves of it for a group over several hosts. */
#pragma once

#include "distributed/group/shared_memory.h"

typedef struct lm_shared_all_reduce lm_shared_all_reduce;

/* Shares memory between g's ranks of each host. Collective. *out is NULL on all ranks, without an error, if they cannot
 * share (lm_shared_open). */
lm_status lm_shared_all_reduce_open(lm_group *g, lm_shared_all_reduce **out);
const lm_host_layout *lm_shared_all_reduce_layout(const lm_shared_all_reduce *l);
/* Reduces t, contiguous and of any size, in place, over all ranks, which are on one host. All get the same bits. */
lm_status lm_shared_all_reduce_run(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op);
void lm_shared_all_reduce_close(lm_shared_all_reduce *l); /* l may be NULL */

/* Returns the bytes of each of `parts` parts of a tensor; the last ones may have less, or none. */
size_t lm_shared_part(size_t bytes, int parts);
/* Half of an all_reduce of `bytes` bytes at `data`, among this host's ranks, of which there are at least `parts`. It
 * reduces, so that the rank with number p < parts on the host gets part p of the sum, with the rest of its data
 * unchanged; a mean is not divided. Or it spreads: copies part p of that rank to the host's others. */
typedef struct lm_shared_half {
  bool spreads;
  lm_dtype dtype;
  lm_reduce_op op;
  char *data;
  size_t bytes;
  int parts;
  uint64_t done, base; /* number of its steps so far, and of its first chunk; 0 at first */
} lm_shared_half;

/* Begins a call: waits until this host's ranks have come, and fails if they are not in the same call. */
lm_status lm_shared_meet(lm_shared_all_reduce *l, lm_group *g);
/* Runs n halves, one after another, the same on all ranks of the host: to the end if steps < 0, else without waiting
 * and up to that number of steps, from where the last call stopped. */
lm_status lm_shared_run_halves(lm_shared_all_reduce *l, int n, lm_shared_half *halves, int steps);
