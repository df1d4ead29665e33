/* The stack. For more than 84 terms (252 without AVX-512) the kernels of dnnl_sgemm, and all that is built on it, want
 * a workspace larger than they trust the stack with. They allocate it, 17 to 74 KB at a page's start, and then set the
 * stack pointer itself to its first byte. A signal that comes now lays its frame, and runs its handler, below that:
 * over whatever the heap has there. Blocking signals would cost half as much as a small product, and not help threads
 * that have to catch them. So oneDNN's calls of posix_memalign come here, and such a workspace lies above a stack's
 * worth of room.
 *
 * oneDNN 2.6.3 and 3.7 allocate at page boundaries only what the same call frees, on the same thread. */
#include "backend/cpu/onednn/guard_stack.h"

#include <dnnl.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "backend/cpu/onednn/onednn.h"
#include "base/hook_import.h"
#include "base/log.h"
#include "base/message.h"

#if defined(__x86_64__)

enum {
  PAGE = 4096,         /* as oneDNN asks for them */
  ROOM = 256 << 10,    /* for a frame, at most some 12 KB, and a handler; costs addresses only until it is used */
  LARGEST = 128 << 10, /* what is larger is no stack */
};

/* A thread's, kept until it ends: ROOM, at the bottom of which this stands, and LARGEST. The next one is for a
 * workspace wanted while this one is taken. */
typedef struct space {
  struct space *next;
  bool taken;
} space;

static _Thread_local space *own;
static pthread_key_t at_exit;

static void *workspace(space *s) { return (char *)s + ROOM; }

static void drop(void *first) {
  for (space *s = first, *next; s; s = next) {
    next = s->next;
    munmap(s, ROOM + LARGEST);
  }
  own = NULL;
}

static space *make(void) {
  space *s = mmap(NULL, ROOM + LARGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (s == MAP_FAILED) return NULL;
  if (pthread_setspecific(at_exit, s) != 0) {
    munmap(s, ROOM + LARGEST);
    return NULL;
  }
  s->next = own;
  return own = s;
}

static int give(void **out, size_t alignment, size_t bytes) {
  if (alignment != PAGE || bytes > LARGEST) return posix_memalign(out, alignment, bytes);
  space *s = own;
  while (s && s->taken) s = s->next;
  if (!s && !(s = make())) return ENOMEM;
  s->taken = true;
  *out = workspace(s);
  return 0;
}

static void take_back(void *p) {
  for (space *s = own; s; s = s->next)
    if (p == workspace(s)) {
      s->taken = false;
      return;
    }
  free(p);
}

void lm_dnn_guard_stack(void) {
  /* First who frees: it knows what is not its own. */
  if (pthread_key_create(&at_exit, drop) != 0 ||
      lm_hook_import((void *)dnnl_sgemm, "free", (void *)take_back) != LM_OK ||
      lm_hook_import((void *)dnnl_sgemm, "posix_memalign", (void *)give) != LM_OK)
    lm_log(LM_LOG_OP, "a signal during a float32 product may destroy data: %s", lm_error());
}

#else

void lm_dnn_guard_stack(void) {} /* those kernels are x86's */

#endif

lm_status lm_dnn_guard_scratch(void) {
  const size_t bytes = 32 << 20;
  void *probe = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (probe == MAP_FAILED) return lm_fail_memory("%zu bytes for oneDNN's machine code", bytes);
  munmap(probe, bytes);
  return LM_OK;
}

lm_status lm_dnn_guard_products(void) {
  static _Atomic bool made;
  if (atomic_load_explicit(&made, memory_order_acquire)) return LM_OK;
  enum { N = 16 };
  static const float zero[N * N];
  float c[N * N];
  lm_status status = lm_dnn_guard_scratch();
  if (status == LM_OK) status = lm_dnn_sgemm(false, false, N, N, N, 1, zero, N, zero, N, 0, c, N);
  if (status == LM_OK) atomic_store_explicit(&made, true, memory_order_release);
  return status;
}
