#define _GNU_SOURCE /* pthread_setname_np */
#include "distributed/store/server.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/store/server_private.h"

enum { EVENTS = 256, ACCEPTS = 64, MOST_PENDING = 1024, READS = 16, KEEP_BUFFER = 1 << 20 };
static const double closing_time = 1;  /* seconds in which a refused one may read why */
static const double full_pause = 0.05; /* seconds without accepting when there are no descriptors */

/* All servers of the process, whose threads end by themselves. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_changed = PTHREAD_COND_INITIALIZER;
static lm_server *all;

/* ---- connections */

static void leave_list(lm_conn *c) {
  lm_conn_list *list = c->list;
  if (!list) return;
  *(c->prev ? &c->prev->next : &list->first) = c->next;
  *(c->next ? &c->next->prev : &list->last) = c->prev;
  c->prev = c->next = NULL;
  c->list = NULL;
  list->n--;
}

void lm_conn_move(lm_conn *c, lm_conn_list *list) {
  leave_list(c);
  c->prev = list->last;
  *(list->last ? &list->last->next : &list->first) = c;
  list->last = c;
  c->list = list;
  list->n++;
}

void lm_conn_drop(lm_server *s, lm_conn *c, lm_failure_kind as, const char *why) {
  if (c->gone) return;
  c->gone = true;
  c->as = as;
  c->why = why;
  lm_conn_move(c, &s->gone);
}

void lm_conn_no_memory(lm_server *s, lm_conn *c) {
  lm_conn_drop(s, c, LM_FAILURE_ERROR, "the store has no memory left to serve it");
}

void lm_conn_queued(lm_server *s, lm_conn *c) {
  if (c->gone) return;
  if (c->out.failed) {
    lm_conn_no_memory(s, c);
  } else if (c->out.n - c->sent > LM_UNSENT_MAX) {
    lm_conn_drop(s, c, LM_FAILURE_FROZEN, "does not read what the store sends");
  } else if (!c->dirty) {
    c->dirty = true;
    c->next_dirty = s->dirty;
    s->dirty = c;
  }
}

void lm_conn_close_gently(lm_server *s, lm_conn *c) {
  c->state = LM_CONN_CLOSING;
  c->deadline = s->now + closing_time;
  c->rank = -1;
  lm_bytes_free(&c->in);
  lm_conn_move(c, &s->closing);
  lm_conn_queued(s, c);
}

static void watch(lm_server *s, lm_conn *c, bool out) {
  if (c->watches_out == out) return;
  struct epoll_event e = {.events = EPOLLIN | (out ? (uint32_t)EPOLLOUT : 0), .data.ptr = c};
  if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e) == 0) c->watches_out = out;
}

static void flush(lm_server *s, lm_conn *c) {
  while (c->sent < c->out.n) {
    ssize_t put = send(c->fd, c->out.data + c->sent, c->out.n - c->sent, MSG_NOSIGNAL);
    if (put >= 0) {
      c->sent += (size_t)put;
    } else if (errno == EAGAIN) {
      if (c->sent > c->out.n / 2) {
        lm_bytes_shift(&c->out, c->sent);
        c->sent = 0;
      }
      watch(s, c, true);
      return;
    } else if (errno != EINTR) {
      break; /* broken: what there is to read is read first, its end tells */
    }
  }
  c->sent = c->out.n = 0;
  if (c->out.capacity > KEEP_BUFFER) lm_bytes_free(&c->out);
  watch(s, c, false);
  if (c->state == LM_CONN_CLOSING) shutdown(c->fd, SHUT_WR);
}

static void free_conn(lm_server *s, lm_conn *c) {
  if (c->waits > 0) lm_server_wait_no_more(s, c);
  leave_list(c);
  if (c->fd >= 0) close(c->fd);
  lm_free(c->auth);
  lm_bytes_free(&c->in);
  lm_bytes_free(&c->out);
  lm_free(c);
}

