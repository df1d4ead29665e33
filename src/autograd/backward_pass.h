/* Declares the state of a running backward pass for its files, of which each calls only those before it:
 * backward_queues.c (what threads of a pass leave for one another), backward_step.c (one node), backward_devices.c (all
 * nodes, on several threads) and backward.c (the pass). */
#pragma once

#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "base/bytes.h"

enum { LM_PASS_SMALL = 32 }; /* up to this size lists need no allocation */

typedef struct lm_leaf_state {
  lm_node *node; /* NULL: a free slot */
  lm_tensor *grad;
  int32_t waits_for;
  bool needed;
  uint64_t last; /* backward_queues.c: the smallest number of the nodes whose gradients have arrived */
} lm_leaf_state;

typedef struct lm_pass_input { /* an input of lm.grad */
  lm_edge edge;
  int number; /* index among the inputs, from 0 */
} lm_pass_input;

struct lm_finally;
struct lm_parallel_pass;

typedef struct lm_pass {
  struct lm_pass *outer; /* pass whose hook called this one; NULL: none */
  struct lm_finally *finally, **last_finally;
  const lm_backward_args *a;
  lm_tensor **out;
  const char *name;                  /* name in messages: "backward" or "grad" */
  bool anomaly;                      /* true if gradients are checked for NaN */
  bool several_devices;              /* true if the nodes are on several devices */
  struct lm_parallel_pass *parallel; /* the threads that share the pass; NULL: this thread only */
  int nedges;                        /* edges of the roots, then of the inputs; retained */
  lm_edge *edge, edge_small[LM_PASS_SMALL];
  lm_pass_input *input, input_small[LM_PASS_SMALL]; /* sorted by edge */
  int nnodes;
  size_t capacity;
  lm_node **node, *node_small[LM_PASS_SMALL]; /* the claimed nodes */
  int nready;
  lm_node **ready, *ready_small[LM_PASS_SMALL];   /* a heap, largest number first */
  int nleaves, leaf_capacity;                     /* leaf_capacity: a power of 2 */
  lm_leaf_state *leaf, leaf_small[LM_PASS_SMALL]; /* open addressing by the node's address */
} lm_pass;

/* Returns the node's state in a table of leaves, or the free slot for it. */
static inline lm_leaf_state *lm_leaf_slot(lm_leaf_state *table, int capacity, const lm_node *n) {
  size_t i = lm_hash_number(LM_NO_HASH, (uintptr_t)n);
  for (;; i++) {
    lm_leaf_state *l = &table[i & (size_t)(capacity - 1)];
    if (l->node == n || !l->node) return l;
  }
}

static inline lm_leaf_state *lm_pass_leaf(const lm_pass *r, const lm_node *n) {
  return lm_leaf_slot(r->leaf, r->leaf_capacity, n);
}

static inline bool lm_pass_is_needed(const lm_pass *r, const lm_node *n) {
  return n->kind == LM_NODE_LEAF ? lm_pass_leaf(r, n)->needed : n->needed;
}

/* ---- backward_queues.c, for backward_step.c while r->parallel is set */

/* Returns in *sum the slot that a gradient for e's target is added to; unchanged if the target is in the same queue.
 * `device_queue`: the queue of the running node. */
lm_status lm_parallel_pass_sum_slot(lm_pass *r, int device_queue, lm_edge e, lm_tensor ***sum);
/* Notes that the gradient from node `from` has arrived at the target; `leaf`: the target's state if it is a leaf.
 * Returns true for the last awaited one. */
bool lm_parallel_pass_arrived(lm_pass *r, const lm_node *from, lm_node *target, lm_leaf_state *leaf);
/* Adds the gradients that other queues have left for result `slot` of n to *sum. */
lm_status lm_parallel_pass_collect(lm_pass *r, const lm_node *n, int slot, lm_tensor **sum);
/* Leaves a leaf to the calling thread, in order, if its hooks require it; *queued is false if this thread must finish
 * it. */
lm_status lm_parallel_pass_queue_leaf(lm_pass *r, lm_leaf_state *l, bool *queued);
/* Returns true if only the caller's gradient is still to come for the leaf, and none has arrived. */
bool lm_parallel_pass_leaf_is_free(lm_pass *r, const lm_leaf_state *l);

/* ---- backward_step.c */

/* Orders lm_pass_input by edge, then by number. */
int lm_pass_compare_inputs(const void *a, const void *b);
void lm_pass_push_ready(lm_pass *r, lm_node *n);
/* Adds g, which it takes over, to the gradient of the edge's target; NULL: no gradient. `from`: the node that computed
 * g, and that the target waits for; NULL for a root. */
lm_status lm_pass_deliver(lm_pass *r, const lm_node *from, lm_edge e, lm_tensor *g);
/* Adds a leaf's complete gradient to its .grad and runs its hooks. */
lm_status lm_pass_finish_leaf(lm_pass *r, lm_leaf_state *l);
/* Computes the input gradients of a node whose own are complete. */
lm_status lm_pass_step(lm_pass *r, lm_node *n);
/* Takes the latest ready node and computes its input gradients, on the only thread of the pass; together with the nodes
 * after it that are parts of the same tensor. */
lm_status lm_pass_step_ready(lm_pass *r);

/* ---- backward_devices.c */

/* Runs all nodes, each device's on its own thread; the roots' gradients must be set. Returns false, with nothing begun,
 * if the pass must run on one thread. */
bool lm_backward_run_parallel(lm_pass *r, lm_status *status);
