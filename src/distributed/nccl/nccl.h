/* What the files of the group "nccl" share.
 *
 * Communicators are made when first needed, for one device, and do not block: NCCL works on what a call began in
 * threads of its own, and says "in progress" meanwhile. So each call is made under the group's lock, and is then
 * polled, the lock free between two looks, which leaves room for an abort from another thread at any time.
 *
 * That costs a thread of NCCL's for each call. A communicator that blocks needs none, but an abort frees it under a
 * thread that is inside. And the thread that calls polls to the end, though what it waits for is another's work: an
 * event recorded before NCCL has enqueued would be done too early, and what goes to several communicators of a GPU has
 * to be launched one after the other, in one order on all ranks. */
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "backend/known/device_kinds.h"
#include "distributed/group/backend.h"

typedef struct lm_nccl_comm lm_nccl_comm;
typedef struct lm_nccl_piece lm_nccl_piece;

typedef struct lm_nccl_post { /* a send or receive of a batch */
  lm_device device;
  bool sending;
  void *data;
  size_t bytes;
  int peer;
  cudaStream_t stream;
} lm_nccl_post;

typedef struct lm_nccl {
  lm_group *g;
  lm_device device; /* of all communicators; LM_NO_DEVICE until the first call */

  pthread_mutex_t lock; /* of the five below, and of NCCL's functions on these communicators */
  bool aborted;
  bool calling;        /* NCCL may be at work on a call */
  sigset_t signals;    /* what the thread in a call blocks otherwise */
  lm_nccl_comm *whole; /* of all ranks; NULL until a collective is called */
  lm_nccl_comm **pair; /* [size] with that rank alone, for sends and receives before there is `whole`; NULL entries */
  char why[512];       /* the first failure */

  lm_nccl_piece *pieces; /* under the lock of registered_memory.c, and `lock` */

  bool batching;
  int nposts;
  size_t capacity;
  lm_nccl_post *posts;
} lm_nccl;

/* ---- comm.c: communicators */

/* Before anything is asked of NCCL, which reads the environment once. */
void lm_nccl_prepare(void);
lm_status lm_nccl_new(lm_group *g, lm_nccl **out);
/* Of a group that has not failed: lets what is enqueued end. Bounded in time. */
void lm_nccl_close(lm_nccl *s);
/* Any thread. Does not wait. */
void lm_nccl_abort(lm_nccl *s);
/* On all ranks of the parent; *out is NULL where nothing can be cut out, and on ranks outside. */
lm_status lm_nccl_split(lm_group *g, lm_nccl *parent, lm_nccl **out);

/* The communicator for a call on `device`, made if there is none; borrowed. */
lm_status lm_nccl_whole(lm_nccl *s, lm_device device, lm_nccl_comm **out);
/* The one of this rank and `peer`, which is `there` in it. Only the two need come. */
lm_status lm_nccl_pair(lm_nccl *s, lm_device device, int peer, lm_nccl_comm **out, int *there);

/* Around what may start threads of NCCL's, which block the signals that their maker blocks: signals are for the threads
 * of scripts. */
static inline void lm_nccl_hold_signals(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, before);
}
static inline void lm_nccl_let_signals(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

/* Around calls of NCCL's. begin takes the lock, unless it fails, and holds signals. end lets go of both and polls until
 * NCCL has done what the calls, which gave `result`, began. */
lm_status lm_nccl_begin(lm_nccl *s);
lm_status lm_nccl_end(lm_nccl *s, lm_nccl_comm *c, ncclResult_t result);
/* NULL once it was aborted. With the lock. */
ncclComm_t lm_nccl_handle(const lm_nccl_comm *c);
lm_status lm_nccl_health(lm_nccl *s);
/* Whether this rank has sent to a rank of the communicator or received from it; and that it does now. */
bool lm_nccl_has_met(const lm_nccl_comm *c, int peer);
void lm_nccl_meet(lm_nccl_comm *c, int peer);

/* ---- registered_memory.c */

/* Of lm_group_table's `memory`. */
lm_status lm_nccl_memory(lm_group *g, lm_dtype dtype, lm_device device, int64_t n, lm_tensor **out);
/* Before a call: registers new pieces with the communicator of all ranks, and frees those of freed tensors. */
void lm_nccl_register_new(lm_nccl *s, ncclComm_t whole);
/* Before the communicator ends quietly. */
void lm_nccl_deregister_all(lm_nccl *s);
/* After that: pieces are on their own. `ended`: the communicator is certain not to use them. */
void lm_nccl_leave_pieces(lm_nccl *s, bool ended);

/* ---- nccl_types_and_errors.c: what NCCL calls things, and says */

/* LM_E_DTYPE if NCCL has no such numbers. `who` begins the message. */
lm_status lm_nccl_type(const char *who, lm_dtype dtype, ncclDataType_t *out);
/* LM_E_MISSING if it has no such reduction. */
lm_status lm_nccl_op(const char *who, lm_reduce_op op, lm_dtype dtype, ncclRedOp_t *out);
/* The name of the call that runs: "all_reduce". Thread-local text. */
const char *lm_nccl_caller(const lm_group *g);
int lm_nccl_version(void); /* 22809 */
/* "2.28.9" */
const char *lm_nccl_version_text(void);
/* The error for a result that is none of success and progress. `last`: what NCCL said last. */
lm_status lm_nccl_fail(const char *who, ncclResult_t result, const char *last);

/* ---- single_process.c */

lm_status lm_nccl_across_devices(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);
