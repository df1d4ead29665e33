/* Creates streams and tracks which work each of them is ordered after. */
#include "device/stream.h"
#include "base/thread.h"
#include "device/graph.h"

#include "base/mem.h"
#include "device/stream_core.h"

typedef struct queue { /* the streams of a device */
  pthread_mutex_t lock;
  int count, turn; /* number of streams; id of the last reused one */
  uint64_t spare;  /* bits of the streams that threads owned before they ended */
  _Atomic(lm_stream_state *) stream[LM_STREAM_MAX];
  _Atomic(lm_stream *) launched;
} queue;

static queue queues[LM_DEVICE_KINDS][LM_DEVICE_MAX] = {[0 ... LM_DEVICE_KINDS - 1][0 ... LM_DEVICE_MAX - 1].lock =
                                                           PTHREAD_MUTEX_INITIALIZER};
static _Thread_local uint8_t current[LM_DEVICE_KINDS][LM_DEVICE_MAX]; /* stream ids plus 1; 0: not used yet */
static _Thread_local uint8_t (*own)[LM_DEVICE_MAX]; /* ids of this thread's own streams; NULL: it has none, as 0 */

static queue *queue_of(lm_device device) { return &queues[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)]; }
static lm_stream_state *state_of(lm_stream *s) { return (lm_stream_state *)s; }

/* Creates the next stream of the device. Requires the lock. */
static lm_status make_stream(queue *q, lm_device device, int priority, lm_stream **out) {
  const lm_driver *driver = lm_driver_of(device);
  if (!driver) return lm_fail_no_device("stream", device);
  lm_stream_state *s = lm_calloc(1, sizeof *s);
  if (!s) return LM_E_OOM;
  s->s = (lm_stream){.device = device, .id = (uint8_t)q->count, .priority = priority};
  if (driver->stream_create) {
    lm_status status = driver->stream_create(lm_device_physical(device), priority, &s->s.native);
    if (status != LM_OK) {
      lm_free(s);
      return status;
    }
  }
  atomic_store_explicit(&q->stream[q->count++], s, memory_order_release);
  *out = &s->s;
  return LM_OK;
}

lm_stream *lm_stream_by_id(lm_device device, int id) {
  if (id < 0 || id >= LM_STREAM_MAX) return NULL;
  return (lm_stream *)atomic_load_explicit(&queue_of(device)->stream[id], memory_order_acquire);
}

static lm_stream *make_default(lm_device device) {
  queue *q = queue_of(device);
  lm_stream *s = NULL;
  LM_LOCKED(&q->lock);
  if (q->count > 0) {
    s = lm_stream_by_id(device, 0);
  } else if (make_stream(q, device, 0, &s) != LM_OK) {
    s = NULL;
  }
  return s;
}

/* Returns a spare stream of the device, or a new one, for this thread to own. */
static lm_stream *make_own(lm_device device) {
  queue *q = queue_of(device);
  lm_stream *s = NULL;
  pthread_mutex_lock(&q->lock);
  uint64_t spare = q->spare;
  q->spare &= spare - 1;
  pthread_mutex_unlock(&q->lock);
  if (spare) {
    s = lm_stream_by_id(device, __builtin_ctzll(spare));
  } else if (lm_stream_new(device, 0, &s) != LM_OK) {
    return NULL;
  }
  own[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)] = s->id;
  return s;
}

static lm_stream *use_first(lm_device device) {
  lm_stream *s = make_default(device);
  if (s && own) s = make_own(device);
  if (s) lm_stream_set_current(s);
  return s;
}

lm_stream *lm_stream_current(lm_device device) {
  int id = current[LM_DEVICE_KIND(device)][LM_DEVICE_ORDINAL(device)] - 1;
  lm_stream *s = lm_stream_by_id(device, id);
  return s ? s : use_first(device);
}

void lm_stream_set_current(lm_stream *s) {
  current[LM_DEVICE_KIND(s->device)][LM_DEVICE_ORDINAL(s->device)] = (uint8_t)(s->id + 1);
}

/* Returns existing streams in turn, those of `priority` first, never a captured one; NULL if all are captured. */
static lm_stream *reuse_stream(queue *q, int priority) {
  for (int same = 1; same >= 0; same--) {
    for (int i = 1; i < q->count; i++) {
      int id = 1 + (q->turn + i - 1) % (q->count - 1); /* never the default stream */
      lm_stream *s = (lm_stream *)atomic_load(&q->stream[id]);
      if ((same && s->priority != priority) || lm_stream_capture(s)) continue;
      q->turn = id;
      return s;
    }
  }
  return NULL;
}

