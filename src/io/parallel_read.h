/* Reads many pieces of a file on several threads. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/regular_file.h"

typedef struct lm_piece {
  void *to;
  size_t bytes;
  uint64_t at; /* offset in the file */
} lm_piece;

/* Reads the pieces of a file whose fstat at opening was `info`, on up to `threads` threads if there is much to read.
 * LM_E_IO if the file ends before a piece does, or was written to since it was opened. */
lm_status lm_read_pieces(const char *path, int fd, const struct stat *info, int threads, int n, const lm_piece *pieces);
