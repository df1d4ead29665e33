/* The entry point of process groups: every collective, sync and async. Arguments are checked, strided tensors are
 * made contiguous and copied back, empty ones become a barrier, and each call gets its ticket.
 *
 * work NULL: return when it is done on this rank, or, of a group that enqueues, when it is enqueued. Otherwise it is
 * queued on the group's own thread, in the order of the calls, and *work is yours; the memory that the tensors have now
 * is kept alive, and must not be touched until it is done. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_work lm_work;

LM_API lm_status lm_all_reduce(lm_group *g, lm_tensor *t, lm_reduce_op op, lm_work **work);
/* The sum, each rank's t multiplied by its own scale (on the way, where the group can); 0 makes zeros of whatever it
 * holds. Floats. */
LM_API lm_status lm_all_reduce_scaled(lm_group *g, lm_tensor *t, double scale, lm_work **work);
LM_API lm_status lm_group_broadcast(lm_group *g, lm_tensor *t, int root, lm_work **work);
LM_API lm_status lm_reduce(lm_group *g, lm_tensor *t, int root, lm_reduce_op op, lm_work **work);
/* out: n tensors of t's sizes, n = the group's size; or one whose first size is n times t's (n = 1 where size > 1). */
LM_API lm_status lm_all_gather(lm_group *g, lm_tensor *t, int n, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_gather(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_scatter(lm_group *g, lm_tensor *t, int root, int n, lm_tensor *const *in, lm_work **work);
/* in: n = size tensors of t's sizes, or one with n times t's first size. */
LM_API lm_status lm_reduce_scatter(lm_group *g, lm_tensor *t, int n, lm_tensor *const *in, lm_reduce_op op,
                                   lm_work **work);
LM_API lm_status lm_all_to_all(lm_group *g, int n, lm_tensor *const *in, lm_tensor *const *out, lm_work **work);
LM_API lm_status lm_barrier(lm_group *g, lm_work **work);
/* tag >= 0. recv: peer -1 takes from anyone. */
LM_API lm_status lm_send(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work);
LM_API lm_status lm_recv(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work);

typedef struct lm_p2p {
  bool sending;
  lm_tensor *t;
  int peer, tag;
} lm_p2p;
/* Several sends and receives of which none waits for another: works[n], yours. Nothing was sent if an argument is
 * wrong. */
LM_API lm_status lm_batch_p2p(lm_group *g, int n, const lm_p2p *list, lm_work **works);

/* No group: n tensors of this process on a device each, alike and contiguous. With `reduce` t[root] becomes their sum,
 * else all become t[root]. Enqueued on the devices' current streams. *taken is false, and nothing was done, where that
 * is not possible at once (without nccl, or with tensors of one GPU). */
LM_API lm_status lm_devices_collective(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);

/* For the next call on this thread: its timeout in seconds, instead of the group's. */
LM_API void lm_collective_timeout(double seconds);
/* For the next call on this thread: what it is for, in words instead of the call's own, and as a hash that has to agree
 * besides. Calls that look alike are distinguished by it. */
LM_API void lm_collective_purpose(const char *what, uint64_t hash);

/* Waits for it; seconds < 0: as long as the group's timeout. What the call failed with. Running out of `seconds` is an
 * LM_E_STATE of its own, after which the work continues. Of a group that enqueues, seconds < 0 waits only where the
 * host is concerned (a barrier, tensors that lie elsewhere): later ops on the tensors wait by themselves. */
LM_API lm_status lm_work_wait(lm_work *w, double seconds);
LM_API bool lm_work_done(lm_work *w);      /* also true if it failed; drives sends and receives a bit */
LM_API int lm_work_peer(const lm_work *w); /* of a finished (or enqueued) recv; -1 otherwise */
LM_API void lm_work_release(lm_work *w);   /* NULL is fine; not waiting for it is fine */
