/* Lets members join and leave, and notifies all members when one fails. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "distributed/store/failure_text.h"
#include "distributed/store/server_private.h"

enum { GROUPS_MAX = 65536 };
static const double hold_back = 0.15; /* seconds in which the cause of a held failure may come */
static const double linger = 1;       /* seconds for late ranks of a failed start to learn the cause */

/* ---- failures */

static void send_failure(lm_server *s, lm_conn *c) {
  size_t at = lm_message_begin(&c->stream.out, LM_M_FAILURE);
  lm_put_failure(&c->stream.out, &s->cause);
  lm_message_end(&c->stream.out, at);
  lm_conn_send(s, c);
}

void lm_server_publish(lm_server *s, const lm_failure *failure) {
  char text[1024];
  if (s->cause.kind) return;
  s->cause = *failure;
  s->cause_at = s->now;
  s->held.kind = LM_FAILURE_NONE;
  lm_server_member *member = &s->member_table[failure->who.rank];
  if (member->joined) snprintf(s->cause.who.host, sizeof s->cause.who.host, "%s", member->who.host);
  lm_log(LM_LOG_DIST, "store: %s", lm_failure_text(&s->cause, text, sizeof text));
  for (int r = 0; r < s->size; r++)
    if (s->member_table[r].conn && !s->member_table[r].left) send_failure(s, s->member_table[r].conn);
}

/* Publishes a failure of a rank that the store found itself. */
static void server_found_failure(lm_server *s, lm_failure_kind kind, int rank, const char *why) {
  const lm_ticket *last = &s->member_table[rank].last.ticket;
  char here[64] = "";
  if (!s->member_table[rank].joined) gethostname(here, sizeof here - 1); /* rank 0, on this host */
  lm_failure failure = lm_failure_of(kind, rank, here, -1);
  failure.who.call = *last;
  if (last->what[0]) failure.who.standing = LM_LAST_IN;
  snprintf(failure.message, sizeof failure.message, "%s", why ? why : "");
  snprintf(failure.where, sizeof failure.where, "%s", last->where);
  lm_server_publish(s, &failure);
}

bool lm_server_fail(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_failure failure;
  lm_get_failure(r, &failure);
  if (!lm_reader_done(r) || failure.who.rank < 0 || failure.who.rank >= s->size) return false;
  failure.reported_by = c->rank;
  if (s->cause.kind) {
    send_failure(s, c);
  } else if (failure.kind == LM_FAILURE_UNREACHABLE || failure.kind == LM_FAILURE_LEFT ||
             (failure.kind == LM_FAILURE_MISMATCH && s->size > 2)) {
    lm_server_hold(s, &failure);
  } else {
    lm_server_publish(s, &failure);
  }
  return true;
}

void lm_server_hold(lm_server *s, const lm_failure *failure) {
  bool better = failure->kind == LM_FAILURE_MISMATCH && (s->held.kind != failure->kind || failure->reported_by < 0);
  if (s->held.kind && !better) return;
  if (!s->held.kind) s->held_until = s->now + hold_back;
  s->held = *failure;
}

void lm_server_publish_held(lm_server *s) {
  lm_failure failure = s->held;
  lm_server_publish(s, &failure);
}

/* ---- joining */

static void send_welcome(lm_server *s) {
  lm_bytes b = {0};
  size_t at = lm_message_begin(&b, LM_M_WELCOME);
  lm_put_u32(&b, (uint32_t)s->size);
  for (int r = 0; r < s->size; r++) lm_put_member(&b, &s->member_table[r].who);
  lm_message_end(&b, at);
  for (int r = 0; r < s->size; r++) {
    lm_conn *c = s->member_table[r].conn;
    if (!c) continue;
    lm_put(&c->stream.out, b.data, b.n);
    c->stream.out.failed |= b.failed;
    lm_conn_send(s, c);
  }
  lm_bytes_free(&b);
}

static bool refuse_member(lm_server *s, lm_conn *c, const char *why) {
  snprintf(s->refusal, sizeof s->refusal, "%s", why);
  size_t at = lm_message_begin(&c->stream.out, LM_M_REFUSED);
  lm_put_text(&c->stream.out, why);
  lm_message_end(&c->stream.out, at);
  lm_conn_close_gently(s, c);
  return true;
}

static bool refuse_early(lm_server *s, lm_conn *c) {
  lm_message_end(&c->stream.out, lm_message_begin(&c->stream.out, LM_M_AHEAD));
  lm_conn_close_gently(s, c);
  return true;
}

static void member_fill(lm_server *s, lm_conn *c, int rank, const lm_member *who) {
  lm_server_member *member = &s->member_table[rank];
  member->joined = true;
  member->who = *who;
  member->conn = c;
  c->rank = rank;
  c->state = LM_CONN_MEMBER;
  lm_conn_move(c, &s->members);
  s->joined++;
  if (s->heartbeat_timeout > 0 && s->silence_at <= 0) s->silence_at = s->now + s->heartbeat_timeout;
  if (s->cause.kind) {
    send_failure(s, c);
  } else if (s->joined == s->size) {
    s->welcomed = true;
    send_welcome(s);
  }
  if (s->joined == s->size) lm_server_stop_accepting(s);
}

