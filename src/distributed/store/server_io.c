/* Accepts, reads, writes and frees the store's connections, and passes their messages on. */
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/message.h"
#include "distributed/store/server_private.h"

enum { ACCEPTS = 64, READS = 16, KEEP_BUFFER = 1 << 20 };
static const double full_pause = 0.05; /* seconds without accepting when there are no descriptors */

/* ---- writing and reaping */

static void conn_watch(lm_server *s, lm_conn *c, bool out) {
  if (c->watches_out == out) return;
  struct epoll_event e = {.events = EPOLLIN | (out ? (uint32_t)EPOLLOUT : 0), .data.ptr = c};
  if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e) == 0) c->watches_out = out;
}

static void conn_flush(lm_server *s, lm_conn *c) {
  while (c->sent < c->out.n) {
    ssize_t put = send(c->fd, c->out.data + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
    if (put >= 0) {
      c->sent += (size_t)put;
    } else if (errno == EAGAIN) {
      if (c->sent > c->out.n / 2) {
        lm_bytes_shift(&c->out, c->sent);
        c->sent = 0;
      }
      conn_watch(s, c, true);
      return;
    } else if (errno != EINTR) {
      break; /* broken: reading handles received data first, then the end */
    }
  }
  c->sent = c->out.n = 0;
  if (c->out.capacity > KEEP_BUFFER) lm_bytes_free(&c->out);
  conn_watch(s, c, false);
  if (c->state == LM_CONN_CLOSING) shutdown(c->fd, SHUT_WR);
}

void lm_conn_free(lm_server *s, lm_conn *c) {
  if (c->waits > 0) lm_server_cancel_waits(s, c);
  lm_conn_leave_list(c);
  if (c->fd >= 0) lm_net_close_watched(s->epoll, c->fd);
  lm_free(c->auth);
  lm_bytes_free(&c->in);
  lm_bytes_free(&c->out);
  lm_free(c);
}

/* Reaps dropped connections in the order in which they were dropped: of several deaths the first is the cause. */
static void conn_reap_gone(lm_server *s) {
  for (lm_conn *c = s->gone.first, *next; c; c = next) {
    bool lives = c->rank >= 0 && c->as != LM_FAILURE_DIED && !c->out.failed;
    if (c->rank >= 0) lm_server_lost(s, c);
    next = c->next;
    if (lives) { /* a living member can still read the cause */
      c->gone = false;
      if (c->waits > 0) lm_server_cancel_waits(s, c);
      lm_conn_close_gently(s, c);
    } else if (!c->dirty) { /* a dirty one is freed once it is off that list */
      lm_conn_free(s, c);
    }
  }
}

void lm_conns_end_round(lm_server *s) {
  while (s->dirty || s->gone.first) {
    while (s->dirty) {
      lm_conn *c = s->dirty;
      s->dirty = c->next_dirty;
      c->dirty = false;
      if (!c->gone && !c->watches_out) conn_flush(s, c);
    }
    conn_reap_gone(s);
  }
}

/* ---- messages */

static bool conn_handle(lm_server *s, lm_conn *c, lm_message kind, lm_reader *r) {
  if (c->state == LM_CONN_JOINING) return kind == LM_M_JOIN && lm_server_join(s, c, r);
  switch (kind) {
    case LM_M_SET: return lm_server_set(s, c, r);
    case LM_M_GET: return lm_server_get(s, c, r);
    case LM_M_ADD: return lm_server_add(s, c, r);
    case LM_M_FORGET: return lm_server_forget(s, c, r);
    case LM_M_ALIVE: return lm_server_alive(s, c, r);
    case LM_M_PASSED: return lm_server_passed(s, c, r);
    case LM_M_WAITING: return lm_server_waiting(s, c, r);
    case LM_M_RESUMED: return lm_server_resumed(s, c, r);
    case LM_M_MISSING: return lm_server_missing(s, c, r);
    case LM_M_FAIL: return lm_server_fail(s, c, r);
    case LM_M_GOODBYE: return lm_server_goodbye(s, c, r);
    default: return false;
  }
}

static void conn_handle_all(lm_server *s, lm_conn *c) {
  size_t done = 0;
  while (!c->gone && c->state != LM_CONN_CLOSING) {
    lm_bytes rest = {.data = c->in.data + done, .n = c->in.n - done};
    lm_message kind;
    lm_reader fields;
    size_t used;
    if (rest.n == 0) break;
    lm_status status = lm_message_next(&rest, &kind, &fields, &used);
    if (status == LM_OK && used == 0) break;
    if (status != LM_OK || !conn_handle(s, c, kind, &fields))
      lm_conn_drop(s, c, LM_FAILURE_ERROR, "it sent the store a malformed message");
    done += used;
  }
  lm_bytes_shift(&c->in, done);
  if (c->in.n == 0 && c->in.capacity > KEEP_BUFFER) lm_bytes_free(&c->in);
}

/* Drops a connection at its end (code 0) or after a read error (errno). */
static void conn_ended(lm_server *s, lm_conn *c, int code) {
  bool far = code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN || code == ENETDOWN;
  if (far)
    lm_conn_drop(s, c, LM_FAILURE_FROZEN, "its host does not answer");
  else
    lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
}

static void conn_read_some(lm_server *s, lm_conn *c) {
  for (int i = 0; i < READS && !c->gone; i++) {
    ssize_t got = recv(c->fd, s->chunk, sizeof s->chunk, 0);
    if (got > 0) {
      c->heard = s->now;
      if (c->state == LM_CONN_CLOSING) continue;
      lm_put(&c->in, s->chunk, (size_t)got);
      if (c->in.failed) lm_conn_no_memory(s, c);
      if (!c->gone) conn_handle_all(s, c);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      conn_ended(s, c, got == 0 ? 0 : errno);
    } else if (errno == EAGAIN) {
      break;
    }
  }
}

static void conn_prove(lm_server *s, lm_conn *c) {
  bool done;
  if (lm_auth_step(c->auth, c->fd, &done) != LM_OK || (done && c->auth->hello_n > 0)) {
    lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
  } else if (done) {
    lm_free(c->auth);
    c->auth = NULL;
    c->state = LM_CONN_JOINING;
  }
}

void lm_conn_serve(lm_server *s, lm_conn *c, uint32_t events) {
  if (c->gone) return;
  if (events & EPOLLOUT) {
    c->watches_out = true;
    conn_flush(s, c);
  }
  if (!(events & ~(uint32_t)EPOLLOUT)) return;
  if (c->state == LM_CONN_PROVING)
    conn_prove(s, c);
  else
    conn_read_some(s, c);
}

/* ---- new connections */

static bool conn_drop_oldest(lm_server *s) {
  lm_conn *c = s->pending.first;
  if (!c) return false;
  lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
  lm_net_close_watched(s->epoll, c->fd);
  c->fd = -1;
  return true;
}

static lm_status conn_admit(lm_server *s, int fd) {
  lm_status status = LM_OK;
  lm_conn *c = lm_calloc(1, sizeof *c);
  if (!c || !(c->auth = lm_malloc(sizeof *c->auth))) TRY(LM_E_OOM);
  c->fd = fd;
  c->rank = -1;
  TRY(lm_auth_start(c->auth, fd, &s->key));
  c->deadline = c->auth->deadline;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0) TRY(lm_fail_cannot(LM_E_IO, "watch a connection", errno));
  lm_conn_move(c, &s->pending);
done:
  if (status != LM_OK) {
    close(fd);
    if (c) lm_free(c->auth);
    lm_free(c);
  }
  return status;
}

void lm_server_listen(lm_server *s, bool on) {
  struct epoll_event e = {.events = on ? EPOLLIN : 0, .data.ptr = &s->listener};
  epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &e);
  s->listen_at = on ? 0 : s->now + full_pause;
}

void lm_server_accept(lm_server *s) {
  for (int i = 0; i < ACCEPTS && s->listener >= 0; i++) {
    int fd;
    lm_status status = lm_net_accept(s->listener, s->heartbeat_timeout, &fd);
    if (status != LM_OK) {
      if (!conn_drop_oldest(s)) {
        lm_server_listen(s, false);
        return;
      }
    } else if (fd < 0) {
      return;
    } else {
      if (s->pending.n >= s->max_pending) conn_drop_oldest(s);
      conn_admit(s, fd); /* on error fd is closed, and the rank connects again */
    }
  }
}
