/* Runs collectives of CPU tensors by messages between pairs of ranks, for backends that move only bytes: rings for
 * large tensors, recursive halving for small ones, trees for broadcasts; all_reduce within a host by shared memory. */
#pragma once

#include "distributed/group/backend.h"

enum { LM_HOST_LANES = 3 };

/* Moves bytes for the collectives. A message belongs to the group's current call. Each peer has LM_HOST_LANES lanes; a
 * lane has at most one send and one receive in progress, and its messages match in order. */
typedef struct lm_host_messages {
  /* True if a rank learns of another rank's different call only by a message from it: then those whose call would
   * send them none get an empty one. */
  bool tell_tickets;
  /* Begin and end the part of a call in which it has messages; may be NULL. end follows a begin that succeeded. */
  lm_status (*begin)(lm_group *g);
  void (*end)(lm_group *g);
  lm_status (*post)(lm_group *g, bool sending, int peer, int lane, char *data, size_t bytes, lm_request **out);
  lm_status (*wait)(lm_group *g, lm_request *r);
  void (*forget)(lm_group *g, lm_request *r); /* frees it, done or not; r may be NULL */
} lm_host_messages;

typedef struct lm_host lm_host;

LM_API lm_status lm_host_new(lm_group *g, const lm_host_messages *by, lm_host **out);
/* Frees h, and memory that a failed call left, which late messages might have written to. h may be NULL. */
LM_API void lm_host_free(lm_host *h);
/* Runs any collective. Nothing is in progress when it returns, unless `forget` leaves it. */
LM_API lm_status lm_host_run(lm_host *h, const lm_group_call *c);
