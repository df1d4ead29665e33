/* Creates and closes process groups of a world's ranks. */
#include <stdio.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/message.h"
#include "distributed/group/backends.h"
#include "distributed/group/call_timeouts.h"
#include "distributed/group/world_core.h"

/* ---- agreement: the first rank to come writes its settings to the store, the others compare theirs */

static lm_status check_waiting(void *ctx) { return lm_group_check(ctx); }

static lm_status put_settings(lm_bytes *b, const lm_world *w, const char *backend, int n, const int *ranks) {
  char number[16];
  lm_put_u32(b, (uint32_t)w->rank);
  lm_put_text(b, lm_where());
  size_t at = b->n;
  lm_put_u32(b, 0);
  lm_put(b, backend, strlen(backend));
  lm_put(b, " with ranks", 11);
  for (int i = 0; i < n; i++) {
    int digits = snprintf(number, sizeof number, "%s %d", i ? "," : "", ranks[i]);
    lm_put(b, number, (size_t)digits);
  }
  if (b->failed) return LM_E_OOM;
  uint32_t length = (uint32_t)(b->n - at - 4);
  memcpy(b->data + at, &length, sizeof length);
  return LM_OK;
}

/* Fails the job if another rank's settings differ. Format: u32 rank, text where, string "BACKEND with ranks ...". */
static lm_status compare_settings(lm_world *w, const lm_bytes *own, const void *theirs, size_t n) {
  lm_reader a = lm_reader_of(own->data, own->n), b = lm_reader_of(theirs, n);
  char my_where[256], their_where[256], message[768];
  size_t an, bn;
  lm_get_u32(&a);
  int first = (int)lm_get_u32(&b);
  lm_get_text(&a, my_where, sizeof my_where);
  lm_get_text(&b, their_where, sizeof their_where);
  const char *settings = lm_get_string(&a, &an), *other = lm_get_string(&b, &bn);
  if (!lm_reader_done(&b) || first < 0 || first >= w->size)
    return lm_fail(LM_E_STATE, "malformed settings of a group in the store");
  if (an == bn && memcmp(settings, other, an) == 0) return LM_OK;
  snprintf(message, sizeof message, "rank %d on %s asks for %.*s%s%s, rank %d on %s for %.*s%s%s", w->rank,
           lm_world_host(w, w->rank), an < 200 ? (int)an : 200, settings, *my_where ? " at " : "", my_where, first,
           lm_world_host(w, first), bn < 200 ? (int)bn : 200, other, *their_where ? " at " : "", their_where);
  lm_failure failure = lm_failure_of(LM_FAILURE_MISMATCH, w->rank, lm_world_host(w, w->rank), w->rank);
  snprintf(failure.where, sizeof failure.where, "%.63s", my_where);
  snprintf(failure.message, sizeof failure.message, "%s", message);
  return lm_fail_with_cause("new_group", lm_client_fail(w->client, &failure, 0.3));
}

static lm_status group_agree(lm_world *w, lm_group_core *core, const char *backend, int n, const int *ranks) {
  lm_status status = LM_OK;
  lm_bytes own = {0};
  void *theirs = NULL;
  size_t size = 0;
  int64_t position;
  char key[48];
  lm_deadline p = {.deadline = lm_seconds() + core->timeout + 5, .wake_fd = -1, .check = check_waiting, .ctx = core};
  TRY(put_settings(&own, w, backend, n, ranks));
  snprintf(key, sizeof key, "group/%u/came/%d", core->id, w->rank);
  TRY(lm_client_set(w->client, key, "", 0));
  snprintf(key, sizeof key, "group/%u/proposals", core->id);
  TRY(lm_client_add(w->client, key, 1, &p, &position));
  snprintf(key, sizeof key, "group/%u/proposal", core->id);
  if (position == 1) {
    TRY(lm_client_set(w->client, key, own.data, own.n));
  } else {
    TRY(lm_client_get(w->client, key, true, &p, NULL, &theirs, &size));
    TRY(compare_settings(w, &own, theirs, size));
  }

done:
  lm_bytes_free(&own);
  lm_free(theirs);
  return status;
}

/* ---- a group's core */

static lm_status check_ranks(const lm_world *w, int n, const int *ranks) {
  if (n < 1) return lm_fail(LM_E_ARG, "new_group: ranks must not be empty");
  for (int i = 0; i < n; i++) {
    if (ranks[i] < 0 || ranks[i] >= w->size) return lm_fail_rank("new_group", ranks[i], w->size);
    if (i > 0 && ranks[i] <= ranks[i - 1])
      return lm_fail(LM_E_ARG, "new_group: ranks must be distinct and in ascending order, got %d after %d", ranks[i],
                     ranks[i - 1]);
  }
  return LM_OK;
}

static void free_core(lm_group_core *core) {
  if (core->g.size > 1) lm_backward_keep_order(false);
  pthread_mutex_destroy(&core->lock);
  lm_free((void *)core->g.ranks);
  lm_free(core);
}

