/* Reads a regular file from its beginning to its end, and decompresses it if it is gzipped. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_file_stream lm_file_stream;

LM_API lm_status lm_file_stream_open(const char *path, lm_file_stream **out);
LM_API void lm_file_stream_close(lm_file_stream *s);          /* NULL is fine */
LM_API uint64_t lm_file_stream_most(const lm_file_stream *s); /* the largest size it can decompress to, in bytes */

/* Reads the next n bytes; *got is less than n only at the end. */
LM_API lm_status lm_file_stream_read(lm_file_stream *s, void *to, size_t n, size_t *got);
/* Skips n bytes; false if a plain file ends before. */
LM_API bool lm_file_stream_skip(lm_file_stream *s, uint64_t n);
/* Reads exactly n bytes as uint8 [n]; allocates nothing if the file cannot contain that many. */
LM_API lm_status lm_file_stream_bytes(lm_file_stream *s, uint64_t n, lm_tensor **out);
/* Reads all remaining bytes as uint8 [n]. */
LM_API lm_status lm_file_stream_rest(lm_file_stream *s, lm_tensor **out);
/* Checks gzip's checksum by reading to the end; LM_E_IO if the file was written to since it was opened. */
LM_API lm_status lm_file_stream_finish(lm_file_stream *s);
