#include "mp/descendants.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/mem.h"
#include "base/message.h"

typedef struct entry {
  pid_t pid, parent;
  char state; /* 'Z' and 'X': has ended */
  bool ours;
} entry;

/* Parses /proc/<pid>/stat: "pid (name) state parent", where the name may contain any character. */
static bool read_entry(const char *name, entry *out) {
  char path[300], text[512];
  snprintf(path, sizeof path, "/proc/%s/stat", name);
  int fd = lm_fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return false;
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return false;
  text[n] = 0;
  const char *rest = strrchr(text, ')');
  int parent;
  if (!rest || sscanf(rest, ") %c %d", &out->state, &parent) != 2) return false;
  out->pid = atoi(name);
  out->parent = parent;
  out->ours = false;
  return true;
}

static lm_status read_all(entry **out, int *n) {
  lm_status status = LM_OK;
  size_t capacity = 0;
  *out = NULL;
  *n = 0;
  DIR *folder = lm_opendir("/proc");
  if (!folder) return lm_fail_cannot(LM_E_IO, "open '/proc'", errno);
  for (const struct dirent *e; status == LM_OK && (e = readdir(folder));) {
    if (!isdigit((unsigned char)e->d_name[0])) continue;
    if (!lm_list_grow(out, &capacity, (size_t)*n + 1, sizeof **out)) status = LM_E_OOM;
    if (status == LM_OK && read_entry(e->d_name, &(*out)[*n])) ++*n;
  }
  closedir(folder);
  if (status != LM_OK) {
    lm_free(*out);
    *out = NULL;
    *n = 0;
  }
  return status;
}

lm_status lm_children(pid_t **out, int *n) {
  entry *all;
  int count;
  *out = NULL;
  *n = 0;
  NEED(read_all(&all, &count));
  pid_t self = getpid();
  *out = lm_malloc((size_t)count * sizeof **out);
  for (int i = 0; *out && i < count; i++) {
    if (all[i].parent == self) (*out)[(*n)++] = all[i].pid;
  }
  lm_free(all);
  return *out ? LM_OK : LM_E_OOM;
}

static bool descendants_is_among(pid_t pid, int n, const pid_t *list) {
  for (int i = 0; i < n; i++) {
    if (list[i] == pid) return true;
  }
  return false;
}

static bool is_ours(pid_t pid, int n, const entry *all) {
  for (int i = 0; i < n; i++) {
    if (all[i].pid == pid) return all[i].ours;
  }
  return false;
}

int lm_descendants_kill(int n, const pid_t *spared) {
  entry *all;
  int count, killed = 0;
  if (read_all(&all, &count) != LM_OK) return 0;
  pid_t self = getpid();
  for (bool found = true; found;) {
    found = false;
    for (int i = 0; i < count; i++) {
      if (all[i].ours || descendants_is_among(all[i].pid, n, spared)) continue;
      all[i].ours = all[i].parent == self || is_ours(all[i].parent, count, all);
      found |= all[i].ours;
    }
  }
  for (int i = 0; i < count; i++) {
    if (all[i].ours && all[i].state != 'Z' && all[i].state != 'X' && kill(all[i].pid, SIGKILL) == 0) killed++;
  }
  lm_free(all);
  return killed;
}
