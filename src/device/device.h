/* Which device: a kind and an ordinal in one small number. `cpu` is cpu:0; cpu:1, cpu:2, … share
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

/* "cpu", "cpu:1", "cuda:0". A kind without a driver, or an ordinal it does not have, is an error
 * that says what there is. */
LM_API lm_status lm_device_parse(const char *name, lm_device *out);
/* "cuda", whether there is such a device here or not; a plug-in of that name is loaded if nobody knows it. */
LM_API lm_status lm_device_kind(const char *name, int *kind);
LM_API const char *lm_device_kind_name(int kind); /* "?" for one nobody has registered */
/* A static string per device: "cpu" for cpu:0, else "kind:ordinal". Never NULL. */
LM_API const char *lm_device_name(lm_device device);
/* How many devices of a kind there are (0 without a driver; LM_DEVICE_MAX for the CPU). Loads the kind's plug-in.
 * A variable (LM_CUDA_VIRTUAL=2) may make two of each card. */
LM_API int lm_device_count(int kind);
/* The one a kind's bare name stands for on this thread ("cuda"): ordinal 0 until set. "cpu" always is cpu:0. */
LM_API lm_device lm_device_current(int kind);
LM_API void lm_device_set_current(lm_device device);
/* The driver's ordinal of a device. */
LM_API int lm_device_physical(lm_device device);
/* Cheaper than the count: false if there can be no device of the kind here (no driver is installed). Loads nothing. */
LM_API bool lm_device_likely(int kind);
/* OP: device must be available on this machine, got DEVICE. LM_E_DEVICE. */
LM_API lm_status lm_fail_no_device(const char *op, lm_device device);
/* Makes it the thread's current device for libraries that keep their own, as CUDA's do. */
LM_API lm_status lm_device_enter(lm_device device);
/* One sentence why there is no device of the kind. */
LM_API const char *lm_device_why_none(int kind);
/* Has the plug-in luminary_backend_<name>.so loaded, from LM_BACKEND_PATH or from beside the core, once. */
LM_API lm_status lm_device_load(const char *name);
/* The kind whose driver reads the environment variable once, if it has been asked for its devices: too late then to set
 * it; else -1. */
LM_API int lm_device_has_read(const char *variable);
