/* Sends requests to the store and matches its replies by their id. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/store/client_core.h"

enum { VALUE_MAX = LM_MESSAGE_MAX / 2 };

void lm_client_reply(lm_client *c, lm_reader *r) {
  uint32_t id = lm_get_u32(r);
  bool found = lm_get_u8(r);
  size_t n;
  const char *value = lm_get_string(r, &n);
  if (r->failed) return;
  for (lm_client_request *q = c->questions; q; q = q->next) {
    if (q->id != id || q->done) continue;
    q->data = found ? lm_malloc(n + 1) : NULL; /* zero-terminated, in case it is text */
    if (q->data) {
      if (n > 0) memcpy(q->data, value, n);
      ((char *)q->data)[n] = 0;
    }
    q->n = n;
    q->found = found;
    q->done = true;
    break;
  }
}

/* Begins a request with a new id; the caller appends the fields. This and `await_reply` need the lock. */
static size_t begin_request(lm_client *c, lm_client_request *q, lm_message kind) {
  size_t at = lm_client_begin(c, kind);
  q->id = ++c->last_id;
  q->next = c->questions;
  c->questions = q;
  lm_put_u32(&c->stream.out, q->id);
  return at;
}

static lm_status await_reply(lm_client *c, lm_client_request *q, const lm_deadline *p) {
  lm_status status = LM_OK;
  while (!q->done) {
    if (!lm_client_is_connected(c)) {
      status = lm_fail(LM_E_STATE, "the store ended with rank 0");
    } else if (lm_seconds() > p->deadline) {
      status = lm_fail(LM_E_STATE, "the store of rank 0 did not answer");
    }
    if (p->check) { /* the check's error explains more */
      pthread_mutex_unlock(&c->lock);
      lm_status checked = p->check(p->ctx);
      pthread_mutex_lock(&c->lock);
      if (checked != LM_OK) status = checked;
    }
    if (status != LM_OK) break;
    if (!q->done) lm_client_wait_briefly(c, p->deadline + 0.001);
  }
  if (status == LM_OK && q->found && !q->data)
    status = lm_fail(LM_E_OOM, "out of memory for %zu bytes of the store", q->n);
  return status;
}

lm_status lm_client_set(lm_client *c, const char *key, const void *data, size_t n) {
  if (n > VALUE_MAX) return lm_fail(LM_E_ARG, "a value in the store must have at most %d bytes, got %zu", VALUE_MAX, n);
  LM_LOCKED(&c->lock);
  size_t at = lm_client_begin(c, LM_M_SET);
  lm_put_text(&c->stream.out, key);
  lm_put_string(&c->stream.out, data, n);
  return lm_client_end(c, at);
}

lm_status lm_client_forget(lm_client *c, uint32_t group) {
  LM_LOCKED(&c->lock);
  size_t at = lm_client_begin(c, LM_M_FORGET);
  lm_put_u32(&c->stream.out, group);
  return lm_client_end(c, at);
}

/* Sends a request about a key with `more` fields and waits for its reply. The caller frees q->data, even on error. */
static lm_status request_by_key(lm_client *c, lm_message kind, const char *key, const void *more, size_t n,
                                const lm_deadline *p, lm_client_request *q) {
  lm_status status = LM_OK;
  *q = (lm_client_request){0};
  pthread_mutex_lock(&c->lock);
  size_t at = begin_request(c, q, kind);
  lm_put_text(&c->stream.out, key);
  lm_put(&c->stream.out, more, n);
  TRY(lm_client_end(c, at));
  TRY(await_reply(c, q, p));
done:
  LM_UNLINK(c->questions, q);
  pthread_mutex_unlock(&c->lock);
  return status;
}

lm_status lm_client_get(lm_client *c, const char *key, bool wait, const lm_deadline *p, bool *found, void **data,
                        size_t *n) {
  lm_client_request q;
  lm_status status = request_by_key(c, LM_M_GET, key, &(uint8_t){wait}, 1, p, &q);
  if (status != LM_OK) {
    lm_free(q.data);
    q.data = NULL;
  }
  if (found) *found = q.found;
  *data = q.data;
  *n = q.data ? q.n : 0;
  return status;
}

lm_status lm_client_add(lm_client *c, const char *key, int64_t delta, const lm_deadline *p, int64_t *out) {
  lm_client_request q;
  lm_status status = request_by_key(c, LM_M_ADD, key, &delta, sizeof delta, p, &q);
  *out = q.data ? strtoll(q.data, NULL, 10) : 0;
  lm_free(q.data);
  if (status == LM_OK && !q.found)
    status = lm_fail(LM_E_STATE, "cannot add to '%s' in the store: its value is not a number", key);
  return status;
}

void lm_client_missing(lm_client *c, uint32_t group, uint64_t seq, int n, const int *ranks, double seconds,
                       lm_missing *out) {
  lm_client_request q = {0};
  double until = lm_seconds() + seconds;
  *out = (lm_missing){0};
  pthread_mutex_lock(&c->lock);
  size_t at = begin_request(c, &q, LM_M_MISSING);
  lm_put_u32(&c->stream.out, group);
  lm_put_u64(&c->stream.out, seq);
  lm_put_u32(&c->stream.out, (uint32_t)n);
  for (int i = 0; i < n; i++) lm_put_u32(&c->stream.out, (uint32_t)ranks[i]);
  if (lm_client_end(c, at) == LM_OK)
    while (!q.done && lm_client_is_connected(c) && lm_seconds() < until) lm_client_wait_briefly(c, until);
  LM_UNLINK(c->questions, &q);
  pthread_mutex_unlock(&c->lock);
  lm_reader reply = lm_reader_of(q.data, q.n);
  if (q.data) lm_get_missing(&reply, c->size, out);
  lm_free(q.data);
}