lm_status lm_stream_new(lm_device device, int priority, lm_stream **out) {
  const lm_driver *driver = lm_driver_of(device);
  queue *q = queue_of(device);
  *out = make_default(device);
  if (!*out) return LM_E_DEVICE;
  if (!lm_has_streams(driver)) return LM_OK;
  int least = 0, greatest = 0;
  if (driver->priorities) NEED(driver->priorities(lm_device_physical(device), &least, &greatest));
  if (priority > least) priority = least;
  if (priority < greatest) priority = greatest;
  LM_LOCKED(&q->lock);
  if (q->count < LM_STREAM_MAX) return make_stream(q, device, priority, out);
  *out = reuse_stream(q, priority);
  if (*out) return LM_OK;
  return lm_fail(LM_E_STATE, "stream: cannot create a stream of %s while graphs are captured on all of them",
                 lm_device_name(device));
}

void lm_stream_touch(lm_stream *s) { atomic_fetch_add_explicit(&state_of(s)->given, 1, memory_order_release); }

uint64_t lm_stream_mask(lm_device device) {
  uint64_t mask = 0;
  lm_stream *s;
  for (int id = 0; (s = lm_stream_by_id(device, id)); id++)
    if (atomic_load_explicit(&state_of(s)->given, memory_order_acquire) > 0) mask |= LM_USED_BIT(id);
  return mask;
}

lm_stream *lm_stream_launched(lm_device device) { return atomic_load(&queue_of(device)->launched); }
void lm_stream_set_launched(lm_stream *s) { atomic_store(&queue_of(s->device)->launched, s); }

/* ---- waiting */

static void raise_to(_Atomic uint64_t *at, uint64_t value) {
  uint64_t old = atomic_load_explicit(at, memory_order_relaxed);
  while (old < value && !atomic_compare_exchange_weak(at, &old, value)) continue;
}

void lm_stream_done(lm_stream *s, uint64_t given) { raise_to(&state_of(s)->done, given); }

bool lm_stream_is_done(lm_stream *s, uint64_t given) {
  return atomic_load_explicit(&state_of(s)->done, memory_order_acquire) >= given;
}

lm_status lm_stream_mark(lm_stream *s, void **event) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(s->device);
  int ordinal = lm_device_physical(s->device);
  *event = NULL;
  pthread_rwlock_rdlock(&lm_captures);
  lm_graph *capture = lm_stream_capture(s);
  if (capture && capture != lm_graph_capturing()) goto done;
  *event = lm_event_take(s->device, false);
  if (!*event) TRY(driver->event_create(ordinal, false, event));
  TRY(driver->event_record(ordinal, *event, s->native));
done:
  pthread_rwlock_unlock(&lm_captures);
  if (status != LM_OK && *event) {
    lm_event_put(s->device, false, *event);
    *event = NULL;
  }
  return status;
}

lm_status lm_stream_wait_event(lm_stream *waiter, void *event, lm_graph *capture) {
  bool joins = capture && !lm_stream_capture(waiter);
  if (joins) pthread_rwlock_wrlock(&lm_captures);
  lm_status status =
      lm_driver_of(waiter->device)->event_wait(lm_device_physical(waiter->device), event, waiter->native);
  if (joins) {
    if (status == LM_OK) atomic_store(&state_of(waiter)->capture, capture);
    pthread_rwlock_unlock(&lm_captures);
  }
  return status;
}

/* Waits by an event, which is free for reuse as soon as the wait is enqueued. */
static lm_status wait_by_event(lm_stream *waiter, lm_stream *on, lm_graph *capture) {
  lm_status status;
  void *event;
  TRY(lm_stream_mark(on, &event));
  if (event) TRY(lm_stream_wait_event(waiter, event, capture));
done:
  if (event) lm_event_put(on->device, false, event);
  return status;
}

/* Returns true if no wait is needed. The capture's start waited for the device; work captured since does not run, and
 * other streams' later work comes from unrelated threads (lm_graph_join). */
static bool has_nothing_to_wait_for(lm_stream *waiter, lm_stream *on) {
  lm_graph *there = lm_stream_capture(on);
  return there ? there != lm_graph_capturing() : lm_stream_capture(waiter) != NULL;
}

lm_status lm_stream_wait(lm_stream *waiter, lm_stream *on) {
  if (waiter == on || !waiter->native || !on->native || has_nothing_to_wait_for(waiter, on)) return LM_OK;
  lm_stream_state *w = state_of(waiter);
  bool counted = waiter->device == on->device;
  uint64_t given = lm_stream_given(on);
  if (lm_stream_is_done(on, given)) return LM_OK;
  if (counted && atomic_load_explicit(&w->seen[on->id], memory_order_acquire) >= given) return LM_OK;
  /* Another thread may have begun to capture `on` by now: the waiter must not join that capture. */
  lm_graph *capture = lm_graph_capturing() == lm_stream_capture(on) ? lm_graph_capturing() : NULL;
  if (!counted && capture) return lm_graph_refuse(on->device, waiter->device);
  NEED(wait_by_event(waiter, on, capture));
  /* Streams that wait for this one now depend on `on` too, so their records of having waited are outdated. */
  lm_stream_touch(waiter);
  if (counted) raise_to(&w->seen[on->id], given);
  return LM_OK;
}

