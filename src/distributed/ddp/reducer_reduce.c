/* Exchanges the ranks' facts before an average, and sums full buckets over the ranks.
 *
 * With shared memory a flag announces a full bucket. Each rank sums its own part of it over all ranks' buckets and
 * writes the result into each of them, in place. Flags count buckets over all passes, so a value belongs to one pass.
 *
 * Without shared memory a bucket is passed to all_reduce as soon as it is full and next in order. The first one waits
 * for the facts, which contain the ranks' weights. It must wait rather than check for their arrival: otherwise ranks
 * would send buckets in different order relative to other collectives of backward. After that the CPU scales gradients
 * while it copies them into buckets; on other devices the call does (lm_group_call). */
#include <stdio.h>
#include <string.h>

#include "base/large_array.h"
#include "base/mem.h"
#include "convert.h"
#include "device/recorder.h"
#include "distributed/ddp/reducer_core.h"
#include "distributed/group/call_timeouts.h"

enum { FLAG_FACTS, FLAG_FULL, FLAG_SUMMED };

/* ---- facts */

/* Returns a rank's facts of the current exchange. In shared memory two copies alternate, since the last may still be
 * read while the next is written. */
static lm_facts *facts_of(const lm_reducer *r, int rank) {
  size_t turn = r->exchanges & 1;
  if (r->shared) return (lm_facts *)(void *)(lm_shared_region(r->shared, rank) + turn * r->facts_bytes);
  return (lm_facts *)(void *)(r->heard->data + (size_t)rank * r->facts_bytes);
}

lm_status lm_facts_open(lm_reducer *r) {
  int64_t size[2] = {r->g->size, (int64_t)r->facts_bytes};
  NEED(lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 1, size + 1, LM_CONTIGUOUS, &r->sent));
  r->factor = lm_calloc((size_t)r->g->size, sizeof *r->factor);
  r->parts = lm_calloc((size_t)r->g->size, sizeof *r->parts);
  if (!r->factor || !r->parts) NEED(LM_E_OOM);
  return lm_tensor_empty(LM_U8, LM_DEVICE(LM_CPU, 0), 2, size, LM_CONTIGUOUS, &r->heard);
}

static void name_event(const lm_reducer *r, lm_arrival event, lm_ticket *t) {
  static const char *const names[] = {"forward", "backward", "join"};
  t->kind = LM_SETUP;
  snprintf(t->what, sizeof t->what, "%s %s", r->title, names[event]);
  snprintf(t->where, sizeof t->where, "%s", lm_where());
  t->hash =
      lm_reduce_hash(r, 0); /* one hash for all events: a rank without batches does not know the others' next one */
}

lm_status lm_facts_announce(lm_reducer *r, lm_arrival event) {
  lm_facts *own = (lm_facts *)(void *)r->sent->data;
  lm_group_core *core = r->g->core;
  r->exchanges++;
  r->known = false;
  memset(own, 0, r->facts_bytes);
  name_event(r, event, &own->ticket);
  own->event = event;
  own->weight = event == LM_ARRIVAL_JOINED ? 0 : r->config.weighted ? r->weight : 1;
  for (int i = 0; i < r->n && event == LM_ARRIVAL_BACKWARD; i++) {
    if (r->slot[i].used || !r->slot[i].absent) own->used[i / 8] |= (uint8_t)(1u << i % 8);
  }
  if (r->shared) {
    own->ticket.seq = atomic_fetch_add(&core->seq, 1) + 1;
    memcpy(facts_of(r, r->g->rank), own, r->facts_bytes);
    lm_shared_post(r->shared, FLAG_FACTS, r->exchanges);
    lm_call_passed(core, &own->ticket);
  } else {
    own->ticket.seq = atomic_load(&core->seq) + 1; /* the number that lm_collective_start assigns */
    lm_collective_purpose(own->ticket.what, own->ticket.hash);
    NEED(lm_collective_start(r->g, &(lm_group_call){.kind = LM_ALL_GATHER, .t = r->sent, .nout = 1, .out = &r->heard},
                             &r->announcing));
  }
  r->announced = true;
  return LM_OK;
}

