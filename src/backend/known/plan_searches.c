#include "backend/known/plan_searches.h"

#include <stdatomic.h>

static _Atomic int64_t searches;

int64_t lm_plan_searches(void) { return atomic_load_explicit(&searches, memory_order_relaxed); }

void lm_plan_search_count(void) { atomic_fetch_add_explicit(&searches, 1, memory_order_relaxed); }
