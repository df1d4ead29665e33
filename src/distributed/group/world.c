#include "distributed/group/world.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/group/world_core.h"
#include "distributed/store/sigterm.h"

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static lm_world *all; /* the open worlds */

/* ---- forks and the end of the process */

static _Atomic unsigned forks;

/* Resets a forked child: it has no worlds, and its copy of the lock may be held by a thread that it lacks. */
static void forked(void) {
  atomic_fetch_add(&forks, 1);
  all = NULL;
  pthread_mutex_init(&all_lock, NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

unsigned lm_world_forks(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

lm_status lm_world_check_process(const lm_world *w) {
  if (w->forks == lm_world_forks()) return LM_OK;
  return lm_fail(LM_E_STATE,
                 "this process was forked after init_process_group(); only its parent can use the process group");
}

/* Returns pairs of group id and last seq completed in it; the caller frees them. */
static lm_bytes completed_calls(lm_world *w) {
  lm_bytes b = {0};
  LM_LOCKED(&w->lock);
  lm_put(&b, w->closed.data, w->closed.n);
  for (lm_group_core *core = w->groups; core; core = core->next) {
    lm_put_u32(&b, core->id);
    lm_put_u64(&b, atomic_load(&core->completed));
  }
  return b;
}

static void world_say_goodbye(lm_world *w) {
  lm_bytes completed = completed_calls(w);
  lm_client_leave(w->client, &completed);
  lm_bytes_free(&completed);
}

/* Leaves all worlds of a process that ends without closing them. Frees nothing, since other threads may still run. A
 * second call does nothing. */
bool lm_group_shutdown(void) {
  bool failed = false;
  pthread_mutex_lock(&all_lock);
  for (lm_world *w = all; w; w = w->next) {
    failed |= lm_client_cause(w->client) != NULL;
    world_say_goodbye(w);
    lm_locator_withdraw(&w->locator, &w->at);
    lm_server_release(w->server);
    w->server = NULL;
  }
  pthread_mutex_unlock(&all_lock);
  if (lm_world_forks() == 0) lm_servers_finish(5);
  return failed;
}

__attribute__((destructor)) static void shutdown_time(void) { lm_group_shutdown(); }

/* ---- opening and closing */

static void world_count_local_ranks(lm_world *w) {
  const char *host = lm_client_member(w->client, w->rank)->host_id;
  for (int r = 0; r < w->size; r++) {
    bool same = strcmp(lm_client_member(w->client, r)->host_id, host) == 0;
    w->local_size += same;
    w->local_rank += same && r < w->rank;
  }
  atomic_store(&w->incoming.one_host, w->local_size == w->size);
  w->may_spin = w->local_size <= sysconf(_SC_NPROCESSORS_ONLN);
}

static void dispose(lm_world *w) {
  if (w->client) world_say_goodbye(w);
  lm_client_free(w->client);
  lm_link_listener_close(&w->incoming);
  lm_locator_withdraw(&w->locator, &w->at);
  lm_server_release(w->server);
  lm_bytes_free(&w->closed);
  pthread_mutex_destroy(&w->lock);
  lm_free(w);
}

static lm_status check_config(const lm_world_config *c) {
  if (c->size < 1) return lm_fail_int("init_process_group", "world_size", "at least 1", c->size);
  if (c->rank < 0 || c->rank >= c->size) return lm_fail_rank("init_process_group", c->rank, c->size);
  if (!(c->timeout > 0)) return lm_fail_number("init_process_group", "timeout", "more than 0 seconds", c->timeout);
  if (!(c->heartbeat_timeout >= 0))
    return lm_fail_number("init_process_group", "heartbeat_timeout", "at least 0 seconds (0: none)",
                          c->heartbeat_timeout);
  return LM_OK;
}

lm_status lm_world_open(const lm_world_config *config, lm_world **out) {
  lm_status status = LM_OK;
  lm_world *w = NULL;
  *out = NULL;
  TRY(check_config(config));
  TRY(lm_sigterm_watch());
  w = lm_calloc(1, sizeof *w);
  if (!w) {
    lm_sigterm_unwatch();
    return LM_E_OOM;
  }
  pthread_mutex_init(&w->lock, NULL);
  w->rank = config->rank;
  w->size = config->size;
  w->timeout = config->timeout;
  w->heartbeat_timeout = config->heartbeat_timeout;
  w->forks = lm_world_forks();
  lm_sigterm_wait_begins();
  status = lm_rendezvous(w, config);
  if (status != LM_OK) lm_sigterm_failed();
  lm_sigterm_wait_ends();
  if (status != LM_OK) goto done;
  world_count_local_ranks(w);
  if (w->server) lm_sigterm_stores(1);
  pthread_mutex_lock(&all_lock);
  w->next = all;
  all = w;
  pthread_mutex_unlock(&all_lock);
  *out = w;

done:
  if (status != LM_OK) {
    status = lm_fail_in(status, "init_process_group");
    if (w) {
      lm_saved_error saved;
      lm_error_save(status, &saved);
      dispose(w);
      lm_sigterm_unwatch();
      lm_error_restore(&saved);
    }
  }
  return status;
}

void lm_world_close(lm_world *w) {
  if (!w || w->forks != lm_world_forks()) return;
  pthread_mutex_lock(&all_lock);
  LM_UNLINK(all, w);
  pthread_mutex_unlock(&all_lock);
  if (w->server) lm_sigterm_stores(-1);
  dispose(w);
  lm_sigterm_unwatch();
}

int lm_world_local_rank(const lm_world *w) { return w->local_rank; }
const char *lm_world_host(const lm_world *w, int rank) { return lm_client_member(w->client, rank)->host; }
