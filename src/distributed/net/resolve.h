/* Names of hosts into addresses, under a deadline. Private to distributed/net/. */
#pragma once

#include <netdb.h>

#include "distributed/net/socket.h"

/* For freeaddrinfo. LM_E_IO: not known, or no answer in time. */
lm_status lm_net_resolve(const char *host, int port, const lm_deadline *p, struct addrinfo **out);
