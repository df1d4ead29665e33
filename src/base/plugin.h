/* Loads shared libraries by name at first use: luminary_<family>_<name>.so from the folders that an environment
 * variable lists, then from this library's folder. They are never unloaded. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/environment_variable.h"
#include "base/status.h"

enum { LM_PLUGIN_NAME = 32, LM_PLUGIN_PATH = 1100, LM_PLUGIN_NAMES = 64 }; /* bytes, bytes, count */

typedef struct lm_plugin_family {
  const char *family;   /* "group" */
  lm_variable folders;  /* LM_VAR_GROUP_PATH */
  const char *function; /* the name of the function that each plug-in exports */
  const char *noun;     /* the word for one in messages: "backend" */
  size_t room;          /* address space of libraries in C++, whose constructors throw if they cannot allocate */
} lm_plugin_family;

/* Loads the plug-in `name` and returns its function and the file's path. *function is NULL if there is no such file;
 * LM_E_MISSING if the file does not load or lacks the function. */
lm_status lm_plugin_load(const lm_plugin_family *family, const char *name, void **function, char path[LM_PLUGIN_PATH]);
/* Loads a plug-in that every build has, as lm_plugin_load does; LM_E_MISSING without its file. */
LM_API lm_status lm_plugin_need(const lm_plugin_family *family, const char *name, void **function);
/* Calls load(arg) unless it succeeded before with this `loaded`, in one thread at a time. */
LM_API lm_status lm_load_once(_Atomic bool *loaded, lm_status (*load)(void *arg), void *arg);
/* A copy of the module that binds this library, which the dynamic linker loads once: version, and path of the file. */
typedef struct lm_module_copy {
  const char *version, *path;
} lm_module_copy;
/* Returns the first copy for which this was called in the process. */
LM_API const lm_module_copy *lm_claim_process(const lm_module_copy *own);
/* Writes the folder of this library; false if unknown or too long. */
LM_API bool lm_plugin_folder(char folder[LM_PLUGIN_PATH]);

/* ---- for messages: a list of distinct names */
typedef struct lm_plugin_names {
  int n;
  const char *name[LM_PLUGIN_NAMES];
  char text[LM_PLUGIN_NAMES][LM_PLUGIN_NAME];
} lm_plugin_names;
void lm_plugin_add_name(lm_plugin_names *all, const char *name, size_t length);
/* Adds the names of all plug-ins in the family's folders. */
void lm_plugin_add_found(lm_plugin_names *all, const lm_plugin_family *family);
