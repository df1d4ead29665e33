/* A library's calls of a function it imports, led to one of ours: for the one fault of a library that callers cannot
 * avoid (Open MPI 5's ompi_rte_init, see runtime.c). Nothing else of the process is redirected by anything here; built
 * without it by -DLM_HOOK_IMPORT=OFF, and not used with LM_HOOK_IMPORT=0 in the environment. */
#pragma once

#include "base/status.h"

/* From now on the shared library that holds the address `inside` calls `replacement` where it called `symbol`; others
 * continue calling the original. LM_E_STATE if it imports no such function or its table cannot be written. */
lm_status lm_hook_import(const void *inside, const char *symbol, void *replacement);
