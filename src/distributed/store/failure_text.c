#include "distributed/store/failure_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"

typedef struct text {
  char *at;
  size_t n, capacity;
} text;

__attribute__((format(printf, 2, 3))) static void add_text(text *t, const char *format, ...) {
  LM_PLAIN_NUMBERS(locale);
  va_list args;
  va_start(args, format);
  int n = vsnprintf(t->at + t->n, t->capacity - t->n, format, args);
  va_end(args);
  if (n > 0) t->n += (size_t)n;
  if (t->n >= t->capacity) t->n = t->capacity - 1;
}

static text text_of(char *out, size_t capacity) {
  out[0] = 0;
  return (text){out, 0, capacity};
}

static void add_rank(text *t, int rank, const char *host) {
  add_text(t, "rank %d", rank);
  if (host[0]) add_text(t, " on %s", host);
}

static bool words_has_call(const lm_ticket *call) { return call->what[0] != 0; }

static void add_call(text *t, const lm_ticket *call, bool numbered) {
  add_text(t, "%s", call->what);
  if (numbered && call->seq > 0) add_text(t, " #%llu", (unsigned long long)call->seq);
  if (call->where[0]) add_text(t, " at %s", call->where);
}

const char *lm_rank_text(int rank, const char *host, char *out, size_t capacity) {
  text t = text_of(out, capacity);
  add_rank(&t, rank, host);
  return out;
}

const char *lm_call_text(const lm_ticket *call, char *out, size_t capacity) {
  text t = text_of(out, capacity);
  add_call(&t, call, false);
  return out;
}

/* Adds " (last call: broadcast float32 [3] from rank 0 at a.lua:9)". */
static void add_last_call(text *t, const lm_ticket *call) {
  if (!words_has_call(call)) return;
  add_text(t, " (last call: ");
  add_call(t, call, false);
  add_text(t, ")");
}

/* ---- failures */

/* Adds "rank 1 on b waits in broadcast float32 [3] from rank 0 at a.lua:9". */
static void add_party(text *t, const lm_party *p) {
  add_rank(t, p->rank, p->host);
  if (!words_has_call(&p->call)) return;
  add_text(t, p->standing == LM_WAITS ? " waits in " : " called ");
  add_call(t, &p->call, false);
}

static void add_details(text *t, const lm_failure *f, const char *message) {
  const lm_party *who = &f->who, *other = &f->other;
  bool shown = other->rank >= 0;
  switch (f->kind) {
    case LM_FAILURE_MISMATCH:
      if (!shown) break;
      add_party(t, who->rank < other->rank ? who : other);
      add_text(t, ", ");
      add_party(t, who->rank < other->rank ? other : who);
      return;
    case LM_FAILURE_ABSENT:
      if (!shown) break;
      add_rank(t, other->rank, other->host);
      add_text(t, " waited for %g s in ", other->seconds);
      add_call(t, &other->call, false);
      add_text(t, "%s%s", *message ? "; " : "", message);
      return;
    case LM_FAILURE_LEFT:
      if (!shown) break;
      add_text(t, "it ended or destroyed its process group");
      add_last_call(t, &who->call);
      add_text(t, "; ");
      add_party(t, other);
      if (strncmp(other->call.what, "DistributedDataParallel", 23) == 0)
        add_text(t, "; where its batches may be fewer than others', train within net:join(function() … end)");
      return;
    case LM_FAILURE_UNREACHABLE:
      if (!shown) break;
      add_text(t, "from ");
      add_rank(t, other->rank, other->host);
      add_text(t, ": %s", message);
      return;
    default: break;
  }
  add_text(t, "%s", message);
}

