/* Declares products of unsigned and signed bytes with sums of 32 bits, and the conversion of these sums. */
#pragma once

#include "backend/cpu/isa.h"
#include "tensor/dtype.h"

/* Rows and columns of a tile; bytes of a row that one step multiplies. */
enum { LM_BYTE_ROWS = 12, LM_BYTE_COLUMNS = 32, LM_BYTE_STEP = 4 };

/* Converts sums of channel c to an element: sum + base[c], then in int32 as it is; in float32 times scale[c]; in int8
 * and uint8 also rounded to even, plus zero, and saturated. */
typedef struct lm_byte_finish {
  lm_dtype dtype;
  int32_t zero;
  const int32_t *base; /* for each channel */
  const float *scale;  /* for each channel; NULL for int32 */
} lm_byte_finish;

struct lm_byte_loops {
  /* Computes c[i * LM_BYTE_COLUMNS + j] = sum over `steps` steps of a[i][k] b[k][j], for rows up to LM_BYTE_ROWS. a:
   * rows, `row` bytes apart; b: for each step LM_BYTE_COLUMNS columns of LM_BYTE_STEP bytes. */
  void (*tile)(int rows, int64_t steps, const uint8_t *a, int64_t row, const int8_t *b, int32_t *c);
  /* Computes sum[c] = sum over taps of (x[t][c] ^ flip) (w[t * channels + c] - zero[c]). */
  void (*depthwise)(int64_t channels, int64_t taps, const uint8_t *const *x, uint8_t flip, const int8_t *w,
                    const int32_t *zero, int32_t *sum);
  /* Writes n elements from sums of channels from `first` on, less total * zero[c]. */
  void (*finish)(const lm_byte_finish *f, int64_t first, int64_t n, const int32_t *sum, int32_t total,
                 const int32_t *zero, void *out);
  /* Write n elements as `finish` does: of x / scale; of scale[0] x + scale[1] other + shift. */
  void (*quantize)(const lm_byte_finish *f, float scale, const float *x, int64_t n, uint8_t *out);
  void (*add)(const lm_byte_finish *f, const uint8_t *x, bool x_signed, const uint8_t *other, bool other_signed,
              const float *scale, float shift, int64_t n, uint8_t *out);
  /* Writes (x - zero) scale. */
  void (*dequantize)(bool is_signed, const uint8_t *x, int64_t n, int32_t zero, float scale, float *out);
};

LM_ISA_DECLARE(struct lm_byte_loops, lm_byte_loops);
