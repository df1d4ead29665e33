/* Backends by name: solo is built in, others are plug-ins, loaded when first asked for and never unloaded. */
#define _GNU_SOURCE /* dladdr */
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "dist/core.h"

enum { NAME_MAX_ = 32, FOLDERS = 32, KNOWN = 64 };

typedef struct backend {
  char name[NAME_MAX_];
  const lm_group_table *table;
  struct backend *next;
} backend;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static backend *loaded; /* kept for good */

/* ---- where plug-ins are */

typedef struct folders {
  int n;
  char path[FOLDERS][1024];
} folders;

static void add_folder(folders *f, const char *path, size_t n) {
  if (n == 0 || n >= sizeof f->path[0] || f->n == FOLDERS) return;
  memcpy(f->path[f->n], path, n);
  f->path[f->n++][n] = 0;
}

/* LM_GROUP_PATH's, then our own. */
static folders *list_folders(void) {
  folders *f = lm_malloc(sizeof *f);
  if (!f) return NULL;
  f->n = 0;
  for (const char *at = getenv("LM_GROUP_PATH"); at;) {
    size_t n = strcspn(at, ":");
    add_folder(f, at, n);
    at = at[n] ? at + n + 1 : NULL;
  }
  Dl_info self;
  if (dladdr((void *)lm_group_table_find, &self) && self.dli_fname) {
    const char *slash = strrchr(self.dli_fname, '/');
    if (slash && slash > self.dli_fname) add_folder(f, self.dli_fname, (size_t)(slash - self.dli_fname));
  }
  return f;
}

/* ---- an unknown name */

typedef struct names {
  int n;
  const char *name[KNOWN];
  char found[KNOWN][NAME_MAX_];
} names;

static void add_name(names *all, const char *name, size_t n) {
  if (n == 0 || n >= NAME_MAX_ || all->n == KNOWN) return;
  for (int i = 0; i < all->n; i++)
    if (strlen(all->name[i]) == n && memcmp(all->name[i], name, n) == 0) return;
  char *copy = all->found[all->n];
  memcpy(copy, name, n);
  copy[n] = 0;
  all->name[all->n++] = copy;
}

static void add_plugins(names *all, const char *folder) {
  static const char head[] = "luminary_group_", tail[] = ".so";
  DIR *dir = opendir(folder);
  if (!dir) return;
  for (struct dirent *e; (e = readdir(dir));) {
    size_t n = strlen(e->d_name), h = sizeof head - 1, t = sizeof tail - 1;
    if (n > h + t && strncmp(e->d_name, head, h) == 0 && strcmp(e->d_name + n - t, tail) == 0)
      add_name(all, e->d_name + h, n - h - t);
  }
  closedir(dir);
}

static lm_status unknown(const char *name, const folders *f) {
  static const char *const ours[] = {"solo", "gloo", "nccl", "mpi"};
  names *all = lm_malloc(sizeof *all);
  if (!all) return LM_E_OOM;
  char here[512] = "";
  size_t at = 0;
  all->n = 0;
  add_name(all, "solo", 4);
  for (int i = 0; i < f->n; i++) add_plugins(all, f->path[i]);
  for (int i = 0; i < all->n && at < sizeof here; i++)
    at += (size_t)snprintf(here + at, sizeof here - at, "%s%s", i ? ", " : "", all->name[i]);
  bool known = false;
  for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
    known = known || strcmp(name, ours[i]) == 0;
    add_name(all, ours[i], strlen(ours[i]));
  }
  const char *near = lm_nearest(name, all->n, all->name);
  lm_status status;
  if (known) {
    status = lm_fail(LM_E_MISSING,
                     "backend '%s' is not built here (no luminary_group_%s.so on LM_GROUP_PATH or in %s); there is %s",
                     name, name, f->n > 0 ? f->path[f->n - 1] : "the library's folder", here);
  } else if (near) {
    status = lm_fail(LM_E_ARG, "backend '%s' is not known; did you mean '%s'? There is %s", name, near, here);
  } else {
    status = lm_fail(
        LM_E_ARG, "backend '%s' is not known; there is %s, and what lies on LM_GROUP_PATH as luminary_group_<name>.so",
        name, here);
  }
  lm_free(all);
  return status;
}

/* ---- loading */

static lm_status check_table(const char *name, const char *path, const lm_group_table *t) {
  if (!t) return lm_fail(LM_E_MISSING, "backend '%s': %s offers no table", name, path);
  if (t->abi != LM_GROUP_ABI)
    return lm_fail(
        LM_E_MISSING,
        "backend '%s': %s was built for version %d of dist/group.h, this library has version %d; build it anew", name,
        path, t->abi, LM_GROUP_ABI);
  if (!t->name || !t->open || !t->close)
    return lm_fail(LM_E_MISSING, "backend '%s': the table of %s lacks name, open or close", name, path);
  return LM_OK;
}

static lm_status load(const char *name, const char *path, const lm_group_table **out) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return lm_fail(LM_E_MISSING, "backend '%s' does not load: %s", name, dlerror());
  lm_group_plugin_fn *plugin = NULL;
  *(void **)&plugin = dlsym(library, LM_GROUP_PLUGIN);
  if (!plugin) return lm_fail(LM_E_MISSING, "backend '%s': %s has no function " LM_GROUP_PLUGIN, name, path);
  const lm_group_table *table = plugin();
  lm_status status = check_table(name, path, table);
  if (status != LM_OK) return status;
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

/* Also keeps paths out of names. */
static bool is_name(const char *name) {
  size_t n = strlen(name);
  if (n == 0 || n >= NAME_MAX_) return false;
  for (size_t i = 0; i < n; i++)
    if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
  return true;
}

lm_status lm_group_table_find(const char *name, const lm_group_table **out) {
  lm_status status = LM_OK;
  *out = NULL;
  if (strcmp(name, "solo") == 0) {
    *out = &lm_group_solo_table;
    return LM_OK;
  }
  folders *f = list_folders();
  if (!f) return LM_E_OOM;
  char path[1024 + 64];
  pthread_mutex_lock(&lock);
  for (backend *b = loaded; b && !*out; b = b->next)
    if (strcmp(b->name, name) == 0) *out = b->table;
  for (int i = 0; is_name(name) && i < f->n && !*out && status == LM_OK; i++) {
    snprintf(path, sizeof path, "%s/luminary_group_%s.so", f->path[i], name);
    if (access(path, F_OK) == 0) status = load(name, path, out);
  }
  pthread_mutex_unlock(&lock);
  if (status == LM_OK && !*out) status = unknown(name, f);
  lm_free(f);
  return status;
}
