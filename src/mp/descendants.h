/* Lists and kills the processes below this one, as /proc shows them. */
#pragma once

#include <sys/types.h>

#include "base/status.h"

/* Returns this process's children; the caller frees *out by lm_free. */
lm_status lm_children(pid_t **out, int *n);
/* Sends SIGKILL to every descendant except `spared` ones and theirs. Returns their number, without zombies. */
int lm_descendants_kill(int n, const pid_t *spared);
