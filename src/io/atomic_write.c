#include "io/atomic_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/file_size_limit.h"
#include "base/large_array.h"
#include "base/mapping_guard.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/regular_file.h"

static lm_status fail_write(const char *verb, const char *path) { return lm_fail_file(verb, path, strerror(errno)); }

static bool folder_of(const char *path, char folder[PATH_MAX]) {
  const char *slash = strrchr(path, '/');
  size_t n = !slash || slash == path ? 1 : (size_t)(slash - path);
  if (n >= PATH_MAX) return false;
  memcpy(folder, slash ? path : ".", n);
  folder[n] = 0;
  return true;
}

static size_t folder_bytes(const char *path) { /* including the slash */
  const char *slash = strrchr(path, '/');
  return slash ? (size_t)(slash + 1 - path) : 0;
}

#define TEMPORARY ".tmp-"

/* Returns the length of the path's part in the names of its temporary files. File names have at most 255 bytes, so a
 * long one is cut, between UTF-8 characters. */
static int name_bytes(const char *path) {
  enum { KEPT = 100 };
  size_t folder = folder_bytes(path), name = strnlen(path + folder, KEPT);
  while (name > KEPT - 4 && (path[folder + name] & 0xC0) == 0x80) name--;
  return (int)(folder + name);
}

static void next_name(lm_new_file *f) {
  static _Atomic unsigned counter;
  snprintf(f->temporary, f->capacity, "%.*s" TEMPORARY "%ld-%u", name_bytes(f->path), f->path, (long)getpid(),
           atomic_fetch_add(&counter, 1));
}

/* Finds the path at which opening a missing file for writing creates it: the path itself, or a dangling link's
 * target. */
static bool find_target(const char *path, char target[PATH_MAX]) {
  enum { MAX_LINKS = 40 };
  char link[PATH_MAX];
  if (!*path) return errno = ENOENT, false;
  if (strlen(path) >= PATH_MAX) return errno = ENAMETOOLONG, false;
  strcpy(target, path);
  for (int i = 0; i < MAX_LINKS; i++) {
    ssize_t n = readlink(target, link, sizeof link - 1);
    if (n < 0) return true;
    link[n] = 0;
    size_t folder = link[0] == '/' ? 0 : folder_bytes(target);
    if (folder + (size_t)n >= PATH_MAX) return errno = ENAMETOOLONG, false;
    strcpy(target + folder, link);
  }
  return errno = ELOOP, false;
}

/* Locks the file until it is closed. False if lm_remove_abandoned found it unlocked and is removing it. NFS allows
 * exclusive locks only on descriptors open for writing, shared ones on those open for reading. */
static bool lock_new(const lm_new_file *f) {
  struct stat info;
  if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return f->nameless || fstat(f->fd, &info) != 0 || info.st_nlink > 0;
}

/* Opens a nameless file in path's folder, so that nothing remains if the process is killed. False if the file system
 * does not support it, or /proc, which names it later, is missing. */
static bool open_nameless(lm_new_file *f, mode_t mode) {
  char folder[PATH_MAX], link[48];
  struct stat info;
  if (!folder_of(f->path, folder)) return false;
  f->fd = lm_fd_above_stdio(open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, mode));
  if (f->fd < 0) return false;
  snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
  if (stat(link, &info) == 0) {
    f->nameless = true;
    lock_new(f);
    return true;
  }
  close(f->fd);
  f->fd = -1;
  return false;
}

