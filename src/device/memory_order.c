/* Orders streams that use the same block of memory (lm_used). */
#include "device/stream_core.h"

/* Makes s wait for the latest graph launch if a graph uses the memory. */
static lm_status wait_for_graphs(uint64_t word, lm_stream *s) {
  lm_stream *launched = word & LM_USED_GRAPH && !lm_stream_tag(s) ? lm_stream_launched(s->device) : NULL;
  return launched ? lm_stream_wait(s, launched) : LM_OK;
}

lm_status lm_use_read(lm_used *used, lm_stream *s) {
  if (!s->native) return LM_OK;
  uint64_t word = atomic_load_explicit(used, memory_order_acquire), bit = LM_USED_BIT(s->id), tag = lm_stream_tag(s),
           next;
  if ((word & (bit | LM_USED_GRAPH)) == bit && !tag) return LM_OK;
  do {
    if (word && !(word & bit)) {
      lm_stream *writer = lm_stream_by_id(s->device, (int)(word & LM_USED_WRITER));
      if (writer) NEED(lm_stream_wait(s, writer));
    }
    NEED(wait_for_graphs(word, s));
    next = (word ? word : s->id) | bit | tag;
  } while (!atomic_compare_exchange_weak(used, &word, next));
  return LM_OK;
}

lm_status lm_use_after(lm_used *used, lm_stream *s, const lm_stream *done) {
  if (!s->native) return LM_OK;
  uint64_t word = atomic_load_explicit(used, memory_order_acquire), mine = s->id | LM_USED_BIT(s->id),
           tag = lm_stream_tag(s);
  if (word == mine && !tag) return LM_OK;
  do {
    NEED(lm_stream_wait_mask(s, done ? word & ~LM_USED_BIT(done->id) : word));
    NEED(wait_for_graphs(word, s));
  } while (!atomic_compare_exchange_weak(used, &word, mine | (word & LM_USED_GRAPH) | tag));
  return LM_OK;
}

lm_status lm_use_write(lm_used *used, lm_stream *s) { return lm_use_after(used, s, NULL); }
void lm_use_ended(lm_used *used) { atomic_fetch_and(used, LM_USED_GRAPH); }

/* Records the stream even if the wait of lm_use_read fails; the bit then claims an order that was not established. */
void lm_use_note(lm_used *used, lm_stream *s) {
  if (!s->native || lm_use_read(used, s) == LM_OK) return;
  uint64_t word = atomic_load(used);
  while (!atomic_compare_exchange_weak(used, &word, (word ? word : s->id) | LM_USED_BIT(s->id))) continue;
}

lm_status lm_use_is_over(lm_device device, uint64_t *used, void **mark, bool *over) {
  lm_status status = LM_OK;
  const lm_driver *driver = lm_driver_of(device);
  *over = false;
  if (*used & LM_USED_GRAPH) {
    lm_stream *launched = lm_stream_launched(device);
    *used = (*used & LM_USED_BITS) | (launched ? LM_USED_BIT(launched->id) : 0);
  }
  for (uint64_t mask; (mask = *used & LM_USED_BITS); *used = mask & (mask - 1)) {
    lm_stream *s = lm_stream_by_id(device, __builtin_ctzll(mask) - 6);
    bool done = true;
    if (!s || !s->native) continue;
    if (!*mark) TRY(lm_stream_mark(s, mark));
    if (!*mark) return LM_OK; /* another thread captures it */
    TRY(driver->event_query(lm_device_physical(device), *mark, &done));
    if (!done) return LM_OK;
    lm_event_put(device, false, *mark);
    *mark = NULL;
  }
  *over = true;
done:
  if (status != LM_OK && *mark) {
    lm_event_put(device, false, *mark);
    *mark = NULL;
  }
  return status;
}
