/* Initializes MPI with the first group, calls it, and finalizes it at the end of the process. Private to
 * distributed/mpi/.
 *
 * Two rules keep ranks from hanging on each other. MPI functions that block run on a thread of their own, which is
 * abandoned when the job fails meanwhile. Once a call was abandoned, MPI is lost: it is neither called again nor
 * finalized, and memory that it may still access is never freed. */
#pragma once

#include <mpi.h>

#include "distributed/group/backend.h"

/* A blocking MPI call; on the heap, since an abandoned one is never freed. */
typedef struct lm_mpi_job lm_mpi_job;
struct lm_mpi_job {
  int (*run)(lm_mpi_job *job); /* returns MPI's return code */
  int code;
  _Atomic bool done;
  lm_mpi_job *next;
};

/* Returns true if MPI is initialized in this process. */
bool lm_mpi_has_begun(void);
/* Initializes MPI once; fails if this process is not `rank` of `size` then. */
lm_status lm_mpi_begin(lm_group *g, int rank, int size);
/* Runs a job on MPI's thread and waits for it under lm_group_check. On error the caller must not touch or free it. */
lm_status lm_mpi_run(lm_group *g, lm_mpi_job *job);

/* Begins every other MPI call; false if MPI is lost or ended and must not be called. */
bool lm_mpi_enter(void);
lm_status lm_mpi_fail_refused(lm_group *g); /* returns the error for false */
void lm_mpi_leave(void);
/* Runs an MPI call that does not block and returns its status. */
#define LM_MPI(g, call) (lm_mpi_enter() ? lm_mpi_did(g, call) : lm_mpi_fail_refused(g))
lm_status lm_mpi_did(lm_group *g, int code); /* leaves, and returns the code's status */
/* Abandons the calls in progress: MPI is lost. */
void lm_mpi_give_up(void);
bool lm_mpi_is_lost(void);

/* Returns the error for an MPI code, or its cause if one becomes known within a second. MPI is lost then. */
lm_status lm_mpi_fail(lm_group *g, int code);

/* Pauses between two tests of a waiting loop that started at `since` (lm_seconds()): yields during the first `spin`
 * seconds, then sleeps for a fraction of the time waited. */
void lm_mpi_rest(const lm_group *g, double since, double spin);
/* Waits until all n requests are done, under lm_group_check. After a failure MPI is lost. */
lm_status lm_mpi_wait(lm_group *g, int n, MPI_Request *requests, double spin);

int lm_mpi_max_tag(void); /* the largest tag that this MPI allows */
