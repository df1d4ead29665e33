/* Declares the transport's state and the matching of messages with requests. Callers hold its lock. */
#pragma once

#include <poll.h>
#include <pthread.h>

#include "distributed/group/message_transport.h"
#include "distributed/group/wire.h"

struct lm_request {
  lm_wire_message out; /* first member: a send's OFFER, EAGER or BODY; a receive's READY */
  bool sending, done;
  int peer; /* -1: any peer */
  int from; /* the peer it was matched with; -1: none yet */
  char *data;
  size_t bytes;
  uint64_t id;      /* a send's offer; for a receive the id of the matched offer, 0: none */
  bool requested;   /* true once a receive has queued its READY */
  bool listed;      /* true while in `posted` or `offered` */
  bool spoiled;     /* true if a send or receive was matched with a different ticket */
  lm_ticket theirs; /* the ticket that came instead, if spoiled */
  struct lm_request *next;
};

/* A message that arrived before its request was posted. */
typedef struct lm_unmatched_message {
  lm_wire_head head;
  int peer;
  struct lm_unmatched_message *next;
  char data[];
} lm_unmatched_message;

struct lm_transport {
  lm_group *g;
  pthread_mutex_t lock;
  pthread_cond_t changed;                  /* signals threads that wait while another one polls */
  int waiting;                             /* number of these threads */
  bool polling;                            /* true while a thread is in poll */
  int kick;                                /* eventfd that ends the poll */
  struct pollfd *polled;                   /* [size + 2] */
  lm_request *posted;                      /* unfinished receives, in posting order */
  lm_request *offered;                     /* sends that wait for the peer's READY, in posting order */
  lm_unmatched_message *unmatched, **last; /* unmatched messages, in the order of arrival */
  uint64_t ids;                            /* number of offers so far */
  lm_ticket call;                          /* the current collective; seq 0: none */
  bool mismatched;                         /* true if a peer entered another collective with its seq */
  int mismatch_peer;
  lm_ticket mismatch_call;
  uint64_t peeked; /* seq of the collective of the last lm_transport_peek */
  int peeks;       /* number of peeks for it */
  bool finished;   /* true if a request became done since waiting threads were last woken */
  int open;        /* number of open links */
  lm_wire wire[];
};

/* ---- match_messages.c */

void lm_transport_enlist(lm_request **list, lm_request *r); /* list: `posted` or `offered` */
void lm_transport_delist(lm_transport *e, lm_request *r);
void lm_transport_finish(lm_transport *e, lm_request *r);
void lm_transport_drop_unmatched(lm_transport *e);
/* Queues r's message for a peer, followed by r's data if `data`. */
void lm_transport_queue_message(lm_transport *e, int peer, lm_request *r, lm_wire_kind kind, bool data);
/* Queues the READY of a receive. */
void lm_transport_request_data(lm_transport *e, lm_request *r, int peer);

/* Handles a head that came from peer: matches it and sets the address for its data. */
void lm_transport_head_arrived(lm_transport *e, int peer);
/* Finishes the receive of the message whose data has arrived from peer completely. */
void lm_transport_data_arrived(lm_transport *e, int peer);
/* Match a new receive with a kept message, or a new send with a kept READY; true if there was one. */
bool lm_transport_match_receive(lm_transport *e, lm_request *r);
bool lm_transport_match_send(lm_transport *e, lm_request *r);
/* Sets `mismatched` if a kept message is of another collective than the one that begins. */
void lm_transport_find_mismatch(lm_transport *e);
