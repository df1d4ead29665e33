/* Defines the table of collectives that a backend implements, and the core's functions for backends. Plug-in header.
 *
 * The core (distributed/group/collective.h) is the entry point. Before it calls a backend it has checked every
 * argument, made tensors dense and contiguous on one device, and numbered the call (a ticket). It runs one collective
 * at a time in a group; asynchronous calls run on a thread of the core. So a backend's functions are plain blocking
 * code: they move bytes, and every waiting loop calls lm_group_check, which fails when waiting has become pointless.
 *
 * Ranks count from 0. A "rank" is the rank within the group unless a comment says "in the world". */
#pragma once

#include "abi_group.h"
#include "distributed/store/ticket.h"
#include "tensor/tensor.h"

typedef enum lm_reduce_op {
  LM_REDUCE_SUM,
  LM_REDUCE_MEAN, /* floats only */
  LM_REDUCE_PRODUCT,
  LM_REDUCE_MIN,
  LM_REDUCE_MAX,
  LM_REDUCE_BAND, /* bitwise, integers and bool only */
  LM_REDUCE_BOR,
  LM_REDUCE_OPS
} lm_reduce_op;

LM_API const char *lm_collective_name(lm_collective c); /* "all_reduce" */
LM_API const char *lm_reduce_op_name(lm_reduce_op op);  /* "sum" */

typedef struct lm_group lm_group;
typedef struct lm_request lm_request; /* a send or receive in progress; defined by the backend */

/* A call of a group, from the script to the backend. Fields that the collective does not have are zero. */
typedef struct lm_group_call {
  lm_collective kind;
  lm_reduce_op op;       /* the reduction */
  int root;              /* broadcast, reduce, gather, scatter: the rank that has, or gets, the data of all */
  int peer, tag;         /* send, recv: the other rank (recv: -1 for any), and what must match beside it */
  bool scaled;           /* all_reduce, sum of floats: true if the core multiplies t by this rank's own `scale` first */
  double scale;          /* 0 contributes zeros, also for inf and NaN */
  lm_tensor *t;          /* NULL for all_to_all and barrier. reduce writes it at the root only */
  int nin, nout;         /* lengths of the lists; 0: none */
  lm_tensor *const *in;  /* scatter (at the root), reduce_scatter, all_to_all */
  lm_tensor *const *out; /* gather (at the root), all_gather, all_to_all */
} lm_group_call;

enum { LM_EVERY_COLLECTIVE = (1 << (LM_BARRIER + 1)) - 1 }; /* all_reduce to barrier */

typedef struct lm_group_table {
  int abi; /* LM_GROUP_ABI */
  const char *name;
  unsigned kinds;       /* device kinds it takes: 1 << LM_CPU | … */
  unsigned collectives; /* mask of those that `run` has, 1 << LM_ALL_REDUCE | …; calls of others fail with LM_E_MISSING.
                           DistributedDataParallel needs all_reduce (sum), broadcast, all_gather and barrier */
  /* True if the core may sum CPU gradient buckets in memory shared by the ranks of one host instead of calling this
   * backend. */
  bool may_share;
  /* True if calls do not block but enqueue on the thread's current stream of the tensors' device (lm_stream_current).
   * The core chooses that stream, orders it after earlier uses of the tensors, detects the call's end by an event,
   * compares the ranks' tickets meanwhile, and calls `abort` after a failure or timeout. Calls come one at a time, from
   * any thread. `post` enqueues too and leaves *out NULL; `finish`, `forget` and `run` of a barrier (the core runs an
   * all_reduce and waits for it) are not called. A call may refuse its arguments before it enqueues anything (LM_E_ARG,
   * LM_E_MISSING, …); the group stays usable if all ranks' calls do so. LM_E_STATE and LM_E_OOM are failures of this
   * rank, which end the group on all ranks. */
  bool enqueues;

  /* Prepares g, whose rank, size and ranks are set, and stores the backend's data in g->state. Called on all ranks of
   * the group, which may exchange addresses with lm_group_set and lm_group_get. Frees everything on error. */
  lm_status (*open)(lm_group *g);
  /* Frees everything. No call is in progress. After a failure (lm_group_failed) peers may be gone. */
  void (*close)(lm_group *g);

  /* Runs a collective of `collectives`. All tensors are contiguous, of one dtype and one device kind of `kinds`, and
   * have at least one element; only those of all_to_all may have none and differ in number. Lists have g->size entries,
   * entry r belongs to rank r, and no two overlap. */
  lm_status (*run)(lm_group *g, const lm_group_call *call);

  /* Starts to send t to, or to receive it from, `peer` (-1 for a receive: from any rank) without waiting; NULL: sends
   * and receives fail with LM_E_MISSING. t stays alive
   * until `forget`. Calls for the same peer and tag match in the order in which they were posted. May run at the same
   * time as a collective of the same group on another thread. */
  lm_status (*post)(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out);
  /* Waits until the request is done or lm_group_check fails; with `wait` false only tests it. *peer is the peer. */
  lm_status (*finish)(lm_group *g, lm_request *request, bool wait, bool *done, int *peer);
  void (*forget)(lm_group *g, lm_request *request); /* frees it, done or not */

  /* ---- optional entries, which may be NULL */

  /* Fails with lm_group_mismatch if a peer has entered another call with the seq of this one (lm_group_ticket). Called
   * now and then while this rank waits for shared memory or the store; the peer may have left that call since. */
  lm_status (*test)(lm_group *g);

  /* Enqueues n sends and receives of tensors on one device, none of which waits for a later one. Only for groups that
   * enqueue; without it, `post` is called for each. */
  lm_status (*batch)(lm_group *g, int n, const lm_group_call *calls);
  /* Fails if an enqueued call has failed. Called every few ms by a thread of the core while calls are in progress. */
  lm_status (*health)(lm_group *g);
  /* Makes enqueued calls end soon, in any state, and later calls fail. Called from any thread, also during a call. */
  void (*abort)(lm_group *g);
  /* Prepares g as a part of `parent`, an open group of this table, so that `open` need not build it from scratch.
   * Called once on all ranks of the parent before `open`, for several groups at a time: ranks of one pass the same
   * color, at least 0. g->rank and color are -1 on ranks that join none. */
  lm_status (*split)(lm_group *g, lm_group *parent, int color);
  /* Reduces into t[root] (`reduce`) or broadcasts from it n tensors of this process, without a group: each on its own
   * device, contiguous, of one dtype and size. Enqueues on each device's current stream. *taken is false, and nothing
   * was done, if it is impossible (two tensors on one GPU, say). */
  lm_status (*across_devices)(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);
  /* Allocates n elements that this group's collectives access without a copy, as a 1-d tensor that may outlive the
   * group. Not collective, enqueues nothing. *out is NULL if there is no such memory. Only for groups that enqueue. */
  lm_status (*memory)(lm_group *g, lm_dtype dtype, lm_device device, int64_t n, lm_tensor **out);
  /* Returns the version of the library beneath, in its own numbering; 0 if unknown. */
  int (*version)(void);
} lm_group_table;

