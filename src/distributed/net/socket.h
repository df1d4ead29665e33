/* Sockets without surprises: addresses as text, nothing that blocks without a deadline and a way to be called off.
 *
 * An address is "host:port", "[v6]:port", or "unix:name" for a socket in Linux's abstract namespace (no file, gone with
 * its process, seen within the host's network namespace alone). All sockets are close-on-exec and non-blocking. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/status.h"

enum { LM_ADDRESS_MAX = 128 };

/* How long to continue trying. check (may be NULL) is asked at least every 50 ms, and when wake_fd (-1: none) becomes
 * readable; its error ends the wait. */
typedef struct lm_deadline {
  double deadline;    /* lm_seconds() */
  double per_address; /* seconds to connect to one address of a host; 0: as long as there is no other one to try */
  int wake_fd;
  lm_status (*check)(void *ctx);
  void *ctx;
} lm_deadline;

/* Until fd (-1: nothing to wait for) has one of poll()'s events. */
lm_status lm_net_await(int fd, short events, const lm_deadline *p);

/* Listen; *address is what others connect to. A host that is not of this machine (behind NAT), or a name for several of
 * its addresses, listens on every interface and keeps its name in *address. port 0: a free one. "": every interface,
 * named by this machine's own address. */
lm_status lm_net_listen(const char *host, int port, int *fd, char address[LM_ADDRESS_MAX]);
/* The same on this machine's own addresses alone: *fd is -1, without an error, if the host is another machine, or the
 * port is in use. A name for the loopback alone is this machine's own, and listens on every interface. */
lm_status lm_net_listen_here(const char *host, int port, int *fd);
lm_status lm_net_listen_unix(int *fd, char address[LM_ADDRESS_MAX]);
/* One attempt; refused and the like are LM_E_IO at once. */
lm_status lm_net_connect(const char *address, const lm_deadline *p, int *fd);
/* Accepts a waiting connection; *fd is -1 if there is none. LM_E_OOM: out of descriptors or memory; it still waits.
 * Buffers of unix sockets are set large (TCP's grow by themselves), TCP_NODELAY on, keepalive (1 s) and
 * TCP_USER_TIMEOUT such that a silent peer counts as dead after dead_after seconds (0: never). */
lm_status lm_net_accept(int listener, double dead_after, int *fd);
void lm_net_tune(int fd, double dead_after);
/* Closes what an epoll set watches. By close alone it would stay there, with its pointer, for as long as a process has
 * it that was forked before. */
void lm_net_close_watched(int epoll, int fd);
/* All of n bytes, or an error; LM_E_IO "connection closed" at the end of the stream. */
lm_status lm_net_read(int fd, void *data, size_t n, const lm_deadline *p);
lm_status lm_net_write(int fd, const void *data, size_t n, const lm_deadline *p);
/* "host" and port out of "host:port"; the error says what was wrong with it. */
lm_status lm_net_split(const char *address, char host[LM_ADDRESS_MAX], int *port);
/* As text ("10.0.0.1"); an IPv4-mapped IPv6 address as IPv4. */
lm_status lm_net_numeric(const struct sockaddr *a, socklen_t n, char host[LM_ADDRESS_MAX]);
/* This machine's address as seen by the peer of fd. */
lm_status lm_net_own_host(int fd, char host[LM_ADDRESS_MAX]);
/* What identifies a host for shared memory and abstract sockets: boot, network namespace, user. */
void lm_net_host_id(char id[64]);
