/* Which known word somebody meant, for messages. */
#pragma once

#include "base/status.h"

/* The name that takes the fewest edits (insert, delete, replace, swap neighbors) to become `word`;
 * NULL if none is close: more than a third of the longer word, and more than one, would change. */
LM_API const char *lm_nearest(const char *word, int n, const char *const *names);
