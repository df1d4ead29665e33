/* Tar archives, walked from one regular file in them to the next, plain or gzipped: v7, ustar, GNU's long names and
 * pax. Nothing but the file that is asked for lies in memory. */
#pragma once

#include <stddef.h>

#include "base/status.h"

typedef struct lm_tar lm_tar;

LM_API lm_status lm_tar_open(const char *path, lm_tar **out);
LM_API void lm_tar_close(lm_tar *t);
/* The next regular file's name, borrowed until the next call; NULL at the end. Other members are passed over. LM_E_IO
 * names the archive and the byte, after unpacking, where the member begins: nothing more can be read then. */
LM_API lm_status lm_tar_next(lm_tar *t, const char **name, size_t *length);
/* All bytes of that file, once; borrowed until the next call. */
LM_API lm_status lm_tar_read(lm_tar *t, const char **data, size_t *n);
