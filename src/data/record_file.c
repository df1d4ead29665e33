#include "data/record_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"

enum { PIECE = 1 << 18 };

struct lm_source {
  char *path, stamp[64];
  int fd;
  struct stat info;
  char *buffer;
  size_t capacity;
  int64_t from, to; /* what lies in it of the file, for lm_source_read */
};

void lm_source_close(lm_source *s) {
  if (!s) return;
  if (s->fd >= 0) close(s->fd);
  lm_free(s->buffer);
  lm_free(s->path);
  lm_free(s);
}

lm_status lm_source_open(const char *path, lm_source **out) {
  lm_status status = LM_OK;
  size_t bytes = strlen(path) + 1;
  lm_source *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->fd = -1;
  s->from = s->to = -1;
  if (!(s->path = lm_malloc(bytes))) {
    status = LM_E_OOM;
    goto done;
  }
  memcpy(s->path, path, bytes);
  TRY(lm_file_open(path, 0, &s->fd, &s->info));
  snprintf(s->stamp, sizeof s->stamp, "%lld bytes, %lld.%09ld", (long long)s->info.st_size,
           (long long)s->info.st_mtim.tv_sec, s->info.st_mtim.tv_nsec);
  *out = s;
  s = NULL;
done:
  lm_source_close(s);
  return status;
}

int64_t lm_source_bytes(const lm_source *s) { return (int64_t)s->info.st_size; }
const char *lm_source_stamp(const lm_source *s) { return s->stamp; }

static lm_status reserve(lm_source *s, size_t n) {
  if (n <= s->capacity) return LM_OK;
  char *more = lm_realloc(s->buffer, n);
  if (!more) return LM_E_OOM;
  s->buffer = more;
  s->capacity = n;
  return LM_OK;
}

static int64_t piece_at(const lm_source *s, int64_t at) {
  int64_t left = (int64_t)s->info.st_size - at;
  return left < PIECE ? left : PIECE;
}

/* Into the buffer; the caller looks whether the file is as it was. */
static lm_status fetch(lm_source *s, int64_t at, int64_t n) {
  if (at < 0 || n < 0 || at > (int64_t)s->info.st_size || n > (int64_t)s->info.st_size - at) {
    return lm_fail_in_file(LM_E_IO, s->path, "bytes %lld to %lld are out of range for a file of %lld", (long long)at,
                           (long long)at + (long long)n, (long long)s->info.st_size);
  }
  lm_status status = reserve(s, (size_t)n);
  s->from = s->to = -1;
  for (int64_t done = 0; done < n && status == LM_OK;) {
    ssize_t k = pread(s->fd, s->buffer + done, (size_t)(n - done), (off_t)(at + done));
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return lm_fail_file("read", s->path, strerror(errno));
    if (k == 0) {
      status = lm_file_unchanged(s->path, s->fd, &s->info);
      return status != LM_OK ? status : lm_fail_in_file(LM_E_IO, s->path, "truncated while it was read");
    }
    done += k;
  }
  return status;
}

static lm_status unchanged(const lm_source *s) { return lm_file_unchanged(s->path, s->fd, &s->info); }

/* Who reads on where the last read ended gets more than was asked for, and the next ones from that. */
lm_status lm_source_read(lm_source *s, int64_t at, int64_t n, const char **out) {
  if (at < s->from || at > s->to || n < 0 || n > s->to - at) {
    int64_t most = at == s->to ? piece_at(s, at) : n;
    NEED(fetch(s, at, most > n ? most : n));
    NEED(unchanged(s));
    s->from = at;
    s->to = at + (most > n ? most : n);
  }
  *out = n ? s->buffer + (at - s->from) : "";
  return LM_OK;
}

/* ---- lines */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* Passes over white space, then to the end of the line, in turn. */
lm_status lm_source_lines(lm_source *s, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_bytes starts = {0};
  int64_t n = 0, begins = 0, total = (int64_t)s->info.st_size;
  bool within = false;
  for (int64_t at = 0; at < total; at += n) {
    n = piece_at(s, at);
    TRY(fetch(s, at, n));
    const char *p = s->buffer, *end = p + n;
    if (at == 0 && n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3, begins = 3; /* UTF-8's mark */
    while (p < end) {
      if (!within) {
        while (p < end && is_space(*p)) {
          if (*p++ == '\n') begins = at + (p - s->buffer);
        }
        if (p == end) break;
        lm_put_u64(&starts, (uint64_t)begins);
        within = true;
      }
      const char *line_end = memchr(p, '\n', (size_t)(end - p));
      if (!line_end) break;
      p = line_end + 1;
      begins = at + (p - s->buffer);
      within = false;
    }
  }
  lm_put_u64(&starts, (uint64_t)total);
  TRY(unchanged(s));
  if (starts.failed) {
    status = lm_fail_in_file(LM_E_OOM, s->path, "out of memory");
    goto done;
  }
  int64_t count = (int64_t)(starts.n / sizeof(int64_t));
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 1, &count, LM_CONTIGUOUS, out));
  memcpy((*out)->data, starts.data, starts.n);
