/* Starts child processes by exec, waits for them with a timeout, and ends them with their parent.
 *
 * The child starts with default signal handlers and an empty mask, with no descriptor but the four below. It is killed
 * (SIGKILL) when the thread that started it ends, for whatever reason. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct lm_process_plan {
  const char *const *argv; /* argv[0] is the program's path; NULL-terminated */
  char *const *env;        /* "NAME=value", NULL-terminated; NULL: this process's (see lm_process_env) */
  int in, out, err; /* the child's 0, 1, 2; the caller keeps them. -1: /dev/null for in, this process's for the others,
                       or /dev/null if that is closed here */
  int extra;        /* the child's 3; the caller keeps it. -1: none */
  bool session;     /* starts a new session and process group: the terminal's Ctrl-C does not reach the child, and
                       lm_process_signal reaches its children too */
  bool outlives;    /* true if not killed with its parent */
} lm_process_plan;

typedef struct lm_process {
  pid_t pid; /* 0: none */
  int pidfd; /* descriptor to poll, readable once it has ended. -1 if the system has none */
  bool session;
  bool ended; /* ended and reaped; the fields below are valid then */
  int code;   /* exit code; 128 + signal if a signal ended it */
  int signal; /* the signal that ended it; 0: it exited */
} lm_process;

/* Starts a program. On failure to run it, returns an error and sets out->pid to 0. */
LM_API lm_status lm_process_start(const lm_process_plan *plan, lm_process *out);
/* Waits for its end, at most `seconds` (0: only polls; < 0: no limit), and sets p->ended if it has ended. */
LM_API lm_status lm_process_wait(lm_process *p, double seconds);
/* Signals the process, or its process group if it has one. Does nothing if it has ended. */
LM_API void lm_process_signal(const lm_process *p, int signal);
/* Resets *p; kills and reaps the process if it has not ended. */
LM_API void lm_process_close(lm_process *p);
/* Records the end of a process that was reaped elsewhere; status is waitpid's. */
void lm_process_set_ended(lm_process *p, int status);

/* Returns this process's environment with n changes: "NAME=value", or "NAME" to remove it. Free *out by lm_free. */
LM_API lm_status lm_process_env(int n, const char *const *changes, char ***out);
/* Writes the path of the running program (the Lua interpreter, or the host it is embedded in). */
LM_API lm_status lm_process_self(char *out, size_t capacity);
/* Returns "SIGKILL", or "signal 40" for one without a name. Thread-local text. */
LM_API const char *lm_signal_name(int signal);
