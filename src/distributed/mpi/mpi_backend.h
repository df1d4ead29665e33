/* Declares the state and functions shared by the files of the backend "mpi". */
#pragma once

#include "distributed/mpi/runtime.h"

typedef struct lm_mpi_messages lm_mpi_messages; /* sends and receives */

typedef struct lm_mpi_state {
  lm_mpi_open open;
  MPI_Comm calls;    /* collectives; tag 0: their rounds, tags from 1: data of sends and receives */
  MPI_Comm messages; /* announcements of sends, under the script's tags */
  lm_mpi_messages *posted;
  uint64_t meeting[2]; /* hash of the ticket and its complement, which ranks compare before a call */
  uint64_t *sizes;     /* [2 * size] of all_to_all; NULL before the first */
  char *scratch;       /* [2 * LM_MPI_PIECE] of ring reductions; NULL before the first */
  MPI_Request *rounds; /* [2 * size] */
} lm_mpi_state;

/* Most bytes of one message, so that counts fit into an int and reduced data stays in the cache. */
enum { LM_MPI_PIECE = 1 << 20 };

/* Returns the seconds of busy waiting for `bytes` in transit: MPI moves data only while it is called. */
double lm_mpi_spin(size_t bytes);

/* ---- ring_collectives.c: rounds in which each rank sends to the next one and receives from the one before. */

typedef struct lm_mpi_blocks {
  char *const *data; /* [size] */
  const size_t *n;   /* [size] elements */
} lm_mpi_blocks;

/* Reduces all ranks' blocks in.data[g->rank] into out, which may be this rank's own block; `in` is only read. */
lm_status lm_mpi_ring_reduce(lm_group *g, lm_dtype dtype, lm_reduce_op op, lm_mpi_blocks in, char *out);
/* Receives all other ranks' blocks, where blocks.data[g->rank] is this rank's own. */
lm_status lm_mpi_ring_gather(lm_group *g, lm_dtype dtype, lm_mpi_blocks blocks);
/* Sends bytes[r] bytes of from[r] to rank r and receives bytes[size + r] from it into to[r]; copies its own entry. */
lm_status lm_mpi_exchange(lm_group *g, char *const *from, char *const *to, const size_t *bytes);

/* ---- messages.c */

lm_status lm_mpi_messages_open(lm_group *g, lm_mpi_messages **out);
void lm_mpi_messages_close(lm_mpi_messages *m);
lm_status lm_mpi_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out);
lm_status lm_mpi_finish(lm_group *g, lm_request *r, bool wait, bool *done, int *peer);
void lm_mpi_forget(lm_group *g, lm_request *r);

/* Returns the plug-in's table. */
LM_API const lm_group_table *lm_group_plugin(void);
