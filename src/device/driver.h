/* The table a device's backend hands to the core: raw memory and copies. Plug-in header. */
#ifndef LM_DEVICE_DRIVER_H
#define LM_DEVICE_DRIVER_H

#include <stddef.h>

#include "device/device.h"

enum { LM_DRIVER_ABI = 1 };

typedef struct lm_driver {
  int abi;          /* LM_DRIVER_ABI */
  const char *name; /* "cpu" */
  int (*count)(void);
  /* Raw memory, aligned to at least 64 bytes. *out is NULL and LM_E_OOM when there is none. */
  lm_status (*alloc)(lm_device device, size_t bytes, void **out);
  void (*free)(lm_device device, void *p, size_t bytes);
  /* Bytes between two devices at least one of which is this kind. Ordered after earlier work. */
  lm_status (*copy)(lm_device to, void *dst, lm_device from, const void *src, size_t bytes);
  /* Wait for all work on the device; an error found by a kernel is returned here. */
  lm_status (*synchronize)(lm_device device);
} lm_driver;

LM_API lm_status lm_driver_register(int kind, const lm_driver *driver);
/* NULL if the kind has none. */
LM_API const lm_driver *lm_driver_of(lm_device device);

#endif
