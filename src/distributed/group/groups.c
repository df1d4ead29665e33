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

/* The groups that one call makes, as lm_groups_new gets them, and the first one's id. */
typedef struct group_set {
  const int *number; /* [the world's size] */
  int count;
  uint32_t id;
} group_set;

static lm_status put_settings(lm_bytes *b, const lm_world *w, const char *backend, const group_set *set) {
  char number[16];
  lm_put_u32(b, (uint32_t)w->rank);
  lm_put_text(b, lm_where());
  size_t at = b->n;
  lm_put_u32(b, 0);
  lm_put(b, backend, strlen(backend));
  lm_put(b, " with ranks", 11);
  for (int k = 1; k <= set->count; k++) {
    const char *before = k > 1 ? ";" : "";
    for (int rank = 0; rank < w->size; rank++) {
      if (set->number[rank] != k) continue;
      int digits = snprintf(number, sizeof number, "%s %d", before, rank);
      lm_put(b, number, (size_t)digits);
      before = ",";
    }
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

static lm_status group_agree(lm_world *w, lm_group_core *core, const group_set *set) {
  LM_OWNED_BYTES own = {0};
  LM_FREED void *theirs = NULL;
  size_t size = 0;
  int64_t position;
  char key[48];
  lm_deadline p = {.deadline = lm_seconds() + core->timeout + 5, .wake_fd = -1, .check = check_waiting, .ctx = core};
  NEED(put_settings(&own, w, core->backend, set));
  snprintf(key, sizeof key, "group/%u/came/%d", core->id, w->rank);
  NEED(lm_client_set(w->client, key, "", 0));
  snprintf(key, sizeof key, "group/%u/proposals", set->id);
  NEED(lm_client_add(w->client, key, 1, &p, &position));
  snprintf(key, sizeof key, "group/%u/proposal", set->id);
  if (position == 1) {
    NEED(lm_client_set(w->client, key, own.data, own.n));
  } else {
    NEED(lm_client_get(w->client, key, true, &p, NULL, &theirs, &size));
    NEED(compare_settings(w, &own, theirs, size));
  }

  return LM_OK;
}

/* ---- a group's core */

static lm_status count_groups(const lm_world *w, int n, const int *number, int *count) {
  *count = 0;
  if (n != w->size) return lm_fail_length("new_group", "the numbers of groups", w->size, "rank", n);
  for (int rank = 0; rank < n; rank++) {
    if (number[rank] < 0 || number[rank] > n)
      return lm_fail_int("new_group", "the number of a group", lm_text("from 0 to %d", n), number[rank]);
    if (number[rank] > *count) *count = number[rank];
  }
  return *count > 0 ? LM_OK : lm_fail(LM_E_ARG, "new_group: ranks must not be empty");
}

static void free_core(lm_group_core *core) {
  if (core->g.size > 1) lm_backward_keep_order(false);
  pthread_mutex_destroy(&core->lock);
  lm_free((void *)core->g.ranks);
  lm_free(core);
}

/* Makes the core of the group of the ranks whose number is `mine`. */
static lm_status make_core(int n, const int *number, int mine, int world_rank, lm_group_core **out) {
  lm_group_core *core = lm_calloc(1, sizeof *core);
  int *ranks = lm_malloc((size_t)n * sizeof *ranks);
  *out = NULL;
  if (!core || !ranks) {
    lm_free(core);
    lm_free(ranks);
    return LM_E_OOM;
  }
  core->g = (lm_group){.rank = -1, .ranks = ranks, .core = core};
  for (int rank = 0; rank < n; rank++) {
    if (number[rank] != mine) continue;
    if (rank == world_rank) core->g.rank = core->g.size;
    ranks[core->g.size++] = rank;
  }
  pthread_mutex_init(&core->lock, NULL);
  if (core->g.size > 1) lm_backward_keep_order(true); /* collectives in hooks must run in the same order on all ranks */
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

lm_status lm_groups_new(lm_world *w, const char *backend, int n, const int *number, double timeout,
                        const lm_group *twin_of, lm_group **out) {
  lm_status status = LM_OK;
  lm_backends backends;
  lm_group_core *core = NULL;
  group_set set = {.number = number};
  bool listed = false;
  lm_saved_error saved; /* cleanup may set other messages */
  *out = NULL;
  status = lm_world_check(w);
  if (status != LM_OK) return lm_fail_in(status, "new_group");
  TRY(count_groups(w, n, number, &set.count));
  TRY(lm_backends_parse(backend, &backends));
  int mine = number[w->rank] > 0 ? number[w->rank] : 1; /* the first, if this rank joins none */
  TRY(make_core(n, number, mine, w->rank, &core));
  int size = core->g.size;
  if (is_solo(&backends) && size > 1)
    TRY(lm_fail(LM_E_ARG, "new_group: backend 'solo' requires one rank, got %d", size));
  core->world = w;
  core->timeout = timeout > 0 ? timeout : twin_of ? twin_of->core->timeout : w->timeout;
  core->g.one_host = on_one_host(w, size, core->g.ranks);
  lm_parts_make(core, &backends);
  pthread_mutex_lock(&w->lock);
  set.id = w->groups_made + 1;
  w->groups_made += twin_of ? 0 : (uint32_t)set.count;
  core->id = twin_of ? twin_of->core->id | LM_TWIN : set.id + (uint32_t)(mine - 1);
  core->next = w->groups;
  w->groups = core;
  listed = true;
  pthread_mutex_unlock(&w->lock);

  lm_waiting waiting;
  lm_ticket ticket = {.kind = LM_SETUP};
  snprintf(ticket.what, sizeof ticket.what, "new_group %.32s of %d rank%s", core->backend, size, size > 1 ? "s" : "");
  snprintf(ticket.where, sizeof ticket.where, "%.47s", lm_where());
  lm_waiting_begin(&waiting, LM_WAITING_UNTIL_DONE, core, &ticket, core->timeout);
  status = twin_of ? LM_OK : group_agree(w, core, &set);
  if (status == LM_OK) status = lm_parts_open(core, number[w->rank] - 1);
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
  lm_backends backends;
  lm_group_core *core;
  *out = NULL;
  NEED(lm_backends_parse("solo", &backends));
  NEED(make_core(1, (int[]){1}, 1, 0, &core));
  core->g.one_host = true;
  core->timeout = LM_DEFAULT_TIMEOUT;
  lm_parts_make(core, &backends);
  lm_status status = lm_parts_open(core, 0);
  if (status == LM_OK) {
    *out = &core->g;
  } else {
    free_core(core);
  }

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
