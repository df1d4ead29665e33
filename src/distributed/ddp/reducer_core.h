/* Declares the reducer's state for its files, of which each calls only those before it: reducer_state.c (checks,
 * failures, names of collectives), reducer_buckets.c (layout of gradients in buckets), reducer_hook.c (communication
 * hooks), reducer_reduce.c (exchange of facts, sums), reducer_pass.c (backward passes, gradient hooks) and reducer.c
 * (creation, forward passes). */
#pragma once

#include "distributed/ddp/reducer.h"
#include "distributed/group/collective.h"
#include "distributed/group/group_core.h"
#include "distributed/group/shared_memory.h"

#define LM_DDP "DistributedDataParallel"

typedef struct lm_slot { /* a parameter and its position in a bucket */
  lm_tensor *param;
  const char *name;
  int64_t hook;                /* id of the accumulate hook; 0: none */
  uint32_t version;            /* param's, when the backward pass began */
  int64_t stride[LM_MAX_DIMS]; /* the gradient's, in elements, the same on all ranks */
  int bucket;
  size_t at, bytes; /* byte offset in the bucket; size without the padding to a cache line */
  lm_tensor *view;  /* view of that memory with a storage of its own; .grad is a view of it */
  bool used;        /* true if it got a gradient since the last average */
  int expected;     /* static graph: number of gradients in a backward pass */
  /* State of the current backward pass: */
  int fires;   /* number of gradients so far */
  bool absent; /* true if the pass yields no gradient for it */
  bool ready;  /* true once its part of the bucket is final */
  bool scaled; /* true once the CPU has multiplied that part by this rank's factor */
} lm_slot;

typedef struct lm_bucket {
  lm_dtype dtype;
  lm_device device;
  int waits_for, nslots; /* number of slots: not ready yet; in total */
  size_t at, bytes;      /* byte offset in the memory of all buckets; size, a multiple of 64 */
  lm_tensor *flat;       /* the bucket's memory, 1-d */
  lm_work *work;         /* the all_reduce in progress, unless memory is shared */
  lm_tensor *wire;       /* the copy in the hook's 2-byte dtype, which is sent in place of flat */
  bool calls_again;      /* true if the hook returned no content yet and is called again after backward */
} lm_bucket;

typedef enum lm_arrival { LM_ARRIVAL_FORWARD, LM_ARRIVAL_BACKWARD, LM_ARRIVAL_JOINED } lm_arrival;

/* A rank's facts, sent to all others before each average and, within a join, before a forward pass with buffers. */
typedef struct lm_facts {
  lm_ticket ticket;
  int32_t event;
  double weight;
  uint8_t used[]; /* bit i: parameter i has a gradient on this rank */
} lm_facts;

struct lm_reducer {
  _Atomic int rc; /* references: the owner's, and one for each hook */
  lm_group *g;    /* NULL once closed */
  lm_reducer_config config;
  uint64_t hash;       /* hash of the reducer's identity and bucket layout, which must agree on all ranks */
  uint64_t first_call; /* the group's seq when the reducer was made, which identifies it */
  char title[40];      /* name in messages: "DistributedDataParallel 2" */
  int n;
  lm_slot *slot; /* [n] */
  char *names;

  /* reducer_buckets.c */
  int nbuckets;
  lm_bucket *bucket;
  int *order;        /* [n] parameters in the order of their positions */
  lm_shared *shared; /* memory of all buckets; NULL: each bucket has memory of its own */
  bool rebuilt;      /* true once the layout is final */

  /* reducer_reduce.c */
  size_t facts_bytes;      /* size of one rank's facts */
  uint32_t exchanges;      /* number of exchanges of facts so far */
  lm_tensor *sent, *heard; /* this rank's facts; all ranks' unless memory is shared */
  lm_work *announcing;     /* the all_gather of facts in progress */
  bool announced, known;   /* in the current exchange: this rank's facts were sent; all ranks' were compared */
  lm_arrival event;        /* the event of the ranks that still have batches; JOINED if none has */
  double *factor;          /* [size] weight of each rank's gradients; the sum is 1 */
  char **parts;            /* [size] scratch of sum_part */
  int root;                /* the lowest rank that still has batches; unchanged if none has */
  uint32_t base;           /* number of buckets sent by all earlier passes */
  int launched, reduced;   /* number of this pass's buckets: full on this rank; summed by it (its part) */

  /* reducer_hook.c */
  lm_comm_hook hook;
  bool hooked; /* true if one is registered */

