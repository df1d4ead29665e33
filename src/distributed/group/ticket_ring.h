/* Passes tickets around a ring, for parts that enqueue: each rank sends its calls' tickets to the next rank and
 * receives the previous rank's, while the device runs the calls. Used by one thread, except that links arrive on the
 * world's. Private to distributed/. */
#pragma once

#include "base/bytes.h"
#include "distributed/group/group_core.h"

enum { LM_RING_PREV, LM_RING_NEXT, LM_RING_LINKS, LM_RING_LISTENER = LM_PARTS }; /* LISTENER: offset of listener ids */

typedef struct lm_tickets {
  lm_group g; /* copy of the part's, with a listener id of its own */
  int kick;   /* eventfd, signaled when a link has arrived */
  pthread_mutex_t lock;
  int arrived[LM_RING_LINKS]; /* under the lock: arrived descriptors that the thread has not taken yet, or -1 */
  int fd[LM_RING_LINKS];      /* -1: not open; with two ranks PREV is used both ways */
  bool opened, gone;          /* gone: true if the previous rank will send no more */
  char how[128];              /* the reason why it is gone */
  lm_bytes out, in;           /* bytes to send; received bytes */
} lm_tickets;

/* Returns true if the group has other ranks to exchange tickets with. */
static inline bool lm_tickets_wanted(const lm_group *g) { return g->size > 1 && g->core->world; }
/* Opens the ring. kick: an eventfd (base/thread.h), borrowed. close accepts {0}. */
lm_status lm_tickets_open(lm_tickets *ring, const lm_group *g, int kick);
void lm_tickets_close(lm_tickets *ring);
/* Connects once to neighbors of lower rank; blocks under lm_group_check. */
lm_status lm_tickets_connect(lm_tickets *ring);
int lm_tickets_prev(const lm_tickets *ring); /* the previous rank, in the group */
lm_status lm_tickets_put(lm_tickets *ring, const lm_ticket *t);
/* Sends and receives as much as possible without waiting. */
lm_status lm_tickets_move(lm_tickets *ring);
/* Takes the previous rank's next ticket; false if none has come. */
bool lm_tickets_get(lm_tickets *ring, lm_ticket *out);
/* Fills in entries for poll and returns their number, at most LM_RING_LINKS. */
struct pollfd;
int lm_tickets_polls(const lm_tickets *ring, struct pollfd *polls);
