/* Accepts links from other ranks, authenticates them and passes them to groups' listeners, or keeps them until a group
 * listens. Served by the client's thread. Private to distributed/. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "distributed/net/acceptor.h"

/* Takes a link from `peer`, and takes fd over. */
typedef void (*lm_link_fn)(void *ctx, int peer, int fd);

typedef struct lm_pending_link { /* a link whose listener is not registered yet */
  uint64_t listener_id;
  int peer, fd;
  struct lm_pending_link *next;
} lm_pending_link;

typedef struct lm_group_listener { /* a registered listener of a group */
  uint64_t listener_id;
  int size;
  lm_link_fn fn;
  void *ctx;
  struct lm_group_listener *next;
} lm_group_listener;

typedef struct lm_link_listener {
  int listeners[2]; /* unix and TCP, until acceptors take them over; -1: none */
  char unix_address[LM_ADDRESS_MAX], tcp_address[LM_ADDRESS_MAX];
  const lm_key *key;
  int size;                 /* number of ranks of the world, and the most pending links of a listener */
  double dead_after;        /* seconds without an answer after which a TCP link is closed (lm_net_tune) */
  _Atomic bool one_host;    /* true if all ranks are on one host, so that TCP is not needed */
  lm_acceptor acceptors[2]; /* the thread's */
  pthread_mutex_t lock;     /* guards the lists below; held while a listener's fn runs */
  lm_group_listener *groups;
  lm_pending_link *pending_links; /* the oldest first */
} lm_link_listener;

/* Listens on a unix socket, and by TCP on `host`. key is borrowed. */
lm_status lm_link_listener_open(lm_link_listener *l, const char *host, const lm_key *key, int size, double dead_after);
void lm_link_listener_close(lm_link_listener *l); /* to be called after its thread has ended; {0} is allowed */
/* Begins to accept in the loop of a thread, which then calls keep_time each 100 ms, until stop, which closes the
 * listeners. */
lm_status lm_link_listener_serve(lm_link_listener *l, lm_loop *loop);
void lm_link_listener_keep_time(lm_link_listener *l, double now);
void lm_link_listener_stop(lm_link_listener *l);
/* Registers fn for links to listener_id from peers below size; fn NULL unregisters and closes pending links. */
lm_status lm_link_listener_accept(lm_link_listener *l, uint64_t listener_id, int size, lm_link_fn fn, void *ctx);
/* Closes pending links to all listeners whose ids differ from listener_id only in the lowest `bits`. */
void lm_link_listener_forget(lm_link_listener *l, uint64_t listener_id, int bits);