  /* reducer.c, reducer_pass.c */
  bool sync;              /* lm_forward.sync of the latest forward pass */
  bool joining;           /* true inside a join */
  bool begun;             /* true during a backward pass that averages */
  bool averaged;          /* true if the next forward pass starts the weight at 0 */
  bool used_is_known;     /* static graph: true once `expected` is known */
  double weight;          /* samples since the last average */
  int narrived, *arrived; /* [n] parameters in the order in which their gradients came in this pass */
};

/* ---- reducer_state.c */

/* Checks that the reducer still has its group and that no rank has failed (LM_E_STATE otherwise). */
lm_status lm_reducer_usable(const lm_reducer *r);
/* Reports this thread's error to all ranks, unless a failure is known already. They would wait for this rank. */
lm_status lm_reducer_publish(const lm_reducer *r, lm_status status);
void lm_reducer_release(lm_reducer *r); /* drops one reference */
/* Returns the hash that identifies the current exchange of facts (part 0) or a bucket after it (part 1 + bucket). */
uint64_t lm_reduce_hash(const lm_reducer *r, int part);
/* Writes the name of bucket b into t, for messages. */
void lm_reduce_name_bucket(const lm_reducer *r, int b, lm_ticket *t);
/* Names this thread's next collective after bucket b, with a hash that no other call has. */
void lm_reduce_name(const lm_reducer *r, int b);
/* Orders later work after *w (on the CPU, waits for it), releases it and sets *w to NULL. */
lm_status lm_reduce_wait(lm_work **w);
void lm_buckets_free(int n, lm_bucket *bucket);

/* ---- reducer_buckets.c */

/* Lays out the n parameters in `order`, and makes the buckets' memory and views. Collective. An error keeps the former
 * buckets. Each .grad that was a view of a former bucket becomes a view of a new one with the same values. */
lm_status lm_buckets_make(lm_reducer *r, const int *order);
/* Rebuilds the buckets, once, after the first pass, in the order in which gradients came on rank 0. Collective. */
lm_status lm_buckets_rebuild(lm_reducer *r);
/* Returns true if t has the memory, shape and strides of `view`. */
bool lm_is_same_view(const lm_tensor *t, const lm_tensor *view);
/* Makes the parameter's .grad a view of the slot in its bucket. */
lm_status lm_slot_set_grad(lm_slot *s);
lm_status lm_fill_with_zeros(lm_tensor *t);
/* Rounds bytes up to cache lines, on which each gradient starts. */
static inline size_t lm_whole_lines(size_t bytes) { return lm_round_up(bytes, 64); }
/* Returns the address of slot i's memory; CPU only. */
char *lm_slot_data(const lm_reducer *r, int i);

/* ---- reducer_hook.c */

/* Returns true if the hook handles this bucket in place of the plain all_reduce. */
bool lm_hook_takes(const lm_reducer *r, const lm_bucket *b);
/* Calls the hook, or starts the 2-byte all_reduce, for a full bucket that is scaled by this rank's factor. */
lm_status lm_hook_start(lm_reducer *r, int bucket);
/* Waits at the end of backward for the bucket's result, and copies it into the bucket. */
lm_status lm_hook_finish(lm_reducer *r, int bucket);

/* ---- reducer_reduce.c */

lm_status lm_facts_open(lm_reducer *r);
/* Sends this rank's facts without waiting for the others'. */
lm_status lm_facts_announce(lm_reducer *r, lm_arrival event);
/* Waits for all ranks' facts and compares them; sets factor, event and root. */
lm_status lm_facts_wait(lm_reducer *r);
/* Returns true if any rank has a gradient for parameter i. */
bool lm_used_anywhere(const lm_reducer *r, int i);

/* Sends the buckets that are full and next in order; facts were announced. With shared memory, announces them and sums
 * the buckets that are full on all ranks, without waiting. */
lm_status lm_reduce_advance(lm_reducer *r);
/* Sends or sums all remaining buckets and waits for their results. */
lm_status lm_reduce_finish(lm_reducer *r);
/* Copies grad into slot i's memory (grad NULL: zeros). On the CPU it is multiplied by this rank's factor (`scaled`) if
 * that is known already. */
lm_status lm_reduce_put(lm_reducer *r, int i, lm_tensor *grad);

/* ---- reducer_pass.c */

lm_status lm_reducer_add_hooks(lm_reducer *r);
/* Checks that t, the slot's parameter or its gradient, has the dtype, shape and device it had when it was wrapped. */
lm_status lm_slot_check(const lm_slot *s, const lm_tensor *t);
/* Ends a pass whose gradients are averaged; after the first, rebuilds the buckets. Collective. */
lm_status lm_pass_end(lm_reducer *r);
/* Resets the state of the current pass, as if it had not begun. */
void lm_pass_forget(lm_reducer *r);
