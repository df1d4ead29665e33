#include "backend/cpu/fft/plan.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"

enum { LONGEST_BLOCK = 4096, SHORTEST_SPLIT = 256, CACHED = 16 };

/* Stores exp(-2 pi i a / n) as pair `at` of a table. */
static void put_root(lm_dtype dtype, void *table, int64_t at, int64_t a, int64_t n) {
  const double angle = -2 * M_PI * (double)(a % n) / (double)n;
  lm_scalar_put(dtype, table, 2 * at, cos(angle));
  lm_scalar_put(dtype, table, 2 * at + 1, sin(angle));
}

/* Factors n into radices, 8 last, since its pass then has no factors; returns how many, or 0 for too large a prime. */
static int radices_of(int64_t n, int8_t *radix) {
  int count = 0, eights = 0;
  for (; n % 8 == 0; n /= 8) eights++;
  if (n % 2 == 0 && n % 4 != 0 && eights > 0) { /* radices 4 * 4 instead of 2 * 8 */
    n *= 8;
    eights--;
  }
  for (; n % 4 == 0; n /= 4) radix[count++] = 4;
  for (int8_t r = 2; r <= LM_FFT_MAX_RADIX; r++)
    for (; n % r == 0; n /= r) radix[count++] = r;
  while (eights-- > 0) radix[count++] = 8;
  return n == 1 ? count : 0;
}

static lm_status make_passes(lm_fft_passes *p, int64_t n, lm_dtype dtype) {
  p->n = n;
  p->count = radices_of(n, p->radix);
  p->twiddle = lm_malloc(2 * lm_dtype_size(dtype) * (size_t)(2 * n));
  if (!p->twiddle) return LM_E_OOM;
  int64_t at = 0, left = n;
  for (int i = 0; i < p->count; left /= p->radix[i], i++) {
    for (int64_t j = 0; j < left / p->radix[i]; j++)
      for (int k = 1; k < p->radix[i]; k++) put_root(dtype, p->twiddle, at++, j * k, left);
  }
  return LM_OK;
}

/* Returns a divisor n1 near the square root of n. */
static int64_t first_part(int64_t n) {
  int8_t radix[64];
  int count = radices_of(n, radix);
  int64_t part = 1;
  for (int i = 0; i < count; i++)
    if ((double)part * part * radix[i] <= (double)n) part *= radix[i];
  return part;
}

static lm_status make_split(lm_fft_plan *p) {
  int64_t n1 = first_part(p->n), n2 = p->n / n1;
  size_t item = lm_dtype_size(p->dtype);
  NEED(make_passes(&p->first, n1, p->dtype));
  NEED(make_passes(&p->second, n2, p->dtype));
  p->fine_count = (int64_t)ceil(sqrt((double)p->n));
  p->lane = lm_malloc(2 * item * LM_FFT_LANES * (size_t)n1);
  p->coarse = lm_malloc(sizeof(double) * 2 * (size_t)(p->fine_count + 1));
  p->fine = lm_malloc(sizeof(double) * 2 * (size_t)p->fine_count);
  if (!p->lane || !p->coarse || !p->fine) return LM_E_OOM;
  for (int64_t a = 0; a < p->fine_count; a++) {
    put_root(LM_F64, p->fine, a, a, p->n);
    put_root(LM_F64, p->coarse, a, a * p->fine_count, p->n);
  }
  put_root(LM_F64, p->coarse, p->fine_count, p->fine_count * p->fine_count, p->n);
  for (int64_t k = 0; k < n1; k++) {
    for (int l = 0; l < LM_FFT_LANES; l++) {
      double root[2];
      put_root(LM_F64, root, 0, k * l, p->n);
      for (int i = 0; i < 2; i++) lm_scalar_put(p->dtype, p->lane, (2 * k + i) * LM_FFT_LANES + l, root[i]);
    }
  }
  return LM_OK;
}

