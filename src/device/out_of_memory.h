/* What is said where a device has no memory left. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

/* LM_E_OOM: `bytes` were asked for. `limit`: what this process may reserve, 0 where that is not limited. */
lm_status lm_out_of_memory(const lm_driver *driver, lm_device device, size_t bytes, const lm_memory_stats *stats,
                           size_t limit);
