/* Runs calls at once, or on the group's own thread in the order in which they were made. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/interned.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "distributed/group/call.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/enqueued_calls.h"
#include "op/op.h"
#include "op_entries.h"

/* Multiplies t by factor, if the backend cannot; 0 yields zeros, also for inf and NaN. */
static lm_status work_scale(lm_tensor *t, double factor) {
  lm_status status = LM_OK;
  lm_tensor *number = NULL, *same = NULL;
  if (factor == 1) return LM_OK;
  if (factor != 0 && LM_DEVICE_KIND(t->device) == LM_CPU) {
    lm_reduce_scale(t->dtype, t->data, (size_t)t->numel, factor);
    return LM_OK;
  }
  TRY(lm_tensor_number(factor, &number));
  if (factor == 0) {
    TRY(lm_op_run(LM_OP_fill_, &(lm_fill__args){.x = t, .value = number}, &same));
  } else {
    TRY(lm_op_run_inplace(LM_OP_mul, &(lm_mul_args){.x = t, .other = number}, &same));
  }
done:
  lm_release(same);
  lm_release(number);
  return status;
}

static lm_status work_all_reduce_scaled(const lm_exchange *c) {
  const lm_group_table *table = c->g->table;
  if (table->all_reduce_scaled && c->scale != 0) return table->all_reduce_scaled(c->g, c->t, c->scale);
  NEED(work_scale(c->t, c->scale));
  /* A rank with zeros must call the same function as the other ranks. */
  return table->all_reduce_scaled ? table->all_reduce_scaled(c->g, c->t, 1)
                                  : table->all_reduce(c->g, c->t, LM_REDUCE_SUM);
}

lm_status lm_call_dispatch(const lm_exchange *c) {
  lm_group *g = c->g;
  const lm_group_table *table = g->table;
  lm_request *none = NULL;
  if (c->empty && !table->barrier)
    return lm_fail(LM_E_MISSING, "backend '%s' has no barrier, which calls on empty tensors need", table->name);
  if (c->empty) return table->barrier(g);
  switch (c->kind) {
    case LM_ALL_REDUCE: return c->scaled ? work_all_reduce_scaled(c) : table->all_reduce(g, c->t, c->op);
    case LM_BROADCAST: return table->broadcast(g, c->t, c->root);
    case LM_REDUCE: return table->reduce(g, c->t, c->root, c->op);
    case LM_ALL_GATHER: return table->all_gather(g, c->t, c->out);
    case LM_GATHER: return table->gather(g, c->t, c->root, c->out);
    case LM_SCATTER: return table->scatter(g, c->t, c->root, c->in);
    case LM_REDUCE_SCATTER: return table->reduce_scatter(g, c->t, c->in, c->op);
    case LM_ALL_TO_ALL: return table->all_to_all(g, c->in, c->out);
    case LM_BARRIER: return table->all_reduce(g, c->t, LM_REDUCE_SUM); /* an enqueued one: see make_barrier */
    case LM_SEND:
    case LM_RECV: return table->post(g, c->kind == LM_SEND, c->t, c->peer, c->tag, &none);
    default: return lm_fail(LM_E_ARG, "%s is not a collective", lm_collective_name(c->kind));
  }
}

static lm_status work_run_call(lm_exchange *c) {
  lm_waiting waiting;
  if (lm_log_on(LM_LOG_DIST))
    lm_log(LM_LOG_DIST, "group %u call %llu: %s", c->core->id, (unsigned long long)c->ticket.seq, c->ticket.what);
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_call_trace(&span, c, LM_NO_DEVICE);
  lm_waiting_begin(&waiting, c->core, &c->ticket, c->timeout);
  lm_status status = lm_call_dispatch(c);
  lm_waiting_end(&waiting, status == LM_OK);
  status = lm_call_written(c, status);
  if (traced) lm_span_end(&span);
  /* LM_E_OOM would cause a retry, but the other ranks are past this call. */
  return status == LM_E_OOM ? LM_E_STATE : status;
}

/* ---- works */

lm_status lm_work_new(lm_queue *q, lm_issuer *issuer, lm_exchange *c, lm_work **out) {
  lm_work *w = lm_calloc(1, sizeof *w);
  *out = w;
  if (!w) {
    lm_call_clear(c);
    return LM_E_OOM;
  }
  atomic_init(&w->rc, 1);
  if (q) atomic_fetch_add_explicit(&q->rc, 1, memory_order_relaxed);
  if (issuer) lm_issuer_retain(issuer);
  w->queue = q;
  w->issuer = issuer;
  w->peer = -1;
  w->call = *c;
  return LM_OK;
}

