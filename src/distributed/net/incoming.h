/* Where links from other ranks arrive: listeners, handshakes under way, and links for groups that do not take them yet.
 * Served by the client's thread. Private to distributed/. */
#ifndef LM_NET_INCOMING_H
#define LM_NET_INCOMING_H

#include <pthread.h>
#include <stdatomic.h>

#include "distributed/net/auth.h"
#include "distributed/net/socket.h"

struct pollfd;

/* Takes a link of `peer`: fd is its own from now on. */
typedef void (*lm_link_fn)(void *ctx, int peer, int fd);

enum { LM_INCOMING_GUESTS = 256, LM_INCOMING_POLLS = LM_INCOMING_GUESTS + 2 };

typedef struct lm_guest { /* has not proved yet who it is */
  int fd;
  lm_auth auth;
} lm_guest;

typedef struct lm_parked { /* a link that nobody has taken yet */
  uint64_t door;
  int peer, fd;
  struct lm_parked *next;
} lm_parked;

typedef struct lm_door { /* a group that takes links: one of its doors */
  uint64_t door;
  int size;
  lm_link_fn fn;
  void *ctx;
  struct lm_door *next;
} lm_door;

typedef struct lm_incoming {
  int unix_listener, tcp_listener; /* -1: none */
  char unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  const lm_key *key;
  int size; /* the world's: no group can have more links waiting */
  double dead_after;
  _Atomic bool one_host; /* TCP is not needed */
  double full_until;     /* the thread's own, as what follows: when there may be descriptors again */
  int nguests;
  lm_guest *guests[LM_INCOMING_GUESTS]; /* the oldest first */
  pthread_mutex_t lock;                 /* of what follows; held while a door's fn runs */
  lm_door *doors;
  lm_parked *parked; /* the oldest first */
} lm_incoming;

/* Listens; host: of the interface for TCP. */
lm_status lm_incoming_open(lm_incoming *incoming, const char *host, const lm_key *key, int size, double dead_after);
void lm_incoming_close(lm_incoming *incoming); /* after its thread has ended; {0} is fine */
/* What to poll (at most LM_INCOMING_POLLS); returns how many. Then, with the same: what happened. */
int lm_incoming_polls(lm_incoming *incoming, struct pollfd *polls);
void lm_incoming_serve(lm_incoming *incoming, const struct pollfd *polls, int n);
/* fn NULL: takes none any more, and those that wait are closed. */
lm_status lm_incoming_accept(lm_incoming *incoming, uint64_t door, int size, lm_link_fn fn, void *ctx);
/* Closes what waits at any door that differs from this one in its lowest `bits` alone. */
void lm_incoming_forget(lm_incoming *incoming, uint64_t door, int bits);

#endif
