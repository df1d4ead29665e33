#include <errno.h>
#include <linux/sockios.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/group/message_transport_core.h"
#include "distributed/group/peer_link.h"

static const double SPIN = 50e-6;     /* seconds of busy waiting before sleeping */
static const double FAREWELL = 0.2;   /* seconds for writing the rest at close */
static const double LEFT_GRACE = 0.3; /* seconds for the cause to become known after a needed peer's goodbye */
enum { POLL_MS = 20, READ_BUDGET = 16, FEW_LINKS = 8, PEEKS = 5 };

static void transport_wake(lm_transport *e) {
  if (e->polling) lm_wakeup_fd_signal(e->kick);
}

/* Wakes the waiting threads if a request became done. */
static void transport_finish_ready(lm_transport *e) {
  if (!e->finished) return;
  e->finished = false;
  if (e->waiting) pthread_cond_broadcast(&e->changed);
  transport_wake(e);
}

static void write_out(lm_transport *e, int peer) {
  for (lm_wire_message *out; (out = lm_wire_write(&e->wire[peer]));)
    if (out->head.kind == LM_WIRE_EAGER || out->head.kind == LM_WIRE_BODY)
      lm_transport_finish(e, (lm_request *)out); /* out is a request's first member */
}

static void read_in(lm_transport *e, int peer) {
  lm_wire *w = &e->wire[peer];
  int budget = READ_BUDGET;
  for (lm_wire_event event; (event = lm_wire_read(w, &budget)) != LM_WIRE_IDLE;) {
    if (event == LM_WIRE_HEAD)
      lm_transport_head_arrived(e, peer);
    else
      lm_transport_data_arrived(e, peer);
  }
  if (w->state != LM_WIRE_OPEN) e->finished = true; /* waiting threads must check this link */
}

/* Reads and writes all links without waiting; returns true if any data moved or a link ended. polls: a thread polls the
 * links, and marks those to read if there are many. */
static bool transport_progress(lm_transport *e, bool polls) {
  bool moved = false;
  int open = 0;
  for (int p = 0; p < e->g->size; p++) {
    lm_wire *w = &e->wire[p];
    if (w->state != LM_WIRE_OPEN) continue;
    uint64_t before = w->moved;
    open++;
    if (w->ready || e->open <= FEW_LINKS || !polls) read_in(e, p);
    w->ready = false;
    write_out(e, p);
    moved |= w->moved != before || w->state != LM_WIRE_OPEN;
  }
  e->open = open;
  transport_finish_ready(e);
  return moved;
}

/* Writes messages just queued for peer, as far as the socket takes them. */
static void transport_push(lm_transport *e, int peer) {
  write_out(e, peer);
  if (lm_wire_has_more(&e->wire[peer])) transport_wake(e);
  transport_finish_ready(e);
}

static void transport_start_link(lm_transport *e, int peer, int fd) {
  lm_wire *w = &e->wire[peer];
  if (lm_wire_start(w, fd) != LM_OK) {
    w->no_memory = true;
    lm_wire_break(w, "the other side ran out of memory");
    return;
  }
  transport_wake(e); /* the poll must include this link */
  transport_push(e, peer);
}

static void accepted(void *ctx, int peer, int fd) {
  lm_transport *e = ctx;
  LM_LOCKED(&e->lock);
  if (peer <= e->g->rank || peer >= e->g->size || e->wire[peer].state != LM_WIRE_NONE)
    close(fd);
  else
    transport_start_link(e, peer, fd);
}

/* Opens the link to a lower rank, with the lock released meanwhile; a higher rank connects to this one by itself. */
static lm_status transport_open_link(lm_transport *e, int peer) {
  lm_wire *w = &e->wire[peer];
  if (peer >= e->g->rank || w->state != LM_WIRE_NONE) return LM_OK;
  w->state = LM_WIRE_CONNECTING;
  pthread_mutex_unlock(&e->lock);
  int fd = -1;
  lm_status status = lm_link_connect(e->g, peer, &fd);
  pthread_mutex_lock(&e->lock);
  w->state = LM_WIRE_NONE;
  if (fd >= 0) {
    transport_start_link(e, peer, fd);
  } else if (status == LM_OK) { /* lm_group_check reports it to calls that need the peer */
    w->state = LM_WIRE_LEFT;
    w->left_at = INFINITY;
  }
  return status;
}

