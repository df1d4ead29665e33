/* Several processes under one parent that lives for them alone: the launcher. It sees all that happens to them as one
 * stream of events, and leaves nothing of them behind: processes that they started come to it when they are orphaned,
 * and a guard kills their groups should it be killed itself.
 *
 * One at a time in a process, on its main thread: it takes over SIGINT, SIGTERM, SIGHUP (unless ignored) and SIGCHLD,
 * and reaps every child. */
#pragma once

#include <stddef.h>

#include "mp/process.h"

typedef struct lm_supervisor lm_supervisor;

typedef enum lm_supervisor_event_kind {
  LM_SUPERVISOR_NONE,   /* nothing within the time */
  LM_SUPERVISOR_OUTPUT, /* id, stream, text, n; n 0: the end of the stream */
  LM_SUPERVISOR_ENDED,  /* id, code, signal; what it wrote until then came before, as a rule */
  LM_SUPERVISOR_SIGNAL, /* signal: one came for this process */
  LM_SUPERVISOR_CLOSED, /* stream: nobody reads this process's own output any more */
  LM_SUPERVISOR_READY,  /* the watched descriptor is readable */
} lm_supervisor_event_kind;

typedef struct lm_supervisor_event {
  lm_supervisor_event_kind kind;
  int id, stream; /* stream: 1 or 2 */
  int code, signal;
  const char *text; /* valid until the next call */
  size_t n;
} lm_supervisor_event;

LM_API lm_status lm_supervisor_new(lm_supervisor **out);
/* Kills and sweeps what is left, restores the signals. NULL is fine. */
LM_API void lm_supervisor_free(lm_supervisor *s);

/* Starts a process in a session of its own with pipes for its output. input: it reads this process's standard input,
 * else /dev/null. *id counts from 1, and is never used again. */
LM_API lm_status lm_supervisor_start(lm_supervisor *s, const char *const *argv, char *const *env, bool input, int *id,
                                     pid_t *pid);
/* The next event; waits for `seconds` at most (< 0: as long as it takes). Meanwhile prints what lm_supervisor_print was
 * given; while too much of that waits for a slow reader, the processes' output is left where it is. */
LM_API lm_status lm_supervisor_next(lm_supervisor *s, double seconds, lm_supervisor_event *out);
/* A descriptor of another owner to wait for as well; -1: none. */
LM_API void lm_supervisor_watch(lm_supervisor *s, int fd);
/* To a process and its group; SIGTERM to the process alone, which may need its workers to save its state. Nothing
 * happens once it has ended. */
LM_API void lm_supervisor_signal(lm_supervisor *s, int id, int signal);
/* Text for this process's standard output (1) or error (2). Never waits. */
LM_API lm_status lm_supervisor_print(lm_supervisor *s, int stream, const char *text, size_t n);
/* Prints what goes without waiting; whether that was all, or its reader is gone, or its disk is full. */
LM_API bool lm_supervisor_printed(lm_supervisor *s);
/* Kills all descendants of this process but those that were there before the supervisor, whatever group or session they
 * went to. *left: how many have not ended after `seconds`. */
LM_API void lm_supervisor_sweep(lm_supervisor *s, double seconds, int *left);

/* A file without a name, gone with this process: its path for any process of this user. */
LM_API lm_status lm_supervisor_file(lm_supervisor *s, char *path, size_t capacity);
/* A free TCP port that nobody else is given; a server may listen there. It stays so until the supervisor is freed. */
LM_API lm_status lm_supervisor_port(lm_supervisor *s, int *port);
