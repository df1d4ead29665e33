#include "io/maybe_gzipped.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"
#include "io/whole_file.h"

enum { PIECE = 1 << 20 };

static lm_status read_all(const char *path, gzFile file, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_bytes all = {0};
  int64_t size;
  int n = PIECE, problem;
  char *piece = lm_malloc(PIECE);
  if (!piece) return LM_E_OOM;
  while (n == PIECE && !all.failed) {
    n = gzread(file, piece, PIECE);
    const char *reason = lm_gz_reason(gzerror(file, &problem));
    if (n < 0 || problem == Z_BUF_ERROR) {
      status = lm_fail_malformed(path, "gzip data", LM_NO_OFFSET, "%s", reason);
      goto done;
    }
    lm_put(&all, piece, (size_t)n);
  }
  if (all.failed) {
    status = lm_fail_in_file(LM_E_OOM, path, "out of memory");
    goto done;
  }
  size = (int64_t)all.n;
  TRY(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, out));
  if (size > 0) memcpy((*out)->data, all.data, all.n);
done:
  lm_bytes_free(&all);
  lm_free(piece);
  return status;
}

lm_status lm_read_unpacked(const char *path, lm_tensor **out) {
  struct stat info;
  int fd;
  lm_tensor *t = NULL;
  lm_status status = lm_file_open(path, 0, &fd, &info);
  if (status != LM_OK) return status;
  gzFile file = gzdopen(fd, "rb");
  if (!file) {
    close(fd);
    return lm_fail_in_file(LM_E_OOM, path, "out of memory");
  }
  gzbuffer(file, PIECE);
  TRY(gzdirect(file) ? lm_read_whole(path, &t) : read_all(path, file, &t));
  TRY(lm_file_unchanged(path, fd, &info));
  *out = t;
  t = NULL;
done:
  lm_release(t);
  gzclose(file);
  return status;
}
