/* Allocates memory of synchronous devices, such as the CPU: keeps freed blocks by size for reuse. When the driver has
 * no more memory, returns all of them to it and tries again. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

lm_status lm_classes_alloc(const lm_driver *driver, lm_device device, size_t bytes, void **out);
/* Frees p; `bytes` is the size passed to lm_classes_alloc. */
void lm_classes_free(lm_device device, void *p, size_t bytes);
void lm_classes_empty_cache(lm_device device);
