/* Declares the table that a device's backend, a plug-in, passes to the core: memory, copies, streams and events.
 * Ordinals here are physical: the core may split a card into several devices (device.h), and translates. Optional
 * functions (may be NULL) are marked; a driver without streams is synchronous, as the CPU's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "abi_driver.h"
#include "device/device.h"

enum { LM_IPC_BYTES = 64 };

/* Sizes by which the caching allocator splits segments; all 0: size classes, one driver allocation per block. */
typedef struct lm_segment_rules {
  size_t round;         /* bytes; block sizes are multiples of it */
  size_t small_limit;   /* requests up to it share small segments */
  size_t small_segment; /* bytes allocated from the driver at a time */
  size_t large_segment; /* for requests below large_limit; larger ones are rounded up to large_round */
  size_t large_limit, large_round;
} lm_segment_rules;

/* A property of a device, by its name in the driver's API. */
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
  /* Returns one sentence that says why count() is 0. May be NULL. */
  const char *(*why_none)(void);

  /* Allocates raw memory, aligned to at least 64 bytes. *out is NULL on LM_E_OOM. */
  lm_status (*alloc)(int ordinal, size_t bytes, void **out);
  /* Frees p after waiting for enqueued work that may still use it. */
  void (*free)(int ordinal, void *p, size_t bytes);
  /* Returns the device's free and total bytes. May be NULL. */
  lm_status (*memory)(int ordinal, size_t *free, size_t *total);

  /* Copies bytes between two devices, at least one of this kind, in the order of `stream`, which belongs to the device
   * of this kind (to `to`'s if both are). On return a copy to the host is complete, and host memory that was read may
   * be reused. With `later` neither holds yet: the caller guarantees that the host's memory is pinned and stays
   * allocated. */
  lm_status (*copy)(void *stream, lm_device to, void *dst, lm_device from, const void *src, size_t bytes, bool later);
  /* Waits for all work on the device; returns an error found by a kernel. */
  lm_status (*synchronize)(int ordinal);

  /* ---- the rest may be NULL */
  /* Makes it the thread's device in libraries that keep their own current device. */
  lm_status (*enter)(int ordinal);
  /* Creates a stream; smaller priority numbers are served first. Streams live as long as the process. */
  lm_status (*stream_create)(int ordinal, int priority, void **stream);
  lm_status (*priorities)(int ordinal, int *least, int *greatest);
  lm_status (*stream_synchronize)(int ordinal, void *stream);
  lm_status (*stream_query)(int ordinal, void *stream, bool *done);
  lm_status (*event_create)(int ordinal, bool timing, void **event);
  void (*event_destroy)(int ordinal, void *event);
  lm_status (*event_record)(int ordinal, void *event, void *stream);
  lm_status (*event_wait)(int ordinal, void *event, void *stream); /* makes the stream wait, not the caller */
  lm_status (*event_query)(int ordinal, void *event, bool *done);
  lm_status (*event_synchronize)(int ordinal, void *event);
  lm_status (*event_elapsed)(void *from, void *to, double *milliseconds);
  /* Allocates pinned host memory. */
  lm_status (*host_alloc)(size_t bytes, void **out);
  void (*host_free)(void *p);
  /* Calls put for each property; text is valid during the call. */
  lm_status (*properties)(int ordinal, void (*put)(void *ctx, const lm_property *p), void *ctx);
  bool (*can_access_peer)(int ordinal, int peer);
  /* Mark this thread's time ranges and moments for the vendor's tools. push and pop are both set or both NULL. */
  void (*range_push)(const char *name);
  void (*range_pop)(void);
  void (*range_mark)(const char *name);
  /* Capture work: capture_end returns what was enqueued since capture_begin, which does not run, as *graph. */
  lm_status (*capture_begin)(int ordinal, void *stream);
  lm_status (*capture_end)(int ordinal, void *stream, void **graph); /* NULL graph: discards the work */
  lm_status (*graph_launch)(int ordinal, void *graph, void *stream);
  void (*graph_destroy)(int ordinal, void *graph);
  /* Share memory with other processes. A handle covers one complete allocation and is valid only in other processes;
   * the process that opened it closes it after its last use, while the owner still keeps the memory. */
  lm_status (*ipc_export)(int ordinal, void *p, char handle[LM_IPC_BYTES]);
  lm_status (*ipc_open)(int ordinal, const char handle[LM_IPC_BYTES], void **p);
  void (*ipc_close)(int ordinal, void *p);
  /* Share events, recorded and destroyed like others. *event is NULL if the device does not support it. */
  lm_status (*ipc_event_create)(int ordinal, void **event);
  lm_status (*ipc_event_export)(int ordinal, void *event, char handle[LM_IPC_BYTES]);
  lm_status (*ipc_event_open)(int ordinal, const char handle[LM_IPC_BYTES], void **event); /* only for event_wait */
} lm_driver;

/* Registers a driver and returns its kind: the known kind of its name, or the next free one. May be repeated. */
LM_API lm_status lm_driver_register(const lm_driver *driver, int *kind);
/* Returns the kind's driver; NULL if none is registered. Never loads a plug-in. */
LM_API const lm_driver *lm_driver_of(lm_device device);
