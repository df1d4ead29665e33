/* What gloo lacks: reduce_scatter, as lm_shim_* are. */
#pragma once

#include "distributed/gloo/gloo_collectives.h"

/* out: this rank's part of the reduction, n elements; in: a part a rank. Needs memory for one part more, for two if out
 * shares memory with in. */
lm_status lm_ring_reduce_scatter(lm_transport *e, int rank, int size, void *out, char *const *in, size_t n,
                                 const lm_fold *fold);
