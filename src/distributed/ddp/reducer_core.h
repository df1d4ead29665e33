/* Inside the reducer: reducer.c (its life, forward passes), reducer_pass.c (the parameters' hooks, backward passes),
 * reducer_buckets.c (where gradients lie), reducer_reduce.c (what ranks tell each other, and the sums) and
 * reducer_hook.c (what may take their place). */
#pragma once

#include "distributed/ddp/reducer.h"
#include "distributed/group/collective.h"
#include "distributed/group/group_core.h"
#include "distributed/group/shared_memory.h"

#define LM_DDP "DistributedDataParallel"

typedef struct lm_slot { /* a parameter and its place in a bucket */
  lm_tensor *param;
  const char *name;
  int64_t hook;                /* id */
  int64_t stride[LM_MAX_DIMS]; /* of its gradient, the same on all ranks */
  int bucket;
  size_t at, bytes; /* in the bucket; bytes without what fills it up to a whole line */
  lm_tensor *view;  /* alone on a storage of its own over that memory; .grad gets another header of it */
  bool used;        /* it got a gradient since the last average */
  int expected;     /* static graph: how many a backward pass produces */
  /* Of the pass under way: */
  int fires;   /* gradients so far */
  bool absent; /* the pass will not give one */
  bool ready;  /* its part of the bucket is final */
  bool scaled; /* and has been multiplied by what this rank counts, where that is done here */
} lm_slot;

typedef struct lm_bucket {
  lm_dtype dtype;
  lm_device device;
  int waits_for, nslots;
  size_t at, bytes; /* in the memory of all buckets; whole lines */
  lm_tensor *flat;  /* all of it, 1-d */
  lm_work *work;    /* its all_reduce, where memory is not shared */
  lm_tensor *wire;  /* in place of flat, where that is compressed */
  bool asks;        /* its hook is to be asked once more for what becomes of it */
} lm_bucket;

typedef enum lm_arrival { LM_ARRIVAL_FORWARD, LM_ARRIVAL_BACKWARD, LM_ARRIVAL_JOINED } lm_arrival;

/* What a rank reports to the others before each average, and within a join before each forward pass too. */
typedef struct lm_facts {
  lm_ticket ticket;
  int32_t event;
  double weight;
  uint8_t used[]; /* bit i: parameter i has a gradient on this rank */
} lm_facts;

struct lm_reducer {
  _Atomic int rc; /* the owner's, and one a hook */
  lm_group *g;    /* NULL once closed */
  lm_reducer_config config;
  uint64_t hash; /* of what has to agree: who the reducer is and how its buckets lie */
  uint64_t made; /* the group's seq when it was made: distinguishes reducers; and so that people can: */
  char title[40];
  int n;
  lm_slot *slot; /* [n] */
  char *names;

  /* reducer_buckets.c */
  int nbuckets;
  lm_bucket *bucket;
  int *order;        /* [n] parameters by their positions */
  lm_shared *shared; /* NULL: each bucket has memory of its own */
  bool rebuilt;      /* no more changes */

  /* reducer_reduce.c */
  size_t facts_bytes;
  uint32_t exchanges;      /* how often facts were given */
  lm_tensor *sent, *heard; /* this rank's facts; everybody's where memory is not shared */
  lm_work *announcing;
  bool announced, known; /* in the exchange under way: this rank's, everyone's (and they agree) */
  lm_arrival event;      /* what the ranks are doing that are not out of batches; JOINED if all are */
  double *factor;        /* [size] what a rank's gradients count; they add up to 1 */
  char **parts;          /* [size] room for sum_part */
  int root;              /* the lowest rank that is not out of batches; the last there was, if none is left */
  uint32_t base;         /* buckets sent by all passes before this one */
  int launched, reduced; /* buckets of this pass: full on this rank, its part of them summed by it */

  /* reducer_hook.c */
  lm_comm_hook hook;
  bool hooked; /* there is one */

