#include "distributed/store/client.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/large_array.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/net/link_listener.h"
#include "distributed/store/client_core.h"
#include "distributed/store/failure_text.h"

enum { CHUNK = 64 << 10, PAIR = 12, PAIRS_MAX = 65536 };
static const double goodbye_time = 0.5, beat_every = 1, news_every = 0.2; /* seconds: limit; intervals */

/* ---- the store's messages; on the client's thread, with the lock held */

static void welcome(lm_client *c, lm_reader *r) {
  if (lm_get_u32(r) != (uint32_t)c->size || c->phase != LM_JOINING) {
    r->failed = true;
    return;
  }
  for (int i = 0; i < c->size; i++) lm_get_member(r, &c->members[i]);
  if (lm_reader_done(r)) c->phase = LM_JOINED;
}

static void client_take_message(lm_client *c, lm_message kind, lm_reader *r) {
  switch (kind) {
    case LM_M_WELCOME: welcome(c, r); break;
    case LM_M_REFUSED:
      lm_get_text(r, c->why, sizeof c->why);
      c->phase = LM_REFUSED;
      break;
    case LM_M_AHEAD: c->phase = LM_AHEAD; break;
    case LM_M_REPLY: lm_client_reply(c, r); break;
    case LM_M_FAILURE: {
      lm_failure failure;
      lm_get_failure(r, &failure);
      if (!r->failed) lm_client_take_cause(c, &failure);
      break;
    }
    case LM_M_LEFT: lm_client_note_left(c, r); break;
    case LM_M_PULSE: break;
    default: r->failed = true;
  }
}

/* Closes the connection and records its loss (LM_FAILURE_ERROR: this rank's failure, else rank 0's) as the cause. */
static void client_lost_store(lm_client *c, lm_failure_kind kind, const char *how) {
  pthread_mutex_lock(&c->lock);
  close(c->fd);
  c->fd = -1;
  if (c->phase == LM_JOINING) {
    c->phase = LM_CUT;
    snprintf(c->why, sizeof c->why, "%s", how);
  } else if (c->phase == LM_JOINED && !c->leaving && !c->left[0].gone) {
    int rank = kind == LM_FAILURE_ERROR ? c->rank : 0;
    lm_failure failure = lm_failure_of(kind, rank, c->members[rank].host, c->rank);
    if (kind != LM_FAILURE_DIED) snprintf(failure.message, sizeof failure.message, "%s", how);
    lm_client_take_cause(c, &failure);
  }
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
}

static void listen_to_store(lm_client *c) {
  LM_LARGE(char, chunk, CHUNK);
  ssize_t n = recv(c->fd, chunk, CHUNK, MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n < 0) {
    bool silent = errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH;
    client_lost_store(c, silent ? LM_FAILURE_FROZEN : LM_FAILURE_DIED, strerror(errno));
    return;
  }
  if (n == 0) {
    client_lost_store(c, LM_FAILURE_DIED, "it closed the connection");
    return;
  }
  c->last_received = lm_seconds();
  lm_put(&c->in, chunk, (size_t)n);
  bool nonsense = c->in.failed;
  size_t at = 0, used = 1;
  pthread_mutex_lock(&c->lock);
  while (!nonsense && used > 0) {
    lm_bytes rest = {.data = c->in.data + at, .n = c->in.n - at};
    lm_message kind;
    lm_reader fields;
    nonsense = lm_message_next(&rest, &kind, &fields, &used) != LM_OK;
    if (nonsense || used == 0) break;
    at += used;
    client_take_message(c, kind, &fields);
    nonsense = fields.failed;
  }
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  lm_bytes_shift(&c->in, at);
  if (c->in.failed) {
    client_lost_store(c, LM_FAILURE_ERROR, "out of memory for a message of the store");
  } else if (nonsense) {
    client_lost_store(c, LM_FAILURE_UNREACHABLE, "its store sent a malformed message");
  }
}

/* ---- the thread */

/* Sends a heartbeat each second; sooner if the heartbeat timeout is short, or if this rank entered a call since, so
 * that the store knows its last call when it dies. */
