/* Enqueues calls: the backend's functions run one at a time, in call order, on a stream of the part. The storages' use
 * records (lm_use_read, lm_use_write) order a call after earlier ops on its tensors, and later ops after the call. */
#include "distributed/group/enqueued_calls.h"
#include "device/graph.h"
#include "distributed/group/call_timeouts.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "distributed/group/world_core.h"
#include "distributed/store/sigterm.h"

/* ---- streams */

static lm_status issue_stream(lm_issuer *is, lm_device device, lm_stream **out) {
  lm_stream **at = &is->stream[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)];
  lm_status status = *at ? LM_OK : lm_stream_new(device, -1, at);
  *out = *at;
  return status;
}

/* Orders stream s after the last writes of the tensors that c reads, and after all uses of those that it writes. */
static lm_status issue_order(const lm_exchange *c, lm_stream *s) {
  if (c->call.t) NEED(lm_use_read(lm_tensor_used(c->call.t), s));
  for (int i = 0; i < c->call.nin; i++) NEED(lm_use_read(lm_tensor_used(c->call.in[i]), s));
  for (int i = 0; i < c->call.nout; i++) NEED(lm_use_read(lm_tensor_used(c->call.out[i]), s));
  for (int i = 0; i < c->nwritten; i++) NEED(lm_use_write(lm_tensor_used(c->written[i].dense), s));
  return LM_OK;
}

/* ---- one call */

static lm_device device_of(const lm_exchange *c) {
  const lm_tensor *t = c->call.t ? c->call.t : c->call.in ? c->call.in[0] : c->call.out ? c->call.out[0] : NULL;
  return t ? t->device : LM_NO_DEVICE;
}

/* Turns a barrier into an all_reduce of one element for which the host waits. */
static lm_status make_barrier(lm_exchange *c) {
  lm_device device = lm_issuer_device(c->part->issuer);
  if (device == LM_NO_DEVICE)
    return lm_fail(LM_E_DEVICE, "barrier: group '%s' has no device on this rank", c->g->table->name);
  c->empty = false;
  c->host = true;
  return lm_tensor_empty(LM_F32, device, 1, (int64_t[]){1}, LM_CONTIGUOUS, &c->call.t);
}

static lm_status issue_check(const lm_exchange *c) {
  const char *name = lm_collective_name(c->call.kind);
  if (lm_graph_capturing())
    return lm_fail(LM_E_STATE,
                   "%s: cannot capture collectives of group '%s' in a graph; call it before or after the capture", name,
                   c->g->table->name);
  lm_status status = lm_issuer_check(c->part->issuer);
  return status == LM_OK ? LM_OK : lm_fail_in(status, name);
}

static lm_status make_enqueued_work(lm_exchange *c, lm_work **out) {
  lm_status status;
  lm_issuer *is = c->part->issuer;
  lm_work *w = NULL;
  *out = NULL;
  TRY(issue_check(c));
  if (c->call.kind == LM_BARRIER) TRY(make_barrier(c));
  TRY(lm_issuer_start(is));
  TRY(lm_work_new(NULL, is, c, &w)); /* clears c if it fails */
  if (w->exchange.call.kind == LM_RECV) w->peer = w->exchange.call.peer;
  if (!w->exchange.empty) TRY(lm_event_new(device_of(&w->exchange), false, &w->event));
  *out = w;
  return LM_OK;
done:
  if (w)
    lm_work_release(w);
  else
    lm_call_clear(c);
  return status;
}

/* Numbers the call and adds it to the watching thread's list. Called with is->calling locked. */
static void number_and_list(lm_issuer *is, lm_work *w) {
  bool p2p = lm_is_p2p(w);
  w->exchange.ticket.seq = p2p ? 0 : atomic_fetch_add(&is->core->seq, 1) + 1;
  if (!p2p) lm_call_name_refused(&w->exchange, is->refused);
  w->matched = p2p || !is->ring;
  w->sent = w->matched;
  atomic_fetch_add(&w->rc, 1);
  pthread_mutex_lock(&is->lock);
  if (w->event) is->device = device_of(&w->exchange);
  *is->last = w;
  is->last = &w->next;
  bool asleep = is->asleep;
  is->asleep = false;
  pthread_mutex_unlock(&is->lock);
  if (asleep) lm_wakeup_fd_signal(is->kick);
  if (lm_log_on(LM_LOG_DIST))
    lm_log(LM_LOG_DIST, "group %u call %llu: %s", is->core->id, (unsigned long long)w->exchange.ticket.seq,
           w->exchange.ticket.what);
}

