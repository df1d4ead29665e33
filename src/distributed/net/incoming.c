#include "distributed/net/incoming.h"

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
  for (int i = 0; i < l->nguests; i++) {
    close(l->guests[i]->fd);
    lm_free(l->guests[i]);
  }
  for (lm_parked *p = l->parked, *next; p; p = next) {
    next = p->next;
    close(p->fd);
    lm_free(p);
  }
  for (lm_door *d = l->doors, *next; d; d = next) {
    next = d->next;
    lm_free(d);
  }
  pthread_mutex_destroy(&l->lock);
  *l = (lm_incoming){0};
}

/* ---- guests */

static void dismiss(lm_incoming *l, int i, bool hang_up) {
  if (hang_up) close(l->guests[i]->fd);
  lm_free(l->guests[i]);
  memmove(l->guests + i, l->guests + i + 1, (size_t)(l->nguests - i - 1) * sizeof *l->guests);
  l->nguests--;
}

static void let_in(lm_incoming *l, int listener) {
  for (int k = 0; k < 64; k++) {
    int fd;
    if (lm_net_accept(listener, l->dead_after, &fd) != LM_OK) l->full_until = lm_seconds() + full_pause;
    if (fd < 0) return;
    if (l->nguests == LM_INCOMING_GUESTS) dismiss(l, 0, true);
    lm_guest *guest = lm_malloc(sizeof *guest);
    if (!guest || lm_auth_start(&guest->auth, fd, l->key) != LM_OK) {
      lm_free(guest);
      close(fd);
      continue;
    }
    guest->fd = fd;
    l->guests[l->nguests++] = guest;
  }
}

/* To its group, or aside until there is one. Takes fd over. */
static void incoming_hand_over(lm_incoming *l, uint64_t at_door, int peer, int fd) {
  pthread_mutex_lock(&l->lock);
  lm_door *door = l->doors;
  while (door && door->door != at_door) door = door->next;
  if (door) {
    if (peer < door->size)
      door->fn(door->ctx, peer, fd);
    else
      close(fd);
  } else {
    lm_parked **at = &l->parked, *parked = lm_malloc(sizeof *parked);
    int same = 0;
    for (; *at; at = &(*at)->next) same += (*at)->door == at_door;
    if (!parked || same >= l->size) {
      lm_free(parked);
      close(fd);
    } else {
      *parked = (lm_parked){.door = at_door, .peer = peer, .fd = fd};
      *at = parked;
    }
  }
  pthread_mutex_unlock(&l->lock);
}

/* False: it is no guest any more. */
static bool serve_guest(lm_incoming *l, int i) {
  lm_guest *guest = l->guests[i];
  bool done = false;
  if (lm_auth_step(&guest->auth, guest->fd, &done) != LM_OK) {
    lm_log(LM_LOG_DIST, "a stranger at the door: %s", lm_error());
    dismiss(l, i, true);
    return false;
  }
  if (!done) return true;
  lm_reader r = lm_reader_of(lm_auth_hello(&guest->auth), guest->auth.hello_n);
  uint64_t door = lm_get_u64(&r);
  uint32_t peer = lm_get_u32(&r);
  int fd = guest->fd;
  bool sense = lm_reader_done(&r) && peer < (uint32_t)l->size;
  dismiss(l, i, !sense);
  if (sense) incoming_hand_over(l, door, (int)peer, fd);
  return false;
}

/* ---- the thread's side */

int lm_incoming_polls(lm_incoming *l, struct pollfd *polls) {
  if (l->tcp_listener >= 0 && atomic_load(&l->one_host)) {
    close(l->tcp_listener);
    l->tcp_listener = -1;
  }
  short newcomers = lm_seconds() < l->full_until ? 0 : POLLIN;
  polls[0] = (struct pollfd){.fd = l->unix_listener, .events = newcomers};
  polls[1] = (struct pollfd){.fd = l->tcp_listener, .events = newcomers};
  for (int i = 0; i < l->nguests; i++) polls[2 + i] = (struct pollfd){.fd = l->guests[i]->fd, .events = POLLIN};
  return 2 + l->nguests;
}

void lm_incoming_serve(lm_incoming *l, const struct pollfd *polls, int n) {
  double now = lm_seconds();
  for (int i = n - 3; i >= 0; i--) {
    if (polls[2 + i].revents && !serve_guest(l, i)) continue;
    if (now > l->guests[i]->auth.deadline) dismiss(l, i, true);
  }
  for (int i = 0; i < 2; i++)
    if (polls[i].revents) let_in(l, polls[i].fd);
}

/* ---- the groups' side */

/* With the lock: those at doors that differ in their lowest `bits` alone go to fn, or are closed. */
static void take_parked(lm_incoming *l, uint64_t door, int bits, lm_link_fn fn, int size, void *ctx) {
  for (lm_parked **at = &l->parked; *at;) {
    lm_parked *p = *at;
    if (p->door >> bits != door >> bits) {
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

lm_status lm_incoming_accept(lm_incoming *l, uint64_t at_door, int size, lm_link_fn fn, void *ctx) {
  lm_door *door = NULL;
  if (fn) {
    door = lm_malloc(sizeof *door);
    if (!door) return LM_E_OOM;
    *door = (lm_door){.door = at_door, .size = size, .fn = fn, .ctx = ctx};
  }
  pthread_mutex_lock(&l->lock);
  for (lm_door **at = &l->doors; *at; at = &(*at)->next)
    if ((*at)->door == at_door) {
      lm_door *old = *at;
      *at = old->next;
      lm_free(old);
      break;
    }
  if (door) {
    door->next = l->doors;
    l->doors = door;
  }
  take_parked(l, at_door, 0, fn, size, ctx);
  pthread_mutex_unlock(&l->lock);
  return LM_OK;
}

void lm_incoming_forget(lm_incoming *l, uint64_t door, int bits) {
  pthread_mutex_lock(&l->lock);
  take_parked(l, door, bits, NULL, 0, NULL);
  pthread_mutex_unlock(&l->lock);
}
