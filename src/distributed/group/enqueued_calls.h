/* Enqueues calls of backends that only enqueue (backend.h) on a stream of the part, and watches them on a thread.
 * Private to distributed/.
 *
 * issuer.c keeps the record of a part's calls, enqueued_calls.c makes them. enqueued_watch.c is the thread: it detects
 * when a call is done, and ends all calls when the job or the group has failed. A call is done when an event behind it
 * is over, and the previous rank's ticket agrees: each rank sends its calls' tickets to the next one in empty messages
 * (message_transport.h), while the device runs the calls. */
#pragma once

#include "distributed/group/call.h"
#include "distributed/group/message_transport.h"

/* ---- issuer.c */

/* Creates part->issuer, for a part whose table enqueues. */
lm_status lm_issuer_new(lm_group_core *core, lm_part *part);
void lm_issuer_retain(lm_issuer *is);
void lm_issuer_release(lm_issuer *is); /* is may be NULL */

/* Returns the device for copies of tensors that the part does not take, and for calls without tensors: the last call's,
 * else the one this process uses; LM_NO_DEVICE: none. */
lm_device lm_issuer_device(lm_issuer *is);
/* Returns the failure of the group's enqueued calls as this thread's error; LM_OK: none. */
lm_status lm_issuer_check(lm_issuer *is);
/* Waits until all earlier collectives (with p2p_too: sends and receives as well) are done and all ranks agree on
 * them. */
lm_status lm_issuer_wait(lm_issuer *is, bool p2p_too);
/* Blocks (`hold`) or allows calls of other threads, while the backend's group is used directly (split). */
void lm_issuer_hold(lm_issuer *is, bool hold);

/* ---- enqueued_calls.c */

/* Waits for calls in progress, unless the group has failed, ends the thread and drops the part's reference. */
void lm_issuer_close(lm_issuer *is);
/* Enqueues a call. With work NULL and c->host set, also waits until it is done. Takes c's contents over, also on
 * error. */
lm_status lm_issue(lm_exchange *c, lm_work **work);
/* Enqueues those of n sends and receives that belong to the part as a unit; their works[n]. Takes the contents of these
 * over. After an error the caller releases the works. */
lm_status lm_issue_batch(const lm_part *part, int n, lm_exchange *c, lm_work **works);
/* Implements lm_work_wait. With seconds < 0 it waits only if c->host: later ops on the tensors wait by themselves. */
lm_status lm_issued_wait(lm_work *w, double seconds);

/* ---- enqueued_watch.c, issuer.c */

struct lm_issuer {
  _Atomic int rc; /* references: the part's, and one for each work */
  lm_group_core *core;
  lm_group *g;             /* the part's group */
  pthread_mutex_t calling; /* serializes calls of the backend's functions; held during one, taken before `lock` */
  lm_stream *stream[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* under `calling`; NULL before the first call on the device */
  uint64_t refused; /* under `calling`: number of collectives that failed to enqueue, which must agree on all ranks */

  pthread_mutex_t lock; /* guards the fields up to `failed` */
  pthread_cond_t changed;
  lm_device device; /* device of the last call */
  lm_work *first;   /* calls in progress, each with a reference, the oldest first */
  lm_work **last;   /* link for the next one */
  int hosts;        /* number of threads that wait for a work */
  bool started, closing;
  bool asleep;           /* true if the thread must be woken for a new call */
  lm_saved_error failed; /* the failure that made the group unusable; set once */

  pthread_t thread;   /* watches the calls */
  int kick;           /* eventfd that wakes it */
  lm_group ring_g;    /* copy of *g with a listener id of its own */
  lm_transport *ring; /* links to both neighbors, used by the thread; NULL without other ranks */
};

/* Starts the watching thread unless it runs. */
lm_status lm_issuer_start(lm_issuer *is);
