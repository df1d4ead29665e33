/* Accepts connections in an event loop and authenticates them by the job's token (auth.h), in 5 s at most. Of too many
 * that have not proved it yet, the oldest is dropped; without descriptors it pauses. */
#pragma once

#include "base/event_loop.h"
#include "distributed/net/auth.h"

typedef struct lm_handshake lm_handshake;

typedef struct lm_acceptor {
  lm_watch watch; /* the listener; fd -1: closed */
  lm_loop *loop;
  const lm_key *key;
  double dead_after;                                    /* limit of silence, for lm_net_tune */
  int most;                                             /* number of handshakes at a time */
  void (*accepted)(void *ctx, int fd, lm_reader hello); /* takes fd over; hello is valid during the call */
  void *ctx;

  double resume_at; /* private, as the rest: lm_seconds() at which it accepts again; 0: it accepts */
  int n;
  lm_handshake *first; /* the oldest first */
} lm_acceptor;

/* Begins to accept at the listener fd, which it takes over; on failure fd stays the caller's. */
lm_status lm_acceptor_listen(lm_acceptor *a, int fd);
void lm_acceptor_close(lm_acceptor *a); /* closes the listener and all handshakes; it may listen again */
/* Returns lm_seconds() at which lm_acceptor_keep_time must be called; 0: need not. */
double lm_acceptor_deadline(const lm_acceptor *a);
void lm_acceptor_keep_time(lm_acceptor *a, double now);
