/* What people read of failures, calls and absent ranks, made of their fields. Each function returns `out`, closed
 * always and cut where there is no more room. */
#pragma once

#include "distributed/store/failure.h"

/* "rank 1 on b"; without the host if it is not known. */
const char *lm_rank_text(int rank, const char *host, char *out, size_t capacity);
/* "all_reduce sum float32 [3] at x.lua:4" */
const char *lm_call_text(const lm_ticket *call, char *out, size_t capacity);
/* One sentence: "rank 1 on b failed at train.lua:12: boom". */
LM_API const char *lm_failure_text(const lm_failure *failure, char *out, size_t capacity);
/* "rank 2 on b waits in broadcast … #5 at x.lua:3; ranks 4 to 9 have not joined"; "" if nobody is missing. */
const char *lm_missing_text(const lm_missing *missing, char *out, size_t capacity);
