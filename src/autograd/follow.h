/* Declares followers: receivers of a script's calls while a compiled step runs (plan/follow.c). A follower may return
 * results that have no values yet; `settle` computes them. */
#pragma once

#include "autograd/autograd.h"

typedef struct lm_follower {
  lm_status (*call)(struct lm_follower *f, lm_op_id op, const void *args, bool in_place, lm_tensor **out);
  lm_status (*backward)(struct lm_follower *f, const lm_backward_args *a);
  lm_status (*settle)(struct lm_follower *f);
  lm_status (*leave)(struct lm_follower *f);         /* settles, and makes the graph as it is without the follower */
  bool (*has_backward)(const struct lm_follower *f); /* true if a gradient is among what `settle` computes */
  bool wants_lines;                                  /* true if calls note the script's line */
} lm_follower;

/* Sets this thread's follower, or NULL; returns the one before. Backward passes and the code that they call have
 * none. */
LM_API lm_follower *lm_follower_swap(lm_follower *f);
LM_API lm_follower *lm_follower_current(void);
/* Calls an op, or a backward pass, as a script does: by the follower, if there is one. */
LM_API lm_status lm_call_by_script(lm_op_id op, const void *args, bool in_place, lm_tensor **out);
LM_API lm_status lm_backward_by_script(const lm_backward_args *a, lm_tensor **out);
/* Computes a follower's results, before anything but an op reads a tensor. */
static inline lm_status lm_settle(void) {
  lm_follower *f = lm_follower_current();
  return f ? f->settle(f) : LM_OK;
}
/* Makes the graph, before anything but an op or backward uses the history of a tensor. */
static inline lm_status lm_leave(void) {
  lm_follower *f = lm_follower_current();
  return f ? f->leave(f) : LM_OK;
}
/* Settles before a .grad is read or set, if a backward pass is among what it computes. */
static inline lm_status lm_settle_gradients(void) {
  lm_follower *f = lm_follower_current();
  return f && f->has_backward(f) ? f->settle(f) : LM_OK;
}
/* Sets t's history, of which it has none, to one that led to these leaves and whose saved tensors were freed; name: of
 * the op that made t; freed: of that whose tensors backward needs first. */
lm_status lm_set_freed_history(lm_tensor *t, const char *name, const char *freed, int n, lm_tensor *const *leaf);
/* Returns true if backward from t fails before it does anything else, since saved tensors were freed; then sets the
 * names. */
bool lm_has_freed_history(const lm_tensor *t, const char **name, const char **freed);
/* Returns true if t is a leaf that requires grad without hooks or a gradient buffer, so that backward does no more than
 * add to its .grad. */
bool lm_is_plain_leaf(const lm_tensor *t);

/* A backward pass that gets the leaves' gradients from elsewhere. lm_delivery_begin calls what hooks have to do before
 * a pass, lm_deliver_gradient adds g (taken over; NULL: none) to a leaf's .grad and runs its hooks, and
 * lm_delivery_end, which follows in any case, calls what hooks have left for the end. status: of what ran between;
 * returned if it is a failure. */
typedef struct lm_pass lm_pass;
lm_status lm_delivery_begin(int n, lm_tensor *const *leaf, lm_pass **out);
lm_status lm_deliver_gradient(lm_pass *r, const lm_tensor *leaf, lm_tensor *g);
lm_status lm_delivery_end(lm_pass *r, lm_status status);
