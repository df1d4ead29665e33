#include "data/scan_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"
#include "io/file.h"

enum { DEEPEST = 64 };

typedef struct names {
  char **at;
  size_t n, capacity;
} names;

static void free_names(names *l) {
  for (size_t i = 0; i < l->n; i++) lm_free(l->at[i]);
  lm_free(l->at);
  *l = (names){0};
}

/* Appends "folder/name", or "name" if folder is NULL. */
static lm_status add_name(names *l, const char *folder, const char *name) {
  size_t front = folder ? strlen(folder) + 1 : 0, bytes = strlen(name) + 1;
  char *text = lm_list_grow(&l->at, &l->capacity, l->n + 1, sizeof *l->at) ? lm_malloc(front + bytes) : NULL;
  if (!text) return LM_E_OOM;
  if (folder) {
    memcpy(text, folder, front - 1);
    text[front - 1] = '/';
  }
  memcpy(text + front, name, bytes);
  l->at[l->n++] = text;
  return LM_OK;
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort_names(names *l) {
  if (l->n > 1) qsort(l->at, l->n, sizeof *l->at, compare);
}

typedef struct scan {
  int n;
  const char *const *suffix;
  struct {
    dev_t device;
    ino_t inode;
  } above[DEEPEST];
} scan;

static bool is_wanted(const scan *s, const char *name) {
  size_t length = strlen(name);
  for (int i = 0; i < s->n; i++) {
    size_t k = strlen(s->suffix[i]);
    if (length >= k && strcasecmp(name + length - k, s->suffix[i]) == 0) return true;
  }
  return s->n == 0;
}

/* Lists the sub-folders of a folder and its files with a wanted suffix. */
static lm_status list_folder(const scan *s, const char *path, names *folders, names *files) {
  lm_status status = LM_OK;
  names full = {0};
  DIR *dir = lm_opendir(path);
  if (!dir) return lm_fail_file("open", path, strerror(errno));
  for (;;) {
    errno = 0;
    struct dirent *e = readdir(dir);
    if (!e && errno) status = lm_fail_file("open", path, strerror(errno));
    if (!e) break;
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    bool is_folder = e->d_type == DT_DIR;
    if (e->d_type == DT_LNK || e->d_type == DT_UNKNOWN) {
      struct stat info;
      TRY(add_name(&full, path, e->d_name));
      is_folder = stat(full.at[0], &info) == 0 && S_ISDIR(info.st_mode);
      free_names(&full);
    }
    if (is_folder ? folders != NULL : files && is_wanted(s, e->d_name)) {
      TRY(add_name(is_folder ? folders : files, NULL, e->d_name));
    }
  }
done:
  free_names(&full);
  closedir(dir);
  return status;
}

/* Finds the folder root/path and all folders in it, as paths relative to root. */
static lm_status walk_folders(scan *s, const char *root, const char *path, int depth, names *found) {
  lm_status status = LM_OK;
  __attribute__((cleanup(free_names))) names full = {0}, inner = {0};
  struct stat info;
  NEED(add_name(&full, root, path));
  if (stat(full.at[0], &info) != 0) return lm_fail_file("open", full.at[0], strerror(errno));
  for (int i = 0; i < depth; i++) {
    if (s->above[i].device == info.st_dev && s->above[i].inode == info.st_ino)
      return LM_OK; /* a link to a folder above */
  }
  if (depth == DEEPEST) return lm_fail_in_file(LM_E_IO, full.at[0], "folders must be nested at most %d deep", DEEPEST);
  s->above[depth].device = info.st_dev;
  s->above[depth].inode = info.st_ino;
  NEED(add_name(found, NULL, path));
  NEED(list_folder(s, full.at[0], &inner, NULL));
  for (size_t i = 0; i < inner.n; i++) {
    names below = {0};
    status = add_name(&below, path, inner.at[i]);
    if (status == LM_OK) status = walk_folders(s, root, below.at[0], depth + 1, found);
    free_names(&below);
    if (status != LM_OK) break;
  }
  return status;
}

typedef struct texts {
  lm_bytes text, spans, label;
} texts;

static lm_status add_class(scan *s, const char *root, const char *class, uint64_t label, texts *t) {
  __attribute__((cleanup(free_names))) names folders = {0}, files = {0}, full = {0};
  NEED(walk_folders(s, root, class, 0, &folders));
  sort_names(&folders);
  for (size_t i = 0; i < folders.n; i++) {
    NEED(add_name(&full, root, folders.at[i]));
    NEED(list_folder(s, full.at[0], NULL, &files));
    free_names(&full);
    sort_names(&files);
    for (size_t k = 0; k < files.n; k++) {
      size_t before = t->text.n;
      lm_put(&t->text, folders.at[i], strlen(folders.at[i]));
      lm_put(&t->text, "/", 1);
      lm_put(&t->text, files.at[k], strlen(files.at[k]));
      lm_put_u64(&t->spans, before);
      lm_put_u64(&t->spans, t->text.n - before);
      lm_put_u64(&t->label, label);
    }
    free_names(&files);
  }
  return LM_OK;
}

void lm_folder_free(lm_folder *f) {
  lm_bytes_free(&f->classes);
  lm_release(f->text);
  lm_release(f->spans);
  lm_release(f->label);
  *f = (lm_folder){0};
}

lm_status lm_folder_scan(const char *root, int n, const char *const *suffix, lm_folder *out) {
  lm_status status;
  names classes = {0};
  texts t = {0};
  scan s = {.n = n, .suffix = suffix};
  *out = (lm_folder){0};
  TRY(list_folder(&s, root, &classes, NULL));
  sort_names(&classes);
  for (size_t i = 0; i < classes.n; i++) {
    lm_put(&out->classes, classes.at[i], strlen(classes.at[i]) + 1);
    TRY(add_class(&s, root, classes.at[i], i, &t));
  }
  out->nclasses = (int64_t)classes.n;
  t.text.failed |= out->classes.failed;
  TRY(lm_tensor_of_bytes(root, &t.text, LM_U8, 1, &out->text));
  TRY(lm_tensor_of_bytes(root, &t.spans, LM_I64, 2, &out->spans));
  TRY(lm_tensor_of_bytes(root, &t.label, LM_I64, 1, &out->label));
done:
  free_names(&classes);
  lm_bytes_free(&t.text);
  lm_bytes_free(&t.spans);
  lm_bytes_free(&t.label);
  if (status != LM_OK) lm_folder_free(out);
  return status;
}
