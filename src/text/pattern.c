#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "text/characters.h"

enum {
  MAX_PATTERN = 1 << 16,     /* longest expression, bytes */
  MAX_BACKTRACKS = 10000000, /* limit for one match; work.h bounds the total */
  MAX_DEPTH = 1000000,
  MAX_HEAP = 64 << 10,      /* KiB for one match */
  JIT_STACK = 8 << 20,      /* bytes */
  MAX_COMPILED = 512 << 10, /* bytes of the compiled expression, before its machine code */
  MAX_REPEAT = 1000,        /* largest n in {n} */
};

struct lm_pattern {
  char *text;
  size_t n;
  bool has_references;
  pcre2_code *code;
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

static lm_status no_memory(void) { return lm_fail(LM_E_OOM, "out of memory: a pattern"); }

void lm_pattern_free(lm_pattern *p) {
  if (!p) return;
  lm_free(p->text);
  pcre2_match_data_free(p->data);
  pcre2_match_context_free(p->context);
  pcre2_jit_stack_free(p->stack);
  pcre2_code_free(p->code);
  lm_free(p);
}

lm_status lm_pattern_literal(const char *text, size_t n, lm_pattern **out) {
  lm_pattern *p = lm_calloc(1, sizeof *p);
  if (p) p->text = lm_malloc(n + 1);
  if (!p || !p->text) {
    lm_pattern_free(p);
    return LM_E_OOM;
  }
  memcpy(p->text, text, n);
  p->text[n] = 0;
  p->n = n;
  *out = p;
  return LM_OK;
}

/* ---- Oniguruma's syntax, translated to PCRE2's */
static lm_status refuse(const char *what, const char *text) {
  return lm_fail(LM_E_ARG, "pattern '%s': %s", lm_ellipsize(text, 200), what);
}

/* True for script names: PCRE2 reads \p{Han} as Script_Extensions, so "sc:" must precede them. */
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

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}" /* PCRE2's \w lacks marks */

