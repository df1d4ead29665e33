/* The insides of an issuer, shared by enqueued_calls.c and enqueued_watch.c. */
#ifndef LM_GROUP_ENQUEUED_CORE_H
#define LM_GROUP_ENQUEUED_CORE_H

#include "distributed/group/enqueued_calls.h"
#include "distributed/group/ticket_ring.h"

struct lm_issuer {
  _Atomic int rc; /* the part's, and one a work */
  lm_group_core *core;
  lm_group *g;             /* the part's */
  pthread_mutex_t calling; /* one call at a time is in the group's functions; held over a call, taken before `lock` */
  lm_stream *stream[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* under `calling`; NULL before the first call on the device */
  uint64_t refused; /* under `calling`: collectives that failed on their way, as on all ranks, or they hear of it */

  pthread_mutex_t lock; /* of what follows */
  pthread_cond_t changed;
  lm_device device; /* of the last call */
  lm_work *first;   /* under way, each with a reference, the oldest first */
  lm_work **last;   /* where the next one goes */
  int hosts;        /* threads that wait for a work */
  bool started, closing;
  bool asleep;           /* the thread has to be woken for a new call */
  lm_saved_error failed; /* once: the group is of no more use, and why */

  pthread_t thread;
  int kick;        /* wakes it */
  lm_tickets ring; /* its own */
};

/* Has the thread started. */
lm_status lm_issuer_start(lm_issuer *is);

#endif
