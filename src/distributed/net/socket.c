#include "distributed/net/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/message.h"

enum { UNIX_BUFFER = 4 << 20 };
static const double look_every = 0.05; /* seconds between two calls of a deadline's check */

/* ---- waiting */

lm_status lm_net_await(int fd, short events, const lm_deadline *p) {
  bool ignores_wake = false; /* wake_fd is readable but check finds no error: polling it again would spin */
  for (;;) {
    NEED(p->check ? p->check(p->ctx) : LM_OK);
    double left = p->deadline - lm_seconds();
    if (left <= 0) return lm_fail(LM_E_IO, "timed out");
    if (left > look_every) left = look_every;
    struct pollfd fds[2] = {{fd, events, 0}, {p->wake_fd, POLLIN, 0}};
    int n = poll(fds, p->wake_fd >= 0 && !ignores_wake ? 2 : 1, (int)(left * 1000) + 1);
    if (n < 0 && errno != EINTR) return lm_fail_cannot(LM_E_IO, "poll", errno);
    if (n > 0 && fds[0].revents) return LM_OK;
    ignores_wake = n > 0;
  }
}

static lm_status move_all(int fd, void *data, size_t n, bool out, const lm_deadline *p) {
  for (char *at = data; n > 0;) {
    ssize_t moved = out ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
    if (moved > 0) {
      at += moved;
      n -= (size_t)moved;
    } else if (moved == 0 && !out) {
      return lm_fail(LM_E_IO, "connection closed");
    } else if (moved < 0 && errno == EAGAIN) {
      NEED(lm_net_await(fd, out ? POLLOUT : POLLIN, p));
    } else if (moved < 0 && errno != EINTR) {
      return lm_fail(LM_E_IO, "%s", strerror(errno));
    }
  }
  return LM_OK;
}

lm_status lm_net_read(int fd, void *data, size_t n, const lm_deadline *p) { return move_all(fd, data, n, false, p); }
lm_status lm_net_write(int fd, const void *data, size_t n, const lm_deadline *p) {
  return move_all(fd, (void *)data, n, true, p);
}

/* ---- addresses */

lm_status lm_net_split(const char *text, char host[LM_ADDRESS_MAX], int *port) {
  const char *colon = strrchr(text, ':'), *from = text, *to = colon;
  if (!colon) return lm_fail(LM_E_ARG, "expected host:port, got '%s' without a port", text);
  if (from[0] == '[') {
    if (to == from || to[-1] != ']')
      return lm_fail(LM_E_ARG, "expected [IPv6]:port, as in [::1]:29500, got '%s'", text);
    from++, to--;
  } else if (memchr(from, ':', (size_t)(to - from))) {
    return lm_fail(LM_E_ARG, "'%s': an IPv6 address must be in brackets, as in [::1]:29500", text);
  }
  char *end;
  long number = strtol(colon + 1, &end, 10);
  if (colon[1] < '0' || colon[1] > '9' || *end || number < 1 || number > 65535)
    return lm_fail(LM_E_ARG, "'%s': port must be from 1 to 65535, got '%s'", text, colon + 1);
  if (to <= from) return lm_fail(LM_E_ARG, "expected host:port, got '%s' without a host", text);
  if (to - from >= LM_ADDRESS_MAX - 8) return lm_fail(LM_E_ARG, "'%s': host name is too long", text);
  memcpy(host, from, (size_t)(to - from));
  host[to - from] = 0;
  *port = (int)number;
  return LM_OK;
}

lm_status lm_net_numeric(const struct sockaddr *a, socklen_t n, char host[LM_ADDRESS_MAX]) {
  char text[NI_MAXHOST];
  int code = getnameinfo(a, n, text, sizeof text, NULL, 0, NI_NUMERICHOST);
  if (code != 0) return lm_fail(LM_E_IO, "cannot read a network address: %s", gai_strerror(code));
  const char *from = strncmp(text, "::ffff:", 7) == 0 && strchr(text, '.') ? text + 7 : text;
  snprintf(host, LM_ADDRESS_MAX, "%.110s", from);
  return LM_OK;
}

lm_status lm_net_own_host(int fd, char host[LM_ADDRESS_MAX]) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
    return lm_fail_cannot(LM_E_IO, "read the address of a socket", errno);
  if (a.ss_family != AF_UNIX) return lm_net_numeric((struct sockaddr *)&a, n, host);
  snprintf(host, LM_ADDRESS_MAX, "127.0.0.1");
  return LM_OK;
}

void lm_net_host_id(char id[64]) {
  char text[256] = "";
  size_t n = 0;
  int fd = lm_fd_above_stdio(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  ssize_t got = fd >= 0 ? read(fd, text, 64) : -1;
  if (fd >= 0) close(fd);
  if (got > 0)
    n = (size_t)got;
  else if (gethostname(text, 64) == 0)
    n = strnlen(text, 64);
  got = readlink("/proc/self/ns/net", text + n, 64);
  if (got > 0) n += (size_t)got;
  n += (size_t)snprintf(text + n, sizeof text - n, " %ld", (long)geteuid());
  unsigned char hash[16];
  crypto_generichash(hash, sizeof hash, (unsigned char *)text, n, NULL, 0);
  sodium_bin2hex(id, 64, hash, sizeof hash);
}

/* ---- connections */

lm_status lm_net_accept(int listener, double dead_after, int *fd) {
  *fd = lm_fd_above_stdio(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (*fd >= 0) {
    lm_net_tune(*fd, dead_after);
    return LM_OK;
  }
  switch (errno) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM: return lm_fail_cannot(LM_E_OOM, "accept a connection", errno);
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
    case EOPNOTSUPP: return lm_fail_cannot(LM_E_IO, "accept a connection", errno);
    default: return LM_OK; /* no connection, or it is closed already */
  }
}

void lm_net_tune(int fd, double dead_after) {
  int yes = 1, family = 0;
  socklen_t n = sizeof family;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) != 0) return;
  if (family == AF_UNIX) {
    int bytes = UNIX_BUFFER;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    return;
  }
  /* TCP's buffers are left alone: they grow beyond the size that an unprivileged process may set. */
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  if (dead_after <= 0) return;
  int seconds = dead_after < 1 ? 1 : dead_after > 3600 ? 3600 : (int)dead_after;
  int milliseconds = dead_after > 3600 ? 3600000 : (int)(dead_after * 1000);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &yes, sizeof yes);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &yes, sizeof yes);
  if (seconds > 100) seconds = 100; /* the kernel's maximum is 127 */
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}