static lm_status fail_reduce_mismatch(lm_reducer *r, int peer) {
  lm_waiting w;
  lm_waiting_begin(&w, LM_WAITING_UNTIL_DONE, r->g->core, &((lm_facts *)(void *)r->sent->data)->ticket,
                   r->g->core->timeout);
  lm_status status = lm_group_mismatch(r->g, peer, &facts_of(r, peer)->ticket);
  lm_waiting_end(&w, false);
  return status;
}

/* Compares all ranks' facts, which have arrived, and computes factor, event and root. */
static lm_status take_facts(lm_reducer *r) {
  const lm_facts *own = (lm_facts *)(void *)r->sent->data;
  int size = r->g->size, active = 0;
  lm_arrival event = (lm_arrival)own->event;
  double total = 0;
  for (int rank = size - 1; rank >= 0; rank--) {
    const lm_facts *f = facts_of(r, rank);
    if (!lm_tickets_agree(&f->ticket, &own->ticket)) return fail_reduce_mismatch(r, rank);
    if (f->event == LM_ARRIVAL_JOINED) continue;
    if (event != LM_ARRIVAL_JOINED && f->event != (int)event) return fail_reduce_mismatch(r, rank);
    event = (lm_arrival)f->event;
    total += f->weight;
    r->root = rank;
    active++;
  }
  for (int rank = 0; rank < size; rank++) {
    const lm_facts *f = facts_of(r, rank);
    bool counts = f->event != LM_ARRIVAL_JOINED;
    r->factor[rank] = !counts ? 0 : total > 0 ? f->weight / total : 1.0 / active;
  }
  r->event = event;
  r->known = true;
  return LM_OK;
}

static bool everyone_at(const lm_reducer *r, int flag, uint32_t value) {
  for (int rank = 0; rank < r->g->size; rank++) {
    if (rank != r->g->rank && !lm_shared_reached(r->shared, rank, flag, value)) return false;
  }
  return true;
}

static lm_status wait_for_all(lm_reducer *r, int flag, uint32_t value) {
  lm_status status = LM_OK;
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_WAIT, "all_reduce: wait", LM_NO_DEVICE);
  for (int rank = 0; rank < r->g->size && status == LM_OK; rank++) {
    if (rank != r->g->rank) status = lm_shared_wait(r->shared, rank, flag, value);
  }
  if (traced) lm_span_end(&span);
  return status;
}

lm_status lm_facts_wait(lm_reducer *r) {
  lm_status status = LM_OK;
  if (r->known) return LM_OK;
  if (r->shared) {
    lm_waiting w;
    lm_waiting_begin(&w, LM_WAITING_UNTIL_DONE, r->g->core, &((lm_facts *)(void *)r->sent->data)->ticket,
                     r->g->core->timeout);
    status = wait_for_all(r, FLAG_FACTS, r->exchanges);
    if (status == LM_OK) status = take_facts(r);
    lm_waiting_end(&w, status == LM_OK && r->event != LM_ARRIVAL_BACKWARD); /* backward ends in finish_shared */
    return status;
  }
  NEED(lm_reduce_wait(&r->announcing));
  NEED(take_facts(r));
  return status;
}

bool lm_used_anywhere(const lm_reducer *r, int i) {
  for (int rank = 0; rank < r->g->size; rank++) {
    if (facts_of(r, rank)->used[i / 8] >> i % 8 & 1) return true;
  }
  return false;
}

/* ---- arithmetic */

enum { TILE = 1024 };

/* load: acc = or += factor * x, in float, or in double for float64; store: x = acc. */
#define LOAD(dtype, stored, number)                                                                    \
  static void load_##dtype(number *acc, const stored *x, int n, number factor, bool first) {           \
    if (first) {                                                                                       \
      _Pragma("omp simd") for (int i = 0; i < n; i++) acc[i] = factor * (number)LM_GET_##dtype(x[i]);  \
    } else {                                                                                           \
      _Pragma("omp simd") for (int i = 0; i < n; i++) acc[i] += factor * (number)LM_GET_##dtype(x[i]); \
    }                                                                                                  \
  }                                                                                                    \
  static void store_##dtype(stored *x, const number *acc, int n) {                                     \
    _Pragma("omp simd") for (int i = 0; i < n; i++) x[i] = LM_PUT_##dtype(acc[i]);                     \
  }
LOAD(F16, uint16_t, float)
LOAD(BF16, uint16_t, float)
LOAD(F32, float, float)
LOAD(F64, double, double)

