#include "distributed/store/store_address.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/file_size_limit.h"
#include "base/regular_file.h"
#include "distributed/net/interface.h"
#include "distributed/store/pmix.h"
#include "distributed/store/torchrun.h"

/* ---- the init_method */

lm_status lm_locator_parse(const char *method, int generation, lm_locator *out) {
  *out = (lm_locator){.fd = -1};
  if (strncmp(method, "tcp://", 6) == 0) {
    out->by = LM_BY_ADDRESS;
    lm_status status = lm_net_split(method + 6, out->host, &out->port);
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method");
  }
  if (strncmp(method, "file://", 7) == 0) {
    out->by = LM_BY_FILE;
    if (method[7] != '/' || method[8] == 0)
      return lm_fail(LM_E_ARG, "init_method '%s' must have an absolute path, as in file:///shared/rendezvous", method);
    if (strlen(method + 7) + 32 > sizeof out->path)
      return lm_fail(LM_E_ARG, "init_method: path must have at most %zu bytes, got %zu", sizeof out->path - 32,
                     strlen(method + 7));
    snprintf(out->path, sizeof out->path, "%s", method + 7);
    return LM_OK;
  }
  if (strncmp(method, "agent://", 8) == 0) {
    const char *slash = strchr(method + 8, '/');
    size_t n = slash ? (size_t)(slash - method - 8) : 0;
    out->by = LM_BY_TORCHRUN;
    if (n == 0 || n >= sizeof out->torchrun || strlen(slash + 1) >= sizeof out->path)
      return lm_fail(LM_E_ARG, "init_method '%s' must be agent://host:port/key", method);
    memcpy(out->torchrun, method + 8, n);
    snprintf(out->path, sizeof out->path, "%s", slash + 1);
    char host[LM_ADDRESS_MAX];
    int port;
    lm_status status = lm_net_split(out->torchrun, host, &port);
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method");
  }
  if (strcmp(method, "pmix://") == 0) {
    out->by = LM_BY_PMIX;
    snprintf(out->path, sizeof out->path, "luminary.%d", generation);
    lm_status status = lm_pmix_check();
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method pmix://");
  }
  return lm_fail(LM_E_ARG, "init_method '%s' must start with env://, tcp:// or file://", method);
}

lm_status lm_locator_key(const lm_locator *l, const lm_location *at, const char *token, const char *job, lm_key *out) {
  if (l->by == LM_BY_ADDRESS) return lm_key_make(token && *token ? token : NULL, job, out);
  char text[4096];
  const char *secret = token && *token ? token : job;
  int n = snprintf(text, sizeof text, "%s|%s|%s", at->nonce, l->by == LM_BY_FILE ? l->path : "", secret);
  if (n >= (int)sizeof text) return lm_fail(LM_E_ARG, "LM_TOKEN or the job id is too long: %zu bytes", strlen(secret));
  return lm_key_make(token && *token ? text : NULL, text, out);
}

lm_status lm_locator_host(const lm_locator *l, char host[LM_ADDRESS_MAX], const lm_deadline *p) {
  switch (l->by) {
    case LM_BY_ADDRESS: snprintf(host, LM_ADDRESS_MAX, "%s", l->host); return LM_OK;
    case LM_BY_TORCHRUN: return lm_torchrun_seen_from(l->torchrun, host, p); /* reachable for all ranks */
    default: return lm_net_chosen_host("", host);
  }
}

/* ---- "luminary ADDRESS NONCE", in a file or under a key */

static void format_location(const lm_location *at, char *out, size_t capacity) {
  snprintf(out, capacity, "luminary %s %s\n", at->address, at->nonce);
}

static lm_status parse_location(const char *text, lm_location *at) {
  lm_location found = {0};
  char end = 0, host[LM_ADDRESS_MAX];
  int port, used = 0;
  _Static_assert(LM_ADDRESS_MAX == 128 && sizeof found.nonce == 40, "the widths below");
  int n = sscanf(text, "luminary %127s %39s%c%n", found.address, found.nonce, &end, &used);
  if (n != 3 || end != '\n' || text[used] || lm_net_split(found.address, host, &port) != LM_OK)
    return lm_fail(LM_E_IO, "it contains no address of a store");
  *at = found;
  return LM_OK;
}

