#define _GNU_SOURCE /* memmem */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "text/characters.h"

enum {
  MOST_PATTERN = 1 << 16, /* bytes of an expression */
  MOST_STEPS = 10000000,  /* of one match */
  MOST_DEPTH = 1000000,
  MOST_HEAP = 64 << 10,      /* KiB of one match */
  JIT_STACK = 8 << 20,       /* bytes */
  MOST_COMPILED = 256 << 10, /* bytes of the compiled expression, before its machine code */
};

struct lm_pattern {
  char *literal; /* NULL: an expression */
  size_t n;
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

static lm_status no_memory(void) { return lm_fail(LM_E_OOM, "out of memory: a pattern"); }

void lm_pattern_free(lm_pattern *p) {
  if (!p) return;
  lm_free(p->literal);
  pcre2_match_data_free(p->data);
  pcre2_match_context_free(p->context);
  pcre2_jit_stack_free(p->stack);
  pcre2_code_free(p->code);
  lm_free(p);
}

lm_status lm_pattern_literal(const char *text, size_t n, lm_pattern **out) {
  lm_pattern *p = lm_calloc(1, sizeof *p);
  if (p) p->literal = lm_malloc(n + 1);
  if (!p || !p->literal) {
    lm_pattern_free(p);
    return LM_E_OOM;
  }
  memcpy(p->literal, text, n);
  p->n = n;
  *out = p;
  return LM_OK;
}

/* ---- Oniguruma's words for PCRE2's */
static lm_status refuse(const char *what, const char *text) {
  return lm_fail(LM_E_ARG, "the pattern '%s': %s", lm_brief(text, 200), what);
}

/* PCRE2 takes \p{Han} for what is used with Han too. */
static bool is_script(const char *name, size_t n) {
  static const char *const scripts[] = {"Arabic",    "Armenian",  "Bengali",  "Cyrillic", "Devanagari", "Ethiopic",
                                        "Georgian",  "Greek",     "Gujarati", "Han",      "Hangul",     "Hebrew",
                                        "Hiragana",  "Kannada",   "Katakana", "Khmer",    "Lao",        "Latin",
                                        "Malayalam", "Mongolian", "Myanmar",  "Sinhala",  "Tamil",      "Telugu",
                                        "Thai",      "Tibetan",   "Common",   "Inherited"};
  for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
    if (strlen(scripts[i]) == n && memcmp(scripts[i], name, n) == 0) return true;
  }
  return false;
}

/* A backslash and what follows it, at t[i]; gives how many bytes were read, or 0 where it is copied as it is. */
static size_t put_escape(const char *t, size_t n, size_t i, bool in_class, lm_bytes *to) {
  char c = i + 1 < n ? t[i + 1] : 0;
  const char *word = NULL;
  if (c == 's') word = "\\p{WSpace}";
  if (c == 'S') word = "\\P{WSpace}";
  if (c == 'd') word = "\\p{Nd}";
  if (c == 'D') word = "\\P{Nd}";
  if (c == 'w') word = in_class ? "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" : "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
  if (c == 'W' && !in_class) word = "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}]";
  if (c == 'h') word = in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
  if (word) {
    lm_put(to, word, strlen(word));
    return 2;
  }
  if (c == 'u' && i + 6 <= n) {
    lm_put(to, "\\x{", 3);
    lm_put(to, t + i + 2, 4);
    lm_put(to, "}", 1);
    return 6;
  }
  const char *end = (c == 'p' || c == 'P') && i + 2 < n && t[i + 2] == '{' ? memchr(t + i, '}', n - i) : NULL;
  if (!end) return 0;
  size_t from = i + 3 + (t[i + 3] == '^');
  lm_put(to, t + i, from - i);
  if (is_script(t + from, (size_t)(end - t) - from)) lm_put(to, "sc:", 3);
  lm_put(to, t + from, (size_t)(end + 1 - t) - from);
  return (size_t)(end + 1 - t) - i;
}

