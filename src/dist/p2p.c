/* Send and receive. They go straight to the group: started by post, driven by whoever waits or looks. */
#define _GNU_SOURCE
#include <poll.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "dist/call.h"

static const double farewell = 5; /* seconds that sends have to leave when the group closes */

/* One round with the group: w is finished if its request is, or has failed. */
static void step(lm_work *w, bool wait) {
  lm_group_core *core = w->call.core;
  lm_group *g = &core->g;
  lm_waiting waiting;
  bool done = false;
  lm_waiting_begin(&waiting, core, &w->call.ticket, w->call.timeout);
  if (w->call.peer >= 0) waiting.peer = w->call.peer;
  lm_status status = core->world ? lm_world_check(core->world) : LM_OK;
  if (status != LM_OK) {
    lm_fail_in(status, lm_collective_name(w->call.kind));
  } else {
    status = g->table->finish(g, w->request, wait, &done, &w->peer);
  }
  lm_waiting_end(&waiting, status == LM_OK && done);
  if (status == LM_OK && !done) return;

  status = lm_call_written(&w->call, status);
  g->table->forget(g, w->request);
  w->request = NULL;
  lm_work_finish(w, status == LM_E_OOM ? LM_E_STATE : status); /* the message is gone: not to be tried once more */
}

static bool is_done(const lm_work *w) { return atomic_load_explicit(&w->done, memory_order_acquire); }

/* The queue lets go of what is done. */
static void sweep(lm_queue *q) {
  for (lm_work **at = &q->posted; *at;) {
    lm_work *w = *at;
    if (!is_done(w)) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    lm_work_release(w);
  }
}

void lm_p2p_look(lm_work *w) {
  step(w, false);
  if (is_done(w)) sweep(w->queue);
}

static void pause_for(lm_group *g, double seconds) {
  struct pollfd wake = {.fd = lm_group_wake_fd(g), .events = POLLIN};
  struct timespec time = {.tv_nsec = (long)(seconds * 1e9)};
  ppoll(&wake, 1, &time, NULL);
}

lm_status lm_p2p_wait(lm_work *w, double seconds) {
  if (seconds < 0 || seconds >= w->call.timeout) {
    step(w, true);
    sweep(w->queue);
    return lm_work_outcome(w);
  }
  /* Not the group's own waiting: that this time is over is no failure of the job. */
  double until = lm_seconds() + seconds, rest = 20e-6;
  for (;;) {
    lm_p2p_look(w);
    if (is_done(w)) return lm_work_outcome(w);
    if (lm_seconds() >= until)
      return lm_fail(LM_E_STATE, "wait: %s is not done after %g s; it goes on", w->call.ticket.what, seconds);
    pause_for(&w->call.core->g, rest);
    if (rest < 1e-3) rest *= 2;
  }
}

void lm_p2p_close(lm_queue *q) {
  double until = lm_seconds() + farewell, rest = 20e-6;
  for (;;) {
    lm_group *g = NULL;
    for (lm_work *w = q->posted; w; w = w->next) {
      if (is_done(w)) continue;
      step(w, false);
      if (!is_done(w) && w->call.kind == LM_SEND) g = &w->call.core->g;
    }
    if (!g || lm_seconds() >= until) break;
    pause_for(g, rest);
    if (rest < 1e-3) rest *= 2;
  }
  for (lm_work *w = q->posted; w; w = w->next) {
    if (is_done(w)) continue;
    lm_group *g = &w->call.core->g;
    g->table->forget(g, w->request);
    w->request = NULL;
    lm_work_finish(w, lm_fail(LM_E_STATE, "%s: the group was closed first", w->call.ticket.what));
  }
  sweep(q);
}

/* Peers match calls by their number, so one without elements is sent too: as a byte, under its own ticket. */
static lm_status one_byte(const lm_tensor *t, lm_tensor **out) {
  return lm_tensor_empty(LM_U8, t->device, 1, (int64_t[]){1}, LM_CONTIGUOUS, out);
}

static lm_status start(lm_group *g, lm_collective kind, lm_tensor *t, int peer, int tag, lm_work **out) {
  lm_status status;
  lm_call c;
  lm_waiting waiting;
  lm_queue *q = NULL;
  lm_work *w = NULL;
  bool sending = kind == LM_SEND;
  TRY(lm_call_begin(&c, g, kind));
  c.peer = peer;
  c.tag = tag;
  if (sending || peer != -1) TRY(lm_call_check_rank(&c, peer));
  if (peer == g->rank) {
    status =
        lm_fail(LM_E_ARG, "%s: rank %d is this rank itself", lm_collective_name(kind), lm_call_world_rank(&c, peer));
    goto done;
  }
  if (tag < 0) {
    status = lm_fail(LM_E_ARG, "%s: tag %d; tags go from 0", lm_collective_name(kind), tag);
    goto done;
  }
  TRY(lm_call_check(&c, t, !sending));
  TRY(t->numel == 0 ? one_byte(t, &c.t) : sending ? lm_call_read(&c, t, &c.t) : lm_call_write(&c, t, false, &c.t));
  lm_call_name(&c, t);
  TRY(lm_queue_of(c.core, &q));
  for (lm_work *under_way = q->posted; under_way; under_way = under_way->next)
    if (atomic_load(&under_way->rc) == 1 && !is_done(under_way)) step(under_way, false); /* nobody else will look */
  sweep(q);
  TRY(lm_work_new(q, &c, &w));
  if (lm_log_on(LM_LOG_DIST)) lm_log(LM_LOG_DIST, "group %u: %s", g->core->id, w->call.ticket.what);
  lm_waiting_begin(&waiting, g->core, &w->call.ticket, w->call.timeout);
  if (peer >= 0) waiting.peer = peer;
  status = g->table->post(g, sending, w->call.t, peer, tag, &w->request);
  lm_waiting_end(&waiting, false);
  if (status != LM_OK) {
    lm_work_release(w);
    return status;
  }
  atomic_fetch_add(&w->rc, 1);
  w->next = q->posted;
  q->posted = w;
  *out = w;
  return LM_OK;
done:
  lm_call_clear(&c);
  return status;
}

static lm_status start_or_do(lm_group *g, lm_collective kind, lm_tensor *t, int peer, int tag, lm_work **work) {
  lm_work *w = NULL;
  lm_status status = start(g, kind, t, peer, tag, &w);
  if (status != LM_OK || work) {
    if (work) *work = w;
    return status;
  }
  status = lm_p2p_wait(w, -1);
  lm_work_release(w);
  return status;
}

lm_status lm_send(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work) {
  return start_or_do(g, LM_SEND, t, peer, tag, work);
}

lm_status lm_recv(lm_group *g, lm_tensor *t, int peer, int tag, lm_work **work) {
  return start_or_do(g, LM_RECV, t, peer, tag, work);
}
