/* An open regular file: its bytes by offset, copied, borrowed, or as tensors. Whatever is read of a file that was
 * written to since it was opened is LM_E_IO. */
#pragma once

#include "tensor/tensor.h"

typedef struct lm_file lm_file;

/* Tensors are read by up to `threads` threads. With 0 they lie over the mapped file: nothing is read before it is
 * touched, but whoever writes into the file meanwhile changes them; of one that was truncated lm_truncation_check
 * fails. */
LM_API lm_status lm_file_open(const char *path, int threads, lm_file **out);
/* Tensors read from it stay valid. NULL is fine. */
LM_API void lm_file_close(lm_file *f);
LM_API const char *lm_file_path(const lm_file *f);
LM_API uint64_t lm_file_bytes(const lm_file *f);
/* Its size and time of writing as text: what distinguishes a file from one that took its place. */
LM_API const char *lm_file_stamp(const lm_file *f);

/* n bytes from `at` on, borrowed until the next call; lm_file_check afterwards says whether they are the file's.
 * Whoever continues where the last view ended gets them from a buffer. */
LM_API lm_status lm_file_view(lm_file *f, uint64_t at, uint64_t n, const char **out);
/* LM_E_IO if the file was written to since it was opened. */
LM_API lm_status lm_file_check(const lm_file *f);

/* Dense elements from byte `at` on. */
typedef struct lm_file_part {
  lm_dtype dtype;
  int ndim;
  int64_t size[LM_MAX_DIMS];
  uint64_t at;
  size_t alignment; /* of the result, where it may lie over the mapped file */
  lm_tensor *t;     /* the result, on the CPU; writing into it does not reach the file */
} lm_file_part;
/* Reads n parts at once. Nothing is allocated for parts that lie beyond the file's end; on an error no t is set. */
LM_API lm_status lm_file_read(lm_file *f, int n, lm_file_part *parts);

/* What `packed` bytes from `at` on, deflated without a header (RFC 1951), unpack to, which must be n bytes exactly; or
 * with `start`, no more than the first n bytes of it. No more than can come of that many is allocated. */
LM_API lm_status lm_file_inflate(lm_file *f, uint64_t at, uint64_t packed, uint64_t n, bool start, lm_tensor **out);
enum { LM_DEFLATE_RATIO = 1032 }; /* at most: 258 bytes of two bits */

/* Of a contiguous tensor's bytes on the CPU, as zip and gzip have it; `before` is that of the bytes before, or 0. */
LM_API uint32_t lm_crc32(uint32_t before, const lm_tensor *t);
