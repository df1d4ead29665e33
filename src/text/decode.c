/* Decodes tokens to text: each decoder transforms a list of texts into another, and the last list is concatenated. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"

typedef struct texts {
  lm_bytes data;
  size_t *end; /* end of each text in data, in bytes */
  size_t n, capacity, most;
  bool failed;
} texts;

static void texts_free(texts *t) {
  lm_bytes_free(&t->data);
  lm_free(t->end);
}

/* Appends bytes to the current text, which end_text closes. */
static void append_text(texts *t, const char *text, size_t n) {
  if (t->data.n + n > t->most) t->failed = true;
  if (n > 0 && !t->failed) lm_put(&t->data, text, n);
}

static void end_text(texts *t) {
  if (!LM_APPEND(t->end, t->n, t->capacity, t->data.n)) t->failed = true;
}

static const char *text_at(const texts *t, size_t i, size_t *n) {
  size_t from = i ? t->end[i - 1] : 0;
  *n = t->end[i] - from;
  return t->data.data + from; /* must not be read if *n is 0 */
}

static bool begins(const char *text, size_t n, const lm_string *with) {
  return n >= with->n && (with->n == 0 || memcmp(text, with->data, with->n) == 0);
}

static void put_replaced(texts *to, const char *text, size_t n, const lm_string *old, const char *replacement) {
  const char *end = text + n, *hit;
  while (n > 0 && old->n > 0 && (hit = memmem(text, (size_t)(end - text), old->data, old->n)) != NULL) {
    append_text(to, text, (size_t)(hit - text));
    append_text(to, replacement, strlen(replacement));
    text = hit + old->n;
  }
  if (n > 0) append_text(to, text, (size_t)(end - text));
}

static void put_lossy(texts *to, const char *s, size_t n) {
  for (size_t i = 0, from = 0; i < n;) {
    size_t good = lm_utf8_check(s + i, n - i);
    append_text(to, s + from, i + good - from);
    from = i += good;
    if (i == n) return;
    append_text(to, "\xef\xbf\xbd", 3);
    from = i += lm_char_broken(s + i, n - i);
  }
}

/* ---- the decoders, each from one list to another */

/* Writes what one text of the list becomes. `position` is FIRST and LAST, or neither. */
typedef void (*decode_text)(const lm_step *s, const char *text, size_t n, int position, texts *to);
enum { FIRST = 1, LAST = 2 };

static void decode_each(const lm_step *s, const texts *from, decode_text decode, texts *to) {
  for (size_t i = 0, n; i < from->n; i++) {
    const char *text = text_at(from, i, &n);
    decode(s, text, n, (i == 0 ? FIRST : 0) | (i + 1 == from->n ? LAST : 0), to);
    end_text(to);
  }
}

static void decode_bpe(const lm_step *s, const char *text, size_t n, int position, texts *to) {
  put_replaced(to, text, n, &s->text, position & LAST ? "" : " ");
}

static bool put_bytes(lm_bytes *to, const char *text, size_t n) {
  size_t was = to->n;
  for (size_t i = 0; i < n;) {
    uint32_t c;
    i += (size_t)lm_char_at(text + i, &c);
    int byte = lm_byte_of_char(c);
    if (byte < 0) {
      to->n = was;
      return false;
    }
    lm_put_u8(to, (uint8_t)byte);
  }
  return true;
}

static void decode_byte_level(const texts *from, texts *to) {
  lm_bytes bytes = {0};
  for (size_t i = 0, n; i < from->n; i++) {
    const char *text = text_at(from, i, &n);
    if (n > 0 && !put_bytes(&bytes, text, n)) lm_put(&bytes, text, n);
  }
  to->failed = to->failed || bytes.failed;
  put_lossy(to, bytes.data, bytes.n);
  end_text(to);
  lm_bytes_free(&bytes);
}

