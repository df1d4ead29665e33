#include "backend/cuda/libraries/lazy_library.h"

#include <dlfcn.h>
#include <string.h>

#include "base/environment_variable.h"
#include "base/thread.h"

/* Returns true if the comma-separated list contains the name. */
static bool is_listed(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at; at = strchr(at, ',')) {
    at += strspn(at, ", ");
    size_t n = strcspn(at, ", ");
    if (n == length && memcmp(at, name, n) == 0) return true;
  }
  return false;
}

/* Finds all functions, first in the process's own libraries, as linking would. */
static bool find_all(lm_lazy_library *l) {
  bool there = dlsym(RTLD_DEFAULT, l->names[0]) != NULL;
  void *from = there ? RTLD_DEFAULT : dlopen(l->file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!there && !from) return false;
  for (int i = 0; l->names[i]; i++) {
    l->functions[i] = dlsym(from, l->names[i]);
    if (!l->functions[i]) return false;
  }
  return true;
}

lm_status lm_lazy_load(lm_lazy_library *l) {
  LM_LOCKED(&l->lock);
  if (l->state == LM_NOT_TRIED) {
    const char *without = lm_variable_get(LM_VAR_CUDA_WITHOUT);
    l->state = !(without && is_listed(without, l->name)) && find_all(l) ? LM_LOADED : LM_ABSENT;
  }
  return l->state == LM_LOADED ? LM_OK : lm_fail(LM_E_MISSING, "cannot load '%s': no such library", l->file);
}
