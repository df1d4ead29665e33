/* Traces calls of ops for the log (LM_LOG=op) and the recorder. */
#pragma once

#include "device/recorder.h"
#include "op/op.h"

static inline bool lm_ops_are_traced(void) { return lm_traces(LM_TRACE_UNREAD | LM_TRACE_LOG_OP | LM_TRACE_CALLS); }
/* Begin and end the span of a traced call; suffix: "" or "_". */
void lm_op_trace_begin(lm_span *span, lm_op_id id, const void *args, const char *suffix);
void lm_op_trace_end(lm_span *span, lm_op_id id, const void *args, lm_tensor *const *out, lm_status status);
