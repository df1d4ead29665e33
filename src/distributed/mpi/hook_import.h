/* Replaces a function that a loaded library imports, in that library only, to work around the one fault that callers
 * cannot avoid (Open MPI 5's ompi_rte_init, see runtime.c). -DLM_HOOK_IMPORT=OFF builds without it, and
 * LM_HOOK_IMPORT=0 in the environment disables it. */
#pragma once

#include "base/status.h"

/* Makes the shared library that contains the address `inside` call `replacement` instead of `symbol`; other libraries
 * still call the original. LM_E_STATE if it imports no such function or its table cannot be written. */
lm_status lm_hook_import(const void *inside, const char *symbol, void *replacement);
