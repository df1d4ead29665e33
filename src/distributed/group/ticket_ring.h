/* The ring of tickets of a part that enqueues: each rank reports to the next one which calls it makes, and hears it
 * from the one before, beside what the device does. One thread's except what links do when they arrive. Private to
 * distributed/. */
#pragma once

#include "base/bytes.h"
#include "distributed/group/group_core.h"

enum { LM_RING_PREV, LM_RING_NEXT, LM_RING_LINKS, LM_RING_LISTENER = LM_PARTS }; /* beside the parts' listeners */

typedef struct lm_tickets {
  lm_group g; /* as the part's, with a listener of its own for links */
  int kick;   /* written to when a link has arrived */
  pthread_mutex_t lock;
  int arrived[LM_RING_LINKS]; /* under the lock: descriptors that the thread has not taken yet, or -1 */
  int fd[LM_RING_LINKS];      /* -1: not open; of two ranks, NEXT is PREV */
  bool opened, gone;          /* gone: the rank before will send no more */
  char how[128];              /* it went */
  lm_bytes out, in;
} lm_tickets;

/* Whether there is anybody to tell. */
static inline bool lm_tickets_wanted(const lm_group *g) { return g->size > 1 && g->core->world; }
/* kick: a wakeup descriptor (base/thread.h). {0} may be closed too. */
lm_status lm_tickets_open(lm_tickets *ring, const lm_group *g, int kick);
void lm_tickets_close(lm_tickets *ring);
/* The links to lower ranks, once; blocks under lm_group_check. */
lm_status lm_tickets_connect(lm_tickets *ring);
int lm_tickets_prev(const lm_tickets *ring); /* whose tickets come: a rank of the group */
lm_status lm_tickets_put(lm_tickets *ring, const lm_ticket *t);
/* What can be sent and received now. */
lm_status lm_tickets_move(lm_tickets *ring);
/* The next one of the rank before, if it has come. */
bool lm_tickets_get(lm_tickets *ring, lm_ticket *out);
/* What to poll; returns how many, LM_RING_LINKS at most. */
struct pollfd;
int lm_tickets_polls(const lm_tickets *ring, struct pollfd *polls);
