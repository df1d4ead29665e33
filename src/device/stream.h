/* Declares streams, which are queues of work on a device. A thread has a current stream on each device; every op uses
 * it. A storage records the streams that use it, so that work on one waits for another's writes (lm_use_*). A device
 * whose driver has no streams has one synchronous stream, and these functions cost it nothing. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "device/device.h"

enum { LM_STREAM_MAX = 56 }; /* streams of a device; lm_used has their bits and the last writer in one word */

/* Created once and never freed: pointers to them stay valid. Fields are read-only for others. */
typedef struct lm_stream {
  lm_device device;
  uint8_t id; /* 0: the device's default stream */
  int priority;
  void *native; /* the driver's stream; NULL without streams */
} lm_stream;

/* Returns this thread's current stream on the device: the default one until set. NULL with a message on failure. */
LM_API lm_stream *lm_stream_current(lm_device device);
LM_API void lm_stream_set_current(lm_stream *s);
/* Makes this thread use a stream of its own on each device, unless lm_stream_set_current chose another. LM_E_OOM. */
LM_API lm_status lm_streams_own(void);
LM_API void lm_streams_disown(void); /* leaves them to other threads, before this one ends */
/* Blocks until the work of this thread's own streams is done; returns the first error found by their kernels. */
LM_API lm_status lm_streams_finish(void);
/* Creates a stream, or returns the existing ones in turn once LM_STREAM_MAX exist. 0 is the normal priority; negative
 * ones are served first. */
LM_API lm_status lm_stream_new(lm_device device, int priority, lm_stream **out);
/* Returns the device's stream of that id; NULL if it does not exist. */
LM_API lm_stream *lm_stream_by_id(lm_device device, int id);
/* Makes `waiter` continue only after the work given to `on` so far. Does nothing if that order holds already. */
LM_API lm_status lm_stream_wait(lm_stream *waiter, lm_stream *on);
/* Blocks until the stream's work is done; returns an error found by its kernels. */
LM_API lm_status lm_stream_synchronize(lm_stream *s);
LM_API lm_status lm_stream_query(lm_stream *s, bool *done);
/* Blocks until the work of all of the device's streams is done; returns an error found by its kernels. */
LM_API lm_status lm_device_synchronize(lm_device device);
/* Records that the stream was given work, so that earlier waits for it no longer suffice. */
LM_API void lm_stream_touch(lm_stream *s);

/* The users of a block of memory: 0, or its last writer's id in the low 6 bits, bit 6 + id for each stream ordered
 * after that write, and the top bit if a captured graph uses it too. It counts only streams of the block's own
 * device. */
typedef _Atomic uint64_t lm_used;

/* Make s wait before it reads (writes) the block: for the writer (for all users), and record s in `used`. */
LM_API lm_status lm_use_read(lm_used *used, lm_stream *s);
LM_API lm_status lm_use_write(lm_used *used, lm_stream *s);
/* Does the same, without a wait for `done`, behind whose last use of the block s waits by an event. */
LM_API lm_status lm_use_after(lm_used *used, lm_stream *s, const lm_stream *done);
/* Clears the users, whose work is known to be complete: nobody waits for them any more, nor for later work of their
 * streams. */
LM_API void lm_use_ended(lm_used *used);
/* Records the stream as a user without failing, for record_stream. */
LM_API void lm_use_note(lm_used *used, lm_stream *s);

/* Sets *over if all streams in the word are done, for threads that give no work. Removes finished streams from *used.
 * *mark is NULL before the first call, and kept between calls until *over. */
LM_API lm_status lm_use_is_over(lm_device device, uint64_t *used, void **mark, bool *over);
/* Makes the stream wait for an event that another process recorded on its stream. */
LM_API lm_status lm_stream_wait_foreign(lm_stream *waiter, void *event);

/* ---- events */
typedef struct lm_event lm_event;
LM_API lm_status lm_event_new(lm_device device, bool timing, lm_event **out);
LM_API void lm_event_free(lm_event *e);
lm_device lm_event_device(const lm_event *e);
LM_API lm_status lm_event_record(lm_event *e, lm_stream *s);
/* Makes the stream wait for the event; does nothing for one never recorded, which counts as done. */
LM_API lm_status lm_event_wait(lm_event *e, lm_stream *waiter);
LM_API lm_status lm_event_query(lm_event *e, bool *done);
LM_API lm_status lm_event_synchronize(lm_event *e);
/* Returns the milliseconds between two recorded timing events of one device. Synchronous devices measure wall time. */
LM_API lm_status lm_event_elapsed(lm_event *from, lm_event *to, double *milliseconds);
