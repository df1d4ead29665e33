/* Formats failures, calls and absent ranks as text. Each function returns `out`, zero-terminated and truncated to
 * `capacity` bytes. */
#pragma once

#include "distributed/store/failure.h"

/* Returns "rank 1 on b"; "rank 1" if host is "". */
const char *lm_rank_text(int rank, const char *host, char *out, size_t capacity);
/* Returns "all_reduce sum float32 [3] at x.lua:4". */
const char *lm_call_text(const lm_ticket *call, char *out, size_t capacity);
/* Returns one sentence: "rank 1 on b failed at train.lua:12: boom". */
LM_API const char *lm_failure_text(const lm_failure *failure, char *out, size_t capacity);
/* Returns "rank 2 on b waits in broadcast … #5 at x.lua:3; ranks 4 to 9 have not joined"; "" if none is missing. */
const char *lm_missing_text(const lm_missing *missing, char *out, size_t capacity);
