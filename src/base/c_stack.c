#include "base/c_stack.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

static _Thread_local uintptr_t low, high; /* bounds of this thread's stack; 0: not read yet */

static void read_bounds(void) {
  pthread_attr_t a;
  void *base;
  size_t bytes;
  low = high = UINTPTR_MAX; /* until known */
  if (pthread_getattr_np(pthread_self(), &a) != 0) return;
  if (pthread_attr_getstack(&a, &base, &bytes) == 0) {
    low = (uintptr_t)base;
    high = low + bytes;
  }
  pthread_attr_destroy(&a);
}

static size_t bytes_below(uintptr_t here, bool all) {
  if (high == 0) read_bounds();
  return here < low || here >= high ? SIZE_MAX : all ? high - low : here - low;
}

size_t lm_stack_left(void) { return bytes_below((uintptr_t)__builtin_frame_address(0), false); }
size_t lm_stack_size(void) { return bytes_below((uintptr_t)__builtin_frame_address(0), true); }
