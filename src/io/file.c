#define ZLIB_CONST /* makes next_in const */
#include "io/file.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/parallel.h"
#include "base/regular_file.h"

enum { VIEWED = 1 << 18, INFLATED = 1 << 18, PART = 1 << 20 }; /* bytes per read */

/* The mapped file, shared by the tensors over it. */
typedef struct mapping {
  _Atomic int32_t rc;
  char *data;
  size_t bytes;
  lm_mapping_guard *guard;
} mapping;

struct lm_file {
  char *path, stamp[64];
  int fd;
  struct stat info;
  mapping *map; /* NULL: tensors are copied from the file */
  char *buffer;
  size_t capacity;
  uint64_t from, to; /* file offsets of the bytes in the buffer */
};

static void release_mapping(void *arg) {
  mapping *m = arg;
  if (!m || atomic_fetch_sub_explicit(&m->rc, 1, memory_order_acq_rel) != 1) return;
  lm_mapping_guard_free(m->guard);
  munmap(m->data, m->bytes);
  lm_free(m);
}

/* Maps the file privately: writes to the memory do not reach the file. */
static lm_status map_file(lm_file *f) {
  mapping *m = lm_malloc(sizeof *m);
  if (!m) return LM_E_OOM;
  m->bytes = (size_t)f->info.st_size;
  m->data = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, f->fd, 0);
  if (m->data == MAP_FAILED) {
    lm_free(m);
    return lm_fail_file("map", f->path, strerror(errno));
  }
  atomic_init(&m->rc, 1);
  lm_status status = lm_mapping_guard_new(f->path, m->data, m->bytes, &m->guard);
  if (status == LM_OK)
    f->map = m;
  else
    release_mapping(m);
  return status;
}

lm_status lm_file_open(const char *path, bool mapped, lm_file **out) {
  lm_status status = LM_OK;
  lm_file *f = lm_calloc(1, sizeof *f);
  if (!f) return LM_E_OOM;
  f->fd = -1;
  f->from = f->to = UINT64_MAX;
  if (!(f->path = lm_copy_text(path))) TRY(LM_E_OOM);
  TRY(lm_fd_open(path, 0, &f->fd, &f->info));
  snprintf(f->stamp, sizeof f->stamp, "%lld bytes, %lld.%09ld", (long long)f->info.st_size,
           (long long)f->info.st_mtim.tv_sec, f->info.st_mtim.tv_nsec);
  if (mapped && f->info.st_size > 0) TRY(map_file(f));
  *out = f;
  f = NULL;
done:
  lm_file_close(f);
  return status;
}

void lm_file_close(lm_file *f) {
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  release_mapping(f->map);
  lm_free(f->buffer);
  lm_free(f->path);
  lm_free(f);
}

const char *lm_file_path(const lm_file *f) { return f->path; }
uint64_t lm_file_bytes(const lm_file *f) { return (uint64_t)f->info.st_size; }
const char *lm_file_stamp(const lm_file *f) { return f->stamp; }
lm_status lm_file_check(const lm_file *f) { return lm_fd_unchanged(f->path, f->fd, &f->info); }

static lm_status check_range(const lm_file *f, uint64_t at, uint64_t n) {
  uint64_t bytes = lm_file_bytes(f);
  return at <= bytes && n <= bytes - at ? LM_OK : lm_fail_truncated(f->path, n, at, bytes);
}

/* ---- bytes */

/* Reads n bytes at `at`; *ended is true if the file ends before. Returns false on an error, with errno. */
static bool read_at(int fd, void *to, size_t n, uint64_t at, bool *ended) {
  for (size_t done = 0; done < n && !*ended;) {
    ssize_t k = pread(fd, (char *)to + done, n - done, (off_t)(at + done));
    if (k < 0 && errno != EINTR) return false;
    *ended = k == 0;
    done += k > 0 ? (size_t)k : 0;
  }
  return true;
}

/* Returns LM_E_IO if the file was written to since it was opened, or ended before a read. */
static lm_status check_end(const lm_file *f, bool ended) {
  NEED(lm_file_check(f));
  return ended ? lm_fail_in_file(LM_E_IO, f->path, "truncated while it was read") : LM_OK;
}

