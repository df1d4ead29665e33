/* gloo's algorithms, run over the engine. No exception leaves these functions: what goes wrong is a status with its
 * message, that of the engine if it was the engine's.
 *
 * Ranks are the group's; a `char *const *` has an entry a rank. Also read by C++. */
#pragma once

#include "distributed/gloo/message_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lm_shim lm_shim;

/* How to reduce: lm_reduce_into, for one dtype and operation. */
typedef struct lm_fold {
  size_t element; /* bytes: 1, 2, 4 or 8 */
  int dtype, op;
  void (*into)(const struct lm_fold *fold, void *out, const void *a, const void *b, size_t n);
} lm_fold;

lm_status lm_shim_open(lm_transport *e, int rank, int size, lm_shim **out);
void lm_shim_close(lm_shim *s); /* before the engine; NULL is fine */

/* Collectives, each between lm_transport_begin and lm_transport_end. */

lm_status lm_shim_all_reduce(lm_shim *s, void *data, size_t n, const lm_fold *fold);
lm_status lm_shim_reduce(lm_shim *s, const void *in, void *out, size_t n, const lm_fold *fold, int root);
lm_status lm_shim_broadcast(lm_shim *s, void *data, size_t bytes, int root);
lm_status lm_shim_all_gather(lm_shim *s, char *const *out, size_t bytes); /* this rank's entry is filled already */
lm_status lm_shim_gather(lm_shim *s, const void *in, char *const *out, size_t bytes, int root);
lm_status lm_shim_scatter(lm_shim *s, void *out, char *const *in, size_t bytes, int root);
lm_status lm_shim_all_to_all(lm_shim *s, char *const *in, const size_t *in_bytes, char *const *out,
                             const size_t *out_bytes);
lm_status lm_shim_barrier(lm_shim *s);

#ifdef __cplusplus
}
#endif
