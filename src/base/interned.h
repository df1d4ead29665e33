/* Texts that last as long as the process: equal texts have one address. For few different ones, such as lines of
 * scripts and names. */
#pragma once

#include "base/status.h"

/* NULL when out of memory, which is not recorded as an error: what such texts are for can be left out. Any thread. */
LM_API const char *lm_interned(const char *text);

/* The line of the script that this thread runs, "train.lua:12", where somebody wants to know it (bind/gc_step.c); NULL
 * elsewhere. Interned. */
LM_API const char *lm_script_line(void);
LM_API void lm_set_script_line(const char *line);
