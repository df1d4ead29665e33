#include "io/file_stream.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"
#include "io/file.h"

enum { BUFFER = 1 << 18, PIECE = 1 << 20 };

struct lm_file_stream {
  char *path;
  int fd; /* owned by zlib's file */
  gzFile file;
  struct stat info;
  uint64_t at;
};

void lm_file_stream_close(lm_file_stream *s) {
  if (!s) return;
  if (s->file) gzclose(s->file);
  lm_free(s->path);
  lm_free(s);
}

lm_status lm_file_stream_open(const char *path, lm_file_stream **out) {
  lm_status status = LM_OK;
  lm_file_stream *s = lm_calloc(1, sizeof *s);
  if (!s || !(s->path = lm_copy_text(path))) TRY(LM_E_OOM);
  TRY(lm_fd_open(path, 0, &s->fd, &s->info));
  if (!(s->file = gzdopen(s->fd, "rb"))) {
    close(s->fd);
    TRY(lm_fail_in_file(LM_E_OOM, path, "out of memory"));
  }
  gzbuffer(s->file, BUFFER);
  *out = s;
  s = NULL;
done:
  lm_file_stream_close(s);
  return status;
}

uint64_t lm_file_stream_most(const lm_file_stream *s) {
  return (uint64_t)s->info.st_size * (gzdirect(s->file) ? 1 : LM_DEFLATE_RATIO);
}

lm_status lm_file_stream_read(lm_file_stream *s, void *to, size_t n, size_t *got) {
  for (*got = 0; *got < n;) {
    int problem, k = gzread(s->file, (char *)to + *got, n - *got < PIECE ? (unsigned)(n - *got) : PIECE);
    const char *reason = lm_gz_reason(gzerror(s->file, &problem));
    if (k < 0 || problem == Z_BUF_ERROR) { return lm_fail_malformed(s->path, "gzip data", LM_NO_OFFSET, "%s", reason); }
    if (k == 0) break;
    *got += (size_t)k;
    s->at += (uint64_t)k;
  }
  return LM_OK;
}

bool lm_file_stream_skip(lm_file_stream *s, uint64_t n) {
  if (n == 0) return true;
  if (gzdirect(s->file) && n > (uint64_t)s->info.st_size - s->at) return false;
  s->at += n;
  return gzseek(s->file, (z_off_t)n, SEEK_CUR) >= 0;
}

lm_status lm_file_stream_finish(lm_file_stream *s) {
  char rest[4096];
  size_t got = sizeof rest;
  while (!gzdirect(s->file) && got == sizeof rest) {
    lm_status status = lm_file_stream_read(s, rest, sizeof rest, &got);
    if (status != LM_OK) return status;
  }
  return lm_fd_unchanged(s->path, s->fd, &s->info);
}

lm_status lm_file_stream_bytes(lm_file_stream *s, uint64_t n, lm_tensor **out) {
  LM_OWNED *t = NULL;
  int64_t size = (int64_t)n;
  size_t got;
  uint64_t most = lm_file_stream_most(s);
  if (s->at > most || n > most - s->at) return lm_fail_truncated(s->path, n, s->at, most);
  lm_status status = lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, &size, LM_CONTIGUOUS, &t);
  if (status != LM_OK) return lm_fail_in_file(status, s->path, "%s", lm_error());
  NEED(lm_file_stream_read(s, t->data, (size_t)n, &got));
  if (got < n) {
    NEED(lm_fd_unchanged(s->path, s->fd, &s->info));
    return lm_fail_in_file(LM_E_IO, s->path, "truncated: %llu bytes are missing", (unsigned long long)(n - got));
  }
  *out = lm_tensor_take(&t);
  return status;
}

lm_status lm_file_stream_rest(lm_file_stream *s, lm_tensor **out) {
  if (gzdirect(s->file)) return lm_file_stream_bytes(s, (uint64_t)s->info.st_size - s->at, out);
  LM_OWNED_BYTES all = {0};
  LM_FREED char *piece = lm_malloc(PIECE);
  size_t got = PIECE;
  if (!piece) return LM_E_OOM;
  while (got == PIECE && !all.failed) {
    NEED(lm_file_stream_read(s, piece, PIECE, &got));
    lm_put(&all, piece, got);
  }
  return lm_tensor_of_bytes(s->path, &all, LM_U8, 1, out);
}
