#include "base/c_stack.h"

#include <pthread.h>
#include <stdint.h>

static _Thread_local uintptr_t low, high; /* of this thread's stack; 0: not asked yet */

static void ask(void) {
  pthread_attr_t a;
  void *base;
  size_t bytes;
  low = high = UINTPTR_MAX; /* unknown */
  if (pthread_getattr_np(pthread_self(), &a) != 0) return;
  if (pthread_attr_getstack(&a, &base, &bytes) == 0) {
    low = (uintptr_t)base;
    high = low + bytes;
  }
  pthread_attr_destroy(&a);
}

size_t lm_stack_left(void) {
  uintptr_t here = (uintptr_t)__builtin_frame_address(0);
  if (high == 0) ask();
  return here >= low && here < high ? here - low : SIZE_MAX;
}
