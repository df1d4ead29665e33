/* Runs several processes under one parent, the launcher. It reports everything that happens to them as one stream of
 * events, and leaves nothing of them behind. It adopts the orphans of its processes, and a guard process kills their
 * groups if the launcher itself is killed.
 *
 * A process has at most one supervisor, on its main thread: it takes over SIGINT, SIGTERM, SIGHUP (unless ignored) and
 * SIGCHLD, and reaps every child. */
#pragma once

#include <stddef.h>

#include "mp/process.h"

typedef struct lm_supervisor lm_supervisor;

typedef enum lm_supervisor_event_kind {
  LM_SUPERVISOR_NONE,   /* nothing within the time limit */
  LM_SUPERVISOR_OUTPUT, /* id, stream, text, n; n = 0: end of the stream */
  LM_SUPERVISOR_ENDED,  /* id, code, signal; usually follows all of its output */
  LM_SUPERVISOR_SIGNAL, /* signal: this process received it */
  LM_SUPERVISOR_CLOSED, /* stream: this process's own output has no reader any more */
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
/* Kills all remaining processes and restores the signals. NULL is fine. */
LM_API void lm_supervisor_free(lm_supervisor *s);

/* Starts a process in a new session with pipes for its output. input: it reads this process's standard input, else
 * /dev/null. *id counts from 1 and is never reused. */
LM_API lm_status lm_supervisor_start(lm_supervisor *s, const char *const *argv, char *const *env, bool input, int *id,
                                     pid_t *pid);
/* Waits for the next event, at most `seconds` (< 0: no limit). Meanwhile prints the text of lm_supervisor_print. While
 * too much of it waits for a slow reader, does not read the processes' output. */
LM_API lm_status lm_supervisor_next(lm_supervisor *s, double seconds, lm_supervisor_event *out);
/* Sets a descriptor of another owner to wait for as well; -1: none. */
LM_API void lm_supervisor_watch(lm_supervisor *s, int fd);
/* Signals a process and its group; SIGTERM only the process, which may need its workers to save its state. Does nothing
 * once it has ended. */
LM_API void lm_supervisor_signal(lm_supervisor *s, int id, int signal);
/* Queues text for this process's standard output (1) or error (2). Never waits. */
LM_API lm_status lm_supervisor_print(lm_supervisor *s, int stream, const char *text, size_t n);
/* Prints what can be written without waiting; true if nothing is left, the reader is gone, or the disk is full. */
LM_API bool lm_supervisor_printed(lm_supervisor *s);
/* Kills all descendants of this process except those that existed before the supervisor, in whatever group or session.
 * *left: the number still alive after `seconds`. */
LM_API void lm_supervisor_sweep(lm_supervisor *s, double seconds, int *left);

/* Creates an unnamed file, gone with this process; returns a path for any process of this user. */
LM_API lm_status lm_supervisor_file(lm_supervisor *s, char *path, size_t capacity);
/* Reserves a free TCP port, on which a server may listen, until the supervisor is freed. */
LM_API lm_status lm_supervisor_port(lm_supervisor *s, int *port);
