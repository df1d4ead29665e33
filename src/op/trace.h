/* The one place that looks at calls of ops: the log's (LM_LOG=op) and the recorder's. */
#pragma once

#include "device/recorder.h"
#include "op/op.h"

static inline bool lm_ops_are_traced(void) { return lm_traces(LM_TRACE_UNREAD | LM_TRACE_LOG_OP | LM_TRACE_CALLS); }
/* Around a call that is traced, with its suffix, "" or "_". */
void lm_op_trace_begin(lm_span *span, lm_op_id id, const void *args, const char *suffix);
void lm_op_trace_end(lm_span *span, lm_op_id id, const void *args, lm_status status);
/* Floating-point operations of a call whose arguments were checked: of matrix products, convolutions and attention, 2
 * for each multiply-add, as PyTorch's FlopCounterMode counts them; 0 for other ops. */
LM_API double lm_op_flops(lm_op_id id, const void *args);