/* Writes the weighted sum over all ranks' x, n elements, into each of them. A rank with factor 0 is not read, since its
 * memory may hold anything, NaN included. */
#define SUM(dtype, stored, number)                                                                   \
  static void sum_##dtype(int size, char *const *x, const double *factor, size_t n) {                \
    LM_LARGE(number, acc, TILE);                                                                     \
    for (size_t at = 0; at < n; at += TILE) {                                                        \
      int count = n - at < TILE ? (int)(n - at) : TILE;                                              \
      bool first = true;                                                                             \
      for (int r = 0; r < size; r++) {                                                               \
        if (factor[r] == 0) continue;                                                                \
        load_##dtype(acc, (const stored *)(const void *)x[r] + at, count, (number)factor[r], first); \
        first = false;                                                                               \
      }                                                                                              \
      if (first) memset(acc, 0, TILE * sizeof *acc);                                                 \
      for (int r = 0; r < size; r++) store_##dtype((stored *)(void *)x[r] + at, acc, count);         \
    }                                                                                                \
  }
SUM(F16, uint16_t, float)
SUM(BF16, uint16_t, float)
SUM(F32, float, float)
SUM(F64, double, double)

/* Sums this rank's part of a bucket: whole cache lines, so that no two ranks write to the same one. */
static void sum_part(const lm_reducer *r, const lm_bucket *b) {
  enum { LINE = 64, FEW = 64 };
  size_t lines = b->bytes / LINE, size = (size_t)r->g->size, rank = (size_t)r->g->rank;
  size_t begin = lines * rank / size * LINE, end = lines * (rank + 1) / size * LINE;
  size_t at = 2 * r->facts_bytes + b->at + begin, n = (end - begin) / lm_dtype_size(b->dtype);
  char **x = r->parts;
  for (int k = 0; k < r->g->size; k++) x[k] = lm_shared_region(r->shared, k) + at;
  switch (b->dtype) {
    case LM_F16: sum_F16(r->g->size, x, r->factor, n); break;
    case LM_BF16: sum_BF16(r->g->size, x, r->factor, n); break;
    case LM_F32: sum_F32(r->g->size, x, r->factor, n); break;
    default: sum_F64(r->g->size, x, r->factor, n); break;
  }
}

/* Computes to = factor * from for n elements; both are dense with the same layout. */
static void scale_into(lm_dtype dtype, char *to, const char *from, size_t n, double factor) {
  size_t element = lm_dtype_size(dtype);
  for (size_t at = 0; at < n; at += TILE) { /* small tiles: still in the cache when they are scaled */
    size_t count = n - at < TILE ? n - at : TILE;
    if (to != from) memcpy(to + at * element, from + at * element, count * element);
    if (factor != 1) lm_reduce_scale(dtype, to + at * element, count, factor);
  }
}

static bool on_cpu(lm_device device) { return LM_DEVICE_KIND(device) == LM_CPU; }

/* Multiplies slot i's memory by this rank's factor; CPU only. */
static void scale_slot(lm_reducer *r, int i) {
  lm_slot *s = &r->slot[i];
  double factor = r->factor[r->g->rank];
  char *data = lm_slot_data(r, i);
  if (factor > 0) {
    scale_into(s->view->dtype, data, data, (size_t)s->view->numel, factor);
  } else { /* 0 * infinity is NaN */
    memset(data, 0, s->bytes);
  }
  s->scaled = true;
}

lm_status lm_reduce_put(lm_reducer *r, int i, lm_tensor *grad) {
  lm_slot *s = &r->slot[i];
  bool cpu = on_cpu(s->view->device), scales = cpu && !r->shared && r->known;
  s->scaled = false;
  if (!grad) {
    if (!cpu) return lm_fill_with_zeros(s->view);
    memset(lm_slot_data(r, i), 0, s->bytes);
    s->scaled = true;
    return LM_OK;
  }
  if (!lm_is_same_view(grad, s->view)) {
    bool alike = scales && lm_is_dense(grad);
    for (int d = 0; d < grad->ndim && alike; d++) alike = grad->size[d] == 1 || grad->stride[d] == s->view->stride[d];
    if (alike && r->factor[r->g->rank] > 0) {
      scale_into(grad->dtype, lm_slot_data(r, i), grad->data, (size_t)grad->numel, r->factor[r->g->rank]);
      s->scaled = true;
      return LM_OK;
    }
    NEED(lm_copy(grad, s->view));
  }
  if (scales) scale_slot(r, i);
  return LM_OK;
}

