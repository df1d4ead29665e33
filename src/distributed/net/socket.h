/* Opens, connects, reads and writes sockets by text addresses; every wait has a deadline and can be canceled.
 *
 * An address is "host:port", "[v6]:port", or "unix:name" for a socket in Linux's abstract namespace (no file, ends with
 * its process, visible only in the host's network namespace). All sockets are close-on-exec and non-blocking.
 * lm_net_listen* and lm_net_connect are in listen_and_connect.c, above resolve.c, interface.c and auth.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/status.h"

enum { LM_ADDRESS_MAX = 128 };

/* The limits of a wait. check (may be NULL) is called at least every 50 ms, and when wake_fd (-1: none) becomes
 * readable; its error ends the wait. */
typedef struct lm_deadline {
  double deadline;    /* lm_seconds() */
  double per_address; /* seconds to connect to one of a host's addresses; 0: 2 s, for the last one until the deadline */
  int wake_fd;
  lm_status (*check)(void *ctx);
  void *ctx;
} lm_deadline;

/* Waits until fd (-1: none) has one of poll()'s `events`; LM_E_IO at the deadline. */
LM_API lm_status lm_net_await(int fd, short events, const lm_deadline *p);

/* Listens; others connect to `address`. A host that is not of this machine (behind NAT), or a name for several of its
 * addresses, listens on every interface and keeps its name in `address`. port 0: a free one. host "": every interface,
 * with this machine's own address in `address`. */
LM_API lm_status lm_net_listen(const char *host, int port, int *fd, char address[LM_ADDRESS_MAX]);
/* Listens on this machine's own addresses only: *fd is -1, without an error, if the host is another machine, or the
 * port is in use. A name for the loopback only is this machine's own, and listens on every interface. */
lm_status lm_net_listen_here(const char *host, int port, int *fd);
lm_status lm_net_listen_unix(int *fd, char address[LM_ADDRESS_MAX]);
/* Connects to each of the host's addresses once; LM_E_IO if all fail (refused, timed out). The caller closes *fd. */
LM_API lm_status lm_net_connect(const char *address, const lm_deadline *p, int *fd);
/* Accepts a waiting connection; *fd is -1 if there is none. LM_E_OOM: out of descriptors or memory; it still waits.
 * accept and tune set large send buffers for unix sockets (TCP's grow by themselves), TCP_NODELAY, keepalive (1 s) and
 * TCP_USER_TIMEOUT, so that a silent peer counts as dead after dead_after seconds (0: never). */
LM_API lm_status lm_net_accept(int listener, double dead_after, int *fd);
LM_API void lm_net_tune(int fd, double dead_after);
/* Read or write all n bytes; LM_E_IO "connection closed" at the end of the stream. */
LM_API lm_status lm_net_read(int fd, void *data, size_t n, const lm_deadline *p);
LM_API lm_status lm_net_write(int fd, const void *data, size_t n, const lm_deadline *p);
/* Splits "host:port" into host and port; LM_E_ARG if it is malformed. */
lm_status lm_net_split(const char *address, char host[LM_ADDRESS_MAX], int *port);
/* Writes an address as text ("10.0.0.1"); an IPv4-mapped IPv6 address as IPv4. */
LM_API lm_status lm_net_numeric(const struct sockaddr *a, socklen_t n, char host[LM_ADDRESS_MAX]);
/* Returns this machine's address as seen by the peer of fd. */
lm_status lm_net_own_host(int fd, char host[LM_ADDRESS_MAX]);
/* Returns a host's identity for shared memory and abstract sockets: a hash of boot id, network namespace and user. */
void lm_net_host_id(char id[64]);
