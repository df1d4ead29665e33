/* Finds the known word that a misspelled one probably meant, for messages. */
#pragma once

#include "base/status.h"

/* Returns the name that takes the fewest edits (insert, delete, replace, swap neighbors) to become `word`; NULL if none
 * is close, that is, if each needs at least two edits and more than a third of the longer word. */
LM_API const char *lm_nearest(const char *word, int n, const char *const *names);
