/* A CUDA runtime without a device, for specs: preloaded (LD_PRELOAD), it takes the place of libcudart and runs the very
 * kernels of kernels/, compiled for the host, on an emulated grid. Work is done only when somebody waits for it, device
 * memory is out of the host's reach but while work runs, and any call can be made to fail.
 *
 * Environment (read at the first call):
 *   LM_FAKE_CUDA_DEVICES=n       devices, 1 by default; 0 is a machine without one
 *   LM_FAKE_CUDA_MEMORY=bytes    memory of each, 1 GiB by default
 *   LM_FAKE_CUDA_MAJOR=n         their compute capability, 9 by default
 *   LM_FAKE_CUDA_EAGER=1         do work when it is queued
 *   LM_FAKE_CUDA_NULL=1          launches, asynchronous copies and fills, events and waits do nothing, uncounted: to
 *                                measure the host's side alone; all results are garbage
 *   LM_FAKE_CUDA_COUNT=n         of each launch at most n blocks run, spread evenly; products, large copies within a
 *                                device and large fills do not: all is counted (lm_fake_counts), and all results are
 *                                garbage. Device memory takes room only where it is touched
 *   LM_FAKE_CUDA_REVERSE=1       run blocks and threads from the last to the first: order-dependent kernels show
 *   LM_FAKE_CUDA_RANDOM=seed     in an order of each launch's own
 *   LM_FAKE_CUDA_REGISTERS=file  each kernel's registers, which limit its blocks, as scripts/dev/kernel_registers
 *                                writes them; a kernel that is not in the file has 32
 *   LM_FAKE_CUDA_PAGEABLE=1      devices read pageable memory by themselves, late (pageableMemoryAccess)
 *   LM_FAKE_CUDA_IMAGE=0         the program has no code for the device: cudaErrorNoKernelImageForDevice
 *   LM_FAKE_CUDA_IPC=0           no memory and no events for other processes (cudaIpc…); 2: memory, but no events
 *   LM_FAKE_CUDA_IPC_EVENTS=20000  that many of them a process
 *   LM_FAKE_CUDA_CLOCK=n         events measure n times the host's time
 *   LM_FAKE_CUDA_PEERS=0         no device reaches another's memory, but by copies
 *   LM_FAKE_CUDA_TRACE=1         each call on stderr, each launch with its kernel
 *   LM_FAKE_CUDA_FAIL=name:nth:code[,...]   see lm_fake_fail; name * is any
 *   CUDA_VISIBLE_DEVICES         as CUDA's
 * Where nccl.h is known a stand-in for NCCL is a part of it: spec/support/nccl/communicator.h, with LM_FAKE_NCCL. */
#ifndef LM_FAKE_H
#define LM_FAKE_H

#include <stddef.h>

#ifdef __cplusplus
#include <stdint.h>

#include <functional>
#include <string>
#include <vector>
extern "C" {
#endif

#define LM_FAKE_API __attribute__((visibility("default")))

/* ---- for specs, by way of ffi.C ---- */

/* Makes the nth call of `name` (1 is the next) return `code` instead of working, once. NULL: of any call. nth 0
 * takes the rules for that name (NULL: all rules) away. Calls that release something do so all the same. */
LM_FAKE_API void lm_fake_fail(const char *name, long nth, int code);
/* Returns the number of calls of a function so far; NULL: of all. */
LM_FAKE_API long lm_fake_call_count(const char *name);
/* Returns the names of all calls so far, a comma between them; valid until the thread's next call of it. */
LM_FAKE_API const char *lm_fake_call_names(void);
/* Returns how many are alive: "memory", "pinned", "stream", "event", "graph", "handle" (of libraries), "opened" (memory
 * of other processes); "bytes": of memory;
 * "context": devices that were worked on, for good; "blocks": of the kernels launched so far. */
LM_FAKE_API long lm_fake_live(const char *what);
/* Returns, under LM_FAKE_CUDA_COUNT, a line for each piece of work since the last call: kind ("kernel", "unseen
 * kernel", "product float32" and other dtypes, "fill", "copy", "upload", "download"), name, blocks, bytes read, bytes
 * written, FLOPs, operands ("r" or "w", address in hex, ".", the number of the work that wrote it, ":", bytes; a space
 * between them), a tab between them. Each byte counts once for a launch; those of one block alone count for the blocks
 * that did not run. The bytes of an unseen kernel are not known: its body is compiled without checks, or it is a
 * library's. Valid until the next call. */
LM_FAKE_API const char *lm_fake_counts(void);
/* Returns the ranges and marks of NVTX so far, a comma between them: "push NAME", "pop", "mark NAME". They come if
 * NVTX_INJECTION64_PATH is the path of this library. */
LM_FAKE_API const char *lm_fake_ranges(void);
/* Makes cuSOLVER's next iteration not converge. */
LM_FAKE_API void lm_fake_diverge(void);
/* Return the number of kernels launched on a stream so far, and of its waits for events of another one. */
LM_FAKE_API long lm_fake_stream_launches(void *stream);
LM_FAKE_API long lm_fake_stream_waits(void *stream, void *on);
/* Returns the number of operations that wait in queues. */
LM_FAKE_API long lm_fake_pending(void);
/* Forgets a kernel's fault, which fails every later call, as a real one does. */
LM_FAKE_API void lm_fake_reset(void);

/* ---- for the libraries that are faked beside the runtime ---- */

/* Counts the call and says whether it is to fail: the code, or 0. The first line of every call. */
LM_FAKE_API int lm_fake_enter(const char *name);
#define LM_FAKE_ENTER(type)                             \
  do {                                                  \
    int lm_fake_code_ = lm_fake_enter(__func__);        \
    if (lm_fake_code_ != 0) return (type)lm_fake_code_; \
  } while (0)
/* Counts one more (1) or less (-1) of what lm_fake_live counts. */
LM_FAKE_API void lm_fake_count(const char *what, long by);
/* Records that a call waits for all of the device (-1: of every device), in whatever mode its thread is: breaks the
 * captures that other threads have going there. */
LM_FAKE_API void lm_fake_waits_for(int device);
/* Returns, for a call that a capture of this thread forbids unless it is relaxed, its cudaError_t, after breaking the
 * capture; else 0. */
LM_FAKE_API int lm_fake_forbidden(void);
/* Returns the device that holds p, or -1. */
LM_FAKE_API int lm_fake_device_of(const void *p);

#ifdef __cplusplus
}
extern const bool lm_fake_null; /* LM_FAKE_CUDA_NULL */
struct lm_fake_operand {
  const void *p;
  uint64_t bytes;
  bool written;
};
/* A line of lm_fake_counts. `what` NULL: its bytes are not known, and the work is done even when counting. */
struct lm_fake_cost {
  const char *what;
  std::string name;
  double flops;
  std::vector<lm_fake_operand> operands;
};
/* Queues work for `stream` (a cudaStream_t): it runs, or is captured, like a kernel, with the memory of the stream's
 * device (and its enabled peers) in reach. What it captures is copied now. Returns a cudaError_t. */
LM_FAKE_API int lm_fake_enqueue(void *stream, std::function<void()> work,
                                const lm_fake_cost &cost = {NULL, "library work", 0, {}});
#endif

#endif
