/* What a process group has to bring: a table of collectives. Plug-in header.
 *
 * The core (distributed/group/collective.h) is the entry point. Before it calls a group it has checked every
 * argument, made tensors dense and contiguous on one device, numbered the call (a ticket) and seen to
 * it that one collective at a time runs in a group; asynchronous calls run on a thread of the core's.
 * So a group's functions are plain blocking code: they move bytes, and in every waiting loop they ask
 * lm_group_check whether there is still something to wait for.
 *
 * Ranks count from 0. Below, "rank" is the rank within the group unless it says "in the world". */
#pragma once

#include "abi.h"
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
typedef struct lm_request lm_request; /* a send or receive under way; the group's own */

typedef struct lm_group_table {
  int abi; /* LM_GROUP_ABI */
  const char *name;
  unsigned kinds; /* devices it takes: 1 << LM_CPU | … */
  /* Between ranks of one host the core may use memory they share instead of calling this group, for
   * gradient buckets on the CPU. */
  bool may_share;
  /* Calls do not block: they only enqueue, on the thread's current stream of the tensors' device (lm_stream_current).
   * The core has chosen that stream and ordered it after whatever wrote or reads the tensors; it finds out by an event
   * when the call is done, compares the ranks' tickets meanwhile, and calls `abort` when the job has failed or the time
   * is over. All calls of such a group come one at a time, from one thread or another. `post` enqueues too and leaves
   * *out NULL; `finish`, `forget` and `barrier` (an all_reduce for which the host waits) are not called. A call may
   * refuse what it is given, having enqueued nothing (LM_E_ARG, LM_E_MISSING, …), and the group continues if all ranks'
   * do; LM_E_STATE and LM_E_OOM are this rank's failure, which ends the group on all of them. */
  bool enqueues;

  /* Prepare g (rank, size and ranks are set; put your own into g->state). Called on all ranks of the group,
   * which may find each other through lm_group_set and lm_group_get. Nothing is to be left after an error. */
  lm_status (*open)(lm_group *g);
  /* Give everything back. No call is under way. After a failure (lm_group_failed) peers may be gone. */
  void (*close)(lm_group *g);

  /* All tensors are contiguous, of one dtype and one of `kinds`, and have at least one element; lists have
   * g->size entries, entry r belongs to rank r, and no two overlap. An entry of the table may be NULL: an
   * error then says that the group does not have it. Needed by DistributedDataParallel: all_reduce (sum),
   * broadcast, all_gather and barrier. */
  lm_status (*all_reduce)(lm_group *g, lm_tensor *t, lm_reduce_op op);
  lm_status (*broadcast)(lm_group *g, lm_tensor *t, int root);
  lm_status (*reduce)(lm_group *g, lm_tensor *t, int root, lm_reduce_op op); /* t is written at root alone */
  lm_status (*all_gather)(lm_group *g, const lm_tensor *t, lm_tensor *const *out);
  lm_status (*gather)(lm_group *g, const lm_tensor *t, int root, lm_tensor *const *out); /* out: NULL but at root */
  lm_status (*scatter)(lm_group *g, lm_tensor *t, int root, lm_tensor *const *in);       /* in: NULL but at root */
  lm_status (*reduce_scatter)(lm_group *g, lm_tensor *t, lm_tensor *const *in, lm_reduce_op op);
  /* Entries may differ in their number of elements, and may have none. */
  lm_status (*all_to_all)(lm_group *g, lm_tensor *const *in, lm_tensor *const *out);
  lm_status (*barrier)(lm_group *g);

  /* Start to send t to, or to receive it from, `peer` (-1 at a receiver: from anyone). Does not wait; t stays alive
   * until `forget`. Calls for the same peer and tag match in the order in which they were posted. May run beside a
   * collective of the same group on another thread. */
  lm_status (*post)(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out);
  /* Waits until the request is done or lm_group_check fails; with `wait` false only looks. *peer: who it was. */
  lm_status (*finish)(lm_group *g, lm_request *request, bool wait, bool *done, int *peer);
  void (*forget)(lm_group *g, lm_request *request); /* done or not */

  /* ---- what follows may be NULL */

  /* all_reduce (sum) of floats, each rank's tensor multiplied by its own `scale` on the way. */
  lm_status (*all_reduce_scaled)(lm_group *g, lm_tensor *t, double scale);

  /* Asked now and then while this rank waits in memory it shares, or for the store: has a peer come to
   * this call (lm_group_ticket) with another one of this group's (lm_group_mismatch)? It may have passed on since. */
  lm_status (*test)(lm_group *g);

  /* Of groups that enqueue. Between batch(true) and batch(false) sends and receives form one unit: none waits for
   * another one that comes later. */
  lm_status (*batch)(lm_group *g, bool begin);
  /* Has what was enqueued failed meanwhile? Asked every few ms by a thread of the core's while calls are under way. */
  lm_status (*health)(lm_group *g);
  /* From any thread, beside a call too: what is enqueued ends soon, one way or another, and later calls fail. */
  void (*abort)(lm_group *g);
  /* On all ranks of `parent`, an open group of this table: g (g->rank is -1 on ranks that are not in it) is about to be
   * opened, and may be cut out of the parent instead of being made again. */
  lm_status (*split)(lm_group *g, lm_group *parent);
  /* No group: n tensors of this process, each on a device of its own, alike and contiguous. With `reduce` t[root]
   * becomes their sum, else all become t[root]. Enqueued on each device's current stream. *taken is false if it cannot
   * be done (such as two tensors on one GPU), and nothing was. */
  lm_status (*across_devices)(int n, lm_tensor *const *t, int root, bool reduce, bool *taken);
  /* Of groups that enqueue: n elements that collectives of the group read and write where they are, as a 1-d tensor
   * that may outlive the group. Not collective, and enqueues nothing. *out is NULL where there is no such memory. */
  lm_status (*memory)(lm_group *g, lm_dtype dtype, lm_device device, int64_t n, lm_tensor **out);
  /* Of the library beneath, as that counts; 0 if it does not tell. */
  int (*version)(void);
} lm_group_table;

