/* The world: all ranks of a job, one store, one watch over everybody's health.
 *
 * A world belongs to the thread that opened it (one Lua state: threads can be ranks too). It has one C thread that
 * keeps the connection to the store (heartbeats, failures) and takes incoming links from other ranks; rank 0 has
 * another that is the store. */
#pragma once

#include "distributed/group/backend.h"
#include "distributed/store/failure.h"

typedef struct lm_world lm_world;

typedef struct lm_world_config {
  /* "tcp://host:port": the store is there, rank 0 binds it. "file:///path": rank 0 takes a free port and writes it
   * there. "agent://host:port/key": rank 0 takes a free port and publishes it under `key` in torchrun's store at
   * host:port. "pmix://": ... and notifies the others by way of mpirun or srun. */
  const char *init_method;
  int rank, size;
  const char *job;          /* keeps ranks of other jobs out; NULL or "": the init_method's text */
  const char *token;        /* the job's secret, or NULL */
  int generation;           /* how many worlds this process opened before: a rank that is ahead of the store's waits */
  double timeout;           /* seconds, of rendezvous and collectives */
  double heartbeat_timeout; /* seconds; 0: off */
  bool offers_nccl;         /* where each rank has its own GPU, it may be the default of groups */
} lm_world_config;

/* Returns when all ranks have joined. A rank outside the world, or two ranks claiming one number, is an error. */
LM_API lm_status lm_world_open(const lm_world_config *config, lm_world **out);
/* Says goodbye and releases everything; groups must be closed before. In rank 0 the store lives on until the
 * others have left; the end of the process waits for that, 5 s at most. NULL is fine. */
LM_API void lm_world_close(lm_world *w);

/* This rank's place among those of its host (by rank); what local_rank is without a launcher. */
LM_API int lm_world_local_rank(const lm_world *w);
const char *lm_world_host(const lm_world *w, int rank);

/* What new groups are of by default, the same on all ranks: "cpu:gloo,cuda:nccl" if every rank can have a GPU of its
 * own and nccl, else "gloo". */
LM_API lm_status lm_world_backend(const lm_world *w, const char **out);

/* Every rank of the world calls it, in the same order, with the same ranks (in the world, ascending). *out is NULL on
 * a rank that is not among them. timeout <= 0: the world's. backend: "gloo", … or a plug-in's name, for tensors of all
 * devices; or one for each device: "cpu:gloo,cuda:nccl". */
LM_API lm_status lm_group_new(lm_world *w, const char *backend, int n, const int *ranks, double timeout,
                              lm_group **out);
LM_API void lm_group_close(lm_group *g); /* NULL is fine */
LM_API const char *lm_group_backend(const lm_group *g);
enum { LM_GROUP_TEXT = 256 };
/* Whether a group can have that backend, and how lm_group_backend writes it. Loads plug-ins; the error names what there
 * is. */
LM_API lm_status lm_group_backend_check(const char *backend, char text[LM_GROUP_TEXT]);
/* The group of one process, without a world. */
LM_API lm_status lm_group_solo(lm_group **out);
/* The table of a backend by name, loading its plug-in if need be; the error names what there is. */
LM_API lm_status lm_group_table_find(const char *backend, const lm_group_table **out);

/* ---- health: this rank's side */

/* Tell all ranks that this one failed: `where` is the script's line, `message` what went wrong. Waits (0.5 s at most)
 * until the store has it. Does nothing if a cause is known already. */
LM_API void lm_world_fail(lm_world *w, const char *where, const char *message);
/* The cause, once known: the first failure of the job. False while all is well. */
LM_API bool lm_world_cause(lm_world *w, lm_failure *out);
/* LM_E_STATE worded with the cause, if there is one. For calls that wait for nobody (the start of each dist or DDP
 * call). */
LM_API lm_status lm_world_check(lm_world *w);

/* The script's line of the calls that follow on this thread ("train.lua:40"); the binding says it. Copied; of a
 * long one the end. */
LM_API void lm_set_where(const char *where);
LM_API const char *lm_where(void);
