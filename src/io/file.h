/* Reads an open regular file: its bytes by offset, copied or borrowed, or as tensors. A read fails with LM_E_IO if the
 * file was written to since it was opened. */
#pragma once

#include "base/bytes.h"
#include "tensor/tensor.h"

typedef struct lm_file lm_file;

/* Opens a file. With `mapped` its tensors map the file: pages are read on first access, and later writes to the file
 * change them; lm_truncation_check fails after a truncation. */
LM_API lm_status lm_file_open(const char *path, bool mapped, lm_file **out);
/* Closes the file; tensors read from it stay valid. NULL is fine. */
LM_API void lm_file_close(lm_file *f);
LM_API const char *lm_file_path(const lm_file *f);
LM_API uint64_t lm_file_bytes(const lm_file *f);
/* Returns the file's size and modification time as text, which distinguish it from a file that replaces it. */
LM_API const char *lm_file_stamp(const lm_file *f);

/* Returns n bytes at offset `at`, borrowed until the next call; lm_file_check reports afterwards if they are valid. A
 * view that starts where the last one ended is read ahead into a buffer. */
LM_API lm_status lm_file_view(lm_file *f, uint64_t at, uint64_t n, const char **out);
/* Returns LM_E_IO if the file was written to since it was opened. */
LM_API lm_status lm_file_check(const lm_file *f);

/* Dense elements at byte offset `at`. */
typedef struct lm_file_part {
  lm_dtype dtype;
  int ndim;
  int64_t size[LM_MAX_DIMS];
  uint64_t at;
  size_t alignment; /* bytes; a part whose `at` is not a multiple is copied, not mapped */
  lm_tensor *t;     /* the result, on the CPU; writes to it do not reach the file */
} lm_file_part;
/* Reads n parts at once. Allocates nothing for parts beyond the file's end; sets no t on an error. */
LM_API lm_status lm_file_read(lm_file *f, int n, lm_file_part *parts);

/* Inflates `compressed` bytes at offset `at` (raw deflate, RFC 1951) to exactly n bytes, or with `start` to the first n
 * bytes. Fails before allocating if n exceeds LM_DEFLATE_RATIO * compressed. */
LM_API lm_status lm_file_inflate(lm_file *f, uint64_t at, uint64_t compressed, uint64_t n, bool start, lm_tensor **out);
enum { LM_DEFLATE_RATIO = 1032 }; /* maximum: 258 bytes from two bits */

/* Returns in *out a new tensor of the buffer's bytes, [n] or, for several columns, [n, columns]. LM_E_OOM, naming
 * `path`, if the buffer has failed. */
lm_status lm_tensor_of_bytes(const char *path, const lm_bytes *b, lm_dtype dtype, int64_t columns, lm_tensor **out);

/* Returns the CRC-32 (of zip and gzip) of n > 0 bytes; `before` is that of the bytes before, or 0. */
LM_API uint32_t lm_crc32(uint32_t before, const void *data, size_t n);
