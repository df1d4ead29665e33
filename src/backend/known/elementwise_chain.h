/* Defers elementwise ops, and computes them together, tile by tile in cache: backend/cpu/chain.c. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"

struct lm_tensor;
typedef struct lm_chain lm_chain;

LM_API lm_status lm_chain_new(lm_chain **out);
/* Frees a chain; ops that are still deferred are never computed. */
LM_API void lm_chain_free(lm_chain *c);
/* Defers this thread's elementwise ops, where that pays, until lm_chain_decline. Their results have memory, but no
 * values before lm_chain_run. Meanwhile nobody may write to their inputs. */
LM_API void lm_chain_accept(lm_chain *c);
/* Ends deferring. Returns true if the last op since lm_chain_accept was deferred. */
LM_API bool lm_chain_decline(lm_chain *c);
/* Computes deferred results that somebody other than the chain holds. It cannot fail. */
LM_API void lm_chain_run(lm_chain *c);
/* Computes deferred ops before an op that is not elementwise runs; the op may itself consist of elementwise ones.
 * Internal. */
extern _Atomic int lm_chains; /* number of chains in the process */
void lm_chain_settle_here(void);
static inline void lm_chain_before_op(void) {
  if (__builtin_expect(atomic_load_explicit(&lm_chains, memory_order_relaxed) > 0, 0)) lm_chain_settle_here();
}
/* Returns the number of deferred ops, at most LM_CHAIN_LINKS. */
enum { LM_CHAIN_LINKS = 24 };
LM_API int lm_chain_length(const lm_chain *c);
