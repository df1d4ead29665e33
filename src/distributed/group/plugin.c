/* Finds backends by name: built-in ones, and plug-ins, which are loaded on first use and never unloaded. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/nearest_word.h"
#include "base/plugin.h"
#include "distributed/group/group_core.h"

static const lm_plugin_family family = {"group", LM_VAR_GROUP_PATH, LM_GROUP_PLUGIN, "backend", 64 << 20};

typedef struct backend {
  char name[LM_PLUGIN_NAME];
  const lm_group_table *table;
  struct backend *next;
} backend;

static const lm_group_table *const built_in[] = {&lm_group_solo_table, &lm_group_gloo_table};
enum { BUILT_IN = sizeof built_in / sizeof *built_in };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static backend *loaded; /* list under `lock`; never freed */

static lm_status fail_backend_unknown(const char *name) {
  static const char *const ours[] = {"nccl", "mpi"};
  lm_plugin_names *all = lm_malloc(sizeof *all);
  if (!all) return LM_E_OOM;
  char here[512] = "", home[LM_PLUGIN_PATH];
  size_t at = 0;
  all->n = 0;
  for (int i = 0; i < BUILT_IN; i++) lm_plugin_add_name(all, built_in[i]->name, strlen(built_in[i]->name));
  lm_plugin_add_found(all, &family);
  for (int i = 0; i < all->n && at < sizeof here; i++)
    at += (size_t)snprintf(here + at, sizeof here - at, "%s%s", i ? ", " : "", all->name[i]);
  bool known = false;
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
    known = known || strcmp(name, ours[i]) == 0;
    lm_plugin_add_name(all, ours[i], strlen(ours[i]));
  }
  const char *near = lm_nearest(name, all->n, all->name);
  lm_status status;
  if (known) {
    status = lm_fail(LM_E_MISSING,
                     "backend '%s' was not built (no luminary_group_%s.so on LM_GROUP_PATH or in %s); available: %s",
                     name, name, lm_plugin_folder(home) ? home : "the library's folder", here);
  } else if (near) {
    status = lm_fail(LM_E_ARG, "unknown backend '%s'; did you mean '%s'? Available: %s", name, near, here);
  } else {
    status = lm_fail(LM_E_ARG,
                     "unknown backend '%s'; available: %s, and luminary_group_NAME.so in the folders of LM_GROUP_PATH",
                     name, here);
  }
  lm_free(all);
  return status;
}

static lm_status check_table(const char *name, const char *path, const lm_group_table *t) {
  if (!t) return lm_fail(LM_E_MISSING, "backend '%s': %s exports no table of functions", name, path);
  if (t->abi != LM_GROUP_ABI)
    return lm_fail(LM_E_MISSING,
                   "backend '%s': %s was built for version %d of distributed/group/backend.h, this library has version "
                   "%d; rebuild it",
                   name, path, t->abi, LM_GROUP_ABI);
  if (!t->name || !t->open || !t->close || !t->run)
    return lm_fail(LM_E_MISSING, "backend '%s': the table of %s lacks name, open, close or run", name, path);
  return LM_OK;
}

static lm_status backend_load(const char *name, const lm_group_table **out) {
  char path[LM_PLUGIN_PATH];
  lm_group_plugin_fn *plugin = NULL;
  NEED(lm_plugin_load(&family, name, (void **)&plugin, path));
  if (!plugin) return LM_OK;
  const lm_group_table *table = plugin();
  NEED(check_table(name, path, table));
  backend *b = lm_malloc(sizeof *b);
  if (!b) return LM_E_OOM;
  snprintf(b->name, sizeof b->name, "%s", name);
  b->table = table;
  b->next = loaded;
  loaded = b;
  lm_log(LM_LOG_DIST, "backend %s from %s", name, path);
  *out = table;
  return LM_OK;
}

lm_status lm_group_table_find(const char *name, const lm_group_table **out) {
  lm_status status = LM_OK;
  *out = NULL;
  for (int i = 0; i < BUILT_IN && !*out; i++)
    if (strcmp(built_in[i]->name, name) == 0) *out = built_in[i];
  if (*out) return LM_OK;
  pthread_mutex_lock(&lock);
  for (backend *b = loaded; b && !*out; b = b->next)
    if (strcmp(b->name, name) == 0) *out = b->table;
  if (!*out) status = backend_load(name, out);
  pthread_mutex_unlock(&lock);
  return status == LM_OK && !*out ? fail_backend_unknown(name) : status;
}
