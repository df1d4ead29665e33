/* Optimizer steps and gradient norms: one parallel region for all tensors, whose elements are dealt
 * out in chunks, so that a network of many small parameters costs what one large one does. */
#include <math.h>
#include <omp.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/optim.h"
#include "base/mem.h"

enum { CHUNK = 16384 /* elements */ };

static int64_t chunks_of(const lm_tensor *t) { return (t->numel + CHUNK - 1) / CHUNK; }

static int64_t count_chunks(int n, lm_tensor *const *tensors) {
  int64_t chunks = 0;
  for (int i = 0; i < n; i++) chunks += chunks_of(tensors[i]);
  return chunks;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct job {
  const lm_optim_step *step;
  const struct lm_optim_loops *loops;
  lm_sgd_plan sgd;
  lm_adam_plan adam;
} job;

static lm_sgd_plan plan_sgd(const lm_optim_step *s) {
  lm_sgd_f64 c = {.sign = s->maximize ? -1 : 1,
                  .lr = s->lr,
                  .weight_decay = s->weight_decay,
                  .momentum = s->momentum,
                  .fresh = 1 - s->dampening};
  return (lm_sgd_plan){
      .f64 = c,
      .f32 = {.sign = (float)c.sign,
              .lr = (float)c.lr,
              .weight_decay = (float)c.weight_decay,
              .momentum = (float)c.momentum,
              .fresh = (float)c.fresh},
      .decay = s->weight_decay != 0,
      .mode = s->momentum == 0 ? LM_SGD_PLAIN
              : s->nesterov    ? (s->first ? LM_SGD_NESTEROV_FIRST : LM_SGD_NESTEROV)
                               : (s->first ? LM_SGD_FIRST : LM_SGD_MOMENTUM),
  };
}

static lm_adam_plan plan_adam(const lm_optim_step *s) {
  lm_adam_f64 c = {.sign = s->maximize ? -1 : 1,
                   .weight_decay = s->weight_decay,
                   .shrink = 1 - s->lr * s->weight_decay,
                   .fresh1 = 1 - s->beta1,
                   .beta2 = s->beta2,
                   .fresh2 = 1 - s->beta2,
                   .eps = s->eps,
                   .step_size = s->lr / (1 - pow(s->beta1, (double)s->step)),
                   .inverse_correction2 = 1 / sqrt(1 - pow(s->beta2, (double)s->step))};
  return (lm_adam_plan){
      .f64 = c,
      .f32 = {.sign = (float)c.sign,
              .weight_decay = (float)c.weight_decay,
              .shrink = (float)c.shrink,
              .fresh1 = (float)c.fresh1,
              .beta2 = (float)c.beta2,
              .fresh2 = (float)c.fresh2,
              .eps = (float)c.eps,
              .step_size = (float)c.step_size,
              .inverse_correction2 = (float)c.inverse_correction2},
      .decay = s->weight_decay == 0 ? LM_ADAM_NO_DECAY
               : s->decoupled       ? LM_ADAM_DECOUPLED
                                    : LM_ADAM_L2,
      .amsgrad = s->amsgrad,
  };
}

/* Elements from on, n of them, of parameter i. */
static void update(const job *j, int i, int64_t from, int64_t n) {
  const lm_optim_step *s = j->step;
  lm_dtype dtype = (lm_dtype)s->param[i]->dtype;
  size_t at = (size_t)from * lm_dtype_size(dtype);
  char *p = s->param[i]->data + at, *g = s->grad[i]->data + at;
  if (s->kind == LM_SGD) {
    j->loops->sgd[dtype](&j->sgd, n, p, g, j->sgd.mode == LM_SGD_PLAIN ? NULL : s->state0[i]->data + at);
  } else {
    j->loops->adam[dtype](&j->adam, n, p, g, s->state0[i]->data + at, s->state1[i]->data + at,
                          s->amsgrad ? s->state2[i]->data + at : NULL);
  }
}

lm_status lm_cpu_optim(const lm_optim_step *step) {
  const job j = {.step = step, .loops = LM_ISA_PICK(lm_optim_loops), .sgd = plan_sgd(step), .adam = plan_adam(step)};
  int64_t chunks = count_chunks(step->n, step->param);
#pragma omp parallel num_threads(lm_cpu_share((double)chunks *CHUNK * 0.3))
  {
    /* This thread's chunks, first to last - 1 of all; `base` counts those of the tensors passed. */
    int64_t me = omp_get_thread_num(), team = omp_get_num_threads(), base = 0;
    int64_t first = chunks * me / team, last = chunks * (me + 1) / team;
    for (int i = 0; i < step->n && base < last; i++) {
      int64_t end = base + chunks_of(step->param[i]);
      int64_t from = (larger(first, base) - base) * CHUNK;
      int64_t to = smaller((smaller(last, end) - base) * CHUNK, step->param[i]->numel);
      if (from < to) update(&j, i, from, to - from);
      base = end;
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