bool lm_server_join(lm_server *s, lm_conn *c, lm_reader *r) {
  char why[512];
  lm_member who;
  uint32_t version = lm_get_u32(r);
  if (r->failed) return false;
  if (version != LM_PROTOCOL) {
    snprintf(
        why, sizeof why,
        "protocol versions differ: this rank has %u, rank 0 has %d; install the same version of Luminary on all ranks",
        version, LM_PROTOCOL);
    return refuse_member(s, c, why);
  }
  uint32_t rank = lm_get_u32(r), size = lm_get_u32(r), generation = lm_get_u32(r);
  lm_get_member(r, &who);
  if (!lm_reader_done(r)) return false;
  if (generation > (uint32_t)s->generation) return refuse_early(s, c);
  if (generation < (uint32_t)s->generation) {
    snprintf(why, sizeof why,
             "rank %u opens process group %u and rank 0 process group %d; all ranks must open the same number of them",
             rank, generation + 1, s->generation + 1);
  } else if (size != (uint32_t)s->size) {
    snprintf(
        why, sizeof why,
        "world_size must be the same on all ranks, got %u on rank %u and %d on rank 0; start `luminary run` with the "
        "same --nnodes and --nproc on all hosts",
        size, rank, s->size);
    if (!s->welcomed) server_found_failure(s, LM_FAILURE_ERROR, 0, why); /* the ranks will never be complete */
  } else if (rank >= (uint32_t)s->size) {
    snprintf(why, sizeof why, "rank %u is out of range for %d ranks (ranks start at 0)", rank, s->size);
  } else if (s->member_table[rank].joined) {
    snprintf(
        why, sizeof why,
        "rank %u has already joined from %s and joins again from %s; each process must have its own rank, from 0 to %d",
        rank, s->member_table[rank].who.host, who.host, s->size - 1);
  } else {
    member_fill(s, c, (int)rank, &who);
    return true;
  }
  return refuse_member(s, c, why);
}

/* ---- leaving */

static void send_left(lm_server *s, int rank, const char *fields, size_t n) {
  for (int r = 0; r < s->size; r++) {
    lm_conn *c = s->member_table[r].conn;
    if (!c || r == rank || s->member_table[r].left) continue;
    size_t at = lm_message_begin(&c->stream.out, LM_M_LEFT);
    lm_put_u32(&c->stream.out, (uint32_t)rank);
    lm_put(&c->stream.out, fields, n);
    lm_message_end(&c->stream.out, at);
    lm_conn_send(s, c);
  }
}

bool lm_server_goodbye(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_server_member *member = &s->member_table[c->rank];
  const char *fields = r->at;
  size_t bytes = (size_t)(r->end - r->at);
  lm_member_call last;
  uint32_t n = lm_get_u32(r);
  if (n > GROUPS_MAX || member->left) return false;
  for (uint32_t i = 0; i < n; i++) {
    lm_get_u32(r);
    lm_get_u64(r);
  }
  last.group = lm_get_u32(r);
  lm_get_ticket(r, &last.ticket);
  if (!lm_reader_done(r)) return false;
  last.since = s->now;
  member->last = last;
  member->left = true;
  member->n_open = 0;
  send_left(s, c->rank, fields, bytes);
  if (!s->welcomed) server_found_failure(s, LM_FAILURE_LEFT, c->rank, "it left before all ranks had joined");
  return true;
}

void lm_server_lost(lm_server *s, lm_conn *c) {
  lm_server_member *member = &s->member_table[c->rank];
  int rank = c->rank;
  member->died = !member->left;
  member->n_open = 0;
  if (member->died) server_found_failure(s, c->as, rank, c->why);
  member->conn = NULL;
  c->rank = -1;
}

/* ---- health */

void lm_server_send_heartbeat(lm_server *s) {
  for (lm_conn *c = s->members.first, *next; c; c = next) {
    next = c->next;
    lm_message_end(&c->stream.out, lm_message_begin(&c->stream.out, LM_M_PULSE));
    lm_conn_send(s, c);
  }
  double quarter = s->heartbeat_timeout / 4;
  s->pulse_at = s->now + (quarter > 0 && quarter < 1 ? quarter : 1);
}

void lm_server_check_silent(lm_server *s) {
  double next = 0;
  for (int r = 0; r < s->size; r++) {
    lm_server_member *member = &s->member_table[r];
    if (!member->conn || member->left) continue;
    double until = member->conn->heard + s->heartbeat_timeout;
    bool was_frozen = member->frozen;
    member->frozen = until <= s->now;
    if (member->frozen && !was_frozen) {
      char why[64];
      lm_write(why, sizeof why, "no heartbeat for %.3g s", s->now - member->conn->heard);
      server_found_failure(s, LM_FAILURE_FROZEN, r, why);
    }
    if (member->frozen) until = s->now + s->heartbeat_timeout;
    if (next <= 0 || until < next) next = until;
  }
  s->silence_at = next;
}

/* Publishes a failure if the owner (rank 0) released the store before all ranks had joined. */
void lm_server_abandoned(lm_server *s) {
  if (s->welcomed || s->cause.kind) return;
  server_found_failure(s, LM_FAILURE_LEFT, 0, "it left before all ranks had joined");
}

bool lm_server_is_done(const lm_server *s) {
  if (s->closing.n > 0) return false;
  for (int r = 0; r < s->size; r++)
    if (s->member_table[r].conn && !s->member_table[r].left && !s->member_table[r].frozen) return false;
  /* Ranks that were starting when the job failed must still reach the store, to learn the cause. */
  bool late = s->acceptor.watch.fd >= 0 && s->joined > 0 && s->joined < s->size && s->cause.kind != LM_FAILURE_ABSENT;
  return !late || s->now > s->cause_at + linger;
}

void lm_server_free_members(lm_server *s) {
  for (int r = 0; r < s->size; r++) lm_free(s->member_table[r].open);
  lm_free(s->member_table);
  s->member_table = NULL;
}
