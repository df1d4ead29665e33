#include "distributed/store/client.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/net/link_listener.h"
#include "distributed/store/client_core.h"
#include "distributed/store/failure_text.h"

enum { EVENTS = 64, PAIR = 12, PAIRS_MAX = 65536 };
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
  LM_LOCKED(&c->lock);
  lm_loop_end(&c->loop, &c->stream.watch);
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
}

static void store_received(lm_framed_stream *stream, ssize_t n) {
  lm_client *c = (lm_client *)stream; /* through its first member */
  if (n <= 0) {
    client_lost_store(c, lm_failure_kind_of(n < 0 ? errno : 0), n < 0 ? strerror(errno) : "it closed the connection");
    return;
  }
  c->last_received = lm_seconds();
  if (c->stream.in.failed) {
    client_lost_store(c, LM_FAILURE_ERROR, "out of memory for a message of the store");
    return;
  }
  bool nonsense = false, complete = true;
  pthread_mutex_lock(&c->lock);
  while (!nonsense && complete) {
    lm_message kind;
    lm_reader fields;
    nonsense = lm_message_next(&c->stream, &kind, &fields, &complete) != LM_OK;
    if (!nonsense && complete) client_take_message(c, kind, &fields);
    nonsense = nonsense || (complete && fields.failed);
  }
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->lock);
  if (nonsense) client_lost_store(c, LM_FAILURE_UNREACHABLE, "its store sent a malformed message");
}

/* ---- the thread */

/* Sends a heartbeat each second; sooner if the heartbeat timeout is short, or if this rank entered a call since, so
 * that the store knows its last call when it dies. */
static void heartbeat(lm_client *c, double now) {
  double every = c->heartbeat_timeout > 0 ? fmin(beat_every, c->heartbeat_timeout / 4) : beat_every;
  if (now - c->last_heartbeat < fmin(every, news_every)) return;
  LM_LOCKED(&c->lock);
  if (lm_client_is_connected(c) && !c->leaving && (c->moved || now - c->last_heartbeat >= every)) {
    for (unsigned i = 0; i < sizeof c->passed / sizeof *c->passed && i < c->npassed; i++)
      lm_client_report(c, LM_M_PASSED, c->passed[i].group, &c->passed[i].ticket);
    c->npassed = 0;
    lm_client_report(c, LM_M_ALIVE, c->entered_group, &c->entered);
    c->last_heartbeat = now;
    c->moved = false;
  }
}

/* Closes the connection to a silent store, not counting time in which this thread was stopped or suspended. */
static void watch_store(lm_client *c, double now) {
  if (now - c->last_turn > 2.5) c->last_received = now;
  c->last_turn = now;
  if (c->heartbeat_timeout <= 0 || !lm_client_is_connected(c) || now - c->last_received <= c->heartbeat_timeout) return;
  char how[64];
  lm_write(how, sizeof how, "no heartbeat for %.3g s", now - c->last_received);
  client_lost_store(c, LM_FAILURE_FROZEN, how);
}

static void *client_serve(void *arg) {
  lm_client *c = arg;
  double closing = 0; /* lm_seconds() by which the goodbye must be sent; 0: not leaving */
  c->last_received = c->last_turn = lm_seconds();
  for (;;) {
    pthread_mutex_lock(&c->lock);
    bool leaving = c->leaving, connected = lm_client_is_connected(c);
    pthread_mutex_unlock(&c->lock);

    double now = lm_seconds();
    if (leaving && closing == 0) {
      closing = now + goodbye_time;
      if (c->incoming) lm_link_listener_stop(c->incoming);
    }
    if (leaving && (!connected || now >= closing)) break;
    lm_loop_wait(&c->loop, leaving ? 0.01 : 0.1, EVENTS);
    lm_loop_dispatch(&c->loop);
    now = lm_seconds();
    watch_store(c, now);
    heartbeat(c, now);
    if (c->incoming) lm_link_listener_keep_time(c->incoming, now);
  }
  pthread_mutex_lock(&c->lock);
  lm_loop_end(&c->loop, &c->stream.watch);
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
  c->stream.lock = &c->lock;
  c->stream.watch.fd = c->loop.epoll = c->loop.wakeup_fd = -1;
  pthread_mutex_init(&c->lock, NULL);
  lm_cond_init(&c->changed);
  c->rank = config->rank;
  c->size = config->size;
  c->heartbeat_timeout = config->heartbeat_timeout;
  c->incoming = config->incoming;
  c->wake = lm_wakeup_fd_new();
  c->members = lm_calloc((size_t)c->size, sizeof *c->members);
  c->left = lm_calloc((size_t)c->size, sizeof *c->left);
  if (!c->members || !c->left) TRY(LM_E_OOM);
  if (c->wake < 0) TRY(lm_fail_cannot(LM_E_IO, "create an event descriptor", errno));
  c->members[c->rank] = config->self;
  TRY(lm_loop_open(&c->loop));
  TRY(lm_stream_watch(&c->stream, &c->loop, fd, store_received));
  fd = -1;
  if (c->incoming) TRY(lm_link_listener_serve(c->incoming, &c->loop));

  size_t at = lm_client_begin(c, LM_M_JOIN);
  lm_put_u32(&c->stream.out, LM_PROTOCOL);
  lm_put_u32(&c->stream.out, (uint32_t)c->rank);
  lm_put_u32(&c->stream.out, (uint32_t)c->size);
  lm_put_u32(&c->stream.out, (uint32_t)config->generation);
  lm_put_member(&c->stream.out, &config->self);
  TRY(lm_client_end(c, at));
  status = lm_thread_start(NULL, "lm-client", &c->thread, client_serve, c);
  c->running = status == LM_OK;

done:
  if (status == LM_OK) {
    *out = c;
  } else {
    if (fd >= 0) close(fd);
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
  if (first && lm_client_is_connected(c)) {
    size_t at = lm_client_begin(c, LM_M_GOODBYE), n = completed && !completed->failed ? completed->n / PAIR : 0;
    size_t skip = n > PAIRS_MAX ? n - PAIRS_MAX : 0;
    lm_put_u32(&c->stream.out, (uint32_t)(n - skip));
    if (n > 0) lm_put(&c->stream.out, completed->data + skip * PAIR, (n - skip) * PAIR);
    lm_put_u32(&c->stream.out, c->entered_group);
    lm_put_ticket(&c->stream.out, &c->entered);
    c->stream.ends = true;
    lm_client_end(c, at);
  }
  bool join = first && c->running;
  pthread_mutex_unlock(&c->lock);
  if (!join) return;
  lm_loop_wake(&c->loop);
  pthread_join(c->thread, NULL);
}

void lm_client_free(lm_client *c) {
  if (!c) return;
  lm_client_leave(c, NULL);
  for (int r = 0; c->left && r < c->size; r++) lm_bytes_free(&c->left[r].completed);
  if (c->incoming) lm_link_listener_stop(c->incoming);
  lm_stream_free(&c->stream);
  lm_loop_close(&c->loop);
  if (c->wake >= 0) close(c->wake);
  lm_free(c->members);
  lm_free(c->left);
  pthread_cond_destroy(&c->changed);
  pthread_mutex_destroy(&c->lock);
  lm_free(c);
}

const lm_member *lm_client_member(const lm_client *c, int rank) { return &c->members[rank]; }