/* ---- sending and summing buckets */

/* Starts the all_reduce or the hook of bucket k; the facts are known. */
static lm_status reduce_send(lm_reducer *r, int k) {
  lm_bucket *b = &r->bucket[k];
  double factor = r->factor[r->g->rank];
  bool cpu = on_cpu(b->device), hooked = lm_hook_takes(r, b);
  for (int i = 0; i < r->n && cpu; i++) {
    if (r->slot[i].bucket == k && !r->slot[i].scaled) scale_slot(r, i);
  }
  if (!cpu && hooked) NEED(lm_scale_in_place(b->flat, factor));
  if (hooked) return lm_hook_start(r, k);
  lm_reduce_name(r, k);
  return lm_collective_start(
      r->g, &(lm_group_call){.kind = LM_ALL_REDUCE, .t = b->flat, .scaled = !cpu, .scale = factor}, &b->work);
}

static bool next_is_full(const lm_reducer *r) {
  return r->launched < r->nbuckets && r->bucket[r->launched].waits_for == 0;
}

static lm_status send_full(lm_reducer *r) {
  while (next_is_full(r)) {
    NEED(lm_facts_wait(r));
    NEED(reduce_send(r, r->launched++));
  }
  return LM_OK;
}

static void sum_next(lm_reducer *r) {
  const lm_bucket *b = &r->bucket[r->reduced];
  lm_span span;
  const bool traced = lm_traces(LM_TRACE_CALLS);
  if (traced) lm_span_begin(&span, LM_SPAN_COLLECTIVE, "all_reduce", LM_NO_DEVICE);
  sum_part(r, b);
  if (traced) span.bytes = (int64_t)b->bytes;
  if (traced) lm_span_end(&span);
  r->reduced++;
  lm_shared_post(r->shared, FLAG_SUMMED, r->base + (uint32_t)r->reduced);
}

static void announce_full(lm_reducer *r) {
  int before = r->launched;
  while (next_is_full(r)) r->launched++;
  if (r->launched > before) lm_shared_post(r->shared, FLAG_FULL, r->base + (uint32_t)r->launched);
}

lm_status lm_reduce_advance(lm_reducer *r) {
  if (!r->shared) return send_full(r);
  announce_full(r);
  if (!r->known && everyone_at(r, FLAG_FACTS, r->exchanges)) NEED(take_facts(r));
  while (r->known && r->reduced < r->launched && everyone_at(r, FLAG_FULL, r->base + (uint32_t)r->reduced + 1))
    sum_next(r);
  return LM_OK;
}

static lm_status finish_shared(lm_reducer *r) {
  lm_status status = LM_OK;
  lm_waiting w;
  lm_ticket *t = &((lm_facts *)(void *)r->sent->data)->ticket;
  lm_waiting_begin(&w, LM_WAITING_UNTIL_DONE, r->g->core, t, r->g->core->timeout);
  announce_full(r);
  TRY(wait_for_all(r, FLAG_FACTS, r->exchanges));
  if (!r->known) TRY(take_facts(r));
  while (r->reduced < r->nbuckets) {
    uint32_t next = r->base + (uint32_t)r->reduced + 1;
    if (!everyone_at(r, FLAG_FULL, next)) {
      lm_reduce_name_bucket(r, r->reduced, &w.ticket); /* a name for messages; the hash stays: all are one call */
      TRY(wait_for_all(r, FLAG_FULL, next));
    }
    sum_next(r);
  }
  TRY(wait_for_all(r, FLAG_SUMMED, r->base + (uint32_t)r->nbuckets));
done:
  lm_waiting_end(&w, status == LM_OK);
  return status;
}

lm_status lm_reduce_finish(lm_reducer *r) {
  if (r->shared) {
    NEED(finish_shared(r));
  } else {
    NEED(send_full(r));
    for (int b = 0; b < r->nbuckets; b++) {
      NEED(lm_hook_takes(r, &r->bucket[b]) ? lm_hook_finish(r, b) : lm_reduce_wait(&r->bucket[b].work));
    }
  }
  r->base += (uint32_t)r->nbuckets;
  for (int i = 0; i < r->n; i++) lm_bump(r->slot[i].view, LM_BY_COLLECTIVE);
  return LM_OK;
}
