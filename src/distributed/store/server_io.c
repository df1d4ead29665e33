/* Reads and frees the store's connections, and passes their messages on. */
#include <errno.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/message.h"
#include "distributed/store/server_private.h"

static const double join_time = 5; /* seconds from the handshake to JOIN */

void lm_conn_free(lm_server *s, lm_conn *c) {
  if (c->waits > 0) lm_server_cancel_waits(s, c);
  lm_conn_leave_list(c);
  lm_stream_free(&c->stream);
  lm_free(c);
}

void lm_conns_reap(lm_server *s) {
  for (lm_conn *c; (c = s->gone.first);) {
    bool lives = c->rank >= 0 && c->as != LM_FAILURE_DIED && !c->stream.out.failed;
    if (c->rank >= 0) lm_server_lost(s, c);
    if (lives) { /* a living member can still read the cause */
      c->gone = false;
      if (c->waits > 0) lm_server_cancel_waits(s, c);
      lm_conn_close_gently(s, c);
    } else {
      lm_conn_free(s, c);
    }
  }
}

/* ---- messages */

static bool conn_handle(lm_server *s, lm_conn *c, lm_message kind, lm_reader *r) {
  if (c->state == LM_CONN_JOINING) return kind == LM_M_JOIN && lm_server_join(s, c, r);
  switch (kind) {
    case LM_M_SET: return lm_server_set(s, c, r);
    case LM_M_GET: return lm_server_get(s, c, r);
    case LM_M_ADD: return lm_server_add(s, c, r);
    case LM_M_FORGET: return lm_server_forget(s, c, r);
    case LM_M_ALIVE: return lm_server_alive(s, c, r);
    case LM_M_PASSED: return lm_server_passed(s, c, r);
    case LM_M_WAITING: return lm_server_waiting(s, c, r);
    case LM_M_RESUMED: return lm_server_resumed(s, c, r);
    case LM_M_MISSING: return lm_server_missing(s, c, r);
    case LM_M_FAIL: return lm_server_fail(s, c, r);
    case LM_M_GOODBYE: return lm_server_goodbye(s, c, r);
    default: return false;
  }
}

static void conn_handle_all(lm_server *s, lm_conn *c) {
  while (!c->gone && c->state != LM_CONN_CLOSING) {
    lm_message kind;
    lm_reader fields;
    bool complete;
    lm_status status = lm_message_next(&c->stream, &kind, &fields, &complete);
    if (status == LM_OK && !complete) break;
    if (status != LM_OK || !conn_handle(s, c, kind, &fields))
      lm_conn_drop(s, c, LM_FAILURE_ERROR, "it sent the store a malformed message");
  }
}

static void conn_received(lm_framed_stream *stream, ssize_t n) {
  lm_conn *c = (lm_conn *)stream; /* through its first member */
  lm_server *s = c->server;
  lm_failure_kind kind = lm_failure_kind_of(n < 0 ? errno : 0);
  if (c->gone) return;
  if (n > 0) c->heard = s->now;
  if (n <= 0) {
    lm_conn_drop(s, c, kind, kind == LM_FAILURE_FROZEN ? "its host does not answer" : NULL);
  } else if (c->stream.in.failed) {
    lm_conn_no_memory(s, c);
  } else if (c->state == LM_CONN_CLOSING) {
    lm_stream_drop_input(&c->stream);
  } else {
    conn_handle_all(s, c);
  }
}

/* ---- new connections */

void lm_server_admit(void *ctx, int fd, lm_reader hello) {
  lm_server *s = ctx;
  lm_conn *c = lm_reader_done(&hello) ? lm_calloc(1, sizeof *c) : NULL;
  if (!c || lm_stream_watch(&c->stream, &s->loop, fd, conn_received) != LM_OK) { /* the rank connects again */
    close(fd);
    lm_free(c);
    return;
  }
  c->server = s;
  c->rank = -1;
  c->deadline = s->now + join_time;
  lm_conn_move(c, &s->joining);
}