static void heartbeat(lm_client *c, double now) {
  double every = c->heartbeat_timeout > 0 ? fmin(beat_every, c->heartbeat_timeout / 4) : beat_every;
  if (now - c->last_heartbeat < fmin(every, news_every)) return;
  pthread_mutex_lock(&c->lock);
  if (c->fd >= 0 && !c->leaving && (c->moved || now - c->last_heartbeat >= every)) {
    for (unsigned i = 0; i < sizeof c->passed / sizeof *c->passed && i < c->npassed; i++)
      lm_client_report(c, LM_M_PASSED, c->passed[i].group, &c->passed[i].ticket);
    c->npassed = 0;
    lm_client_report(c, LM_M_ALIVE, c->entered_group, &c->entered);
    c->last_heartbeat = now;
    c->moved = false;
  }
  pthread_mutex_unlock(&c->lock);
}

/* Closes the connection to a silent store, not counting time in which this thread was stopped or suspended. */
static void watch_store(lm_client *c, double now) {
  if (now - c->last_turn > 2.5) c->last_received = now;
  c->last_turn = now;
  if (c->heartbeat_timeout <= 0 || c->fd < 0 || now - c->last_received <= c->heartbeat_timeout) return;
  char how[64];
  lm_write(how, sizeof how, "no heartbeat for %.3g s", now - c->last_received);
  client_lost_store(c, LM_FAILURE_FROZEN, how);
}

static void *client_serve(void *arg) {
  lm_client *c = arg;
  double closing = 0; /* lm_seconds() by which the goodbye must be sent; 0: not leaving */
  bool shut = false;
  c->last_received = c->last_turn = lm_seconds();
  for (;;) {
    struct pollfd polls[2 + LM_INCOMING_POLLS] = {{.fd = c->wakeup_fd, .events = POLLIN}};
    pthread_mutex_lock(&c->lock);
    polls[1] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (c->out.n > 0 ? POLLOUT : 0))};
    bool leaving = c->leaving;
    if (leaving && c->out.n == 0 && c->fd >= 0 && !shut) {
      shutdown(c->fd, SHUT_WR);
      shut = true;
    }
    pthread_mutex_unlock(&c->lock);

    double now = lm_seconds();
    if (leaving && closing == 0) closing = now + goodbye_time;
    if (leaving && (polls[1].fd < 0 || now >= closing)) break;
    int n = 2;
    if (!leaving && c->incoming) n += lm_incoming_polls(c->incoming, polls + 2);
    int ready = poll(polls, (nfds_t)n, leaving ? 10 : 100);

    if (polls[0].revents) lm_wakeup_fd_clear(c->wakeup_fd);
    if (ready > 0 && polls[1].revents & POLLOUT) {
      pthread_mutex_lock(&c->lock);
      lm_client_push(c);
      pthread_mutex_unlock(&c->lock);
    }
    if (ready > 0 && polls[1].revents & (POLLIN | POLLHUP | POLLERR)) listen_to_store(c);
    now = lm_seconds();
    watch_store(c, now);
    heartbeat(c, now);
    if (!leaving && c->incoming) lm_incoming_serve(c->incoming, polls + 2, n - 2);
  }
  pthread_mutex_lock(&c->lock);
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  return NULL;
}

/* ---- opening and closing */

