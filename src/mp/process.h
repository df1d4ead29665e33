/* A child process, always by exec: started clean, waited for with a timeout, and gone when its parent is.
 *
 * The child starts with default signal handlers and an empty mask, with no descriptor but the four below, and dies
 * (SIGKILL) when the thread that started it ends, however that happens. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct lm_process_plan {
  const char *const *argv; /* argv[0] is the program's path; closed by NULL */
  char *const *env;        /* "NAME=value", closed by NULL; NULL: this process's (see lm_process_env) */
  int in, out, err; /* what becomes its 0, 1, 2; stay yours. -1: /dev/null for in, this process's own for the others.
                       This process's own becomes /dev/null in the child if it is closed here */
  int extra;        /* becomes its 3; stays yours. -1: none */
  bool session;     /* a session and a process group of its own: the terminal's Ctrl-C does not reach it, and
                       lm_process_signal reaches its children too */
  bool outlives;    /* not killed with its parent */
} lm_process_plan;

typedef struct lm_process {
  pid_t pid; /* 0: none */
  int pidfd; /* for poll: readable once it has ended. -1 where the system has none */
  bool session;
  bool ended; /* and reaped; what follows is known then */
  int code;   /* its exit code; 128 + signal if a signal ended it */
  int signal; /* that ended it; 0: it exited */
} lm_process;

/* An error if the program cannot be run; out->pid is 0 then. */
LM_API lm_status lm_process_start(const lm_process_plan *plan, lm_process *out);
/* Waits for its end: `seconds` at most; 0 only looks; < 0 for as long as it takes. p->ended says whether it has ended.
 */
LM_API lm_status lm_process_wait(lm_process *p, double seconds);
/* To it, or to its whole process group where it has one. Nothing happens if it has ended. */
LM_API void lm_process_signal(const lm_process *p, int signal);
/* Forgets it. Kills and reaps it if it has not ended. */
LM_API void lm_process_close(lm_process *p);
/* Notes the end of a process that was reaped elsewhere; status is waitpid's. */
LM_API void lm_process_set_ended(lm_process *p, int status);

/* This process's environment with n changes: "NAME=value", or "NAME" to leave it out. *out is one block, for lm_free.
 */
LM_API lm_status lm_process_env(int n, const char *const *changes, char ***out);
/* The path of the program that runs here (the Lua interpreter, or the host it is embedded in). */
LM_API lm_status lm_process_self(char *out, size_t capacity);
/* "SIGKILL"; "signal 40" for one without a name. Thread-local text. */
LM_API const char *lm_signal_name(int signal);
