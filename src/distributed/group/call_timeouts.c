/* Checks timeouts, departed ranks and reported failures while a collective waits, and words the error. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/enqueued_calls.h"
#include "distributed/group/world_core.h"
#include "distributed/store/failure_text.h"
#include "distributed/store/sigterm.h"

static const double report_after = 0.1; /* seconds in a call before it is reported to the store */
static const double verdict_time = 0.3; /* seconds for the store to answer with the cause */
static const double lost_time = 1;      /* seconds for the cause of a broken link to become known */
static const double missing_time = 0.5; /* seconds for the store to answer which ranks are missing */

/* ---- this thread's current call */

static _Thread_local lm_waiting *current;
static _Thread_local char script_line[sizeof((lm_ticket *)0)->where];

/* Returns the last n bytes of `where`, or less to start at a UTF-8 character: file:line differs in its end. */
static const char *end_of_text(const char *where, size_t n) {
  size_t length = where ? strlen(where) : 0;
  if (length <= n) return length > 0 ? where : "";
  const char *end = where + length - n;
  for (int i = 0; i < 3 && (*end & 0xC0) == 0x80; i++) end++;
  return end;
}

void lm_set_where(const char *where) {
  snprintf(script_line, sizeof script_line, "%s", end_of_text(where, sizeof script_line - 1));
}
const char *lm_where(void) { return script_line; }

static bool is_p2p(const lm_ticket *t) { return t->seq == 0 && (t->kind == LM_SEND || t->kind == LM_RECV); }

void lm_waiting_begin(lm_waiting *w, lm_waiting_kind kind, lm_group_core *core, const lm_ticket *ticket,
                      double timeout) {
  bool test = kind == LM_WAITING_FOR_A_TEST;
  double now = test ? INFINITY : lm_seconds(); /* a test never waits, so it has no deadline */
  *w = (lm_waiting){.kind = kind,
                    .core = core,
                    .ticket = *ticket,
                    .since = now,
                    .timeout = timeout,
                    .deadline = now + timeout,
                    .test = fmin(now + report_after, now + timeout / 2),
                    .peer = test || is_p2p(ticket) ? LM_PEER_ANY : LM_PEER_ALL,
                    .outer = current};
  current = w;
  if (test || !core->world) return;
  if (kind == LM_WAITING_UNTIL_DONE) lm_client_entered(core->world->client, core->id, ticket);
  lm_sigterm_wait_begins();
}

void lm_waiting_end(lm_waiting *w, bool completed) {
  lm_group_core *core = w->core;
  current = w->outer;
  if (w->kind == LM_WAITING_FOR_A_TEST) return;
  if (completed && w->ticket.seq > atomic_load(&core->completed)) atomic_store(&core->completed, w->ticket.seq);
  if (!core->world) return;
  if (w->reported) lm_client_resumed(core->world->client, core->id, w->ticket.seq);
  lm_sigterm_wait_ends();
}

void lm_call_passed(lm_group_core *core, const lm_ticket *ticket) {
  if (core->world) lm_client_passed(core->world->client, core->id, ticket);
}

static lm_waiting *call_of(const lm_group_core *core) {
  lm_waiting *call = current;
  while (call && call->core != core) call = call->outer;
  return call;
}

const lm_ticket *lm_group_ticket(const lm_group *g) {
  static const lm_ticket none = {0};
  const lm_waiting *call = call_of(g->core);
  return call ? &call->ticket : &none;
}

/* ---- messages */

lm_status lm_fail_with_cause(const char *call, const lm_failure *cause) {
  char text[1000];
  lm_sigterm_failed();
  lm_failure_text(cause, text, sizeof text);
  return lm_fail(LM_E_STATE, "%s%s%s", call ? call : "", call ? ": " : "", text);
}

static lm_status waiting_fail_call(const lm_waiting *call, const lm_failure *cause) {
  char name[sizeof call->ticket.what];
  snprintf(name, sizeof name, "%s", call->ticket.what);
  name[strcspn(name, " :")] = 0;
  return lm_fail_with_cause(name, cause);
}

/* Returns this rank's report that `rank` failed. */
static lm_failure failure_of(const lm_world *w, lm_failure_kind kind, int rank) {
  return lm_failure_of(kind, rank, lm_world_host(w, rank), w->rank);
}

