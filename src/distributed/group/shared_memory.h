/* Memory that the ranks of one host share: a region a rank, and flags to meet by. Made of a memory file that has no
 * name, so nothing can be left behind. */
#pragma once

#include "distributed/group/backend.h"

enum { LM_SHARED_FLAGS = 8 };

typedef struct lm_shared lm_shared;

/* Collective over g (through the store). `bytes` per rank, the same on all. *out is NULL, without an error, where the
 * ranks cannot share: several hosts, one rank, LM_SHM=0, or the system does not let them; all ranks agree on it. */
LM_API lm_status lm_shared_open(lm_group *g, size_t bytes, lm_shared **out);
LM_API void lm_shared_retain(lm_shared *s);
LM_API void lm_shared_release(lm_shared *s); /* NULL is fine; unmapped with the last one */
LM_API char *lm_shared_region(const lm_shared *s, int rank);
/* A ticket a rank, for comparing before bytes are touched: write your own, post, wait for a peer's flag, read its. */
LM_API lm_ticket *lm_shared_ticket(const lm_shared *s, int rank, int which); /* which: 0 or 1 */

/* Set this rank's flag and wake who waits for it. All it wrote before is seen by who sees the flag. */
LM_API void lm_shared_post(lm_shared *s, int flag, uint32_t value);
/* Whether `rank`'s flag has come to value or past it (they count up and wrap). */
LM_API bool lm_shared_reached(const lm_shared *s, int rank, int flag, uint32_t value);
/* Waits for that, briefly busy where that pays, under lm_group_check. */
LM_API lm_status lm_shared_wait(lm_shared *s, int rank, int flag, uint32_t value);
