/* Kinds of device of which the core knows before their backend's plug-in is loaded. The table is backend/known/'s. */
#pragma once

#include "base/environment_variable.h"
#include "device/device.h"

typedef struct lm_known_kind {
  const char *name;  /* "cuda": of devices, and of the plug-in */
  const char *title; /* as its maker writes it, for messages */
  /* What a driver leaves on a machine: files, and a function where its runtime is in the process already. Ends in NULL.
   */
  const char *const *traces;
  const char *symbol;
  lm_variable split; /* how many devices each of the driver's becomes */
  /* Variables that are read when the devices are first asked for, ending in NULL; the first chooses which there are. */
  const char *const *read_once;
  const char *group; /* the process group for its devices */
} lm_known_kind;

/* By kind; LM_CPU has a name alone. */
extern LM_API const lm_known_kind lm_known_kinds[];
extern LM_API const int lm_known_count;

/* NULL for the CPU, and for kinds that are known by their plug-in alone. */
static inline const lm_known_kind *lm_known_kind_of(int kind) {
  return kind > LM_CPU && kind < lm_known_count ? &lm_known_kinds[kind] : NULL;
}