/* In the order in which they went: of several deaths the first is the cause. */
static void bury(lm_server *s) {
  for (lm_conn *c = s->gone.first, *next; c; c = next) {
    bool tell = c->rank >= 0 && c->as != LM_FAILURE_DIED && !c->out.failed;
    if (c->rank >= 0) lm_server_lost(s, c);
    next = c->next;
    if (tell) { /* it lives, and hears why */
      c->gone = false;
      if (c->waits > 0) lm_server_wait_no_more(s, c);
      lm_conn_close_gently(s, c);
    } else if (!c->dirty) { /* else once it is off the list of those that have something to send */
      free_conn(s, c);
    }
  }
}

/* Ends a round: sends what there is to send, and takes leave of who is gone, which gives others something to hear. */
static void settle(lm_server *s) {
  while (s->dirty || s->gone.first) {
    while (s->dirty) {
      lm_conn *c = s->dirty;
      s->dirty = c->next_dirty;
      c->dirty = false;
      if (!c->gone && !c->watches_out) flush(s, c);
    }
    bury(s);
  }
}

/* ---- what they say */

static bool handle(lm_server *s, lm_conn *c, lm_message kind, lm_reader *r) {
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
    case LM_M_FAIL: return lm_server_told(s, c, r);
    case LM_M_GOODBYE: return lm_server_goodbye(s, c, r);
    default: return false;
  }
}

static void handle_all(lm_server *s, lm_conn *c) {
  size_t done = 0;
  while (!c->gone && c->state != LM_CONN_CLOSING) {
    lm_bytes rest = {.data = c->in.data + done, .n = c->in.n - done};
    lm_message kind;
    lm_reader fields;
    size_t used;
    if (rest.n == 0) break;
    lm_status status = lm_message_next(&rest, &kind, &fields, &used);
    if (status == LM_OK && used == 0) break;
    if (status != LM_OK || !handle(s, c, kind, &fields))
      lm_conn_drop(s, c, LM_FAILURE_ERROR, "sent the store a message that makes no sense");
    done += used;
  }
  lm_bytes_shift(&c->in, done);
  if (c->in.n == 0 && c->in.capacity > KEEP_BUFFER) lm_bytes_free(&c->in);
}

/* What became of a connection that cannot be read any more. */
static void ended(lm_server *s, lm_conn *c, int code) {
  bool far = code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN || code == ENETDOWN;
  if (far)
    lm_conn_drop(s, c, LM_FAILURE_FROZEN, "its host does not answer");
  else
    lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
}

static void read_some(lm_server *s, lm_conn *c) {
  for (int i = 0; i < READS && !c->gone; i++) {
    ssize_t got = recv(c->fd, s->chunk, sizeof s->chunk, 0);
    if (got > 0) {
      c->heard = s->now;
      if (c->state == LM_CONN_CLOSING) continue;
      lm_put(&c->in, s->chunk, (size_t)got);
      if (c->in.failed) lm_conn_no_memory(s, c);
      if (!c->gone) handle_all(s, c);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      ended(s, c, got == 0 ? 0 : errno);
    } else if (errno == EAGAIN) {
      break;
    }
  }
}

static void prove(lm_server *s, lm_conn *c) {
  bool done;
  if (lm_auth_step(c->auth, c->fd, &done) != LM_OK || (done && c->auth->hello_n > 0)) {
    lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
  } else if (done) {
    lm_free(c->auth);
    c->auth = NULL;
    c->state = LM_CONN_JOINING;
  }
}

static void serve_conn(lm_server *s, lm_conn *c, uint32_t events) {
  if (c->gone) return;
  if (events & EPOLLOUT) {
    c->watches_out = true;
    flush(s, c);
  }
  if (!(events & ~(uint32_t)EPOLLOUT)) return;
  if (c->state == LM_CONN_PROVING)
    prove(s, c);
  else
    read_some(s, c);
}

/* ---- newcomers */

static bool drop_oldest(lm_server *s) {
  lm_conn *c = s->pending.first;
  if (!c) return false;
  lm_conn_drop(s, c, LM_FAILURE_DIED, NULL);
  close(c->fd);
  c->fd = -1;
  return true;
}

static lm_status admit(lm_server *s, int fd) {
  lm_status status = LM_OK;
  lm_conn *c = lm_calloc(1, sizeof *c);
  if (!c || !(c->auth = lm_malloc(sizeof *c->auth))) TRY(LM_E_OOM);
  c->fd = fd;
  c->rank = -1;
  TRY(lm_auth_start(c->auth, fd, &s->key));
  c->deadline = c->auth->deadline;
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &e) != 0) TRY(lm_fail(LM_E_IO, "epoll: %s", strerror(errno)));
  lm_conn_move(c, &s->pending);
