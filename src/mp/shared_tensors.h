/* Shares tensors' memory with other processes. It is in an unnamed memory file, so nothing is left behind; one file
 * holds all the tensors that were moved or received together. */
#pragma once

#include "tensor/tensor.h"

/* A mapped memory file with a reference count; it owns the storages within it. */
typedef struct lm_segment {
  int32_t rc;
  int fd;
  char *base;
  size_t bytes;
  uint64_t device, inode; /* identify the file: a process maps each only once */
  struct lm_segment *next;
} lm_segment;

/* Allocates a segment of zeroed memory (bytes > 0), reserved: touching it cannot fail later. */
lm_status lm_segment_new(size_t bytes, lm_segment **out);
/* Opens the segment of a file received from another process. Takes ownership of fd, also on failure. */
lm_status lm_segment_open(int fd, lm_segment **out);
void lm_segment_retain(lm_segment *s);
void lm_segment_release(lm_segment *s); /* NULL is fine */

/* Returns the segment that contains t's memory, or NULL. */
LM_API lm_segment *lm_segment_of(const lm_tensor *t);
/* Returns true if processes that receive t see writes to it. True for an empty tensor, and for one on a device whose
 * memory can be exported (ipc.h). */
LM_API bool lm_is_shared(const lm_tensor *t);
/* Creates a uint8 tensor of `bytes` elements over part of a segment. */
lm_status lm_segment_tensor(lm_segment *s, size_t offset, size_t bytes, lm_tensor **out);

/* Moves the memory of n CPU tensors into one new segment; those already shared stay. The tensor objects remain, and
 * those that share memory continue to share it. LM_E_STATE, with nothing moved, if a tensor outside the list shares
 * memory with tensors[*which]: it would be left behind. */
LM_API lm_status lm_share(int n, lm_tensor *const *tensors, int *which);

/* Creates n tensors over the same memory for another thread, without gradients and history. Those in a segment get
 * their own storages, as in another process, so the thread's autograd does not see others' writes. `out` starts as
 * NULLs; after an error the caller releases those created. */
lm_status lm_share_again(int n, lm_tensor *const *tensors, lm_tensor **out);
