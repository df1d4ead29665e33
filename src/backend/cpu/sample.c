/* Draws numbers by rejection (poisson, binomial) and indices by weight (multinomial). Tensors are contiguous. An
 * element depends on its index and on the draw alone, not on threads. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/scalar_access.h"
#include "op_args_random.h"
#include "rejection.h"
#include "tensor/generator.h"

/* A job that draws a number for each element of the result. */
typedef struct drawing {
  const void *args;
  lm_tensor *out;
  lm_draw draw;
} drawing;

static void draw_poisson(void *ctx, int64_t first, int64_t last) {
  const drawing *j = ctx;
  const lm_poisson_args *a = j->args;
  for (int64_t i = first; i < last; i++) {
    lm_uniforms u = lm_uniforms_of(j->draw.seed, j->draw.offset, i);
    lm_scalar_store(j->out, i, lm_poisson(lm_scalar_load(a->x, i), &u));
  }
}

static void draw_binomial(void *ctx, int64_t first, int64_t last) {
  const drawing *j = ctx;
  const lm_binomial_args *a = j->args;
  for (int64_t i = first; i < last; i++) {
    lm_uniforms u = lm_uniforms_of(j->draw.seed, j->draw.offset, i);
    lm_scalar_store(j->out, i, lm_binomial(lm_scalar_load(a->count, i), lm_scalar_load(a->prob, i), &u));
  }
}

static lm_status draw_each(const void *args, lm_generator *generator, lm_tensor *out, lm_parallel_fn *fn) {
  int64_t n = out->numel;
  drawing job = {args, out, lm_generator_take(generator, out->device, (uint64_t)n * LM_ROOM)};
  return lm_parallel(n, (double)n * 50, 0, fn, &job);
}

lm_status lm_cpu_poisson(const lm_poisson_args *a, lm_tensor *const *out) {
  return draw_each(a, a->generator, out[0], draw_poisson);
}

lm_status lm_cpu_binomial(const lm_binomial_args *a, lm_tensor *const *out) {
  return draw_each(a, a->generator, out[0], draw_binomial);
}

/* Returns the index of the first of n rising sums that is above x, or of the last one if rounding left none. */
static int64_t first_above(const double *sum, int64_t n, double x) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (sum[middle] > x) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  while (low > 0 && sum[low] == sum[low - 1]) low--; /* x was rounded up to the total: skips weights of 0 */
  return low;
}

/* Weights of a part: few enough that a walk is as fast as a search, and that the parts' sums stay in a cache. */
enum { PART = 16 };

static double weight_at(const lm_tensor *x, int64_t i) {
  return x->dtype == LM_F32 ? (double)((const float *)x->data)[i] : lm_scalar_load(x, i);
}

/* A row of n weights, and its sums up to the ends of its parts. */
typedef struct weighing {
  const lm_multinomial_args *a;
  int64_t row, n, parts, *indices;
  double *end;
  lm_draw draw;
} weighing;

static void sum_parts(void *ctx, int64_t first, int64_t last) {
  const weighing *j = ctx;
  const lm_tensor *x = j->a->x;
  for (int64_t p = first; p < last; p++) {
    double total[4] = {0}; /* independent sums, which need not wait for one another */
    int64_t from = j->row * j->n + p * PART, m = j->n - p * PART < PART ? j->n - p * PART : PART;
    if (m == PART && x->dtype == LM_F32) {
      const float *w = (const float *)x->data + from;
      for (int k = 0; k < PART; k++) total[k % 4] += w[k];
    } else {
      for (int64_t k = 0; k < m; k++) total[k % 4] += weight_at(x, from + k);
    }
    j->end[p] = (total[0] + total[1]) + (total[2] + total[3]);
  }
}

/* Returns the index of the first of m weights from element `from` on up to which the sum is above `at`, or of the last
 * weight above 0 if rounding left none. */
static int64_t walk_weights(const lm_tensor *x, int64_t from, int64_t m, double at) {
  double sum = 0;
  int64_t last = 0;
  for (int64_t j = 0; j < m; j++) {
    double w = weight_at(x, from + j);
    if (!(w > 0)) continue;
    last = j;
    if ((sum += w) > at) break;
  }
  return last;
}

static void draw_samples(void *ctx, int64_t first, int64_t last) {
  const weighing *j = ctx;
  for (int64_t i = j->row * j->a->num_samples + first; i < j->row * j->a->num_samples + last; i++) {
    lm_philox_block block = lm_philox(j->draw.seed, j->draw.offset + (uint64_t)i / 2);
    double at = j->end[j->parts - 1] * lm_uniform_f64(lm_philox_u64(block, (int)(i % 2)));
    int64_t part = first_above(j->end, j->parts, at), from = part * PART, m = j->n - from < PART ? j->n - from : PART;
    if (part > 0) at -= j->end[part - 1];
    j->indices[i] = from + walk_weights(j->a->x, j->row * j->n + from, m, at) + 1;
  }
}

/* Draws k indices by the weights of each row: x [rows, n] -> indices [rows, k]. */
lm_status lm_cpu_multinomial(const lm_multinomial_args *a, lm_tensor *const *out) {
  int64_t rows = a->x->size[0], n = a->x->size[1], k = a->num_samples, parts = (n + PART - 1) / PART;
  weighing job = {.a = a, .n = n, .parts = parts, .indices = (int64_t *)out[0]->data};
  job.draw = lm_generator_take(a->generator, out[0]->device, ((uint64_t)(rows * k) + 1) / 2);
  LM_WORKSPACE(double, end, parts);
  job.end = end;
  for (; job.row < rows; job.row++) {
    lm_parallel(parts, (double)n / 2, 0, sum_parts, &job);
    for (int64_t p = 1; p < parts; p++) job.end[p] += job.end[p - 1];
    lm_parallel(k, (double)k * 50, 0, draw_samples, &job);
  }
  return LM_OK;
}
