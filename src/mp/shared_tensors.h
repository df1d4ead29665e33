/* Tensors whose memory other processes can see. It lies in a memory file without a name, so that nothing can be left
 * behind; one file holds all the tensors that were moved or received together. */
#pragma once

#include "tensor/tensor.h"

/* A mapped memory file, counted; it is the owner of the storages that lie in it. */
typedef struct lm_segment {
  int32_t rc;
  int fd;
  char *base;
  size_t bytes;
  uint64_t device, inode; /* which file it is: one mapping of each in a process */
  struct lm_segment *next;
} lm_segment;

/* Zeroed memory of that size (> 0), reserved: touching it cannot fail later. */
LM_API lm_status lm_segment_new(size_t bytes, lm_segment **out);
/* The segment of a file received from another process. fd is taken over, also by an error. */
LM_API lm_status lm_segment_open(int fd, lm_segment **out);
LM_API void lm_segment_retain(lm_segment *s);
LM_API void lm_segment_release(lm_segment *s); /* NULL is fine */

/* The segment that t lies in, or NULL. */
LM_API lm_segment *lm_segment_of(const lm_tensor *t);
/* Whether other processes that are sent t see what is written to it. True for an empty one, and for any on a device
 * whose memory can be exported (ipc.h). */
LM_API bool lm_is_shared(const lm_tensor *t);
/* A tensor of `bytes` uint8 over part of a segment. */
LM_API lm_status lm_segment_tensor(lm_segment *s, size_t offset, size_t bytes, lm_tensor **out);

/* Moves the memory of n tensors (CPU) into one new segment; those that are shared already stay. The tensors stay the
 * objects they are, and what shares memory among them continues sharing it. A tensor outside the list with memory in
 * common would be left behind: then nothing is moved, and the error is LM_E_STATE with *which set to the one
 * concerned. */
LM_API lm_status lm_share(int n, lm_tensor *const *tensors, int *which);

/* n further tensors over the same memory, for another thread: without gradients and history, and over a segment with
 * storages of their own, as in another process. So who trains there unasked is not notified of others' writes. `out`
 * begins as NULLs, which after an error those made may have replaced. */
LM_API lm_status lm_share_again(int n, lm_tensor *const *tensors, lm_tensor **out);
