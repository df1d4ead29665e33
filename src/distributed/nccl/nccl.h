/* Declares the state and functions shared by the files of the backend "nccl".
 *
 * Communicators are created on first use, for one device, and are nonblocking: NCCL runs a call on threads of its own
 * and returns ncclInProgress meanwhile. Each call is made under the group's lock and then polled, with the lock free
 * between polls, so that another thread can abort at any time.
 *
 * That costs an NCCL thread for each call. A blocking communicator needs none, but an abort frees it while a thread is
 * inside. The calling thread polls until NCCL has enqueued the call, for two reasons: an event recorded earlier would
 * be done too early, and work for several communicators of a GPU must be launched in the same order on all ranks. */
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

#include "backend/known/device_kinds.h"
#include "distributed/group/backend.h"

typedef struct lm_nccl_comm lm_nccl_comm;
typedef struct lm_nccl_piece lm_nccl_piece;

typedef struct lm_nccl {
  lm_group *g;
  lm_device device; /* the device of all communicators; LM_NO_DEVICE until the first call */

  pthread_mutex_t lock; /* guards the fields up to `why`, and NCCL's functions on these communicators */
  bool aborted;
  bool calling;        /* true while NCCL may be working on a call */
  sigset_t signals;    /* the calling thread's signal mask, restored after the call */
  lm_nccl_comm *whole; /* communicator of all ranks; NULL until a collective is called */
  lm_nccl_comm **pair; /* [size] communicators with one peer, for sends and receives without `whole`; may be NULL */
  char why[512];       /* the first failure; "": none */

  lm_nccl_piece *pieces; /* under the lock of registered_memory.c, and `lock` */
} lm_nccl;

/* ---- comm.c: communicators */

/* Sets the environment variables for NCCL, which reads them once; must precede any other use of NCCL. */
void lm_nccl_prepare(void);
lm_status lm_nccl_new(lm_group *g, lm_nccl **out);
/* Ends the communicators and frees s. Unless the group has failed, waits for enqueued calls. Takes 10 s at most. */
void lm_nccl_close(lm_nccl *s);
/* Aborts all communicators without waiting; from any thread. */
void lm_nccl_abort(lm_nccl *s);
/* Splits g off the parent, with the groups of other colors. Collective over the parent. *out is NULL if that is
 * impossible, and on ranks that join no group (color -1). */
lm_status lm_nccl_split(lm_group *g, lm_nccl *parent, int color, lm_nccl **out);

/* Returns the communicator of all ranks on `device`, created on first use (collective); s owns it. */
lm_status lm_nccl_whole(lm_nccl *s, lm_device device, lm_nccl_comm **out);
/* Returns the communicator of this rank and `peer`, whose rank in it is *there; only these two must call it. */
lm_status lm_nccl_pair(lm_nccl *s, lm_device device, int peer, lm_nccl_comm **out, int *there);

/* Block all signals, and restore the mask, around calls that may start NCCL threads, which inherit it: signals are for
 * the scripts' threads. */
static inline void lm_nccl_hold_signals(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, before);
}
static inline void lm_nccl_let_signals(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

/* Begin and end NCCL calls for the group `asks`: s->g or, during a split, the new one. begin takes the lock, unless it
 * fails, and blocks signals. end releases both and polls until NCCL has enqueued the calls, which returned `result`. */
lm_status lm_nccl_begin(lm_nccl *s, lm_group *asks);
lm_status lm_nccl_end(lm_nccl *s, lm_nccl_comm *c, lm_group *asks, ncclResult_t result);
/* Returns NCCL's handle. Its use needs the lock, and a group that is not aborted. */
ncclComm_t lm_nccl_handle(const lm_nccl_comm *c);
lm_status lm_nccl_health(lm_nccl *s);
/* Return and set if this rank has exchanged data with a rank of the communicator by send or receive. */
bool lm_nccl_has_met(const lm_nccl_comm *c, int peer);
void lm_nccl_meet(lm_nccl_comm *c, int peer);

/* ---- registered_memory.c */

/* Implements lm_group_table's `memory`. */
lm_status lm_nccl_memory(lm_group *g, lm_dtype dtype, lm_device device, int64_t n, lm_tensor **out);
/* Registers new pieces with the communicator of all ranks before a call, and frees those of freed tensors. */
void lm_nccl_register_new(lm_nccl *s, ncclComm_t whole);
/* Deregisters all pieces before the communicator is finalized. */
void lm_nccl_deregister_all(lm_nccl *s);
/* Detaches the pieces from s after the communicator's end; frees those of freed tensors if it has `ended` for sure. */
void lm_nccl_leave_pieces(lm_nccl *s, bool ended);

/* ---- nccl_types_and_errors.c: conversion of dtypes, reductions and errors */

/* Returns NCCL's type for a dtype; LM_E_DTYPE if it has none. `who` begins the message. */
lm_status lm_nccl_type(const char *who, lm_dtype dtype, ncclDataType_t *out);
/* Returns NCCL's reduction for dtype; LM_E_MISSING if it has none. */
lm_status lm_nccl_op(const char *who, lm_reduce_op op, lm_dtype dtype, ncclRedOp_t *out);
/* Returns the current call's name, "all_reduce", in thread-local memory. */
const char *lm_nccl_caller(const lm_group *g);
int lm_nccl_version(void); /* 22809; 0: unknown */
/* Returns NCCL's version as text, such as "2.28.9", in thread-local memory. */
const char *lm_nccl_version_text(void);
/* Returns the error for a result other than success and progress. `last`: NCCL's last error text. */
lm_status lm_nccl_fail(const char *who, ncclResult_t result, const char *last);

/* ---- single_process.c */

lm_status lm_nccl_across_devices(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);
