/* Which calls the members are in: comparing those that meet, and telling who is missing and where they are. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/store/protocol.h"
#include "distributed/store/server_private.h"

enum { OPEN_MAX = 1024, TEXT_MAX = 4096 };

static bool has_place(const lm_place *p) { return p->ticket.what[0] != 0; }

void lm_place_text(const lm_place *p, const char *before, char *out, size_t capacity) {
  const lm_ticket *t = &p->ticket;
  out[0] = 0;
  if (!has_place(p)) return;
  snprintf(out, capacity, "%s%s%s%s", before, t->what, t->where[0] ? " at " : "", t->where);
}

/* ---- do they agree */

/* The member's call in this group, if it is known to be in (or to have been in) the one of that number. */
static const lm_place *place_in(const lm_seat *seat, uint32_t group, uint64_t seq) {
  for (int i = 0; i < seat->n_open; i++)
    if (seat->open[i].group == group && seat->open[i].ticket.seq == seq) return &seat->open[i];
  for (int i = 0; i < LM_PASSED; i++)
    if (seat->passed[i].group == group && seat->passed[i].ticket.seq == seq && has_place(&seat->passed[i]))
      return &seat->passed[i];
  const lm_place *last = &seat->last;
  return last->group == group && last->ticket.seq == seq && has_place(last) ? last : NULL;
}

static bool waits_in(const lm_seat *seat, const lm_place *p) {
  return p >= seat->open && p < seat->open + seat->n_open;
}

static void describe(const lm_server *s, int rank, const lm_place *p, char *out, size_t capacity) {
  lm_place_text(p, waits_in(&s->seats[rank], p) ? " waits in " : " came to ", out, capacity);
}

/* Somebody's ticket has one hash and somebody's the other. The odd one is whoever differs from the most or, with as
 * many on both sides, from the lowest rank. While that may still change, others get a moment to say where they are. */
static void mismatch(lm_server *s, uint32_t group, uint64_t seq, uint64_t hash, uint64_t other) {
  int n[2] = {0, 0}, first[2] = {-1, -1};
  char place[2][160];
  for (int r = 0; r < s->size; r++) {
    const lm_place *p = place_in(&s->seats[r], group, seq);
    if (!p || (p->ticket.hash != hash && p->ticket.hash != other)) continue;
    int side = p->ticket.hash == other;
    if (n[side]++ == 0) first[side] = r;
  }
  int odd = n[0] == n[1] ? first[0] < first[1] : n[1] < n[0];
  int low = first[1] < first[0], high = !low;
  const lm_place *p = place_in(&s->seats[first[odd]], group, seq);
  lm_record record = {.kind = LM_FAILURE_MISMATCH, .rank = first[odd], .told_by = -1};
  for (int side = 0; side < 2; side++)
    describe(s, first[side], place_in(&s->seats[first[side]], group, seq), place[side], sizeof place[side]);
  snprintf(record.message, sizeof record.message, "rank %d (host %s)%s, rank %d (host %s)%s", first[low],
           s->seats[first[low]].who.host, place[low], first[high], s->seats[first[high]].who.host, place[high]);
  snprintf(record.where, sizeof record.where, "%s", p->ticket.where);
  if (n[0] == n[1] && n[0] + n[1] < s->size)
    lm_server_hold(s, &record);
  else
    lm_server_publish(s, &record);
}

/* Member `rank` has told of a call: does anybody who waits contradict? */
static void compare(lm_server *s, int rank, uint32_t group, uint64_t seq) {
  const lm_place *mine = place_in(&s->seats[rank], group, seq);
  if (s->cause.kind || seq == 0 || !mine) return;
  for (int r = 0; r < s->size; r++) {
    const lm_seat *seat = &s->seats[r];
    const lm_place *p = r == rank ? NULL : place_in(seat, group, seq);
    if (!p || p->ticket.hash == mine->ticket.hash) continue;
    if (!waits_in(seat, p) && !waits_in(&s->seats[rank], mine)) continue;
    mismatch(s, group, seq, mine->ticket.hash, p->ticket.hash);
    return;
  }
}

