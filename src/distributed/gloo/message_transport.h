/* What moves bytes between the members of a group: messages over links that are opened when first needed. There is no
 * thread: whoever waits drives all links, and the first of several to wait polls for the others.
 *
 * A message belongs to the call that runs on its thread (lm_group_ticket). Those of a collective are matched by its
 * number, their peer and a slot, those of sends and receives by peer and tag (the slot), each in the order in which
 * they were posted. Tickets are compared before data land. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_group lm_group;
typedef struct lm_request lm_request;
typedef struct lm_transport lm_transport;

lm_status lm_transport_open(lm_group *g, lm_transport **out);
/* Says goodbye and closes the links; what was written still arrives. Nothing may be under way. NULL is fine. */
void lm_transport_close(lm_transport *e);

/* Around a collective. begin fails at once in a world that has failed, or if a peer has already come to another call;
 * end follows a begin that succeeded, when all its messages are forgotten. */
lm_status lm_transport_begin(lm_transport *e);
void lm_transport_end(lm_transport *e);
/* While this rank waits in a call that does not go through the engine: takes what has come, and fails if a peer came to
 * the call of this number with another one. */
lm_status lm_transport_peek(lm_transport *e);

/* Posts a message; may wait for the link to come up, but not for the peer's call. peer -1, in recv: anyone. */
lm_status lm_transport_send(lm_transport *e, int peer, uint64_t slot, const void *data, size_t bytes, lm_request **out);
lm_status lm_transport_recv(lm_transport *e, int peer, uint64_t slot, void *data, size_t bytes, lm_request **out);
/* Until it is done: received, or written so that its data may change. */
lm_status lm_transport_wait(lm_transport *e, lm_request *r);
lm_status lm_transport_test(lm_transport *e, lm_request *r, bool *done);
int lm_transport_peer(const lm_request *r); /* of a receive that is done: who it was */
/* Frees it; its data are not touched any more, done or not. NULL is fine. */
void lm_transport_forget(lm_transport *e, lm_request *r);