struct lm_group {
  const lm_group_table *table;
  int rank, size;
  const int *ranks; /* [size] numbers of the members in the world */
  bool one_host;    /* all members are on one host, and may share memory */
  int part;    /* which of the groups this is that a group of several backends ("cpu:gloo,cuda:nccl") consists of */
  void *state; /* the group's own */
  struct lm_group_core *core;
};

/* A plug-in is a shared library luminary_group_<name>.so on the path LM_GROUP_PATH (folders between colons), or beside
 * libluminary, that exports this function. It is loaded when a script first asks for a backend of that name, and
 * never unloaded. */
typedef const lm_group_table *lm_group_plugin_fn(void);
#define LM_GROUP_PLUGIN "lm_group_plugin"

/* ---- what the core does for a group ---- */

/* The call that runs on this thread. */
LM_API const lm_ticket *lm_group_ticket(const lm_group *g);

/* For waiting loops: LM_OK to continue waiting. Cheap (no system call as a rule); to be asked at least every 50 ms, and
 * at once when lm_group_wake_fd becomes readable. Fails, with the cause in the message, when a rank has failed, a
 * member that is needed has left, or the time of this call is over. Also reports where this rank waits, and prints the
 * warning at half time. */
LM_API lm_status lm_group_check(lm_group *g);
/* Becomes readable when lm_group_check is going to fail; for poll. Not to be read from or closed. */
LM_API int lm_group_wake_fd(const lm_group *g);
/* Sleeps until then, `seconds` at most. */
LM_API void lm_group_pause(const lm_group *g, double seconds);
/* Whether a short busy wait pays: there are no more ranks on this host than cores. */
LM_API bool lm_group_may_spin(const lm_group *g);
/* A rank of the world has failed: peers may be gone. */
LM_API bool lm_group_failed(const lm_group *g);

/* `peer` came to this group's call with another ticket: words the error, notifies all ranks, and returns it. */
LM_API lm_status lm_group_mismatch(lm_group *g, int peer, const lm_ticket *theirs);
/* The way to `peer` broke ("connection reset"). Waits up to a second for the cause to become known, else it is the
 * cause. */
LM_API lm_status lm_group_lost(lm_group *g, int peer, const char *how);
/* What failed here may be the consequence of a failure elsewhere: a second for that to become known, as the error. */
LM_API lm_status lm_group_await_cause(lm_group *g);
/* "rank 1 on b", by the rank in the world. Thread-local text. */
LM_API const char *lm_group_peer_name(const lm_group *g, int peer);

/* The store, under keys of this group's own. get waits (under lm_group_check) until the key is set; data is yours to
 * lm_free. */
LM_API lm_status lm_group_set(lm_group *g, const char *key, const void *data, size_t n);
LM_API lm_status lm_group_get(lm_group *g, const char *key, void **data, size_t *n);
/* As get, of what is n bytes long. */
LM_API lm_status lm_group_read(lm_group *g, const char *key, void *out, size_t n);

/* The end of the process comes: says goodbye to the other ranks, as the core does after the destructors of plug-ins.
 * For a plug-in whose own end waits for other ranks, which must not wait for this one any more. */
LM_API void lm_group_shutdown(void);

/* out[i] = a[i] op b[i]; out may be a or b. MEAN adds: divide at the end with lm_reduce_scale. */
LM_API void lm_reduce_into(lm_dtype dtype, lm_reduce_op op, void *out, const void *a, const void *b, size_t n);
LM_API void lm_reduce_scale(lm_dtype dtype, void *x, size_t n, double factor); /* floats */
/* What is left to do for a MEAN once t is the sum; else nothing. */
LM_API void lm_reduce_mean(const lm_group *g, lm_tensor *t, lm_reduce_op op);
