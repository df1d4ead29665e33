/* Reads the environment variables of lua/luminary/environment_variables.lua by their index in that table. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "variable_names.h" /* generated: lm_variable, an enum with LM_VAR_SHM for LM_SHM */

/* Returns the value; NULL if it is unset, empty, or not among the values its table entry allows (printed once). */
LM_API const char *lm_variable_get(lm_variable variable);
/* Returns true if a variable with the values 0 and 1 is "1"; `without` if it is unset. */
LM_API bool lm_variable_is_on(lm_variable variable, bool without);