static void open_named(lm_new_file *f, mode_t mode) {
  bool again;
  do { /* a killed process with the same pid may have left its file */
    next_name(f);
    f->fd = lm_fd_above_stdio(open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    again = f->fd < 0 ? errno == EEXIST : !lock_new(f);
    if (again && f->fd >= 0) close(f->fd);
  } while (again);
}

static bool give_name(lm_new_file *f) {
  char link[48];
  snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
  bool done;
  do {
    next_name(f);
    done = linkat(AT_FDCWD, link, AT_FDCWD, f->temporary, AT_SYMLINK_FOLLOW) == 0;
  } while (!done && errno == EEXIST);
  if (done) f->nameless = false;
  return done;
}

/* Copies the old file's mode, so that its readers remain. A file system without modes (CIFS, FUSE) refuses; the file
 * then has its opening mode: no more than the old one's and what the umask leaves. */
static bool set_mode(int fd, mode_t mode) {
  return fchmod(fd, mode) == 0 || errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS;
}

static bool resolve_target(const char *path, bool is_there, const char *suffix, char target[PATH_MAX]) {
  if (is_there ? !realpath(path, target) : !find_target(path, target)) return false;
  if (strlen(target) + strlen(suffix) >= PATH_MAX) return errno = ENAMETOOLONG, false;
  strcat(target, suffix);
  return true;
}

lm_status lm_new_file_open(const char *path, const char *suffix, lm_new_file *f) {
  lm_status status = LM_OK;
  struct stat info;
  LM_LARGE(char, target, PATH_MAX);
  *f = (lm_new_file){.fd = -1};
  bool replaces = stat(path, &info) == 0;
  if (replaces) {
    if (!S_ISREG(info.st_mode))
      return lm_fail_file("write", path, lm_text("it is %s, not a regular file", lm_file_kind(info.st_mode)));
  }
  if (!resolve_target(path, replaces, suffix, target)) return fail_write("write", path);
  path = target;
  f->capacity = strlen(path) + 48;
  f->path = lm_copy_text(path);
  f->temporary = lm_malloc(f->capacity);
  if (!f->path || !f->temporary) TRY(LM_E_OOM);
  mode_t mode = replaces ? info.st_mode & 0666 : 0666;
  if (!open_nameless(f, mode)) open_named(f, mode);
  if (f->fd < 0 || (replaces && !set_mode(f->fd, info.st_mode & 07777))) {
    status = fail_write("write", f->path);
    if (f->fd >= 0) {
      if (!f->nameless) unlink(f->temporary);
      close(f->fd);
    }
  }
done:
  if (status != LM_OK) {
    lm_free(f->path);
    lm_free(f->temporary);
    *f = (lm_new_file){.fd = -1};
  }
  return status;
}

/* Starts writing to the disk while the next bytes are computed, and limits the bytes that wait for it. So progress is
 * visible and the final sync is short. */
static lm_status send_to_disk(lm_new_file *f) {
#ifdef __linux__
  enum { SENT_AT_ONCE = 1 << 20, STORED_AT_ONCE = 8 << 20, MOST_WAITING = 128 << 20 };
  if (f->written - f->sent < SENT_AT_ONCE) return LM_OK;
  f->sent = f->written;
  sync_file_range(f->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
  for (; f->written - f->stored > MOST_WAITING; f->stored += STORED_AT_ONCE) {
    int how = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    bool failed = sync_file_range(f->fd, (off64_t)f->stored, STORED_AT_ONCE, how) != 0; /* fsync will not report it */
    if (failed && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) return fail_write("write", f->path);
    if (f->progress) atomic_fetch_add(f->progress, 1);
  }
#endif
  return LM_OK;
}

lm_status lm_new_file_write(lm_new_file *f, const void *data, size_t bytes) {
  enum { AT_ONCE = 1 << 20 };
  const char *p = data;
  lm_status status = LM_OK, lost = LM_OK;
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  while (bytes > 0 && status == LM_OK) {
    ssize_t n = write(f->fd, p, bytes < AT_ONCE ? bytes : AT_ONCE);
    if (n >= 0) {
      p += n;
      bytes -= (size_t)n;
      f->written += (size_t)n;
      if (f->progress) atomic_fetch_add(f->progress, (size_t)n);
      status = send_to_disk(f);
    } else if (errno != EINTR) {
      bool unread = errno == EFAULT;
      status = fail_write("write", f->path);
      if (unread) lost = lm_truncation_check_read(p);
    }
  }
  lm_file_limit_end(&limit);
  return lost != LM_OK ? lost : status;
}

lm_status lm_new_file_rewind(lm_new_file *f) {
  return lseek(f->fd, 0, SEEK_SET) == 0 ? LM_OK : fail_write("write", f->path);
}

int lm_new_file_lock(const lm_new_file *f) {
  char link[48];
  snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
  int fd = lm_fd_above_stdio(open(link, O_RDONLY | O_CLOEXEC));
  flock(f->fd, LOCK_SH | LOCK_NB); /* replaces the exclusive lock */
  if (fd >= 0) flock(fd, LOCK_SH | LOCK_NB);
  return fd;
}

/* Syncs the folder, or a crash of the machine could lose the rename. False if the disk fails. Some file systems do not
 * sync folders, and some folders can be written to but not read; both count as success. */
static bool sync_directory(const char *path) {
  char folder[PATH_MAX];
  if (!folder_of(path, folder)) return true;
  int fd = lm_fd_above_stdio(open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd < 0) return true;
  bool fine = fsync(fd) == 0 || errno == EINVAL || errno == EBADF || errno == EOPNOTSUPP || errno == ENOSYS;
  int problem = errno;
  close(fd);
  errno = problem;
  return fine;
}

lm_status lm_new_file_commit(lm_new_file *f) {
  lm_status status = lm_truncation_check(); /* the written data may be from a truncated file */
  if (status == LM_OK && (fsync(f->fd) != 0 || (f->nameless && !give_name(f)))) status = fail_write("write", f->path);
  int lock = lm_fd_above_stdio(fcntl(f->fd, F_DUPFD_CLOEXEC, 0)); /* keeps the lock until the rename; -1: none */
  if (close(f->fd) != 0 && status == LM_OK) status = fail_write("write", f->path);
  f->fd = -1;
  if (status == LM_OK && rename(f->temporary, f->path) != 0) status = fail_write("replace", f->path);
  if (lock >= 0) close(lock);
  if (status == LM_OK) {
    if (!sync_directory(f->path)) status = fail_write("sync the folder of", f->path);
    lm_free(f->temporary);
    f->temporary = NULL;
  }
  lm_new_file_abandon(f);
  return status;
}

static bool is_shard_of(const char *name, int nshards, const char *const *shards) {
  for (int i = 0; i < nshards; i++) {
    if (strcmp(name, shards[i]) == 0) return true;
  }
  return false;
}

/* Returns true if no writer holds the file's lock. Without locks: if its last write is over a day older than the
 * folder's last change, by the server's clock. */
static bool is_abandoned(int fd, DIR *dir) {
  enum { DAY = 24 * 60 * 60 };
  struct stat info, folder;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  return (errno == ENOSYS || errno == ENOLCK || errno == EOPNOTSUPP) && fstat(fd, &info) == 0 &&
         fstat(dirfd(dir), &folder) == 0 && folder.st_mtime - info.st_mtime > DAY;
}

void lm_remove_abandoned(const char *path, int nshards, const char *const *shards) {
  enum { HOW = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC };
  LM_LARGE(char, folder, PATH_MAX);
  LM_LARGE(char, temporary, PATH_MAX);
  LM_LARGE(char, shard, PATH_MAX);
  size_t skipped = folder_bytes(path);
  if (!folder_of(path, folder)) return;
  int length = snprintf(temporary, PATH_MAX, "%.*s" TEMPORARY, name_bytes(path) - (int)skipped, path + skipped);
  int shard_length = snprintf(shard, PATH_MAX, "%s.shard-", path + skipped);
  DIR *dir = lm_opendir(folder);
  if (!dir) return;
  for (struct dirent *e; (e = readdir(dir));) {
    bool is_temporary = strncmp(e->d_name, temporary, (size_t)length) == 0;
    bool is_shard = shards && strncmp(e->d_name, shard, (size_t)shard_length) == 0;
    if (!is_temporary && (!is_shard || is_shard_of(e->d_name, nshards, shards))) continue;
    int fd = lm_fd_above_stdio(openat(dirfd(dir), e->d_name, O_RDWR | HOW)); /* NFS locks no other descriptor */
    if (fd < 0 && errno == EACCES) fd = lm_fd_above_stdio(openat(dirfd(dir), e->d_name, O_RDONLY | HOW));
    if (fd < 0) continue;
    if (is_abandoned(fd, dir)) unlinkat(dirfd(dir), e->d_name, 0);
    close(fd);
  }
  closedir(dir);
}

static bool find_part(const char *path, const char *suffix, char part[PATH_MAX]) {
  struct stat info;
  return resolve_target(path, stat(path, &info) == 0, suffix, part);
}

bool lm_parts_are_listed(const char *path, int nshards, const char *const *shards) {
  LM_LARGE(char, folder, PATH_MAX);
  DIR *dir = folder_of(path, folder) ? lm_opendir(folder) : NULL;
  int found = 0;
  for (struct dirent *e; dir && (e = readdir(dir));) found += is_shard_of(e->d_name, nshards, shards);
  if (dir) closedir(dir);
  return found >= nshards;
}

lm_status lm_complete_parts(const char *path, const char *suffix, int nshards, const char *const *shards) {
  LM_LARGE(char, part, PATH_MAX);
  LM_LARGE(char, target, PATH_MAX);
  if (!find_part(path, "", target) || !find_part(path, suffix, part)) return fail_write("replace", path);
  if (rename(part, target) != 0) return errno == ENOENT ? LM_OK : fail_write("replace", path);
  if (!sync_directory(target)) return fail_write("sync the folder of", path);
  lm_remove_abandoned(path, nshards, shards);
  return LM_OK;
}

bool lm_remove_part(const char *path, const char *suffix) {
  char part[PATH_MAX];
  return find_part(path, suffix, part) && unlink(part) == 0;
}

void lm_new_file_abandon(lm_new_file *f) {
  if (f->fd >= 0) close(f->fd);
  if (f->temporary && !f->nameless) unlink(f->temporary);
  lm_free(f->temporary);
  lm_free(f->path);
  *f = (lm_new_file){.fd = -1};
}