static lm_status check_folder(const char *path) {
  char folder[1024];
  struct stat info;
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  slash[slash == folder] = 0;
  if (stat(folder, &info) == 0 && S_ISDIR(info.st_mode)) return LM_OK;
  return lm_fail(LM_E_ARG, "init_method file://%s: no folder '%s'", path, folder);
}

static lm_status fail_foreign_file(void) {
  return lm_fail(LM_E_ARG, "init_method: %s; choose a path that does not exist yet, as in file:///shared/rendezvous",
                 lm_error());
}

/* Reads the rendezvous file at path. LM_E_IO: there is none, or an empty one (mktemp's, say). LM_E_ARG: it is anything
 * else, which must not be waited for, replaced or removed. *held is true if a living rank 0 has it locked; always false
 * on file systems without locks. */
static lm_status read_location_file(const char *path, lm_location *at, bool *held, struct stat *info) {
  char text[256];
  int fd;
  if (lm_fd_open(path, O_NOFOLLOW, &fd, info) != LM_OK) {
    bool gone = errno == ENOENT || errno == ESTALE;
    return gone ? lm_fail(LM_E_IO, "cannot open '%s': %s", path, strerror(errno)) : fail_foreign_file();
  }
  ssize_t n = read(fd, text, sizeof text);
  int problem = errno;
  *held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  if (n == 0) return lm_fail(LM_E_IO, "'%s' is empty", path);
  if (n > 0 && n < (ssize_t)sizeof text && !memchr(text, 0, (size_t)n)) {
    text[n] = 0;
    if (parse_location(text, at) == LM_OK) return LM_OK;
  }
  if (n < 0)
    lm_fail(LM_E_ARG, "cannot read '%s': %s", path, strerror(problem));
  else
    lm_fail(LM_E_ARG, "'%s' exists and is not a rendezvous file", path);
  return fail_foreign_file();
}

/* Checks that only this user can have written the file: without a token, its nonce is the job's secret. */
static lm_status check_owner(const char *path, const struct stat *info) {
  static const char remedy[] = "; set LM_TOKEN to the same secret for all ranks, or choose a path in a folder of yours";
  if (info->st_uid != geteuid())
    return lm_fail(LM_E_ARG, "init_method file://%s: the file belongs to user %ld, but this rank runs as user %ld%s",
                   path, (long)info->st_uid, (long)geteuid(), remedy);
  if (info->st_mode & (S_IWGRP | S_IWOTH))
    return lm_fail(LM_E_ARG, "init_method file://%s: other users may write to the file (mode %04o)%s", path,
                   (unsigned)info->st_mode & 07777, remedy);
  return LM_OK;
}

static void temporary_name(const char *path, char *out, size_t capacity) {
  char random[13];
  lm_random_hex(random, 6);
  snprintf(out, capacity, "%s.%s", path, random);
}

/* Moves a file to `path` unless something exists there (EEXIST); false on error, with errno. */
static bool move_unless_exists(const char *from, const char *path) {
  if (link(from, path) == 0) {
    unlink(from);
    return true;
  }
  bool without_links = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK;
  return without_links && rename(from, path) == 0;
}

enum { BESIDE = 1024 + 40 };

/* Removes the rendezvous file with that nonce or, with NULL, one that no living rank 0 holds. Another file may have
 * replaced it since, so the file is moved aside, checked, and moved back if it is another one. */
static lm_status remove_location_file(const char *path, const char *nonce) {
  char aside[BESIDE];
  lm_location at;
  struct stat info;
  bool held;
  temporary_name(path, aside, sizeof aside);
  if (rename(path, aside) != 0) return LM_OK; /* there is no such file any more */
  lm_status status = read_location_file(aside, &at, &held, &info);
  bool done = status == LM_OK ? (nonce ? strcmp(at.nonce, nonce) == 0 : !held) : status == LM_E_IO;
  if (!done && move_unless_exists(aside, path)) return status;
  if (status != LM_E_ARG) unlink(aside);
  return done ? LM_OK : status;
}

