#include "distributed/store/failure.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void lm_put_ticket(lm_bytes *b, const lm_ticket *t) {
  lm_put_u64(b, t->seq);
  lm_put_u64(b, t->hash);
  lm_put_u32(b, t->kind);
  lm_put_text(b, t->what);
  lm_put_text(b, t->where);
}

void lm_get_ticket(lm_reader *r, lm_ticket *out) {
  memset(out, 0, sizeof *out);
  out->seq = lm_get_u64(r);
  out->hash = lm_get_u64(r);
  out->kind = lm_get_u32(r);
  lm_get_text(r, out->what, sizeof out->what);
  lm_get_text(r, out->where, sizeof out->where);
}

lm_failure lm_failure_of(lm_failure_kind kind, int rank, const char *host, int reported_by) {
  lm_failure failure = {.kind = kind, .reported_by = reported_by, .who = {.rank = rank}, .other = {.rank = -1}};
  snprintf(failure.who.host, sizeof failure.who.host, "%s", host);
  return failure;
}

lm_failure_kind lm_failure_kind_of(int code) {
  bool far = code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == EHOSTDOWN || code == ENETDOWN;
  return far ? LM_FAILURE_FROZEN : LM_FAILURE_DIED;
}

void lm_put_party(lm_bytes *b, const lm_party *party) {
  lm_put_u32(b, (uint32_t)party->rank);
  lm_put_u8(b, (uint8_t)party->standing);
  lm_put(b, &party->seconds, sizeof party->seconds);
  lm_put_text(b, party->host);
  lm_put_ticket(b, &party->call);
}

void lm_get_party(lm_reader *r, lm_party *out) {
  memset(out, 0, sizeof *out);
  out->rank = (int)lm_get_u32(r);
  uint8_t standing = lm_get_u8(r);
  if (standing >= LM_STANDINGS) r->failed = true;
  out->standing = r->failed ? LM_NOT_KNOWN : (lm_standing)standing;
  lm_get(r, &out->seconds, sizeof out->seconds);
  lm_get_text(r, out->host, sizeof out->host);
  lm_get_ticket(r, &out->call);
}

void lm_put_failure(lm_bytes *b, const lm_failure *failure) {
  lm_put_u32(b, (uint32_t)failure->kind);
  lm_put_u32(b, (uint32_t)failure->reported_by);
  lm_put_party(b, &failure->who);
  lm_put_party(b, &failure->other);
  lm_put_text(b, failure->where);
  lm_put_text(b, failure->message);
}

void lm_get_failure(lm_reader *r, lm_failure *out) {
  memset(out, 0, sizeof *out);
  uint32_t kind = lm_get_u32(r);
  if (kind == LM_FAILURE_NONE || kind >= LM_FAILURE_KINDS) r->failed = true;
  out->kind = r->failed ? LM_FAILURE_NONE : (lm_failure_kind)kind;
  out->reported_by = (int)lm_get_u32(r);
  lm_get_party(r, &out->who);
  lm_get_party(r, &out->other);
  lm_get_text(r, out->where, sizeof out->where);
  lm_get_text(r, out->message, sizeof out->message);
}

void lm_get_missing(lm_reader *r, int ranks, lm_missing *out) {
  *out = (lm_missing){0};
  uint32_t n = lm_get_u32(r);
  if (n > (uint32_t)ranks) return;
  out->party = lm_malloc((n + 1) * sizeof *out->party);
  if (!out->party) return;
  for (uint32_t i = 0; i < n; i++) lm_get_party(r, &out->party[i]);
  lm_get_text(r, out->refusal, sizeof out->refusal);
  if (lm_reader_done(r)) out->n = (int)n;
}

void lm_missing_free(lm_missing *m) {
  lm_free(m->party);
  *m = (lm_missing){0};
}
