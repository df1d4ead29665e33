/* Reports a value that a kernel does not take (a label, an index, an integer divisor of 0): the first one found is kept
 * in host memory, and becomes an error at the next synchronization. The kernel itself continues with a harmless value,
 * so the device stays usable. For C and CUDA. */
#pragma once

#include <stdint.h>

typedef struct lm_bad_record { /* a report, in pinned host memory */
  int kind;                    /* kind of the value, op/backend.h's LM_BAD_…; written last */
  int op;
  int64_t position, value, limit; /* position from 1 */
} lm_bad_record;

/* Destination of a kernel's reports, passed by value. */
typedef struct lm_bad {
  unsigned *claim;       /* 0, or 1 once a thread is writing the record */
  lm_bad_record *record; /* record and claim: the device's addresses of pinned memory, which the host resets */
  int op;                /* the op that runs */
} lm_bad;

#if defined(__CUDACC__) || defined(LM_HOST_KERNELS)
#include "launch.cuh"

__device__ static inline void lm_report_bad(lm_bad bad, int kind, int64_t position, int64_t value, int64_t limit) {
  if (atomicExch(bad.claim, 1u) != 0u) return;
  bad.record->op = bad.op;
  bad.record->position = position;
  bad.record->value = value;
  bad.record->limit = limit;
  __threadfence_system();
  *(volatile int *)&bad.record->kind = kind;
}
#endif
