/* Runs sends and receives: `post` starts them, and threads that wait for or test them drive them. Otherwise a thread of
 * the queue does, the carrier, since a peer may need the data before it reaches the call this rank waits in. */

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "distributed/group/call.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/enqueued_calls.h"

static const double shutdown_time = 5; /* seconds to complete sends when the group closes */
static const double tick = 2e-3;       /* seconds between the carrier's tests */

/* ---- one test of or wait for a request */

static lm_status p2p_finish_request(lm_work *w, bool wait, bool *done) {
  lm_group_core *core = w->exchange.core;
  lm_group *g = w->exchange.g;
  lm_waiting waiting;
  lm_status status = core->world ? lm_world_check(core->world) : LM_OK;
  if (status != LM_OK) return lm_fail_in(status, lm_collective_name(w->exchange.call.kind));
  lm_waiting_begin(&waiting, wait ? LM_WAITING_UNTIL_DONE : LM_WAITING_FOR_A_TEST, core, &w->exchange.ticket,
                   w->exchange.timeout);
  if (w->exchange.call.peer >= 0) waiting.peer = w->exchange.call.peer;
  status = g->table->finish(g, w->request, wait, done, &w->peer);
  lm_waiting_end(&waiting, status == LM_OK && *done);
  return status;
}

static void p2p_forget(lm_work *w) {
  lm_group *g = w->exchange.g;
  g->table->forget(g, w->request);
  w->request = NULL;
}

/* Tests or waits for w's request, and finishes w if it is done or failed. Only for the thread that claimed w. */
static void p2p_step(lm_work *w, bool wait) {
  bool done = false;
  lm_status status = p2p_finish_request(w, wait, &done);
  if (status == LM_OK && !done) return;
  status = lm_call_written(&w->exchange, status);
  p2p_forget(w);
  lm_work_finish(w, status == LM_E_OOM ? LM_E_STATE : status); /* no retry: the message is lost */
}

/* Waits until no other thread drives w and marks it busy; false if it is done instead. */
static bool p2p_claim(lm_work *w) {
  lm_queue *q = w->queue;
  LM_LOCKED(&q->lock);
  while (w->busy && !lm_work_is_done(w)) pthread_cond_wait(&q->finished, &q->lock);
  bool mine = !lm_work_is_done(w);
  if (mine) w->busy = true;
  return mine;
}

/* Ends the claim; if w is done, removes it from the queue, with its reference. */
static void p2p_unclaim(lm_work *w) {
  lm_queue *q = w->queue;
  bool done = lm_work_is_done(w);
  pthread_mutex_lock(&q->lock);
  w->busy = false;
  if (done) LM_UNLINK(q->posted, w);
  pthread_cond_broadcast(&q->finished);
  pthread_mutex_unlock(&q->lock);
  if (done) lm_work_release(w);
}

/* ---- waiting and testing */

bool lm_p2p_done(lm_work *w) {
  if (!lm_work_is_done(w) && p2p_claim(w)) {
    p2p_step(w, false);
    p2p_unclaim(w);
  }
  return lm_work_is_done(w);
}

lm_status lm_p2p_wait(lm_work *w, double seconds) {
  if (lm_work_is_done(w)) return lm_work_outcome(w);
  if (seconds < 0 || seconds >= w->exchange.timeout) {
    if (p2p_claim(w)) {
      p2p_step(w, true);
      p2p_unclaim(w);
    }
    return lm_work_outcome(w);
  }
  /* Tests in a loop rather than waiting in the backend, since running out of `seconds` must not fail the job. */
  double until = lm_seconds() + seconds, rest = 20e-6;
  while (!lm_p2p_done(w)) {
    if (lm_seconds() >= until) return lm_fail_wait(w->exchange.ticket.what, seconds);
    lm_group_pause(&w->exchange.core->g, rest);
    if (rest < 1e-3) rest *= 2;
  }
  return lm_work_outcome(w);
}

/* ---- the carrier */

/* Returns a work for the carrier; NULL if a thread drives any work, since that advances all of them. */
static lm_work *unclaimed_work(lm_queue *q) {
  for (lm_work *w = q->posted; w; w = w->next)
    if (w->busy) return NULL;
  return q->posted;
}

