/* Shares memory between a group's ranks of one host: a region and a set of flags for each rank, in an unnamed memory
 * file, so that nothing is left behind. A `rank` here is a rank's number on its host (lm_host_layout), which is the
 * rank in the group if all ranks are on one host. */
#pragma once

#include "distributed/group/backend.h"
#include "distributed/group/host_layout.h"

enum { LM_SHARED_FLAGS = 8 };

typedef struct lm_shared lm_shared;

/* Maps `bytes` for each rank, the same number on all. Collective over g, through the store. *out is NULL on all ranks,
 * without an error, if those of some host cannot share, if each rank is alone on its host, or with LM_SHM=0. */
lm_status lm_shared_open(lm_group *g, size_t bytes, lm_shared **out);
void lm_shared_retain(lm_shared *s);
void lm_shared_release(lm_shared *s); /* s may be NULL; the last reference unmaps */
const lm_host_layout *lm_shared_layout(const lm_shared *s);
char *lm_shared_region(const lm_shared *s, int rank);
/* Returns a rank's ticket slot, to compare calls first: write this rank's, post, wait for a peer's flag, read its. */
lm_ticket *lm_shared_ticket(const lm_shared *s, int rank, int which); /* which: 0 or 1 */

/* Sets this rank's flag and wakes its waiters. A rank that sees the value sees all of this rank's earlier writes. */
void lm_shared_post(lm_shared *s, int flag, uint32_t value);
/* Returns true if `rank`'s flag has reached or passed value (flags count up and wrap). */
bool lm_shared_reached(const lm_shared *s, int rank, int flag, uint32_t value);
/* Waits until lm_shared_reached, under lm_group_check; at first busily, if there are enough cores. */
lm_status lm_shared_wait(lm_shared *s, int rank, int flag, uint32_t value);
