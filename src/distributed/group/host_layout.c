#include "distributed/group/host_layout.h"

#include <string.h>

#include "base/mem.h"
#include "distributed/group/world_core.h"

static const char *host_id_of(const lm_group *g, int rank) {
  return lm_client_member(g->core->world->client, g->ranks[rank])->host_id;
}

lm_status lm_host_layout_get(const lm_group *g, lm_host_layout **out) {
  size_t size = (size_t)g->size;
  lm_host_layout *l = *out = lm_calloc(1, sizeof *l + 5 * size * sizeof(int));
  if (!l) return LM_E_OOM;
  int *local = (int *)(l + 1), *across = local + size, *host_of = across + size, *first = host_of + size,
      *count = first + size;
  for (int r = 0; r < g->size; r++) {
    int k = 0;
    while (k < l->hosts && strcmp(host_id_of(g, first[k]), host_id_of(g, r)) != 0) k++;
    if (k == l->hosts) first[l->hosts++] = r;
    host_of[r] = k;
    if (r == g->rank) {
      l->host = k;
      l->index = count[k];
    }
    count[k]++;
  }
  l->columns = l->n = count[l->host];
  for (int k = 0; k < l->hosts; k++) l->columns = count[k] < l->columns ? count[k] : l->columns;
  memset(count, 0, (size_t)l->hosts * sizeof *count);
  for (int r = 0; r < g->size; r++) {
    int place = count[host_of[r]]++;
    if (host_of[r] == l->host) local[place] = r;
    if (place == l->index) across[host_of[r]] = r;
  }
  l->local = local;
  l->across = across;
  return LM_OK;
}
