/* Tracing, asked for by the environment: LM_LOG=op,dist,alloc,autograd,io or LM_LOG=all.
 * Lines go to standard error, each in one write. */
#ifndef LM_BASE_LOG_H
#define LM_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

typedef enum lm_topic { LM_LOG_OP, LM_LOG_DIST, LM_LOG_ALLOC, LM_LOG_AUTOGRAD, LM_LOG_IO, LM_LOG_TOPICS } lm_topic;

/* Cheap: one load. The environment is read once. */
LM_API bool lm_log_on(lm_topic topic);
LM_API void lm_log(lm_topic topic, const char *format, ...) LM_PRINTF(2, 3);

#endif
