/* A regular file read from its beginning to its end, unpacked if it is gzipped. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_file_stream lm_file_stream;

LM_API lm_status lm_file_stream_open(const char *path, lm_file_stream **out);
LM_API void lm_file_stream_close(lm_file_stream *s);          /* NULL is fine */
LM_API uint64_t lm_file_stream_most(const lm_file_stream *s); /* bytes that all of it can unpack to */

/* The next n bytes; *got is less than n at the end alone. */
LM_API lm_status lm_file_stream_read(lm_file_stream *s, void *to, size_t n, size_t *got);
/* False where a plain file ends before that. */
LM_API bool lm_file_stream_skip(lm_file_stream *s, uint64_t n);
/* Exactly n bytes, uint8 [n]; nothing is allocated where the file cannot have as many. */
LM_API lm_status lm_file_stream_bytes(lm_file_stream *s, uint64_t n, lm_tensor **out);
/* All that is left, uint8 [n]. */
LM_API lm_status lm_file_stream_rest(lm_file_stream *s, lm_tensor **out);
/* Reads to the end, where gzip's checksum is; LM_E_IO if the file was written to since it was opened. */
LM_API lm_status lm_file_stream_finish(lm_file_stream *s);
