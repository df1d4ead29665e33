/* Prints log lines, keeps warnings, and holds the flags of the core's observers. LM_LOG=op,dist,alloc or all turns
 * topics on. With LM_LOG=trace, the command `luminary` prints full tracebacks (../lua/luminary/cli/init.lua). Lines go
 * to standard error, each in one write. Scripts start the recorder (device/recorder.h). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef enum lm_topic { LM_LOG_OP, LM_LOG_DIST, LM_LOG_ALLOC, LM_LOG_TRACE, LM_LOG_TOPICS } lm_topic;

/* The flags of active observers: one bit for each log topic, then the recorder, what it records beside times, and the
 * memory history. LM_TRACE_UNREAD: the environment is not read yet. 0 while nobody observes, so a call costs one
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

/* Returns true if the topic is on. Cheap; the environment is read once. */
LM_API bool lm_log_on(lm_topic topic);
LM_API void lm_log(lm_topic topic, const char *format, ...) LM_PRINTF(2, 3);

/* Records a warning about a call that works but is probably not intended. A thread keeps one until code that can name
 * the caller's line takes it (bind/error.c). The text lasts until the thread's next warning. */
LM_API void lm_warn(const char *format, ...) LM_PRINTF(1, 2);
LM_API const char *lm_take_warning(void); /* NULL if there is no warning */

/* Makes lm_print_stderr call log(user, line) instead, in one thread at a time; NULL: as before. */
LM_API void lm_set_log(void (*log)(void *user, const char *line), void *user);
