/* Orders kernels on a device other than the CPU: the thread's current stream waits for other users of the arguments,
 * and is recorded as a user. On the CPU kernels run synchronously, and nothing here is called. */
#pragma once

#include "op/kernels.h"

static inline bool lm_is_ordered(lm_device device) { return LM_DEVICE_KIND(device) != LM_CPU; }

/* Sets *s to the stream that the kernel will use; NULL on the CPU, where lm_stream_order_* do nothing. */
lm_status lm_stream_order_begin(lm_device device, lm_stream **s);
/* Orders a read of t, which may be NULL or on another device: kernels read numbers on the host. */
lm_status lm_stream_order_read(lm_stream *s, const lm_tensor *t);
lm_status lm_stream_order_write(lm_stream *s, const lm_tensor *t);
/* Records that the kernel was called, and returns its status; with LM_SYNC=1 waits for it. */
lm_status lm_stream_order_end(lm_stream *s, lm_status status);

/* Call the backend's op, pointwise and copy kernels in stream order. */
lm_status lm_ordered_op(const lm_backend *backend, lm_op_id op, lm_device device, const void *args,
                        lm_tensor *const *out);
lm_status lm_ordered_pointwise(const lm_backend *backend, const lm_pointwise *job);
lm_status lm_ordered_copy(const lm_backend *backend, const lm_tensor *src, lm_tensor *dst);
