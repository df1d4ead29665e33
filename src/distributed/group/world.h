/* Opens the world, all ranks of a job with one store, creates process groups in it, and reports failures to all ranks.
 *
 * A world belongs to the thread that opened it (one Lua state; threads can be ranks too). One C thread keeps the
 * connection to the store (heartbeats, failures) and accepts links from other ranks; on rank 0 another is the store. */
#pragma once

#include "distributed/group/backend.h"
#include "distributed/store/failure.h"

typedef struct lm_world lm_world;

enum { LM_DEFAULT_TIMEOUT = 1800 /* seconds; init_process_group in lua/luminary/distributed/init.lua repeats it */ };

typedef struct lm_world_config {
  /* "tcp://host:port": rank 0 binds the store to that address. Otherwise rank 0 takes a free port and publishes it:
   * "file:///path" in that file, "agent://host:port/key" under `key` in torchrun's store at host:port, "pmix://"
   * through mpirun or srun. */
  const char *init_method;
  int rank, size;
  const char *job;          /* name that keeps ranks of other jobs out; NULL or "": the init_method's text */
  const char *token;        /* the job's secret, or NULL */
  int generation;           /* number of worlds this process opened before; a rank ahead of the store's waits */
  double timeout;           /* seconds, for rendezvous and collectives */
  double heartbeat_timeout; /* seconds; 0: off */
  bool offers_nccl;         /* true if nccl may be a default backend, should each rank have its own GPU */
} lm_world_config;

/* Opens a world, and returns when all ranks have joined. Fails if a rank is outside the world or claimed twice. */
LM_API lm_status lm_world_open(const lm_world_config *config, lm_world **out);
/* Says goodbye and frees everything; groups must be closed before. On rank 0 the store lives until the other ranks have
 * left; the end of the process waits for that, at most 5 s. w may be NULL. */
LM_API void lm_world_close(lm_world *w);

/* Returns this rank's index, from 0, among the ranks of its host: local_rank without a launcher. */
LM_API int lm_world_local_rank(const lm_world *w);
const char *lm_world_host(const lm_world *w, int rank);

/* Returns in *out the default backend of new groups, the same on all ranks: "cpu:gloo,cuda:nccl" if every rank can have
 * its own GPU and nccl, else "gloo". */
LM_API lm_status lm_world_backend(const lm_world *w, const char **out);

/* Creates a group. Every rank of the world calls it, in the same order, with the same ranks (in the world, ascending).
 * *out is NULL on other ranks. timeout in seconds, <= 0: the world's. backend: "gloo" or a plug-in's name, for tensors
 * of all devices; or one for each device: "cpu:gloo,cuda:nccl". */
LM_API lm_status lm_group_new(lm_world *w, const char *backend, int n, const int *ranks, double timeout,
                              lm_group **out);
LM_API void lm_group_close(lm_group *g); /* g may be NULL */
enum { LM_GROUP_TEXT = 256 };
/* Checks that a group can have that backend, and writes its normalized text. Loads plug-ins; the error lists the
 * available backends. */
LM_API lm_status lm_group_backend_check(const char *backend, char text[LM_GROUP_TEXT]);
/* Creates a group of one process, without a world. */
LM_API lm_status lm_group_solo(lm_group **out);
/* Returns a backend's table by name and loads its plug-in if necessary; the error lists the available backends. */
LM_API lm_status lm_group_table_find(const char *backend, const lm_group_table **out);

/* ---- health: this rank's side */

/* Reports to all ranks that this one failed, at the script's line `where`, with `message`. Waits until the store has
 * it, at most 0.5 s. Does nothing if a cause is known already. */
LM_API void lm_world_fail(lm_world *w, const char *where, const char *message);
/* Copies the cause, the job's first failure, to *out; false if there is none. */
LM_API bool lm_world_cause(lm_world *w, lm_failure *out);
/* Fails with LM_E_STATE and the cause in the message if there is one. For code that does not wait for other ranks (the
 * start of each dist or DDP call). */
LM_API lm_status lm_world_check(lm_world *w);

/* Sets the script's line ("train.lua:40") of this thread's later calls; the binding calls it. Copies the text, of a
 * long one its end. */
LM_API void lm_set_where(const char *where);
const char *lm_where(void);
