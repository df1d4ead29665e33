/* What the core keeps of a group beside what the group sees, and the record of a call in progress. Private to
 * distributed/. */
#ifndef LM_GROUP_GROUP_CORE_H
#define LM_GROUP_GROUP_CORE_H

#include <pthread.h>

#include "distributed/group/group.h"
#include "distributed/group/world.h"

typedef struct lm_queue lm_queue;   /* async_work.c: the group's thread and its jobs */
typedef struct lm_issuer lm_issuer; /* enqueued_calls.h: calls that were enqueued, and the thread that watches them */

/* One of the backends a group consists of. A group of one backend has one, for all devices. */
typedef struct lm_part {
  lm_group *g;
  unsigned kinds;    /* devices whose tensors the core gives it, 1 << kind, as they are or as stand-ins */
  lm_issuer *issuer; /* NULL unless its calls only enqueue */
} lm_part;

enum { LM_PARTS = LM_DEVICE_KINDS, LM_BACKEND_TEXT = LM_GROUP_TEXT };

typedef struct lm_group_core {
  lm_group g; /* the first part's, and what everybody holds */
  int nparts;
  lm_part part[LM_PARTS];
  lm_group more[LM_PARTS - 1];   /* the other parts' */
  char backend[LM_BACKEND_TEXT]; /* "gloo", "cpu:gloo,cuda:nccl" */
  lm_world *world;               /* NULL: solo */
  uint32_t id;                   /* the same on all ranks; from 1 */
  double timeout;
  _Atomic uint64_t seq;       /* of the last collective that was given a ticket (collective.c) */
  _Atomic int reducers;       /* that were made, so far */
  _Atomic uint64_t completed; /* of the last one that completed here */
  lm_queue *queue;            /* NULL until the first asynchronous call */
  pthread_mutex_t lock;       /* of queue */
  struct lm_group_core *next; /* in the world's list */
} lm_group_core;

/* A call that runs on this thread: what lm_group_ticket and lm_group_check look at. */
typedef struct lm_waiting {
  lm_group_core *core;
  lm_ticket ticket;
  double since, deadline, timeout; /* lm_seconds() */
  double look;                     /* when lm_group_check has to do more than look at `news` */
  unsigned news;                   /* failures and goodbyes that this call has seen */
  int peer;                        /* whose goodbye ends it: a rank of the group, or one of the two below */
  bool reported, warned;
  lm_issuer *issuer; /* of a call that is being enqueued: what fails others of its kind fails it too */
  bool issued;       /* a thread of ours watches what was enqueued */
  struct lm_waiting *outer;
} lm_waiting;

enum { LM_PEER_ALL = -2, LM_PEER_ANY = -1 }; /* ANY: ends when all others are gone */

/* call_timeouts.c. begin makes it the thread's current call; end takes it away, notes its seq as completed if it was,
 * and tells the store that the wait is over if it had been told. Both without a system call as a rule. begin sets
 * `peer` to ALL, or ANY for a send or receive, whose caller may name the peer afterwards. */
void lm_waiting_begin(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket, double timeout);
void lm_waiting_end(lm_waiting *w, bool completed);
/* This rank goes on from a numbered call without having heard from the others: who waits in another one of that number
 * would not hear of it. */
void lm_call_passed(lm_group_core *core, const lm_ticket *ticket);
/* For a look in passing at a send or receive that nobody waits for: there is no end to its time, and nobody is told. */
void lm_waiting_look(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket);
void lm_waiting_looked(lm_waiting *w);
/* For a call that was enqueued and runs by itself, on the thread that watches it: as begin, but where this rank was
 * last is not told anew. Ended by lm_waiting_end. */
void lm_waiting_watch(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket, double timeout);
/* What this rank enqueued has failed by itself ("ncclRemoteError: …"). As lm_group_lost: a second for the cause to
 * become known, else this rank's failure is the cause. */
lm_status lm_group_broken(lm_group *g, const char *how);

/* async_work.c: waits for what is queued (or, after a failure, drops it), ends the thread. */
void lm_queue_close(lm_group_core *core);

/* backends.c: the part that serves tensors of the device; the first for LM_NO_DEVICE, NULL if there is none. */
lm_part *lm_part_for(lm_group_core *core, lm_device device);

/* distributed/solo */
extern const lm_group_table lm_group_solo_table;

/* call_timeouts.c: lm_group_check, and what the group's own look finds (group.h), for waits that do not call the group.
 */
lm_status lm_group_look(lm_group *g);

#endif
