/* Probes for free address space before a call into a library that crashes when mmap fails. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Returns true if the system can map that many blocks of `bytes` at once now. The probe maps them writable, as they
 * will be, since a system that does not overcommit counts such blocks. */
LM_API bool lm_address_space_has(int blocks, size_t bytes);
