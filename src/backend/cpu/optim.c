/* Optimizer steps and gradient norms: one parallel region for all tensors, whose elements are dealt
 * out in chunks, so that a network of many small parameters costs what one large one does. */
#include <math.h>
#include <omp.h>
#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/optim.h"
#include "base/mem.h"

enum { CHUNK = 16384 /* elements */, SHARES = 16 /* a thread */ };

static int64_t chunks_of(const lm_tensor *t) { return (t->numel + CHUNK - 1) / CHUNK; }

static int64_t count_chunks(int n, lm_tensor *const *tensors) {
  int64_t chunks = 0;
  for (int i = 0; i < n; i++) chunks += chunks_of(tensors[i]);
  return chunks;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Elements from on, n of them, of parameter i. */
static void update(const lm_optim_step *s, const lm_optim_coefficients *c, lm_optim_loop *loop, int i, int64_t from,
                   int64_t n) {
  size_t at = (size_t)from * lm_dtype_size((lm_dtype)s->param[i]->dtype);
  void *state[LM_OPTIM_STATES];
  for (int k = 0; k < LM_OPTIM_STATES; k++) state[k] = s->state[k] ? s->state[k][i]->data + at : NULL;
  loop(c, n, s->param[i]->data + at, s->grad[i]->data + at, state);
}

lm_status lm_cpu_optim(const lm_optim_step *step) {
  lm_optim_loop *const *loops = LM_ISA_PICK(lm_optim_loops)->update[step->optimizer->family];
  lm_optim_coefficients c = {.modes = step->modes, .f64 = *step->coefficients};
  lm_optim_narrow(step->optimizer->family, &c.f64, &c.f32);
  int64_t chunks = count_chunks(step->n, step->param);
  _Atomic int64_t next = 0;
#pragma omp parallel num_threads(lm_cpu_share((double)chunks *CHUNK * 0.3))
  {
    /* Threads take shares of the chunks as they come to them: cores are not all as fast, nor all of memory as near. Of
     * a share chunks first to last - 1; `base` counts those of the tensors before i. */
    int64_t shares = omp_get_num_threads() * (int64_t)SHARES, base = 0;
    if (shares > chunks) shares = chunks;
    int i = 0;
    for (int64_t share; (share = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed)) < shares;) {
      int64_t first = chunks * share / shares, last = chunks * (share + 1) / shares;
      for (;; i++) {
        int64_t end = base + chunks_of(step->param[i]);
        int64_t from = (larger(first, base) - base) * CHUNK;
        int64_t to = smaller((smaller(last, end) - base) * CHUNK, step->param[i]->numel);
        if (from < to) update(step, &c, loops[step->param[i]->dtype], i, from, to - from);
        if (end >= last) break;
        base = end;
      }
    }
  }
  return LM_OK;
}

static double norm_of(const lm_tensor *t, double p, int64_t from, int64_t n) {
  const struct lm_optim_loops *loops = LM_ISA_PICK(lm_optim_loops);
  const char *x = t->data + (size_t)from * lm_dtype_size((lm_dtype)t->dtype);
  if (isinf(p)) return loops->largest_abs[t->dtype](n, x);
  if (p == 2) return loops->sum_squares[t->dtype](n, x);
  return p == 1 ? loops->sum_abs[t->dtype](n, x) : loops->sum_powers[t->dtype](n, x, p);
}

/* A number a chunk, put together in order: the same whatever the number of threads. */
lm_status lm_cpu_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out) {
  int64_t chunks = count_chunks(n, tensors);
  double *part = lm_malloc((size_t)chunks * sizeof *part);
  if (!part) return LM_E_OOM;
#pragma omp parallel num_threads(lm_cpu_share((double)chunks *CHUNK * 0.2))
  {
    int64_t me = omp_get_thread_num(), team = omp_get_num_threads(), base = 0;
    int64_t first = chunks * me / team, last = chunks * (me + 1) / team;
    for (int i = 0; i < n && base < last; i++) {
      int64_t end = base + chunks_of(tensors[i]);
      for (int64_t c = larger(first, base); c < smaller(last, end); c++) {
        int64_t from = (c - base) * CHUNK;
        part[c] = norm_of(tensors[i], p, from, smaller(CHUNK, tensors[i]->numel - from));
      }
      base = end;
    }
  }
  double total = 0;
  for (int64_t c = 0; c < chunks; c++) {
    if (!isinf(p)) {
      total += part[c];
    } else if (part[c] > total || isnan(part[c])) {
      total = part[c];
    }
  }
  lm_free(part);
  *(double *)out->data = total;
  return LM_OK;
}
