/* Guards calls of oneDNN. For more than 84 terms (252 without AVX-512) the kernels of dnnl_sgemm, on which primitives
 * are built, need a workspace larger than they trust the stack with. They allocate it, 17 to 74 KB at a page's start,
 * and then set the stack pointer itself to its first byte (oneDNN 2.6.3 and 3.7, src/cpu/x64/gemm). A signal that comes
 * now puts its frame, and runs its handler, below that: over the heap's data there. So signals wait for the end of such
 * a call; they are pending, and handlers run right after it. Faults of the thread itself cannot wait: while files are
 * mapped, a truncated one makes faults (base/mapping_guard.h), whose handler gets a separate stack.
 *
 * Threads: oneDNN runs OpenMP regions of the size that is set for the calling thread, and that its primitives were made
 * for. With 1 libgomp makes no threads, and our own pool calls it in parts. The number is the host's otherwise. */
#include "backend/cpu/onednn/guard.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/address_space.h"
#include "base/large_array.h"
#include "base/mapping_guard.h"
#include "base/message.h"

void lm_dnn_guard_begin(lm_dnn_guard *guard) {
  guard->threads = omp_get_max_threads();
  omp_set_num_threads(1);
#if defined(__x86_64__) /* which has these kernels */
  sigset_t waiting;
  sigfillset(&waiting);
  for (const int *s = (const int[]){SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, 0}; *s; s++)
    sigdelset(&waiting, *s);
  pthread_sigmask(SIG_SETMASK, &waiting, &guard->before);
  enum { STACK = 32 << 10 };
  guard->stack = lm_mapping_guards() > 0 ? lm_large_push(STACK) : NULL;
  guard->has_stack =
      guard->stack && sigaltstack(&(stack_t){.ss_sp = guard->stack, .ss_size = STACK}, &guard->stack_before) == 0;
#endif
}

void lm_dnn_guard_end(lm_dnn_guard *guard) {
#if defined(__x86_64__)
  if (guard->has_stack) sigaltstack(&guard->stack_before, NULL);
  lm_large_pop(&guard->stack);
  pthread_sigmask(SIG_SETMASK, &guard->before, NULL);
#endif
  omp_set_num_threads(guard->threads);
}

lm_status lm_dnn_guard_scratch(void) {
  const size_t bytes = 32 << 20;
  return lm_address_space_has(1, bytes) ? LM_OK : lm_fail_memory("%zu bytes for oneDNN's machine code", bytes);
}
