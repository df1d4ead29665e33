#include "data/tar.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"

enum { BLOCK = 512, BUFFER = 1 << 18, PIECE = 1 << 20, LONGEST_NAME = 1 << 20 };
static const uint64_t largest = (uint64_t)1 << 30; /* a file has to fit in a string */

struct lm_tar {
  char *path;
  int fd; /* file's */
  gzFile file;
  struct stat info;
  uint64_t at;          /* what was read of it, unpacked */
  uint64_t begins;      /* the member that is read */
  uint64_t left, after; /* of its bytes; the padding behind them */
  lm_bytes name, data, headers;
};

void lm_tar_close(lm_tar *t) {
  if (!t) return;
  if (t->file) gzclose(t->file);
  lm_bytes_free(&t->name);
  lm_bytes_free(&t->data);
  lm_bytes_free(&t->headers);
  lm_free(t->path);
  lm_free(t);
}

lm_status lm_tar_open(const char *path, lm_tar **out) {
  lm_status status = LM_OK;
  int fd = -1;
  size_t bytes = strlen(path) + 1;
  lm_tar *t = lm_calloc(1, sizeof *t);
  if (!t || !(t->path = lm_malloc(bytes))) {
    status = LM_E_OOM;
    goto done;
  }
  memcpy(t->path, path, bytes);
  TRY(lm_file_open(path, 0, &fd, &t->info));
  t->fd = fd;
  if (!(t->file = gzdopen(fd, "rb"))) {
    close(fd);
    status = lm_fail_in_file(LM_E_OOM, path, "out of memory");
    goto done;
  }
  gzbuffer(t->file, BUFFER);
  *out = t;
  t = NULL;
done:
  lm_tar_close(t);
  return status;
}

/* Of the member that is read. */
static lm_status malformed(const lm_tar *t, const char *reason) {
  return lm_fail_malformed(t->path, "tar member", (int64_t)t->begins, "%s", reason);
}

static lm_status truncated(const lm_tar *t) {
  return lm_fail_in_file(LM_E_IO, t->path, "truncated: the tar member at byte %llu is incomplete",
                         (unsigned long long)t->begins);
}

static lm_status unsupported(const lm_tar *t, const char *what) {
  return lm_fail_in_file(LM_E_IO, t->path, "the tar member at byte %llu is %s, which is not supported",
                         (unsigned long long)t->begins, what);
}

static lm_status read_exactly(lm_tar *t, void *to, size_t n) {
  for (size_t done = 0; done < n;) {
    int problem, k = gzread(t->file, (char *)to + done, (unsigned)(n - done));
    const char *reason = lm_gz_reason(gzerror(t->file, &problem));
    if (k < 0 || problem == Z_BUF_ERROR) return malformed(t, reason);
    if (k == 0) return truncated(t);
    done += (size_t)k;
    t->at += (uint64_t)k;
  }
  return LM_OK;
}

static lm_status skip(lm_tar *t, uint64_t n) {
  if (n == 0) return LM_OK;
  if (gzdirect(t->file) && n > (uint64_t)t->info.st_size - t->at) return truncated(t);
  t->at += n;
  return gzseek(t->file, (z_off_t)n, SEEK_CUR) < 0 ? malformed(t, "its data cannot be skipped") : LM_OK;
}

/* Octal digits, or GNU's big-endian bytes after a bit. */
static bool number_of(const unsigned char *p, int n, uint64_t *out) {
  uint64_t v = 0;
  int i = 0;
  if (p[0] & 0x80) {
    if (p[0] != 0x80) return false;
    for (i = 1; i < n; i++) {
      if (v >> 54) return false;
      v = v << 8 | p[i];
    }
    *out = v;
    return true;
  }
  while (i < n && p[i] == ' ') i++;
  for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) v = v << 3 | (uint64_t)(p[i] - '0');
  *out = v;
  return i == n || p[i] == 0 || p[i] == ' ';
}

