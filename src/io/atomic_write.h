/* Files written whole or not at all. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct lm_new_file {
  int fd;
  char *path, *temporary; /* what it will be called; what it is called until then, in `capacity` bytes */
  size_t capacity;
  bool nameless;                  /* it is called nothing yet */
  uint64_t written, sent, stored; /* bytes: all; that the disk was asked to write; that it has written */
  _Atomic uint64_t *progress;     /* grows with each piece that is written or stored; may be NULL */
} lm_new_file;

/* A temporary file beside `path` (behind its link, if it is one), without a name where the file system has such. It
 * will be called `path` and the suffix. Refuses what is no regular file. */
LM_API lm_status lm_new_file_open(const char *path, const char *suffix, lm_new_file *f);
LM_API lm_status lm_new_file_write(lm_new_file *f, const void *data, size_t bytes);
/* The next write is at the beginning again. */
LM_API lm_status lm_new_file_rewind(lm_new_file *f);
/* A descriptor, for reading alone, that keeps the file locked after commit until it is closed; -1 if there is none. */
LM_API int lm_new_file_lock(const lm_new_file *f);
/* Sync, rename, sync the directory; closes in any case. An error "cannot sync the folder of" leaves the new file. */
LM_API lm_status lm_new_file_commit(lm_new_file *f);
/* Of a file of several parts, for whoever has written one: renames `path` with the suffix to `path`, if that is there,
 * all of `kept` are beside it, and nobody else does it; then calls lm_remove_abandoned. */
LM_API lm_status lm_complete_parts(const char *path, const char *suffix, int nkept, const char *const *kept);
/* Removes `path` with the suffix, after which nobody can complete it; whether it was there. */
LM_API bool lm_remove_part(const char *path, const char *suffix);
/* Removes the temporary files of the path whose writers were killed, and its shards (PATH.shard-…) without those whose
 * names are in `kept`, if that is not NULL: of both, files that nobody has locked; where there are no locks, old ones.
 */
LM_API void lm_remove_abandoned(const char *path, int nkept, const char *const *kept);
/* Remove the temporary file. Does nothing after commit, or on a zeroed struct with fd -1. */
LM_API void lm_new_file_abandon(lm_new_file *f);
