#include "base/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static void close_quietly(int fd) {
  int problem = errno;
  close(fd);
  errno = problem;
}

int lm_fd_copy(int fd, int lowest) {
  return fcntl(fd, F_DUPFD_CLOEXEC, lowest > STDERR_FILENO ? lowest : STDERR_FILENO + 1);
}

int lm_fd_above_stdio(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  int copy = lm_fd_copy(fd, 0);
  close_quietly(fd);
  return copy;
}

int lm_fds_above_stdio(int code, int fd[2]) {
  if (code != 0) return code;
  fd[0] = lm_fd_above_stdio(fd[0]);
  fd[1] = lm_fd_above_stdio(fd[1]);
  if (fd[0] >= 0 && fd[1] >= 0) return 0;
  for (int i = 0; i < 2; i++) {
    if (fd[i] >= 0) close_quietly(fd[i]);
    fd[i] = -1;
  }
  return -1;
}

void lm_close_all(const int *fds, int n) {
  for (int i = 0; i < n; i++)
    if (fds[i] >= 0) close(fds[i]);
}

DIR *lm_opendir(const char *path) {
  int fd = lm_fd_above_stdio(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (fd >= 0 && !dir) close_quietly(fd);
  return dir;
}

bool lm_read_start(const char *path, char *text, size_t capacity) {
  int fd = lm_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  ssize_t n = read(fd, text, capacity - 1);
  close(fd);
  text[n > 0 ? n : 0] = 0;
  return n > 0;
}

void lm_fill_stdio(void) {
  int fd;
  do { fd = open("/dev/null", O_RDWR | O_CLOEXEC); } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}
