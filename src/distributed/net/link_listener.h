/* Where links from other ranks arrive: listeners, handshakes under way, and links for groups that do not take them yet.
 * Served by the client's thread. Private to distributed/. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

struct pollfd;

/* Takes a link of `peer`: fd is its own from now on. */
typedef void (*lm_link_fn)(void *ctx, int peer, int fd);

enum { LM_INCOMING_HANDSHAKES = 256, LM_INCOMING_POLLS = LM_INCOMING_HANDSHAKES + 2 };

typedef struct lm_handshake { /* has not proved yet who it is */
  int fd;
  lm_auth auth;
} lm_handshake;

typedef struct lm_pending_link { /* a link that nobody has taken yet */
  uint64_t listener_id;
  int peer, fd;
  struct lm_pending_link *next;
} lm_pending_link;

typedef struct lm_listener { /* a group that takes links: one of its listeners */
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
  int size; /* the world's: no group can have more links waiting */
  double dead_after;
  _Atomic bool one_host; /* TCP is not needed */
  double full_until;     /* the thread's own, as what follows: when there may be descriptors again */
  int nhandshakes;
  lm_handshake *handshakes[LM_INCOMING_HANDSHAKES]; /* the oldest first */
  pthread_mutex_t lock;                             /* of what follows; held while a listener's fn runs */
  lm_listener *listeners;
  lm_pending_link *pending_links; /* the oldest first */
} lm_incoming;

/* Listens; host: of the interface for TCP. */
lm_status lm_incoming_open(lm_incoming *incoming, const char *host, const lm_key *key, int size, double dead_after);
void lm_incoming_close(lm_incoming *incoming); /* after its thread has ended; {0} is fine */
/* What to poll (at most LM_INCOMING_POLLS); returns how many. Then, with the same: what happened. */
int lm_incoming_polls(lm_incoming *incoming, struct pollfd *polls);
void lm_incoming_serve(lm_incoming *incoming, const struct pollfd *polls, int n);
/* fn NULL: takes none any more, and those that wait are closed. */
lm_status lm_incoming_accept(lm_incoming *incoming, uint64_t listener_id, int size, lm_link_fn fn, void *ctx);
/* Closes what waits for any listener that differs from this one in its lowest `bits` alone. */
void lm_incoming_forget(lm_incoming *incoming, uint64_t listener_id, int bits);
