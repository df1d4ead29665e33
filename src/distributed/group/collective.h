/* Declares the collectives of process groups, synchronous and asynchronous. They check arguments, make strided tensors
 * contiguous and copy them back, turn empty ones into a barrier, and give each call its ticket.
 *
 * work NULL: the call returns once it is done on this rank or, with a backend that enqueues, once it is enqueued.
 * Otherwise it is queued on the group's thread, in call order, and the caller releases *work. The tensors' memory is
 * kept alive; it must not be accessed until the call is done. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_work lm_work;

LM_API lm_status lm_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op, lm_work **work);
/* Sums t * scale over the ranks, each with its own scale (the backend scales, if it can). Scale 0 contributes zeros,
 * also for inf and NaN. Floats only. */
LM_API lm_status lm_all_reduce_scaled(lm_group *g, lm_tensor *t, double scale, lm_work **work);
LM_API lm_status lm_group_broadcast(lm_group *g, lm_tensor *t, int root, lm_work **work);
LM_API lm_status lm_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op, lm_work **work);
/* Gathers into size (the number of ranks) tensors of t's sizes, or n = 1 tensor with a first size of size times t's. */
LM_API lm_status lm_all_gather(lm_group *g, lm_tensor *t, int n, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_gather(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_scatter(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *in, lm_work **work);
/* Reduces and scatters `in`: size tensors of t's sizes, or n = 1 tensor whose first size is size times t's. */
LM_API lm_status lm_reduce_scatter(lm_group *g, lm_tensor *t, int n, lm_tensor *const *in, lm_reduce_op op,
                                   lm_work **work);
LM_API lm_status lm_all_to_all(lm_group *g, int n, lm_tensor *const *in, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_barrier(lm_group *g, lm_work **work);
/* Send t to, or receive it from, `peer`, matched by tag (>= 0). lm_recv takes peer -1 for any rank. */
LM_API lm_status lm_send(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work);
LM_API lm_status lm_recv(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work);

typedef struct lm_p2p {
  bool sending;
  lm_tensor *t;
  int peer, tag;
} lm_p2p;
/* Starts n sends and receives, none of which waits for another; the caller releases works[n]. If an argument is wrong,
 * none is started. */
LM_API lm_status lm_batch_p2p(lm_group *g, int n, const lm_p2p *list, lm_work **works);

/* Reduces into t[root] (`reduce`) or broadcasts from it n tensors of this process, without a group: each on its own
 * device, contiguous, of one dtype and size. Enqueues on the devices' current streams. *taken is false, and nothing was
 * done, if that is impossible (without nccl, or with two tensors on one GPU). */
LM_API lm_status lm_devices_collective(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);

/* Sets the timeout in seconds of the next call on this thread, instead of the group's. */
LM_API void lm_collective_timeout(double seconds);
/* Sets for the next call on this thread the name in messages and a hash that must agree on all ranks, which
 * distinguishes calls with equal arguments. */
LM_API void lm_collective_purpose(const char *what, uint64_t hash);

/* Waits for w, at most `seconds` (< 0: the call's timeout), and returns its outcome. If `seconds` run out, returns
 * LM_E_STATE and the work continues. With a backend that enqueues, seconds < 0 waits only if results go to the host (a
 * barrier, tensors on other devices): later ops on the tensors wait by themselves. */
LM_API lm_status lm_work_wait(lm_work *w, double seconds);
LM_API bool lm_work_done(lm_work *w);      /* true if it is done or failed; advances sends and receives */
LM_API int lm_work_peer(const lm_work *w); /* the peer of a finished (or enqueued) receive; -1 otherwise */
LM_API void lm_work_release(lm_work *w);   /* w may be NULL, and need not be done */
