/* Shared libraries loaded by name when first asked for, luminary_<family>_<name>.so: from the folders that an
 * environment variable lists, then from beside this library. Never unloaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/environment_variable.h"
#include "base/status.h"

enum { LM_PLUGIN_NAME = 32, LM_PLUGIN_PATH = 1100, LM_PLUGIN_NAMES = 64 }; /* bytes, bytes, how many */

typedef struct lm_plugin_family {
  const char *family;   /* "group" */
  lm_variable folders;  /* LM_VAR_GROUP_PATH */
  const char *function; /* what each exports */
  const char *noun;     /* what messages call one: "backend" */
} lm_plugin_family;

/* The function of the plug-in of that name, and the file's path; NULL if there is no such file. One that does not load
 * or lacks the function is LM_E_MISSING. */
lm_status lm_plugin_load(const lm_plugin_family *family, const char *name, void **function, char path[LM_PLUGIN_PATH]);
/* Letters, digits and '_', short enough: keeps paths out of names. */
bool lm_plugin_is_name(const char *name);
/* The folder this library lies in. */
bool lm_plugin_folder(char folder[LM_PLUGIN_PATH]);

/* ---- for messages: names, each once */
typedef struct lm_plugin_names {
  int n;
  const char *name[LM_PLUGIN_NAMES];
  char text[LM_PLUGIN_NAMES][LM_PLUGIN_NAME];
} lm_plugin_names;
void lm_plugin_add_name(lm_plugin_names *all, const char *name, size_t length);
/* Adds those of all plug-ins that can be found. */
void lm_plugin_add_found(lm_plugin_names *all, const lm_plugin_family *family);
