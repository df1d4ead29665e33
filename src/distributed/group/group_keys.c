/* Reads and writes a group's own keys in the store, by which its members exchange data. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/group/world_core.h"

static lm_status group_key(const lm_group *g, const char *key, char *out, size_t capacity) {
  int n = snprintf(out, capacity, "group/%u/%d/%s", g->core->id, g->part, key);
  return n < (int)capacity
             ? LM_OK
             : lm_fail(LM_E_ARG, "the key of a group must have at most %zu bytes, got %d", capacity - 1, n);
}

lm_status lm_group_check_and_test(lm_group *g) {
  lm_status status = lm_group_check(g);
  bool numbered = lm_group_ticket(g)->seq > 0; /* false while the group is being opened */
  return status == LM_OK && numbered && g->table->test ? g->table->test(g) : status;
}

static lm_status check_group(void *ctx) { return lm_group_check_and_test(ctx); }

lm_status lm_group_set(lm_group *g, const char *key, const void *data, size_t n) {
  char whole[256];
  lm_status status = group_key(g, key, whole, sizeof whole);
  if (status != LM_OK) return status;
  status = lm_client_set(g->core->world->client, whole, data, n);
  if (status == LM_E_STATE && lm_group_failed(g)) status = lm_group_check(g);
  return status;
}

lm_status lm_group_get(lm_group *g, const char *key, void **data, size_t *n) {
  char whole[256];
  NEED(group_key(g, key, whole, sizeof whole));
  lm_deadline p = {.deadline = INFINITY, .wake_fd = -1, .check = check_group, .ctx = g};
  return lm_client_get(g->core->world->client, whole, true, &p, NULL, data, n);
}

lm_status lm_group_read(lm_group *g, const char *key, void *out, size_t n) {
  void *data;
  size_t got;
  NEED(lm_group_get(g, key, &data, &got));
  if (got == n) memcpy(out, data, n);
  lm_free(data);
  if (got == n) return LM_OK;
  return lm_fail(LM_E_STATE, "expected %zu bytes of '%s' in the store, got %zu; run the same version on all ranks", n,
                 key, got);
}