done:
  if (status != LM_OK) {
    close(fd);
    if (c) lm_free(c->auth);
    lm_free(c);
  }
  return status;
}

static void listen_for(lm_server *s, bool on) {
  struct epoll_event e = {.events = on ? EPOLLIN : 0, .data.ptr = &s->listener};
  epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &e);
  s->listen_at = on ? 0 : s->now + full_pause;
}

static void accept_some(lm_server *s) {
  for (int i = 0; i < ACCEPTS && s->listener >= 0; i++) {
    int fd;
    lm_status status = lm_net_accept(s->listener, s->heartbeat_timeout, &fd);
    if (status != LM_OK) {
      if (!drop_oldest(s)) {
        listen_for(s, false);
        return;
      }
    } else if (fd < 0) {
      return;
    } else {
      if (s->pending.n >= s->most_pending) drop_oldest(s);
      admit(s, fd); /* without memory it is closed: it will come again */
    }
  }
}

void lm_server_close_listener(lm_server *s) {
  if (s->listener >= 0) close(s->listener);
  s->listener = -1;
  s->listen_at = 0;
  while (s->pending.first) lm_conn_drop(s, s->pending.first, LM_FAILURE_DIED, NULL);
}

/* ---- the loop */

static double sooner(double a, double b) { return b > 0 && b < a ? b : a; }

static int milliseconds_to_next(const lm_server *s) {
  double next = s->pulse_at;
  if (s->pending.first) next = sooner(next, s->pending.first->deadline);
  if (s->closing.first) next = sooner(next, s->closing.first->deadline);
  next = sooner(next, s->listen_at);
  next = sooner(next, s->silence_at);
  if (s->held.kind) next = sooner(next, s->held_until);
  double left = next - lm_seconds();
  return left <= 0 ? 0 : left >= 1 ? 1000 : (int)(left * 1000) + 1;
}

static void expire(lm_server *s, lm_conn_list *list) {
  while (list->first && list->first->deadline <= s->now) lm_conn_drop(s, list->first, LM_FAILURE_DIED, NULL);
}

static void keep_time(lm_server *s, bool released) {
  expire(s, &s->pending);
  expire(s, &s->closing);
  if (s->listener >= 0 && s->listen_at > 0 && s->listen_at <= s->now) listen_for(s, true);
  if (s->silence_at > 0 && s->silence_at <= s->now) lm_server_silence(s);
  if (s->pulse_at <= s->now) lm_server_pulse(s);
  if (s->held.kind && s->held_until <= s->now) lm_server_held(s);
  if (released) lm_server_abandoned(s);
}

static void rest(lm_server *s) {
  for (lm_conn_list *lists[] = {&s->pending, &s->members, &s->closing, &s->gone}, **l = lists; l < lists + 4; l++)
    while ((*l)->first) free_conn(s, (*l)->first);
  if (s->listener >= 0) close(s->listener);
  close(s->epoll);
  lm_server_free_keys(s);
  lm_server_free_seats(s);
}

static void let_go(lm_server *s) {
  if (atomic_fetch_sub(&s->references, 1) > 1) return;
  close(s->wake);
  lm_free(s);
}

static void *serve(void *arg) {
  lm_server *s = arg;
  struct epoll_event events[EVENTS];
  pthread_setname_np(pthread_self(), "lm-store");
  for (;;) {
    int patience = milliseconds_to_next(s);
    int n = epoll_wait(s->epoll, events, EVENTS, patience);
    double late = lm_seconds() - s->now - patience * 1e-3;
    s->now = lm_seconds();
    /* This process was stopped for a while: nobody is to blame for what it did not hear. */
    if (late > 0.5)
      for (lm_conn *c = s->members.first; c; c = c->next) c->heard += late;
    for (int i = 0; i < n; i++) {
      void *who = events[i].data.ptr;
      if (who == &s->listener) {
        accept_some(s);
      } else if (who == &s->wake) {
        lm_bell_silence(s->wake);
      } else {
        serve_conn(s, who, events[i].events);
      }
    }
    if (atomic_load(&s->stopped)) break;
    bool heard_all = n < EVENTS, released = atomic_load(&s->released);
    if (heard_all) keep_time(s, released);
    settle(s);
    if (heard_all && released && lm_server_over(s)) break;
  }
  lm_log(LM_LOG_DIST, "store %s ends", s->address);
  rest(s);
  pthread_mutex_lock(&all_lock);
  for (lm_server **p = &all; *p; p = &(*p)->next)
    if (*p == s) {
      *p = s->next;
      break;
    }
  let_go(s);
  pthread_cond_broadcast(&all_changed);
  pthread_mutex_unlock(&all_lock);
  return NULL;
}

