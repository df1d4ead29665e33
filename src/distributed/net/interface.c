#include "distributed/net/interface.h"
#include "base/descriptor.h"
#include "base/environment_variable.h"
#include "base/message.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- LM_SOCKET_IFNAME */

static bool interface_is_among(const char *name, const char *list, bool whole) {
  for (const char *at = list; *at;) {
    size_t n = strcspn(at, ",");
    if (n > 0 && strncmp(name, at, n) == 0 && (!whole || name[n] == 0)) return true;
    at += n + (at[n] == ',');
  }
  return false;
}

static bool interface_is_loopback(const struct ifaddrs *i) { return i->ifa_flags & IFF_LOOPBACK; }

/* Returns true if the interface matches the pattern; a pattern of exclusions ("^") never matches the loopback. */
static bool is_chosen(const struct ifaddrs *i, const char *pattern) {
  bool other = *pattern == '^';
  pattern += other;
  bool whole = *pattern == '=';
  return interface_is_among(i->ifa_name, pattern + whole, whole) != other && !(other && interface_is_loopback(i));
}

/* ---- interfaces */

static socklen_t address_size(int family) {
  return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Writes i's address as text; false if it is of another family, its interface is down, or it is link-local (its scope's
 * name differs between machines). */
static bool address_of(const struct ifaddrs *i, int family, char host[LM_ADDRESS_MAX]) {
  if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP)) return false;
  if (family == AF_INET6) {
    const struct sockaddr_in6 *a = (const void *)i->ifa_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr)) return false;
  }
  return lm_net_numeric(i->ifa_addr, address_size(family), host) == LM_OK;
}

/* Writes the first address of an interface that matches; pattern NULL: of any except the loopback. */
static bool interface_find(const struct ifaddrs *all, const char *pattern, int family, char host[LM_ADDRESS_MAX]) {
  for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
    bool fits = pattern ? is_chosen(i, pattern) : !interface_is_loopback(i);
    if (fits && address_of(i, family, host)) return true;
  }
  return false;
}

/* Writes the list of interfaces, "eth0 (10.0.0.1), lo (127.0.0.1)", or "none". */
static void interface_list(const struct ifaddrs *all, char *out, size_t capacity) {
  static const int families[] = {AF_INET, AF_INET6};
  size_t n = 0;
  snprintf(out, capacity, "none");
  for (int f = 0; f < 2; f++)
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
      char host[LM_ADDRESS_MAX];
      if (n < capacity && address_of(i, families[f], host))
        n += (size_t)snprintf(out + n, capacity - n, "%s%s (%s)", n ? ", " : "", i->ifa_name, host);
    }
}

lm_status lm_net_chosen_host(const char *like, char host[LM_ADDRESS_MAX]) {
  lm_status status = LM_OK;
  const char *pattern = lm_variable_get(LM_VAR_SOCKET_IFNAME);
  struct ifaddrs *all;
  char there[512];
  *host = 0;
  if (!pattern) return LM_OK;
  if (getifaddrs(&all) != 0) return lm_fail_cannot(LM_E_IO, "list the network interfaces", errno);
  int first = strchr(like, ':') ? AF_INET6 : AF_INET;
  if (!interface_find(all, pattern, first, host) &&
      !interface_find(all, pattern, first == AF_INET ? AF_INET6 : AF_INET, host)) {
    interface_list(all, there, sizeof there);
    status =
        lm_fail(LM_E_ARG, "LM_SOCKET_IFNAME = '%s' matches no interface that is up and has an address; available: %s",
                lm_ellipsize(pattern, 100), there);
  }
  freeifaddrs(all);
  return status;
}

/* Returns the number of set bits of a netmask, which may be NULL. */
static int mask_bits(const struct sockaddr *mask, socklen_t n) {
  int bits = 0;
  for (socklen_t i = offsetof(struct sockaddr, sa_data); mask && i < n; i++)
    bits += __builtin_popcount(((const unsigned char *)mask)[i]);
  return bits;
}

void lm_net_list_interfaces(lm_bytes *out) {
  struct ifaddrs *all;
  if (getifaddrs(&all) != 0) return;
  for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
    int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    char host[LM_ADDRESS_MAX], line[LM_ADDRESS_MAX + IFNAMSIZ + 16];
    if (lm_net_numeric(i->ifa_addr, address_size(family), host) != LM_OK) continue;
    host[strcspn(host, "%")] = 0; /* a link-local address names its interface */
    lm_write(line, sizeof line, "%s %s %d\n", i->ifa_name, host, mask_bits(i->ifa_netmask, address_size(family)));
    lm_put(out, line, strlen(line));
  }
  freeifaddrs(all);
}

/* ---- without LM_SOCKET_IFNAME */

lm_status lm_net_configured_host(int fd, const char *peer, char host[LM_ADDRESS_MAX]) {
  char own[LM_ADDRESS_MAX], other[LM_ADDRESS_MAX];
  int port;
  NEED(lm_net_own_host(fd, own));
  NEED(lm_net_chosen_host(own, host));
  if (*host) return LM_OK;
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  bool to_itself = strncmp(own, "127.", 4) == 0; /* any address of the loopback */
  if (getpeername(fd, (struct sockaddr *)&a, &n) == 0 && lm_net_numeric((struct sockaddr *)&a, n, other) == LM_OK)
    to_itself = to_itself || strcmp(own, other) == 0;
  if (to_itself) {
    NEED(lm_net_split(peer, host, &port));
  } else {
    snprintf(host, LM_ADDRESS_MAX, "%s", own);
  }
  return LM_OK;
}

/* Writes the local address of the route to a documentation network (RFC 5737, 3849). Connecting UDP sends nothing. */
static bool routed_address(int family, char host[LM_ADDRESS_MAX]) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
  inet_pton(AF_INET, "192.0.2.1", &v4.sin_addr);
  inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
  const struct sockaddr *far = family == AF_INET ? (const void *)&v4 : (const void *)&v6;
  LM_OWNED_FD fd = lm_fd_above_stdio(socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd >= 0 && connect(fd, far, family == AF_INET ? sizeof v4 : sizeof v6) == 0 &&
         lm_net_own_host(fd, host) == LM_OK;
}

void lm_net_machine_host(char host[LM_ADDRESS_MAX]) {
  struct ifaddrs *all = NULL;
  if (routed_address(AF_INET, host)) return;
  if (getifaddrs(&all) != 0) all = NULL;
  bool found = interface_find(all, NULL, AF_INET, host) || routed_address(AF_INET6, host) ||
               interface_find(all, NULL, AF_INET6, host);
  if (all) freeifaddrs(all);
  if (!found) snprintf(host, LM_ADDRESS_MAX, "127.0.0.1");
}
