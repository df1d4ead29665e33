/* Writes and reads numbers with a decimal point in any locale: the host's may have a comma. */
#pragma once

#include <locale.h>

#include "base/status.h"

LM_API locale_t lm_plain_numbers_begin(void);
LM_API void lm_plain_numbers_end(locale_t *before);
/* Makes printf, strtod and their kin use the point on this thread for the rest of a block. */
#define LM_PLAIN_NUMBERS(name) \
  __attribute__((cleanup(lm_plain_numbers_end), unused)) locale_t name = lm_plain_numbers_begin()
