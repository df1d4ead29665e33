/* Writes files of tensors with checksums, completely or not at all, on a thread if requested. The process waits for
 * those threads at exit. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_background_write lm_background_write;

typedef struct lm_write_plan {
  const char *path;
  const char *head; /* the file's first bytes */
  size_t head_bytes;
  /* Offset in the head of the tensors' checksums: 8 digits each, separated by spaces. */
  size_t sums_at;
  int n;
  lm_tensor *const *tensors;
  /* Returns a new reference to t if it is contiguous and on the CPU, else such a copy. Copies are made one at a time,
   * on the writing thread; tensors for a background write must be dense already. */
  lm_status (*dense)(lm_tensor *t, lm_tensor **out);
  const double *sums_before; /* initial value of each tensor's checksum */
  /* Names of the shards to keep; others are removed once the file is written. shards NULL: all stay. */
  int nshards;
  const char *const *shards;
  /* The path of the file that lists the shards, if this is it or a shard, and its suffix until all of `shards` exist;
   * in the background the writer of the last one renames it, else the caller. NULL: there are no shards. */
  const char *whole, *suffix;
  bool background;
  bool locked; /* keeps the file locked until the release, so that lm_remove_abandoned skips it */
} lm_write_plan;

/* Starts a write; keeps references to tensors and copies of texts. Without `background` it is finished on return. */
LM_API lm_status lm_background_write_start(const lm_write_plan *plan, lm_background_write **out);
/* Waits at most `seconds`; true if the write has ended. */
LM_API bool lm_background_write_wait(lm_background_write *w, double seconds);
/* Returns an ended write's error, or "". The exit of the process does not report it again. */
LM_API const char *lm_background_write_error(lm_background_write *w);
LM_API void lm_background_write_release(lm_background_write *w); /* NULL is fine; a running write continues */
/* Waits for all writes, until nothing is written for LM_SAVE_TIMEOUT; prints errors that nobody has read. True if there
 * were none. */
LM_API bool lm_background_writes_finish(void);
