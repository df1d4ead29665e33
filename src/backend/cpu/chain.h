/* Defers elementwise ops for pointwise.c (op/elementwise_chain.h). */
#pragma once

#include "backend/cpu/isa/pointwise.h"
#include "op/elementwise_chain.h"

/* Returns true if the job, computed in `compute`, was deferred, which only happens if it `may` be. Otherwise the
 * deferred ops that its inputs depend on have been run. */
bool lm_chain_put(const lm_pointwise *job, lm_dtype compute, bool may);
