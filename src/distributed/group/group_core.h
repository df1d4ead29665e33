/* Declares the core's private state of a group, beside the lm_group that backends see. Private to distributed/. */
#pragma once

#include <pthread.h>

#include "distributed/group/backend.h"
#include "distributed/group/world.h"

typedef struct lm_queue lm_queue;   /* async_work.c: the group's thread and its jobs */
typedef struct lm_issuer lm_issuer; /* enqueued_calls.h: calls that were enqueued, and the thread that watches them */

/* One backend of a group. A group of one backend has one part, for all devices. */
typedef struct lm_part {
  lm_group *g;
  unsigned kinds;    /* device kinds whose tensors, or copies of them, the core passes to it; 1 << kind */
  lm_issuer *issuer; /* NULL unless its calls only enqueue */
} lm_part;

enum { LM_PARTS = LM_DEVICE_KINDS, LM_BACKEND_TEXT = LM_GROUP_TEXT };
enum { LM_TWIN = 1 << 30 }; /* bit of a twin's id (lm_groups_new), which has those of its group besides */

typedef struct lm_group_core {
  lm_group g; /* group of the first part; its address is the handle of the complete group */
  int nparts;
  lm_part part[LM_PARTS];
  lm_group more[LM_PARTS - 1];   /* groups of the other parts */
  char backend[LM_BACKEND_TEXT]; /* "gloo", "cpu:gloo,cuda:nccl" */
  lm_world *world;               /* NULL: solo */
  uint32_t id;                   /* number of the group, equal on all ranks; from 1 */
  double timeout;                /* seconds */
  _Atomic uint64_t seq;          /* seq of the last collective with a ticket */
  _Atomic int reducers;          /* number of reducers made so far */
  _Atomic uint64_t completed;    /* seq of the last collective that completed here */
  lm_queue *queue;               /* NULL until the first asynchronous call */
  pthread_mutex_t lock;          /* guards the creation of queue */
  struct lm_group_core *next;    /* next in the world's list */
} lm_group_core;

/* Waits for queued calls (after a failure they fail at once) and ends the queue's threads (async_work.c). */
void lm_queue_close(lm_group_core *core);

/* call.c: returns the part that serves tensors of the device (LM_NO_DEVICE: the first); NULL if there is none. */
lm_part *lm_part_for(lm_group_core *core, lm_device device);

/* work.c: multiplies t, contiguous, by factor; 0 yields zeros, also for inf and NaN. */
lm_status lm_scale_in_place(lm_tensor *t, double factor);

/* Tables of the backends that the core contains: distributed/solo, distributed/gloo. */
extern const lm_group_table lm_group_solo_table, lm_group_gloo_table;

/* group_keys.c: runs lm_group_check and the backend's `test` (backend.h), for waits outside of the backend. */
lm_status lm_group_check_and_test(lm_group *g);
