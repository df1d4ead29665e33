/* Runs calls at once, or on the group's own thread in the order in which they were made. */
#include <math.h>

#include "base/clock.h"
#include "base/interned.h"
#include "base/log.h"
#include "base/message.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "distributed/group/call.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/enqueued_calls.h"

static lm_status work_run_call(lm_exchange *c) {
  lm_waiting waiting;
  if (lm_log_on(LM_LOG_DIST))
    lm_log(LM_LOG_DIST, "group %u call %llu: %s", c->core->id, (unsigned long long)c->ticket.seq, c->ticket.what);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_call_trace(&span, c, LM_NO_DEVICE);
  lm_waiting_begin(&waiting, LM_WAITING_UNTIL_DONE, c->core, &c->ticket, c->timeout);
  lm_status status = lm_call_dispatch(c);
  lm_waiting_end(&waiting, status == LM_OK);
  status = lm_call_written(c, status);
  if (traced) lm_span_end(&span);
  /* LM_E_OOM would cause a retry, but the other ranks are past this call. */
  return status == LM_E_OOM ? LM_E_STATE : status;
}

/* ---- waiting */

/* Returns the peer, which an enqueued receive knows before it is done, since NCCL cannot receive from any rank. */
int lm_work_peer(const lm_work *w) { return w->issuer || lm_work_is_done(w) ? w->peer : -1; }
bool lm_work_done(lm_work *w) { return lm_is_p2p(w) && !w->issuer ? lm_p2p_done(w) : lm_work_is_done(w); }

static lm_status wait_for(lm_work *w, double seconds) {
  if (w->issuer) return lm_issued_wait(w, seconds);
  if (lm_is_p2p(w)) return lm_p2p_wait(w, seconds);
  lm_queue *q = w->queue;
  double until = seconds < 0 ? INFINITY : lm_seconds() + seconds;
  pthread_mutex_lock(&q->lock);
  while (!lm_work_is_done(w) && lm_cond_wait_until(&q->finished, &q->lock, until)) continue;
  pthread_mutex_unlock(&q->lock);
  if (lm_work_is_done(w)) return lm_work_outcome(w);
  return lm_fail_wait(w->exchange.ticket.what, seconds);
}

lm_status lm_work_wait(lm_work *w, double seconds) {
  lm_span span;
  if (!lm_traces(LM_TRACE_CALLS)) return wait_for(w, seconds);
  const char *name = lm_interned(lm_text("%s: wait", lm_collective_name(w->exchange.call.kind)));
  lm_span_begin(&span, LM_SPAN_WAIT, name ? name : "wait", LM_NO_DEVICE);
  lm_status status = wait_for(w, seconds);
  lm_span_end(&span);
  return status;
}

/* ---- the queue and its thread */

static void *work_serve(void *arg) {
  lm_queue *q = arg;
  lm_set_thread_limit(1); /* one thread suffices to copy results */
  pthread_mutex_lock(&q->lock);
  for (;;) {
    while (!q->first && !q->closing) pthread_cond_wait(&q->more, &q->lock);
    lm_work *w = q->first;
    if (!w) break;
    q->first = w->next;
    if (!q->first) q->last = NULL;
    pthread_mutex_unlock(&q->lock);

    lm_world *world = w->exchange.core->world;
    lm_set_where(w->exchange.ticket.where);
    lm_set_script_line(w->exchange.line);
    lm_status status = world ? lm_world_check(world) : LM_OK;
    if (status == LM_OK) {
      lm_busy_threads(1);
      status = work_run_call(&w->exchange);
      lm_busy_threads(-1);
    } else {
      lm_fail_in(status, lm_collective_name(w->exchange.call.kind));
    }

    pthread_mutex_lock(&q->lock);
    lm_work_finish(w, status);
    q->pending--;
    pthread_cond_broadcast(&q->finished);
    pthread_mutex_unlock(&q->lock);
    lm_work_release(w);
    pthread_mutex_lock(&q->lock);
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

static bool work_idle(lm_queue *q) {
  if (!q) return true;
  LM_LOCKED(&q->lock);
  return q->pending == 0;
}

lm_status lm_call_send(lm_exchange *c, lm_work **work) {
  lm_status status;
  lm_group_core *core = c->core;
  lm_queue *q = NULL;
  lm_work *w = NULL;
  if (c->part->issuer) return lm_issue(c, work);
  if (!work && work_idle(core->queue)) {
    c->ticket.seq = atomic_fetch_add(&core->seq, 1) + 1;
    status = work_run_call(c);
    lm_call_clear(c);
    return status;
  }
  /* Everything that can fail comes before the seq is assigned, so a failed call was never made. */
  status = lm_group_queue_get(core, &q);
  if (status == LM_OK) status = lm_queue_thread(q, &q->started, &q->thread, work_serve);
  if (status != LM_OK) {
    lm_call_clear(c);
    return status;
  }
  TRY(lm_work_new(q, NULL, c, &w));
  atomic_fetch_add(&w->rc, 1); /* the queue's and the caller's */
  pthread_mutex_lock(&q->lock);
  w->exchange.ticket.seq = atomic_fetch_add(&core->seq, 1) + 1;
  if (q->last) {
    q->last->next = w;
  } else {
    q->first = w;
  }
  q->last = w;
  q->pending++;
  pthread_cond_signal(&q->more);
  pthread_mutex_unlock(&q->lock);
  if (work) {
    *work = w;
    return LM_OK;
  }
  status = lm_work_wait(w, -1);
done:
  lm_work_release(w);
  return status;
}

static void end_thread(lm_queue *q, bool *flag, pthread_cond_t *cond, bool started, pthread_t thread) {
  pthread_mutex_lock(&q->lock);
  *flag = true;
  pthread_cond_signal(cond);
  pthread_mutex_unlock(&q->lock);
  if (started) pthread_join(thread, NULL);
}

void lm_queue_close(lm_group_core *core) {
  lm_queue *q = core->queue;
  if (!q) return;
  end_thread(q, &q->closing, &q->more, q->started, q->thread);
  end_thread(q, &q->arrived, &q->posting, q->carrying, q->carrier); /* second: queued calls may need it */
  lm_p2p_close(q);
  core->queue = NULL;
  lm_queue_release(q);
}
