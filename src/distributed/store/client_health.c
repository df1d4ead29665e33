/* Records the cause of the job's failure and the ranks that have left, and reports this rank's calls to the store. */

#include "base/clock.h"
#include "base/thread.h"
#include "distributed/store/client_core.h"

unsigned lm_client_news(const lm_client *c) { return atomic_load_explicit(&c->news, memory_order_acquire); }

int lm_client_wake_fd(const lm_client *c) { return c->wake; }

void lm_client_take_cause(lm_client *c, const lm_failure *failure) {
  if (lm_client_cause(c)) return;
  c->cause = *failure;
  atomic_store_explicit(&c->failed, true, memory_order_release);
  atomic_fetch_add(&c->news, 1);
  lm_wakeup_fd_signal(c->wake);
  pthread_cond_broadcast(&c->changed);
}

const lm_failure *lm_client_fail(lm_client *c, const lm_failure *failure, double seconds) {
  double until = lm_seconds() + seconds;
  LM_LOCKED(&c->lock);
  if (!lm_client_cause(c) && lm_client_is_connected(c)) {
    size_t at = lm_client_begin(c, LM_M_FAIL);
    lm_put_failure(&c->stream.out, failure);
    if (lm_client_end(c, at) == LM_OK)
      while (!lm_client_cause(c) && lm_client_is_connected(c) && lm_seconds() < until) lm_client_wait_briefly(c, until);
  }
  lm_client_take_cause(c, failure);
  return &c->cause;
}

const lm_failure *lm_client_await(lm_client *c, unsigned news, double seconds) {
  double until = lm_seconds() + seconds;
  pthread_mutex_lock(&c->lock);
  while (!lm_client_cause(c) && lm_client_news(c) == news && lm_seconds() < until) lm_client_wait_briefly(c, until);
  pthread_mutex_unlock(&c->lock);
  return lm_client_cause(c);
}

void lm_client_note_left(lm_client *c, lm_reader *r) {
  uint32_t rank = lm_get_u32(r), n = lm_get_u32(r);
  if (rank >= (uint32_t)c->size || c->left[rank].gone || (size_t)n * 12 > (size_t)(r->end - r->at)) {
    r->failed = true;
    return;
  }
  lm_departure *d = &c->left[rank];
  lm_put(&d->completed, r->at, (size_t)n * 12);
  r->at += (size_t)n * 12;
  d->group = lm_get_u32(r);
  lm_get_ticket(r, &d->last);
  if (r->failed) return;
  d->gone = true;
  d->at = lm_seconds();
  atomic_fetch_add(&c->news, 1);
}

bool lm_client_left(lm_client *c, int rank, uint32_t group, double *at, uint64_t *completed, lm_ticket *last) {
  LM_LOCKED(&c->lock);
  const lm_departure *d = &c->left[rank];
  bool gone = d->gone;
  *completed = 0;
  if (gone) {
    *at = d->at;
    *last = d->last;
    lm_reader r = lm_reader_of(d->completed.data, d->completed.n);
    while (r.at < r.end) {
      uint32_t id = lm_get_u32(&r);
      uint64_t seq = lm_get_u64(&r);
      if (id == group) *completed = seq;
    }
  }
  return gone;
}

void lm_client_entered(lm_client *c, uint32_t group, const lm_ticket *ticket) {
  LM_LOCKED(&c->lock);
  c->entered_group = group;
  c->entered = *ticket;
  c->moved = true;
}

void lm_client_passed(lm_client *c, uint32_t group, const lm_ticket *ticket) {
  LM_LOCKED(&c->lock);
  unsigned i = c->npassed++ % (sizeof c->passed / sizeof *c->passed);
  c->passed[i].group = group;
  c->passed[i].ticket = *ticket;
}

void lm_client_waiting(lm_client *c, uint32_t group, const lm_ticket *ticket) {
  LM_LOCKED(&c->lock);
  if (lm_client_is_connected(c)) lm_client_report(c, LM_M_WAITING, group, ticket); /* no store: no report */
}

void lm_client_resumed(lm_client *c, uint32_t group, uint64_t seq) {
  LM_LOCKED(&c->lock);
  if (lm_client_is_connected(c)) { /* without a store, lm_client_end would overwrite a failed call's message */
    size_t at = lm_client_begin(c, LM_M_RESUMED);
    lm_put_u32(&c->stream.out, group);
    lm_put_u64(&c->stream.out, seq);
    lm_client_end(c, at);
  }
}
