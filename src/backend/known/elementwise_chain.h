/* Elementwise ops that are put off, and then computed together, tile by tile in cache: backend/cpu/chain.c. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

struct lm_tensor;
typedef struct lm_chain lm_chain;

LM_API lm_status lm_chain_new(lm_chain **out);
/* What is still put off is never computed. */
LM_API void lm_chain_free(lm_chain *c);
/* From here to lm_chain_decline this thread's elementwise ops are put off where that pays. Their results have memory,
 * but no values before lm_chain_run. Meanwhile nobody may write to their inputs. */
LM_API void lm_chain_accept(lm_chain *c);
/* Whether the last op since lm_chain_accept was put off. */
LM_API bool lm_chain_decline(lm_chain *c);
/* Computes what was put off and somebody other than the chain holds. It cannot fail. */
LM_API void lm_chain_run(lm_chain *c);
/* How many ops are put off; at most LM_CHAIN_LINKS. */
enum { LM_CHAIN_LINKS = 24 };
LM_API int lm_chain_length(const lm_chain *c);
