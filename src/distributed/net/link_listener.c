#include "distributed/net/link_listener.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

static const double full_pause = 0.05; /* seconds without accepting when there are no descriptors */

lm_status lm_incoming_open(lm_incoming *l, const char *host, const lm_key *key, int size, double dead_after) {
  lm_status status = LM_OK;
  *l = (lm_incoming){.unix_listener = -1, .tcp_listener = -1, .key = key, .size = size, .dead_after = dead_after};
  pthread_mutex_init(&l->lock, NULL);
  TRY(lm_net_listen_unix(&l->unix_listener, l->unix_address));
  TRY(lm_net_listen(host, 0, &l->tcp_listener, l->tcp_address));
done:
  if (status != LM_OK) lm_incoming_close(l);
  return status;
}

void lm_incoming_close(lm_incoming *l) {
  if (!l->key) return;
  if (l->unix_listener >= 0) close(l->unix_listener);
  if (l->tcp_listener >= 0) close(l->tcp_listener);
  for (int i = 0; i < l->nhandshakes; i++) {
    close(l->handshakes[i]->fd);
    lm_free(l->handshakes[i]);
  }
  for (lm_pending_link *p = l->pending_links, *next; p; p = next) {
    next = p->next;
    close(p->fd);
    lm_free(p);
  }
  for (lm_listener *d = l->listeners, *next; d; d = next) {
    next = d->next;
    lm_free(d);
  }
  pthread_mutex_destroy(&l->lock);
  *l = (lm_incoming){0};
}

/* ---- handshakes */

static void drop_handshake(lm_incoming *l, int i, bool closes) {
  if (closes) close(l->handshakes[i]->fd);
  lm_free(l->handshakes[i]);
  memmove(l->handshakes + i, l->handshakes + i + 1, (size_t)(l->nhandshakes - i - 1) * sizeof *l->handshakes);
  l->nhandshakes--;
}

static void accept_connections(lm_incoming *l, int listener) {
  for (int k = 0; k < 64; k++) {
    int fd;
    if (lm_net_accept(listener, l->dead_after, &fd) != LM_OK) l->full_until = lm_seconds() + full_pause;
    if (fd < 0) return;
    if (l->nhandshakes == LM_INCOMING_HANDSHAKES) drop_handshake(l, 0, true);
    lm_handshake *handshake = lm_malloc(sizeof *handshake);
    if (!handshake || lm_auth_start(&handshake->auth, fd, l->key) != LM_OK) {
      lm_free(handshake);
      close(fd);
      continue;
    }
    handshake->fd = fd;
    l->handshakes[l->nhandshakes++] = handshake;
  }
}

/* Passes fd, which it takes over, to its listener, or keeps it until that is registered. */
static void incoming_hand_over(lm_incoming *l, uint64_t id, int peer, int fd) {
  pthread_mutex_lock(&l->lock);
  lm_listener *listener = l->listeners;
  while (listener && listener->listener_id != id) listener = listener->next;
  if (listener) {
    if (peer < listener->size)
      listener->fn(listener->ctx, peer, fd);
    else
      close(fd);
  } else {
    lm_pending_link **at = &l->pending_links, *link = lm_malloc(sizeof *link);
    int same = 0;
    for (; *at; at = &(*at)->next) same += (*at)->listener_id == id;
    if (!link || same >= l->size) {
      lm_free(link);
      close(fd);
    } else {
      *link = (lm_pending_link){.listener_id = id, .peer = peer, .fd = fd};
      *at = link;
    }
  }
  pthread_mutex_unlock(&l->lock);
}

/* Continues handshake i; false if it ended, which removes its entry. */
static bool serve_handshake(lm_incoming *l, int i) {
  lm_handshake *handshake = l->handshakes[i];
  bool done = false;
  if (lm_auth_step(&handshake->auth, handshake->fd, &done) != LM_OK) {
    lm_log(LM_LOG_DIST, "rejected a connection: %s", lm_error());
    drop_handshake(l, i, true);
    return false;
  }
  if (!done) return true;
  lm_reader r = lm_reader_of(lm_auth_hello(&handshake->auth), handshake->auth.hello_n);
  uint64_t listener_id = lm_get_u64(&r);
  uint32_t peer = lm_get_u32(&r);
  int fd = handshake->fd;
  bool valid = lm_reader_done(&r) && peer < (uint32_t)l->size;
  drop_handshake(l, i, !valid);
  if (valid) incoming_hand_over(l, listener_id, (int)peer, fd);
  return false;
}

/* ---- the thread's side */

int lm_incoming_polls(lm_incoming *l, struct pollfd *polls) {
  if (l->tcp_listener >= 0 && atomic_load(&l->one_host)) {
    close(l->tcp_listener);
    l->tcp_listener = -1;
  }
  short accepts = lm_seconds() < l->full_until ? 0 : POLLIN;
  polls[0] = (struct pollfd){.fd = l->unix_listener, .events = accepts};
  polls[1] = (struct pollfd){.fd = l->tcp_listener, .events = accepts};
  for (int i = 0; i < l->nhandshakes; i++) polls[2 + i] = (struct pollfd){.fd = l->handshakes[i]->fd, .events = POLLIN};
  return 2 + l->nhandshakes;
}

void lm_incoming_serve(lm_incoming *l, const struct pollfd *polls, int n) {
  double now = lm_seconds();
  for (int i = n - 3; i >= 0; i--) {
    if (polls[2 + i].revents && !serve_handshake(l, i)) continue;
    if (now > l->handshakes[i]->auth.deadline) drop_handshake(l, i, true);
  }
  for (int i = 0; i < 2; i++)
    if (polls[i].revents) accept_connections(l, polls[i].fd);
}

/* ---- the groups' side */

/* Passes to fn, or closes, pending links whose listener ids differ only in the lowest `bits`. Needs the lock. */
static void take_pending_links(lm_incoming *l, uint64_t listener_id, int bits, lm_link_fn fn, int size, void *ctx) {
  for (lm_pending_link **at = &l->pending_links; *at;) {
    lm_pending_link *p = *at;
    if (p->listener_id >> bits != listener_id >> bits) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    if (fn && p->peer < size)
      fn(ctx, p->peer, p->fd);
    else
      close(p->fd);
    lm_free(p);
  }
}

lm_status lm_incoming_accept(lm_incoming *l, uint64_t id, int size, lm_link_fn fn, void *ctx) {
  lm_listener *listener = NULL;
  if (fn) {
    listener = lm_malloc(sizeof *listener);
    if (!listener) return LM_E_OOM;
    *listener = (lm_listener){.listener_id = id, .size = size, .fn = fn, .ctx = ctx};
  }
  pthread_mutex_lock(&l->lock);
  for (lm_listener **at = &l->listeners; *at; at = &(*at)->next)
    if ((*at)->listener_id == id) {
      lm_listener *old = *at;
      *at = old->next;
      lm_free(old);
      break;
    }
  if (listener) {
    listener->next = l->listeners;
    l->listeners = listener;
  }
  take_pending_links(l, id, 0, fn, size, ctx);
  pthread_mutex_unlock(&l->lock);
  return LM_OK;
}

void lm_incoming_forget(lm_incoming *l, uint64_t listener_id, int bits) {
  pthread_mutex_lock(&l->lock);
  take_pending_links(l, listener_id, bits, NULL, 0, NULL);
  pthread_mutex_unlock(&l->lock);
}
