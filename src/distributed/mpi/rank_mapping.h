/* Which rank of MPI's each member of a group is. Private to distributed/mpi/. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_mpi_rank_place {
  int32_t rank, size; /* of all processes that mpirun started; size 0: it did not start this one */
  int32_t begun;      /* MPI runs in this process already */
  char job[84];       /* the name of mpirun's job */
} lm_mpi_rank_place;

/* Exchanges the ranks in MPI of all members, which waits for all of them, and refuses what MPI cannot do. The caller
 * frees positions[g->size] with lm_free. */
lm_status lm_mpi_rank_mapping(lm_group *g, lm_mpi_rank_place **positions);
