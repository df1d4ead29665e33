#include "distributed/net/link_listener.h"

#include <unistd.h>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/mem.h"
#include "base/thread.h"

enum { UNIX, TCP, HANDSHAKES = 256 };

lm_status lm_link_listener_open(lm_link_listener *l, const char *host, const lm_key *key, int size, double dead_after) {
  lm_status status = LM_OK;
  *l = (lm_link_listener){.listeners = {-1, -1}, .key = key, .size = size, .dead_after = dead_after};
  pthread_mutex_init(&l->lock, NULL);
  TRY(lm_net_listen_unix(&l->listeners[UNIX], l->unix_address));
  TRY(lm_net_listen(host, 0, &l->listeners[TCP], l->tcp_address));
done:
  if (status != LM_OK) lm_link_listener_close(l);
  return status;
}

void lm_link_listener_close(lm_link_listener *l) {
  if (!l->key) return;
  lm_close_all(l->listeners, 2);
  for (lm_pending_link *p = l->pending_links, *next; p; p = next) {
    next = p->next;
    close(p->fd);
    lm_free(p);
  }
  for (lm_group_listener *d = l->groups, *next; d; d = next) {
    next = d->next;
    lm_free(d);
  }
  pthread_mutex_destroy(&l->lock);
  *l = (lm_link_listener){0};
}

/* ---- the thread's side */

/* Passes fd, which it takes over, to its listener, or keeps it until that is registered. */
static void incoming_hand_over(lm_link_listener *l, uint64_t id, int peer, int fd) {
  LM_LOCKED(&l->lock);
  lm_group_listener *listener = l->groups;
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
}

static void incoming_accepted(void *ctx, int fd, lm_reader hello) {
  lm_link_listener *l = ctx;
  uint64_t listener_id = lm_get_u64(&hello);
  uint32_t peer = lm_get_u32(&hello);
  if (lm_reader_done(&hello) && peer < (uint32_t)l->size)
    incoming_hand_over(l, listener_id, (int)peer, fd);
  else
    close(fd);
}

lm_status lm_link_listener_serve(lm_link_listener *l, lm_loop *loop) {
  lm_status status = LM_OK;
  for (int i = 0; i < 2; i++) {
    l->acceptors[i] = (lm_acceptor){.watch.fd = -1,
                                    .loop = loop,
                                    .key = l->key,
                                    .dead_after = l->dead_after,
                                    .most = HANDSHAKES,
                                    .accepted = incoming_accepted,
                                    .ctx = l};
    if (status == LM_OK) status = lm_acceptor_listen(&l->acceptors[i], l->listeners[i]);
    if (status == LM_OK) l->listeners[i] = -1;
  }
  return status;
}

void lm_link_listener_keep_time(lm_link_listener *l, double now) {
  if (atomic_load(&l->one_host)) lm_acceptor_close(&l->acceptors[TCP]);
  for (int i = 0; i < 2; i++) lm_acceptor_keep_time(&l->acceptors[i], now);
}

void lm_link_listener_stop(lm_link_listener *l) {
  for (int i = 0; i < 2; i++) lm_acceptor_close(&l->acceptors[i]);
}

/* ---- the groups' side */

/* Passes to fn, or closes, pending links whose listener ids differ only in the lowest `bits`. Needs the lock. */
static void take_pending_links(lm_link_listener *l, uint64_t id, int bits, lm_link_fn fn, int size, void *ctx) {
  for (lm_pending_link **at = &l->pending_links; *at;) {
    lm_pending_link *p = *at;
    if (p->listener_id >> bits != id >> bits) {
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

lm_status lm_link_listener_accept(lm_link_listener *l, uint64_t id, int size, lm_link_fn fn, void *ctx) {
  lm_group_listener *listener = NULL;
  if (fn) {
    listener = lm_malloc(sizeof *listener);
    if (!listener) return LM_E_OOM;
    *listener = (lm_group_listener){.listener_id = id, .size = size, .fn = fn, .ctx = ctx};
  }
  LM_LOCKED(&l->lock);
  for (lm_group_listener **at = &l->groups; *at; at = &(*at)->next)
    if ((*at)->listener_id == id) {
      lm_group_listener *old = *at;
      *at = old->next;
      lm_free(old);
      break;
    }
  if (listener) {
    listener->next = l->groups;
    l->groups = listener;
  }
  take_pending_links(l, id, 0, fn, size, ctx);
  return LM_OK;
}

void lm_link_listener_forget(lm_link_listener *l, uint64_t listener_id, int bits) {
  LM_LOCKED(&l->lock);
  take_pending_links(l, listener_id, bits, NULL, 0, NULL);
}
