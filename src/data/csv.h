/* Tables as text (RFC 4180): fields between delimiters, those in quotes may hold delimiters, line ends and doubled
 * quotes. A quote anywhere else, and a row of more or fewer fields than the first, are errors. Blank lines are none. */
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

/* int64 [rows + 1]: where each row begins, and the end. */
LM_API lm_status lm_csv_rows(const lm_csv *c, lm_tensor **starts);

/* The fields of a row, from its first byte to the next row's, as they are meant: lm_put_string each, *count of them. */
LM_API lm_status lm_csv_fields(const lm_csv *c, int64_t from, int64_t to, lm_bytes *out, int *count);

enum { LM_CSV_NOT = -1 };

typedef struct lm_csv_plan {
  int columns;             /* of a row */
  const int *number;       /* of each column: which of the numbers it is, or LM_CSV_NOT */
  const int *text;         /* likewise of the texts */
  const char *const *name; /* for messages; NULL: by number alone */
  int numbers, texts;
  bool nan;  /* a missing number is one, else an error */
  bool skip; /* rows with errors are left out */
} lm_csv_plan;

typedef struct lm_csv_table {
  lm_tensor *numbers; /* float32 [rows, numbers] */
  lm_tensor *spans;   /* int64 [rows, texts, 2]: first byte and length in the text, without quotes around */
  int64_t rows, skipped;
} lm_csv_table;

/* starts: of the rows to read and the end, int64 [rows + 1]. */
LM_API lm_status lm_csv_read(const lm_csv *c, const lm_tensor *starts, const lm_csv_plan *plan, lm_csv_table *out);

/* A text at a span: doubled quotes become one if it stood in quotes. */
LM_API void lm_csv_text(const char *text, int64_t at, int64_t n, lm_bytes *out);

/* A decimal number, with white space around it, or inf. False if it is anything else, or too large for float32. */
LM_API bool lm_csv_number(const char *p, const char *end, double *out);
