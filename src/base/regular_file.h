/* Opens regular files for reading. */
#pragma once

#include <sys/stat.h>

#include "base/status.h"

/* Opens `path` read-only and fills *info; the caller closes *fd. Anything but a regular file is LM_E_IO, unopened: a
 * FIFO would wait for a writer, and opening a device may do anything. flags: further flags of open, such as O_NOFOLLOW.
 * On failure errno is the reason, or 0 for another kind of file; LM_E_OOM if no descriptor is free. */
lm_status lm_fd_open(const char *path, int flags, int *fd, struct stat *info);
/* Returns LM_E_IO if the file's size or modification time differs from `info`: the bytes read may be half old, half
 * new. */
lm_status lm_fd_unchanged(const char *path, int fd, const struct stat *info);
/* Strips "<fd:3>: " from gzerror's message ("<fd:3>: incorrect data check" for a file opened by descriptor). */
const char *lm_gz_reason(const char *message);
/* Returns the kind of file for messages: "a folder", "a FIFO", ... */
LM_API const char *lm_file_kind(mode_t mode);
