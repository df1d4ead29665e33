/* The store: rank 0's thread that knows everybody. Members join, keep keys, tell where they wait; it compares, watches
 * heartbeats, and reports the first failure to all. */
#pragma once

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

typedef struct lm_server lm_server;

typedef struct lm_server_config {
  const char *host; /* to listen on; "": every interface */
  int port;         /* 0: a free one */
  int size;         /* members wanted */
  int generation;
  lm_key key;
  double heartbeat_timeout; /* 0: off */
} lm_server_config;

lm_status lm_server_start(const lm_server_config *config, lm_server **out);
const char *lm_server_address(const lm_server *s); /* what members connect to */
/* The owner is done with it: it continues until every member has left or died, then ends by itself. */
void lm_server_release(lm_server *s);
/* Waits until all servers of the process have ended, `seconds` at most; then stops those that have not. */
void lm_servers_finish(double seconds);
