/* Tracing, asked for by the environment: LM_LOG=op,dist,alloc or LM_LOG=all. Of LM_LOG=trace only the
 * command `luminary` knows more (../lua/luminary/cli/init.lua): tracebacks with all their frames. Lines go to standard
 * error, each in one write. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

typedef enum lm_topic { LM_LOG_OP, LM_LOG_DIST, LM_LOG_ALLOC, LM_LOG_TRACE, LM_LOG_TOPICS } lm_topic;

/* Cheap: one load. The environment is read once. */
LM_API bool lm_log_on(lm_topic topic);
LM_API void lm_log(lm_topic topic, const char *format, ...) LM_PRINTF(2, 3);

/* Warnings, of what works and is probably not meant. One waits for each thread until somebody who can name the caller's
 * line takes it (bind/error.c). The text lasts until the thread's next warning. */
LM_API void lm_warn(const char *format, ...) LM_PRINTF(1, 2);
LM_API const char *lm_take_warning(void); /* NULL if none waits */
