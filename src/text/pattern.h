/* Searches for the patterns of Split and Replace: a literal text, or a regular expression compiled by PCRE2.
 *
 * Expressions are in Oniguruma's Ruby syntax, as in Hugging Face's files. Constructs that PCRE2 neither shares nor can
 * express are refused. The memory of one match and the steps of all matches in one text (work.h) are bounded; exceeding
 * a bound is an error. */
#pragma once

#include "base/status.h"
#include "text/work.h"

typedef struct lm_pattern lm_pattern;

/* Creates in *out, which the caller frees by lm_pattern_free, a pattern from n bytes of UTF-8. */
LM_API lm_status lm_pattern_literal(const char *text, size_t n, lm_pattern **out);
LM_API lm_status lm_pattern_regex(const char *text, size_t n, lm_pattern **out);
void lm_pattern_free(lm_pattern *p);

#define LM_PATTERN_START ((size_t)-1)
/* Finds the next match in text: [*from, *to), or *found = false. *at is the end of the previous match, LM_PATTERN_START
 * at first, and is updated. An empty match at the end of the previous one does not count. Subtracts the steps taken
 * from *work, which bounds those of a regular expression. */
lm_status lm_pattern_next(const lm_pattern *p, const char *text, size_t n, uint64_t *work, size_t *at, bool *found,
                          size_t *from, size_t *to);
