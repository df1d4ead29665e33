/* A limit on the size of files (ulimit -f) raises SIGXFSZ where it is met, which ends the process. Between begin and
 * end it is EFBIG from the call alone, on this thread; no handler changes. errno is left as it is. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "base/status.h"

typedef struct lm_file_limit {
  sigset_t before;
  bool pending; /* already: somebody else's */
} lm_file_limit;

LM_API void lm_file_limit_begin(lm_file_limit *l);
LM_API void lm_file_limit_end(const lm_file_limit *l);
