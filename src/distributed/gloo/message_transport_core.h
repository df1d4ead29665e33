/* The engine's own: what it keeps, and the matching of messages with requests. Callers hold its lock. */
#pragma once

#include <poll.h>
#include <pthread.h>

#include "distributed/gloo/message_transport.h"
#include "distributed/gloo/wire.h"

struct lm_request {
  lm_out out; /* what this request writes: of a send its offer, then its data; of a receive that it is ready */
  bool sending, done;
  int peer; /* -1: anyone */
  int from; /* who it was matched with; -1: nobody yet */
  char *data;
  size_t bytes;
  uint64_t id; /* a send's own; of a receive the offer it goes with, 0 if none */
  bool asked;  /* a receive has said that it is ready */
  bool listed; /* in `posted` or `offered` */
  bool spoiled;
  lm_ticket theirs; /* spoiled: what came instead */
  struct lm_request *next;
};

/* A message that came before anybody here asked for it. */
typedef struct lm_kept {
  lm_wire_head head;
  int peer;
  struct lm_kept *next;
  char data[];
} lm_kept;

struct lm_transport {
  lm_group *g;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* for those who wait while another one polls */
  int waiting;            /* how many */
  bool polling;
  int kick;              /* a wakeup descriptor: ends the poll */
  struct pollfd *polled; /* [size + 2] */
  lm_request *posted;    /* receives, in order */
  lm_request *offered;   /* sends that wait to be asked for their data, in order */
  lm_kept *kept, **last; /* in the order of arrival */
  uint64_t ids;          /* given to offers so far */
  lm_ticket call;        /* the collective that runs; seq 0: none */
  bool mismatched;       /* a peer came to another one: */
  int mismatch_peer;
  lm_ticket mismatch_call;
  uint64_t peeked; /* the collective that was last waited for outside of the engine, */
  int peeks;       /* and how often it was peeked for */
  bool finished;   /* some request is done since the last look */
  int open;        /* links */
  lm_wire wire[];
};

/* ---- match_messages.c */

void lm_transport_enlist(lm_request **list, lm_request *r); /* `posted` or `offered` */
void lm_transport_delist(lm_transport *e, lm_request *r);
void lm_transport_finish(lm_transport *e, lm_request *r);
void lm_transport_drop_kept(lm_transport *e);
/* Queues a message of r's for a peer. data: its data follow. */
void lm_transport_put(lm_transport *e, int peer, lm_request *r, lm_wire_kind kind, bool data);
/* A receive says that it wants its data. */
void lm_transport_ask(lm_transport *e, lm_request *r, int peer);

/* A head came from peer: says where its data go. */
void lm_transport_arrived(lm_transport *e, int peer);
/* All its data are there. */
void lm_transport_landed(lm_transport *e, int peer);
/* A new receive looks through what has come already; a new send, whether it has been asked for. */
bool lm_transport_take_kept(lm_transport *e, lm_request *r);
bool lm_transport_take_ready(lm_transport *e, lm_request *r);
/* A collective begins: has anybody come to another one already? That is then the clash. */
void lm_transport_find_mismatch(lm_transport *e);