static lm_status fill_buffer(lm_file *f, uint64_t at, size_t n) {
  bool ended = false;
  f->from = f->to = UINT64_MAX;
  if (!lm_list_grow(&f->buffer, &f->capacity, n, 1)) return LM_E_OOM;
  if (!read_at(f->fd, f->buffer, n, at, &ended)) return lm_fail_file("read", f->path, strerror(errno));
  if (ended) return check_end(f, ended);
  f->from = at;
  f->to = at + n;
  return LM_OK;
}

lm_status lm_file_view(lm_file *f, uint64_t at, uint64_t n, const char **out) {
  lm_status status = check_range(f, at, n);
  if (status != LM_OK) return status;
  if (at < f->from || at + n > f->to) {
    uint64_t left = lm_file_bytes(f) - at, ahead = at == f->to ? (left < VIEWED ? left : VIEWED) : 0;
    status = fill_buffer(f, at, (size_t)(ahead > n ? ahead : n));
    if (status != LM_OK) return status;
  }
  *out = n ? f->buffer + (at - f->from) : "";
  return LM_OK;
}

/* ---- tensors */

static lm_status new_tensor(const lm_file *f, const lm_file_part *p, lm_tensor **out) {
  lm_status status = lm_tensor_empty(p->dtype, LM_DEVICE(LM_CPU, 0), p->ndim, p->size, LM_CONTIGUOUS, out);
  return status == LM_OK ? status : lm_fail_in_file(status, f->path, "%s", lm_error());
}

static lm_status count_bytes(const lm_file *f, const lm_file_part *p, uint64_t *bytes) {
  *bytes = lm_dtype_size(p->dtype);
  for (int d = 0; d < p->ndim; d++) {
    if (p->size[d] == 0) *bytes = 0;
  }
  for (int d = 0; d<p->ndim && * bytes> 0; d++) {
    if (__builtin_mul_overflow(*bytes, (uint64_t)p->size[d], bytes)) *bytes = UINT64_MAX;
    if (*bytes > lm_file_bytes(f)) break;
  }
  return check_range(f, p->at, *bytes);
}

typedef struct piece {
  void *to;
  size_t bytes;
  uint64_t at; /* offset in the file */
} piece;

static const double ns_a_byte = 0.25; /* the page cache delivers a few GB/s to one thread */

typedef struct reading {
  int fd;
  const piece *pieces;
  _Atomic bool ended;  /* true if the file ended before a piece */
  _Atomic int problem; /* errno of a failed read */
} reading;

static int64_t piece_parts(const piece *p) { return (int64_t)((p->bytes + PART - 1) / PART); }

static void read_parts(void *ctx, int64_t first, int64_t last) {
  reading *r = ctx;
  int64_t begin = 0; /* index of the piece's first part */
  for (const piece *p = r->pieces; begin < last; begin += piece_parts(p++)) {
    for (int64_t i = first > begin ? first - begin : 0; i < piece_parts(p) && begin + i < last; i++) {
      size_t from = (size_t)i * PART, n = p->bytes - from < PART ? p->bytes - from : PART;
      bool ended = false;
      if (!read_at(r->fd, (char *)p->to + from, n, p->at + from, &ended)) r->problem = errno;
      if (ended) r->ended = true;
      if (ended || r->problem) return;
    }
  }
}

/* Reads the pieces on the pool's threads if there is much to read. LM_E_IO if the file ends before a piece does, or was
 * written to since it was opened. */
static lm_status read_pieces(const lm_file *f, int n, const piece *pieces) {
  reading r = {.fd = f->fd, .pieces = pieces};
  int64_t parts = 0;
  double bytes = 0;
  for (int i = 0; i < n; i++) {
    parts += piece_parts(&pieces[i]);
    bytes += (double)pieces[i].bytes;
  }
  NEED(lm_parallel(parts, bytes * ns_a_byte, 0, read_parts, &r));
  if (r.problem != 0) return lm_fail_file("read", f->path, strerror(r.problem));
  return check_end(f, r.ended);
}