lm_status lm_stream_wait_mask(lm_stream *s, uint64_t mask) {
  for (mask = (mask & LM_USED_BITS) >> 6; mask; mask &= mask - 1) {
    lm_stream *on = lm_stream_by_id(s->device, __builtin_ctzll(mask));
    if (on) NEED(lm_stream_wait(s, on));
  }
  return LM_OK;
}

lm_status lm_stream_synchronize(lm_stream *s) {
  const lm_driver *driver = lm_driver_of(s->device);
  int ordinal = lm_device_physical(s->device);
  if (!s->native || !driver->stream_synchronize) return driver->synchronize(ordinal);
  lm_status status = lm_graph_forbids("synchronize");
  if (status != LM_OK) return status;
  uint64_t given = lm_stream_given(s);
  status = driver->stream_synchronize(ordinal, s->native);
  if (status == LM_OK) lm_stream_done(s, given);
  return status;
}

/* ---- a thread's own streams */

lm_status lm_streams_own(void) {
  if (!own) own = lm_calloc(LM_DEVICE_KINDS, sizeof *own);
  return own ? LM_OK : LM_E_OOM;
}

/* Calls f for each stream that this thread owns; returns the first error. */
static lm_status for_own(lm_status (*f)(lm_stream *)) {
  lm_saved_error first = {.status = LM_OK};
  for (int i = 0; own && i < LM_DEVICE_KINDS * LM_DEVICE_MAX; i++) {
    int kind = i / LM_DEVICE_MAX, ordinal = i % LM_DEVICE_MAX, id = own[kind][ordinal];
    lm_status status = id > 0 ? f(lm_stream_by_id(LM_DEVICE(kind, ordinal), id)) : LM_OK;
    if (status != LM_OK && first.status == LM_OK) lm_error_save(status, &first);
  }
  return lm_error_restore(&first);
}

static lm_status finish(lm_stream *s) {
  return lm_stream_is_done(s, lm_stream_given(s)) ? LM_OK : lm_stream_synchronize(s);
}

static lm_status spare(lm_stream *s) {
  queue *q = queue_of(s->device);
  LM_LOCKED(&q->lock);
  q->spare |= (uint64_t)1 << s->id;
  return LM_OK;
}

lm_status lm_streams_finish(void) { return for_own(finish); }

void lm_streams_disown(void) {
  for_own(spare);
  lm_free(own);
  own = NULL;
}

/* ---- waiting for a device */

/* Waits for the work of each stream in turn, but not for what another thread captures meanwhile. */
static lm_status synchronize_each(lm_device device) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(device);
  int ordinal = lm_device_physical(device);
  void *event = NULL;
  lm_stream *s;
  for (int id = 0; (s = lm_stream_by_id(device, id)); id++) {
    uint64_t given = lm_stream_given(s);
    if (lm_stream_is_done(s, given)) continue;
    TRY(lm_stream_mark(s, &event));
    if (!event) continue;
    TRY(driver->event_synchronize(ordinal, event));
    lm_event_put(device, false, event);
    event = NULL;
    lm_stream_done(s, given);
  }
done:
  if (event) lm_event_put(device, false, event);
  return status;
}

/* Waits per stream, since no thread may wait for the whole device during a capture. The wait with captures blocked is
 * for work that did not pass through our streams. */
lm_status lm_device_synchronize(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  if (!driver) return lm_fail_no_device("synchronize", device);
  if (!lm_has_streams(driver)) return driver->synchronize(lm_device_physical(device));
  lm_status status = lm_graph_forbids("synchronize");
  if (status == LM_OK) status = synchronize_each(device);
  if (status != LM_OK || !lm_graph_block()) return status;
  status = driver->synchronize(lm_device_physical(device));
  lm_graph_unblock();
  return status;
}

lm_status lm_stream_query(lm_stream *s, bool *done) {
  const lm_driver *driver = lm_driver_of(s->device);
  *done = true;
  if (!s->native || !driver->stream_query) return LM_OK;
  NEED(lm_graph_forbids("query"));
  return driver->stream_query(lm_device_physical(s->device), s->native, done);
}

lm_status lm_stream_wait_foreign(lm_stream *waiter, void *event) {
  lm_status status = lm_stream_wait_event(waiter, event, NULL);
  if (status == LM_OK) lm_stream_touch(waiter);
  return status;
}
