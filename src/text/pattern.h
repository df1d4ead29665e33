/* What Split and Replace look for: a text, or a regular expression by PCRE2.
 *
 * Expressions are those of Oniguruma's Ruby syntax, which files of Hugging Face's are written in, as far as they mean
 * the same to PCRE2 or can be written so that they do; others are refused. Memory of a match is bounded, and so is the
 * time of all that are done for one text (work.h): what passes that is an error. */
#pragma once

#include "base/status.h"
#include "text/work.h"

typedef struct lm_pattern lm_pattern;

/* text: n bytes of UTF-8. */
LM_API lm_status lm_pattern_literal(const char *text, size_t n, lm_pattern **out);
LM_API lm_status lm_pattern_regex(const char *text, size_t n, lm_pattern **out);
void lm_pattern_free(lm_pattern *p);

#define LM_PATTERN_START ((size_t)-1)
/* Each match in text, in order; *at is where the last one ended (LM_PATTERN_START at first) and *from, *to are the
 * next. *found is false where there is none. An empty match at the end of the one before does not count. Steps are
 * taken of *work. */
lm_status lm_pattern_next(const lm_pattern *p, const char *text, size_t n, uint64_t *work, size_t *at, bool *found,
                          size_t *from, size_t *to);
