/* Reports all properties of a card that the runtime knows. */
#pragma once

#include "device/driver.h"

/* Reports properties, as the driver's `properties`: each field of cudaDeviceProp by its own name (arrays as texts
 * "1024, 1024, 64"), attributes without a field by the attribute's, and uuid, pciBusId and physicalIndex. */
lm_status lm_cuda_properties(int ordinal, void (*put)(void *ctx, const lm_property *p), void *ctx);
