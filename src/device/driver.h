/* The table a device's backend hands to the core: memory, copies, streams and events. Plug-in header.
 *
 * Ordinals here are physical: the core may split a card into several devices (device.h), and translates.
 * Functions that may be absent (NULL) are marked; a driver without streams is synchronous, as the CPU's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "abi.h"
#include "device/device.h"

enum { LM_IPC_BYTES = 64 };

/* How the caching allocator cuts its memory; all 0: by size classes, one block from the driver at a time. */
typedef struct lm_segment_rules {
  size_t round;         /* block sizes are multiples of it */
  size_t small_limit;   /* requests up to it share small segments */
  size_t small_segment; /* bytes asked of the driver at a time */
  size_t large_segment; /* for requests below large_limit; above, the request itself rounded to large_round */
  size_t large_limit, large_round;
} lm_segment_rules;

/* A fact about a device, by its name in the driver's API. */
typedef struct lm_property {
  const char *name;
  enum { LM_PROPERTY_NUMBER, LM_PROPERTY_TEXT } kind;
  double number;
  const char *text;
} lm_property;

typedef struct lm_driver {
  int abi;          /* LM_DRIVER_ABI */
  const char *name; /* "cpu" */
  lm_segment_rules rules;
  int (*count)(void);
  /* One sentence why count() is 0. May be NULL. */
  const char *(*why_none)(void);

  /* Raw memory, aligned to at least 64 bytes. *out is NULL and LM_E_OOM when there is none. */
  lm_status (*alloc)(int ordinal, size_t bytes, void **out);
  /* Enqueued work may still use it: that is waited for. */
  void (*free)(int ordinal, void *p, size_t bytes);
  /* Free and total bytes of the device. May be NULL. */
  lm_status (*memory)(int ordinal, size_t *free, size_t *total);

  /* Bytes between two devices at least one of which is this kind, in the order of `stream`, which belongs to the
   * device of this kind (to `to`'s if both are). The host's side is settled on return unless `later` is set: then the
   * caller has seen to it that the host's memory is pinned and stays. What was copied to the host has been waited for;
   * what was read from it may still be on its way. */
  lm_status (*copy)(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes, bool later);
  /* Wait for all work on the device; an error found by a kernel is returned here. */
  lm_status (*synchronize)(int ordinal);

  /* ---- the rest may be NULL */
  /* Makes it the thread's device for libraries that go by a notion of their own of the current one. */
  lm_status (*enter)(int ordinal);
  /* A stream; smaller priority numbers are served first. Streams live as long as the process. */
  lm_status (*stream_create)(int ordinal, int priority, void **stream);
  lm_status (*priorities)(int ordinal, int *least, int *greatest);
  lm_status (*stream_synchronize)(int ordinal, void *stream);
  lm_status (*stream_query)(int ordinal, void *stream, bool *done);
  lm_status (*event_create)(int ordinal, bool timing, void **event);
  void (*event_destroy)(int ordinal, void *event);
  lm_status (*event_record)(int ordinal, void *event, void *stream);
  lm_status (*event_wait)(int ordinal, void *event, void *stream); /* the stream waits, not the caller */
  lm_status (*event_query)(int ordinal, void *event, bool *done);
  lm_status (*event_synchronize)(int ordinal, void *event);
  lm_status (*event_elapsed)(void *from, void *to, double *milliseconds);
  /* Pinned host memory. */
  lm_status (*host_alloc)(size_t bytes, void **out);
  void (*host_free)(void *p);
  /* Calls put for each fact; text is valid during the call. */
  lm_status (*properties)(int ordinal, void (*put)(void *ctx, const lm_property *p), void *ctx);
  bool (*can_access_peer)(int ordinal, int peer);
  /* Ranges of time of this thread, and moments, that the vendor's tools show: the first two are there both or not. */
  void (*range_push)(const char *name);
  void (*range_pop)(void);
  void (*range_mark)(const char *name);
  /* Whole-step capture: what is enqueued between begin and end becomes *graph instead of running. */
  lm_status (*capture_begin)(int ordinal, void *stream);
  lm_status (*capture_end)(int ordinal, void *stream, void **graph); /* NULL graph: throw it away */
  lm_status (*graph_launch)(int ordinal, void *graph, void *stream);
  void (*graph_destroy)(void *graph);
  /* Memory that other processes may work with. A handle is of all of what one alloc gave, and only for other processes;
   * one that opened it closes it when nothing there uses it any more, while the owner still has it. */
  lm_status (*ipc_export)(int ordinal, void *p, char handle[LM_IPC_BYTES]);
  lm_status (*ipc_open)(int ordinal, const char handle[LM_IPC_BYTES], void **p);
  void (*ipc_close)(int ordinal, void *p);
  /* Events for them, recorded and destroyed like others. *event is NULL where the device has none such. */
  lm_status (*ipc_event_create)(int ordinal, void **event);
  lm_status (*ipc_event_export)(int ordinal, void *event, char handle[LM_IPC_BYTES]);
  lm_status (*ipc_event_open)(int ordinal, const char handle[LM_IPC_BYTES], void **event); /* only waited for */
} lm_driver;

/* The driver's kind by its name: the known one, or the next free. The same table again is fine. */
LM_API lm_status lm_driver_register(const lm_driver *driver, int *kind);
/* NULL if the kind has none. Never loads a plug-in. */
LM_API const lm_driver *lm_driver_of(lm_device device);