/* ---- what they tell */

static bool read_place(lm_server *s, lm_reader *r, lm_place *out) {
  out->group = lm_get_u32(r);
  lm_get_ticket(r, &out->ticket);
  out->since = s->now;
  return lm_reader_done(r);
}

/* The last call, which keeps the time when it was first heard of. */
static void remember(lm_seat *seat, const lm_place *p) {
  const lm_ticket *a = &seat->last.ticket, *b = &p->ticket;
  bool same = seat->last.group == p->group && a->seq == b->seq && a->hash == b->hash && strcmp(a->where, b->where) == 0;
  double since = seat->last.since;
  seat->last = *p;
  if (same) seat->last.since = since;
}

bool lm_server_alive(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_place p;
  if (!read_place(s, r, &p)) return false;
  if (!has_place(&p) || s->seats[c->rank].left) return true;
  remember(&s->seats[c->rank], &p);
  compare(s, c->rank, p.group, p.ticket.seq);
  return true;
}

bool lm_server_passed(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_seat *seat = &s->seats[c->rank];
  lm_place p;
  if (!read_place(s, r, &p)) return false;
  if (!has_place(&p) || seat->left) return true;
  seat->passed[seat->n_passed++ % LM_PASSED] = p;
  compare(s, c->rank, p.group, p.ticket.seq);
  return true;
}

bool lm_server_waiting(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_seat *seat = &s->seats[c->rank];
  lm_place p;
  if (!read_place(s, r, &p)) return false;
  if (seat->left) return true;
  remember(seat, &p);
  lm_place *at = seat->open, *end = seat->open + seat->n_open;
  while (at < end && at->group != p.group) at++;
  if (at == end) {
    if (seat->n_open == OPEN_MAX) return false;
    if (seat->n_open == seat->capacity) {
      int capacity = seat->capacity ? 2 * seat->capacity : 4;
      lm_place *grown = lm_realloc(seat->open, (size_t)capacity * sizeof *grown);
      if (!grown) {
        lm_conn_drop(s, c, LM_FAILURE_ERROR, "the store has no memory left to serve it");
        return true;
      }
      seat->open = grown;
      seat->capacity = capacity;
    }
    at = &seat->open[seat->n_open++];
  } else if (at->ticket.seq > 0 && p.ticket.seq == 0) {
    return true; /* a send or receive beside a collective, which is the one to compare */
  }
  *at = p;
  compare(s, c->rank, p.group, p.ticket.seq);
  return true;
}

bool lm_server_resumed(lm_server *s, lm_conn *c, lm_reader *r) {
  lm_seat *seat = &s->seats[c->rank];
  uint32_t group = lm_get_u32(r);
  uint64_t seq = lm_get_u64(r); /* a send or receive may be over while the collective beside it is not */
  if (!lm_reader_done(r)) return false;
  for (int i = 0; i < seat->n_open; i++)
    if (seat->open[i].group == group && seat->open[i].ticket.seq == seq) {
      seat->open[i] = seat->open[--seat->n_open];
      break;
    }
  return true;
}

/* ---- who is missing */

typedef struct text {
  char at[TEXT_MAX];
  size_t n;
} text;

static void add(text *t, const char *s) {
  size_t n = strlen(s), room = sizeof t->at - 1 - t->n;
  if (n > room) n = room;
  memcpy(t->at + t->n, s, n);
  t->n += n;
  t->at[t->n] = 0;
}

static void next_sentence(text *t) {
  if (t->n > 0) add(t, "; ");
}

/* "rank 2 has not joined", "ranks 2, 3 and 5 have not joined"; many in a row become "4 to 9". */
static void not_joined(text *out, int n, const int *ranks) {
  char part[48];
  if (n == 0) return;
  next_sentence(out);
  add(out, n == 1 ? "rank " : "ranks ");
  for (int i = 0, to; i < n; i = to + 1) {
    to = i;
    while (to + 1 < n && ranks[to + 1] == ranks[to] + 1) to++;
    if (to < i + 2) to = i;
    snprintf(part, sizeof part, to > i ? "%d to %d" : "%d", ranks[i], ranks[to]);
    add(out, i == 0 ? "" : to == n - 1 ? " and " : ", ");
    add(out, part);
  }
  add(out, n == 1 ? " has not joined" : " have not joined");
}

