#include "distributed/mpi/rank_mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/mpi/runtime.h"

static int number(const char *name) {
  const char *text = getenv(name);
  char *end;
  long value = text && *text ? strtol(text, &end, 10) : -1;
  return value < 0 || value > 1 << 28 || *end ? -1 : (int)value;
}

/* Returns this process's rank from the launcher's variables (mpirun, or srun with PMIx), as MPI_Init will see it. */
static lm_mpi_rank_place read_own_rank(void) {
  lm_mpi_rank_place p = {.begun = lm_mpi_has_begun()};
  const char *job = getenv("PMIX_NAMESPACE");
  int rank = number("OMPI_COMM_WORLD_RANK"), size = number("OMPI_COMM_WORLD_SIZE");
  if (rank < 0) {
    rank = number("PMIX_RANK");
    size = number("SLURM_STEP_NUM_TASKS");
  }
  if (rank >= 0 && rank < size) p.rank = rank, p.size = size;
  snprintf(p.job, sizeof p.job, "%s", job ? job : "");
  return p;
}

static lm_status check_one(const lm_group *g, int r, const lm_mpi_rank_place *p) {
  if (p->size == 0)
    return lm_fail(LM_E_STATE,
                   "backend mpi: %s was not started by mpirun; start the ranks with `luminary run --backend mpi "
                   "--nproc %d SCRIPT` or mpirun -np %d, or use backend gloo",
                   lm_group_peer_name(g, r), g->size, g->size);
  if (p->size < g->size)
    return lm_fail(LM_E_STATE,
                   "backend mpi: mpirun started %d process%s with %s, fewer than the %d ranks of the group; start all "
                   "of them with one mpirun: mpirun -np %d",
                   p->size, p->size == 1 ? "" : "es", lm_group_peer_name(g, r), g->size, g->size);
  if (!p->begun && p->size != g->size)
    return lm_fail(LM_E_STATE,
                   "backend mpi: the first group must have all %d processes that mpirun started, got %d: MPI is "
                   "initialized once, in all of them",
                   p->size, g->size);
  return LM_OK;
}

static lm_status check_two(const lm_group *g, int a, int b, const lm_mpi_rank_place *p) {
  if (strcmp(p[a].job, p[b].job) != 0)
    return lm_fail(LM_E_STATE,
                   "backend mpi: %s and %s were started by different mpiruns, which MPI cannot join; start all ranks "
                   "with one, or use backend gloo",
                   lm_group_peer_name(g, a), lm_group_peer_name(g, b));
  return lm_fail(LM_E_STATE,
                 "backend mpi: %s and %s are one process for MPI (threads, or children of a rank that mpirun started); "
                 "start each rank with mpirun, or use backend gloo",
                 lm_group_peer_name(g, a), lm_group_peer_name(g, b));
}

/* Checks that MPI can form the group; same result on all ranks, since they check the same table. */
static lm_status place_check(const lm_group *g, const lm_mpi_rank_place *p) {
  LM_FREED int *who = NULL; /* [MPI's size] the member at each MPI rank, or -1 */
  for (int r = 0; r < g->size; r++) NEED(check_one(g, r, &p[r]));
  for (int r = 1; r < g->size; r++)
    if (strcmp(p[r].job, p[0].job) != 0) NEED(check_two(g, 0, r, p));
  who = lm_malloc((size_t)p[0].size * sizeof *who);
  if (!who) return LM_E_OOM;
  for (int i = 0; i < p[0].size; i++) who[i] = -1;
  for (int r = 0; r < g->size; r++) {
    if (p[r].rank >= p[0].size)
      return lm_fail(LM_E_STATE, "backend mpi: mpirun started a different number of processes for some ranks");
    if (who[p[r].rank] >= 0) NEED(check_two(g, who[p[r].rank], r, p));
    who[p[r].rank] = r;
  }
  return LM_OK;
}

/* Fills in the table on all ranks: the first member gathers the entries and publishes it. */
static lm_status place_exchange(lm_group *g, lm_mpi_rank_place *positions) {
  size_t all = (size_t)g->size * sizeof *positions;
  char key[32];
  positions[g->rank] = read_own_rank();
  if (g->size == 1) return LM_OK;
  if (g->rank > 0) {
    snprintf(key, sizeof key, "place/%d", g->rank);
    NEED(lm_group_set(g, key, &positions[g->rank], sizeof *positions));
    NEED(lm_group_read(g, "positions", positions, all));
    return LM_OK;
  }
  for (int r = 1; r < g->size; r++) {
    snprintf(key, sizeof key, "place/%d", r);
    NEED(lm_group_read(g, key, &positions[r], sizeof *positions));
    positions[r].job[sizeof positions[r].job - 1] = 0;
  }
  return lm_group_set(g, "positions", positions, all);
}

lm_status lm_mpi_rank_mapping(lm_group *g, lm_mpi_rank_place **out) {
  lm_status status;
  lm_mpi_rank_place *positions = lm_calloc((size_t)g->size, sizeof *positions);
  *out = NULL;
  if (!positions) return LM_E_OOM;
  TRY(place_exchange(g, positions));
  TRY(place_check(g, positions));
  *out = positions;
  return LM_OK;
done:
  lm_free(positions);
  return lm_group_failed(g) ? status : lm_fail_in(status, "new_group");
}