/* Calls the backend's function for a call or, if n > 1, a unit of sends and receives; its waiting loops call
 * lm_group_check. There is no deadline here: the watching thread, which also sees the end, applies the timeout. */
static lm_status call_group(lm_issuer *is, int n, lm_work **w) {
  lm_waiting waiting;
  lm_world *world = is->core->world;
  const lm_group_table *table = is->g->table;
  lm_ticket ticket = w[0]->exchange.ticket;
  bool unit = n > 1 && table->batch;
  lm_group_call *calls = unit ? lm_malloc((size_t)n * sizeof *calls) : NULL;
  if (unit && !calls) return LM_E_OOM;
  if (n > 1) {
    ticket = (lm_ticket){.kind = LM_SETUP, .what = "batch_isend_irecv"};
    memcpy(ticket.where, w[0]->exchange.ticket.where, sizeof ticket.where);
  }
  lm_waiting_begin(&waiting, LM_WAITING_FOR_A_TEST, is->core, &ticket, INFINITY);
  waiting.issuer = is;
  lm_sigterm_wait_begins();
  for (int i = 0; i < n; i++) {
    if (unit) calls[i] = w[i]->exchange.call;
    if (world) lm_client_entered(world->client, is->core->id, &w[i]->exchange.ticket);
  }
  lm_status status = lm_device_enter(device_of(&w[0]->exchange));
  if (status == LM_OK && unit) status = table->batch(is->g, n, calls);
  for (int i = 0; i < n && status == LM_OK && !unit; i++) status = lm_call_dispatch(&w[i]->exchange);
  lm_sigterm_wait_ends();
  lm_waiting_end(&waiting, false);
  lm_free(calls);
  return status != LM_OK && lm_issuer_check(is) != LM_OK ? LM_E_STATE : status; /* aborted: that error says why */
}

/* Makes s, which waits for w, the only user of the memory of n tensors. */
static lm_status take_over(const lm_work *w, lm_stream *s, int n, lm_tensor *const *t) {
  const lm_stream *from = w->issuer->stream[LM_DEVICE_KIND(s->device)][LM_DEVICE_ORDINAL(s->device)];
  for (int i = 0; i < n; i++)
    if (t[i] && t[i]->device == s->device) NEED(lm_use_after(lm_tensor_used(t[i]), s, from));
  return LM_OK;
}

lm_status lm_work_order(lm_work *w, int n, lm_tensor *const *t) {
  if (!w->event || lm_graph_capturing()) return LM_OK; /* a capture waits for the device first */
  lm_stream *s = lm_stream_current(lm_event_device(w->event));
  NEED(lm_event_wait(w->event, s));
  return take_over(w, s, n, t);
}

/* Orders later work on the current stream after an enqueued collective, for all its tensors. */
static lm_status order_collective(lm_work *w) {
  const lm_exchange *c = &w->exchange;
  if (!w->event || lm_is_p2p(w)) return LM_OK;
  lm_stream *s = lm_stream_current(device_of(c));
  NEED(lm_event_wait(w->event, s));
  NEED(take_over(w, s, 1, &c->call.t));
  NEED(take_over(w, s, c->call.nin, c->call.in));
  NEED(take_over(w, s, c->call.nout, c->call.out));
  for (int i = 0; i < c->nwritten; i++) NEED(take_over(w, s, 1, &c->written[i].user));
  return LM_OK;
}

/* Enqueues a call, or a unit of n on one device, and the copies of their results, and records the events behind them.
 */
static lm_status issue_enqueue(lm_issuer *is, int n, lm_work **w) {
  lm_status status;
  lm_exchange *first = &w[0]->exchange;
  lm_stream *s, *before = NULL;
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (first->empty) { /* a collective */
    lm_call_written(first, LM_OK);
    return LM_OK;
  }
  TRY(issue_stream(is, device_of(first), &s));
  before = lm_stream_current(s->device);
  if (!before) TRY(LM_E_STATE); /* the driver has set the message */
  for (int i = 0; i < n; i++) TRY(issue_order(&w[i]->exchange, s));
  lm_stream_set_current(s);
  for (int i = 1; traced && i < n; i++) { /* a unit's time on the device is its first call's */
    lm_call_trace(&span, &w[i]->exchange, LM_NO_DEVICE);
    lm_span_end(&span);
  }
  if (traced) lm_call_trace(&span, first, s->device);
  status = call_group(is, n, w);
  lm_stream_touch(s);
  for (int i = 0; i < n; i++)
    if (!w[i]->exchange.host) status = lm_call_written(&w[i]->exchange, status);
  if (traced) lm_span_end(&span);
  for (int i = 0; i < n && status == LM_OK; i++) status = lm_event_record(w[i]->event, s);
done:
  if (before) lm_stream_set_current(before);
  /* LM_E_OOM would cause a retry, but other ranks may be past this call. */
  return status == LM_E_OOM ? LM_E_STATE : status;
}

