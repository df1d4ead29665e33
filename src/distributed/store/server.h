/* Runs the store, a thread of rank 0: members join, set and get keys, and report their calls; the store compares these,
 * checks heartbeats, and reports the first failure to all. */
#pragma once

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

typedef struct lm_server lm_server;

typedef struct lm_server_config {
  const char *host; /* host to listen on; "": every interface */
  int port;         /* 0: a free one */
  int size;         /* number of members */
  int generation;
  lm_key key;
  double heartbeat_timeout; /* seconds; 0: off */
} lm_server_config;

lm_status lm_server_start(const lm_server_config *config, lm_server **out);
const char *lm_server_address(const lm_server *s); /* the address that members connect to */
/* Drops the owner's reference; the store continues until every member has left or died. s may be NULL. */
void lm_server_release(lm_server *s);
/* Waits until all servers of the process have ended, `seconds` at most; then stops those that have not. */
void lm_servers_finish(double seconds);