  /* reducer.c, reducer_pass.c */
  bool sync; /* of the latest forward pass */
  bool joining;
  bool begun;         /* a pass is under way */
  bool averaged;      /* since the latest forward pass: the weight starts again with the next */
  bool used_is_known; /* static graph: `expected` is known */
  double weight;
  int narrived, *arrived; /* [n] the order in which gradients came in the first pass */
};

/* ---- reducer.c */

/* Its group is there, and no rank has failed. */
lm_status lm_reducer_usable(const lm_reducer *r);
/* The error goes to all ranks: they would wait for this one. (To no effect if it was another rank's to begin with.) */
lm_status lm_reducer_publish(const lm_reducer *r, lm_status status);
void lm_reducer_release(lm_reducer *r); /* one reference */

/* ---- reducer_pass.c */

lm_status lm_reducer_add_hooks(lm_reducer *r);
/* That t, the slot's parameter or a gradient of it, is as it was when the model was wrapped. */
lm_status lm_slot_check(const lm_slot *s, const lm_tensor *t);
/* All gradients are averaged. */
lm_status lm_pass_end(lm_reducer *r);
/* As if it had not begun. */
void lm_pass_forget(lm_reducer *r);

/* ---- reducer_buckets.c */

/* Layout by `order` (n indices), memory and views. Collective. What the slots had is kept until it succeeds; .grads
 * that were views of the former buckets become views of the new ones, with their values. */
lm_status lm_buckets_make(lm_reducer *r, const int *order);
void lm_buckets_free(int n, lm_bucket *bucket);
/* After the first pass: by the order in which gradients came on rank 0. Collective. */
lm_status lm_buckets_rebuild(lm_reducer *r);
/* t is this view: memory and strides. */
bool lm_is_same_view(const lm_tensor *t, const lm_tensor *view);
/* .grad becomes the slot's place in its bucket. */
lm_status lm_slot_show(lm_slot *s);
lm_status lm_fill_with_zeros(lm_tensor *t);
/* Each gradient starts on a cache line. */
static inline size_t lm_whole_lines(size_t bytes) { return lm_round_up(bytes, 64); }
/* Where slot i's part lies; CPU only. */
char *lm_slot_data(const lm_reducer *r, int i);

/* ---- reducer_reduce.c */

lm_status lm_facts_open(lm_reducer *r);
void lm_facts_close(lm_reducer *r);
/* Sends this rank's facts; lm_facts_wait waits for the others'. */
lm_status lm_facts_announce(lm_reducer *r, lm_arrival event);
/* Waits for them, and compares them. */
lm_status lm_facts_wait(lm_reducer *r);
/* Whether any rank has a gradient for parameter i. */
bool lm_used_anywhere(const lm_reducer *r, int i);

/* Facts are given. Sends those buckets that are full and whose turn it is; in shared memory, announces them, and sums
 * what can be summed without waiting. */
lm_status lm_reduce_advance(lm_reducer *r);
/* All of them, waiting. */
lm_status lm_reduce_finish(lm_reducer *r);
/* The slot's gradient, into its place. On the CPU it is scaled at once by what this rank's count, if it is known how
 * much that is (`scaled`). grad NULL: zeros. */
lm_status lm_reduce_put(lm_reducer *r, int i, lm_tensor *grad);
/* The next call on this thread is about bucket b, and is distinguished from all others. */
void lm_reduce_name(const lm_reducer *r, int b);
/* Orders what follows after it; on the CPU that is waiting for it. Releases it. */
lm_status lm_reduce_wait(lm_work **w);

/* ---- reducer_hook.c */

/* Whether the bucket takes another way than the sum. */
bool lm_hook_takes(const lm_reducer *r, const lm_bucket *b);
/* It is full, and scaled by what this rank's gradients count. */
lm_status lm_hook_start(lm_reducer *r, int bucket);
/* The end of backward: it becomes what the hook made of it. */
lm_status lm_hook_finish(lm_reducer *r, int bucket);
