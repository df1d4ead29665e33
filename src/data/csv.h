/* Reads CSV tables (RFC 4180): quoted fields may contain delimiters, line ends and doubled quotes. A quote elsewhere,
 * and a row with more or fewer fields than the first, are errors. Blank lines are skipped. */
#pragma once

#include <stdbool.h>

#include "base/bytes.h"
#include "tensor/tensor.h"

typedef struct lm_csv {
  const char *path; /* for messages */
  const char *text;
  int64_t n;
  char delimiter;
} lm_csv;

/* Returns the offset of each row and of the end, int64 [rows + 1]. */
LM_API lm_status lm_csv_rows(const lm_csv *c, lm_tensor **starts);

/* Appends the row's *count fields, unquoted, by lm_put_string; the row is at `from`, the next one at `to`. */
LM_API lm_status lm_csv_fields(const lm_csv *c, int64_t from, int64_t to, lm_bytes *out, int *count);

enum { LM_CSV_NOT = -1 };

typedef struct lm_csv_plan {
  int columns;             /* fields of a row */
  const int *number;       /* each column's index among the numbers, or LM_CSV_NOT */
  const int *text;         /* each column's index among the texts, or LM_CSV_NOT */
  const char *const *name; /* columns' names for messages; NULL: numbers only */
  int numbers, texts;
  bool nan;  /* reads missing numbers as NaN; else they are errors */
  bool skip; /* leaves out rows with errors */
} lm_csv_plan;

typedef struct lm_csv_table {
  lm_tensor *numbers; /* float32 [rows, numbers] */
  lm_tensor *spans;   /* int64 [rows, texts, 2]: offset and length in the text, without the outer quotes */
  int64_t rows, skipped;
} lm_csv_table;

/* Reads the rows whose offsets are in `starts`, int64 [rows + 1], with the end. The caller releases the tensors. */
LM_API lm_status lm_csv_read(const lm_csv *c, const lm_tensor *starts, const lm_csv_plan *plan, lm_csv_table *out);

/* Appends the text at a span; undoubles quotes if a quote precedes the span. */
LM_API void lm_csv_text(const char *text, int64_t at, int64_t n, lm_bytes *out);