static struct pollfd transport_poll_entry(const lm_wire *w) {
  short events = (short)(POLLIN | (lm_wire_has_more(w) ? POLLOUT : 0));
  return (struct pollfd){.fd = w->state == LM_WIRE_OPEN ? w->fd : -1, .events = events};
}

int lm_transport_polls(lm_transport *e, struct pollfd *polls, int most) {
  int n = 0;
  LM_LOCKED(&e->lock);
  for (int p = 0; p < e->g->size && n < most; p++)
    if (e->wire[p].state == LM_WIRE_OPEN) polls[n++] = transport_poll_entry(&e->wire[p]);
  return n;
}

/* Polls all links, at most POLL_MS, on behalf of all waiting threads. */
static void sleep_for_all(lm_transport *e, bool watch_cause) {
  struct pollfd *fds = e->polled;
  int n = 0;
  fds[n++] = (struct pollfd){.fd = e->kick, .events = POLLIN};
  fds[n++] = (struct pollfd){.fd = watch_cause ? lm_group_wake_fd(e->g) : -1, .events = POLLIN};
  for (int p = 0; p < e->g->size; p++) fds[n++] = transport_poll_entry(&e->wire[p]);
  e->polling = true;
  pthread_mutex_unlock(&e->lock);
  poll(fds, (nfds_t)n, POLL_MS);
  pthread_mutex_lock(&e->lock);
  e->polling = false;
  for (int p = 0; p < e->g->size; p++) e->wire[p].ready |= (fds[p + 2].revents & ~POLLOUT) != 0;
  if (fds[0].revents) lm_wakeup_fd_clear(e->kick);
  if (e->waiting) pthread_cond_broadcast(&e->changed); /* one of the waiting threads polls next */
}

/* Sleeps, at most POLL_MS, while another thread polls. */
static void sleep_beside(lm_transport *e) {
  e->waiting++;
  lm_cond_wait_until(&e->changed, &e->lock, lm_seconds() + POLL_MS * 1e-3);
  e->waiting--;
}

/* Fails if r or its collective can no longer complete. Releases the lock while it reports why. */
static lm_status check_links(lm_transport *e, const lm_request *r) {
  bool collective = r->out.head.ticket.seq != 0, mismatch = r->spoiled || (collective && e->mismatched);
  int peer = -1, needed = r->from >= 0 ? r->from : r->peer;
  char how[sizeof e->wire[0].how] = "";
  lm_ticket theirs = {0};
  if (mismatch) {
    peer = r->spoiled ? r->from : e->mismatch_peer;
    theirs = r->spoiled ? r->theirs : e->mismatch_call;
  }
  for (int p = 0; p < e->g->size && peer < 0; p++) {
    const lm_wire *w = &e->wire[p];
    bool broken = w->state == LM_WIRE_BROKEN && (collective || needed == p || needed < 0);
    bool left = w->state == LM_WIRE_LEFT && needed == p && lm_seconds() > w->left_at + LEFT_GRACE;
    if (!broken && !left) continue;
    if (w->no_memory) return lm_fail(LM_E_OOM, "out of memory for messages from %s", lm_group_peer_name(e->g, p));
    snprintf(how, sizeof how, "%s", broken ? w->how : "it closed the group");
    peer = p;
  }
  if (peer < 0) return LM_OK;
  pthread_mutex_unlock(&e->lock);
  lm_status status = mismatch ? lm_group_mismatch(e->g, peer, &theirs) : lm_group_lost(e->g, peer, how);
  pthread_mutex_lock(&e->lock);
  return status;
}

/* ---- requests */

static lm_status transport_send(lm_transport *e, lm_request *r) {
  lm_wire *w = &e->wire[r->peer];
  uint64_t cost = lm_wire_cost(r->bytes);
  NEED(transport_open_link(e, r->peer));
  if (r->bytes <= LM_EAGER_MAX && w->spent - w->repaid + cost <= LM_EAGER_WINDOW) {
    w->spent += cost;
    lm_transport_queue_message(e, r->peer, r, LM_WIRE_EAGER, true);
  } else if (!lm_transport_match_send(e, r)) {
    r->id = ++e->ids;
    lm_transport_enlist(&e->offered, r);
    lm_transport_queue_message(e, r->peer, r, LM_WIRE_OFFER, false);
  }
  transport_push(e, r->peer);
  return LM_OK;
}

