#include "io/file_sections.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/message.h"
#include "io/mapped_file.h"

enum { ALIGNED = 8, PIECE = 1 << 18, MAX_RATIO = 1032 /* of deflate: 258 bytes for two bits */ };

struct lm_sections {
  char *path;
  int fd, threads;
  struct stat info;
  lm_mapping *map; /* NULL: sections are read */
};

lm_status lm_sections_open(const char *path, int threads, lm_sections **out) {
  lm_status status = LM_OK;
  lm_sections *f = lm_calloc(1, sizeof *f);
  if (!f) return LM_E_OOM;
  f->fd = -1;
  f->threads = threads;
  size_t bytes = strlen(path) + 1;
  if (!(f->path = lm_malloc(bytes))) {
    status = LM_E_OOM;
    goto done;
  }
  memcpy(f->path, path, bytes);
  TRY(lm_file_open(path, 0, &f->fd, &f->info));
  if (threads == 0 && f->info.st_size > 0) TRY(lm_mapping_open(path, f->fd, (size_t)f->info.st_size, &f->map));
  *out = f;
  f = NULL;
done:
  lm_sections_close(f);
  return status;
}

void lm_sections_close(lm_sections *f) {
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  lm_mapping_release(f->map);
  lm_free(f->path);
  lm_free(f);
}

uint64_t lm_sections_bytes(const lm_sections *f) { return (uint64_t)f->info.st_size; }
const char *lm_sections_path(const lm_sections *f) { return f->path; }

static lm_status check_range(const lm_sections *f, uint64_t at, uint64_t n) {
  uint64_t bytes = lm_sections_bytes(f);
  if (at <= bytes && n <= bytes - at) return LM_OK;
  return lm_fail_truncated(f->path, n, at, bytes);
}

static lm_status new_bytes(const lm_sections *f, uint64_t n, lm_tensor **out) {
  int64_t size = (int64_t)n;
  lm_status status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, out);
  return status == LM_OK ? status : lm_fail_in_file(status, f->path, "%s", lm_error());
}

lm_status lm_sections_pieces(const lm_sections *f, int n, const lm_piece *pieces) {
  return lm_read_pieces(f->path, f->fd, &f->info, f->threads > 0 ? f->threads : 1, n, pieces);
}

lm_status lm_sections_copy(lm_sections *f, uint64_t at, uint64_t n, void *to) {
  lm_status status = check_range(f, at, n);
  if (status != LM_OK) return status;
  return lm_sections_pieces(f, 1, &(lm_piece){to, (size_t)n, at});
}

lm_status lm_sections_over(lm_sections *f, lm_dtype dtype, int ndim, const int64_t *size, uint64_t at, uint64_t n,
                           size_t alignment, lm_tensor **out) {
  *out = NULL;
  if (!f->map || at % alignment != 0 || n <= LM_SMALL_BYTES) return LM_OK;
  return lm_mapping_tensor(f->map, dtype, ndim, size, (size_t)at, (size_t)n, out);
}

lm_status lm_sections_tensor(lm_sections *f, uint64_t at, uint64_t n, lm_tensor **out) {
  lm_tensor *t = NULL;
  lm_status status;
  int64_t size = (int64_t)n;
  TRY(check_range(f, at, n));
  TRY(lm_sections_over(f, LM_U8, 1, &size, at, n, ALIGNED, &t));
  if (!t) {
    TRY(new_bytes(f, n, &t));
    if (n > 0) TRY(lm_sections_copy(f, at, n, t->data));
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}

static unsigned at_most(uint64_t n, unsigned most) { return n < most ? (unsigned)n : most; }

static lm_status inflate_into(lm_sections *f, z_stream *z, uint64_t at, uint64_t packed, char *piece, char *to,
                              uint64_t n, bool start) {
  lm_status status = LM_OK;
  uint64_t from = at, end = at + packed, filled = 0;
  char beyond;
  int code = Z_OK;
  while (code == Z_OK) {
    if (z->avail_in == 0 && from < end) {
      z->avail_in = at_most(end - from, PIECE);
      TRY(lm_sections_copy(f, from, z->avail_in, piece));
      z->next_in = (unsigned char *)piece;
      from += z->avail_in;
    }
    unsigned capacity = at_most(n - filled, 1u << 30);
    z->next_out = (unsigned char *)(capacity > 0 ? to + filled : &beyond);
    z->avail_out = capacity > 0 ? capacity : 1;
    code = inflate(z, Z_NO_FLUSH);
    filled += (capacity > 0 ? capacity : 1) - z->avail_out;
    if (filled > n || (start && filled == n)) break;
  }
  if (start && filled == n) goto done;
  if (code != Z_STREAM_END || filled != n || z->avail_in > 0 || from < end) {
    const char *reason = code == Z_MEM_ERROR ? "out of memory"
                         : filled > n        ? "it unpacks to more bytes than the file states"
                         : filled < n        ? (z->msg ? z->msg : "it unpacks to fewer bytes than the file states")
                                             : (z->msg ? z->msg : "it does not end where the file states");
    status = lm_fail_malformed(f->path, "deflate data", (int64_t)at, "%s", reason);
  }
done:
  return status;
}

lm_status lm_sections_inflate(lm_sections *f, uint64_t at, uint64_t packed, uint64_t n, bool start, lm_tensor **out) {
  lm_status status;
  lm_tensor *t = NULL;
  char *piece = NULL;
  z_stream z = {0};
  bool open = false;
  TRY(check_range(f, at, packed));
  if (n / MAX_RATIO > packed) {
    return lm_fail_malformed(f->path, "deflate data", (int64_t)at, "%llu bytes cannot unpack to %llu",
                             (unsigned long long)packed, (unsigned long long)n);
  }
  if (!(piece = lm_malloc(PIECE))) return LM_E_OOM;
  TRY(new_bytes(f, n, &t));
  open = inflateInit2(&z, -MAX_WBITS) == Z_OK;
  if (!open) {
    status = lm_fail_in_file(LM_E_OOM, f->path, "out of memory");
    goto done;
  }
  TRY(inflate_into(f, &z, at, packed, piece, t->data, n, start));
  *out = t;
  t = NULL;
done:
  if (open) inflateEnd(&z);
  lm_release(t);
  lm_free(piece);
  return status;
}

uint32_t lm_crc32(uint32_t before, const lm_tensor *t) {
  size_t n = lm_nbytes(t);
  return n > 0 ? (uint32_t)crc32_z(before, (const unsigned char *)t->data, n) : before;
}
