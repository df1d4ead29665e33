/* Sorts the ranks of a group by the hosts they run on. */
#pragma once

#include "distributed/group/backend.h"

/* Hosts are numbered in the order of their lowest ranks; a host's ranks in ascending order. Freed by lm_free. */
typedef struct lm_host_layout {
  int hosts, host;   /* number of hosts, and this host's */
  int n, index;      /* number of this host's ranks, and this rank's number among them, from 0 */
  int columns;       /* least number of ranks on a host */
  const int *local;  /* [n] this host's ranks */
  const int *across; /* [hosts] each host's rank number `index`; undefined if index >= columns */
} lm_host_layout;

lm_status lm_host_layout_get(const lm_group *g, lm_host_layout **out);
