#include "base/plugin.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/address_space.h"
#include "base/descriptor.h"
#include "base/thread.h"

bool lm_plugin_folder(char folder[LM_PLUGIN_PATH]) {
  Dl_info self;
  if (!dladdr((void *)lm_plugin_folder, &self) || !self.dli_fname) return false;
  const char *slash = strrchr(self.dli_fname, '/');
  size_t n = slash ? (size_t)(slash - self.dli_fname) : 0;
  if (n == 0 || n >= LM_PLUGIN_PATH - 2 * LM_PLUGIN_NAME) return false;
  memcpy(folder, self.dli_fname, n);
  folder[n] = 0;
  return true;
}

const lm_module_copy *lm_claim_process(const lm_module_copy *own) {
  static const lm_module_copy *_Atomic first;
  const lm_module_copy *none = NULL;
  return atomic_compare_exchange_strong(&first, &none, own) ? own : none;
}

/* Writes search folder i, from 0: "" for one to be skipped. Returns false after the last. */
static bool folder_at(const lm_plugin_family *family, int i, char folder[LM_PLUGIN_PATH]) {
  for (const char *at = lm_variable_get(family->folders); at; i--) {
    size_t n = strcspn(at, ":");
    if (i == 0) {
      if (n >= LM_PLUGIN_PATH - 2 * LM_PLUGIN_NAME) n = 0;
      memcpy(folder, at, n);
      folder[n] = 0;
      return true;
    }
    at = at[n] ? at + n + 1 : NULL;
  }
  return i == 0 && lm_plugin_folder(folder);
}

/* Returns true if name has only letters, digits and '_' and is short enough: keeps paths out of names. */
static bool is_name(const char *name) {
  size_t n = strlen(name);
  if (n == 0 || n >= LM_PLUGIN_NAME) return false;
  for (size_t i = 0; i < n; i++)
    if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
  return true;
}

static lm_status load_plugin(const lm_plugin_family *family, const char *name, const char *path, void **function) {
  if (!lm_address_space_has(family->room > 0, family->room)) return lm_fail_memory("%s '%s'", family->noun, name);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return lm_fail(LM_E_MISSING, "cannot load %s '%s': %s", family->noun, name, dlerror());
  *function = dlsym(library, family->function);
  if (*function) return LM_OK;
  return lm_fail(LM_E_MISSING, "cannot load %s '%s': '%s' has no function %s", family->noun, name, path,
                 family->function);
}

lm_status lm_plugin_load(const lm_plugin_family *family, const char *name, void **function, char path[LM_PLUGIN_PATH]) {
  *function = NULL;
  if (!is_name(name)) return LM_OK;
  for (int i = 0; folder_at(family, i, path); i++) {
    size_t n = strlen(path);
    if (n == 0) continue;
    snprintf(path + n, LM_PLUGIN_PATH - n, "/luminary_%s_%s.so", family->family, name);
    if (access(path, F_OK) == 0) return load_plugin(family, name, path, function);
  }
  return LM_OK;
}

lm_status lm_plugin_need(const lm_plugin_family *family, const char *name, void **function) {
  char path[LM_PLUGIN_PATH];
  NEED(lm_plugin_load(family, name, function, path));
  if (*function) return LM_OK;
  return lm_fail(LM_E_MISSING, "luminary_%s_%s.so is missing beside the library; install all of luminary",
                 family->family, name);
}

LM_MUTEX(loading);

lm_status lm_load_once(_Atomic bool *loaded, lm_status (*load)(void *arg), void *arg) {
  if (atomic_load_explicit(loaded, memory_order_acquire)) return LM_OK;
  LM_LOCKED(&loading);
  lm_status status = *loaded ? LM_OK : load(arg);
  if (status == LM_OK) atomic_store_explicit(loaded, true, memory_order_release);
  return status;
}

void lm_plugin_add_name(lm_plugin_names *all, const char *name, size_t length) {
  if (length == 0 || length >= LM_PLUGIN_NAME || all->n == LM_PLUGIN_NAMES) return;
  for (int i = 0; i < all->n; i++)
    if (strlen(all->name[i]) == length && memcmp(all->name[i], name, length) == 0) return;
  char *copy = all->text[all->n];
  memcpy(copy, name, length);
  copy[length] = 0;
  all->name[all->n++] = copy;
}

void lm_plugin_add_found(lm_plugin_names *all, const lm_plugin_family *family) {
  static const char tail[] = ".so";
  char folder[LM_PLUGIN_PATH], head[2 * LM_PLUGIN_NAME];
  size_t h = (size_t)snprintf(head, sizeof head, "luminary_%s_", family->family), t = sizeof tail - 1;
  for (int i = 0; folder_at(family, i, folder); i++) {
    DIR *dir = folder[0] ? lm_opendir(folder) : NULL;
    if (!dir) continue;
    for (struct dirent *e; (e = readdir(dir));) {
      size_t n = strlen(e->d_name);
      if (n > h + t && strncmp(e->d_name, head, h) == 0 && strcmp(e->d_name + n - t, tail) == 0)
        lm_plugin_add_name(all, e->d_name + h, n - h - t);
    }
    closedir(dir);
  }
}
