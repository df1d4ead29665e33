#include "data/bytes_of.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"

enum { PIECE = 1 << 20 };

/* Up to n bytes; *got is less at the end alone. */
static lm_status read_some(const char *path, gzFile file, char *to, int64_t n, int64_t *got) {
  int problem = Z_OK;
  *got = 0;
  while (*got < n) {
    int k = gzread(file, to + *got, n - *got < PIECE ? (unsigned)(n - *got) : PIECE);
    const char *reason = gzerror(file, &problem);
    if (k < 0 || problem == Z_BUF_ERROR) return lm_fail(LM_E_IO, "%s: %s", path, reason);
    if (k == 0) break;
    *got += k;
  }
  return LM_OK;
}

static lm_status new_bytes(int64_t n, const char *data, lm_tensor **out) {
  lm_status status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &n, LM_CONTIGUOUS, out);
  if (status == LM_OK && data && n > 0) memcpy((*out)->data, data, (size_t)n);
  return status;
}

static lm_status read_plain(const char *path, gzFile file, int64_t n, lm_tensor **out) {
  int64_t got;
  lm_status status = new_bytes(n, NULL, out);
  if (status == LM_OK) status = read_some(path, file, (char *)(*out)->data, n, &got);
  if (status == LM_OK && got < n) status = lm_fail(LM_E_IO, "%s ended while it was read", path);
  return status;
}

static lm_status read_gzipped(const char *path, gzFile file, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_bytes all = {0};
  int64_t got = PIECE;
  char *piece = lm_malloc(PIECE);
  if (!piece) return LM_E_OOM;
  while (got == PIECE) {
    TRY(read_some(path, file, piece, PIECE, &got));
    lm_put(&all, piece, (size_t)got);
  }
  status = all.failed ? lm_fail(LM_E_OOM, "out of memory: reading %s", path) : new_bytes((int64_t)all.n, all.data, out);
done:
  lm_bytes_free(&all);
  lm_free(piece);
  return status;
}

lm_status lm_bytes_of(const char *path, lm_tensor **out) {
  struct stat info;
  int fd;
  lm_status status = lm_file_open(path, 0, &fd, &info);
  if (status != LM_OK) return status;
  gzFile file = gzdopen(fd, "rb");
  if (!file) {
    close(fd);
    return lm_fail(LM_E_OOM, "out of memory: reading %s", path);
  }
  lm_tensor *t = NULL;
  gzbuffer(file, PIECE);
  TRY(gzdirect(file) ? read_plain(path, file, (int64_t)info.st_size, &t) : read_gzipped(path, file, &t));
  TRY(lm_file_unchanged(path, fd, &info));
  *out = t;
  t = NULL;
done:
  lm_release(t);
  gzclose(file);
  return status;
}
