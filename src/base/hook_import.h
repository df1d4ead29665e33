/* A library's calls of a function it imports, led to one of ours: for faults in libraries that are as they are, and
 * whose callers cannot help. */
#pragma once

#include "base/status.h"

/* From now on the shared library that holds the address `inside` calls `replacement` where it called `symbol`; others
 * continue calling the original. LM_E_STATE if it imports no such function or its table cannot be written. */
LM_API lm_status lm_hook_import(const void *inside, const char *symbol, void *replacement);