lm_status lm_client_open(const lm_client_config *config, int fd, lm_client **out) {
  *out = NULL;
  lm_client *c = lm_calloc(1, sizeof *c);
  if (!c) {
    close(fd);
    return LM_E_OOM;
  }
  lm_status status = LM_OK;
  pthread_mutex_init(&c->lock, NULL);
  lm_cond_init(&c->changed);
  c->fd = fd;
  c->rank = config->rank;
  c->size = config->size;
  c->heartbeat_timeout = config->heartbeat_timeout;
  c->incoming = config->incoming;
  c->wakeup_fd = lm_wakeup_fd_new();
  c->wake = lm_wakeup_fd_new();
  c->members = lm_calloc((size_t)c->size, sizeof *c->members);
  c->left = lm_calloc((size_t)c->size, sizeof *c->left);
  if (!c->members || !c->left) TRY(LM_E_OOM);
  if (c->wakeup_fd < 0 || c->wake < 0) TRY(lm_fail_cannot(LM_E_IO, "create an event descriptor", errno));
  c->members[c->rank] = config->self;

  size_t at = lm_client_begin(c, LM_M_JOIN);
  lm_put_u32(&c->out, LM_PROTOCOL);
  lm_put_u32(&c->out, (uint32_t)c->rank);
  lm_put_u32(&c->out, (uint32_t)c->size);
  lm_put_u32(&c->out, (uint32_t)config->generation);
  lm_put_member(&c->out, &config->self);
  TRY(lm_client_end(c, at));
  status = lm_thread_start(NULL, "lm-client", &c->thread, client_serve, c);
  c->running = status == LM_OK;

done:
  if (status == LM_OK) {
    *out = c;
  } else {
    lm_client_free(c);
  }
  return status;
}

lm_status lm_client_welcome(lm_client *c, const lm_deadline *p, bool *again) {
  lm_status status = LM_OK;
  *again = false;
  pthread_mutex_lock(&c->lock);
  while (c->phase == LM_JOINING && !lm_client_cause(c)) {
    lm_client_wait_briefly(c, INFINITY);
    if (c->phase != LM_JOINING || !p->check) continue;
    pthread_mutex_unlock(&c->lock);
    status = p->check(p->ctx);
    pthread_mutex_lock(&c->lock);
    if (status != LM_OK) break;
  }
  const lm_failure *cause = lm_client_cause(c);
  char text[1024];
  if (status != LM_OK || c->phase == LM_JOINED) {
  } else if (cause) {
    status = lm_fail(LM_E_STATE, "%s", lm_failure_text(cause, text, sizeof text));
  } else if (c->phase == LM_REFUSED) {
    status = lm_fail(LM_E_ARG, "%s", c->why);
  } else if (c->phase == LM_AHEAD) {
    *again = true;
    status = lm_fail(LM_E_STATE, "the store still serves an earlier process group");
  } else {
    status = lm_fail(LM_E_STATE, "rank 0, which runs the store, ended while ranks were joining (%s)", c->why);
  }
  pthread_mutex_unlock(&c->lock);
  return status;
}

void lm_client_leave(lm_client *c, const lm_bytes *completed) {
  pthread_mutex_lock(&c->lock);
  bool first = !c->leaving;
  c->leaving = true;
  if (first && c->fd >= 0) {
    size_t at = lm_client_begin(c, LM_M_GOODBYE), n = completed && !completed->failed ? completed->n / PAIR : 0;
    size_t skip = n > PAIRS_MAX ? n - PAIRS_MAX : 0;
    lm_put_u32(&c->out, (uint32_t)(n - skip));
    if (n > 0) lm_put(&c->out, completed->data + skip * PAIR, (n - skip) * PAIR);
    lm_put_u32(&c->out, c->entered_group);
    lm_put_ticket(&c->out, &c->entered);
    lm_client_end(c, at);
  }
  bool join = first && c->running;
  pthread_mutex_unlock(&c->lock);
  if (!join) return;
  lm_wakeup_fd_signal(c->wakeup_fd);
  pthread_join(c->thread, NULL);
}

void lm_client_free(lm_client *c) {
  if (!c) return;
  lm_client_leave(c, NULL);
  for (int r = 0; c->left && r < c->size; r++) lm_bytes_free(&c->left[r].completed);
  if (c->fd >= 0) close(c->fd);
  if (c->wakeup_fd >= 0) close(c->wakeup_fd);
  if (c->wake >= 0) close(c->wake);
  lm_bytes_free(&c->in);
  lm_bytes_free(&c->out);
  lm_free(c->members);
  lm_free(c->left);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  lm_free(c);
}

const lm_member *lm_client_member(const lm_client *c, int rank) { return &c->members[rank]; }