/* Translates the escape sequence at t[i]; returns how many bytes it read, or 0 if PCRE2 takes the escape unchanged. */
static size_t put_escape(const char *t, size_t n, size_t i, bool in_class, lm_bytes *to) {
  char c = i + 1 < n ? t[i + 1] : 0;
  const char *word = NULL;
  if (c == 's') word = "\\p{WSpace}";
  if (c == 'S') word = "\\P{WSpace}";
  if (c == 'd') word = "\\p{Nd}";
  if (c == 'D') word = "\\P{Nd}";
  if (c == 'w') word = in_class ? WORD : "[" WORD "]";
  if (c == 'W' && !in_class) word = "[^" WORD "]";
  if (c == 'b' && !in_class) word = "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))";
  if (c == 'B' && !in_class) word = "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))";
  if (c == 'h') word = in_class ? "0-9a-fA-F" : "[0-9a-fA-F]";
  if (c == 'H' && !in_class) word = "[^0-9a-fA-F]";
  if (c == 'v') word = "\\x{b}";
  if (c == 'Q') word = "Q";
  if (c == 'E') word = "E";
  if (c == 'X' && !in_class) word = "(?:\\X)"; /* a group, so that PCRE2 calls count_item for it */
  if (word) {
    lm_put(to, word, strlen(word));
    return 2;
  }
  if (c == 'u' && i + 6 <= n && strspn(t + i + 2, "0123456789abcdefABCDEF") >= 4) {
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

/* Translates {n,m} at t[i]; returns how many bytes it read, or 0 if that is no repetition. */
static size_t put_repeat(const char *t, size_t i, lm_bytes *to, lm_status *status) {
  size_t at = i + 1, low = strspn(t + at, "0123456789"), high = 0;
  at += low;
  bool two = t[at] == ',';
  if (two) high = strspn(t + at + 1, "0123456789");
  at += two + high;
  if (t[at] != '}' || low + high == 0) return 0;
  if (t[at + 1] == '+') *status = refuse("+ after {…} is not supported", t);
  if (t[at + 1] == '{' || t[at + 1] == '*') *status = refuse("a repetition of a repetition is not supported", t);
  if (!two && t[at + 1] == '?') *status = refuse("? after {n} is not supported", t);
  if (low > 9 || high > 9 || atol(t + i + 1) > MAX_REPEAT || (high && atol(t + at - high) > MAX_REPEAT)) {
    *status = refuse("repetitions must be at most 1000", t);
  }
  lm_put(to, low ? "{" : "{0", low ? 1 : 2);
  lm_put(to, t + i + 1, at - i);
  return at + 1 - i;
}

/* Translates (?imx) or (?imx: at t[i], where m is PCRE2's s; returns how many bytes it read, or 0. */
static size_t put_flags(const char *t, size_t i, lm_bytes *to) {
  size_t flags = t[i + 1] == '?' ? strspn(t + i + 2, "imx-") : 0;
  if (flags == 0) return 0;
  char end = t[i + 2 + flags];
  if (end != ':' && end != ')') return 0;
  lm_put(to, "(?", 2);
  for (size_t k = 0; k < flags; k++) lm_put(to, t[i + 2 + k] == 'm' ? "s" : t + i + 2 + k, 1);
  lm_put(to, &end, 1);
  return flags + 3;
}

static lm_status translate_pattern(const char *t, size_t n, lm_bytes *to) {
  lm_status status = LM_OK;
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
      if (t[i] == '[' && !posix) return refuse("a class within a class is not supported", t);
      if (t[i] == '&' && i + 1 < n && t[i + 1] == '&') return refuse("&& in a class is not supported", t);
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
    } else if (t[i] == '{' || t[i] == '(') {
      size_t read = t[i] == '{' ? put_repeat(t, i, to, &status) : put_flags(t, i, to);
      if (status != LM_OK) return status;
      i += read ? read - 1 : 0;
      if (read) continue;
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
  p->code = pcre2_compile(
      (PCRE2_SPTR)written->data, written->n,
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C | PCRE2_AUTO_CALLOUT,
      &error, &at, rules);
  pcre2_compile_context_free(rules);
  if (!p->code) {
    PCRE2_UCHAR why[200];
    pcre2_get_error_message(error, why, sizeof why);
    return refuse((const char *)why, t);
  }
  size_t bytes = 0;
  pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &bytes);
  if (bytes > MAX_COMPILED) return refuse("it is too large once its repetitions are expanded", t);
  uint32_t references = 0;
  pcre2_pattern_info(p->code, PCRE2_INFO_BACKREFMAX, &references);
  p->has_references = references > 0;
  if (pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0) p->stack = pcre2_jit_stack_create(1 << 15, JIT_STACK, NULL);
  p->data = pcre2_match_data_create(1, NULL);
  p->context = pcre2_match_context_create(NULL);
  if (!p->data || !p->context) return no_memory();
  pcre2_set_match_limit(p->context, MAX_BACKTRACKS);
  pcre2_set_depth_limit(p->context, MAX_DEPTH);
  pcre2_set_heap_limit(p->context, MAX_HEAP);
  pcre2_jit_stack_assign(p->context, NULL, p->stack);
  return LM_OK;
}

lm_status lm_pattern_regex(const char *text, size_t n, lm_pattern **out) {
  if (n > MAX_PATTERN) return lm_fail(LM_E_ARG, "pattern must have at most %d bytes, got %zu", MAX_PATTERN, n);
  lm_bytes written = {0};
  lm_pattern *p;
  lm_status status = lm_pattern_literal(text, n, &p);
  if (status != LM_OK) return status;
  if (n == 0) lm_put(&written, "(?:)", 4); /* PCRE2 refuses a NULL pattern */
  status = translate_pattern(p->text, n, &written);
  if (status == LM_OK) status = compile(p->text, &written, p);
  lm_bytes_free(&written);
  if (status == LM_OK) {
    *out = p;
  } else {
    lm_pattern_free(p);
  }
  return status;
}

/* State of count_item, which PCRE2 calls before each item of the expression. It counts the bytes read since the last
 * call and, with back-references, those that a reference may have compared. */
typedef struct counting {
  uint64_t *work;
  size_t at;
  bool has_references;
} counting;

static int count_item(pcre2_callout_block *b, void *with) {
  counting *c = with;
  uint64_t steps = 1 + (b->current_position > c->at ? b->current_position - c->at : 0);
  for (uint32_t i = 1; c->has_references && i < b->capture_top; i++) {
    const PCRE2_SIZE *position = b->offset_vector + 2 * (size_t)i;
    if (position[0] != PCRE2_UNSET && position[1] > position[0]) steps += position[1] - position[0];
  }
  c->at = b->current_position;
  return lm_work_take(c->work, steps) ? 0 : PCRE2_ERROR_CALLOUT;
}

static lm_status regex_next(const lm_pattern *p, const char *text, size_t n, uint64_t *work, size_t start, bool *found,
                            size_t *from, size_t *to) {
  counting c = {work, start, p->has_references};
  pcre2_set_callout(p->context, count_item, &c);
  int rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, start, PCRE2_NO_UTF_CHECK, p->data, p->context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, p->data, p->context);
  }
  *found = rc >= 0;
  if (rc == PCRE2_ERROR_NOMATCH) return LM_OK;
  if (rc < 0) {
    PCRE2_UCHAR why[200] = "too many steps";
    if (rc != PCRE2_ERROR_CALLOUT) pcre2_get_error_message(rc, why, sizeof why);
    return lm_fail(LM_E_ARG, "pattern '%s' takes too long on this text at byte %zu: %s", lm_ellipsize(p->text, 200),
                   start + 1, (const char *)why);
  }
  const PCRE2_SIZE *indices = pcre2_get_ovector_pointer(p->data);
  *from = indices[0];
  *to = indices[1];
  if (*from > *to || *from < start)
    return lm_fail(LM_E_ARG, "pattern '%s': \\K before the start of a match is not supported",
                   lm_ellipsize(p->text, 200));
  return LM_OK;
}

lm_status lm_pattern_next(const lm_pattern *p, const char *text, size_t n, uint64_t *work, size_t *at, bool *found,
                          size_t *from, size_t *to) {
  if (!p->code) {
    size_t start = *at == LM_PATTERN_START ? 0 : *at;
    const char *hit = p->n > 0 && start < n ? memmem(text + start, n - start, p->text, p->n) : NULL;
    *found = hit != NULL;
    *from = hit ? (size_t)(hit - text) : n;
    *at = *to = hit ? *from + p->n : n;
    return LM_OK;
  }
  size_t start = *at == LM_PATTERN_START ? 0 : *at;
  do {
    *found = false;
    if (start > n) return LM_OK;
    lm_status status = regex_next(p, text, n, work, start, found, from, to);
    if (status != LM_OK || !*found) return status;
    start = *to + (*to < n ? (size_t)lm_char_size(text[*to]) : 1); /* past an empty match, should it not count */
  } while (*from == *to && *to == *at);
  *at = *to;
  return LM_OK;
}
