/* Names of hosts into addresses, under a deadline. Private to dist/net*. */
#ifndef LM_DIST_NET_RESOLVE_H
#define LM_DIST_NET_RESOLVE_H

#include <netdb.h>

#include "dist/net.h"

/* For freeaddrinfo. LM_E_IO: not known, or no answer in time. */
lm_status lm_net_resolve(const char *host, int port, const lm_patience *p, struct addrinfo **out);

#endif
