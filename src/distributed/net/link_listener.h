/* Accepts links from other ranks, authenticates them and passes them to groups' listeners, or keeps them until a group
 * listens. Served by the client's thread. Private to distributed/. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

struct pollfd;

/* Takes a link from `peer`, and takes fd over. */
typedef void (*lm_link_fn)(void *ctx, int peer, int fd);

enum { LM_INCOMING_HANDSHAKES = 256, LM_INCOMING_POLLS = LM_INCOMING_HANDSHAKES + 2 };

typedef struct lm_handshake { /* a connection that is not authenticated yet */
  int fd;
  lm_auth auth;
} lm_handshake;

typedef struct lm_pending_link { /* a link whose listener is not registered yet */
  uint64_t listener_id;
  int peer, fd;
  struct lm_pending_link *next;
} lm_pending_link;

typedef struct lm_listener { /* a registered listener of a group */
  uint64_t listener_id;
  int size;
  lm_link_fn fn;
  void *ctx;
  struct lm_listener *next;
} lm_listener;

typedef struct lm_incoming {
  int unix_listener, tcp_listener; /* -1: none */
  char unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  const lm_key *key;
  int size;              /* number of ranks of the world, and the most pending links of a listener */
  double dead_after;     /* seconds without an answer after which a TCP link is closed (lm_net_tune) */
  _Atomic bool one_host; /* true if all ranks are on one host, so that TCP is not needed */
  double full_until;     /* lm_seconds() until which no connection is accepted, for lack of descriptors; thread only */
  int nhandshakes;       /* thread only, as handshakes */
  lm_handshake *handshakes[LM_INCOMING_HANDSHAKES]; /* the oldest first */
  pthread_mutex_t lock;                             /* guards the lists below; held while a listener's fn runs */
  lm_listener *listeners;
  lm_pending_link *pending_links; /* the oldest first */
} lm_incoming;

/* Listens on a unix socket, and by TCP on `host`. key is borrowed. */
lm_status lm_incoming_open(lm_incoming *incoming, const char *host, const lm_key *key, int size, double dead_after);
void lm_incoming_close(lm_incoming *incoming); /* to be called after its thread has ended; {0} is allowed */
/* Fills in entries for poll and returns their number, at most LM_INCOMING_POLLS; serve handles them after the poll. */
int lm_incoming_polls(lm_incoming *incoming, struct pollfd *polls);
void lm_incoming_serve(lm_incoming *incoming, const struct pollfd *polls, int n);
/* Registers fn for links to listener_id from peers below size; fn NULL unregisters and closes pending links. */
lm_status lm_incoming_accept(lm_incoming *incoming, uint64_t listener_id, int size, lm_link_fn fn, void *ctx);
/* Closes pending links to all listeners whose ids differ from listener_id only in the lowest `bits`. */
void lm_incoming_forget(lm_incoming *incoming, uint64_t listener_id, int bits);
