/* Defers elementwise ops of a plan, and a matrix product before them, and computes them together, tile by tile in
 * cache: backend/cpu/chain.c. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"

typedef struct lm_chain lm_chain;

lm_status lm_chain_new(lm_chain **out); /* lm_free frees it */
/* Defers this thread's elementwise ops and matrix products, where that pays, until lm_chain_end. Their results have
 * memory, but no values before that. Meanwhile only elementwise ops that are deferred too may write to their inputs,
 * and only ops may read them. */
void lm_chain_begin(lm_chain *c);
/* Computes deferred results that somebody other than the chain holds, and ends deferring. Only a product can fail. */
lm_status lm_chain_end(lm_chain *c);
/* Computes deferred ops before an op that is not elementwise runs, as a part of an elementwise one may be. Internal. */
extern _Atomic int lm_chains; /* number of threads that defer */
void lm_chain_settle_here(void);
static inline void lm_chain_before_op(void) {
  if (__builtin_expect(atomic_load_explicit(&lm_chains, memory_order_relaxed) > 0, 0)) lm_chain_settle_here();
}
