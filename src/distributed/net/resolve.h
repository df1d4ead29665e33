/* Resolves host names under a deadline. Private to distributed/net/. */
#pragma once

#include <netdb.h>

#include "distributed/net/socket.h"

/* Returns the host's addresses, which the caller frees (freeaddrinfo). LM_E_IO: unknown, or no answer in time. */
lm_status lm_net_resolve(const char *host, int port, const lm_deadline *p, struct addrinfo **out);
