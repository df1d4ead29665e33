#include "distributed/net/acceptor.h"

#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { ACCEPTS = 64 };                 /* connections that one event accepts at most */
static const double full_pause = 0.05; /* seconds without accepting when there are no descriptors */

struct lm_handshake { /* a connection that is not authenticated yet */
  lm_watch watch;
  lm_acceptor *acceptor;
  lm_auth auth;
  lm_handshake *next;
};

/* Frees h and returns its descriptor, which is not closed. */
static int handshake_end(lm_handshake *h) {
  lm_acceptor *a = h->acceptor;
  int fd = lm_loop_remove(a->loop, &h->watch);
  LM_UNLINK(a->first, h);
  a->n--;
  lm_free(h);
  return fd;
}

static void handshake_ready(lm_watch *w, uint32_t events) {
  (void)events;
  lm_handshake *h = (lm_handshake *)w; /* through its first member */
  lm_acceptor *a = h->acceptor;
  bool done = false;
  if (lm_auth_step(&h->auth, w->fd, &done) != LM_OK) {
    lm_log(LM_LOG_DIST, "rejected a connection: %s", lm_error());
    close(handshake_end(h));
  } else if (done) {
    lm_auth auth = h->auth;
    a->accepted(a->ctx, handshake_end(h), lm_reader_of(lm_auth_hello(&auth), auth.hello_n));
  }
}

/* Starts a handshake, or closes fd: the other side connects again. */
static void handshake_start(lm_acceptor *a, int fd) {
  if (a->n >= a->most) close(handshake_end(a->first));
  lm_handshake *h = lm_calloc(1, sizeof *h);
  if (!h || lm_auth_start(&h->auth, fd, a->key) != LM_OK ||
      lm_loop_add(a->loop, &h->watch, fd, handshake_ready) != LM_OK) {
    lm_free(h);
    close(fd);
    return;
  }
  h->acceptor = a;
  LM_LINK_LAST(a->first, h);
  a->n++;
}

static void acceptor_ready(lm_watch *w, uint32_t events) {
  (void)events;
  lm_acceptor *a = (lm_acceptor *)w; /* through its first member */
  for (int i = 0; i < ACCEPTS; i++) {
    int fd;
    bool full = lm_net_accept(w->fd, a->dead_after, &fd) != LM_OK;
    if (fd >= 0) {
      handshake_start(a, fd);
    } else if (full && a->first) {
      close(handshake_end(a->first));
    } else {
      if (full) a->resume_at = lm_seconds() + full_pause;
      if (full) lm_loop_set(a->loop, w, 0);
      return;
    }
  }
}

lm_status lm_acceptor_listen(lm_acceptor *a, int fd) { return lm_loop_add(a->loop, &a->watch, fd, acceptor_ready); }

void lm_acceptor_close(lm_acceptor *a) {
  lm_loop_end(a->loop, &a->watch);
  while (a->first) close(handshake_end(a->first));
  a->resume_at = 0;
}

double lm_acceptor_deadline(const lm_acceptor *a) { return a->first ? a->first->auth.deadline : a->resume_at; }

void lm_acceptor_keep_time(lm_acceptor *a, double now) {
  while (a->first && a->first->auth.deadline <= now) close(handshake_end(a->first));
  if (a->resume_at == 0 || a->resume_at > now) return;
  a->resume_at = 0;
  lm_loop_set(a->loop, &a->watch, EPOLLIN);
}
