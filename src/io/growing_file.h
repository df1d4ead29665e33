/* Appends entries to files such as logs; each entry is written completely or not at all. Nothing is buffered, so a
 * process that is killed, or forks, neither loses nor repeats an entry. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct lm_growing_file lm_growing_file;

/* Opens or creates a file, with `mode` less the umask. keep: keeps its contents. Devices and pipes are written to as
 * they are; a FIFO without a reader is an error. */
LM_API lm_status lm_growing_file_open(const char *path, bool keep, mode_t mode, lm_growing_file **out);
/* Appends an entry. On an error, removes what it wrote; the next call reopens the file, also if it was removed. */
LM_API lm_status lm_growing_file_write(lm_growing_file *f, const void *data, size_t bytes);
LM_API void lm_growing_file_close(lm_growing_file *f); /* NULL is fine */
