/* Records the members' calls, reports mismatches between them, and answers which ranks are missing from a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/store/server_private.h"

enum { OPEN_MAX = 1024 };

static bool server_has_call(const lm_member_call *p) { return p->ticket.what[0] != 0; }

/* ---- mismatches */

/* Returns the member's reported call with that group and seq, current or past; NULL if none is known. */
static const lm_member_call *call_in(const lm_server_member *member, uint32_t group, uint64_t seq) {
  for (int i = 0; i < member->n_open; i++)
    if (member->open[i].group == group && member->open[i].ticket.seq == seq) return &member->open[i];
  for (int i = 0; i < LM_PASSED; i++)
    if (member->passed[i].group == group && member->passed[i].ticket.seq == seq && server_has_call(&member->passed[i]))
      return &member->passed[i];
  const lm_member_call *last = &member->last;
  return last->group == group && last->ticket.seq == seq && server_has_call(last) ? last : NULL;
}

static bool waits_in(const lm_server_member *member, const lm_member_call *p) {
  return p >= member->open && p < member->open + member->n_open;
}

static void fill_party(const lm_server *s, int rank, const lm_member_call *p, lm_party *out) {
  *out =
      (lm_party){.rank = rank, .standing = waits_in(&s->member_table[rank], p) ? LM_WAITS : LM_CAME, .call = p->ticket};
  snprintf(out->host, sizeof out->host, "%s", s->member_table[rank].who.host);
}

/* Reports a mismatch between members with two hashes. The rank that failed is the first of the minority or, of equal
 * sides, of the one without the lowest rank. Equal sides are held back while further members may decide. */
static void server_mismatch(lm_server *s, uint32_t group, uint64_t seq, uint64_t hash, uint64_t other) {
  int n[2] = {0, 0}, first[2] = {-1, -1};
  for (int r = 0; r < s->size; r++) {
    const lm_member_call *p = call_in(&s->member_table[r], group, seq);
    if (!p || (p->ticket.hash != hash && p->ticket.hash != other)) continue;
    int side = p->ticket.hash == other;
    if (n[side]++ == 0) first[side] = r;
  }
  int minority = n[0] == n[1] ? first[0] < first[1] : n[1] < n[0];
  const lm_member_call *p = call_in(&s->member_table[first[minority]], group, seq);
  lm_failure failure = lm_failure_of(LM_FAILURE_MISMATCH, first[minority], "", n[0] == n[1] ? first[!minority] : -1);
  fill_party(s, first[minority], p, &failure.who);
  fill_party(s, first[!minority], call_in(&s->member_table[first[!minority]], group, seq), &failure.other);
  snprintf(failure.where, sizeof failure.where, "%s", p->ticket.where);
  if (n[0] == n[1] && n[0] + n[1] < s->size)
    lm_server_hold(s, &failure);
  else
    lm_server_publish(s, &failure);
}

/* Compares the call that member `rank` has reported with those of the other members; one of the two must be waiting. */
static void compare_calls(lm_server *s, int rank, uint32_t group, uint64_t seq) {
  const lm_member_call *mine = call_in(&s->member_table[rank], group, seq);
  if (s->cause.kind || seq == 0 || !mine) return;
  for (int r = 0; r < s->size; r++) {
    const lm_server_member *member = &s->member_table[r];
    const lm_member_call *p = r == rank ? NULL : call_in(member, group, seq);
    if (!p || p->ticket.hash == mine->ticket.hash) continue;
    if (!waits_in(member, p) && !waits_in(&s->member_table[rank], mine)) continue;
    server_mismatch(s, group, seq, mine->ticket.hash, p->ticket.hash);
    return;
  }
}

/* ---- reports */

static bool read_call(lm_server *s, lm_reader *r, lm_member_call *out) {
  out->group = lm_get_u32(r);
  lm_get_ticket(r, &out->ticket);
  out->since = s->now;
  return lm_reader_done(r);
}

/* Stores the member's last call, keeping the time of its first report. */
static void store_last_call(lm_server_member *member, const lm_member_call *p) {
  const lm_ticket *a = &member->last.ticket, *b = &p->ticket;
  bool same = member->last.group == p->group && lm_tickets_agree(a, b) && strcmp(a->where, b->where) == 0;
  double since = member->last.since;
  member->last = *p;
  if (same) member->last.since = since;
}

static bool read_report(lm_server *s, lm_conn *c, lm_reader *r, bool passed) {
  lm_server_member *member = &s->member_table[c->rank];
  lm_member_call p;
  if (!read_call(s, r, &p)) return false;
  if (!server_has_call(&p) || member->left) return true;
  if (passed)
    member->passed[member->n_passed++ % LM_PASSED] = p;
  else
    store_last_call(member, &p);
  compare_calls(s, c->rank, p.group, p.ticket.seq);
  return true;
}

bool lm_server_alive(lm_server *s, lm_conn *c, lm_reader *r) { return read_report(s, c, r, false); }
bool lm_server_passed(lm_server *s, lm_conn *c, lm_reader *r) { return read_report(s, c, r, true); }

