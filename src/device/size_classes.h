/* The allocator for devices whose work is done at once, the CPU first: freed blocks are kept by size and handed out
 * again; under pressure all of them go back to the driver, and the request is tried once more. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

lm_status lm_classes_alloc(const lm_driver *driver, lm_device device, size_t bytes, void **out);
/* `bytes` as given to lm_classes_alloc. */
void lm_classes_free(lm_device device, void *p, size_t bytes);
lm_memory_stats lm_classes_stats(lm_device device);
void lm_classes_reset_peak(lm_device device);
void lm_classes_empty_cache(lm_device device);
