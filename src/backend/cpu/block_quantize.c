/* Rounds floats to quantized blocks: each group gets the scale and the minimum with the least squared error among some,
 * a block stores them in its form, and elements are rounded by what it then has. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "blocks.h"
#include "op_args_blocks.h"

enum { TRIES = 9 };

typedef struct integer_range {
  float low, high; /* bounds of integers less zero */
} integer_range;

static integer_range range_of(const lm_block_kind *k) {
  const int most = (1 << (k->low.width + k->high.width)) - 1;
  if (k->table[0]) return (integer_range){k->form == LM_BLOCK_EXPONENT ? 12 : -127, 127}; /* only `low` is used */
  if (k->flip) return (integer_range){-127, 127};
  return (integer_range){(float)-k->zero, (float)(most - k->zero)};
}

/* Returns v within low and high; low for NaN. */
static float within(float v, float low, float high) {
  v = v > low ? v : low;
  return v < high ? v : high;
}

/* Returns the integer of a table with the number nearest to v. */
static int nearest_entry(const lm_block_kind *k, float v) {
  int best = 0;
  for (int i = 1; i < 16; i++)
    if (fabsf((float)(lm_block_entry(k, i) - k->zero) - v) < fabsf((float)(lm_block_entry(k, best) - k->zero) - v))
      best = i;
  return best;
}

static float rounded(const lm_block_kind *k, const integer_range *range, float v) {
  if (k->table[0]) return (float)(lm_block_entry(k, nearest_entry(k, v)) - k->zero);
  return within(rintf(v), range->low, range->high);
}

/* Returns the factor of try t: 1, then others around it, `step` apart. */
static float factor_of(int t, float step) { return 1 + step * (float)(t % 2 ? -(t + 1) / 2 : t / 2); }

/* Returns the scale of n numbers without a minimum. The number of the largest magnitude becomes nearly the lowest
 * integer. */
static float fit_scale(const lm_block_kind *k, const integer_range *range, int n, const float *x) {
  float extreme = 0, best = 0, best_gain = 0;
  for (int i = 0; i < n; i++) extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
  for (int t = 0; t < TRIES && extreme != 0; t++) {
    const float by = range->low * factor_of(t, 0.02f) / extreme;
    float products = 0, squares = 0;
    for (int i = 0; i < n; i++) {
      const float q = rounded(k, range, x[i] * by);
      products += q * x[i];
      squares += q * q;
    }
    if (squares > 0 && products * products > best_gain * squares) {
      best = products / squares;
      best_gain = products * best;
    }
  }
  return best;
}

