/* Words the error for a device that is out of memory. */
#pragma once

#include "device/alloc.h"
#include "device/driver.h"

/* Returns LM_E_OOM for a request of `bytes`. `limit` is the maximum this process may reserve; 0 means no limit. */
lm_status lm_out_of_memory(const lm_driver *driver, lm_device device, size_t bytes, const lm_memory_stats *stats,
                           size_t limit);
