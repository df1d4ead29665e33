/* Adds scan_folder(root, suffixes): list of classes, text, spans, labels from 0 (data/scan_folder.h), class sizes */
#include "data/scan_folder.h"

#include "bind/bind.h"

/* The arguments and results of a scan, freed by the collector if Lua raises. */
typedef struct scanning {
  const char **suffix;
  int n;
  lm_folder found;
  lm_tensor *result[3];
} scanning;

static void close_scanning(void *object) { lm_folder_free(&((scanning *)object)->found); }
static const lm_object_type scanning_type = {"luminary.scanning", sizeof(scanning), close_scanning, NULL, NULL, NULL};

static lm_status run_scan(lua_State *L, lm_lua *s, void *arg) {
  scanning *v = arg;
  lm_folder *f = &v->found;
  const char *root;
  NEED(lm_read_text(L, s, 1, "scan_folder", "root", &root));
  NEED(lm_folder_scan(root, v->n, v->suffix, f));
  v->result[0] = f->text;
  v->result[1] = f->spans;
  v->result[2] = f->label;
  f->text = f->spans = f->label = NULL;
  return LM_OK;
}

LM_FUNCTION(scan_folder, (any, root), (any, extensions)) {
  enum { SCANNING = 4, NAMES };
  int n;
  const char **suffix = lm_need_strings(L, 2, "scan_folder", "extensions", 0, &n); /* 3 */
  scanning *v = lm_object_new(L, &scanning_type);
  v->suffix = suffix;
  v->n = n;
  lm_return_tensors(L, SCANNING, 3, run_scan, v, v->result);
  int nclasses = (int)v->found.nclasses;
  lua_createtable(L, nclasses, 0);
  const char *name = v->found.classes.data;
  for (int i = 1; i <= nclasses; i++, name += strlen(name) + 1) {
    lua_pushstring(L, name);
    lua_rawseti(L, -2, i);
  }
  lua_insert(L, NAMES);
  lua_createtable(L, nclasses, 0);
  const lm_tensor *label = v->result[2];
  const int64_t *of = (const int64_t *)label->data;
  for (int64_t i = 0, k = 0; k < nclasses; k++) {
    int64_t first = i;
    while (i < label->numel && of[i] == k) i++;
    lua_pushnumber(L, (double)(i - first));
    lua_rawseti(L, -2, (int)k + 1);
  }
  return 5;
}
