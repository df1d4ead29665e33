/* Streams: queues of work on a device. A thread has a current stream on each device; every op goes to it.
 * A storage knows the streams that use it, so that work on one waits for what another has written (lm_use_*).
 * Devices whose driver has no streams have the one, on which all work is done at once; nothing here costs them
 * anything. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"

enum { LM_STREAM_MAX = 56 }; /* a device; they share a word with the last writer (lm_used) */

/* Made once, kept for good: pointers to them stay valid. Fields are read-only for others. */
typedef struct lm_stream {
  lm_device device;
  uint8_t id; /* 0: the device's default */
  int priority;
  void *native; /* the driver's; NULL where it has no streams */
} lm_stream;

/* This thread's current stream on the device: the default one until set. NULL with a message if the driver fails. */
LM_API lm_stream *lm_stream_current(lm_device device);
LM_API void lm_stream_set_current(lm_stream *s);
/* A new stream, or in turn one of those there are once LM_STREAM_MAX were made. 0 is the normal priority; negative ones
 * are served first. */
LM_API lm_status lm_stream_new(lm_device device, int priority, lm_stream **out);
/* The device's stream of that number, if it was made. */
LM_API lm_stream *lm_stream_by_id(lm_device device, int id);
/* `waiter` continues only after what `on` has been given so far. Does nothing if it does so already. */
LM_API lm_status lm_stream_wait(lm_stream *waiter, lm_stream *on);
/* The caller waits; errors that kernels on the stream found are returned. */
LM_API lm_status lm_stream_synchronize(lm_stream *s);
LM_API lm_status lm_stream_query(lm_stream *s, bool *done);
/* The same for all of the device's streams. */
LM_API lm_status lm_device_synchronize(lm_device device);
/* Something was given to the stream: lm_stream_wait has to look again. */
LM_API void lm_stream_touch(lm_stream *s);

/* Who uses a block of memory: 0, or its last writer's id in the low 6 bits, bit 6 + id for each stream that is ordered
 * after that write, and the top bit if a captured graph uses it too. Only one device's streams are counted: its own. */
typedef _Atomic uint64_t lm_used;

/* Before the stream reads (writes) what `used` stands for: waits for the writer (for all users), and is noted. */
LM_API lm_status lm_use_read(lm_used *used, lm_stream *s);
LM_API lm_status lm_use_write(lm_used *used, lm_stream *s);
/* All that it names is known to be done: nobody has to wait for it any more, nor for what those streams were given
 * since. */
LM_API void lm_use_ended(lm_used *used);
/* Noted only: record_stream. */
LM_API void lm_use_note(lm_used *used, lm_stream *s);

/* For threads that give no work: *over reports whether all that the word names is done. Streams seen to be done are
 * taken out of *used. *mark is NULL before the first call, and kept from call to call until all is over. */
LM_API lm_status lm_use_is_over(lm_device device, uint64_t *used, void **mark, bool *over);
/* The stream continues after what another process's stream was given before it recorded the event. */
LM_API lm_status lm_stream_wait_foreign(lm_stream *waiter, void *event);

/* ---- events */
typedef struct lm_event lm_event;
LM_API lm_status lm_event_new(lm_device device, bool timing, lm_event **out);
LM_API void lm_event_free(lm_event *e);
LM_API lm_status lm_event_record(lm_event *e, lm_stream *s);
/* An event never recorded is done and waited for by nobody. */
LM_API lm_status lm_event_wait(lm_event *e, lm_stream *waiter);
LM_API lm_status lm_event_query(lm_event *e, bool *done);
LM_API lm_status lm_event_synchronize(lm_event *e);
/* Milliseconds between two recorded timing events of one device. Synchronous devices measure wall time. */
LM_API lm_status lm_event_elapsed(lm_event *from, lm_event *to, double *milliseconds);
