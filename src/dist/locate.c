#include "dist/locate.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dist/agent.h"
#include "dist/net_interface.h"
#include "dist/pmix.h"

/* ---- the init_method */

lm_status lm_locator_of(const char *method, int generation, lm_locator *out) {
  *out = (lm_locator){0};
  if (strncmp(method, "tcp://", 6) == 0) {
    out->by = LM_BY_ADDRESS;
    lm_status status = lm_net_split(method + 6, out->host, &out->port);
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method");
  }
  if (strncmp(method, "file://", 7) == 0) {
    out->by = LM_BY_FILE;
    if (method[7] != '/' || method[8] == 0)
      return lm_fail(LM_E_ARG, "init_method '%s': a whole path is wanted, as in file:///shared/rendezvous", method);
    if (strlen(method + 7) + 32 > sizeof out->path)
      return lm_fail(LM_E_ARG, "init_method: a path of %zu bytes is too long", strlen(method + 7));
    snprintf(out->path, sizeof out->path, "%s", method + 7);
    return LM_OK;
  }
  if (strncmp(method, "agent://", 8) == 0) {
    const char *slash = strchr(method + 8, '/');
    size_t n = slash ? (size_t)(slash - method - 8) : 0;
    out->by = LM_BY_AGENT;
    if (n == 0 || n >= sizeof out->agent || strlen(slash + 1) >= sizeof out->path)
      return lm_fail(LM_E_ARG, "init_method '%s': agent://host:port/key is wanted", method);
    memcpy(out->agent, method + 8, n);
    snprintf(out->path, sizeof out->path, "%s", slash + 1);
    char host[LM_ADDRESS_MAX];
    int port;
    lm_status status = lm_net_split(out->agent, host, &port);
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method");
  }
  if (strcmp(method, "pmix://") == 0) {
    out->by = LM_BY_PMIX;
    snprintf(out->path, sizeof out->path, "luminary.%d", generation);
    lm_status status = lm_pmix_is_there();
    return status == LM_OK ? LM_OK : lm_fail_in(status, "init_method pmix://");
  }
  return lm_fail(LM_E_ARG, "init_method '%s' is not known; env://, tcp://host:port or file:///path is wanted", method);
}

lm_status lm_locator_key(const lm_locator *l, const lm_location *at, const char *token, const char *job, lm_key *out) {
  if (l->by == LM_BY_ADDRESS) return lm_key_of(token && *token ? token : NULL, job, out);
  char text[4096];
  const char *secret = token && *token ? token : job;
  int n = snprintf(text, sizeof text, "%s|%s|%s", at->nonce, l->by == LM_BY_FILE ? l->path : "", secret);
  if (n >= (int)sizeof text) return lm_fail(LM_E_ARG, "a token or job id of %zu bytes is too long", strlen(secret));
  return lm_key_of(token && *token ? text : NULL, text, out);
}

lm_status lm_locator_host(const lm_locator *l, char host[LM_ADDRESS_MAX], const lm_patience *p) {
  switch (l->by) {
    case LM_BY_ADDRESS: snprintf(host, LM_ADDRESS_MAX, "%s", l->host); return LM_OK;
    case LM_BY_AGENT: return lm_agent_seen_from(l->agent, host, p); /* what all ranks reach */
    default: return lm_net_chosen_host("", host);
  }
}

/* ---- "address nonce", in a file or under a key */

static void word(const lm_location *at, char *out, size_t capacity) {
  snprintf(out, capacity, "luminary %s %s\n", at->address, at->nonce);
}

static lm_status understand(const char *text, lm_location *at) {
  lm_location found = {0};
  char end = 0, host[LM_ADDRESS_MAX];
  int port;
  _Static_assert(LM_ADDRESS_MAX == 128 && sizeof found.nonce == 40, "the widths below");
  int n = sscanf(text, "luminary %127s %39s%c", found.address, found.nonce, &end);
  if (n != 3 || end != '\n' || lm_net_split(found.address, host, &port) != LM_OK)
    return lm_fail(LM_E_IO, "it holds no address of a store");
  *at = found;
  return LM_OK;
}

static lm_status folder_is_there(const char *path) {
  char folder[1024];
  struct stat info;
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  slash[slash == folder] = 0;
  if (stat(folder, &info) == 0 && S_ISDIR(info.st_mode)) return LM_OK;
  return lm_fail(LM_E_ARG, "init_method file://%s: there is no folder %s", path, folder);
}

static lm_status read_file(const char *path, lm_location *at) {
  char text[256];
  lm_status status = folder_is_there(path);
  if (status != LM_OK) return status;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return lm_fail(LM_E_IO, "%s: %s", path, strerror(errno));
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n < 0) return lm_fail(LM_E_IO, "%s: %s", path, strerror(errno));
  text[n] = 0;
  status = understand(text, at);
  return status == LM_OK ? LM_OK : lm_fail_in(status, path);
}

/* Whole or not at all: whoever reads the file sees the old one or the new one. */
static lm_status write_file(const char *path, const char *text) {
  char temporary[1024 + 40], random[13];
  lm_status status = folder_is_there(path);
  if (status != LM_OK) return status;
  lm_random_hex(random, 6);
  snprintf(temporary, sizeof temporary, "%s.%s", path, random);
  int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return lm_fail(LM_E_IO, "init_method file://%s: %s: %s", path, temporary, strerror(errno));
  bool written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  written = close(fd) == 0 && written;
  if (written && rename(temporary, path) == 0) return LM_OK;
  status = lm_fail(LM_E_IO, "init_method file://%s: %s", path, strerror(errno));
  unlink(temporary);
  return status;
}

lm_status lm_locator_publish(const lm_locator *l, const lm_location *at, const lm_patience *p) {
  char text[256];
  word(at, text, sizeof text);
  switch (l->by) {
    case LM_BY_FILE: return write_file(l->path, text);
    case LM_BY_AGENT: return lm_agent_set(l->agent, l->path, text, p);
    case LM_BY_PMIX: return lm_pmix_put(l->path, text);
    default: return LM_OK;
  }
}

lm_status lm_locator_find(const lm_locator *l, lm_location *at, const lm_patience *p) {
  char text[256];
  lm_status status = LM_OK;
  switch (l->by) {
    case LM_BY_FILE: return read_file(l->path, at);
    case LM_BY_AGENT:
      TRY(lm_agent_get(l->agent, l->path, text, sizeof text, p));
      TRY(understand(text, at));
      break;
    case LM_BY_PMIX:
      TRY(lm_pmix_get(l->path, text, sizeof text, p));
      TRY(understand(text, at));
      break;
    default:
      *at = (lm_location){0};
      snprintf(at->address, sizeof at->address, strchr(l->host, ':') ? "[%.110s]:%d" : "%.110s:%d", l->host, l->port);
  }
done:
  return status;
}

void lm_locator_withdraw(const lm_locator *l, const lm_location *at) {
  lm_location found;
  if (l->by == LM_BY_FILE && read_file(l->path, &found) == LM_OK && strcmp(found.nonce, at->nonce) == 0)
    unlink(l->path);
}
