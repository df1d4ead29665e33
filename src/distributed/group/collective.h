/* Declares the collectives of process groups, synchronous and asynchronous. They check arguments, make strided tensors
 * contiguous and copy them back, turn empty ones into a barrier, and give each call its ticket.
 *
 * work NULL: the call returns once it is done on this rank or, with a backend that enqueues, once it is enqueued.
 * Otherwise it is queued on the group's thread, in call order, and the caller releases *work. The tensors' memory is
 * kept alive; it must not be accessed until the call is done. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_work lm_work;

/* Starts the call. Lists have a tensor of t's sizes for each rank; or one tensor for all, whose first size is the
 * number of ranks times t's. Only the root may pass the list of a gather or scatter. */
LM_API lm_status lm_collective_start(lm_group *g, const lm_group_call *call, lm_work **work);

/* Starts n sends and receives, none of which waits for another; the caller releases works[n]. If an argument is wrong,
 * none is started. */
LM_API lm_status lm_batch_p2p(lm_group *g, int n, const lm_group_call *list, lm_work **works);

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
/* Makes the current stream of w's device wait for an enqueued w, and be the only user of the memory of n tensors, whose
 * last use in the group it is: later ops on it would wait for later calls, too. Collectives without a work do so by
 * themselves. */
LM_API lm_status lm_work_order(lm_work *w, int n, lm_tensor *const *t);
LM_API bool lm_work_done(lm_work *w);      /* true if it is done or failed; advances sends and receives */
LM_API int lm_work_peer(const lm_work *w); /* the peer of a finished (or enqueued) receive; -1 otherwise */
LM_API void lm_work_release(lm_work *w);   /* w may be NULL, and need not be done */
