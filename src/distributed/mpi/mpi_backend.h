/* What the parts of the group "mpi" share. */
#pragma once

#include "distributed/mpi/runtime.h"

typedef struct lm_mpi_messages lm_mpi_messages; /* sends and receives */

typedef struct lm_mpi_state {
  lm_mpi_open open;
  MPI_Comm calls;    /* collectives; in tag 0 their rounds, in the tags from 1 what messages carry */
  MPI_Comm messages; /* what announces messages, in the tags of the script */
  lm_mpi_messages *posted;
  uint64_t meeting[2]; /* what ranks compare before a call */
  uint64_t *sizes;     /* [2 * size] of all_to_all; NULL before the first */
  char *scratch;       /* [2 * LM_MPI_PIECE] of the ring; NULL before the first */
  MPI_Request *rounds; /* [2 * size] */
} lm_mpi_state;

/* Bytes that move in one round, so that counts fit into an int, and what is reduced stays in the cache. */
enum { LM_MPI_PIECE = 1 << 20 };

/* How long to wait busily for `bytes` that are on their way: MPI moves them only while it is called. */
double lm_mpi_spin(size_t bytes);

/* ---- ring_collectives.c: rounds in which each rank sends to the next one and receives from the one before. */

typedef struct lm_mpi_blocks {
  char *const *data; /* [size] */
  const size_t *n;   /* [size] elements */
} lm_mpi_blocks;

/* out = the reduction of all ranks' in.data[rank]; `in` is only read. out may be in.data[rank]. */
lm_status lm_mpi_ring_reduce(lm_group *g, lm_dtype dtype, lm_reduce_op op, lm_mpi_blocks in, char *out);
/* Every rank gets the others' blocks beside its own. */
lm_status lm_mpi_ring_gather(lm_group *g, lm_dtype dtype, lm_mpi_blocks blocks);
/* bytes[r] of from[r] to rank r, and from rank r bytes[size + r] to to[r]. Entries of this rank itself are copied. */
lm_status lm_mpi_exchange(lm_group *g, char *const *from, char *const *to, const size_t *bytes);

/* ---- messages.c */

lm_status lm_mpi_messages_open(lm_group *g, lm_mpi_messages **out);
void lm_mpi_messages_close(lm_mpi_messages *m);
lm_status lm_mpi_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out);
lm_status lm_mpi_finish(lm_group *g, lm_request *r, bool wait, bool *done, int *peer);
void lm_mpi_forget(lm_group *g, lm_request *r);

/* The plug-in's table. */
LM_API const lm_group_table *lm_group_plugin(void);