/* Returns a rank of the world and its `call` (may be NULL), whose texts it zero-terminates: a peer's may lack that. */
static lm_party party_of(const lm_world *w, int rank, lm_standing standing, const lm_ticket *call) {
  lm_party party = {.rank = rank, .standing = standing};
  snprintf(party.host, sizeof party.host, "%s", lm_world_host(w, rank));
  if (call) party.call = *call;
  party.call.what[sizeof party.call.what - 1] = party.call.where[sizeof party.call.where - 1] = 0;
  return party;
}

/* Reports a failure to the store and returns the cause as the error. call NULL: not in a call (closing a group, say) */
static lm_status publish(lm_world *w, const lm_waiting *call, const lm_failure *failure) {
  const lm_failure *cause = lm_client_fail(w->client, failure, verdict_time);
  return call ? waiting_fail_call(call, cause) : lm_fail_with_cause(NULL, cause);
}

const char *lm_group_peer_name(const lm_group *g, int peer) {
  static _Thread_local char names[4][96]; /* several names may be in one message */
  static _Thread_local unsigned turn;
  char *name = names[turn++ % 4];
  const lm_world *w = g->core->world;
  if (w) {
    lm_rank_text(g->ranks[peer], lm_world_host(w, g->ranks[peer]), name, sizeof names[0]);
  } else {
    snprintf(name, sizeof names[0], "rank %d", peer);
  }
  return name;
}

/* ---- ranks that have left */

static bool waiting_needs(const lm_waiting *call, int peer) {
  return peer != call->core->g.rank && (call->peer < 0 || call->peer == peer);
}

/* Returns the seconds to wait for a leaver's last messages. Its keys come before its goodbye, but other ranks' answers
 * to them may not; data on links between hosts takes longest. */
static double leaver_grace(const lm_waiting *call, int rank) {
  const lm_world *w = call->core->world;
  if (!is_p2p(&call->ticket)) return 0.3;
  bool here = strcmp(lm_client_member(w->client, rank)->host_id, lm_client_member(w->client, w->rank)->host_id) == 0;
  return here ? 0.5 : 3;
}

/* Fails if a needed rank left: any member that did not complete the collective, or the peers of a send or receive. */
static lm_status check_left(lm_waiting *call) {
  const lm_group *g = &call->core->g;
  lm_world *w = call->core->world;
  double until = 0;
  int gone = 0, leaver = -1;
  lm_ticket last;
  bool at_once = false;
  for (int i = 0; i < g->size; i++) {
    double at;
    uint64_t completed;
    lm_ticket its;
    if (!waiting_needs(call, i) || !lm_client_left(w->client, g->ranks[i], call->core->id, &at, &completed, &its))
      continue;
    if (call->ticket.seq > 0 && completed >= call->ticket.seq) continue;
    at_once = call->ticket.seq > 0;
    gone++;
    until = fmax(until, at + leaver_grace(call, g->ranks[i]));
    if (leaver < 0) {
      leaver = g->ranks[i];
      last = its;
    }
    if (at_once) break;
  }
  if (leaver < 0 || (call->peer == LM_PEER_ANY && gone < g->size - 1)) return LM_OK;
  if (!at_once && lm_seconds() < until) {
    call->test = fmin(call->test, until);
    return LM_OK;
  }
  lm_failure failure = failure_of(w, LM_FAILURE_LEFT, leaver);
  failure.who.call = last;
  failure.other = party_of(w, w->rank, LM_WAITS, &call->ticket);
  return publish(w, call, &failure);
}

/* ---- timeouts */

/* Lists in `ranks` the n members that have not entered the group's opening, which sets a key for each. */
static void list_not_come(const lm_waiting *call, int *n, int *ranks) {
  const lm_group *g = &call->core->g;
  lm_deadline p = {.deadline = lm_seconds() + missing_time, .wake_fd = -1};
  *n = 0;
  for (int i = 0; i < g->size; i++) {
    char key[48];
    bool found = false;
    void *data;
    size_t size;
    snprintf(key, sizeof key, "group/%u/came/%d", call->core->id, g->ranks[i]);
    if (lm_client_get(call->core->world->client, key, false, &p, &found, &data, &size) != LM_OK) return;
    lm_free(data);
    if (!found) ranks[(*n)++] = g->ranks[i];
  }
}

