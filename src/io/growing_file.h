/* Files that grow by entries, such as logs: each entry is written complete or not at all. Nothing is buffered, so that
 * a process that is killed, or forks, neither loses nor repeats an entry. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct lm_growing_file lm_growing_file;

/* Opens or creates a file, with `mode` less the umask. keep: what it has stays. A device or the reading end of a pipe
 * is written to as it is; a FIFO that nobody reads is an error. */
LM_API lm_status lm_growing_file_open(const char *path, bool keep, mode_t mode, lm_growing_file **out);
/* After an error the file ends where it ended before; the next call opens it again, as it does where the file was
 * removed. */
LM_API lm_status lm_growing_file_write(lm_growing_file *f, const void *data, size_t bytes);
LM_API void lm_growing_file_close(lm_growing_file *f); /* NULL is fine */
