/* Measures this thread's C stack. Lua counts its own stack, not C's, so calls from C into Lua and back could continue
 * until the process dies. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* Returns the bytes left below the caller's frame; SIZE_MAX if the stack is not the thread's (a host's coroutine). */
LM_API size_t lm_stack_left(void);
/* Returns the size of the thread's stack in bytes; SIZE_MAX if the caller runs on another one. */
LM_API size_t lm_stack_size(void);