/* Returns the scale of n numbers, and sets their minimum, which is subtracted; not negative if `positive`. */
static float fit_affine(const integer_range *range, bool positive, int n, const float *x, float *minimum) {
  float low = x[0], high = x[0], best = 0, best_error = INFINITY;
  for (int i = 1; i < n; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
  if (positive && low > 0) low = 0;
  *minimum = -low;
  for (int t = 0; t < TRIES && high > low; t++) {
    const float by = range->high * factor_of(t, 0.03f) / (high - low);
    float sum_q = 0, sum_x = 0, sum_qq = 0, sum_qx = 0, error = 0;
    for (int i = 0; i < n; i++) {
      const float q = within(rintf((x[i] - low) * by), 0, range->high);
      sum_q += q, sum_x += x[i], sum_qq += q * q, sum_qx += q * x[i];
    }
    const float det = (float)n * sum_qq - sum_q * sum_q;
    if (det <= 0) continue;
    float scale = ((float)n * sum_qx - sum_q * sum_x) / det, least = (sum_qq * sum_x - sum_q * sum_qx) / det;
    if (positive && least > 0) scale = sum_qx / sum_qq, least = 0;
    for (int i = 0; i < n; i++) {
      const float off = scale * within(rintf((x[i] - low) * by), 0, range->high) + least - x[i];
      error += off * off;
    }
    if (error < best_error) best_error = error, best = scale, *minimum = -least;
  }
  return best;
}

static void put_half(uint8_t *to, float v) {
  const uint16_t bits = lm_to_half(v);
  memcpy(to, &bits, sizeof bits);
}

/* Writes the step of n numbers as a half, and sets q to their numbers of steps: from `low` to `high`, where the number
 * of the largest magnitude gets the bound of the larger one. */
static void put_levels(uint8_t *half, int n, const float *v, int low, int high, int *q) {
  float extreme = 0;
  for (int i = 0; i < n; i++) extreme = fabsf(v[i]) > fabsf(extreme) ? v[i] : extreme;
  put_half(half, extreme / (float)(-low > high ? low : high));
  const float step = lm_block_half(half);
  for (int i = 0; i < n; i++) q[i] = step != 0 ? (int)within(rintf(v[i] / step), (float)low, (float)high) : 0;
}

/* Writes scales and minima to a block of zeros: the reverse of lm_block_scales. */
static void put_scales(const lm_block_kind *k, uint8_t *block, const float *scale, const float *minimum) {
  int q[LM_BLOCK_GROUPS], m[LM_BLOCK_GROUPS];
  switch (k->form) {
    case LM_BLOCK_HALF: put_half(block, scale[0]); break;
    case LM_BLOCK_HALF_MINIMUM: put_half(block, scale[0]), put_half(block + 2, -minimum[0]); break;
    case LM_BLOCK_SIX_BITS:
      put_levels(block, 8, scale, 0, 63, q);
      put_levels(block + 2, 8, minimum, 0, 63, m);
      for (int i = 0; i < 4; i++) {
        block[4 + i] = (uint8_t)(q[i] | q[i + 4] >> 4 << 6);
        block[8 + i] = (uint8_t)(m[i] | m[i + 4] >> 4 << 6);
        block[12 + i] = (uint8_t)((q[i + 4] & 15) | (m[i + 4] & 15) << 4);
      }
      break;
    case LM_BLOCK_SIGNED_BYTES:
      put_levels(block + 208, 16, scale, -128, 127, q);
      for (int i = 0; i < 16; i++) block[192 + i] = (uint8_t)q[i];
      break;
    case LM_BLOCK_NIBBLES:
      put_levels(block + 80, 16, scale, 0, 15, q);
      put_levels(block + 82, 16, minimum, 0, 15, m);
      for (int i = 0; i < 16; i++) block[i] = (uint8_t)(q[i] | m[i] << 4);
      break;
    case LM_BLOCK_SIGNED_SIX_BITS:
      put_levels(block + 108, 16, scale, -32, 31, q);
      for (int i = 0; i < 16; i++) {
        block[96 + i % 8] |= (uint8_t)(((q[i] + 32) & 15) << i / 8 * 4);
        block[104 + i % 4] |= (uint8_t)((q[i] + 32) >> 4 << i / 4 * 2);
      }
      break;
    case LM_BLOCK_SPLIT_SIX_BITS:
      put_levels(block, 8, scale, -32, 31, q);
      for (int i = 0; i < 8; i++) {
        block[4 + i / 2] |= (uint8_t)(((q[i] + 32) & 15) << i % 2 * 4);
        block[2 + i / 4] |= (uint8_t)((q[i] + 32) >> 4 << i % 4 * 2);
      }
      break;
    case LM_BLOCK_EXPONENT: block[0] = (uint8_t)within(rintf(log2f(fabsf(scale[0]))) + 128, 0, 254); break;
  }
}

static void put_field(uint8_t *block, lm_block_bits b, int i, int v) {
  const int each = b.span * 8 / b.width, part = i % each;
  block[b.at + i / each * b.span + part % b.span] |= (uint8_t)((v & ((1 << b.width) - 1)) << part / b.span * b.width);
}

static void quantize(const lm_block_kind *k, const float *x, uint8_t *block) {
  const integer_range range = range_of(k);
  const int n = k->group;
  float scale[LM_BLOCK_GROUPS], minimum[LM_BLOCK_GROUPS] = {0};
  memset(block, 0, (size_t)k->bytes);
  for (int g = 0; g < k->elements / n; g++) {
    if (lm_block_has_minima(k))
      scale[g] = fit_affine(&range, k->form != LM_BLOCK_HALF_MINIMUM, n, x + g * n, &minimum[g]);
    else
      scale[g] = fit_scale(k, &range, n, x + g * n);
  }
  put_scales(k, block, scale, minimum);
  lm_block_scales(k, block, scale, minimum);
  for (int i = 0; i < k->elements; i++) {
    const float s = scale[i / n], v = s != 0 ? (x[i] + (lm_block_has_minima(k) ? minimum[i / n] : 0)) / s : 0;
    const int q =
        k->table[0] ? nearest_entry(k, v) : ((int)within(rintf(v), range.low, range.high) + k->zero) ^ k->flip;
    put_field(block, k->low, i, q);
    if (k->high.width) put_field(block, k->high, i, q >> k->low.width);
  }
}

typedef struct quantize_job {
  const lm_block_kind *kind;
  const float *x;
  uint8_t *to;
} quantize_job;

static void quantize_some(void *ctx, int64_t first, int64_t last) {
  const quantize_job *j = ctx;
  for (int64_t i = first; i < last; i++) quantize(j->kind, j->x + i * j->kind->elements, j->to + i * j->kind->bytes);
}

lm_status lm_cpu_quantize_blocks(const lm_quantize_blocks_args *a, lm_tensor *const *out) {
  const lm_block_kind *k = lm_block_kind_of(a->kind);
  quantize_job job = {k, (const float *)a->x->data, (uint8_t *)out[0]->data};
  return lm_parallel(a->x->numel / k->elements, (double)a->x->numel * TRIES * 4, 0, quantize_some, &job);
}