static bool is_sum_right(const unsigned char *block) {
  uint64_t said, sum = 0;
  for (int i = 0; i < BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : block[i];
  return number_of(block + 148, 8, &said) && said == sum;
}

static bool is_zero(const unsigned char *block) {
  for (int i = 0; i < BLOCK; i++) {
    if (block[i]) return false;
  }
  return true;
}

static lm_status read_into(lm_tar *t, lm_bytes *to, uint64_t n) {
  lm_status status = LM_OK;
  to->n = 0;
  while (n > 0 && status == LM_OK) { /* in pieces: the size may be wrong */
    size_t k = n < PIECE ? (size_t)n : PIECE;
    if (to->capacity - to->n < k) {
      size_t grown = to->capacity + to->capacity / 2 + k;
      char *more = lm_realloc(to->data, grown);
      if (!more) return LM_E_OOM;
      to->data = more;
      to->capacity = grown;
    }
    status = read_exactly(t, to->data + to->n, k);
    to->n += k;
    n -= k;
  }
  return status;
}

/* Records "<length> <key>=<value>\n" of a pax header: of them what changes how a member is read. */
static lm_status read_pax(lm_tar *t, uint64_t *size, bool *sized) {
  const char *p = t->headers.data, *end = p + t->headers.n;
  while (p < end) {
    const char *digits = p, *last, *key, *value;
    size_t length = 0;
    while (p < end && *p >= '0' && *p <= '9' && length < LONGEST_NAME) length = length * 10 + (size_t)(*p++ - '0');
    if (p == digits || p == end || *p != ' ' || length > (size_t)(end - digits) || length < (size_t)(p - digits) + 3) {
      return malformed(t, "a pax record must be 'LENGTH KEY=VALUE'");
    }
    key = p + 1;
    last = digits + length - 1;
    value = memchr(key, '=', (size_t)(last - key));
    if (!value || *last != '\n') return malformed(t, "a pax record must be 'LENGTH KEY=VALUE'");
    size_t named = (size_t)(value++ - key), n = (size_t)(last - value);
    if (named == 4 && memcmp(key, "path", 4) == 0) {
      t->name.n = 0;
      lm_put(&t->name, value, n);
    } else if (named == 4 && memcmp(key, "size", 4) == 0) {
      uint64_t v = 0;
      for (size_t i = 0; i < n; i++) {
        if (value[i] < '0' || value[i] > '9' || v >> 58)
          return malformed(t, "the size in its pax header must be an integer");
        v = v * 10 + (uint64_t)(value[i] - '0');
      }
      *size = v;
      *sized = true;
    } else if (named > 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
      return unsupported(t, "a sparse file");
    }
    p = last + 1;
  }
  return LM_OK;
}

/* What follows the end reports whether gzip's sum is right. */
static lm_status finish(lm_tar *t) {
  int n = gzdirect(t->file) ? 0 : 1, problem;
  char rest[BLOCK * 8];
  while (n > 0) {
    n = gzread(t->file, rest, sizeof rest);
    const char *reason = lm_gz_reason(gzerror(t->file, &problem));
    if (n < 0 || problem == Z_BUF_ERROR) return malformed(t, reason);
  }
  return lm_file_unchanged(t->path, t->fd, &t->info);
}

static size_t length_of(const unsigned char *p, size_t most) {
  const unsigned char *zero = memchr(p, 0, most);
  return zero ? (size_t)(zero - p) : most;
}

static void put_name(lm_tar *t, const unsigned char *block) {
  bool prefixed = memcmp(block + 257, "ustar\0", 6) == 0 && block[345];
  if (prefixed) {
    lm_put(&t->name, block + 345, length_of(block + 345, 155));
    lm_put(&t->name, "/", 1);
  }
  lm_put(&t->name, block, length_of(block, 100));
}

lm_status lm_tar_next(lm_tar *t, const char **name, size_t *length) {
  unsigned char block[BLOCK];
  uint64_t size, pax_size = 0;
  bool sized = false;
  *name = NULL;
  t->name.n = 0;
  for (;;) {
    NEED(skip(t, t->left + t->after));
    t->left = t->after = 0;
    t->begins = t->at;
    if (t->name.failed) return lm_fail_in_file(LM_E_OOM, t->path, "out of memory");
    NEED(read_exactly(t, block, BLOCK));
    if (is_zero(block)) return finish(t);
    if (!is_sum_right(block)) {
      return malformed(
          t, t->begins ? "wrong checksum of its header" : "wrong checksum of its header; is it a tar archive?");
    }
    if (!number_of(block + 124, 12, &size)) return malformed(t, "its size must be an integer up to 2^60");
    char kind = (char)block[156];
    bool is_file = kind == 0 || kind == '0' || kind == '7', is_header = kind == 'x' || kind == 'L';
    if (is_file && sized) size = pax_size;
    if (size > (uint64_t)1 << 60) return malformed(t, "its size must be an integer up to 2^60");
    t->left = size;
    t->after = (BLOCK - size % BLOCK) % BLOCK;
    if (is_header) {
      if (size == 0 || size > LONGEST_NAME) return malformed(t, "its extended header must have 1 byte to 1 MiB");
      NEED(read_into(t, &t->headers, size));
      t->left = 0;
      if (kind == 'x') {
        NEED(read_pax(t, &pax_size, &sized));
      } else {
        t->name.n = 0;
        lm_put(&t->name, t->headers.data, length_of((unsigned char *)t->headers.data, t->headers.n));
      }
      continue;
    }
    if (kind == 'S') return unsupported(t, "a sparse file");
    if (is_file) break;
    if (kind == '1' || kind == '2' || kind == '3' || kind == '4' || kind == '6') t->left = t->after = 0; /* no data */
    t->name.n = 0;
    sized = false;
  }
  if (t->name.n == 0) put_name(t, block);
  if (t->name.failed) return lm_fail_in_file(LM_E_OOM, t->path, "out of memory");
  *name = t->name.n ? t->name.data : "";
  *length = t->name.n;
  return LM_OK;
}

lm_status lm_tar_read(lm_tar *t, const char **data, size_t *n) {
  if (t->left > largest) return unsupported(t, "a file of more than 1 GiB");
  NEED(read_into(t, &t->data, t->left));
  t->left = 0;
  *data = t->data.n ? t->data.data : "";
  *n = t->data.n;
  return LM_OK;
}
