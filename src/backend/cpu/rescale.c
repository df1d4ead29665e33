/* Many tensors times a number: one parallel region for all of them, whose elements are dealt out in chunks. */
#include "backend/cpu/isa/rescale.h"

#include <omp.h>

#include "backend/cpu/cpu.h"

enum { CHUNK = 16384 /* elements */ };

static char *at(const lm_tensor *t, int64_t i) {
  return (char *)t->data + (size_t)i * lm_dtype_size((lm_dtype)t->dtype);
}

lm_status lm_cpu_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found) {
  const struct lm_rescale_loops *loops = LM_ISA_PICK(lm_rescale_loops);
  int64_t chunks = 0;
  int bad = 0;
  for (int i = 0; i < n; i++) chunks += (to[i]->numel + CHUNK - 1) / CHUNK;
#pragma omp parallel num_threads(lm_cpu_share((double)chunks *CHUNK * 0.2)) reduction(| : bad)
  {
    int64_t me = omp_get_thread_num(), team = omp_get_num_threads(), base = 0;
    int64_t first = chunks * me / team, last = chunks * (me + 1) / team;
    for (int i = 0; i < n && base < last; i++) {
      int64_t numel = to[i]->numel, end = base + (numel + CHUNK - 1) / CHUNK;
      int64_t begin = ((first > base ? first : base) - base) * CHUNK,
              until = ((last < end ? last : end) - base) * CHUNK;
      if (until > numel) until = numel;
      if (begin < until)
        bad |= loops->of[from[i]->dtype][to[i]->dtype](until - begin, at(from[i], begin), at(to[i], begin), factor);
      base = end;
    }
  }
  if (bad) *(float *)found->data = 1;
  return LM_OK;
}
