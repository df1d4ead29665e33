/* The reducer: averages the gradients of one model over the ranks of a group while backward continues.
 *
 * Gradients lie in buckets, views of which become the parameters' .grad; backward computes most of them right there. A
 * bucket is sent once all its gradients are there, in the order of the buckets, which is the same on all ranks. The
 * average is weighted: a rank whose batch had twice the samples counts twice. A reducer belongs to the thread that made
 * it. On devices whose work is enqueued nothing waits on the host except what the ranks tell each other beside the
 * gradients.
 */
#pragma once

#include "autograd/autograd.h"
#include "distributed/group/backend.h"

typedef struct lm_reducer lm_reducer;

typedef struct lm_reducer_config {
  size_t first_bytes, cap_bytes; /* a bucket is full when it has come to this; the first is smaller, to start early */
  bool find_unused;              /* a backward pass may leave parameters out */
  bool static_graph;             /* all passes are as the first: the same parameters, each as often */
  bool weighted;                 /* by lm_reducer_forward's weight; else the plain mean over the ranks */
} lm_reducer_config;

/* Collective over g, which outlives the reducer. The parameters are leaves that require
 * grad, alike on all ranks; names serve messages. */
LM_API lm_status lm_reducer_new(lm_group *g, int n, lm_tensor *const *param, const char *const *name,
                                const lm_reducer_config *config, lm_reducer **out);
/* Takes its hooks away and leaves the group; the gradients stay. Not collective. NULL is fine. */
LM_API void lm_reducer_close(lm_reducer *r);

/* Before each forward pass that records a graph: how many samples it has, and whether the backward passes that follow
 * average; else gradients and weights add up until one that does. Outside of training nothing is expected to follow,
 * but may. Inside a join the ranks meet here if there are `buffers` to broadcast. *root: who is to be believed about
 * those, the lowest rank that still has batches. */
typedef struct lm_forward {
  double weight;
  bool sync, training, buffers;
} lm_forward;
LM_API lm_status lm_reducer_forward(lm_reducer *r, const lm_forward *f, int *root);

/* ---- communication hooks (reducer_hook.c): what is done with full buckets in place of the sum over all ranks */

typedef struct lm_comm_hook {
  const char *name; /* must be the same on all ranks; outlives the call */
  /* Buckets of a wider dtype travel as this one, 2 bytes; LM_DTYPE_COUNT: as they are. Where ranks share memory nothing
   * travels, and sums keep the full precision. */
  lm_dtype wire;
  /* If it is set, wire does not matter: the bucket (from 0) is this rank's own memory and holds its gradients times
   * what it counts, so the sum over all ranks is their average. *content, a new reference: what becomes of it, on the
   * same device and of as many elements. It is called for each bucket in their order, on the thread that runs the
   * backward pass or lm_reducer_shadow; if it leaves *content NULL, once more with `last` when backward is over. */
  lm_status (*call)(void *ctx, int bucket, bool last, lm_tensor **content);
  void *ctx; /* there until the reducer is closed */
} lm_comm_hook;

/* Collective, once, before the first backward pass. */
LM_API lm_status lm_reducer_set_hook(lm_reducer *r, const lm_comm_hook *hook);
/* For hooks: the bucket's memory, 1-d, with zeros between the gradients. */
LM_API lm_status lm_reducer_buffer(const lm_reducer *r, int bucket, lm_tensor **out);
LM_API int lm_reducer_params(const lm_reducer *r); /* how many it has in all */
/* How many parameters a bucket has; which, in the order of their positions, into param. */
LM_API int lm_reducer_members(const lm_reducer *r, int bucket, int *param);
/* The gradient of parameter i in its bucket's memory, a view of what lm_reducer_buffer returns. */
LM_API lm_status lm_reducer_gradient(const lm_reducer *r, int i, lm_tensor **out);

/* Between `on` and off, ranks may run out of batches at different times. A rank that has none left calls
 * lm_reducer_shadow, which takes part in whatever the others do next, until nobody has any. */
LM_API lm_status lm_reducer_join(lm_reducer *r, bool on);
typedef enum lm_shadow {
  LM_SHADOW_BUFFERS, /* now broadcast the buffers from *root */
  LM_SHADOW_BACKWARD,
  LM_SHADOW_OVER /* *root is the lowest of the ranks that finished last, and so has the final parameters */
} lm_shadow;
LM_API lm_status lm_reducer_shadow(lm_reducer *r, lm_shadow *what, int *root);

/* For one look inside: the number of buckets, and whether they lie in memory shared with the other ranks. */
LM_API int lm_reducer_buckets(const lm_reducer *r, bool *shared);

/* ---- for the start (reducer_share.c) */

/* All of these tensors become root's, in one message. Any dtypes and layouts, one device kind. */
LM_API lm_status lm_share_tensors(lm_group *g, int n, lm_tensor *const *t, int root);
/* root's bytes for all; *out is yours to lm_free, with a zero behind them. data and n matter at root alone. */
LM_API lm_status lm_share_bytes(lm_group *g, int root, const void *data, size_t n, char **out, size_t *out_n);
/* Reports to all ranks that this one is going to raise this. */
LM_API void lm_share_failure(lm_group *g, const char *message);
