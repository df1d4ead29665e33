/* Regular files, opened to be read. */
#pragma once

#include <sys/stat.h>

#include "base/status.h"

/* Anything else that the path may name is LM_E_IO at once, unopened: a FIFO would wait for a writer, and opening a
 * device may do anything. flags: more of open's, such as O_NOFOLLOW. errno reports why nothing could be opened; it is 0
 * if there is something else. The caller closes *fd. */
LM_API lm_status lm_fd_open(const char *path, int flags, int *fd, struct stat *info);
/* LM_E_IO if the file's size or time of writing differs from `info`: what was read may be half old, half new. */
LM_API lm_status lm_fd_unchanged(const char *path, int fd, const struct stat *info);
/* What gzerror says of a file that zlib knows by its descriptor alone ("<fd:3>: incorrect data check"), without that.
 */
LM_API const char *lm_gz_reason(const char *message);
/* "a folder", "a FIFO", ... */
LM_API const char *lm_file_kind(mode_t mode);
