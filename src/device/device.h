/* Names and finds devices: a device is a kind and an ordinal in one small number. `cpu` is cpu:0; cpu:1, cpu:2, … share
 * its memory and cores but are distinct to every op, so multi-device code runs on any machine. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef uint16_t lm_device; /* kind << 8 | ordinal */
enum { LM_CPU = 0, LM_DEVICE_KINDS = 8, LM_DEVICE_MAX = 64, LM_NO_DEVICE = 0xffff };

#define LM_DEVICE(kind, ordinal) ((lm_device)((kind) << 8 | (ordinal)))
#define LM_DEVICE_KIND(device) ((device) >> 8)
#define LM_DEVICE_ORDINAL(device) ((device)&255)

/* Parses "cpu", "cpu:1", "cuda:0". A kind without a driver or a missing ordinal is LM_E_DEVICE; the message lists the
 * existing ones. */
LM_API lm_status lm_device_parse(const char *name, lm_device *out);
/* Finds a kind such as "cuda", with or without devices here; loads the plug-in of that name if the kind is unknown. */
LM_API lm_status lm_device_kind(const char *name, int *kind);
LM_API const char *lm_device_kind_name(int kind); /* "?" for an unregistered kind */
/* Returns a static string: "cpu" for cpu:0, else "kind:ordinal". Never NULL. */
LM_API const char *lm_device_name(lm_device device);
/* Returns the number of devices of a kind: 0 without a driver, LM_DEVICE_MAX for the CPU. Loads the kind's plug-in. A
 * variable (LM_CUDA_VIRTUAL=2) may split each card into two. */
LM_API int lm_device_count(int kind);
/* Returns the device that a kind's bare name ("cuda") means on this thread: ordinal 0 until set. "cpu" is cpu:0. */
LM_API lm_device lm_device_current(int kind);
LM_API void lm_device_set_current(lm_device device);
/* Returns the driver's ordinal of a device. */
LM_API int lm_device_physical(lm_device device);
/* Returns false if no device of the kind can exist here (no driver). Cheaper than lm_device_count; loads nothing. */
LM_API bool lm_device_likely(int kind);
/* OP: device must be available on this machine, got DEVICE. LM_E_DEVICE. */
LM_API lm_status lm_fail_no_device(const char *op, lm_device device);
/* Makes `device` the thread's current device in libraries that keep their own, such as CUDA's. */
LM_API lm_status lm_device_enter(lm_device device);
/* Returns one sentence that says why there is no device of the kind. */
LM_API const char *lm_device_why_none(int kind);
/* Loads the plug-in luminary_backend_<name>.so, once, from LM_BACKEND_PATH or the core's folder. */
LM_API lm_status lm_device_load(const char *name);
/* Returns the kind whose driver has already read the environment variable, so that setting it has no more effect; -1 if
 * there is none. */
LM_API int lm_device_kind_that_read(const char *variable);