/* Creates, locks, writes and syncs the file under its temporary name. *out is its descriptor, also on a write error. */
static lm_status locate_make_file(const char *path, const char *temporary, const char *text, int *out) {
  int fd = lm_fd_above_stdio(open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd < 0)
    return lm_fail(LM_E_IO, "init_method file://%s: cannot create '%s': %s", path, temporary, strerror(errno));
  flock(fd, LOCK_EX | LOCK_NB);
  lm_file_limit limit;
  lm_file_limit_begin(&limit);
  bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fsync(fd) == 0;
  lm_file_limit_end(&limit);
  *out = fd;
  return written ? LM_OK
                 : lm_fail(LM_E_IO, "init_method file://%s: cannot write '%s': %s", path, temporary, strerror(errno));
}

static lm_status fail_in_use(const char *path, const lm_location *found) {
  return lm_fail(LM_E_STATE,
                 "init_method file://%s: rank 0 of another running job uses the file, with its store at %s; choose "
                 "another path for this job",
                 path, found->address);
}

static lm_status write_file(lm_locator *l, const char *text) {
  const char *path = l->path;
  char temporary[BESIDE];
  lm_location found;
  struct stat info;
  bool done = false, held = false;
  int fd = -1;
  lm_status status = check_folder(path);
  if (status != LM_OK) return status;
  temporary_name(path, temporary, sizeof temporary);
  status = locate_make_file(path, temporary, text, &fd);
  bool has_file = status == LM_OK;
  /* Moving is atomic and, with hard links, never replaces a file: readers see the old one, none, or the new one. Other
   * jobs may try the same, so this may take several attempts. */
  for (int attempt = 0; has_file && !done && attempt < 100; attempt++) {
    status = read_location_file(path, &found, &held, &info);
    if (status == LM_OK && held) status = fail_in_use(path, &found);
    if (status == LM_E_ARG || status == LM_E_STATE) break;
    status = remove_location_file(path, NULL);
    if (status == LM_E_ARG) break;
    done = move_unless_exists(temporary, path);
    int problem = errno;
    if (!done) status = lm_fail(LM_E_IO, "init_method file://%s: cannot create the file: %s", path, strerror(problem));
    if (!done && problem != EEXIST) break;
  }
  if (done) {
    l->fd = fd;
    return LM_OK;
  }
  if (fd >= 0) {
    unlink(temporary);
    close(fd);
  }
  return status;
}

lm_status lm_locator_publish(lm_locator *l, const lm_location *at, const lm_deadline *p) {
  char text[256];
  format_location(at, text, sizeof text);
  switch (l->by) {
    case LM_BY_FILE: return write_file(l, text);
    case LM_BY_TORCHRUN: return lm_torchrun_set(l->torchrun, l->path, text, p);
    case LM_BY_PMIX: return lm_pmix_put(l->path, text);
    default: return LM_OK;
  }
}

lm_status lm_locator_find(const lm_locator *l, const char *token, lm_location *at, const lm_deadline *p) {
  char text[256];
  struct stat info;
  bool held;
  switch (l->by) {
    case LM_BY_FILE:
      NEED(check_folder(l->path));
      NEED(read_location_file(l->path, at, &held, &info));
      if (!token || !*token) NEED(check_owner(l->path, &info));
      break;
    case LM_BY_TORCHRUN:
      NEED(lm_torchrun_get(l->torchrun, l->path, text, sizeof text, p));
      NEED(parse_location(text, at));
      break;
    case LM_BY_PMIX:
      NEED(lm_pmix_get(l->path, text, sizeof text, p));
      NEED(parse_location(text, at));
      break;
    default:
      *at = (lm_location){0};
      snprintf(at->address, sizeof at->address, strchr(l->host, ':') ? "[%.110s]:%d" : "%.110s:%d", l->host, l->port);
  }
  return LM_OK;
}

void lm_locator_withdraw(lm_locator *l, const lm_location *at) {
  lm_location found;
  struct stat info;
  bool held;
  if (l->by != LM_BY_FILE || l->fd < 0) return;
  if (read_location_file(l->path, &found, &held, &info) == LM_OK && strcmp(found.nonce, at->nonce) == 0)
    remove_location_file(l->path, at->nonce);
  close(l->fd);
  l->fd = -1;
}
