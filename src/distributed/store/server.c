#include "distributed/store/server.h"

#include <sys/resource.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/store/server_private.h"

enum { EVENTS = 256, MAX_HANDSHAKES = 1024 };

/* List of all servers of the process, whose threads end by themselves. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_changed = PTHREAD_COND_INITIALIZER;
static lm_server *all;

/* ---- the loop */

static double earlier(double a, double b) { return b > 0 && b < a ? b : a; }

static double server_seconds_to_next(const lm_server *s) {
  double next = earlier(s->pulse_at, lm_acceptor_deadline(&s->acceptor));
  if (s->joining.first) next = earlier(next, s->joining.first->deadline);
  if (s->closing.first) next = earlier(next, s->closing.first->deadline);
  next = earlier(next, s->silence_at);
  if (s->held.kind) next = earlier(next, s->held_until);
  double left = next - lm_seconds();
  return left <= 0 ? 0 : left >= 1 ? 1 : left;
}

static void server_expire(lm_server *s, lm_conn_list *list) {
  while (list->first && list->first->deadline <= s->now) lm_conn_drop(s, list->first, LM_FAILURE_DIED, NULL);
}

static void server_keep_time(lm_server *s, bool released) {
  lm_acceptor_keep_time(&s->acceptor, s->now);
  server_expire(s, &s->joining);
  server_expire(s, &s->closing);
  if (s->silence_at > 0 && s->silence_at <= s->now) lm_server_check_silent(s);
  if (s->pulse_at <= s->now) lm_server_send_heartbeat(s);
  if (s->held.kind && s->held_until <= s->now) lm_server_publish_held(s);
  if (released) lm_server_abandoned(s);
}

static void server_dispose(lm_server *s) {
  for (lm_conn_list *lists[] = {&s->joining, &s->members, &s->closing, &s->gone}, **l = lists; l < lists + 4; l++)
    while ((*l)->first) lm_conn_free(s, (*l)->first);
  lm_acceptor_close(&s->acceptor);
  lm_server_free_keys(s);
  lm_server_free_members(s);
}

static void server_let_go(lm_server *s) {
  if (atomic_fetch_sub(&s->references, 1) > 1) return;
  lm_loop_close(&s->loop);
  lm_free(s);
}

static void *server_run(void *arg) {
  lm_server *s = arg;
  for (;;) {
    double deadline = server_seconds_to_next(s);
    int n = lm_loop_wait(&s->loop, deadline, EVENTS);
    double late = lm_seconds() - s->now - deadline;
    s->now = lm_seconds();
    /* This process was stopped for `late` seconds, in which members' silence does not count. */
    if (late > 0.5)
      for (lm_conn *c = s->members.first; c; c = c->next) c->heard += late;
    lm_loop_dispatch(&s->loop);
    if (atomic_load(&s->stopped)) break;
    bool heard_all = n < EVENTS, released = atomic_load(&s->released);
    if (heard_all) server_keep_time(s, released);
    lm_conns_reap(s);
    if (heard_all && released && lm_server_is_done(s)) break;
  }
  lm_log(LM_LOG_DIST, "store %s ends", s->address);
  server_dispose(s);
  LM_LOCKED(&all_lock);
  LM_UNLINK(all, s);
  server_let_go(s);
  pthread_cond_broadcast(&all_changed);
  return NULL;
}

/* ---- the owner's side */

lm_status lm_server_start(const lm_server_config *config, lm_server **out) {
  lm_status status = LM_OK;
  struct rlimit files = {.rlim_cur = 1024};
  int listener = -1;
  *out = NULL;
  if (config->size < 1) return lm_fail_int("store", "world_size", "at least 1", config->size);
  lm_server *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->loop.epoll = s->loop.wakeup_fd = -1;
  s->acceptor = (lm_acceptor){.watch.fd = -1,
                              .loop = &s->loop,
                              .key = &s->key,
                              .dead_after = config->heartbeat_timeout,
                              .accepted = lm_server_admit,
                              .ctx = s};
  s->member_table = lm_calloc((size_t)config->size, sizeof *s->member_table);
  if (!s->member_table) TRY(LM_E_OOM);
  s->size = config->size;
  s->generation = config->generation;
  s->key = config->key;
  s->heartbeat_timeout = config->heartbeat_timeout;
  s->now = lm_seconds();
  s->pulse_at = s->now;
  /* Handshakes get at most half of the process's descriptors. */
  getrlimit(RLIMIT_NOFILE, &files);
  s->acceptor.most = files.rlim_cur / 2 < MAX_HANDSHAKES ? (int)(files.rlim_cur / 2) : MAX_HANDSHAKES;
  atomic_init(&s->references, 2);
  TRY(lm_loop_open(&s->loop));
  TRY(lm_net_listen(config->host, config->port, &listener, s->address));
  TRY(lm_acceptor_listen(&s->acceptor, listener));
  listener = -1;
  pthread_mutex_lock(&all_lock);
  s->next = all;
  all = s;
  pthread_mutex_unlock(&all_lock);
  status = lm_thread_start_detached("lm-store", server_run, s);
  if (status != LM_OK) {
    pthread_mutex_lock(&all_lock);
    LM_UNLINK(all, s);
    pthread_mutex_unlock(&all_lock);
    goto done;
  }
  lm_log(LM_LOG_DIST, "store for %d ranks at %s", s->size, s->address);
  *out = s;
done:
  if (status != LM_OK) {
    if (listener >= 0) close(listener);
    lm_acceptor_close(&s->acceptor);
    lm_loop_close(&s->loop);
    lm_free(s->member_table);
    lm_free(s);
  }
  return status;
}

const char *lm_server_address(const lm_server *s) { return s->address; }

void lm_server_release(lm_server *s) {
  if (!s) return;
  atomic_store(&s->released, true);
  lm_loop_wake(&s->loop);
  server_let_go(s);
}

void lm_servers_finish(double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until = lm_timespec((double)until.tv_sec + (double)until.tv_nsec * 1e-9 + (seconds > 0 ? seconds : 0));
  LM_LOCKED(&all_lock);
  while (all && pthread_cond_timedwait(&all_changed, &all_lock, &until) == 0) {}
  for (lm_server *s = all; s; s = s->next) {
    atomic_store(&s->stopped, true);
    lm_loop_wake(&s->loop);
  }
  while (all) pthread_cond_wait(&all_changed, &all_lock);
}