static bool has_come(const lm_seat *seat, uint32_t group, uint64_t seq) {
  for (int i = 0; i < seat->n_open; i++)
    if (seat->open[i].group == group && seat->open[i].ticket.seq >= seq) return true;
  return seat->last.group == group && seat->last.ticket.seq >= seq && has_place(&seat->last);
}

/* "broadcast float32 [3] from rank 0 #5 at x.lua:7" */
static void numbered(const lm_place *p, char *out, size_t capacity) {
  const lm_ticket *t = &p->ticket;
  char number[32] = "";
  if (t->seq > 0) snprintf(number, sizeof number, " #%llu", (unsigned long long)t->seq);
  snprintf(out, capacity, "%s%s%s%s", t->what, number, t->where[0] ? " at " : "", t->where);
}

static void where_it_is(const lm_server *s, int rank, text *out) {
  const lm_seat *seat = &s->seats[rank];
  const lm_place *open = NULL;
  char who[96], place[160], line[320];
  for (int i = 0; i < seat->n_open; i++)
    if (!open || seat->open[i].since > open->since) open = &seat->open[i];
  snprintf(who, sizeof who, "rank %d on host %s", rank, seat->who.host);
  if (seat->left || seat->died) {
    lm_place_text(&seat->last, ", last in ", place, sizeof place);
    snprintf(line, sizeof line, "%s has %s%s", who, seat->left ? "left" : "died", place);
  } else if (open) {
    numbered(open, place, sizeof place);
    snprintf(line, sizeof line, "%s is in %s", who, place);
  } else if (has_place(&seat->last)) {
    numbered(&seat->last, place, sizeof place);
    snprintf(line, sizeof line, "%s was last in %s, %.0f s ago", who, place, s->now - seat->last.since);
  } else {
    snprintf(line, sizeof line, "%s has not called any collective yet", who);
  }
  next_sentence(out);
  add(out, line);
}

static int by_number(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  return (x > y) - (x < y);
}

bool lm_server_missing(lm_server *s, lm_conn *c, lm_reader *r) {
  uint32_t id = lm_get_u32(r), group = lm_get_u32(r);
  uint64_t seq = lm_get_u64(r);
  uint32_t n = lm_get_u32(r);
  text out = {.n = 0};
  int absent = 0;
  if (r->failed || n > (uint32_t)s->size) return false;
  int *ranks = lm_malloc((size_t)s->size * sizeof *ranks);
  if (!ranks) {
    lm_conn_drop(s, c, LM_FAILURE_ERROR, "the store has no memory left to serve it");
    return true;
  }
  bool sense = true;
  if (n == 0 && seq == 0) {
    for (int i = 0; i < s->size; i++)
      if (!s->seats[i].joined) ranks[absent++] = i;
  }
  for (uint32_t i = 0; i < n && sense; i++) {
    uint32_t rank = lm_get_u32(r);
    sense = rank < (uint32_t)s->size;
    if (!sense) break;
    if (!s->seats[rank].joined)
      ranks[absent++] = (int)rank;
    else if (seq == 0 || !has_come(&s->seats[rank], group, seq))
      where_it_is(s, (int)rank, &out);
  }
  qsort(ranks, (size_t)absent, sizeof *ranks, by_number);
  not_joined(&out, absent, ranks);
  if (absent > 0 && s->refusal[0]) {
    add(&out, "; refused was: ");
    add(&out, s->refusal);
  }
  lm_free(ranks);
  if (!sense || !lm_reader_done(r)) return false;
  size_t at = lm_message_begin(&c->out, LM_M_REPLY);
  lm_put_u32(&c->out, id);
  lm_put_u8(&c->out, 1);
  lm_put_string(&c->out, out.at, out.n);
  lm_message_end(&c->out, at);
  lm_conn_queued(s, c);
  return true;
}
