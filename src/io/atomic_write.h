/* Writes files completely or not at all. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_new_file {
  int fd;
  char *path, *temporary; /* final path; temporary path until then, in `capacity` bytes */
  size_t capacity;
  bool nameless;                  /* true while the file has no name */
  uint64_t written, sent, stored; /* bytes: all; sent to the disk; stored by it */
  _Atomic uint64_t *progress;     /* grows with each piece that is written or stored; may be NULL */
} lm_new_file;

/* Opens a temporary file beside `path` (or beside a link's target), without a name if the file system supports that.
 * Commit names it `path` plus `suffix`. Refuses to replace anything but a regular file. */
LM_API lm_status lm_new_file_open(const char *path, const char *suffix, lm_new_file *f);
LM_API lm_status lm_new_file_write(lm_new_file *f, const void *data, size_t bytes);
/* Moves the next write back to the beginning. */
lm_status lm_new_file_rewind(lm_new_file *f);
/* Returns a read-only descriptor that keeps the file locked after commit until it is closed; -1 on failure. */
int lm_new_file_lock(const lm_new_file *f);
/* Syncs, renames and syncs the folder; always closes. After "cannot sync the folder of" the new file remains. */
LM_API lm_status lm_new_file_commit(lm_new_file *f);
/* Returns true if a listing of the path's folder has all of `shards`. It may be older than the files, and looks up no
 * name: NFS would keep on answering that one is absent. */
bool lm_parts_are_listed(const char *path, int nshards, const char *const *shards);
/* Completes a file of several parts, once all are there: renames `path` plus `suffix` to `path` and calls
 * lm_remove_abandoned. Does nothing if that file is missing, since another process was first. */
LM_API lm_status lm_complete_parts(const char *path, const char *suffix, int nshards, const char *const *shards);
/* Removes `path` plus `suffix`, after which nobody can complete it; true if it existed. */
LM_API bool lm_remove_part(const char *path, const char *suffix);
/* Removes the path's temporary files whose writers were killed and, if `shards` is not NULL, its shards (PATH.shard-…)
 * not named in `shards`. Both only if nobody holds their lock; on file systems without locks, if they are old. */
LM_API void lm_remove_abandoned(const char *path, int nshards, const char *const *shards);
/* Closes and removes the temporary file. Does nothing after commit, or on a zeroed struct with fd -1. */
LM_API void lm_new_file_abandon(lm_new_file *f);
