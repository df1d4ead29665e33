/* Counts plan searches: how often a backend asked a library how to compute something of a new kind. A search is work on
 * the host that a steady state does without. */
#pragma once

#include <stdint.h>

#include "base/status.h"

/* Returns the number of searches of all threads since the process began. */
LM_API int64_t lm_plan_searches(void);
/* Counts a search; for backends. */
LM_API void lm_plan_search_count(void);