/* Asks the store which ranks are missing in the call; the caller frees *out (lm_missing_free). */
static void query_missing_ranks(const lm_waiting *call, lm_missing *out) {
  const lm_group *g = &call->core->g;
  lm_client *client = call->core->world->client;
  *out = (lm_missing){0};
  if (call->ticket.seq > 0) {
    lm_client_missing(client, call->core->id, call->ticket.seq, g->size, g->ranks, missing_time, out);
    return;
  }
  int n = 0, *ranks = lm_malloc((size_t)g->size * sizeof *ranks);
  if (!ranks) return;
  if (call->peer >= 0) {
    ranks[n++] = g->ranks[call->peer];
  } else if (call->peer == LM_PEER_ALL) {
    list_not_come(call, &n, ranks);
  }
  if (n > 0) lm_client_missing(client, call->core->id, 0, n, ranks, missing_time, out);
  lm_free(ranks);
}

/* Returns the hint for an enqueued call, which may be stuck on the device, where we cannot see the reason. */
static const char *waiting_hint(const lm_waiting *call) {
  return call->kind == LM_WAITING_ENQUEUED ? "; if it is stuck on the device, run `luminary doctor` on each host" : "";
}

static void waiting_warn(lm_waiting *call) {
  char who[768], here[160], us[96];
  const lm_world *w = call->core->world;
  lm_missing missing;
  call->warned = true;
  query_missing_ranks(call, &missing);
  lm_missing_text(&missing, who, sizeof who);
  lm_missing_free(&missing);
  fprintf(stderr, "luminary: %s has waited for %.3g s in %s%s%s%s\n",
          lm_rank_text(w->rank, lm_world_host(w, w->rank), us, sizeof us), lm_seconds() - call->since,
          lm_call_text(&call->ticket, here, sizeof here), *who ? "; " : "", who, waiting_hint(call));
}

/* Fails the call after its timeout, and the job too if a rank is absent from a collective. */
static lm_status fail_timeout(lm_waiting *call) {
  char who[384], here[160];
  lm_world *w = call->core->world;
  lm_missing missing;
  query_missing_ranks(call, &missing);
  int absent = missing.n > 0 ? missing.party[0].rank : -1;
  lm_missing_text(&missing, who, sizeof who);
  lm_missing_free(&missing);
  const lm_failure *cause = lm_client_cause(w->client);
  if (cause) return waiting_fail_call(call, cause);
  if (is_p2p(&call->ticket) || absent < 0 || absent >= w->size) {
    lm_sigterm_failed();
    return lm_fail(LM_E_STATE, "%s: not done after %g s%s%s%s", lm_call_text(&call->ticket, here, sizeof here),
                   call->timeout, *who ? "; " : "", who, waiting_hint(call));
  }
  lm_failure failure = failure_of(w, LM_FAILURE_ABSENT, absent);
  failure.other = party_of(w, w->rank, LM_WAITS, &call->ticket);
  failure.other.seconds = call->timeout;
  snprintf(failure.message, sizeof failure.message, "%s%s", who, waiting_hint(call));
  return publish(w, call, &failure);
}

static lm_status check_closely(lm_waiting *call, unsigned news) {
  lm_world *w = call->core->world;
  const lm_failure *cause = lm_client_cause(w->client);
  if (cause) return waiting_fail_call(call, cause);
  double now = lm_seconds();
  call->news = news;
  call->test = call->deadline;
  if (news > 0) { NEED(check_left(call)); }
  if (!call->reported && now >= call->since + report_after) {
    call->reported = true;
    lm_client_waiting(w->client, call->core->id, &call->ticket);
  }
  if (now >= call->deadline) return fail_timeout(call);
  if (!call->warned && now >= call->since + call->timeout / 2) waiting_warn(call);
  if (!call->warned) call->test = fmin(call->test, call->since + call->timeout / 2);
  if (!call->reported) call->test = fmin(call->test, call->since + report_after);
  return LM_OK;
}

/* ---- functions for backends */

lm_status lm_group_check(lm_group *g) {
  lm_world *w = g->core->world;
  if (!w) return LM_OK;
  lm_waiting *call = call_of(g->core);
  if (!call) return lm_world_check(w);
  if (call->issuer) { NEED(lm_issuer_check(call->issuer)); }
  unsigned news = lm_client_news(w->client);
  if (news == call->news && lm_seconds() < call->test) return LM_OK;
  return check_closely(call, news);
}

int lm_group_wake_fd(const lm_group *g) { return g->core->world ? lm_client_wake_fd(g->core->world->client) : -1; }

void lm_group_pause(const lm_group *g, double seconds) {
  struct pollfd wake = {.fd = lm_group_wake_fd(g), .events = POLLIN};
  struct timespec time = lm_timespec(seconds);
  ppoll(&wake, 1, &time, NULL);
}

