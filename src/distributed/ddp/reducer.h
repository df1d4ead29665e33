/* Averages the gradients of one model over the ranks of a group while backward runs (DistributedDataParallel).
 *
 * Gradients lie in buckets, and each parameter's .grad is a view of its bucket (unless `separate`); backward computes
 * most of them in place. A bucket is sent once all its gradients are final, in bucket order, which is the same on all
 * ranks. The average may be weighted: a rank whose batch had twice the samples then counts twice. A reducer belongs to
 * the thread that made it. On devices whose work is enqueued, the host waits only for the ranks' facts
 * (reducer_core.h), not for gradients. */
#pragma once

#include "autograd/autograd.h"
#include "distributed/group/backend.h"

typedef struct lm_reducer lm_reducer;

typedef struct lm_reducer_config {
  size_t first_bytes, cap_bytes; /* bytes at which the first bucket, a small one to send early, and others are full */
  bool find_unused;              /* true if a backward pass may leave parameters without a gradient */
  bool static_graph;             /* true if each pass yields the same number of gradients for each parameter */
  bool separate;                 /* true if .grad has memory of its own, into which averages are copied */
  bool weighted;                 /* true: average weighted by lm_reducer_forward's weight; false: plain mean */
} lm_reducer_config;

/* Creates a reducer over g, which must outlive it. Collective. The n parameters are leaves that require grad, with the
 * same shapes and dtypes on all ranks; `name` serves error messages. *out is NULL after an error. */
LM_API lm_status lm_reducer_new(lm_group *g, int n, lm_tensor *const *param, const char *const *name,
                                const lm_reducer_config *config, lm_reducer **out);
/* Removes the reducer's hooks and drops the owner's reference; the gradients stay. Not collective. r may be NULL. */
LM_API void lm_reducer_close(lm_reducer *r);

/* Prepares the reducer for a forward pass that records a graph: `weight` samples; `sync` false: gradients and weights
 * add up until a pass with `sync`, whose backward averages. `training` false: a backward pass may follow, but need not.
 * Inside a join with `buffers` to broadcast, the call is collective. *root is the rank to broadcast them from, the
 * lowest one that still has batches. */
typedef struct lm_forward {
  double weight;
  bool sync, training, buffers;
} lm_forward;
LM_API lm_status lm_reducer_forward(lm_reducer *r, const lm_forward *f, int *root);

/* ---- communication hooks (reducer_hook.c), which replace the all_reduce of full buckets */

typedef struct lm_comm_hook {
  const char *name; /* must be the same on all ranks; read only during lm_reducer_set_hook */
  /* The 2-byte dtype to which wider buckets are cast for all_reduce; LM_DTYPE_COUNT: no cast. With shared memory,
   * buckets are not cast either. */
  lm_dtype wire;
  /* Communicates a bucket (counted from 0); if not NULL, `wire` is ignored. The bucket holds this rank's gradients
   * times its share of all samples (lm_forward.weight), so the sum over ranks is the average. Called for each bucket in
   * order, on the thread that runs backward or lm_reducer_shadow; a call that leaves *content NULL is repeated, with
   * `last`, at the end of backward. *content: a new tensor, same device and shape, that replaces the bucket. */
  lm_status (*call)(void *ctx, int bucket, bool last, lm_tensor **content);
  void *ctx; /* must stay valid until the reducer is closed */
} lm_comm_hook;

/* Registers the hook. Collective; allowed once, before the first backward pass (LM_E_STATE otherwise). */
LM_API lm_status lm_reducer_set_hook(lm_reducer *r, const lm_comm_hook *hook);
/* Returns in *out a new 1-d view of a bucket's memory, with zeros between the gradients. For hooks. */
LM_API lm_status lm_reducer_buffer(const lm_reducer *r, int bucket, lm_tensor **out);
LM_API int lm_reducer_params(const lm_reducer *r); /* the number of parameters */
/* Returns the number of parameters in a bucket, and writes their indices into `param` in the order of their offsets. */
LM_API int lm_reducer_members(const lm_reducer *r, int bucket, int *param);
/* Returns in *out the gradient of parameter i, a new view of its bucket's memory. */
LM_API lm_status lm_reducer_gradient(const lm_reducer *r, int i, lm_tensor **out);

/* Starts (`on`) or ends a join, during which ranks may run out of batches at different times. A rank without batches
 * calls lm_reducer_shadow, which takes part in the other ranks' next collectives, until it returns LM_SHADOW_OVER. */
LM_API lm_status lm_reducer_join(lm_reducer *r, bool on);
typedef enum lm_shadow {
  LM_SHADOW_BUFFERS,  /* the caller must broadcast the buffers from *root now */
  LM_SHADOW_BACKWARD, /* a backward pass of the others is complete; call again */
  LM_SHADOW_OVER      /* no rank has batches; *root, the lowest of the last to finish, has the final parameters */
} lm_shadow;
LM_API lm_status lm_reducer_shadow(lm_reducer *r, lm_shadow *what, int *root);

/* Returns the number of buckets; *shared is true if they lie in memory shared with the other ranks. For diagnostics. */
LM_API int lm_reducer_buckets(const lm_reducer *r, bool *shared);

/* ---- broadcasting parameters and buffers (reducer_share.c) */

/* Copies root's values into these n tensors on all ranks, in few messages. Any dtypes and layouts, one device kind. */
LM_API lm_status lm_broadcast_tensors(lm_group *g, int n, lm_tensor *const *t, int root);
/* Broadcasts root's n bytes; *out, followed by a zero byte, is freed by the caller (lm_free). Only root's data and n
 * are read. */
lm_status lm_broadcast_bytes(lm_group *g, int root, const void *data, size_t n, char **out, size_t *out_n);
/* Reports `message` to all ranks as this rank's failure, before the caller raises it. */
LM_API void lm_publish_failure(lm_group *g, const char *message);