/* ---- its owner's side */

static lm_status watch_for(int epoll, int fd, void *who) {
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = who};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? LM_OK : lm_fail(LM_E_IO, "store: epoll: %s", strerror(errno));
}

static lm_status run(lm_server *s) {
  pthread_t thread;
  int code = lm_thread_start(&thread, serve, s);
  if (code != 0) return lm_fail(LM_E_IO, "store: no thread: %s", strerror(code));
  pthread_detach(thread);
  return LM_OK;
}

lm_status lm_server_start(const lm_server_config *config, lm_server **out) {
  lm_status status = LM_OK;
  struct rlimit files = {.rlim_cur = 1024};
  *out = NULL;
  if (config->size < 1) return lm_fail(LM_E_ARG, "store: a world of %d; at least 1", config->size);
  lm_server *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->wake = s->epoll = s->listener = -1;
  s->seats = lm_calloc((size_t)config->size, sizeof *s->seats);
  if (!s->seats) TRY(LM_E_OOM);
  s->size = config->size;
  s->generation = config->generation;
  s->key = config->key;
  s->heartbeat_timeout = config->heartbeat_timeout;
  s->now = lm_seconds();
  s->pulse_at = s->now;
  /* Strays may have no more than half of the process's descriptors. */
  getrlimit(RLIMIT_NOFILE, &files);
  s->most_pending = files.rlim_cur / 2 < MOST_PENDING ? (int)(files.rlim_cur / 2) : MOST_PENDING;
  atomic_init(&s->references, 2);
  TRY(lm_net_listen(config->host, config->port, &s->listener, s->address));
  s->wake = lm_bell_new();
  s->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (s->wake < 0 || s->epoll < 0) TRY(lm_fail(LM_E_IO, "store: %s", strerror(errno)));
  TRY(watch_for(s->epoll, s->listener, &s->listener));
  TRY(watch_for(s->epoll, s->wake, &s->wake));
  pthread_mutex_lock(&all_lock);
  s->next = all;
  all = s;
  pthread_mutex_unlock(&all_lock);
  status = run(s);
  if (status != LM_OK) {
    pthread_mutex_lock(&all_lock);
    for (lm_server **p = &all; *p; p = &(*p)->next)
      if (*p == s) {
        *p = s->next;
        break;
      }
    pthread_mutex_unlock(&all_lock);
    goto done;
  }
  lm_log(LM_LOG_DIST, "store for %d ranks at %s", s->size, s->address);
  *out = s;
done:
  if (status != LM_OK) {
    if (s->listener >= 0) close(s->listener);
    if (s->epoll >= 0) close(s->epoll);
    if (s->wake >= 0) close(s->wake);
    lm_free(s->seats);
    lm_free(s);
  }
  return status;
}

const char *lm_server_address(const lm_server *s) { return s->address; }

void lm_server_release(lm_server *s) {
  if (!s) return;
  atomic_store(&s->released, true);
  lm_bell_ring(s->wake);
  let_go(s);
}

void lm_servers_finish(double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until = lm_timespec((double)until.tv_sec + (double)until.tv_nsec * 1e-9 + (seconds > 0 ? seconds : 0));
  pthread_mutex_lock(&all_lock);
  while (all && pthread_cond_timedwait(&all_changed, &all_lock, &until) == 0) {}
  for (lm_server *s = all; s; s = s->next) {
    atomic_store(&s->stopped, true);
    lm_bell_ring(s->wake);
  }
  while (all) pthread_cond_wait(&all_changed, &all_lock);
  pthread_mutex_unlock(&all_lock);
}