done:
  lm_bytes_free(&starts);
  return status;
}

lm_status lm_source_line_of(lm_source *s, int64_t at, int64_t *line) {
  *line = 1;
  for (int64_t from = 0, n; from < at; from += n) {
    n = piece_at(s, from);
    if (n > at - from) n = at - from;
    if (n <= 0) break;
    NEED(fetch(s, from, n));
    for (const char *p = s->buffer, *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++) ++*line;
  }
  return LM_OK;
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

int64_t lm_token_bytes(const char *dtype) {
  int k = kind_of(dtype);
  return k < KINDS ? kinds[k].bytes : 0;
}

/* Little-endian files, on the little-endian machines that this runs on. */
#define WIDEN(type)                                     \
  for (int64_t i = 0; i < n; i++) {                     \
    type v;                                             \
    memcpy(&v, from + i * (int64_t)sizeof v, sizeof v); \
    to[i] = (int64_t)v;                                 \
  }                                                     \
  break
static void widen(int kind, const char *restrict from, int64_t n, int64_t *restrict to) {
  switch (kind) {
    case 0: WIDEN(uint8_t);
    case 1: WIDEN(int16_t);
    case 2: WIDEN(uint16_t);
    case 3: WIDEN(int32_t);
    case 4: WIDEN(uint32_t);
    default: WIDEN(int64_t);
  }
}

static lm_status check_tokens(const lm_source *s, const lm_blocks *b, int64_t first, const int64_t *v) {
  for (int64_t i = 0; i <= b->size; i++) {
    if (v[i] < 0 || v[i] >= b->below) {
      return lm_fail_in_file(LM_E_IO, s->path, "token %lld must be from 0 to %lld, got %lld",
                             (long long)(first + i + 1), (long long)b->below - 1, (long long)v[i]);
    }
  }
  return LM_OK;
}

lm_status lm_source_blocks(lm_source *s, const lm_blocks *b, lm_tensor *index, lm_tensor **x, lm_tensor **y) {
  lm_status status = LM_OK;
  int kind = kind_of(b->dtype);
  int64_t *tokens = NULL, item = lm_token_bytes(b->dtype), wanted;
  if (kind == KINDS) return lm_fail_dtype("Tokens", "dtype", "an integer dtype", lm_ellipsize(b->dtype, 40));
  if (index->dtype != LM_I64 || index->ndim != 1 || !lm_is_contiguous(index) ||
      LM_DEVICE_KIND(index->device) != LM_CPU) {
    return lm_fail_dtype("Tokens", "index", "a contiguous 1-d int64 tensor on cpu",
                         lm_text("%s %s", lm_dtype_name(index->dtype), lm_shape_of(index)));
  }
  if (__builtin_add_overflow(b->size, 1, &wanted) || __builtin_mul_overflow(wanted, item, &wanted) || b->size < 1) {
    return lm_fail_int("Tokens", "block_size", "at least 1", b->size);
  }
  const int64_t *at = (const int64_t *)index->data, shape[2] = {index->numel, b->size};
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 2, shape, LM_CONTIGUOUS, x));
  TRY(lm_tensor_empty(LM_I64, LM_DEVICE(LM_CPU, 0), 2, shape, LM_CONTIGUOUS, y));
  tokens = lm_malloc((size_t)(b->size + 1) * sizeof *tokens);
  if (!tokens) {
    status = LM_E_OOM;
    goto done;
  }
  for (int64_t k = 0; k < index->numel; k++) {
    int64_t first, byte;
    if (__builtin_mul_overflow(at[k] - 1, b->stride, &first) || __builtin_mul_overflow(first, item, &byte) ||
        __builtin_add_overflow(byte, b->from, &byte)) {
      status = lm_fail_in_file(LM_E_INDEX, s->path, "block %lld is out of range", (long long)at[k]);
      goto done;
    }
    TRY(fetch(s, byte, wanted));
    widen(kind, s->buffer, b->size + 1, tokens);
    if (b->below) TRY(check_tokens(s, b, first, tokens));
    int64_t *p = (int64_t *)(*x)->data + k * b->size, *q = (int64_t *)(*y)->data + k * b->size;
    for (int64_t i = 0; i <= b->size; i++) tokens[i] = (int64_t)((uint64_t)tokens[i] + (uint64_t)b->base);
    memcpy(p, tokens, (size_t)b->size * sizeof *p);
    memcpy(q, tokens + 1, (size_t)b->size * sizeof *q);
  }
  TRY(unchanged(s));
done:
  lm_free(tokens);
  if (status != LM_OK) {
    lm_release(*x);
    lm_release(*y);
    *x = *y = NULL;
  }
  return status;
}
