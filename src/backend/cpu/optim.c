/* Runs optimizer steps, and computes norms of gradients and scales them: one loop over all tensors, split into chunks,
 * so that a network of many small parameters costs as much as one large one. */
#include <math.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/optim.h"
#include "backend/cpu/isa/pointwise.h"
#include "backend/cpu/memory.h"

enum { CHUNK = 16384 /* elements */ };

static int64_t chunks_of(const lm_tensor *t) { return lm_ceil_div(t->numel, CHUNK); }

static int64_t count_chunks(int n, lm_tensor *const *tensors) {
  int64_t chunks = 0;
  for (int i = 0; i < n; i++) chunks += chunks_of(tensors[i]);
  return chunks;
}

/* ---- chunks of tensors */

typedef void chunk_fn(void *context, int i, int64_t from, int64_t n, int64_t chunk);

typedef struct chunks_job {
  int n;
  lm_tensor *const *tensors;
  chunk_fn *each;
  void *context;
} chunks_job;

static void run_chunks(void *ctx, int64_t first, int64_t last) {
  const chunks_job *j = ctx;
  int64_t base = 0; /* chunks of the tensors before i */
  for (int i = 0; i < j->n && base < last; i++) {
    int64_t end = base + chunks_of(j->tensors[i]);
    for (int64_t c = lm_max(first, base); c < lm_min(last, end); c++) {
      int64_t from = (c - base) * CHUNK;
      j->each(j->context, i, from, lm_min(CHUNK, j->tensors[i]->numel - from), c);
    }
    base = end;
  }
}

/* Calls each(context, tensor, first element, number of elements, chunk's number) for every chunk. */
static void for_each_chunk(int n, lm_tensor *const *tensors, double each_ns, chunk_fn *each, void *context) {
  int64_t chunks = count_chunks(n, tensors);
  lm_parallel(chunks, (double)chunks * CHUNK * each_ns, 0, run_chunks, &(chunks_job){n, tensors, each, context});
}

/* ---- updates */

typedef struct updating {
  const lm_optim_step *step;
  lm_optim_coefficients coefficients;
  lm_optim_loop *const *loops;
} updating;

static void update_chunk(void *context, int i, int64_t from, int64_t n, int64_t chunk) {
  const updating *u = context;
  const lm_optim_step *s = u->step;
  const size_t at = (size_t)from * lm_dtype_size((lm_dtype)s->param[i]->dtype);
  void *state[LM_OPTIM_STATES];
  (void)chunk;
  for (int k = 0; k < LM_OPTIM_STATES; k++) state[k] = s->state[k] ? s->state[k][i]->data + at : NULL;
    /* A momentum whose gradients stay 0 ends as a subnormal number, to which 0.9 times itself rounds: each step with it
     * takes some 150 cycles. Such results are flushed to 0 here. */
#ifdef __SSE2__
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | _MM_FLUSH_ZERO_ON);
#endif
  u->loops[s->param[i]->dtype](&u->coefficients, n, s->param[i]->data + at, s->grad[i]->data + at, state);
#ifdef __SSE2__
  _mm_setcsr(mode);
#endif
}

lm_status lm_cpu_optim(const lm_optim_step *step) {
  updating u = {.step = step, .loops = LM_ISA_PICK(lm_optim_loops)->update[step->optimizer->family]};
  u.coefficients = (lm_optim_coefficients){.modes = step->modes, .f64 = *step->coefficients};
  for (int k = 0; k < LM_OPTIM_COEFFICIENTS; k++) u.coefficients.f32.of[k] = (float)step->coefficients->of[k];
  for_each_chunk(step->n, step->param, 0.3, update_chunk, &u);
  return LM_OK;
}

static double norm_of(const lm_tensor *t, double p, int64_t from, int64_t n) {
  const struct lm_optim_loops *loops = LM_ISA_PICK(lm_optim_loops);
  const char *x = t->data + (size_t)from * lm_dtype_size(t->dtype);
  if (isinf(p)) return loops->largest_abs[t->dtype](n, x);
  if (p == 2) return loops->sum_squares[t->dtype](n, x);
  return p == 1 ? loops->sum_abs[t->dtype](n, x) : loops->sum_powers[t->dtype](n, x, p);
}

typedef struct norms {
  lm_tensor *const *tensors;
  double p, *part; /* part: norm of each chunk */
} norms;

static void norm_chunk(void *context, int i, int64_t from, int64_t n, int64_t chunk) {
  const norms *job = context;
  job->part[chunk] = norm_of(job->tensors[i], job->p, from, n);
}

/* Sums the elements' powers (infinite p: finds the largest) in the order of chunks, whatever the number of threads. */
lm_status lm_cpu_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out) {
  int64_t chunks = count_chunks(n, tensors);
  LM_WORKSPACE(double, part, chunks);
  for_each_chunk(n, tensors, 0.2, norm_chunk, &(norms){tensors, p, part});
  double total = 0;
  for (int64_t c = 0; c < chunks; c++) {
    if (!isinf(p)) {
      total += part[c];
    } else if (part[c] > total || isnan(part[c])) {
      total = part[c];
    }
  }
  *(double *)out->data = total;
  return LM_OK;
}

/* ---- scaling */

typedef struct scaling {
  lm_tensor *const *from, *const *to;
  double factor;
  _Atomic bool bad; /* true if some element was infinite or NaN */
} scaling;

static void rescale_chunk(void *context, int i, int64_t first, int64_t n, int64_t chunk) {
  scaling *job = context;
  lm_dtype from = job->from[i]->dtype, to = job->to[i]->dtype;
  const char *x = job->from[i]->data + (size_t)first * lm_dtype_size(from);
  char *y = job->to[i]->data + (size_t)first * lm_dtype_size(to);
  const struct lm_optim_loops *loops = LM_ISA_PICK(lm_optim_loops);
  bool bad = false;
  (void)chunk;
  if (from == to) bad = loops->rescale[from](n, x, y, job->factor);
  lm_dtype compute = from == LM_F64 || to == LM_F64 ? LM_F64 : LM_F32;
  const struct lm_pointwise_loops *memory = lm_pointwise_loops_of(compute);
  for (int64_t at = 0; from != to && at < n; at += LM_TILE) {
    _Alignas(64) char tile[LM_TILE_BYTES];
    int part = (int)lm_min(LM_TILE, n - at);
    memory->load[from](tile, x + (size_t)at * lm_dtype_size(from), 1, part);
    bad |= loops->rescale[compute](part, tile, tile, job->factor);
    memory->store[to](y + (size_t)at * lm_dtype_size(to), 1, tile, part);
  }
  if (bad) atomic_store_explicit(&job->bad, true, memory_order_relaxed);
}

lm_status lm_cpu_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found) {
  scaling job = {.from = from, .to = to, .factor = factor};
  for_each_chunk(n, to, 0.2, rescale_chunk, &job);
  if (job.bad && found) *(float *)found->data = 1;
  return LM_OK;
}
