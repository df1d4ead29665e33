/* Opens links, authenticated streams between two members of a group, when first needed. The higher rank connects to
 * the lower one: by unix socket within a host, by TCP between hosts. */
#pragma once

#include "distributed/group/backend.h"
#include "distributed/net/link_listener.h"

/* Connects to a peer below this rank; blocks under lm_group_check. The caller closes *fd, which is non-blocking; -1,
 * without an error, if the peer has left the world. */
lm_status lm_link_connect(lm_group *g, int peer, int *fd);
/* Returns true if peer has left the world: its listener is closed, or no thread serves it. */
bool lm_link_has_left(const lm_group *g, int peer);
/* Registers fn(ctx, peer, fd), which the world's thread calls for each peer above this rank that connects, also for
 * earlier ones; fn takes fd over. fn NULL unregisters, and returns when no call is running. fn runs under a lock that
 * lm_link_accept takes too: fn must not call it, and it must not be called under a lock that fn takes. */
lm_status lm_link_accept(lm_group *g, lm_link_fn fn, void *ctx);
