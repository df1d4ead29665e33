/* What pointwise.c asks of a chain (backend/known/elementwise_chain.h). */
#pragma once

#include <stdatomic.h>

#include "backend/cpu/isa/pointwise.h"
#include "backend/known/elementwise_chain.h"

extern _Atomic int lm_chains; /* that there are in the process */

/* Whether the job was put off, which only happens if it `may` be. If not, its inputs have their values now. Its kernel
 * would compute in `compute`. */
bool lm_chain_put(const lm_pointwise *job, lm_dtype compute, bool may);