const char *lm_failure_text(const lm_failure *f, char *out, size_t capacity) {
  static const char *const what_happened[LM_FAILURE_KINDS] = {
      [LM_FAILURE_NONE] = ": no failure",
      [LM_FAILURE_ERROR] = " failed",
      [LM_FAILURE_DIED] = " died (killed or crashed)",
      [LM_FAILURE_FROZEN] = " is frozen or unreachable",
      [LM_FAILURE_MISMATCH] = " made a different call than the other ranks",
      [LM_FAILURE_ABSENT] = " did not reach the call",
      [LM_FAILURE_LEFT] = " left while other ranks still needed it",
      [LM_FAILURE_UNREACHABLE] = " broke",
  };
  char details[LM_FAILURE_MESSAGE + 512];
  const char *message = f->message, *where = f->where;
  text t = text_of(out, capacity), d = text_of(details, sizeof details);
  /* The message may begin with the script's line, as Lua's errors do. */
  size_t n = strlen(where);
  bool again = n > 0 && strncmp(message, where, n) == 0 && strncmp(message + n, ": ", 2) == 0;
  if (again) message += n + 2;
  add_details(&d, f, message);

  bool of_two = f->kind == LM_FAILURE_MISMATCH && f->reported_by >= 0 && f->other.rank >= 0; /* without a majority */
  int low = f->who.rank < f->other.rank ? f->who.rank : f->other.rank;
  if (of_two) add_text(&t, "ranks %d and %d made different calls", low, f->who.rank + f->other.rank - low);
  if (f->kind == LM_FAILURE_UNREACHABLE) add_text(&t, "the connection to ");
  if (!of_two) add_rank(&t, f->who.rank, f->who.host);
  if (!of_two) add_text(&t, "%s", what_happened[f->kind < LM_FAILURE_KINDS ? f->kind : LM_FAILURE_NONE]);
  if (f->kind == LM_FAILURE_UNREACHABLE && f->reported_by >= 0 && f->reported_by != f->who.rank)
    add_text(&t, " (reported by rank %d)", f->reported_by);
  bool last_call = f->who.standing == LM_LAST_IN && words_has_call(&f->who.call) &&
                   (f->kind <= LM_FAILURE_FROZEN || f->other.rank < 0);
  if (n > 0 && (again || !(last_call || strstr(details, where)))) add_text(&t, " at %s", where);
  if (details[0]) add_text(&t, ": %s", details);
  if (last_call) add_last_call(&t, &f->who.call);
  return out;
}

/* ---- missing ranks */

static void add_absent(text *t, const lm_party *p) {
  add_rank(t, p->rank, p->host);
  switch (p->standing) {
    case LM_HAS_LEFT:
    case LM_HAS_DIED:
      add_text(t, p->standing == LM_HAS_LEFT ? " has left" : " has died");
      add_last_call(t, &p->call);
      break;
    case LM_WAITS:
      add_text(t, " waits in ");
      add_call(t, &p->call, true);
      break;
    case LM_LAST_IN:
      add_text(t, " last called ");
      add_call(t, &p->call, true);
      add_text(t, ", %.0f s ago", p->seconds);
      break;
    case LM_SILENT:
      add_text(t, " has sent no heartbeat for %.0f s", p->seconds);
      add_last_call(t, &p->call);
      break;
    default: add_text(t, " has not called any collective yet"); break;
  }
}

/* Adds "rank 2 has not joined" or "ranks 2, 3 and 5 have not joined"; three or more in a row become "4 to 9". */
static void add_not_joined(text *t, const lm_party *p, int n) {
  add_text(t, n == 1 ? "rank " : "ranks ");
  for (int i = 0, to; i < n; i = to + 1) {
    to = i;
    while (to + 1 < n && p[to + 1].rank == p[to].rank + 1) to++;
    if (to < i + 2) to = i;
    add_text(t, "%s%d", i == 0 ? "" : to == n - 1 ? " and " : ", ", p[i].rank);
    if (to > i) add_text(t, " to %d", p[to].rank);
  }
  add_text(t, n == 1 ? " has not joined" : " have not joined");
}

const char *lm_missing_text(const lm_missing *m, char *out, size_t capacity) {
  static const char more[] = "; …";
  text t = text_of(out, capacity);
  int joined = 0;
  while (joined < m->n && m->party[joined].standing != LM_NOT_JOINED) joined++;
  for (int i = 0; i <= joined; i++) {
    char sentence[1024];
    text s = text_of(sentence, sizeof sentence);
    if (i < joined) {
      add_absent(&s, &m->party[i]);
    } else if (joined < m->n) {
      add_not_joined(&s, m->party + joined, m->n - joined);
      if (m->refusal[0]) add_text(&s, "; refused: %s", m->refusal);
    } else {
      break;
    }
    bool fits = t.n + s.n + 2 + sizeof more <= capacity;
    add_text(&t, "%s%s", t.n > 0 ? fits ? "; " : more : "", fits || t.n == 0 ? sentence : "");
    if (!fits) break;
  }
  return out;
}
