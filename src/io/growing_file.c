#include "io/growing_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/file_size_limit.h"
#include "base/mem.h"
#include "base/message.h"

struct lm_growing_file {
  int fd; /* -1: the next write opens the file */
  mode_t mode;
  char path[];
};

static lm_status open_it(lm_growing_file *f, bool keep) {
  int flags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (keep ? 0 : O_TRUNC);
  f->fd = lm_fd_above_stdio(open(f->path, flags, f->mode));
  if (f->fd < 0) return lm_fail_file("write", f->path, strerror(errno));
  fcntl(f->fd, F_SETFL, O_APPEND); /* blocks for a slow reader, but open does not wait for one */
  return LM_OK;
}

static void close_it(lm_growing_file *f) {
  if (f->fd >= 0) close(f->fd);
  f->fd = -1;
}

lm_status lm_growing_file_open(const char *path, bool keep, mode_t mode, lm_growing_file **out) {
  size_t bytes = strlen(path) + 1;
  lm_growing_file *f = lm_malloc(sizeof *f + bytes);
  if (!f) return LM_E_OOM;
  f->mode = mode;
  memcpy(f->path, path, bytes);
  lm_status status = open_it(f, keep);
  if (status != LM_OK) lm_free(f);
  if (status == LM_OK) *out = f;
  return status;
}

static bool is_removed(const lm_growing_file *f) {
  struct stat info;
  return fstat(f->fd, &info) == 0 && info.st_nlink == 0;
}

/* Removes the last `bytes` bytes, written by this descriptor, unless another process has appended since. */
static void take_back(const lm_growing_file *f, size_t bytes) {
  struct stat info;
  off_t end = lseek(f->fd, 0, SEEK_CUR);
  if (fstat(f->fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != end) return;
  while (ftruncate(f->fd, end - (off_t)bytes) != 0 && errno == EINTR) continue;
}

lm_status lm_growing_file_write(lm_growing_file *f, const void *data, size_t bytes) {
  lm_status status = LM_OK;
  lm_file_limit limit;
  if (f->fd >= 0 && is_removed(f)) close_it(f);
  if (f->fd < 0) NEED(open_it(f, true));
  lm_file_limit_begin(&limit);
  for (size_t done = 0; done < bytes && status == LM_OK;) {
    ssize_t n = write(f->fd, (const char *)data + done, bytes - done);
    if (n >= 0) {
      done += (size_t)n;
    } else if (errno != EINTR) {
      status = lm_fail_file("write", f->path, strerror(errno));
      if (done > 0) take_back(f, done);
    }
  }
  lm_file_limit_end(&limit);
  if (status != LM_OK) close_it(f);
  return status;
}

void lm_growing_file_close(lm_growing_file *f) {
  if (!f) return;
  close_it(f);
  lm_free(f);
}
