/* Defines the ticket, by which ranks check that they make the same call. Plug-in header, through group/backend.h. */
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

/* Identifies a call. Ranks compare their tickets before any data is written: tickets with the same seq must have the
 * same hash. Links between ranks carry it in memory layout. */
typedef struct lm_ticket {
  uint64_t seq;   /* number of the collective in its group, from 1; 0: send or recv, which match by peer and tag */
  uint64_t hash;  /* hash of the collective, dtype, sizes, reduction and root, or p2p's dtype and sizes: must agree */
  uint32_t kind;  /* lm_collective; LM_SETUP for the core's own exchanges */
  char what[64];  /* text for messages: "all_reduce sum float32 [2, 3]"; always zero-terminated */
  char where[48]; /* the script's line: "train.lua:40", or the end of a long one; "": unknown */
} lm_ticket;

/* Returns true if two ranks make the same call; if not, the caller reports it by lm_group_mismatch. */
static inline bool lm_tickets_agree(const lm_ticket *a, const lm_ticket *b) {
  return a->seq == b->seq && a->hash == b->hash;
}
