/* Calls of groups that enqueue (backend.h): they run by themselves, in a stream of the part's, while a thread of the
 * part's watches them. Private to distributed/.
 *
 * enqueued_calls.c makes the calls, enqueued_watch.c is the thread: it finds out when a call is done (an event behind
 * it, and the ticket of the rank before, ticket_ring.h), and ends all of them when the job or the group has failed. */
#pragma once

#include "distributed/group/call.h"
#include "distributed/group/ticket_ring.h"

/* For a part of the core's whose table enqueues; part->issuer becomes it. */
lm_status lm_issuer_new(lm_group_core *core, lm_part *part);
/* Waits for what is under way, unless that has failed; ends the thread. What works still hold of it stays. */
void lm_issuer_close(lm_issuer *is);
void lm_issuer_retain(lm_issuer *is);
void lm_issuer_release(lm_issuer *is); /* NULL is fine */

/* Where a call's tensors go that lie on a device the part does not take, and where calls without tensors run: the
 * device of the last call, else the one this process is to use. LM_NO_DEVICE if there is none. */
lm_device lm_issuer_device(lm_issuer *is);
/* What its calls have failed with, in words of its own. */
lm_status lm_issuer_check(lm_issuer *is);
/* Waits until the collectives called before are done, and all ranks agree on them; sends and receives too, if that is
 * wanted. */
lm_status lm_issuer_wait(lm_issuer *is, bool p2p_too);
/* No call comes in between: for those that are made beside it (a group cut out of this one). */
void lm_issuer_hold(lm_issuer *is, bool hold);

/* Takes c's contents over, also if it fails. Returns once the call is enqueued, or with `host` set once it is done;
 * with `work`, of a collective or not, once it is enqueued. */
lm_status lm_issue(lm_exchange *c, lm_work **work);
/* Sends and receives of one part as a unit. Takes the contents of all over, also if it fails; works: n of them. */
lm_status lm_issue_batch(int n, lm_exchange *c, lm_work **works);
/* Without seconds (< 0) and where the host is not concerned it does not wait: later ops wait by themselves. */
lm_status lm_issued_wait(lm_work *w, double seconds);

/* ---- for these two files */

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
  bool asleep;           /* the thread must be woken for a new call */
  lm_saved_error failed; /* once: the group is of no more use, and why */

  pthread_t thread;
  int kick;        /* wakes it */
  lm_tickets ring; /* its own */
};

/* Has the thread started. */
lm_status lm_issuer_start(lm_issuer *is);
