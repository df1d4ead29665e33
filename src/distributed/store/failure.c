#include "distributed/store/failure.h"

#include <stdio.h>
#include <string.h>

void lm_put_record(lm_bytes *b, const lm_record *record) {
  lm_put_u32(b, (uint32_t)record->kind);
  lm_put_u32(b, (uint32_t)record->rank);
  lm_put_u32(b, (uint32_t)record->told_by);
  lm_put_text(b, record->host);
  lm_put_text(b, record->where);
  lm_put_text(b, record->message);
}

void lm_get_record(lm_reader *r, lm_record *out) {
  memset(out, 0, sizeof *out);
  uint32_t kind = lm_get_u32(r);
  if (kind == LM_FAILURE_NONE || kind >= LM_FAILURE_KINDS) r->failed = true;
  out->kind = r->failed ? LM_FAILURE_NONE : (lm_failure)kind;
  out->rank = (int)lm_get_u32(r);
  out->told_by = (int)lm_get_u32(r);
  lm_get_text(r, out->host, sizeof out->host);
  lm_get_text(r, out->where, sizeof out->where);
  lm_get_text(r, out->message, sizeof out->message);
}

const char *lm_record_text(const lm_record *record, char *out, size_t capacity) {
  char who[96], place[80] = "", teller[48] = "";
  const char *message = record->message, *where = record->where;
  if (capacity == 0) return out;
  if (record->host[0])
    snprintf(who, sizeof who, "rank %d on host %s", record->rank, record->host);
  else
    snprintf(who, sizeof who, "rank %d", record->rank);
  /* What was said may begin with the place, as Lua's errors do. */
  size_t n = strlen(where);
  bool again = n > 0 && strncmp(message, where, n) == 0 && strncmp(message + n, ": ", 2) == 0;
  if (again) message += n + 2;
  if (n > 0 && (again || !strstr(message, where))) snprintf(place, sizeof place, " at %s", where);
  if (record->told_by >= 0 && record->told_by != record->rank)
    snprintf(teller, sizeof teller, " (said rank %d)", record->told_by);
  const char *then = *message ? ": " : "";
  switch (record->kind) {
    case LM_FAILURE_ERROR: snprintf(out, capacity, "%s failed%s%s%s", who, place, then, message); break;
    case LM_FAILURE_DIED:
      snprintf(out, capacity, "%s died without a goodbye (killed or crashed)%s%s%s", who, place, then, message);
      break;
    case LM_FAILURE_FROZEN:
      snprintf(out, capacity, "%s is frozen or unreachable%s%s%s", who, place, then, message);
      break;
    case LM_FAILURE_MISMATCH:
      snprintf(out, capacity, "%s came to another call than the others%s%s%s", who, place, then, message);
      break;
    case LM_FAILURE_ABSENT: snprintf(out, capacity, "%s did not come%s%s%s", who, place, then, message); break;
    case LM_FAILURE_LEFT:
      snprintf(out, capacity, "%s left while others still needed it%s%s%s", who, place, then, message);
      break;
    case LM_FAILURE_UNREACHABLE:
      snprintf(out, capacity, "the way to %s broke%s%s%s%s", who, teller, place, then, message);
      break;
    default: snprintf(out, capacity, "%s: no failure", who); break;
  }
  return out;
}
