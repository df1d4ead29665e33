/* Sends the client's messages to the store; all but lm_client_cause with the client's lock held. */
#include <errno.h>
#include <math.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/thread.h"
#include "distributed/store/client_core.h"
#include "distributed/store/failure_text.h"

enum { OUT_MAX = 2 * LM_MESSAGE_MAX };

const lm_failure *lm_client_cause(const lm_client *c) {
  return atomic_load_explicit(&c->failed, memory_order_acquire) ? &c->cause : NULL;
}

void lm_client_push(lm_client *c) {
  while (c->fd >= 0 && c->sent < c->out.n) {
    ssize_t n = send(c->fd, c->out.data + c->sent, c->out.n - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    c->sent += (size_t)n;
  }
  if (c->sent == c->out.n || c->sent > OUT_MAX / 4) {
    lm_bytes_shift(&c->out, c->sent);
    c->sent = 0;
  }
}

size_t lm_client_begin(lm_client *c, lm_message kind) { return lm_message_begin(&c->out, kind); }

lm_status lm_client_end(lm_client *c, size_t at) {
  lm_status status = LM_OK;
  if (c->out.failed) {
    status = LM_E_OOM;
  } else if (c->fd < 0) {
    char text[1000] = "the store ended with rank 0";
    if (lm_client_cause(c)) lm_failure_text(&c->cause, text, sizeof text);
    status = lm_fail(LM_E_STATE, "%s", text);
  } else if (c->out.n > OUT_MAX || c->out.n - at > LM_MESSAGE_MAX) {
    status = lm_fail(LM_E_STATE, "the store is too slow: %zu bytes for it are still unsent", at);
  }
  if (status == LM_OK) {
    lm_message_end(&c->out, at);
    lm_client_push(c);
    if (c->out.n > 0) lm_wakeup_fd_signal(c->wakeup_fd);
  } else {
    c->out.n = at;
    c->out.failed = false;
  }
  return status;
}

void lm_client_report(lm_client *c, lm_message kind, uint32_t group, const lm_ticket *ticket) {
  size_t at = lm_client_begin(c, kind);
  lm_put_u32(&c->out, group);
  lm_put_ticket(&c->out, ticket);
  lm_client_end(c, at);
}

void lm_client_wait_briefly(lm_client *c, double until) {
  double now = lm_seconds(), end = fmin(until, now + 0.05);
  if (end > now) lm_cond_wait_until(&c->changed, &c->lock, end);
}
