/* What the core keeps of a group beside what the group sees. Private to distributed/. */
#pragma once

#include <pthread.h>

#include "distributed/group/backend.h"
#include "distributed/group/world.h"

typedef struct lm_queue lm_queue;   /* async_work.c: the group's thread and its jobs */
typedef struct lm_issuer lm_issuer; /* enqueued_calls.h: calls that were enqueued, and the thread that watches them */

/* One of the backends a group consists of. A group of one backend has one, for all devices. */
typedef struct lm_part {
  lm_group *g;
  unsigned kinds;    /* devices whose tensors the core passes to it, 1 << kind, as they are or as stand-ins */
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

/* async_work.c: waits for what is queued (or, after a failure, drops it), ends the thread. */
void lm_queue_close(lm_group_core *core);

/* backends.c: the part that serves tensors of the device; the first for LM_NO_DEVICE, NULL if there is none. */
lm_part *lm_part_for(lm_group_core *core, lm_device device);

/* distributed/solo */
extern const lm_group_table lm_group_solo_table, lm_group_gloo_table;

/* call_timeouts.c: lm_group_check, and what the group's own look finds (backend.h), for waits that do not call the
 * group.
 */
lm_status lm_group_look(lm_group *g);
