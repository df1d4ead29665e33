/* Sends and receives messages between the members of a group, over links that are opened when first needed. It has no
 * thread: a thread that waits drives all links, and of several threads the first polls for the others.
 *
 * A message belongs to the call that runs on the thread that posts it (lm_group_ticket). Messages of a collective are
 * matched by its seq, the peer and a slot; sends and receives by peer and tag (the slot); both in the order in which
 * they were posted. Tickets are compared before data is written. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_group lm_group;
typedef struct lm_request lm_request;
typedef struct lm_transport lm_transport;

lm_status lm_transport_open(lm_group *g, lm_transport **out);
/* Sends goodbyes and closes the links; written data still arrives. No request may exist. e may be NULL. */
void lm_transport_close(lm_transport *e);

/* Begin and end a collective. begin fails at once if the world has failed, or if a peer has entered another collective
 * with this seq. end follows a begin that succeeded, once all of its requests are forgotten. */
lm_status lm_transport_begin(lm_transport *e);
void lm_transport_end(lm_transport *e);
/* Receives pending messages while this rank waits in a call that does not use the transport; fails if a peer entered
 * another collective with this call's seq. */
lm_status lm_transport_peek(lm_transport *e);

/* Posts a send to a peer or a receive from one (-1: any peer) of `bytes` bytes at data, which must stay valid until the
 * request is done or forgotten. May wait for the link to open, but not for the peer's call. *out is NULL on error. */
lm_status lm_transport_post(lm_transport *e, bool sending, int peer, uint64_t slot, char *data, size_t bytes,
                            lm_request **out);
/* Waits until r is done: data received, or data written to the socket, so that the buffer may be reused. */
lm_status lm_transport_wait(lm_transport *e, lm_request *r);
lm_status lm_transport_test(lm_transport *e, lm_request *r, bool *done);
/* Returns true while r may still become done: its peer has neither closed the group nor left. Reports no failure. */
bool lm_transport_is_pending(lm_transport *e, lm_request *r);
int lm_transport_peer(const lm_request *r); /* the peer of a request that is done, in the group */
/* Fills in entries for poll, which wake when messages can be read or written; returns their number, at most `most`. */
struct pollfd;
int lm_transport_polls(lm_transport *e, struct pollfd *polls, int most);
/* Frees r, done or not; its data is not accessed any more. r may be NULL. */
void lm_transport_forget(lm_transport *e, lm_request *r);
