/* Applies Unicode's normalization forms with the alignment of Hugging Face's unicode-normalization-alignments: the
 * first character of a decomposition replaces the original, the others are insertions; a composition replaces all
 * characters that it combines. utf8proc supplies the tables. */
#include <stdlib.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/step.h"

typedef struct change_char {
  uint32_t c;
  int change;
  int32_t order; /* original index, for a stable sort */
  uint8_t class;
} change_char;

typedef struct forms {
  lm_rewrite *r;
  bool composes;
  change_char *mark; /* pending marks after the starter */
  size_t n, capacity;
  change_char starter;
  bool has_starter;
} forms;

static int compare_classes(const void *a, const void *b) {
  const change_char *x = a, *y = b;
  return x->class != y->class ? x->class - y->class : x->order - y->order;
}

/* Returns the composition of a and b, or 0 if there is none. */
static uint32_t composed(uint32_t a, uint32_t b) {
  utf8proc_int32_t pair[2] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b};
  return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 ? (uint32_t)pair[0] : 0;
}

/* Writes the starter and its marks in their canonical order, composed where they can be. */
static void flush(forms *f) {
  bool sorted = true;
  for (size_t i = 1; i < f->n && sorted; i++) sorted = f->mark[i - 1].class <= f->mark[i].class;
  if (!sorted) qsort(f->mark, f->n, sizeof *f->mark, compare_classes);
  size_t kept = 0;
  int last = -1; /* class of the last uncomposed mark, which blocks marks of its class */
  for (size_t i = 0; i < f->n && f->composes && f->has_starter; i++) {
    uint32_t c = f->mark[i].class > last ? composed(f->starter.c, f->mark[i].c) : 0;
    if (c) {
      f->starter.c = c;
      f->starter.change += f->mark[i].change - 1;
    } else {
      last = f->mark[i].class;
      f->mark[kept++] = f->mark[i];
    }
  }
  if (f->composes && f->has_starter) f->n = kept;
  if (f->has_starter) lm_rewrite_put(f->r, f->starter.c, f->starter.change);
  for (size_t i = 0; i < f->n; i++) lm_rewrite_put(f->r, f->mark[i].c, f->mark[i].change);
  f->n = 0;
  f->has_starter = false;
}

static bool add_character(forms *f, uint32_t c, int change) {
  change_char added = {c, change, (int32_t)f->n, (uint8_t)utf8proc_get_property((utf8proc_int32_t)c)->combining_class};
  if (added.class != 0) return LM_APPEND(f->mark, f->n, f->capacity, added);
  uint32_t both = f->composes && f->has_starter && f->n == 0 ? composed(f->starter.c, c) : 0;
  if (both) {
    f->starter.c = both;
    f->starter.change += change - 1;
    return true;
  }
  flush(f);
  f->starter = added;
  f->has_starter = true;
  return true;
}

enum { MAX_DECOMPOSED = 32 }; /* the longest has 18: U+FDFA */

lm_status lm_normalize_form(const void *step, lm_rewrite *r) {
  const lm_step *s = step;
  bool compatible = s->kind == LM_NORM_NFKC || s->kind == LM_NORM_NFKD;
  utf8proc_option_t options = (utf8proc_option_t)(UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  forms f = {r, s->kind == LM_NORM_NFC || s->kind == LM_NORM_NFKC, NULL, 0, 0, {0}, false};
  lm_status status = LM_OK;
  for (size_t i = 0; i < r->n;) {
    uint32_t c;
    utf8proc_int32_t parts[MAX_DECOMPOSED];
    int ignored = 0;
    i += (size_t)lm_char_at(r->text + i, &c);
    utf8proc_ssize_t n = 1;
    parts[0] = (utf8proc_int32_t)c;
    if (c >= 0xa0) n = utf8proc_decompose_char((utf8proc_int32_t)c, parts, MAX_DECOMPOSED, options, &ignored);
    if (n < 0 || n > MAX_DECOMPOSED) TRY(lm_fail(LM_E_ARG, "cannot decompose U+%04X", c));
    for (utf8proc_ssize_t k = 0; k < n; k++) {
      if (!add_character(&f, (uint32_t)parts[k], k > 0)) TRY(LM_E_OOM);
    }
  }
  flush(&f);
done:
  lm_free(f.mark);
  return status;
}
