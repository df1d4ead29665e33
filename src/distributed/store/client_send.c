/* Sends the client's messages to the store; all but lm_client_cause with the client's lock held. */
#include <math.h>

#include "base/clock.h"
#include "base/thread.h"
#include "distributed/store/client_core.h"
#include "distributed/store/failure_text.h"

enum { OUT_MAX = 2 * LM_MESSAGE_MAX };

const lm_failure *lm_client_cause(const lm_client *c) {
  return atomic_load_explicit(&c->failed, memory_order_acquire) ? &c->cause : NULL;
}

size_t lm_client_begin(lm_client *c, lm_message kind) { return lm_message_begin(&c->stream.out, kind); }

lm_status lm_client_end(lm_client *c, size_t at) {
  lm_status status = LM_OK;
  if (c->stream.out.failed) {
    status = LM_E_OOM;
  } else if (!lm_client_is_connected(c)) {
    char text[1000] = "the store ended with rank 0";
    if (lm_client_cause(c)) lm_failure_text(&c->cause, text, sizeof text);
    status = lm_fail(LM_E_STATE, "%s", text);
  } else if (c->stream.out.n > OUT_MAX || c->stream.out.n - at > LM_MESSAGE_MAX) {
    status = lm_fail(LM_E_STATE, "the store is too slow: %zu bytes for it are still unsent", at);
  }
  if (status == LM_OK) {
    lm_message_end(&c->stream.out, at);
    lm_stream_send(&c->stream);
  } else {
    c->stream.out.n = at;
    c->stream.out.failed = false;
  }
  return status;
}

void lm_client_report(lm_client *c, lm_message kind, uint32_t group, const lm_ticket *ticket) {
  size_t at = lm_client_begin(c, kind);
  lm_put_u32(&c->stream.out, group);
  lm_put_ticket(&c->stream.out, ticket);
  lm_client_end(c, at);
}

void lm_client_wait_briefly(lm_client *c, double until) {
  double now = lm_seconds(), end = fmin(until, now + 0.05);
  if (end > now) lm_cond_wait_until(&c->changed, &c->lock, end);
}
