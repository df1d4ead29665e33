/* A backward pass while it runs: what backward.c, which works it off, and backward_devices.c, which spreads it over
 * threads, share. */
#pragma once

#include "autograd/gradients.h"
#include "autograd/record_graph.h"

enum { LM_PASS_SMALL = 32 }; /* sizes below it need no allocation */

typedef struct lm_leaf_state {
  lm_node *node; /* NULL: a free place */
  lm_tensor *grad;
  int32_t waits_for;
  bool needed;
  uint64_t last; /* backward_devices.c: the smallest number of the nodes it has come from */
} lm_leaf_state;

typedef struct lm_pass_input { /* what lm.grad is asked for */
  lm_edge edge;
  int number; /* among the inputs */
} lm_pass_input;

struct lm_finally;
struct lm_parallel_pass;

typedef struct lm_pass {
  struct lm_pass *outer; /* a hook of it has called for this one */
  struct lm_finally *finally, **last_finally;
  const lm_backward_args *a;
  lm_tensor **out;
  const char *name;                  /* for messages: backward or grad */
  bool anomaly;                      /* look for NaN */
  bool several_devices;              /* the nodes are on */
  struct lm_parallel_pass *parallel; /* the threads that share the pass; NULL: this thread alone */
  int nedges;                        /* retained, of the roots, then of the inputs */
  lm_edge *edge, edge_small[LM_PASS_SMALL];
  lm_pass_input *input, input_small[LM_PASS_SMALL]; /* by their edges */
  int nnodes;
  size_t capacity;
  lm_node **node, *node_small[LM_PASS_SMALL]; /* claimed */
  int nready;
  lm_node **ready, *ready_small[LM_PASS_SMALL];   /* a heap, the largest number first */
  int nleaves, leaf_capacity;                     /* a power of 2 */
  lm_leaf_state *leaf, leaf_small[LM_PASS_SMALL]; /* open addressing by the node's address */
} lm_pass;

/* backward.c. Works off a node whose gradients are there, and adds up a leaf's. */
lm_status lm_pass_step(lm_pass *r, lm_node *n);
lm_status lm_pass_finish_leaf(lm_pass *r, lm_leaf_state *l);

/* backward_devices.c. Works off all nodes, each device's on a thread of its own; the roots have their gradients. False
 * where the pass has to do without: nothing was begun. */
bool lm_backward_run_parallel(lm_pass *r, lm_status *status);

/* For the engine while r->team is there. `device_queue`: of the node that is being worked off.
 * Where a gradient for the edge's target is added: *sum may be replaced by another place. */
lm_status lm_parallel_pass_sum_slot(lm_pass *r, int device_queue, lm_edge e, lm_tensor ***sum);
/* Notes that `from`, one of those the target waits for, has come; `leaf` is the target's state, if it is one. True: it
 * was the last. */
bool lm_parallel_pass_arrived(lm_pass *r, const lm_node *from, lm_node *target, lm_leaf_state *leaf);
/* Adds what other lanes have left for result `slot` of n to *sum. */
lm_status lm_parallel_pass_collect(lm_pass *r, const lm_node *n, int slot, lm_tensor **sum);
/* lm_pass_finish_leaf, where and when its hooks may run. */
lm_status lm_parallel_pass_finish_leaf(lm_pass *r, lm_leaf_state *l);
/* Nobody but the caller has anything for the leaf, and nothing has come yet. */
bool lm_parallel_pass_leaf_is_free(lm_pass *r, const lm_leaf_state *l);
