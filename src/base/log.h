/* Tracing: who looks at what the core does. LM_LOG=op,dist,alloc or LM_LOG=all asks for it by the environment; of
 * LM_LOG=trace only the command `luminary` knows more (../lua/luminary/cli/init.lua): tracebacks with all their frames.
 * Lines go to standard error, each in one write. Scripts start the recorder (device/recorder.h). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum lm_topic { LM_LOG_OP, LM_LOG_DIST, LM_LOG_ALLOC, LM_LOG_TRACE, LM_LOG_TOPICS } lm_topic;

/* Who looks: a bit for each topic of the log, then the recorder, what it notes beside times, and the history of memory.
 * LM_TRACE_UNREAD: the environment was not read yet. 0 for nobody, so that a call that might be looked at costs one
 * load. */
enum {
  LM_TRACE_LOG_OP = 1 << LM_LOG_OP,
  LM_TRACE_UNREAD = 1 << LM_LOG_TOPICS,
  LM_TRACE_SPANS = LM_TRACE_UNREAD << 1,
  LM_TRACE_LINES = LM_TRACE_UNREAD << 2,
  LM_TRACE_SHAPES = LM_TRACE_UNREAD << 3,
  LM_TRACE_NVTX = LM_TRACE_UNREAD << 4,
  LM_TRACE_LIVE_MEMORY = LM_TRACE_UNREAD << 5,
};
enum { LM_TRACE_CALLS = LM_TRACE_SPANS | LM_TRACE_NVTX | LM_TRACE_LIVE_MEMORY };
LM_API extern _Atomic uint32_t lm_tracing;
static inline bool lm_traces(uint32_t any) {
  return __builtin_expect((atomic_load_explicit(&lm_tracing, memory_order_relaxed) & any) != 0, 0);
}

/* Cheap. The environment is read once. */
LM_API bool lm_log_on(lm_topic topic);
LM_API void lm_log(lm_topic topic, const char *format, ...) LM_PRINTF(2, 3);

/* Warnings, of what works and is probably not meant. One waits for each thread until somebody who can name the caller's
 * line takes it (bind/error.c). The text lasts until the thread's next warning. */
LM_API void lm_warn(const char *format, ...) LM_PRINTF(1, 2);
LM_API const char *lm_take_warning(void); /* NULL if none waits */
