/* Files of tensors with checksums, written complete or not at all, on a thread if asked for. The end of the process
 * waits for those threads. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_background_write lm_background_write;

typedef struct lm_write_plan {
  const char *path;
  const char *head; /* what the file begins with */
  size_t head_bytes;
  /* From this byte of the head on are written the checksums of the tensors: 8 digits each, with a space between. */
  size_t sums_at;
  int n;
  lm_tensor *const *tensors;
  /* Of a tensor: a new reference to it if it is contiguous and on the CPU, else a copy that is. One is made at a time,
   * on the caller's thread; what is written in the background must be so already. */
  lm_status (*dense)(lm_tensor *t, lm_tensor **out);
  const double *sums_before; /* checksums that those of the tensors continue */
  /* The shards of the path that stay; others are removed once the file is there. kept NULL: all stay. */
  int nkept;
  const char *const *kept;
  /* Of a shard, and of the file that names the shards: the path of the latter, and what is added to it until all of
   * `kept` are there, when whoever wrote the last renames it. NULL: there are no shards. */
  const char *whole, *suffix;
  bool background;
  bool locked; /* the file stays locked until the release, so that lm_remove_abandoned leaves it */
} lm_write_plan;

/* Keeps tensors and copies of texts. Not in the background: the file is there, or it fails. */
LM_API lm_status lm_background_write_start(const lm_write_plan *plan, lm_background_write **out);
/* Whether it has ended, within `seconds`. */
LM_API bool lm_background_write_wait(lm_background_write *w, double seconds);
/* Once it has ended: why it failed, or "". The end of the process does not report it again. */
LM_API const char *lm_background_write_error(lm_background_write *w);
LM_API void lm_background_write_release(lm_background_write *w); /* NULL is fine; it runs on */
/* Waits for all, unless nothing is written for a time (LM_SAVE_TIMEOUT); prints errors that nobody has asked for.
 * Whether there were none. */
LM_API bool lm_background_writes_finish(void);