static lm_status transport_recv(lm_transport *e, lm_request *r) {
  int first = r->peer < 0 ? 0 : r->peer, end = r->peer < 0 ? e->g->rank : r->peer + 1;
  for (int p = first; p < end; p++) NEED(transport_open_link(e, p));
  if (!lm_transport_match_receive(e, r)) {
    lm_transport_enlist(&e->posted, r);
    /* In a collective the size is known, so READY need not wait for the offer. */
    if (r->out.head.ticket.seq && r->bytes > LM_EAGER_MAX) lm_transport_request_data(e, r, r->peer);
  }
  if (r->requested) transport_push(e, r->from >= 0 ? r->from : r->peer);
  return LM_OK;
}

lm_status lm_transport_post(lm_transport *e, bool sending, int peer, uint64_t slot, char *data, size_t bytes,
                            lm_request **out) {
  lm_request *r = lm_malloc(sizeof *r);
  if (!r) return LM_E_OOM;
  *r = (lm_request){.sending = sending, .peer = peer, .from = -1, .data = data, .bytes = bytes};
  r->out.head.ticket = *lm_group_ticket(e->g);
  r->out.head.slot = slot;
  r->out.head.bytes = bytes;
  pthread_mutex_lock(&e->lock);
  lm_status status = sending ? transport_send(e, r) : transport_recv(e, r);
  pthread_mutex_unlock(&e->lock);
  *out = status == LM_OK ? r : NULL;
  if (status != LM_OK) lm_free(r);
  return status;
}

lm_status lm_transport_wait(lm_transport *e, lm_request *r) {
  bool may_spin = lm_group_may_spin(e->g), watch_cause = true;
  double spin_until = 0;
  LM_LOCKED(&e->lock);
  while (!r->done || r->spoiled) {
    NEED(check_links(e, r));
    if (r->peer >= 0) NEED(transport_open_link(e, r->peer));
    bool moved = transport_progress(e, true);
    if (r->done) continue;
    pthread_mutex_unlock(&e->lock);
    lm_status status = lm_group_check(e->g);
    bool spin = may_spin && !moved && status == LM_OK;
    if (spin) {
      double now = lm_seconds();
      if (!spin_until) spin_until = now + SPIN;
      spin = now < spin_until;
      if (spin) sched_yield(); /* another thread may have work for this core */
    }
    pthread_mutex_lock(&e->lock);
    NEED(status);
    if (moved) spin_until = 0;
    if (moved || r->done || (spin && e->open <= FEW_LINKS)) continue;
    if (e->polling) {
      sleep_beside(e);
    } else {
      sleep_for_all(e, watch_cause);
      watch_cause = !e->polled[1].revents; /* readable for good: must not spin if the check passes */
    }
  }
  return LM_OK;
}

lm_status lm_transport_test(lm_transport *e, lm_request *r, bool *done) {
  lm_status status = LM_OK;
  pthread_mutex_lock(&e->lock);
  if (!r->done) transport_progress(e, false);
  *done = r->done && !r->spoiled;
  if (!*done) status = check_links(e, r);
  pthread_mutex_unlock(&e->lock);
  return status != LM_OK || *done ? status : lm_group_check(e->g);
}

bool lm_transport_is_pending(lm_transport *e, lm_request *r) {
  pthread_mutex_lock(&e->lock);
  if (!r->done) transport_progress(e, false);
  lm_wire_state state = e->wire[r->peer].state;
  bool pending = !r->done && state != LM_WIRE_LEFT && state != LM_WIRE_BROKEN;
  pthread_mutex_unlock(&e->lock);
  return pending && !lm_link_has_left(e->g, r->peer);
}

int lm_transport_peer(const lm_request *r) { return r->sending ? r->peer : r->from; }

void lm_transport_forget(lm_transport *e, lm_request *r) {
  if (!r) return;
  pthread_mutex_lock(&e->lock);
  int peer = r->from >= 0 ? r->from : r->peer;
  lm_transport_delist(e, r);
  if (peer >= 0) {
    lm_wire *w = &e->wire[peer];
    if (r->out.queued && r->out.head.kind == LM_WIRE_EAGER && !r->out.done) w->spent -= lm_wire_cost(r->bytes);
    lm_wire_cut(w, &r->out);
    if (w->receiving == r) {
      w->receiving = NULL;
      w->into = NULL; /* the rest is dropped */
    }
    if (w->state == LM_WIRE_BROKEN) e->finished = true;
    transport_finish_ready(e);
  }
  pthread_mutex_unlock(&e->lock);
  lm_free(r);
}

/* ---- collectives */