static lm_status make_core(int n, const int *ranks, int world_rank, lm_group_core **out) {
  lm_group_core *core = lm_calloc(1, sizeof *core);
  int *copy = lm_malloc((size_t)n * sizeof *copy);
  *out = NULL;
  if (!core || !copy) {
    lm_free(core);
    lm_free(copy);
    return LM_E_OOM;
  }
  memcpy(copy, ranks, (size_t)n * sizeof *copy);
  core->g = (lm_group){.rank = -1, .size = n, .ranks = copy, .core = core};
  for (int i = 0; i < n; i++)
    if (ranks[i] == world_rank) core->g.rank = i;
  pthread_mutex_init(&core->lock, NULL);
  if (n > 1) lm_backward_keep_order(true); /* collectives in hooks must run in the same order on all ranks */
  *out = core;
  return LM_OK;
}

static bool on_one_host(const lm_world *w, int n, const int *ranks) {
  for (int i = 1; i < n; i++)
    if (strcmp(lm_client_member(w->client, ranks[i])->host_id, lm_client_member(w->client, ranks[0])->host_id) != 0)
      return false;
  return true;
}

static void unlist(lm_world *w, lm_group_core *core) {
  pthread_mutex_lock(&w->lock);
  LM_UNLINK(w->groups, core);
  lm_put_u32(&w->closed, core->id);
  lm_put_u64(&w->closed, atomic_load(&core->completed));
  pthread_mutex_unlock(&w->lock);
  lm_link_forget(w, core->id);
  lm_client_forget(w->client, core->id);
}

static bool is_solo(const lm_backends *b) {
  for (int i = 0; i < b->n; i++)
    if (b->part[i].table == &lm_group_solo_table) return true;
  return false;
}

lm_status lm_group_new(lm_world *w, const char *backend, int n, const int *ranks, double timeout, lm_group **out) {
  lm_status status = LM_OK;
  lm_backends backends;
  lm_group_core *core = NULL;
  bool listed = false;
  lm_saved_error saved; /* cleanup may set other messages */
  *out = NULL;
  status = lm_world_check(w);
  if (status != LM_OK) return lm_fail_in(status, "new_group");
  TRY(check_ranks(w, n, ranks));
  TRY(lm_backends_parse(backend, &backends));
  if (is_solo(&backends) && n > 1) TRY(lm_fail(LM_E_ARG, "new_group: backend 'solo' requires one rank, got %d", n));
  TRY(make_core(n, ranks, w->rank, &core));
  core->world = w;
  core->timeout = timeout > 0 ? timeout : w->timeout;
  core->g.one_host = on_one_host(w, n, ranks);
  lm_parts_make(core, &backends);
  pthread_mutex_lock(&w->lock);
  core->id = ++w->groups_made;
  core->next = w->groups;
  w->groups = core;
  listed = true;
  pthread_mutex_unlock(&w->lock);

  lm_waiting waiting;
  lm_ticket ticket = {.kind = LM_SETUP};
  snprintf(ticket.what, sizeof ticket.what, "new_group %.32s of %d rank%s", core->backend, n, n > 1 ? "s" : "");
  snprintf(ticket.where, sizeof ticket.where, "%.47s", lm_where());
  lm_waiting_begin(&waiting, LM_WAITING_UNTIL_DONE, core, &ticket, core->timeout);
  status = group_agree(w, core, core->backend, n, ranks);
  if (status == LM_OK) status = lm_parts_open(core);
  lm_waiting_end(&waiting, status == LM_OK);
  if (status == LM_OK && core->g.rank >= 0) {
    *out = &core->g;
    return LM_OK;
  }

done:
  lm_error_save(status, &saved);
  if (listed) unlist(w, core);
  if (core) free_core(core);
  return lm_error_restore(&saved);
}

lm_status lm_group_solo(lm_group **out) {
  lm_status status = LM_OK;
  lm_backends backends;
  lm_group_core *core;
  *out = NULL;
  TRY(lm_backends_parse("solo", &backends));
  TRY(make_core(1, (int[]){0}, 0, &core));
  core->g.one_host = true;
  core->timeout = LM_DEFAULT_TIMEOUT;
  lm_parts_make(core, &backends);
  status = lm_parts_open(core);
  if (status == LM_OK) {
    *out = &core->g;
  } else {
    free_core(core);
  }

done:
  return status;
}

lm_status lm_group_backend_check(const char *backend, char text[LM_GROUP_TEXT]) {
  lm_backends backends;
  lm_status status = lm_backends_parse(backend, &backends);
  if (status == LM_OK) snprintf(text, LM_GROUP_TEXT, "%s", backends.text);
  return status;
}

void lm_group_close(lm_group *g) {
  if (!g) return;
  lm_group_core *core = g->core;
  lm_world *w = core->world;
  if (w && w->forks != lm_world_forks()) return;
  lm_queue_close(core);
  lm_parts_close(core);
  if (w) unlist(w, core);
  free_core(core);
}
