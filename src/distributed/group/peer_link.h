/* Links: authenticated streams between two members of a group, opened when first needed. The higher rank connects to
 * the lower one; the lower one is called. unix sockets within a host, TCP between hosts. */
#pragma once

#include "distributed/group/backend.h"
#include "distributed/net/link_listener.h"

/* To a peer below this rank. Blocks under lm_group_check. *fd is yours, non-blocking; -1, without an error, if the peer
 * has left the world. */
LM_API lm_status lm_link_connect(lm_group *g, int peer, int *fd);
/* From now on fn(ctx, peer, fd) is called, on the world's thread, for every peer above this rank that connects; those
 * that did before are handed over at once. fd is fn's. fn NULL: no more (returns when no call is under way). fn runs
 * under a lock that lm_link_accept takes too: do not call the one in the other, nor under a lock that fn takes. */
LM_API lm_status lm_link_accept(lm_group *g, lm_link_fn fn, void *ctx);
