/* Declares the state and functions shared by the files of the backend "mpi". */
#pragma once

#include "distributed/group/host_collectives.h"
#include "distributed/mpi/runtime.h"

typedef struct lm_mpi_messages lm_mpi_messages; /* sends and receives */

typedef struct lm_mpi_state {
  MPI_Comm calls;    /* collectives, by their lanes; tags from LM_HOST_LANES: data of sends and receives */
  MPI_Comm messages; /* announcements of sends, under the script's tags */
  lm_mpi_messages *posted;
  lm_host *host;
  uint64_t meeting[2]; /* hash of the ticket and its complement, which ranks compare before a call */
  uint64_t *sizes;     /* [2 * size] of all_to_all; NULL before the first */
} lm_mpi_state;

/* Most bytes of one message, so that counts fit into an int. */
enum { LM_MPI_PIECE = 1 << 20 };

/* ---- messages.c */

extern const lm_host_messages lm_mpi_host_messages;
lm_status lm_mpi_messages_open(lm_group *g, lm_mpi_messages **out);
void lm_mpi_messages_close(lm_mpi_messages *m);
lm_status lm_mpi_post(lm_group *g, bool sending, lm_tensor *t, int peer, int tag, lm_request **out);
lm_status lm_mpi_finish(lm_group *g, lm_request *r, bool wait, bool *done, int *peer);
void lm_mpi_forget(lm_group *g, lm_request *r);

/* Returns the plug-in's table. */
LM_API const lm_group_table *lm_group_plugin(void);
