/* What ranks that meet in a call compare. Plug-in header, by group/backend.h. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum lm_collective {
  LM_ALL_REDUCE,
  LM_BROADCAST,
  LM_REDUCE,
  LM_ALL_GATHER,
  LM_GATHER,
  LM_SCATTER,
  LM_REDUCE_SCATTER,
  LM_ALL_TO_ALL,
  LM_BARRIER,
  LM_SEND,
  LM_RECV,
  LM_SETUP, /* the core's own exchanges: opening a group, sharing memory */
  LM_COLLECTIVES
} lm_collective;

/* Which call this is. Two ranks that meet in a group compare their tickets before a byte lands: the same
 * seq has to come with the same hash. Goes over the wire as it is. */
typedef struct lm_ticket {
  uint64_t seq;   /* the group's collectives count from 1; 0 for send and recv, which are matched by peer and tag */
  uint64_t hash;  /* of all that has to agree: collective, dtype, sizes, reduction, root; of dtype and sizes for p2p */
  uint32_t kind;  /* lm_collective; LM_SETUP for what is none */
  char what[64];  /* for people: "all_reduce sum float32 [2, 3]"; always closed by a zero */
  char where[48]; /* the script's line: "train.lua:40" (its end, if it is long); "" if unknown */
} lm_ticket;

/* Whether two ranks make the same call. Where they do not, lm_group_mismatch says so. */
static inline bool lm_tickets_agree(const lm_ticket *a, const lm_ticket *b) {
  return a->seq == b->seq && a->hash == b->hash;
}
