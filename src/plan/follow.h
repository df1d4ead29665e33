/* Declares compiled steps: functions of scripts whose calls of ops and backward are recorded as segments (segment.h),
 * which later calls run instead, if they are the same. The script runs each time, so that it may do anything else. */
#pragma once

#include "autograd/follow.h"
#include "base/bytes.h"

typedef struct lm_compiled lm_compiled;

/* exact: results have the bits of eager ops. */
LM_API lm_status lm_compiled_new(bool exact, lm_compiled **out);
LM_API void lm_compiled_free(lm_compiled *c); /* c may be NULL */
/* Sets what collects garbage that holds what a segment would otherwise not compute whole. */
LM_API void lm_compiled_set_collect(lm_compiled *c, void (*collect)(void *), void *ctx);
/* Begins a call of the function on this thread; false, and nothing was done, if one runs already or the thread records
 * ops. */
LM_API bool lm_compiled_begin(lm_compiled *c);
/* Ends the call. `failed`: it raised. collect(ctx) frees what garbage holds when memory lacks. */
LM_API lm_status lm_compiled_end(lm_compiled *c, bool failed, void (*collect)(void *), void *ctx);
/* Returns true if the call recorded results that still have a history. Then lm_compiled_decide follows lm_compiled_end,
 * once unreachable tensors are collected: segments whose results others hold run as they are. */
LM_API bool lm_compiled_has_open(const lm_compiled *c);
LM_API void lm_compiled_decide(lm_compiled *c);
/* Returns true if t is a result that got no values; lm_is_without_values: or gets them when they are needed. */
LM_API bool lm_is_lost(const lm_tensor *t);
bool lm_is_without_values(const lm_tensor *t);

typedef struct lm_compiled_state {
  int recordings, runs, segments; /* made; of segments so far; that run now */
  int changes;                    /* number of times that a segment ran with another number than before */
  const char *reason;             /* why a part runs as it is; NULL: none does */
  const char *line;               /* the line of the script after which it ends, or NULL */
} lm_compiled_state;
LM_API lm_compiled_state lm_compiled_get_state(const lm_compiled *c);
/* Makes segments recorded from now on keep their steps as recorded, for lm_compiled_explain. */
LM_API void lm_compiled_set_explained(lm_compiled *c);
/* Appends the i-th segment's steps as text, as they run or, if they were kept, as they were recorded; sets *line to the
 * script's line at its end, or NULL. Returns false if there are no more segments. */
LM_API bool lm_compiled_explain(const lm_compiled *c, int i, bool is_planned, lm_bytes *out, const char **line);
