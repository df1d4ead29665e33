#include "distributed/group/ticket_ring.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/thread.h"
#include "distributed/group/peer_link.h"

int lm_tickets_prev(const lm_tickets *ring) { return (ring->g.rank + ring->g.size - 1) % ring->g.size; }
static int next_of(const lm_tickets *ring) { return (ring->g.rank + 1) % ring->g.size; }
static int sending(const lm_tickets *ring) { return ring->g.size == 2 ? LM_RING_PREV : LM_RING_NEXT; }

/* ---- links */

/* Takes a link of a neighbor; runs on the world's thread. */
static void arrived(void *ctx, int peer, int fd) {
  lm_tickets *ring = ctx;
  int which = peer == lm_tickets_prev(ring) ? LM_RING_PREV : LM_RING_NEXT;
  pthread_mutex_lock(&ring->lock);
  bool wanted = (which == LM_RING_PREV || peer == next_of(ring)) && ring->arrived[which] < 0;
  if (wanted) ring->arrived[which] = fd;
  pthread_mutex_unlock(&ring->lock);
  if (!wanted) close(fd);
  lm_wakeup_fd_signal(ring->kick);
}

lm_status lm_tickets_open(lm_tickets *ring, const lm_group *g, int kick) {
  *ring = (lm_tickets){.g = *g, .kick = kick, .arrived = {-1, -1}, .fd = {-1, -1}};
  ring->g.part += LM_RING_LISTENER;
  pthread_mutex_init(&ring->lock, NULL);
  lm_status status = lm_link_accept(&ring->g, arrived, ring);
  if (status == LM_OK) {
    ring->opened = true;
  } else {
    pthread_mutex_destroy(&ring->lock);
  }
  return status;
}

static void tickets_drop(lm_tickets *ring, int which) {
  if (ring->fd[which] >= 0) close(ring->fd[which]);
  ring->fd[which] = -1;
}

void lm_tickets_close(lm_tickets *ring) {
  if (!ring->opened) return;
  lm_link_accept(&ring->g, NULL, NULL);
  for (int which = 0; which < LM_RING_LINKS; which++) {
    tickets_drop(ring, which);
    if (ring->arrived[which] >= 0) close(ring->arrived[which]);
  }
  lm_bytes_free(&ring->out);
  lm_bytes_free(&ring->in);
  pthread_mutex_destroy(&ring->lock);
  ring->opened = false;
}

static lm_status tickets_connect_to(lm_tickets *ring, int peer, int which) {
  lm_status status = lm_link_connect(&ring->g, peer, &ring->fd[which]);
  if (status != LM_OK || ring->fd[which] >= 0 || which != LM_RING_PREV) return status;
  ring->gone = true;
  snprintf(ring->how, sizeof ring->how, "it has left");
  return LM_OK;
}

lm_status lm_tickets_connect(lm_tickets *ring) {
  const lm_group *g = &ring->g;
  if (g->rank > 0) NEED(tickets_connect_to(ring, g->rank - 1, LM_RING_PREV));
  if (g->rank == g->size - 1 && g->size > 2) NEED(tickets_connect_to(ring, 0, LM_RING_NEXT));
  return LM_OK;
}

static void take_arrived(lm_tickets *ring) {
  pthread_mutex_lock(&ring->lock);
  for (int which = 0; which < LM_RING_LINKS; which++) {
    if (ring->arrived[which] < 0) continue;
    if (ring->fd[which] >= 0) close(ring->fd[which]);
    ring->fd[which] = ring->arrived[which];
    ring->arrived[which] = -1;
  }
  pthread_mutex_unlock(&ring->lock);
}

/* ---- bytes */

lm_status lm_tickets_put(lm_tickets *ring, const lm_ticket *t) {
  size_t before = ring->out.n;
  lm_put(&ring->out, t, sizeof *t);
  if (!ring->out.failed) return LM_OK;
  ring->out.n = before;
  ring->out.failed = false;
  return LM_E_OOM;
}

/* Sends as much as the socket takes. If the next rank is gone, it needs no tickets, and its own peers report that. */
static void send_some(lm_tickets *ring) {
  int which = sending(ring);
  while (ring->fd[which] >= 0 && ring->out.n > 0) {
    ssize_t n = send(ring->fd[which], ring->out.data, ring->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n > 0) {
      lm_bytes_shift(&ring->out, (size_t)n);
    } else if (which == LM_RING_NEXT) {
      tickets_drop(ring, which);
    } else {
      return; /* receive_some finds the error */
    }
  }
}

static void tickets_lose_previous(lm_tickets *ring, const char *how) {
  ring->gone = true;
  snprintf(ring->how, sizeof ring->how, "%s", how);
  tickets_drop(ring, LM_RING_PREV);
}

static lm_status receive_some(lm_tickets *ring) {
  char chunk[16 * sizeof(lm_ticket)];
  while (ring->fd[LM_RING_PREV] >= 0) {
    ssize_t n = recv(ring->fd[LM_RING_PREV], chunk, sizeof chunk, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return LM_OK;
    if (n > 0) {
      lm_put(&ring->in, chunk, (size_t)n);
      if (ring->in.failed) return LM_E_OOM;
    } else {
      tickets_lose_previous(ring, n == 0 ? "it closed the connection" : strerror(errno));
    }
  }
  return LM_OK;
}

lm_status lm_tickets_move(lm_tickets *ring) {
  take_arrived(ring);
  send_some(ring);
  return receive_some(ring);
}

bool lm_tickets_get(lm_tickets *ring, lm_ticket *out) {
  if (ring->in.n < sizeof *out) return false;
  memcpy(out, ring->in.data, sizeof *out);
  out->what[sizeof out->what - 1] = out->where[sizeof out->where - 1] = 0;
  lm_bytes_shift(&ring->in, sizeof *out);
  return true;
}

int lm_tickets_polls(const lm_tickets *ring, struct pollfd *polls) {
  int which = sending(ring), n = 0;
  short out = ring->out.n > 0 ? POLLOUT : 0;
  if (ring->fd[LM_RING_PREV] >= 0)
    polls[n++] =
        (struct pollfd){.fd = ring->fd[LM_RING_PREV], .events = (short)(POLLIN | (which == LM_RING_PREV ? out : 0))};
  if (which == LM_RING_NEXT && out && ring->fd[which] >= 0)
    polls[n++] = (struct pollfd){.fd = ring->fd[which], .events = out};
  return n;
}
