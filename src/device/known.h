/* Lists the device kinds known before their backend's plug-in is loaded. The table is in backend/known/. */
#pragma once

#include "base/environment_variable.h"
#include "device/device.h"

typedef struct lm_known_kind {
  const char *name;  /* "cuda": the kind's and the plug-in's name */
  const char *title; /* the maker's spelling, for messages */
  /* Signs of an installed driver: files (a NULL-terminated list), and a function that a loaded runtime exports. */
  const char *const *traces;
  const char *symbol;
  lm_variable split; /* number of devices that each of the driver's is split into */
  /* Variables read at the first use of the devices, NULL-terminated; the first one selects the visible devices. */
  const char *const *read_once;
  const char *group; /* name of the process group backend for its devices */
} lm_known_kind;

/* Indexed by kind; LM_CPU has only a name. */
extern const lm_known_kind lm_known_kinds[];
extern const int lm_known_count;

/* Returns NULL for the CPU and for kinds that only their plug-in names. */
static inline const lm_known_kind *lm_known_kind_of(int kind) {
  return kind > LM_CPU && kind < lm_known_count ? &lm_known_kinds[kind] : NULL;
}
