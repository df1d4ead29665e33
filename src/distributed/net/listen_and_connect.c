/* Listens and connects by text addresses, with names resolved under a deadline. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/message.h"
#include "distributed/net/auth.h"
#include "distributed/net/interface.h"
#include "distributed/net/resolve.h"

enum { BACKLOG = 4096 };
static const double next_address = 2; /* seconds for an address unless it is the last */
static const double naming_time = 5;  /* seconds to resolve the host to listen on */

typedef union address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  struct sockaddr_un local;
  struct sockaddr_storage storage; /* large enough for any family */
} address;

/* Writes "host:port"; nothing is truncated, since callers check the length of host. */
static void socket_address_text(const char *host, int port, char out[LM_ADDRESS_MAX]) {
  snprintf(out, LM_ADDRESS_MAX, strchr(host, ':') ? "[%.110s]:%d" : "%.110s:%d", host, port);
}

/* ---- listening */

/* Binds and listens on a new socket; returns 0 or errno. */
static int listen_on(const struct sockaddr *a, socklen_t n, int *out) {
  int yes = 1, no = 0, code = 0;
  int fd = lm_fd_above_stdio(socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd < 0) return errno;
  if (a->sa_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (a->sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (bind(fd, a, n) != 0 || listen(fd, BACKLOG) != 0) {
    code = errno;
    close(fd);
    return code;
  }
  *out = fd;
  return 0;
}

static int listen_everywhere(int port, int *out) {
  address a = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_ANY_INIT}};
  int code = listen_on(&a.any, sizeof a.v6, out);
  if (code != EAFNOSUPPORT && code != EADDRNOTAVAIL) return code;
  a = (address){.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
  return listen_on(&a.any, sizeof a.v4, out);
}

static bool socket_is_loopback(const struct sockaddr *a) {
  if (a->sa_family == AF_INET)
    return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
  return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* Returns true if `host` is a numeric address or a localhost name. Other names may mean the loopback on this machine
 * only: many systems map their own host name to it. */
static bool says_loopback(const char *host) {
  struct in6_addr a;
  return strncmp(host, "localhost", 9) == 0 || inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1;
}

/* Listens on the one of the addresses that is this machine's or, if several are, on every interface, since others may
 * use any of them. Returns 0 or errno; EADDRNOTAVAIL: none is this machine's. */
static int listen_on_own(const struct addrinfo *found, const char *host, int port, int *fd) {
  int code = EADDRNOTAVAIL, second;
  *fd = -1;
  for (const struct addrinfo *a = found; a; a = a->ai_next) {
    if (socket_is_loopback(a->ai_addr) && !says_loopback(host)) continue;
    if (*fd < 0) {
      code = listen_on(a->ai_addr, a->ai_addrlen, fd);
      if (code == EAFNOSUPPORT) code = EADDRNOTAVAIL;
      if (code != 0 && code != EADDRNOTAVAIL) return code;
    } else if (!socket_is_loopback(a->ai_addr) && listen_on(a->ai_addr, a->ai_addrlen, &second) == 0) {
      close(second);
      close(*fd);
      return listen_everywhere(port, fd);
    }
  }
  return code;
}

static bool is_loopback_alone(const struct addrinfo *found) {
  while (found && socket_is_loopback(found->ai_addr)) found = found->ai_next;
  return !found;
}

lm_status lm_net_listen_here(const char *host, int port, int *fd) {
  struct addrinfo *found = NULL;
  lm_deadline p = {.deadline = lm_seconds() + naming_time, .wake_fd = -1};
  *fd = -1;
  NEED(lm_net_resolve(host, port, &p, &found));
  int code = listen_on_own(found, host, port, fd);
  if (code == EADDRNOTAVAIL && !says_loopback(host) && is_loopback_alone(found)) code = listen_everywhere(port, fd);
  freeaddrinfo(found);
  if (code == 0 || code == EADDRNOTAVAIL || code == EADDRINUSE) return LM_OK;
  return lm_fail_cannot(LM_E_IO, lm_text("listen on %s, port %d", host, port), code);
}

lm_status lm_net_listen(const char *host, int port, int *fd, char text[LM_ADDRESS_MAX]) {
  char name[LM_ADDRESS_MAX];
  struct addrinfo *found = NULL;
  address bound;
  socklen_t n = sizeof bound;
  lm_status status = LM_OK;
  *fd = -1;
  if (strlen(host) >= LM_ADDRESS_MAX - 8)
    return lm_fail(LM_E_ARG, "cannot listen on '%s': host name is too long", host);
  if (!*host) {
    lm_net_machine_host(name);
  } else {
    lm_deadline p = {.deadline = lm_seconds() + naming_time, .wake_fd = -1};
    snprintf(name, sizeof name, "%s", host);
    /* A name that this machine cannot resolve is one behind NAT. */
    if (lm_net_resolve(host, port, &p, &found) != LM_OK) found = NULL;
  }
  int code = listen_on_own(found, host, port, fd);
  if (code == EADDRNOTAVAIL) code = listen_everywhere(port, fd);
  socket_address_text(name, port, text);
  if (code == EADDRINUSE) {
    status =
        lm_fail(LM_E_IO, "cannot listen on %s: port already in use, perhaps by another job; choose another one", text);
  } else if (code != 0) {
    status = lm_fail_cannot(LM_E_IO, lm_text("listen on %s", text), code);
  } else if (getsockname(*fd, &bound.any, &n) != 0) {
    status = lm_fail_cannot(LM_E_IO, "read the address of a socket", errno);
    close(*fd);
    *fd = -1;
  } else {
    socket_address_text(name, ntohs(bound.any.sa_family == AF_INET ? bound.v4.sin_port : bound.v6.sin6_port), text);
  }
  if (found) freeaddrinfo(found);
  return status;
}

/* Builds the address of an abstract name: sun_path starts with a zero, and *n, not a zero, ends it. */
static lm_status unix_address(const char *name, address *out, socklen_t *n) {
  size_t length = strlen(name);
  *out = (address){.local = {.sun_family = AF_UNIX}};
  *n = 0;
  if (length == 0 || length >= sizeof out->local.sun_path)
    return lm_fail(LM_E_ARG, "'unix:%s': name must have 1 to %zu bytes", name, sizeof out->local.sun_path - 1);
  memcpy(out->local.sun_path + 1, name, length);
  *n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
  return LM_OK;
}

lm_status lm_net_listen_unix(int *fd, char text[LM_ADDRESS_MAX]) {
  char random[33];
  address a;
  socklen_t n;
  *fd = -1;
  lm_random_hex(random, 16);
  snprintf(text, LM_ADDRESS_MAX, "unix:luminary-%s", random);
  NEED(unix_address(text + 5, &a, &n));
  int code = listen_on(&a.any, n, fd);
  return code == 0 ? LM_OK : lm_fail_cannot(LM_E_IO, lm_text("listen on %s", text), code);
}

/* ---- connecting */

static lm_status socket_sleep(const lm_deadline *p, double seconds) {
  double now = lm_seconds(), until = now + seconds;
  while (now < until && now < p->deadline) {
    NEED(p->check ? p->check(p->ctx) : LM_OK);
    poll(NULL, 0, (int)((until - now) * 1000) + 1);
    now = lm_seconds();
  }
  return now < p->deadline ? LM_OK : lm_fail(LM_E_IO, "timed out");
}

/* Returns true if fd is connected to itself: connecting to an ephemeral port of this machine where nothing listens may
 * assign that very port to the socket. */
static bool is_to_itself(int fd) {
  address a = {0}, b = {0};
  socklen_t na = sizeof a, nb = sizeof b;
  if (getsockname(fd, &a.any, &na) != 0 || getpeername(fd, &b.any, &nb) != 0) return false;
  return a.any.sa_family != AF_UNIX && na == nb && memcmp(&a, &b, na) == 0;
}

static lm_status socket_connect_to(const struct sockaddr *a, socklen_t size, const lm_deadline *p, int *out) {
  lm_status status = LM_OK;
  int code = 0;
  socklen_t n = sizeof code;
  int fd = lm_fd_above_stdio(socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd < 0) return lm_fail_cannot(LM_E_IO, "create a socket", errno);
  while (connect(fd, a, size) != 0) {
    if (errno == EAGAIN) { /* a unix socket whose queue is full */
      TRY(socket_sleep(p, 0.01));
      continue;
    }
    code = errno;
    if (code != EINPROGRESS && code != EINTR) break;
    TRY(lm_net_await(fd, POLLOUT, p));
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &n) != 0) code = errno;
    break;
  }
  if (code == 0 && is_to_itself(fd)) code = ECONNREFUSED;
  if (code != 0) status = lm_fail(LM_E_IO, "%s", strerror(code));
done:
  if (status == LM_OK)
    *out = fd;
  else
    close(fd);
  return status;
}

lm_status lm_net_connect(const char *text, const lm_deadline *p, int *fd) {
  char host[LM_ADDRESS_MAX];
  int port;
  lm_status status = LM_OK;
  struct addrinfo *found = NULL;
  *fd = -1;
  if (strncmp(text, "unix:", 5) == 0) {
    address a;
    socklen_t n;
    TRY(unix_address(text + 5, &a, &n));
    return socket_connect_to(&a.any, n, p, fd);
  }
  TRY(lm_net_split(text, host, &port));
  TRY(lm_net_resolve(host, port, p, &found));
  for (struct addrinfo *a = found; a; a = a->ai_next) {
    lm_deadline one = *p;
    double soon = lm_seconds() + (p->per_address > 0 ? p->per_address : next_address);
    if ((a->ai_next || p->per_address > 0) && soon < one.deadline) one.deadline = soon;
    status = socket_connect_to(a->ai_addr, a->ai_addrlen, &one, fd);
    if (status != LM_E_IO || lm_seconds() >= p->deadline) break;
  }
done:
  if (found) freeaddrinfo(found);
  return status;
}
