/* An open file, of which readers of formats take sections as bytes. */
#pragma once

#include "io/parallel_read.h"
#include "tensor/tensor.h"

typedef struct lm_sections lm_sections;

/* Sections are read by up to `threads` threads. With 0 they lie over the mapped file: nothing is read before it is
 * touched, but whoever writes into the file meanwhile changes them, and whoever cuts it ends the process by a bus
 * error.
 */
LM_API lm_status lm_sections_open(const char *path, int threads, lm_sections **out);
/* Tensors taken out stay valid. NULL is fine. */
LM_API void lm_sections_close(lm_sections *f);
LM_API uint64_t lm_sections_bytes(const lm_sections *f); /* of the file */
LM_API const char *lm_sections_path(const lm_sections *f);
/* As lm_read_pieces, by the file's threads. */
lm_status lm_sections_pieces(const lm_sections *f, int n, const lm_piece *pieces);
/* n bytes from `at` on, copied. LM_E_IO where the file has fewer, or was written to since it was opened. */
LM_API lm_status lm_sections_copy(lm_sections *f, uint64_t at, uint64_t n, void *to);
/* The same as a uint8 tensor [n] on the CPU, aligned to 8 bytes. Writing into it does not reach the file. */
LM_API lm_status lm_sections_tensor(lm_sections *f, uint64_t at, uint64_t n, lm_tensor **out);
/* A tensor over the mapped file that fills n bytes from `at` on; *out is NULL where nothing is mapped, the place is not
 * aligned to that many bytes, or so little is better copied. */
lm_status lm_sections_over(lm_sections *f, lm_dtype dtype, int ndim, const int64_t *size, uint64_t at, uint64_t n,
                           size_t alignment, lm_tensor **out);
/* What `packed` bytes from `at` on, deflated without a head (RFC 1951), unfold to, which must be n bytes exactly; or
 * with `start`, no more than the first n bytes of it. No more than can come of that many is allocated. */
LM_API lm_status lm_sections_inflate(lm_sections *f, uint64_t at, uint64_t packed, uint64_t n, bool start,
                                     lm_tensor **out);
/* Of a contiguous tensor's bytes on the CPU, as zip and gzip have it; `before` is that of what stands before, or 0. */
LM_API uint32_t lm_crc32(uint32_t before, const lm_tensor *t);
