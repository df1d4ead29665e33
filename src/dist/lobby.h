/* Where links from other ranks arrive: listeners, handshakes under way, and links for groups that do not take them yet.
 * Served by the client's thread. Private to dist/. */
#ifndef LM_DIST_LOBBY_H
#define LM_DIST_LOBBY_H

#include <pthread.h>
#include <stdatomic.h>

#include "dist/auth.h"
#include "dist/link.h"
#include "dist/net.h"

struct pollfd;

enum { LM_LOBBY_GUESTS = 256, LM_LOBBY_POLLS = LM_LOBBY_GUESTS + 2 };

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

typedef struct lm_lobby {
  int unix_listener, tcp_listener; /* -1: none */
  char unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  const lm_key *key;
  int size; /* the world's: no group can have more links waiting */
  double dead_after;
  _Atomic bool one_host; /* TCP is not needed */
  double full_until;     /* the thread's own, as what follows: when there may be descriptors again */
  int nguests;
  lm_guest *guests[LM_LOBBY_GUESTS]; /* the oldest first */
  pthread_mutex_t lock;              /* of what follows; held while a door's fn runs */
  lm_door *doors;
  lm_parked *parked; /* the oldest first */
} lm_lobby;

/* Listens; host: of the interface for TCP. */
lm_status lm_lobby_open(lm_lobby *lobby, const char *host, const lm_key *key, int size, double dead_after);
void lm_lobby_close(lm_lobby *lobby); /* after its thread has ended; {0} is fine */
/* What to poll (at most LM_LOBBY_POLLS); returns how many. Then, with the same: what happened. */
int lm_lobby_polls(lm_lobby *lobby, struct pollfd *polls);
void lm_lobby_serve(lm_lobby *lobby, const struct pollfd *polls, int n);
/* fn NULL: takes none any more, and those that wait are closed. */
lm_status lm_lobby_accept(lm_lobby *lobby, uint64_t door, int size, lm_link_fn fn, void *ctx);
/* Closes what waits at any door that differs from this one in its lowest `bits` alone. */
void lm_lobby_forget(lm_lobby *lobby, uint64_t door, int bits);

#endif