/* In Ruby's syntax a + after {1,3} is no possessive but a second repetition: PCRE2 is told so by a group. */
static lm_status translate(const char *t, size_t n, lm_bytes *to) {
  bool in_class = false;
  size_t class_at = 0;
  for (size_t i = 0; i < n; i++) {
    if (t[i] == '\\') {
      size_t read = put_escape(t, n, i, in_class, to);
      if (read == 0) lm_put(to, t + i, read = i + 1 < n ? 2 : 1);
      i += read - 1;
      continue;
    }
    if (in_class) {
      bool posix = t[i] == '[' && i + 1 < n && t[i + 1] == ':';
      if (t[i] == '[' && !posix) return refuse("a class within a class is not known here", t);
      if (t[i] == '&' && i + 1 < n && t[i + 1] == '&') return refuse("&& in a class is not known here", t);
      if (t[i] == ']' && i > class_at) in_class = false;
      const char *end = posix ? strstr(t + i, ":]") : NULL;
      if (end) {
        lm_put(to, t + i, (size_t)(end + 2 - t) - i);
        i = (size_t)(end + 1 - t);
        continue;
      }
    } else if (t[i] == '[') {
      in_class = true;
      class_at = i + 1 + (i + 1 < n && t[i + 1] == '^');
    } else if (t[i] == '}' && i + 1 < n && t[i + 1] == '+') {
      return refuse("a + after {…} is not known here", t);
    }
    lm_put(to, t + i, 1);
  }
  return to->failed ? no_memory() : LM_OK;
}

static lm_status compile(const char *t, const lm_bytes *written, lm_pattern *p) {
  int error;
  PCRE2_SIZE at;
  pcre2_compile_context *rules = pcre2_compile_context_create(NULL);
  if (!rules) return no_memory();
  pcre2_set_newline(rules, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(rules, 100);
  p->code = pcre2_compile((PCRE2_SPTR)written->data, written->n,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
                          &error, &at, rules);
  pcre2_compile_context_free(rules);
  if (!p->code) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(error, why, sizeof why);
    return refuse((const char *)why, t);
  }
  size_t bytes = 0;
  pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &bytes);
  if (bytes > MOST_COMPILED) return refuse("too large once its repetitions are written out", t);
  if (pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0) p->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
  p->data = pcre2_match_data_create(1, NULL);
  p->context = pcre2_match_context_create(NULL);
  if (!p->data || !p->context) return no_memory();
  pcre2_set_match_limit(p->context, MOST_STEPS);
  pcre2_set_depth_limit(p->context, MOST_DEPTH);
  pcre2_set_heap_limit(p->context, MOST_HEAP);
  pcre2_jit_stack_assign(p->context, NULL, p->stack);
  return LM_OK;
}

lm_status lm_pattern_regex(const char *text, size_t n, lm_pattern **out) {
  if (n > MOST_PATTERN) return lm_fail(LM_E_ARG, "a pattern of %zu bytes; at most %d", n, MOST_PATTERN);
  lm_bytes written = {0};
  lm_pattern *p = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  lm_put(&written, "", 0);
  lm_status status = translate(text, n, &written);
  if (status == LM_OK) status = compile(text, &written, p);
  lm_bytes_free(&written);
  if (status == LM_OK) {
    *out = p;
  } else {
    lm_pattern_free(p);
  }
  return status;
}

static lm_status regex_next(const lm_pattern *p, const char *text, size_t n, size_t start, bool *found, size_t *from,
                            size_t *to) {
  int rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, start, PCRE2_NO_UTF_CHECK, p->data, p->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, p->data, p->context);
  }
  *found = rc >= 0;
  if (rc == PCRE2_ERROR_NOMATCH) return LM_OK;
  if (rc < 0) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(rc, why, sizeof why);
    return lm_fail(LM_E_ARG, "the pattern takes too long on this text, at byte %zu: %s", start + 1, (const char *)why);
  }
  const PCRE2_SIZE *places = pcre2_get_ovector_pointer(p->data);
  *from = places[0];
  *to = places[1];
  if (*from > *to || *from < start) return lm_fail(LM_E_ARG, "the pattern has a \\K that goes back");
  return LM_OK;
}

lm_status lm_pattern_next(const lm_pattern *p, const char *text, size_t n, size_t *at, bool *found, size_t *from,
                          size_t *to) {
  if (p->literal) {
    size_t start = *at == LM_PATTERN_START ? 0 : *at;
    const char *hit = p->n > 0 && start < n ? memmem(text + start, n - start, p->literal, p->n) : NULL;
    *found = hit != NULL;
    *from = hit ? (size_t)(hit - text) : n;
    *at = *to = hit ? *from + p->n : n;
    return LM_OK;
  }
  size_t start = *at == LM_PATTERN_START ? 0 : *at;
  do {
    *found = false;
    if (start > n) return LM_OK;
    lm_status status = regex_next(p, text, n, start, found, from, to);
    if (status != LM_OK || !*found) return status;
    start = *to + (*to < n ? (size_t)lm_char_size(text[*to]) : 1); /* past an empty match that does not count */
  } while (*from == *to && *to == *at);
  *at = *to;
  return LM_OK;
}