bool lm_group_may_spin(const lm_group *g) { return g->core->world && g->core->world->may_spin; }

bool lm_group_failed(const lm_group *g) { return g->core->world && lm_client_cause(g->core->world->client); }

lm_status lm_group_mismatch(lm_group *g, int peer, const lm_ticket *theirs) {
  lm_world *w = g->core->world;
  int other = g->ranks[peer];
  lm_party us = party_of(w, w->rank, LM_CAME, lm_group_ticket(g)), them = party_of(w, other, LM_CAME, theirs);
  lm_failure failure = failure_of(w, LM_FAILURE_MISMATCH, w->rank < other ? other : w->rank);
  failure.who = w->rank < other ? them : us;
  failure.other = w->rank < other ? us : them;
  snprintf(failure.where, sizeof failure.where, "%s", failure.who.call.where);
  lm_client_waiting(w->client, g->core->id, lm_group_ticket(g));
  lm_waiting *here = call_of(g->core);
  if (here) here->reported = true;
  return publish(w, here, &failure);
}

/* Reports a member that left as the cause: it may have completed a call that the others have not. */
static lm_status blame_leaver(lm_group *g) {
  lm_world *w = g->core->world;
  const lm_waiting *call = call_of(g->core);
  for (int i = 0; i < g->size; i++) {
    double at;
    uint64_t completed;
    lm_ticket last;
    if (!lm_client_left(w->client, g->ranks[i], g->core->id, &at, &completed, &last)) continue;
    lm_failure failure = failure_of(w, LM_FAILURE_LEFT, g->ranks[i]);
    failure.who.call = last;
    if (call) failure.other = party_of(w, w->rank, LM_WAITS, &call->ticket);
    return publish(w, call, &failure);
  }
  return LM_OK;
}

lm_status lm_group_await_cause(lm_group *g) {
  if (!g->core->world) return LM_OK;
  lm_client *client = g->core->world->client;
  for (double until = lm_seconds() + lost_time; lm_seconds() < until;) {
    NEED(lm_group_check(g));
    lm_client_await(client, lm_client_news(client), 0.05);
  }
  return blame_leaver(g);
}

/* Waits for the cause of a failure of `rank` in the world (-1: this rank's calls), or of the connection to it, and
 * returns it as the error; if none becomes known, reports that failure. */
static lm_status publish_unless_caused(lm_group *g, lm_failure_kind kind, int rank, const char *how) {
  lm_world *w = g->core->world;
  char why[512];
  lm_write(why, sizeof why, "%s", how); /* copied, since it may be this thread's last message */
  if (!w) return lm_fail(LM_E_STATE, "%s", why);
  NEED(lm_group_await_cause(g));
  const lm_waiting *call = call_of(g->core);
  lm_failure failure = failure_of(w, kind, rank < 0 ? w->rank : rank);
  if (kind == LM_FAILURE_UNREACHABLE)
    failure.other = party_of(w, w->rank, LM_NOT_KNOWN, NULL);
  else if (call)
    snprintf(failure.where, sizeof failure.where, "%s", call->ticket.where);
  snprintf(failure.message, sizeof failure.message, "%s", why);
  return publish(w, call, &failure);
}

lm_status lm_group_broken(lm_group *g, const char *how) { return publish_unless_caused(g, LM_FAILURE_ERROR, -1, how); }

lm_status lm_group_lost(lm_group *g, int peer, const char *how) {
  return publish_unless_caused(g, LM_FAILURE_UNREACHABLE, g->ranks[peer], how);
}

/* ---- the world */

void lm_world_fail(lm_world *w, const char *where, const char *message) {
  if (w->forks != lm_world_forks() || lm_client_cause(w->client)) return;
  lm_failure failure = failure_of(w, LM_FAILURE_ERROR, w->rank);
  snprintf(failure.where, sizeof failure.where, "%s", end_of_text(where, sizeof failure.where - 1));
  lm_write(failure.message, sizeof failure.message, "%s", message ? message : "");
  lm_client_fail(w->client, &failure, 0.5);
}

bool lm_world_cause(lm_world *w, lm_failure *out) {
  const lm_failure *cause = lm_client_cause(w->client);
  if (cause) *out = *cause;
  return cause != NULL;
}

lm_status lm_world_check(lm_world *w) {
  lm_status status = lm_world_check_process(w);
  const lm_failure *cause = lm_client_cause(w->client);
  if (status == LM_OK && cause) status = lm_fail_with_cause(NULL, cause);
  return status;
}
