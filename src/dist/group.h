/* What a process group has to bring: a table of collectives. Plug-in header; it may still change
 * (LM_GROUP_ABI). Ranks count from 0. Tensors are written in place. */
#ifndef LM_DIST_GROUP_H
#define LM_DIST_GROUP_H

#include "tensor/tensor.h"

enum { LM_GROUP_ABI = 1 };

typedef enum lm_reduce_op {
  LM_REDUCE_SUM,
  LM_REDUCE_MEAN,
  LM_REDUCE_PRODUCT,
  LM_REDUCE_MIN,
  LM_REDUCE_MAX
} lm_reduce_op;

typedef struct lm_group lm_group;

typedef struct lm_group_table {
  int abi; /* LM_GROUP_ABI */
  const char *name;
  lm_status (*all_reduce)(lm_group *g, lm_tensor *t, lm_reduce_op op);
  lm_status (*broadcast)(lm_group *g, lm_tensor *t, int root);
  lm_status (*all_gather)(lm_group *g, lm_tensor *t, int n, lm_tensor *const *out); /* n = size of the group */
  lm_status (*barrier)(lm_group *g);
  void (*destroy)(lm_group *g);
} lm_group_table;

struct lm_group { /* a group's own state follows */
  const lm_group_table *table;
  int rank, size;
};

/* The group of one process: every collective checks its arguments and leaves the data alone. */
LM_API lm_status lm_group_solo(lm_group **out);

#endif
