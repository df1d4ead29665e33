/* The environment variables of lua/luminary/environment_variables.lua, read by their place in that table. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "variable_names.h" /* written while building: lm_variable, with LM_VAR_SHM for LM_SHM */

/* NULL if it is not set, empty, or none of the values that the table knows for it, which is reported once. */
LM_API const char *lm_variable_get(lm_variable variable);
/* What it is set to may be one of two: whether it is "1". */
LM_API bool lm_variable_is_on(lm_variable variable, bool without);
