#include "data/record_file.h"

#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"

enum { PIECE = 1 << 18 };

static uint64_t piece_at(const lm_file *f, uint64_t at) {
  uint64_t left = lm_file_bytes(f) - at;
  return left < PIECE ? left : PIECE;
}

/* ---- lines */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Skips white space, notes the offset of the next line and finds its end, in turn. */
lm_status lm_file_lines(lm_file *f, lm_tensor **out) {
  LM_OWNED_BYTES starts = {0};
  uint64_t n = 0, begins = 0, total = lm_file_bytes(f);
  bool within = false;
  for (uint64_t at = 0; at < total; at += n) {
    const char *p;
    n = piece_at(f, at);
    NEED(lm_file_view(f, at, n, &p));
    const char *first = p, *end = p + n;
    if (at == 0 && n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3, begins = 3; /* UTF-8's byte order mark */
    while (p < end) {
      if (!within) {
        while (p < end && is_space(*p)) {
          if (*p++ == '\n') begins = at + (uint64_t)(p - first);
        }
        if (p == end) break;
        lm_put_u64(&starts, begins);
        within = true;
      }
      const char *line_end = memchr(p, '\n', (size_t)(end - p));
      if (!line_end) break;
      p = line_end + 1;
      begins = at + (uint64_t)(p - first);
      within = false;
    }
  }
  lm_put_u64(&starts, total);
  NEED(lm_file_check(f));
  return lm_tensor_of_bytes(lm_file_path(f), &starts, LM_I64, 1, out);
}

/* ---- tokens */

static const struct {
  const char *name;
  int64_t bytes;
} kinds[] = {{"uint8", 1}, {"int16", 2}, {"uint16", 2}, {"int32", 4}, {"uint32", 4}, {"int64", 8}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int kind_of(const char *dtype) {
  int k = 0;
  while (k < KINDS && strcmp(kinds[k].name, dtype) != 0) k++;
  return k;
}

/* Widens n tokens to int64. Files are little-endian, as are the machines this runs on. */
#define WIDEN(type)                                     \
  for (int64_t i = 0; i < n; i++) {                     \
    type v;                                             \
    memcpy(&v, from + i * (int64_t)sizeof v, sizeof v); \
    to[i] = (int64_t)v;                                 \
  }                                                     \
  break
static void widen_to_int64(int kind, const char *restrict from, int64_t n, int64_t *restrict to) {
  switch (kind) {
    case 0: WIDEN(uint8_t);
    case 1: WIDEN(int16_t);
    case 2: WIDEN(uint16_t);
    case 3: WIDEN(int32_t);
    case 4: WIDEN(uint32_t);
    default: WIDEN(int64_t);
  }
}

static lm_status check_tokens(const lm_file *f, const lm_blocks *b, int64_t first, const int64_t *v) {
  for (int64_t i = 0; i <= b->size; i++) {
    if (v[i] < 0 || v[i] >= b->below) {
      return lm_fail_in_file(LM_E_IO, lm_file_path(f), "token %lld must be from 0 to %lld, got %lld",
                             (long long)(first + i + 1), (long long)b->below - 1, (long long)v[i]);
    }
  }
  return LM_OK;
}

lm_status lm_file_blocks(lm_file *f, const lm_blocks *b, lm_tensor *index, lm_tensor **x, lm_tensor **y) {
  lm_status status = LM_OK;
  int kind = kind_of(b->dtype);
  int64_t *tokens = NULL, item = kind < KINDS ? kinds[kind].bytes : 0, wanted;
  if (kind == KINDS) return lm_fail_dtype("Tokens", "dtype", "an integer dtype", lm_ellipsize(b->dtype, 40));
  if (index->dtype != LM_I64 || index->ndim != 1 || !lm_is_contiguous(index) ||
      LM_DEVICE_KIND(index->device) != LM_CPU) {
    return lm_fail_dtype("Tokens", "index", "a contiguous 1-d int64 tensor on cpu",
                         lm_text("%s %s", lm_dtype_name(index->dtype), lm_shape_of(index)));
  }
  if (__builtin_add_overflow(b->size, 1, &wanted) || __builtin_mul_overflow(wanted, item, &wanted) || b->size < 1) {
    return lm_fail_int("Tokens", "block_size", "at least 1", b->size);
  }
  const char *block;
  const int64_t bytes = (int64_t)lm_file_bytes(f), *at = (const int64_t *)index->data,
                shape[2] = {index->numel, b->size};
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 2, shape, LM_CONTIGUOUS, x));
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 2, shape, LM_CONTIGUOUS, y));
  tokens = lm_malloc((size_t)(b->size + 1) * sizeof *tokens);
  if (!tokens) TRY(LM_E_OOM);
  for (int64_t k = 0; k < index->numel; k++) {
    int64_t first, byte = 0;
    if (__builtin_mul_overflow(at[k] - 1, b->stride, &first) || __builtin_mul_overflow(first, item, &byte) ||
        __builtin_add_overflow(byte, b->from, &byte))
      TRY(lm_fail_in_file(LM_E_INDEX, lm_file_path(f), "block %lld is out of range", (long long)at[k]));
    if (byte < 0 || byte > bytes || wanted > bytes - byte)
      TRY(lm_fail_in_file(LM_E_IO, lm_file_path(f), "bytes %lld to %lld are out of range for a file of %lld",
                          (long long)byte, (long long)byte + (long long)wanted, (long long)bytes));
    TRY(lm_file_view(f, (uint64_t)byte, (uint64_t)wanted, &block));
    widen_to_int64(kind, block, b->size + 1, tokens);
    if (b->below) TRY(check_tokens(f, b, first, tokens));
    int64_t *p = (int64_t *)(*x)->data + k * b->size, *q = (int64_t *)(*y)->data + k * b->size;
    for (int64_t i = 0; i <= b->size; i++) tokens[i] = (int64_t)((uint64_t)tokens[i] + (uint64_t)b->base);
    memcpy(p, tokens, (size_t)b->size * sizeof *p);
    memcpy(q, tokens + 1, (size_t)b->size * sizeof *q);
  }
  TRY(lm_file_check(f));
done:
  lm_free(tokens);
  if (status != LM_OK) {
    lm_release(*x);
    lm_release(*y);
    *x = *y = NULL;
  }
  return status;
}
