/* Declares what NCCL's functions have in common. */
#ifndef LM_FAKE_CALLS_H
#define LM_FAKE_CALLS_H

#include "communicator.h"

/* Calls of the thread since ncclGroupStart. */
struct lm_nccl_group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<lm_nccl_comm, lm_nccl_op>> ops; /* in the order of their calls */
  std::vector<std::pair<lm_nccl_comm, std::function<ncclResult_t(lm_nccl_guard &)>>> ends; /* waits of blocking ones */
};
extern thread_local lm_nccl_group lm_nccl_current;

/* Counts the call, which may be one that is to fail. */
ncclResult_t lm_nccl_begin(const char *name);
/* A call that fails in a group fails the group. */
ncclResult_t lm_nccl_group_fails(ncclResult_t code);
/* The first line of what may fail. */
#define ENTER()                                                  \
  do {                                                           \
    ncclResult_t code_ = lm_nccl_begin(__func__);                \
    if (code_ != ncclSuccess) return lm_nccl_group_fails(code_); \
  } while (0)
unsigned long lm_nccl_thread();

/* ---- under the lock */

/* Finds a communicator; NULL after its end, with a line on stderr: NCCL would crash. */
lm_nccl_comm lm_nccl_find(ncclComm_t handle, const char *name);
/* May it be called? */
ncclResult_t lm_nccl_ready(const ncclComm &comm);
/* Has the communicator do all of this: now if it blocks, else when it is asked how that is going. */
ncclResult_t lm_nccl_launch(const lm_nccl_comm &comm, std::vector<lm_nccl_op> ops);

#endif
