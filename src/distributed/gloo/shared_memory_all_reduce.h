/* Runs all_reduce between ranks of one host through shared memory. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_local lm_local;

/* Shares memory between g's ranks. Collective. *out is NULL on all ranks, without an error, if they cannot share. */
lm_status lm_local_open(lm_group *g, lm_local **out);
/* Reduces t, contiguous and of any size, in place. All ranks get the same bits. */
lm_status lm_local_all_reduce(lm_local *l, lm_group *g, lm_tensor *t, lm_reduce_op op);
void lm_local_close(lm_local *l); /* l may be NULL */
