/* Watches a part's enqueued calls on a thread: exchanges tickets, ends calls that are done, and aborts all after a
 * failure. While calls are in progress it polls, at growing intervals while nothing happens. Otherwise it sleeps until
 * a call, a ticket or the failure of another rank wakes it. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/message.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/enqueued_calls.h"

static const double first_pause = 50e-6, longest_pause = 2e-3; /* seconds between polls, at first and at most */
static const double awaited_pause = 200e-6;                    /* seconds at most while a thread waits for a work */
static const double health_every = 5e-3;                       /* seconds between calls of the backend's `health` */
static const double shutdown_time = 5;                         /* seconds to send remaining tickets at close */

typedef struct request_list {
  lm_request **at; /* [n] */
  size_t n, capacity;
} request_list;

typedef struct watch {
  lm_issuer *is;
  lm_work *head; /* the oldest work, which `waiting` records; or NULL */
  lm_waiting waiting;
  request_list sends;    /* tickets and receipts on their way to other ranks, the oldest first */
  request_list receipts; /* receipts to come for sends and receives that are done here */
  bool expects;          /* true while a call lacks the previous rank's ticket */
  bool over;             /* true after a failure: works are only ended */
  double pause, asked;   /* seconds to the next poll; lm_seconds() of the last `health` */
  double until;          /* lm_seconds() at which closing stops to wait; 0 before */
  lm_stream *back[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* streams that copy results to the host */
} watch;

/* ---- works */

static lm_work *oldest(lm_issuer *is) {
  LM_LOCKED(&is->lock);
  return is->first;
}

/* Returns the work after w. Only this thread removes works, so w is still in the list; new ones are appended. */
static lm_work *watch_next_work(lm_issuer *is, lm_work *w) {
  LM_LOCKED(&is->lock);
  return w->next;
}

static bool is_enqueued(lm_issuer *is, const lm_work *w, lm_status *early) {
  LM_LOCKED(&is->lock);
  bool yes = w->enqueued;
  *early = w->outcome.status;
  return yes;
}

/* Removes the oldest work w and marks it done. */
static void watch_end_work(lm_issuer *is, lm_work *w, lm_status status) {
  lm_transport_forget(is->ring, w->heard);
  w->heard = NULL;
  pthread_mutex_lock(&is->lock);
  is->first = w->next;
  if (!is->first) is->last = &is->first;
  w->next = NULL;
  lm_work_finish(w, status);
  pthread_cond_broadcast(&is->changed);
  pthread_mutex_unlock(&is->lock);
  lm_work_release(w);
}

/* Makes w, the oldest work, this thread's current call for lm_group_check; ends the former one. */
static void set_current_work(watch *x, lm_work *w, bool completed) {
  if (x->head == w) return;
  if (x->head) lm_waiting_end(&x->waiting, completed);
  if (w) lm_waiting_begin(&x->waiting, LM_WAITING_ENQUEUED, x->is->core, &w->exchange.ticket, w->exchange.timeout);
  if (w && w->exchange.call.peer >= 0 && lm_is_p2p(w)) x->waiting.peer = w->exchange.call.peer;
  x->head = w;
}

/* ---- tickets */

enum { TICKETS, SENT, RECEIVED }; /* slots of the ring's messages */

static lm_status watch_post(watch *x, request_list *list, bool sending, int peer, uint64_t slot) {
  if (!lm_list_grow(&list->at, &list->capacity, list->n + 1, sizeof *list->at)) return LM_E_OOM;
  NEED(lm_transport_post(x->is->ring, sending, peer, slot, NULL, 0, &list->at[list->n]));
  list->n++;
  return LM_OK;
}

/* Starts to send w's ticket to the next rank, and to receive the previous one's. */
static lm_status send_ticket(watch *x, lm_work *w) {
  const lm_group *g = x->is->g;
  NEED(lm_transport_post(x->is->ring, false, (g->rank + g->size - 1) % g->size, TICKETS, NULL, 0, &w->heard));
  NEED(watch_post(x, &x->sends, true, (g->rank + 1) % g->size, TICKETS));
  w->sent = true;
  return LM_OK;
}

/* Exchanges receipts with the peer of a send or receive that is done. A send may be done before it is received, from
 * memory that is freed with the communicator, so closing waits for the receipts. A receive may have sent as well, to
 * make the connection. */
static lm_status exchange_receipt(watch *x, const lm_work *w) {
  bool sent = w->exchange.call.kind == LM_SEND;
  int peer = w->exchange.call.peer;
  if (!x->is->ring || !lm_is_p2p(w)) return LM_OK;
  NEED(watch_post(x, &x->sends, true, peer, sent ? SENT : RECEIVED));
  return watch_post(x, &x->receipts, false, peer, sent ? RECEIVED : SENT);
}

/* Forgets the oldest n requests of a list. */
static void forget_oldest(watch *x, request_list *list, size_t n) {
  for (size_t i = 0; i < n; i++) lm_transport_forget(x->is->ring, list->at[i]);
  list->n -= n;
  if (n > 0) memmove(list->at, list->at + n, list->n * sizeof *list->at);
}

static lm_status watch_sends(watch *x) {
  bool done = true;
  size_t n = 0;
  lm_status status = LM_OK;
  while (n < x->sends.n && done && status == LM_OK) {
    status = lm_transport_test(x->is->ring, x->sends.at[n], &done);
    n += done;
  }
  forget_oldest(x, &x->sends, n);
  for (n = 0; n < x->receipts.n && !lm_transport_is_pending(x->is->ring, x->receipts.at[n]);) n++;
  forget_oldest(x, &x->receipts, n);
  return status;
}

/* Sends the tickets of new calls, and compares received tickets with those of this rank's calls, in order. */
static lm_status watch_exchange(watch *x) {
  lm_status status = LM_OK;
  lm_issuer *is = x->is;
  x->expects = false;
  for (lm_work *w = oldest(is); w && status == LM_OK; w = watch_next_work(is, w)) {
    lm_waiting waiting;
    bool sends = !w->sent, hears = !w->matched && !x->expects;
    if (!sends && !hears) continue;
    lm_waiting_begin(&waiting, LM_WAITING_ENQUEUED, is->core, &w->exchange.ticket, w->exchange.timeout);
    if (sends) status = send_ticket(x, w);
    if (status == LM_OK && hears) status = lm_transport_test(is->ring, w->heard, &w->matched);
    lm_waiting_end(&waiting, false);
    if (hears) x->expects = !w->matched;
    if (sends || (hears && w->matched)) x->pause = first_pause;
  }
  return status == LM_OK ? watch_sends(x) : status;
}

/* ---- completion */

static lm_status check_health(watch *x, bool at_once) {
  const lm_group_table *table = x->is->g->table;
  double now = lm_seconds();
  if (!table->health || !x->head || (now < x->asked + health_every && !at_once)) return LM_OK;
  x->asked = now;
  return table->health(x->is->g) == LM_OK ? LM_OK : lm_group_broken(x->is->g, lm_error());
}

/* Sets *done if w's event is over and its ticket matched. The event also ends when the group breaks, so `health` is
 * checked first; such a failure, like LM_E_STATE of the call itself, is reported to the other ranks. */
static lm_status check_work(watch *x, lm_work *w, bool *done) {
  lm_status early, status = LM_OK;
  *done = false;
  if (!is_enqueued(x->is, w, &early)) return LM_OK;
  if (early == LM_E_STATE) NEED(lm_group_broken(x->is->g, w->outcome.message));
  if (!w->matched) return LM_OK;
  if (early == LM_OK && w->event) NEED(lm_event_query(w->event, done));
  if (early != LM_OK || !w->event) *done = true;
  if (*done) status = check_health(x, true);
  return status;
}

/* Copies a call's results to other devices, on a stream of its own: later work on the call's stream may wait for
 * another rank forever, and so may the script's stream. */
static lm_status copy_to_host(watch *x, lm_exchange *c) {
  lm_status status = LM_OK;
  for (int i = 0; i < c->nwritten && status == LM_OK; i++) {
    lm_tensor *t = c->written[i].dense;
    lm_stream **s = &x->back[LM_DEVICE_KIND(t->device)][LM_DEVICE_ORDINAL(t->device)];
    if (t == c->written[i].user) continue;
    lm_use_ended(lm_tensor_used(t));
    if (!*s) status = lm_stream_new(t->device, 0, s);
    if (status == LM_OK) lm_stream_set_current(*s);
  }
  return lm_call_written(c, status);
}

static lm_status end_done_work(watch *x, lm_work *w) {
  lm_status status = lm_error_restore(&w->outcome), receipt = LM_OK;
  if (status == LM_OK) receipt = exchange_receipt(x, w);
  if (w->exchange.host)
    status = status == LM_OK ? copy_to_host(x, &w->exchange) : lm_call_written(&w->exchange, status);
  set_current_work(x, NULL, status == LM_OK);
  watch_end_work(x->is, w, status == LM_E_OOM ? LM_E_STATE : status);
  return receipt;
}

static lm_status end_done_works(watch *x) {
  bool done = true;
  for (lm_work *w; done && (w = oldest(x->is));) {
    set_current_work(x, w, false);
    NEED(check_work(x, w, &done));
    if (!done) break;
    NEED(end_done_work(x, w));
    x->pause = first_pause;
  }
  return LM_OK;
}

/* ---- failure */

/* Fails the group with this thread's last error and aborts the backend. A call that is inside a backend function
 * returns soon and is ended then. */
static void watch_fail(watch *x, lm_status status) {
  lm_issuer *is = x->is;
  pthread_mutex_lock(&is->lock);
  lm_error_save(status == LM_E_OOM ? LM_E_STATE : status, &is->failed);
  pthread_mutex_unlock(&is->lock);
  lm_log(LM_LOG_DIST, "group %u, %s: aborted: %s", is->core->id, is->g->table->name, is->failed.message);
  if (is->g->table->abort) is->g->table->abort(is->g);
  x->over = true;
}

static void watch_end_all(watch *x) {
  lm_issuer *is = x->is;
  lm_status early;
  set_current_work(x, NULL, false);
  for (lm_work *w; (w = oldest(is)) && is_enqueued(is, w, &early);) {
    watch_end_work(is, w, lm_error_restore(&is->failed));
  }
  LM_LOCKED(&is->lock);
  pthread_cond_broadcast(&is->changed);
}

/* ---- the thread */

static lm_status watch_look(watch *x) {
  lm_issuer *is = x->is;
  set_current_work(x, oldest(is), false);
  if (is->ring) NEED(watch_exchange(x));
  NEED(end_done_works(x));
  NEED(check_health(x, false));
  return lm_group_check(is->g);
}

static void watch_sleep(watch *x, bool idle) {
  lm_issuer *is = x->is;
  enum { NEIGHBORS = 2 };
  struct pollfd polls[2 + NEIGHBORS] = {{.fd = is->kick, .events = POLLIN}};
  int n = 1;
  pthread_mutex_lock(&is->lock);
  double most = is->hosts > 0 ? awaited_pause : longest_pause;
  pthread_mutex_unlock(&is->lock);
  double pause = x->pause < most ? x->pause : most;
  struct timespec time = lm_timespec(pause);
  if (!x->over) {
    int wake = lm_group_wake_fd(is->g);
    if (wake >= 0) polls[n++] = (struct pollfd){.fd = wake, .events = POLLIN};
    if (x->expects) n += lm_transport_polls(is->ring, polls + n, NEIGHBORS);
  }
  ppoll(polls, (nfds_t)n, idle ? NULL : &time, NULL);
  if (polls[0].revents) lm_wakeup_fd_clear(is->kick);
  x->pause = pause * 2;
}

/* Returns true while closing must wait for unsent tickets, which the next rank may need, at most shutdown_time, or for
 * ranks that have not received what this one has sent, at most the group's timeout. */
static bool must_report_first(watch *x) {
  double now = lm_seconds();
  if (x->over || x->sends.n + x->receipts.n == 0) return false;
  if (x->until == 0) {
    x->until = now + (x->receipts.n > 0 ? x->is->core->timeout : shutdown_time);
    if (x->receipts.n > 0)
      lm_log(LM_LOG_DIST, "group %u closes: of %zu messages there is no receipt yet", x->is->core->id, x->receipts.n);
  }
  return now < x->until;
}

static void *watch_calls(void *arg) {
  lm_issuer *is = arg;
  watch x = {.is = is, .pause = first_pause};
  lm_set_thread_limit(1); /* one thread suffices to copy results */
  for (;;) {
    pthread_mutex_lock(&is->lock);
    bool idle = !is->first, closing = is->closing;
    is->asleep = idle;
    pthread_mutex_unlock(&is->lock);
    bool must_report = idle && closing && must_report_first(&x);
    if (idle && closing && !must_report) break;
    lm_status status = x.over ? LM_OK : watch_look(&x);
    if (status != LM_OK) watch_fail(&x, status);
    if (x.over) watch_end_all(&x);
    watch_sleep(&x, idle && !must_report && x.sends.n == 0);
  }
  set_current_work(&x, NULL, false);
  forget_oldest(&x, &x.sends, x.sends.n);
  forget_oldest(&x, &x.receipts, x.receipts.n);
  lm_free(x.sends.at);
  lm_free(x.receipts.at);
  return NULL;
}

lm_status lm_issuer_start(lm_issuer *is) {
  lm_status status = LM_OK;
  LM_LOCKED(&is->calling);
  if (is->started) goto done;
  is->kick = lm_wakeup_fd_new();
  if (is->kick < 0) TRY(lm_fail_cannot(LM_E_IO, "create an event descriptor", errno));
  if (is->g->size > 1 && is->core->world) TRY(lm_transport_open(&is->ring_g, &is->ring));
  TRY(lm_thread_start(NULL, "lm-watch", &is->thread, watch_calls, is));
  is->started = true;
done:
  if (status != LM_OK) {
    lm_transport_close(is->ring);
    is->ring = NULL;
    if (is->kick >= 0) close(is->kick);
    is->kick = -1;
  }
  return status;
}
