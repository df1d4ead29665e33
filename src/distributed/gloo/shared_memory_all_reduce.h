/* all_reduce between ranks of one host, through memory they share. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_local lm_local;

/* Collective over g. *out is NULL, without an error, where the ranks cannot share memory; all agree on it. */
lm_status lm_local_open(lm_group *g, lm_local **out);
/* t as the group's all_reduce gets it, of any size. All ranks get the same bits. */
lm_status lm_local_all_reduce(lm_local *l, lm_group *g, lm_tensor *t, lm_reduce_op op);
void lm_local_close(lm_local *l); /* NULL is fine */
