/* Interns texts for the life of the process: equal texts have one address. For few different texts, such as script
 * lines and names. */
#pragma once

#include "base/status.h"

/* Returns the interned copy of text; NULL when out of memory, without an error: callers do without it. Any thread. */
LM_API const char *lm_interned(const char *text);

/* Returns the interned line of the script that this thread runs, "train.lua:12", while anomaly mode, a profiler or the
 * memory history needs it (lm_note_line in bind/error.c); else NULL. */
const char *lm_script_line(void);
LM_API void lm_set_script_line(const char *line);