void lm_work_finish(lm_work *w, lm_status status) {
  lm_error_save(status, &w->outcome);
  lm_call_clear(&w->call);
  atomic_store_explicit(&w->done, true, memory_order_release);
}

lm_status lm_work_outcome(const lm_work *w) { return lm_error_restore(&w->outcome); }

static bool drops_to_zero(_Atomic int *rc) { return atomic_fetch_sub_explicit(rc, 1, memory_order_acq_rel) == 1; }

static void release_queue(lm_queue *q) {
  if (!q || !drops_to_zero(&q->rc)) return;
  pthread_cond_destroy(&q->more);
  pthread_cond_destroy(&q->posting);
  pthread_cond_destroy(&q->finished);
  pthread_mutex_destroy(&q->lock);
  lm_free(q);
}

void lm_work_release(lm_work *w) {
  if (!w || !drops_to_zero(&w->rc)) return;
  lm_call_clear(&w->call);
  lm_event_free(w->event);
  release_queue(w->queue);
  lm_issuer_release(w->issuer);
  lm_free(w);
}

/* An enqueued receive knows its peer before it is done, since NCCL cannot receive from any rank. */
int lm_work_peer(const lm_work *w) { return w->issuer || lm_work_is_done(w) ? w->peer : -1; }
bool lm_work_done(lm_work *w) { return lm_is_p2p(w) && !w->issuer ? lm_p2p_done(w) : lm_work_is_done(w); }

static lm_status wait_for(lm_work *w, double seconds) {
  if (w->issuer) return lm_issued_wait(w, seconds);
  if (lm_is_p2p(w)) return lm_p2p_wait(w, seconds);
  lm_queue *q = w->queue;
  double until = seconds < 0 ? INFINITY : lm_seconds() + seconds;
  struct timespec deadline = {.tv_sec = (time_t)until};
  deadline.tv_nsec = (long)((until - (double)deadline.tv_sec) * 1e9);
  pthread_mutex_lock(&q->lock);
  while (!lm_work_is_done(w) && lm_cond_wait_until(&q->finished, &q->lock, until)) continue;
  pthread_mutex_unlock(&q->lock);
  if (lm_work_is_done(w)) return lm_work_outcome(w);
  return lm_fail_wait(w->call.ticket.what, seconds);
}

lm_status lm_work_wait(lm_work *w, double seconds) {
  lm_span span;
  if (!lm_traces(LM_TRACE_CALLS)) return wait_for(w, seconds);
  const char *name = lm_interned(lm_text("%s: wait", lm_collective_name(w->call.kind)));
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

    lm_world *world = w->call.core->world;
    lm_set_where(w->call.ticket.where);
    lm_set_script_line(w->call.line);
    lm_status status = world ? lm_world_check(world) : LM_OK;
    if (status == LM_OK) {
      lm_busy_threads(1);
      status = work_run_call(&w->call);
      lm_busy_threads(-1);
    } else {
      lm_fail_in(status, lm_collective_name(w->call.kind));
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

lm_status lm_queue_thread(lm_queue *q, bool *started, pthread_t *thread, void *(*run)(void *queue)) {
  lm_status status = *started ? LM_OK : lm_thread_start(thread, run, q);
  *started = status == LM_OK;
  return status;
}

lm_status lm_queue_of(lm_group_core *core, lm_queue **out) {
  lm_status status = LM_OK;
  pthread_mutex_lock(&core->lock);
  lm_queue *q = core->queue;
  if (!q) {
    q = lm_calloc(1, sizeof *q);
    if (!q) TRY(LM_E_OOM);
    atomic_init(&q->rc, 1);
    pthread_mutex_init(&q->lock, NULL);
    lm_cond_init(&q->more);
    lm_cond_init(&q->posting);
    lm_cond_init(&q->finished);
    core->queue = q;
  }
done:
  pthread_mutex_unlock(&core->lock);
  *out = q;
  return status;
}

static bool work_idle(lm_queue *q) {
  if (!q) return true;
  pthread_mutex_lock(&q->lock);
  bool yes = q->pending == 0;
  pthread_mutex_unlock(&q->lock);
  return yes;
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
  status = lm_queue_of(core, &q);
  if (status == LM_OK) status = lm_queue_thread(q, &q->started, &q->thread, work_serve);
  if (status != LM_OK) {
    lm_call_clear(c);
    return status;
  }
  TRY(lm_work_new(q, NULL, c, &w));
  atomic_fetch_add(&w->rc, 1); /* the queue's and the caller's */
  pthread_mutex_lock(&q->lock);
  w->call.ticket.seq = atomic_fetch_add(&core->seq, 1) + 1;
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
  release_queue(q);
}
