/* Turns the SIGXFSZ of a file size limit (ulimit -f), which would end the process, into EFBIG from the call. This holds
 * between begin and end, on this thread only; no handler changes and errno is preserved. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "base/status.h"

typedef struct lm_file_limit {
  sigset_t before;
  bool pending; /* true if a SIGXFSZ of somebody else was pending before begin */
} lm_file_limit;

void lm_file_limit_begin(lm_file_limit *l);
void lm_file_limit_end(const lm_file_limit *l);
