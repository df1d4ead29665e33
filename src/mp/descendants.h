/* The tree of processes below this one, as /proc shows it. */
#pragma once

#include <sys/types.h>

#include "base/status.h"

/* Children of this process, for lm_free. */
lm_status lm_children(pid_t **out, int *n);
/* SIGKILL to every descendant but `spared` ones and theirs. Returns how many there were, not counting those that have
 * ended and only wait for their parent to notice. */
int lm_descendants_kill(int n, const pid_t *spared);
