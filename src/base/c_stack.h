/* The C stack of this thread. Lua counts its own stack, not C's, so calls from C into Lua and back could continue until
 * the process dies. */
#pragma once

#include <stddef.h>

#include "base/status.h"

/* Bytes left below the caller's frame; SIZE_MAX on a stack that is not the thread's own (a host's coroutine). */
LM_API size_t lm_stack_left(void);
/* Bytes of that stack, used ones too; SIZE_MAX as above. */
LM_API size_t lm_stack_size(void);