/* Replaces `old` by `replacement` in the current text, which starts at byte `from`. */
static void replace_in_last(texts *to, size_t from, const char *old, size_t old_n, const char *replacement) {
  texts replaced = {.most = to->most};
  const char *text = to->data.data + from;
  size_t n = to->data.n - from;
  if (n == 0 || to->failed || !memmem(text, n, old, old_n)) return;
  put_replaced(&replaced, text, n, &(lm_string){(char *)old, old_n}, replacement);
  to->data.n = from;
  append_text(to, replaced.data.data, replaced.data.n);
  to->failed = to->failed || replaced.failed || replaced.data.failed;
  texts_free(&replaced);
}

/* Removes the spaces that BERT's tokens leave around punctuation and contractions from the current text. */
static void clean_last(texts *to, size_t from) {
  static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                         {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                         {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
    replace_in_last(to, from, pairs[k][0], strlen(pairs[k][0]), pairs[k][1]);
}

/* Joins word pieces. on[0]: true to remove spaces before punctuation. */
static void decode_wordpiece(const lm_step *s, const char *text, size_t n, int position, texts *to) {
  bool later = !(position & FIRST), continues = later && begins(text, n, &s->text);
  size_t was = to->data.n, cut = continues ? s->text.n : 0;
  if (later && !continues) append_text(to, " ", 1);
  if (n > cut) append_text(to, text + cut, n - cut);
  if (s->on[0]) clean_last(to, was);
}

static void decode_metaspace(const lm_step *s, const char *text, size_t n, int position, texts *to) {
  put_replaced(to, text, n, &s->text, position & FIRST && s->prepend != LM_PREPEND_NEVER ? "" : " ");
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Writes a run of bytes as one text if it is valid UTF-8, else one U+FFFD for each byte. */
static void flush_bytes(texts *to, lm_bytes *bytes) {
  if (bytes->n == 0) return;
  if (lm_utf8_check(bytes->data, bytes->n) == bytes->n) {
    append_text(to, bytes->data, bytes->n);
    end_text(to);
  } else {
    for (size_t i = 0; i < bytes->n; i++) {
      append_text(to, "\xef\xbf\xbd", 3);
      end_text(to);
    }
  }
  bytes->n = 0;
}

static void decode_byte_fallback(const texts *from, texts *to) {
  lm_bytes bytes = {0};
  for (size_t i = 0, n; i < from->n; i++) {
    const char *text = text_at(from, i, &n);
    bool is_byte = n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
    int high = is_byte ? hex_digit(text[3]) : -1, low = is_byte ? hex_digit(text[4]) : -1;
    if (is_byte && text[3] == '+' && low >= 0) high = 0; /* accepts a plus sign, as Rust's parser of numbers does */
    if (high >= 0 && low >= 0) {
      lm_put_u8(&bytes, (uint8_t)(high << 4 | low));
      continue;
    }
    flush_bytes(to, &bytes);
    append_text(to, text, n);
    end_text(to);
  }
  flush_bytes(to, &bytes);
  to->failed = to->failed || bytes.failed;
  lm_bytes_free(&bytes);
}

/* Strips s->text at most `first` times at the beginning and `second` times at the end. */
static void decode_strip(const lm_step *s, const char *text, size_t n, int position, texts *to) {
  size_t at = 0;
  (void)position;
  for (int32_t k = 0; k < s->first && at < n && begins(text + at, n - at, &s->text); k++) at += s->text.n;
  for (int32_t k = 0; k < s->second && n - at >= s->text.n && begins(text + n - s->text.n, s->text.n, &s->text); k++) {
    n -= s->text.n;
  }
  append_text(to, text + at, n - at);
}

static lm_status decode_replace(const lm_step *s, const texts *from, uint64_t *work, texts *to) {
  for (size_t i = 0, n; i < from->n; i++) {
    const char *text = text_at(from, i, &n);
    size_t at = LM_PATTERN_START, begin, end, done = 0;
    for (bool found = n > 0; found && !to->failed;) {
      NEED(lm_pattern_next(s->pattern, text, n, work, &at, &found, &begin, &end));
      if (!found) break;
      append_text(to, text + done, begin - done);
      append_text(to, s->text.data, s->text.n);
      done = end;
    }
    if (n > done) append_text(to, text + done, n - done);
    end_text(to);
  }
  return LM_OK;
}

/* Collapses repeated tokens, and drops CTC's blank. on[0]: true to clean up spaces */
static void decode_ctc(const lm_step *s, const texts *from, texts *to) {
  for (size_t i = 0, n, before_n; i < from->n; i++) {
    const char *text = text_at(from, i, &n), *before = i ? text_at(from, i - 1, &before_n) : NULL;
    if (before && before_n == n && (n == 0 || memcmp(before, text, n) == 0)) continue;
    size_t was = to->data.n;
    put_replaced(to, text, n, &s->text, "");
    if (s->on[0]) {
      clean_last(to, was);
      if (s->word.n > 0) replace_in_last(to, was, s->word.data, s->word.n, " ");
    }
    if (to->data.n > was) end_text(to);
  }
}

static lm_status decode_step(const lm_step *s, const texts *from, uint64_t *work, texts *to) {
  switch (s->kind) {
    case LM_DECODE_BPE: decode_each(s, from, decode_bpe, to); break;
    case LM_DECODE_BYTE_LEVEL: decode_byte_level(from, to); break;
    case LM_DECODE_WORDPIECE: decode_each(s, from, decode_wordpiece, to); break;
    case LM_DECODE_METASPACE: decode_each(s, from, decode_metaspace, to); break;
    case LM_DECODE_BYTE_FALLBACK: decode_byte_fallback(from, to); break;
    case LM_DECODE_FUSE:
      append_text(to, from->data.data, from->data.n);
      end_text(to);
      break;
    case LM_DECODE_STRIP: decode_each(s, from, decode_strip, to); break;
    case LM_DECODE_REPLACE: return decode_replace(s, from, work, to);
    case LM_DECODE_CTC: decode_ctc(s, from, to); break;
    default: break;
  }
  return LM_OK;
}

/* Returns the text of a token for decoders, or NULL if it is skipped. */
static const char *decoded_text(const lm_tokenizer *t, int32_t id, bool skip_special, size_t *n) {
  const lm_added_token *a = lm_tokenizer_added(t, id);
  const char *text = a && a->normalized.data ? a->normalized.data : lm_tokenizer_token(t, id, n);
  if (a && a->normalized.data) *n = a->normalized.n;
  if (!text || !skip_special) return text;
  int32_t position = lm_vocabulary_find(&t->added.position, text, *n);
  return position >= 0 && t->added.item[position].special ? NULL : text;
}

lm_status lm_tokenizer_decode(lm_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, lm_bytes *out) {
  __attribute__((cleanup(texts_free))) texts a = {.most = LM_TEXT_MAX}, b = {0};
  for (size_t i = 0; i < n && !a.failed; i++) {
    size_t bytes;
    const char *text = decoded_text(t, ids[i], skip_special, &bytes);
    if (!text) continue;
    if (!t->has_decoder && a.n > 0) append_text(&a, " ", 1);
    append_text(&a, text, bytes);
    end_text(&a);
  }
  uint64_t work = lm_work_for(a.data.n);
  a.most = b.most = a.data.n < LM_TEXT_MAX / 64 ? 64 * a.data.n + (1 << 20) : LM_TEXT_MAX;
  for (size_t i = 0; i < t->decoders.n; i++) {
    b.data.n = b.n = 0;
    NEED(decode_step(&t->decoders.item[i], &a, &work, &b));
    b.failed = b.failed || a.failed;
    texts was = a;
    a = b;
    b = was;
  }
  if (a.data.failed) return lm_fail(LM_E_OOM, "out of memory: decoding %zu tokens", n);
  if (a.failed) return lm_fail(LM_E_ARG, "the text of %zu tokens must have at most %zu bytes", n, a.most);
  if (a.data.n) lm_put(out, a.data.data, a.data.n);
  return LM_OK;
}
