/* A disk with faults, preloaded by specs: calls for files in a folder fail or do less than asked. Scripts set the fault
 * through FFI: lm_fault(folder, call, first, error). From the first-th such call on, `call` ("write", "fsync",
 * "rename", "linkat", "close", "opendir", "readdir", "fchmod", "flock", "fsync folder", "sync_file_range") fails with
 * that errno; error 0 makes write short: it takes some bytes, and is interrupted between. call "slow write": it takes
 * `error` ms more. "O_TMPFILE": there are no nameless files. "clean-up": before a rename another saver removes the file
 * if nobody has locked it. "absence": a name with ".shard-" that was looked up in vain stays absent for this process,
 * as on NFS, until it renames a file; such lookups are the calls. "": no fault. lm_fault_calls(): how many such calls
 * there were. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char fault_folder[PATH_MAX], fault_call[32];
static int fault_first, fault_error;
static atomic_int calls;

void lm_fault(const char *folder, const char *call, int first, int error);
void lm_fault(const char *folder, const char *call, int first, int error) {
  snprintf(fault_folder, sizeof fault_folder, "%s", folder);
  snprintf(fault_call, sizeof fault_call, "%s", call);
  fault_first = first, fault_error = error, calls = 0;
}

int lm_fault_calls(void);
int lm_fault_calls(void) { return calls; }

static bool is_there(const char *path) {
  return fault_folder[0] && strncmp(path, fault_folder, strlen(fault_folder)) == 0;
}

static bool hits(const char *call, const char *path) {
  return strcmp(call, fault_call) == 0 && is_there(path) && atomic_fetch_add(&calls, 1) + 1 >= fault_first;
}

static bool hits_fd(const char *call, int fd) {
  char link[48], path[PATH_MAX];
  if (strcmp(call, fault_call) != 0) return false;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return false;
  path[n] = 0;
  return hits(call, path);
}

static int fails(void) { return errno = fault_error, -1; }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Found at load: a signal's handler calls write, perhaps within dlsym, whose lock it would await forever. */
static __typeof__(&write) next_write;
__attribute__((constructor)) static void find_write(void) { next_write = NEXT(write); }

ssize_t write(int fd, const void *data, size_t bytes) {
  if (hits_fd("write", fd)) {
    if (fault_error) return fails();
    if (calls % 3 == 0) return errno = EINTR, -1;
    if (bytes > 1) bytes = bytes / 2;
  }
  if (hits_fd("slow write", fd)) usleep((unsigned)fault_error * 1000);
  return (next_write ? next_write : NEXT(write))(fd, data, bytes);
}

int fsync(int fd) {
  struct stat info;
  bool is_folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  return hits_fd(is_folder ? "fsync folder" : "fsync", fd) ? fails() : NEXT(fsync)(fd);
}

int close(int fd) {
  bool fault = hits_fd("close", fd);
  int result = NEXT(close)(fd);
  return fault ? fails() : result;
}

enum { MOST_ABSENT = 64 };
static char absent[MOST_ABSENT][PATH_MAX];
static atomic_int absent_count;

/* Returns result, of a lookup of path, or -1 if the name is remembered as absent. */
static int after_lookup(const char *path, int result) {
  if (strcmp(fault_call, "absence") != 0 || !is_there(path) || !strstr(path, ".shard-")) return result;
  for (int i = 0; i < absent_count; i++) {
    if (strcmp(absent[i], path) == 0) result = -1, errno = ENOENT;
  }
  if (result != 0 && hits("absence", path) && absent_count < MOST_ABSENT) {
    snprintf(absent[absent_count], PATH_MAX, "%s", path);
    absent_count++;
  }
  return result;
}

int access(const char *path, int how) { return after_lookup(path, NEXT(access)(path, how)); }

int stat(const char *path, struct stat *info) { return after_lookup(path, NEXT(stat)(path, info)); }

int rename(const char *from, const char *to) {
  absent_count = 0;
  if (hits("clean-up", to)) {
    int fd = NEXT(open)(from, O_RDONLY);
    if (fd >= 0 && NEXT(flock)(fd, LOCK_EX | LOCK_NB) == 0) unlink(from);
    if (fd >= 0) NEXT(close)(fd);
  }
  return hits("rename", to) ? fails() : NEXT(rename)(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
  return hits("linkat", to) ? fails() : NEXT(linkat)(from_fd, from, to_fd, to, flags);
}

int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  int mode = va_arg(more, int);
  va_end(more);
  if ((flags & O_TMPFILE) == O_TMPFILE && hits("O_TMPFILE", path)) return errno = EOPNOTSUPP, -1;
  return NEXT(open)(path, flags, mode);
}

int sync_file_range(int fd, off64_t at, off64_t bytes, unsigned how) {
  if (how & SYNC_FILE_RANGE_WAIT_AFTER && hits_fd("sync_file_range", fd)) return fails();
  return NEXT(sync_file_range)(fd, at, bytes, how);
}

int fchmod(int fd, mode_t mode) { return hits_fd("fchmod", fd) ? fails() : NEXT(fchmod)(fd, mode); }

int flock(int fd, int how) { return hits_fd("flock", fd) ? fails() : NEXT(flock)(fd, how); }

DIR *opendir(const char *path) {
  if (!hits("opendir", path)) return NEXT(opendir)(path);
  errno = fault_error;
  return NULL;
}

struct dirent *readdir(DIR *dir) {
  if (!hits_fd("readdir", dirfd(dir))) return NEXT(readdir)(dir);
  errno = fault_error;
  return NULL;
}
