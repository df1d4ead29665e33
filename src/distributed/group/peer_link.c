#include "distributed/group/peer_link.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "distributed/group/world_core.h"

static const double handshake_time = 10, first_pause = 0.002, longest_pause = 0.1;

/* Returns the id of this part's listener. */
static uint64_t listener_id_of(const lm_group *g) { return (uint64_t)g->core->id << 32 | (uint32_t)g->part; }

static lm_status link_check(void *ctx) { return lm_group_check(ctx); }

static lm_status attempt(lm_group *g, const char *address, const lm_deadline *p, int *out) {
  lm_status status = LM_OK;
  lm_world *w = g->core->world;
  int fd = -1;
  lm_bytes hello = {0};
  lm_put_u64(&hello, listener_id_of(g));
  lm_put_u32(&hello, (uint32_t)g->rank);
  if (hello.failed) TRY(LM_E_OOM);
  TRY(lm_net_connect(address, p, &fd));
  lm_net_tune(fd, w->heartbeat_timeout);
  TRY(lm_auth_connect(fd, &w->key, hello.data, hello.n, p));

done:
  lm_bytes_free(&hello);
  if (status == LM_OK) {
    *out = fd;
  } else if (fd >= 0) {
    close(fd);
  }
  return status;
}

bool lm_link_has_left(const lm_group *g, int peer) {
  double at;
  uint64_t completed;
  lm_ticket last;
  return lm_client_left(g->core->world->client, g->ranks[peer], g->core->id, &at, &completed, &last);
}

/* Retries until the heartbeat timeout: if the peer has died, connections are refused before its death is reported. */
lm_status lm_link_connect(lm_group *g, int peer, int *fd) {
  lm_world *w = g->core->world;
  const lm_member *us = lm_client_member(w->client, w->rank), *them = lm_client_member(w->client, g->ranks[peer]);
  const char *address = strcmp(us->host_id, them->host_id) == 0 ? them->unix_address : them->tcp_address;
  double until = lm_seconds() + (w->heartbeat_timeout > 0 ? w->heartbeat_timeout : handshake_time), pause = first_pause;
  *fd = -1;
  for (;;) {
    lm_deadline p = {.deadline = fmin(until, lm_seconds() + handshake_time),
                     .wake_fd = lm_group_wake_fd(g),
                     .check = link_check,
                     .ctx = g};
    lm_status status = lm_group_check(g);
    if (status != LM_OK || lm_link_has_left(g, peer)) return status;
    status = attempt(g, address, &p, fd);
    if (status == LM_OK || status == LM_E_OOM) return status;
    char why[256]; /* a copy, since lm_group_check may fail with another message */
    lm_write(why, sizeof why, "%s", lm_error());
    NEED(lm_group_check(g));
    bool again = (status == LM_E_IO && lm_seconds() + pause <= until) || lm_link_has_left(g, peer);
    if (!again) return lm_group_lost(g, peer, why);
    usleep((useconds_t)(pause * 1e6));
    pause = fmin(2 * pause, longest_pause);
  }
}

lm_status lm_link_accept(lm_group *g, lm_link_fn fn, void *ctx) {
  return lm_link_listener_accept(&g->core->world->incoming, listener_id_of(g), g->size, fn, ctx);
}

void lm_link_forget(lm_world *w, uint32_t group) { lm_link_listener_forget(&w->incoming, (uint64_t)group << 32, 32); }
