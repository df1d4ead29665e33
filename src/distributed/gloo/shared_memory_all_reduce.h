/* Runs all_reduce between ranks of one host through shared memory. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_shared_all_reduce lm_shared_all_reduce;

/* Shares memory between g's ranks. Collective. *out is NULL on all ranks, without an error, if they cannot share. */
lm_status lm_shared_all_reduce_open(lm_group *g, lm_shared_all_reduce **out);
/* Reduces t, contiguous and of any size, in place. All ranks get the same bits. */
lm_status lm_shared_all_reduce_run(lm_shared_all_reduce *l, lm_group *g, lm_tensor *t, lm_reduce_op op);
void lm_shared_all_reduce_close(lm_shared_all_reduce *l); /* l may be NULL */
