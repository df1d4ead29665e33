/* Maps a group's members to ranks of MPI. Private to distributed/mpi/. */
#pragma once

#include "distributed/group/backend.h"

typedef struct lm_mpi_rank_place {
  int32_t rank, size; /* rank among all processes that mpirun started; size 0: it did not start this one */
  int32_t begun;      /* 1 if MPI is already initialized in this process */
  char job[84];       /* the name of mpirun's job */
} lm_mpi_rank_place;

/* Exchanges the MPI ranks of all members, waiting for them, and fails if MPI cannot form the group. The caller frees
 * positions[g->size] with lm_free. */
lm_status lm_mpi_rank_mapping(lm_group *g, lm_mpi_rank_place **positions);
