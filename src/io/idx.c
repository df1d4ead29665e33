#include "io/idx.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/message.h"
#include "base/regular_file.h"

enum { DEFLATE_MAX_RATIO = 1032, PIECE = 1 << 24 }; /* deflate cannot shrink data by more */

static lm_status read_exactly(const char *path, gzFile file, unsigned char *p, uint64_t bytes) {
  while (bytes > 0) {
    int n = gzread(file, p, bytes < PIECE ? (unsigned)bytes : PIECE);
    if (n < 0) return lm_fail_malformed(path, "gzip data", LM_NO_OFFSET, "%s", lm_gz_reason(gzerror(file, &n)));
    if (n == 0) return lm_fail_in_file(LM_E_IO, path, "truncated: %llu bytes are missing", (unsigned long long)bytes);
    p += n;
    bytes -= (uint64_t)n;
  }
  return LM_OK;
}

static lm_status read_open(const char *path, gzFile file, uint64_t file_bytes, lm_tensor **out) {
  lm_status status = LM_OK;
  unsigned char head[4], size_bytes[4 * LM_MAX_DIMS], extra;
  int64_t size[LM_MAX_DIMS];
  uint64_t count = 1;
  lm_tensor *t = NULL;
  TRY(read_exactly(path, file, head, sizeof head));
  if (head[0] != 0 || head[1] != 0) {
    return lm_fail_malformed(path, "IDX header", 0, "it must start with 00 00, got %02x %02x", head[0], head[1]);
  }
  if (head[2] != 8) {
    return lm_fail_in_file(LM_E_IO, path, "unsupported IDX element type 0x%02x; supported is 0x08, unsigned byte",
                           head[2]);
  }
  int ndim = head[3];
  if (ndim < 1 || ndim > LM_MAX_DIMS) {
    return lm_fail_malformed(path, "IDX header", 3, "the number of dims must be from 1 to %d, got %d", LM_MAX_DIMS,
                             ndim);
  }
  TRY(read_exactly(path, file, size_bytes, 4 * (uint64_t)ndim));
  uint64_t most = gzdirect(file) ? file_bytes : file_bytes * DEFLATE_MAX_RATIO;
  for (int d = 0; d < ndim; d++) {
    const unsigned char *b = size_bytes + 4 * d;
    size[d] = (int64_t)b[0] << 24 | (int64_t)b[1] << 16 | (int64_t)b[2] << 8 | b[3];
  }
  for (int d = 0; d < ndim; d++) {
    if (size[d] == 0) count = 0;
    if (__builtin_mul_overflow(count, (uint64_t)size[d], &count) || count > most) {
      return lm_fail_malformed(path, "IDX header", 4, "shape %s has more elements than fit in the file",
                               lm_shape_text(ndim, size));
    }
  }
  status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), ndim, size, LM_CONTIGUOUS, &t);
  if (status != LM_OK) return lm_fail_in_file(status, path, "%s", lm_error());
  TRY(read_exactly(path, file, (unsigned char *)t->data, count));
  int rest = gzread(file, &extra, 1);
  if (rest != 0) {
    status = rest < 0 ? lm_fail_malformed(path, "gzip data", LM_NO_OFFSET, "%s", lm_gz_reason(gzerror(file, &rest)))
                      : lm_fail_malformed(path, "IDX data", LM_NO_OFFSET, "bytes follow its %llu elements",
                                          (unsigned long long)count);
    goto done;
  }
  *out = t;
  t = NULL;
done:
  lm_release(t);
  return status;
}

lm_status lm_idx_read(const char *path, lm_tensor **out) {
  struct stat info;
  int fd;
  lm_status status = lm_file_open(path, 0, &fd, &info);
  if (status != LM_OK) return status;
  gzFile file = gzdopen(fd, "rb");
  if (!file) {
    close(fd);
    return lm_fail_in_file(LM_E_OOM, path, "out of memory");
  }
  lm_tensor *t = NULL;
  TRY(read_open(path, file, (uint64_t)info.st_size, &t));
  TRY(lm_file_unchanged(path, fd, &info));
  *out = t;
  t = NULL;
done:
  lm_release(t);
  gzclose(file);
  return status;
}
