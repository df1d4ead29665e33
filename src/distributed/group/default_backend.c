/* Chooses the default backend of new groups, by the GPUs that the ranks report when they join. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "device/driver.h"
#include "device/known.h"
#include "distributed/group/world_core.h"

static void note_uuid(void *ctx, const lm_property *p) {
  uint64_t *id = ctx;
  if (strcmp(p->name, "uuid") != 0 || p->kind != LM_PROPERTY_TEXT) return;
  *id = lm_hash(LM_NO_HASH, p->text, strlen(p->text));
}

/* Returns a hash of the GPU's UUID; 0: unknown. */
static uint64_t gpu_id(lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  uint64_t id = 0;
  if (!driver->properties || driver->properties(lm_device_physical(device), note_uuid, &id) != LM_OK) return 0;
  return id;
}

/* Takes the first device kind that has devices and an available backend. */
void lm_world_gpu_ids(lm_gpu_ids *out) {
  const lm_group_table *table;
  out->n = 0;
  for (int kind = LM_CPU + 1; kind < lm_known_count && out->n == 0; kind++) {
    int devices = lm_device_likely(kind) ? lm_device_count(kind) : 0;
    if (devices == 0 || lm_group_table_find(lm_known_kinds[kind].group, &table) != LM_OK) continue;
    int chosen = LM_DEVICE_ORDINAL(lm_device_current(kind)), first = chosen > 0 ? chosen : 0;
    for (int i = first; i < (chosen > 0 ? chosen + 1 : devices); i++) out->id[out->n++] = gpu_id(LM_DEVICE(kind, i));
  }
}

/* Orders members by host, then by rank, since lm_client keeps members in rank order in memory. */
static int compare_hosts(const void *a, const void *b) {
  const lm_member *const *x = a, *const *y = b;
  int order = strcmp((*x)->host_id, (*y)->host_id);
  return order != 0 ? order : (*x > *y) - (*x < *y);
}

static uint64_t backends_gpu_of(const lm_member *m, int position) {
  return m->gpu_ids.n > 0 ? m->gpu_ids.id[(uint32_t)position % m->gpu_ids.n] : 0;
}

/* Returns true if each rank has a GPU of its own; NCCL usually refuses two ranks on one GPU. Sorts `member`. */
static bool all_have_gpus(int n, const lm_member **member) {
  qsort(member, (size_t)n, sizeof *member, compare_hosts);
  for (int first = 0, i = 0; i < n; i++) {
    if (strcmp(member[first]->host_id, member[i]->host_id) != 0) first = i;
    uint64_t gpu = backends_gpu_of(member[i], i - first);
    if (gpu == 0) return false;
    for (int k = first; k < i; k++)
      if (backends_gpu_of(member[k], k - first) == gpu) return false;
  }
  return true;
}

lm_status lm_world_backend(const lm_world *w, const char **out) {
  const lm_member **member = lm_malloc((size_t)w->size * sizeof *member);
  if (!member) return LM_E_OOM;
  for (int r = 0; r < w->size; r++) member[r] = lm_client_member(w->client, r);
  *out = all_have_gpus(w->size, member) ? "cpu:gloo,cuda:nccl" : "gloo";
  lm_free(member);
  return LM_OK;
}
