/* MPI itself, of which a process has one: begun by the first group, ended with the process. Private to
 * distributed/mpi/.
 *
 * Two rules keep ranks from hanging for each other's sake. Calls of MPI's that block run on a thread of their own,
 * which is left behind when the job fails meanwhile. And once a call was abandoned MPI is lost: it is not called again,
 * so that what was under way stays as it is, and not finalized. Memory that it was given is then never freed. */
#pragma once

#include <mpi.h>

#include "distributed/group/backend.h"

/* A call that blocks. On the heap, since it is not taken back when it is left behind. */
typedef struct lm_mpi_job lm_mpi_job;
struct lm_mpi_job {
  int (*run)(lm_mpi_job *job); /* returns MPI's return code */
  int code;
  _Atomic bool done;
  lm_mpi_job *next;
};

/* Whether MPI has begun in this process. */
bool lm_mpi_has_begun(void);
/* Begins it, if it has not: this process has to become `rank` of `size`. */
lm_status lm_mpi_begin(lm_group *g, int rank, int size);
/* Runs a job and waits for it under lm_group_check. If that fails the job is not the caller's any more. */
lm_status lm_mpi_run(lm_group *g, lm_mpi_job *job);

/* Around every other call of MPI's: false if it must not be called any more. */
bool lm_mpi_enter(void);
lm_status lm_mpi_refused(lm_group *g); /* the error then */
void lm_mpi_leave(void);
/* A call that does not block, as a status. */
#define LM_MPI(g, call) (lm_mpi_enter() ? lm_mpi_did(g, call) : lm_mpi_refused(g))
lm_status lm_mpi_did(lm_group *g, int code); /* leaves */
/* Abandons the calls under way. */
void lm_mpi_give_up(void);
bool lm_mpi_is_lost(void);

/* The error that MPI's code stands for, or its cause if one becomes known within a second. MPI is lost. */
lm_status lm_mpi_failed(lm_group *g, int code);

/* Between two looks at what this rank waits for since `since` (lm_seconds()): lets others run for the first `spin`
 * seconds, then sleeps for a part of the time it has waited. */
void lm_mpi_rest(const lm_group *g, double since, double spin);
/* Until all n requests are done, under lm_group_check. After a failure MPI is lost. */
lm_status lm_mpi_wait(lm_group *g, int n, MPI_Request *requests, double spin);

/* Open groups, so that the end of the process can see how they are. */
typedef struct lm_mpi_open {
  lm_group *g;
  struct lm_mpi_open *next;
} lm_mpi_open;
void lm_mpi_opened(lm_mpi_open *open);
void lm_mpi_closed(lm_mpi_open *open);

/* lm_reduce_into as MPI takes it; made when MPI begins. */
MPI_Datatype lm_mpi_type(lm_dtype dtype);
MPI_Op lm_mpi_op(lm_reduce_op op);
int lm_mpi_max_tag(void);
