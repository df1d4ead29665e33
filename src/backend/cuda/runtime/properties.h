/* Everything the runtime reports about a card. */
#pragma once

#include "device/driver.h"

/* The driver's `properties`: each field of cudaDeviceProp by its own name (arrays as texts "1024, 1024, 64"), what is
 * an attribute alone by the attribute's, and uuid, pciBusId and physicalIndex. */
lm_status lm_cuda_properties(int ordinal, void (*put)(void *ctx, const lm_property *p), void *ctx);
