#include "base/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/message.h"

const char *lm_file_kind(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return "a regular file";
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a FIFO";
    case S_IFSOCK: return "a socket";
    case S_IFLNK: return "a link";
    default: return "a device";
  }
}

static lm_status fail_open(const char *path) {
  int problem = errno;
  lm_status status = lm_fail_file("open", path, strerror(problem));
  if (problem == EMFILE || problem == ENFILE) status = LM_E_OOM; /* a limit of the process or system, not of the file */
  errno = problem;
  return status;
}

static lm_status fail_not_regular(const char *path, mode_t mode) {
  lm_status status = lm_fail_file("open", path, lm_text("it is %s, not a regular file", lm_file_kind(mode)));
  errno = 0;
  return status;
}

lm_status lm_fd_open(const char *path, int flags, int *fd, struct stat *info) {
  *fd = -1;
  int looked = flags & O_NOFOLLOW ? lstat(path, info) : stat(path, info);
  if (looked != 0) return fail_open(path);
  if (!S_ISREG(info->st_mode)) return fail_not_regular(path, info->st_mode);
  /* Another kind of file may have replaced it: O_NONBLOCK avoids waiting for it, and fstat checks again. */
  int opened = lm_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags));
  if (opened < 0) return fail_open(path);
  bool known = fstat(opened, info) == 0;
  if (known && S_ISREG(info->st_mode)) {
    *fd = opened;
    return LM_OK;
  }
  lm_status status = known ? fail_not_regular(path, info->st_mode) : fail_open(path);
  int problem = errno;
  close(opened);
  errno = problem;
  return status;
}

const char *lm_gz_reason(const char *message) {
  const char *words = strncmp(message, "<fd:", 4) == 0 ? strstr(message, ">: ") : NULL;
  return words ? words + 3 : message;
}

lm_status lm_fd_unchanged(const char *path, int fd, const struct stat *info) {
  struct stat now;
  if (fstat(fd, &now) != 0) return fail_open(path);
  if (now.st_size != info->st_size) {
    return lm_fail_in_file(LM_E_IO, path, "changed while it was read: it had %lld bytes and has %lld now",
                           (long long)info->st_size, (long long)now.st_size);
  }
  if (now.st_mtim.tv_sec != info->st_mtim.tv_sec || now.st_mtim.tv_nsec != info->st_mtim.tv_nsec) {
    return lm_fail_in_file(LM_E_IO, path, "changed while it was read");
  }
  return LM_OK;
}