lm_status lm_transport_begin(lm_transport *e) {
  NEED(lm_group_check(e->g));
  pthread_mutex_lock(&e->lock);
  e->call = *lm_group_ticket(e->g);
  lm_transport_find_mismatch(e);
  bool mismatched = e->mismatched;
  if (mismatched) e->call.seq = 0;
  int peer = e->mismatch_peer;
  lm_ticket theirs = e->mismatch_call;
  pthread_mutex_unlock(&e->lock);
  return mismatched ? lm_group_mismatch(e->g, peer, &theirs) : LM_OK;
}

void lm_transport_end(lm_transport *e) {
  LM_LOCKED(&e->lock);
  e->call.seq = 0;
}

lm_status lm_transport_peek(lm_transport *e) {
  lm_status status = LM_OK;
  const lm_ticket *ours = lm_group_ticket(e->g);
  lm_ticket theirs;
  int peer = -1;
  pthread_mutex_lock(&e->lock);
  if (!e->call.seq && ours->seq) { /* a running collective checks by itself */
    /* A lower rank's messages may wait for this rank to open the link. */
    e->peeks = e->peeked == ours->seq ? e->peeks + 1 : 1;
    e->peeked = ours->seq;
    for (int p = 0; p < e->g->rank && e->peeks == PEEKS; p++) TRY(transport_open_link(e, p));
    transport_progress(e, false);
    for (const lm_unmatched_message *k = e->unmatched; k && peer < 0; k = k->next) {
      theirs = k->head.ticket;
      if (theirs.seq == ours->seq && theirs.hash != ours->hash) peer = k->peer;
    }
  }
done:
  pthread_mutex_unlock(&e->lock);
  return peer < 0 ? status : lm_group_mismatch(e->g, peer, &theirs);
}

/* ---- opening and closing */

static void destroy(lm_transport *e) {
  for (int p = 0; p < e->g->size; p++) lm_wire_close(&e->wire[p]);
  lm_transport_drop_unmatched(e);
  if (e->kick >= 0) close(e->kick);
  pthread_cond_destroy(&e->changed);
  pthread_mutex_destroy(&e->lock);
  lm_free(e->polled);
  lm_free(e);
}

lm_status lm_transport_open(lm_group *g, lm_transport **out) {
  lm_status status = LM_OK;
  lm_transport *e = *out = lm_calloc(1, sizeof *e + (size_t)g->size * sizeof e->wire[0]);
  if (!e) return LM_E_OOM;
  e->g = g;
  e->last = &e->unmatched;
  for (int p = 0; p < g->size; p++) lm_wire_init(&e->wire[p]);
  pthread_mutex_init(&e->lock, NULL);
  lm_cond_init(&e->changed);
  e->kick = lm_wakeup_fd_new();
  if (e->kick < 0) TRY(lm_fail_cannot(LM_E_IO, "create an event descriptor", errno));
  e->polled = lm_malloc((size_t)(g->size + 2) * sizeof *e->polled);
  if (!e->polled) TRY(LM_E_OOM);
  TRY(lm_link_accept(g, accepted, e));
done:
  if (status != LM_OK) {
    destroy(e);
    *out = NULL;
  }
  return status;
}

/* Returns true if a TCP socket has data that the peer has not acknowledged: closing it with unread input loses it. */
static bool on_its_way(int fd) {
  int domain = AF_UNIX, bytes = 0;
  socklen_t n = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain == AF_UNIX) return false;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

static void transport_send_goodbye(lm_transport *e) {
  double deadline = lm_seconds() + (lm_group_failed(e->g) ? 0 : FAREWELL);
  for (int p = 0; p < e->g->size; p++) e->wire[p].leaving = true;
  for (;;) {
    int n = 0, under_way = 0;
    for (int p = 0; p < e->g->size; p++) {
      lm_wire *w = &e->wire[p];
      if (w->state != LM_WIRE_OPEN) continue;
      write_out(e, p);
      if (lm_wire_has_more(w)) {
        e->polled[n++] = (struct pollfd){.fd = w->fd, .events = POLLOUT};
      } else {
        shutdown(w->fd, SHUT_WR);
        under_way += on_its_way(w->fd);
      }
    }
    if ((!n && !under_way) || lm_seconds() >= deadline) return;
    poll(e->polled, (nfds_t)n, under_way ? 1 : POLL_MS);
  }
}

void lm_transport_close(lm_transport *e) {
  if (!e) return;
  lm_link_accept(e->g, NULL, NULL);
  pthread_mutex_lock(&e->lock);
  transport_send_goodbye(e);
  pthread_mutex_unlock(&e->lock);
  destroy(e);
}
