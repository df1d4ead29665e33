#include "data/csv.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "base/parallel.h"
#include "io/file.h"
#include "op/kernels.h"

enum { NS_A_BYTE = 5 };

/* ---- rows and fields */

static bool is_end(char c) { return c == '\n' || c == '\r'; }

lm_status lm_csv_rows(const lm_csv *c, lm_tensor **starts) {
  LM_OWNED_BYTES found = {0};
  const char *p = c->text, *end = p + c->n;
  if (c->n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3; /* UTF-8's byte order mark */
  const char *quote = p;
  while (p < end) {
    if (is_end(*p)) {
      p++;
      continue;
    }
    lm_put_u64(&found, (uint64_t)(p - c->text));
    const char *newline = memchr(p, '\n', (size_t)(end - p));
    if (!newline) newline = end;
    if (quote < p) quote = p;
    if (quote < newline && *quote != '"' && !(quote = memchr(quote, '"', (size_t)(end - quote)))) quote = end;
    if (quote >= newline) {
      p = newline;
      continue;
    }
    for (bool first = true; p < end && *p != '\n';) { /* at the start of a field */
      if (*p == c->delimiter && !first) p++;
      first = false;
      if (p < end && *p == '"') {
        for (p++; p < end && !(*p == '"' && (++p == end || *p != '"')); p++) continue;
      }
      while (p < end && *p != '\n' && *p != c->delimiter) p++;
    }
  }
  lm_put_u64(&found, (uint64_t)c->n);
  return lm_tensor_of_bytes(c->path, &found, LM_I64, 1, starts);
}

typedef struct field {
  const char *from, *to;
  bool quoted;
} field;

/* Reads the field at p of a row that ends at `end`. Returns the next field, end + 1 after the last, NULL on an
 * error. */
static const char *next_field(char delimiter, const char *p, const char *end, field *f) {
  f->quoted = p < end && *p == '"';
  if (f->quoted) {
    f->from = ++p;
    while ((p = memchr(p, '"', (size_t)(end - p))) && p + 1 < end && p[1] == '"') p += 2;
    if (!p) return NULL;
    f->to = p++;
    return p == end || *p == delimiter ? p + 1 : NULL;
  }
  for (f->from = p; p < end && *p != delimiter; p++) {
    if (*p == '"') return NULL;
  }
  f->to = p;
  return p + 1;
}

static const char *row_end(const lm_csv *c, int64_t from, int64_t to) {
  while (to > from && is_end(c->text[to - 1])) to--;
  return c->text + to;
}

static int64_t line_of(const lm_csv *c, const char *at) {
  int64_t line = 1;
  for (const char *p = c->text; (p = memchr(p, '\n', (size_t)(at - p))); p++) line++;
  return line;
}

/* Words the error that made next_field return NULL at p. */
static lm_status no_field(const lm_csv *c, const char *p, int column) {
  return lm_fail_in_file(LM_E_IO, c->path, "line %lld, column %d: %s", (long long)line_of(c, p), column,
                         *p == '"' ? "a quoted field must end with a quote" : "a quote in an unquoted field");
}

void lm_csv_text(const char *text, int64_t at, int64_t n, lm_bytes *out) {
  const char *p = text + at, *end = p + n, *quote;
  bool quoted = at > 0 && p[-1] == '"';
  while (quoted && (quote = memchr(p, '"', (size_t)(end - p)))) {
    lm_put(out, p, (size_t)(quote + 1 - p));
    p = quote + 2 > end ? end : quote + 2;
  }
  lm_put(out, p, (size_t)(end - p));
}

lm_status lm_csv_fields(const lm_csv *c, int64_t from, int64_t to, lm_bytes *out, int *count) {
  const char *end = row_end(c, from, to);
  lm_status status = LM_OK;
  lm_bytes one = {0};
  *count = 0;
  for (const char *p = c->text + from, *next; p <= end; p = next) {
    field f;
    next = next_field(c->delimiter, p, end, &f);
    if (!next) {
      status = no_field(c, p, *count + 1);
      break;
    }
    one.n = 0;
    lm_csv_text(c->text, f.from - c->text, f.to - f.from, &one);
    lm_put_string(out, one.data, one.n);
    ++*count;
  }
  if (out->failed || one.failed) status = lm_fail_in_file(LM_E_OOM, c->path, "out of memory");
  lm_bytes_free(&one);
  return status;
}

/* ---- numbers */

static bool parse_by_strtod(const char *p, const char *end, double *out) {
  LM_PLAIN_NUMBERS(locale);
  char text[128], *stop;
  if (end - p >= (ptrdiff_t)sizeof text) return false;
  memcpy(text, p, (size_t)(end - p));
  text[end - p] = 0;
  *out = strtod(text, &stop);
  return *stop == 0;
}

static bool is_word(const char *p, const char *end, const char *word) {
  return (size_t)(end - p) == strlen(word) && memcmp(p, word, (size_t)(end - p)) == 0;
}

static void trim_field(const char **p, const char **end) {
  while (*p < *end && (**p == ' ' || **p == '\t')) ++*p;
  while (*p < *end && ((*end)[-1] == ' ' || (*end)[-1] == '\t')) --*end;
}

/* Parses a decimal number or inf between blanks. False for other text, and for numbers too large for float32.
 * Integers of up to 15 digits and powers of ten up to 22 are exact doubles: one rounding, as in the C library. */
static bool read_number(const char *p, const char *end, double *out) {
  static const double ten[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                               1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  trim_field(&p, &end);
  const char *from = p;
  bool negative = p < end && *p == '-';
  if (p < end && (*p == '-' || *p == '+')) p++;
  if (is_word(p, end, "inf") || is_word(p, end, "Inf") || is_word(p, end, "Infinity")) {
    *out = negative ? -INFINITY : INFINITY;
    return true;
  }
  uint64_t v = 0;
  int digits = 0, significant = 0, power = 0;
  bool point = false, large = false;
  for (; p < end && ((*p >= '0' && *p <= '9') || (*p == '.' && !point)); p++) {
    if (*p == '.') {
      point = true;
      continue;
    }
    digits++;
    if (v || *p != '0') significant++;
    if (significant <= 15) {
      v = v * 10 + (uint64_t)(*p - '0');
      power -= point;
    }
  }
  if (digits == 0) return false;
  if (p < end && (*p == 'e' || *p == 'E')) {
    int e = 0, sign = 1, first = 1;
    p++;
    if (p < end && (*p == '-' || *p == '+')) sign = *p++ == '-' ? -1 : 1;
    for (; p < end && *p >= '0' && *p <= '9'; p++, first = 0) e = e < 10000 ? e * 10 + (*p - '0') : e;
    if (first) return false;
    power += sign * e;
  }
  if (p != end) return false;
  if (significant > 15 || power > 22 || power < -22) {
    if (!parse_by_strtod(from, end, out)) return false;
  } else {
    *out = power < 0 ? (double)v / ten[-power] : (double)v * ten[power];
    if (negative) *out = -*out;
  }
  large = fabs(*out) > (double)FLT_MAX;
  return !large;
}

static bool is_missing(const char *p, const char *end) {
  static const char *const words[] = {"", "NA", "N/A", "NaN", "nan", "null", "NULL"};
  trim_field(&p, &end);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (is_word(p, end, words[i])) return true;
  }
  return false;
}

/* ---- the table */

/* Reads one row into numbers and spans; words an error only if `tell` is set. */
static lm_status read_row(const lm_csv *c, const lm_csv_plan *plan, int64_t from, int64_t to, float *numbers,
                          int64_t *spans, bool tell) {
  const char *end = row_end(c, from, to), *p = c->text + from, *next;
  int column = 0;
  for (; p <= end; p = next, column++) {
    field f;
    next = next_field(c->delimiter, p, end, &f);
    if (!next) return tell ? no_field(c, p, column + 1) : LM_E_IO;
    if (column >= plan->columns) continue;
    int number = plan->number[column], text = plan->text[column];
    if (number != LM_CSV_NOT) {
      double v = NAN;
      bool known = read_number(f.from, f.to, &v), missing = !known && is_missing(f.from, f.to);
      if (missing) v = NAN;
      if (!known && !(missing && plan->nan)) {
        if (!tell) return LM_E_IO;
        char shown[64];
        const char *name = plan->name ? plan->name[column] : NULL;
        lm_write_bytes(shown, sizeof shown, f.from, (size_t)(f.to - f.from));
        return lm_fail_in_file(
            LM_E_IO, c->path, "line %lld, column %d%s%s%s: expected a float32 number, got %s'%s'; %s",
            (long long)line_of(c, p), column + 1, name ? " ('" : "", name ? lm_ellipsize(name, 60) : "",
            name ? "')" : "", missing ? "the missing value " : "", lm_ellipsize(shown, 60),
            missing ? "pass {missing = \"nan\"} to read it as NaN"
                    : "pass {categorical = \"<column>\"} or {label = \"<column>\"} to read values as classes, "
                      "{text = \"<column>\"} as strings");
      }
      numbers[number] = (float)v;
    }
    if (text != LM_CSV_NOT) {
      spans[2 * text] = f.from - c->text;
      spans[2 * text + 1] = f.to - f.from;
    }
  }
  if (column == plan->columns) return LM_OK;
  return tell ? lm_fail_in_file(LM_E_IO, c->path, "line %lld: expected %d fields as in the first line, got %d",
                                (long long)line_of(c, c->text + from), plan->columns, column)
              : LM_E_IO;
}

typedef struct rows_job {
  const lm_csv *c;
  const lm_csv_plan *plan;
  const int64_t *at; /* offsets of the rows */
  float *numbers;
  int64_t *spans;
  uint8_t *is_bad;
} rows_job;

static void read_rows(void *ctx, int64_t first, int64_t last) {
  const rows_job *j = ctx;
  int64_t wide = j->plan->numbers, long_ = 2 * (int64_t)j->plan->texts;
  for (int64_t i = first; i < last; i++)
    j->is_bad[i] =
        read_row(j->c, j->plan, j->at[i], j->at[i + 1], j->numbers + i * wide, j->spans + i * long_, false) != LM_OK;
}

lm_status lm_csv_read(const lm_csv *c, const lm_tensor *starts, const lm_csv_plan *plan, lm_csv_table *out) {
  lm_status status = LM_OK;
  const int64_t *at = (const int64_t *)starts->data;
  int64_t rows = starts->numel - 1, kept = 0, one = rows;
  int64_t number_size[2] = {rows, plan->numbers}, span_size[3] = {rows, plan->texts, 2};
  lm_tensor *bad = NULL;
  *out = (lm_csv_table){0};
  TRY(lm_tensor_empty(LM_F32, LM_DEVICE(LM_CPU, 0), 2, number_size, LM_CONTIGUOUS, &out->numbers));
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 3, span_size, LM_CONTIGUOUS, &out->spans));
  TRY(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &one, LM_CONTIGUOUS, &bad));
  float *numbers = (float *)out->numbers->data;
  int64_t *spans = (int64_t *)out->spans->data, wide = plan->numbers, long_ = 2 * (int64_t)plan->texts;
  uint8_t *is_bad = (uint8_t *)bad->data;
  TRY(lm_parallel(rows, NS_A_BYTE * (double)c->n, 0, read_rows, &(rows_job){c, plan, at, numbers, spans, is_bad}));
  for (int64_t i = 0; i < rows; i++) {
    if (is_bad[i]) {
      if (!plan->skip) TRY(read_row(c, plan, at[i], at[i + 1], numbers + i * wide, spans + i * long_, true));
      out->skipped++;
      continue;
    }
    if (kept < i && wide) memcpy(numbers + kept * wide, numbers + i * wide, (size_t)wide * sizeof *numbers);
    if (kept < i && long_) memcpy(spans + kept * long_, spans + i * long_, (size_t)long_ * sizeof *spans);
    kept++;
  }
  out->rows = kept;
done:
  lm_release(bad);
  if (status != LM_OK) {
    lm_release(out->numbers);
    lm_release(out->spans);
    *out = (lm_csv_table){0};
  }
  return status;
}