/* Hands the call, with the backend's status, to the watching thread, which may end it from here on. */
static void hand_to_watch(lm_issuer *is, lm_work *w, lm_status status) {
  if (status == LM_OK && !w->exchange.host)
    lm_call_clear(&w->exchange); /* freed memory waits for its streams by itself */
  LM_LOCKED(&is->lock);
  lm_error_save(status, &w->outcome);
  w->enqueued = true;
}

lm_status lm_issue(lm_exchange *c, lm_work **work) {
  lm_status status;
  lm_issuer *is = c->part->issuer;
  lm_work *w;
  status = make_enqueued_work(c, &w);
  if (status != LM_OK) return status;
  pthread_mutex_lock(&is->calling);
  number_and_list(is, w);
  status = issue_enqueue(is, 1, &w);
  if (status == LM_OK && !work) status = order_collective(w);
  if (status != LM_OK && !lm_is_p2p(w)) is->refused++;
  hand_to_watch(is, w, status);
  pthread_mutex_unlock(&is->calling);
  if (status == LM_OK && work) {
    *work = w;
    return LM_OK;
  }
  if (status == LM_OK) status = lm_issued_wait(w, -1);
  lm_work_release(w);
  return status;
}

lm_status lm_issue_batch(const lm_part *part, int n, lm_exchange *c, lm_work **works) {
  lm_issuer *is = part->issuer;
  LM_FREED lm_work **unit = lm_malloc((size_t)n * sizeof *unit);
  int k = 0;
  if (!unit) return LM_E_OOM;
  for (int i = 0; i < n; i++) {
    if (c[i].part != part) continue;
    lm_exchange one = c[i];
    c[i] = (lm_exchange){.part = NULL};
    NEED(make_enqueued_work(&one, &works[i]));
    unit[k++] = works[i];
    if (device_of(&works[i]->exchange) != device_of(&unit[0]->exchange))
      return lm_fail_device("batch_isend_irecv", "all tensors",
                            lm_text("on %s like the first", lm_device_name(device_of(&unit[0]->exchange))),
                            lm_device_name(device_of(&works[i]->exchange)));
  }
  if (k == 0) return LM_OK;
  LM_LOCKED(&is->calling);
  for (int i = 0; i < k; i++) number_and_list(is, unit[i]);
  lm_status status = issue_enqueue(is, k, unit);
  for (int i = 0; i < k; i++) hand_to_watch(is, unit[i], status);
  return status;
}

/* ---- waiting and closing */

lm_status lm_issued_wait(lm_work *w, double seconds) {
  lm_issuer *is = w->issuer;
  bool waits = seconds >= 0 || w->exchange.host;
  double until = seconds < 0 ? INFINITY : lm_seconds() + seconds;
  pthread_mutex_lock(&is->lock);
  is->hosts += waits;
  if (waits && is->asleep) lm_wakeup_fd_signal(is->kick);
  while (waits && !lm_work_is_done(w) && lm_cond_wait_until(&is->changed, &is->lock, until)) continue;
  is->hosts -= waits;
  bool done = lm_work_is_done(w), failed = !done && is->failed.status != LM_OK;
  lm_status status = lm_error_restore(&is->failed);
  pthread_mutex_unlock(&is->lock);
  if (done) return lm_work_outcome(w);
  if (failed) return status;
  if (waits) return lm_fail_wait(w->exchange.ticket.what, seconds);
  return LM_OK;
}

void lm_issuer_close(lm_issuer *is) {
  pthread_mutex_lock(&is->lock);
  is->closing = true;
  bool started = is->started;
  pthread_mutex_unlock(&is->lock);
  if (started) {
    lm_wakeup_fd_signal(is->kick);
    pthread_join(is->thread, NULL);
    lm_transport_close(is->ring);
    close(is->kick);
  }
  lm_issuer_release(is);
}