struct lm_group {
  const lm_group_table *table;
  int rank, size;
  const int *ranks; /* [size] the members' ranks in the world */
  bool one_host;    /* true if all members are on one host and may share memory */
  int part;         /* index of this backend in a group of several ("cpu:gloo,cuda:nccl") */
  void *state;      /* the backend's data */
  struct lm_group_core *core;
};

/* The function that a plug-in exports: a shared library luminary_group_<name>.so in a folder of LM_GROUP_PATH
 * (separated by colons), or beside libluminary. The plug-in is loaded when a script first uses the backend of that
 * name, and never unloaded. */
typedef const lm_group_table *lm_group_plugin_fn(void);
#define LM_GROUP_PLUGIN "lm_group_plugin"

/* ---- the core's functions for backends ---- */

/* Returns the ticket of this group's call that runs on this thread; all zeros if there is none. */
LM_API const lm_ticket *lm_group_ticket(const lm_group *g);

/* Returns LM_OK while a waiting loop may continue. Fails, with the cause in the message, when a rank has failed, a
 * needed member has left, or this call has timed out. Cheap (usually no system call). Must be called at least every
 * 50 ms, and at once when lm_group_wake_fd becomes readable. Also reports this rank's wait to the store, and prints a
 * warning at half the timeout. */
LM_API lm_status lm_group_check(lm_group *g);
/* Returns a descriptor to poll that becomes readable when lm_group_check may fail; it must not be read or closed. */
LM_API int lm_group_wake_fd(const lm_group *g);
/* Sleeps `seconds`, or until lm_group_wake_fd becomes readable. */
LM_API void lm_group_pause(const lm_group *g, double seconds);
/* Returns true if a short busy wait pays: this host has at least as many cores as ranks. */
LM_API bool lm_group_may_spin(const lm_group *g);
/* Returns true if a rank of the world has failed, so that peers may be gone. */
LM_API bool lm_group_failed(const lm_group *g);

/* Reports to all ranks that `peer` entered this group's call with another ticket, and returns that error. */
LM_API lm_status lm_group_mismatch(lm_group *g, int peer, const lm_ticket *theirs);
/* Waits up to a second for the cause of a broken link to `peer` (how: "connection reset") and returns it as the error;
 * if none becomes known, reports the broken link as the cause. */
LM_API lm_status lm_group_lost(lm_group *g, int peer, const char *how);
/* Waits up to a second for a failure elsewhere, which may have caused one here, and returns it; LM_OK if none comes. */
LM_API lm_status lm_group_await_cause(lm_group *g);
/* Returns "rank 1 on b" (the rank in the world) in thread-local memory. */
LM_API const char *lm_group_peer_name(const lm_group *g, int peer);

/* Write and read keys of this group in the store. get waits (under lm_group_check) until the key is set; the caller
 * frees *data (lm_free). */
LM_API lm_status lm_group_set(lm_group *g, const char *key, const void *data, size_t n);
LM_API lm_status lm_group_get(lm_group *g, const char *key, void **data, size_t *n);
/* Waits for a key as get does and copies its value into out; LM_E_STATE if it is not n bytes long. */
LM_API lm_status lm_group_read(lm_group *g, const char *key, void *out, size_t n);

/* Says goodbye to the other ranks at the end of the process, as the core does after the destructors of plug-ins; true
 * if one has failed. For a plug-in whose destructor waits for other ranks: they must not wait for this one any more. */
LM_API bool lm_group_shutdown(void);

/* Computes out[i] = a[i] op b[i]; out may be a or b. MEAN adds; lm_reduce_scale divides at the end. */
LM_API void lm_reduce_into(lm_dtype dtype, lm_reduce_op op, void *out, const void *a, const void *b, size_t n);
LM_API void lm_reduce_scale(lm_dtype dtype, void *x, size_t n, double factor); /* x *= factor; floats only */
/* Divides the sum t by the group's size if op is MEAN. */
LM_API void lm_reduce_mean(const lm_group *g, lm_tensor *t, lm_reduce_op op);