lm_status lm_file_read(lm_file *f, int n, lm_file_part *parts) {
  lm_status status = LM_OK;
  int count = 0;
  piece *pieces = lm_malloc((size_t)n * sizeof *pieces);
  if (!pieces) return LM_E_OOM;
  for (int i = 0; i < n; i++) parts[i].t = NULL;
  for (int i = 0; i < n; i++) {
    lm_file_part *p = &parts[i];
    uint64_t bytes;
    TRY(count_bytes(f, p, &bytes));
    if (f->map && p->at % p->alignment == 0 && bytes > LM_SMALL_BYTES) {
      atomic_fetch_add_explicit(&f->map->rc, 1, memory_order_relaxed);
      TRY(lm_tensor_foreign(p->dtype, LM_DEVICE(LM_CPU, 0), p->ndim, p->size, f->map->data + p->at, (size_t)bytes,
                            release_mapping, f->map, &p->t));
    } else {
      TRY(new_tensor(f, p, &p->t));
      pieces[count++] = (piece){p->t->data, (size_t)bytes, p->at};
    }
  }
  TRY(read_pieces(f, count, pieces));
done:
  for (int i = 0; i < n && status != LM_OK; i++) {
    lm_release(parts[i].t);
    parts[i].t = NULL;
  }
  lm_free(pieces);
  return status;
}

/* ---- deflate */

static unsigned at_most(uint64_t n, unsigned most) { return n < most ? (unsigned)n : most; }

static lm_status inflate_into(lm_file *f, z_stream *z, uint64_t at, uint64_t packed, char *to, uint64_t n, bool start) {
  lm_status status = LM_OK;
  uint64_t from = at, end = at + packed, filled = 0;
  char beyond;
  int code = Z_OK;
  while (code == Z_OK) {
    if (z->avail_in == 0 && from < end) {
      const char *piece;
      z->avail_in = at_most(end - from, INFLATED);
      NEED(lm_file_view(f, from, z->avail_in, &piece));
      z->next_in = (const unsigned char *)piece;
      from += z->avail_in;
    }
    unsigned capacity = at_most(n - filled, 1u << 30);
    z->next_out = (unsigned char *)(capacity > 0 ? to + filled : &beyond);
    z->avail_out = capacity > 0 ? capacity : 1;
    code = inflate(z, Z_NO_FLUSH);
    filled += (capacity > 0 ? capacity : 1) - z->avail_out;
    if (filled > n || (start && filled == n)) break;
  }
  NEED(lm_file_check(f));
  if (start && filled == n) return LM_OK;
  if (code != Z_STREAM_END || filled != n || z->avail_in > 0 || from < end) {
    const char *reason = code == Z_MEM_ERROR ? "out of memory"
                         : filled > n        ? "it unpacks to more bytes than the file states"
                         : filled < n        ? (z->msg ? z->msg : "it unpacks to fewer bytes than the file states")
                                             : (z->msg ? z->msg : "it does not end where the file states");
    status = lm_fail_malformed(f->path, "deflate data", (int64_t)at, "%s", reason);
  }
  return status;
}

lm_status lm_file_inflate(lm_file *f, uint64_t at, uint64_t packed, uint64_t n, bool start, lm_tensor **out) {
  lm_status status;
  lm_tensor *t = NULL;
  z_stream z = {0};
  bool open = false;
  lm_file_part all = {.dtype = LM_U8, .ndim = 1, .size = {(int64_t)n}};
  TRY(check_range(f, at, packed));
  if (n / LM_DEFLATE_RATIO > packed) {
    return lm_fail_malformed(f->path, "deflate data", (int64_t)at, "%llu bytes cannot unpack to %llu",
                             (unsigned long long)packed, (unsigned long long)n);
  }
  TRY(new_tensor(f, &all, &t));
  open = inflateInit2(&z, -MAX_WBITS) == Z_OK;
  if (!open) TRY(lm_fail_in_file(LM_E_OOM, f->path, "out of memory"));
  TRY(inflate_into(f, &z, at, packed, t->data, n, start));
  *out = t;
  t = NULL;
done:
  if (open) inflateEnd(&z);
  lm_release(t);
  return status;
}

lm_status lm_tensor_of_bytes(const char *path, const lm_bytes *b, lm_dtype dtype, int64_t columns, lm_tensor **out) {
  if (b->failed) return lm_fail_in_file(LM_E_OOM, path, "out of memory");
  int64_t size[2] = {(int64_t)(b->n / lm_dtype_size(dtype)) / columns, columns};
  lm_status status = lm_tensor_empty(dtype, LM_DEVICE(LM_CPU, 0), columns > 1 ? 2 : 1, size, LM_CONTIGUOUS, out);
  if (status == LM_OK && b->n > 0) memcpy((*out)->data, b->data, b->n);
  return status;
}

uint32_t lm_crc32(uint32_t before, const void *data, size_t n) { return (uint32_t)crc32_z(before, data, n); }