bool lm_server_waiting(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_server_member *member = &s->member_table[c->rank];
  lm_member_call p;
  if (!read_call(s, r, &p)) return false;
  if (member->left) return true;
  store_last_call(member, &p);
  lm_member_call *at = member->open, *end = member->open + member->n_open;
  while (at < end && at->group != p.group) at++;
  if (at == end) {
    if (member->n_open == OPEN_MAX) return false;
    if (!lm_list_grow(&member->open, &member->capacity, (size_t)member->n_open + 1, sizeof *member->open)) {
      lm_conn_no_memory(s, c);
      return true;
    }
    at = &member->open[member->n_open++];
  } else if (at->ticket.seq > 0 && p.ticket.seq == 0) {
    return true; /* the collective stays: a send or receive beside it is not compared */
  }
  *at = p;
  compare_calls(s, c->rank, p.group, p.ticket.seq);
  return true;
}

bool lm_server_resumed(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_server_member *member = &s->member_table[c->rank];
  uint32_t group = lm_get_u32(r);
  uint64_t seq = lm_get_u64(r); /* removes only that call: a collective may outlast a send beside it */
  if (!lm_reader_done(r)) return false;
  for (int i = 0; i < member->n_open; i++)
    if (member->open[i].group == group && member->open[i].ticket.seq == seq) {
      member->open[i] = member->open[--member->n_open];
      break;
    }
  return true;
}

/* ---- missing ranks */

static bool has_come(const lm_server_member *member, uint32_t group, uint64_t seq) {
  for (int i = 0; i < member->n_open; i++)
    if (member->open[i].group == group && member->open[i].ticket.seq >= seq) return true;
  return member->last.group == group && member->last.ticket.seq >= seq && server_has_call(&member->last);
}

static const double silent_after = 3; /* seconds without a heartbeat, which are sent each second */

static void put_missing_rank(const lm_server *s, int rank, lm_bytes *out) {
  const lm_server_member *member = &s->member_table[rank];
  const lm_member_call *open = NULL, *at = &member->last;
  lm_party party = {.rank = rank, .standing = LM_NO_CALL};
  for (int i = 0; i < member->n_open; i++)
    if (!open || member->open[i].since > open->since) open = &member->open[i];
  if (!member->joined) {
    party.standing = LM_NOT_JOINED;
  } else if (member->left || member->died) {
    party.standing = member->left ? LM_HAS_LEFT : LM_HAS_DIED;
  } else if (open) {
    party.standing = LM_WAITS;
    at = open;
  } else if (server_has_call(at)) {
    party.standing = LM_LAST_IN;
  }
  if (server_has_call(at)) {
    party.call = at->ticket;
    party.seconds = s->now - at->since;
  }
  if (member->conn && !member->left && s->now - member->conn->heard > silent_after) {
    party.standing = LM_SILENT;
    party.seconds = s->now - member->conn->heard;
  }
  snprintf(party.host, sizeof party.host, "%s", member->who.host);
  lm_put_party(out, &party);
}

static int compare_numbers(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  return (x > y) - (x < y);
}

bool lm_server_missing(lm_server *s, lm_conn *c, lm_reader *r) {
  uint32_t id = lm_get_u32(r), group = lm_get_u32(r);
  uint64_t seq = lm_get_u64(r);
  uint32_t n = lm_get_u32(r);
  lm_bytes reply = {0};
  int absent = 0, late = 0;
  if (r->failed || n > (uint32_t)s->size) return false;
  int *ranks = lm_malloc(2 * (size_t)s->size * sizeof *ranks), *not_joined = ranks + s->size;
  if (!ranks) {
    lm_conn_no_memory(s, c);
    return true;
  }
  bool valid = true, all = n == 0 && seq == 0;
  for (uint32_t i = 0; i < (all ? (uint32_t)s->size : n) && valid; i++) {
    uint32_t rank = all ? i : lm_get_u32(r);
    valid = rank < (uint32_t)s->size;
    if (!valid) break;
    if (!s->member_table[rank].joined)
      not_joined[late++] = (int)rank;
    else if (!all && (seq == 0 || !has_come(&s->member_table[rank], group, seq)))
      ranks[absent++] = (int)rank;
  }
  valid = valid && lm_reader_done(r);
  qsort(not_joined, (size_t)late, sizeof *not_joined, compare_numbers);
  lm_put_u32(&reply, (uint32_t)(absent + late));
  for (int i = 0; i < absent; i++) put_missing_rank(s, ranks[i], &reply);
  for (int i = 0; i < late; i++) put_missing_rank(s, not_joined[i], &reply);
  lm_put_text(&reply, late > 0 ? s->refusal : "");
  lm_free(ranks);
  if (valid) lm_server_reply(s, c, id, !reply.failed, reply.data, reply.failed ? 0 : reply.n);
  lm_bytes_free(&reply);
  return valid;
}
