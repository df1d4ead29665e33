/* What surrounds a slot on a device other than the CPU: the thread's current stream first waits for whatever else uses
 * the arguments, and is noted in them. On the CPU everything is done at once, and nothing of this is called. */
#pragma once

#include "op/backend.h"

static inline bool lm_is_ordered(lm_device device) { return LM_DEVICE_KIND(device) != LM_CPU; }

/* The stream the slot will enqueue on; *s is NULL for the CPU, and the next three do nothing. */
lm_status lm_stream_order_begin(lm_device device, lm_stream **s);
/* t may be NULL or on another device: numbers are read on the host. */
lm_status lm_stream_order_read(lm_stream *s, const lm_tensor *t);
lm_status lm_stream_order_write(lm_stream *s, const lm_tensor *t);
/* Notes that the slot was called, whose status passes through; with LM_SYNC=1 waits for it. */
lm_status lm_stream_order_end(lm_stream *s, lm_status status);

/* The backend's op slot, point slot and copy slot, each in order. */
lm_status lm_ordered_op(const lm_backend *backend, lm_op_id op, lm_device device, const void *args,
                        lm_tensor *const *out);
lm_status lm_ordered_pointwise(const lm_backend *backend, const lm_pointwise *job);
lm_status lm_ordered_copy(const lm_backend *backend, const lm_tensor *src, lm_tensor *dst);