/* Makes chirp[j] = exp(-pi i j^2 / n), and filter, the transform of its conjugates, which begin and end a line of m. */
static lm_status make_chirp(lm_fft_plan *p) {
  int64_t m = 1, n = p->n;
  size_t item = lm_dtype_size(p->dtype);
  while (m < 2 * n - 1) m *= 2;
  NEED(lm_fft_plan_get(m, p->dtype, false, &p->powers));
  p->chirp = lm_malloc(2 * item * (size_t)n);
  p->filter = lm_calloc(2 * (size_t)m, item);
  if (!p->chirp || !p->filter) return LM_E_OOM;
  for (int64_t j = 0; j < n; j++) {
    int64_t square = (int64_t)((unsigned __int128)j * (unsigned __int128)j % (unsigned __int128)(2 * n));
    put_root(p->dtype, p->chirp, j, square, 2 * n);
    put_root(p->dtype, p->filter, j, 2 * n - square, 2 * n);
    if (j > 0) put_root(p->dtype, p->filter, m - j, 2 * n - square, 2 * n);
  }
  return lm_fft_lines(p->powers, 1, p->filter, m, p->filter, m, false, 1 / (double)m);
}

static lm_status make_halves(lm_fft_plan *p) {
  p->halves = lm_malloc(2 * lm_dtype_size(p->dtype) * (size_t)(p->n / 2 + 1));
  if (!p->halves) return LM_E_OOM;
  for (int64_t k = 0; k <= p->n / 2; k++) put_root(p->dtype, p->halves, k, k, 2 * p->n);
  return LM_OK;
}

static void free_fft_plan(lm_fft_plan *p) {
  void *parts[] = {p->whole.twiddle, p->first.twiddle, p->second.twiddle, p->lane,  p->coarse,
                   p->fine,          p->chirp,         p->filter,         p->halves};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) lm_free(parts[i]);
  lm_fft_plan_done(p->powers);
  lm_free(p);
}

static lm_status fill_fft_plan(lm_fft_plan *p) {
  int8_t radix[64];
  if (p->n > 1 && radices_of(p->n, radix) == 0) {
    NEED(make_chirp(p));
  } else {
    if (p->n <= LONGEST_BLOCK) NEED(make_passes(&p->whole, p->n, p->dtype));
    if (p->n >= SHORTEST_SPLIT) NEED(make_split(p));
  }
  return p->real ? make_halves(p) : LM_OK;
}

static lm_status make_fft_plan(int64_t n, lm_dtype dtype, bool real, lm_fft_plan **out) {
  lm_fft_plan *p = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  *p = (lm_fft_plan){.n = n, .dtype = dtype, .real = real, .users = 1};
  const lm_status status = fill_fft_plan(p);
  if (status == LM_OK)
    *out = p;
  else
    free_fft_plan(p);
  return status;
}

LM_MUTEX(lock);
static lm_fft_plan *cache[CACHED];
static uint64_t uses;

static lm_fft_plan *find_fft_plan(int64_t n, lm_dtype dtype, bool real) {
  for (int i = 0; i < CACHED; i++) {
    lm_fft_plan *p = cache[i];
    if (!p || p->n != n || p->dtype != dtype || p->real != real) continue;
    p->users++;
    p->used = ++uses;
    return p;
  }
  return NULL;
}

lm_status lm_fft_plan_get(int64_t n, lm_dtype dtype, bool real, lm_fft_plan **out) {
  lm_fft_plan *p, *old;
  pthread_mutex_lock(&lock);
  p = find_fft_plan(n, dtype, real);
  pthread_mutex_unlock(&lock);
  if (!p) {
    NEED(make_fft_plan(n, dtype, real, &p));
    pthread_mutex_lock(&lock);
    int oldest = 0;
    for (int i = 1; i < CACHED && cache[oldest]; i++)
      if (!cache[i] || cache[i]->used < cache[oldest]->used) oldest = i;
    old = cache[oldest];
    cache[oldest] = p;
    p->users++;
    p->used = ++uses;
    pthread_mutex_unlock(&lock);
    lm_fft_plan_done(old);
  }
  *out = p;
  return LM_OK;
}

void lm_fft_plan_done(lm_fft_plan *p) {
  if (!p) return;
  pthread_mutex_lock(&lock);
  bool last = --p->users == 0;
  pthread_mutex_unlock(&lock);
  if (last) free_fft_plan(p);
}
