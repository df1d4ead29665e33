/* Address space, asked for before a library that does not survive a refusal. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Whether the system would map that many blocks of `bytes` now. Mapped as they will be, since a system that does not
 * overcommit counts them. */
bool lm_has_room(int blocks, size_t bytes);