static void *p2p_carry(void *arg) {
  lm_queue *q = arg;
  lm_set_thread_limit(1);
  pthread_mutex_lock(&q->lock);
  while (!q->arrived) {
    if (!q->posted) {
      pthread_cond_wait(&q->posting, &q->lock);
      continue;
    }
    lm_cond_wait_until(&q->posting, &q->lock, lm_seconds() + tick); /* the poster usually waits soon itself */
    lm_work *w = q->arrived ? NULL : unclaimed_work(q);
    if (!w) continue;
    w->busy = true;
    pthread_mutex_unlock(&q->lock);
    p2p_step(w, false);
    p2p_unclaim(w);
    pthread_mutex_lock(&q->lock);
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

void lm_p2p_close(lm_queue *q) {
  double until = lm_seconds() + shutdown_time, rest = 20e-6;
  for (bool sending = true; sending && lm_seconds() < until;) {
    lm_group *g = NULL;
    sending = false;
    for (lm_work *w = q->posted, *next; w; w = next) {
      next = w->next;
      g = &w->exchange.core->g;
      if (w->exchange.call.kind != LM_SEND) continue;
      atomic_fetch_add(&w->rc, 1); /* the queue's may be the last reference */
      sending |= !lm_p2p_done(w);
      lm_work_release(w);
    }
    if (sending) lm_group_pause(g, rest);
    if (rest < 1e-3) rest *= 2;
  }
  while (q->posted) {
    lm_work *w = q->posted;
    p2p_forget(w);
    lm_work_finish(w, lm_fail(LM_E_STATE, "%s: the group was closed before it was done", w->exchange.ticket.what));
    p2p_unclaim(w);
  }
}

/* ---- starting */

/* Makes the one-byte tensor that is sent for an empty one: peers match calls in order, so none may be left out. */
static lm_status new_byte_tensor(const lm_exchange *c, const lm_tensor *t, lm_tensor **out) {
  return lm_tensor_empty(LM_U8, lm_call_device(c, t->device), 1, (int64_t[]){1}, LM_CONTIGUOUS, out);
}

static lm_status p2p_prepare(lm_exchange *c, lm_group *g, const lm_group_call *call) {
  bool sending = call->kind == LM_SEND;
  int peer = call->peer, tag = call->tag;
  lm_tensor *t = call->t;
  const char *name = lm_collective_name(call->kind);
  NEED(lm_call_begin(c, g, call));
  if (sending || peer != -1) NEED(lm_call_check_rank(c, peer));
  if (c->part->issuer && peer < 0)
    NEED(lm_fail(LM_E_ARG, "%s: src is required; backend '%s' cannot receive from any rank", name, c->g->table->name));
  if (peer == g->rank)
    NEED(lm_fail_value(name, sending ? "dst" : "src", "another rank",
                       lm_text("%d, this rank", lm_call_world_rank(c, peer))));
  if (tag < 0) NEED(lm_fail_int(name, "tag", "at least 0", tag));
  NEED(lm_call_check(c, t, !sending));
  NEED(t->numel == 0 ? new_byte_tensor(c, t, &c->call.t)
       : sending     ? lm_call_read(c, t, &c->call.t)
                     : lm_call_write(c, t, false, &c->call.t));
  lm_call_name(c, t);
  return LM_OK;
}

/* Begins a trace span if calls are traced. */
static bool p2p_trace(lm_span *span, const lm_exchange *c) {
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_call_trace(span, c, LM_NO_DEVICE);
  return traced;
}

/* Starts a send or receive; `alone`: the caller does not drive it, so the carrier must. Takes c's contents over. */
static lm_status p2p_post(lm_exchange *c, bool alone, lm_work **out) {
  lm_status status;
  lm_waiting waiting;
  lm_queue *q = NULL;
  lm_work *w = NULL;
  lm_group *g = c->g;
  TRY(lm_group_queue_get(c->core, &q));
  if (alone) TRY(lm_queue_thread(q, &q->carrying, &q->carrier, p2p_carry));
  TRY(lm_work_new(q, NULL, c, &w));
  if (lm_log_on(LM_LOG_DIST)) lm_log(LM_LOG_DIST, "group %u: %s", g->core->id, w->exchange.ticket.what);
  lm_waiting_begin(&waiting, LM_WAITING_UNTIL_DONE, g->core, &w->exchange.ticket, w->exchange.timeout);
  if (w->exchange.call.peer >= 0) waiting.peer = w->exchange.call.peer;
  status = g->table->post(g, w->exchange.call.kind == LM_SEND, w->exchange.call.t, w->exchange.call.peer,
                          w->exchange.call.tag, &w->request);
  lm_waiting_end(&waiting, false);
  if (status != LM_OK) {
    lm_work_release(w);
    return status;
  }
  atomic_fetch_add(&w->rc, 1);
  pthread_mutex_lock(&q->lock);
  bool first = !q->posted;
  w->busy = !alone; /* if not alone, the caller drives it */
  w->next = q->posted;
  q->posted = w;
  if (first && alone) pthread_cond_signal(&q->posting);
  pthread_mutex_unlock(&q->lock);
  *out = w;
  return LM_OK;
done:
  lm_call_clear(c);
  return status;
}

lm_status lm_batch_p2p(lm_group *g, int n, const lm_group_call *list, lm_work **works) {
  lm_status status = LM_OK;
  lm_exchange *c = lm_calloc((size_t)n, sizeof *c);
  if (!c) return LM_E_OOM;
  for (int i = 0; i < n; i++) works[i] = NULL;
  for (int i = 0; i < n; i++) { TRY(p2p_prepare(&c[i], g, &list[i])); }
  for (int i = 0; i < n; i++) /* first, since enqueueing the others may wait for their peers */
    if (!c[i].part->issuer) {
      lm_exchange one = c[i];
      c[i] = (lm_exchange){.part = NULL};
      lm_span span;
      const bool traced = p2p_trace(&span, &one);
      status = p2p_post(&one, true, &works[i]);
      if (traced) lm_span_end(&span);
      TRY(status);
    }
  for (int p = 0; p < g->core->nparts; p++)
    if (g->core->part[p].issuer) TRY(lm_issue_batch(&g->core->part[p], n, c, works));
done:
  for (int i = 0; i < n; i++) {
    lm_call_clear(&c[i]);
    if (status == LM_OK) continue;
    lm_work_release(works[i]); /* posted ones continue */
    works[i] = NULL;
  }
  lm_free(c);
  return status;
}

lm_status lm_p2p_start(lm_group *g, const lm_group_call *call, lm_work **work) {
  lm_work *w = NULL;
  lm_exchange c;
  lm_status status = p2p_prepare(&c, g, call);
  if (status != LM_OK) {
    lm_call_clear(&c);
    return status;
  }
  if (c.part->issuer) return lm_issue(&c, work);
  lm_span span;
  const bool traced = p2p_trace(&span, &c);
  TRY(p2p_post(&c, work != NULL, &w));
  if (work) {
    *work = w;
    w = NULL;
  } else {
    p2p_step(w, true);
    p2p_unclaim(w);
    status = lm_work_outcome(w);
  }
done:
  if (traced) lm_span_end(&span);
  lm_work_release(w);
  return status;
}
