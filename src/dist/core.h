/* What the core keeps of a group beside what the group sees, and the record of a call in progress. Private to dist/. */
#ifndef LM_DIST_CORE_H
#define LM_DIST_CORE_H

#include <pthread.h>

#include "dist/group.h"
#include "dist/world.h"

typedef struct lm_queue lm_queue; /* work.c: the group's thread and its jobs */

typedef struct lm_group_core {
  lm_group g;
  lm_world *world; /* NULL: solo */
  uint32_t id;     /* the same on all ranks; from 1 */
  double timeout;
  _Atomic uint64_t seq;       /* of the last collective that was given a ticket (collective.c) */
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
  struct lm_waiting *outer;
} lm_waiting;

enum { LM_PEER_ALL = -2, LM_PEER_ANY = -1 }; /* ANY: ends when all others are gone */

/* watch.c. begin makes it the thread's current call; end takes it away, notes its seq as completed if it was, and tells
 * the store that the wait is over if it had been told. Both without a system call as a rule. begin sets `peer` to ALL,
 * or ANY for a send or receive, whose caller may name the peer afterwards. */
void lm_waiting_begin(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket, double timeout);
void lm_waiting_end(lm_waiting *w, bool completed);
/* For a look in passing at a send or receive that nobody waits for: there is no end to its time, and nobody is told. */
void lm_waiting_look(lm_waiting *w, lm_group_core *core, const lm_ticket *ticket);
void lm_waiting_looked(lm_waiting *w);

/* work.c: waits for what is queued (or, after a failure, drops it), ends the thread. */
void lm_queue_close(lm_group_core *core);

/* group/solo */
extern const lm_group_table lm_group_solo_table;

/* watch.c: lm_group_check, and what the group's own look finds (group.h), for waits that do not call the group. */
lm_status lm_group_look(lm_group *g);

#endif
