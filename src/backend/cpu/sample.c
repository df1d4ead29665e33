/* Numbers drawn by rejection, and indices drawn by weight. Tensors are contiguous. What an element gets depends on its
 * place and on the draw alone, not on threads. */
#include "backend/cpu/cpu.h"
#include "backend/cpu/scalar_access.h"
#include "device/alloc.h"
#include "rejection.h"
#include "tensor/generator.h"

lm_status lm_cpu_poisson(const void *args, lm_tensor *const *out) {
  const lm_poisson_args *a = args;
  int64_t n = out[0]->numel;
  lm_draw d = lm_generator_take(a->generator, out[0]->device, (uint64_t)n * LM_ROOM);
#pragma omp parallel for num_threads(lm_cpu_share((double)n * 50))
  for (int64_t i = 0; i < n; i++) {
    lm_uniforms u = lm_uniforms_of(d.seed, d.offset, i);
    lm_scalar_store(out[0], i, lm_poisson(lm_scalar_load(a->x, i), &u));
  }
  return LM_OK;
}

lm_status lm_cpu_binomial(const void *args, lm_tensor *const *out) {
  const lm_binomial_args *a = args;
  int64_t n = out[0]->numel;
  lm_draw d = lm_generator_take(a->generator, out[0]->device, (uint64_t)n * LM_ROOM);
#pragma omp parallel for num_threads(lm_cpu_share((double)n * 50))
  for (int64_t i = 0; i < n; i++) {
    lm_uniforms u = lm_uniforms_of(d.seed, d.offset, i);
    lm_scalar_store(out[0], i, lm_binomial(lm_scalar_load(a->count, i), lm_scalar_load(a->prob, i), &u));
  }
  return LM_OK;
}

/* The first of n rising sums that is above x; the last one is, or is as good as equal. */
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
  while (low > 0 && sum[low] == sum[low - 1]) low--; /* x was rounded up to the whole sum: nothing of weight 0 */
  return low;
}

/* So few that walking along a part is as quick as a search, and the sums up to the ends of parts stay in a cache. */
enum { PART = 16 };

static double weight_at(const lm_tensor *x, int64_t i) {
  return x->dtype == LM_F32 ? (double)((const float *)x->data)[i] : lm_scalar_load(x, i);
}

/* The sums along a row of n weights up to the ends of its parts. */
static void sum_up(const lm_tensor *x, int64_t row, int64_t n, double *end) {
  int64_t parts = lm_ceil_div(n, PART);
#pragma omp parallel for num_threads(lm_cpu_share((double)n / 2))
  for (int64_t p = 0; p < parts; p++) {
    double total[4] = {0}; /* which do not wait for one another */
    int64_t from = row * n + p * PART, m = n - p * PART < PART ? n - p * PART : PART;
    if (m == PART && x->dtype == LM_F32) {
      const float *w = (const float *)x->data + from;
      for (int j = 0; j < PART; j++) total[j % 4] += w[j];
    } else {
      for (int64_t j = 0; j < m; j++) total[j % 4] += weight_at(x, from + j);
    }
    end[p] = (total[0] + total[1]) + (total[2] + total[3]);
  }
  for (int64_t p = 1; p < parts; p++) end[p] += end[p - 1];
}

/* The first of m weights from element `from` on up to which the sum is above x; the last one that is above 0, if
 * rounding left none. */
static int64_t walk(const lm_tensor *x, int64_t from, int64_t m, double at) {
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

/* x [rows, n] -> indices [rows, k]. */
lm_status lm_cpu_multinomial(const void *args, lm_tensor *const *out) {
  const lm_multinomial_args *a = args;
  int64_t rows = a->x->size[0], n = a->x->size[1], k = a->num_samples, *indices = (int64_t *)out[0]->data;
  int64_t parts = lm_ceil_div(n, PART);
  lm_draw d = lm_generator_take(a->generator, out[0]->device, ((uint64_t)(rows * k) + 1) / 2);
  size_t bytes = (size_t)parts * sizeof(double);
  void *scratch = NULL;
  lm_status status = lm_device_alloc(out[0]->device, bytes, &scratch);
  if (status != LM_OK) return status;
  double *end = scratch;
  for (int64_t r = 0; r < rows; r++) {
    sum_up(a->x, r, n, end);
#pragma omp parallel for num_threads(lm_cpu_share((double)k * 50))
    for (int64_t j = 0; j < k; j++) {
      int64_t i = r * k + j;
      lm_philox_block block = lm_philox(d.seed, d.offset + (uint64_t)i / 2);
      double at = end[parts - 1] * lm_uniform_f64(lm_philox_u64(block, (int)(i % 2)));
      int64_t part = first_above(end, parts, at), from = part * PART;
      if (part > 0) at -= end[part - 1];
      indices[i] = from + walk(a->x, r * n + from, n - from < PART ? n - from : PART, at) + 1;
    }
  }
  lm_device_free(out[0]->device, scratch, bytes);
  return LM_OK;
}
