#include "base/clock.h"

#include <time.h>

int64_t lm_nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

double lm_seconds(void) { return (double)lm_nanoseconds() * 1e-9; }
