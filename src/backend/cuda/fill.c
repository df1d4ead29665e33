/* Fills with constants, sequences and random numbers, and runs dropout. Each element of a draw depends on its index,
 * counted row-major (for dropout in memory order), and on the draw alone, as on the CPU. */
#include "fill.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/strided.h"
#include "copy.h"
#include "tensor/generator.h"

/* ---- constants */

/* Returns true if all bytes of every element are equal, and sets *byte to them. */
static bool one_byte(const lm_tensor *value, lm_dtype dtype, int *byte) {
  lm_pointwise_value wide = lm_cuda_value(value, LM_F64);
  if (wide.i64 == 0) { /* excludes -0, whose bits are not all 0 */
    *byte = 0;
    return true;
  }
  if (lm_dtype_size(dtype) > 1) return false;
  *byte = dtype == LM_BOOL ? wide.f64 != 0 : (uint8_t)lm_cuda_value(value, LM_I64).i64;
  return true;
}

lm_status lm_cuda_fill_(const lm_fill__args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x = a->x;
  const lm_tensor *value = a->value;
  bool known = value->device != x->device; /* the value is in host memory */
  int byte;
  (void)out;
  if (x->numel == 0) return LM_OK;
  if (known && lm_is_dense(x) && one_byte(value, x->dtype, &byte))
    return lm_cuda_check(lm_set_bytes(x->data, byte, lm_nbytes(x), f->stream), "cudaMemsetAsync");
  lm_dtype compute = value->dtype == LM_F64 ? LM_F64 : lm_dtype_is_float(value->dtype) ? LM_F32 : LM_I64;
  if (known && lm_dtype_is_float(x->dtype)) compute = x->dtype == LM_F64 ? LM_F64 : LM_F32;
  lm_pointwise_launch launch = {.at = lm_cuda_strided(x)};
  int k = lm_cuda_strided_add(&launch.at, value, (int64_t[LM_MAX_DIMS]){0});
  if (known) {
    launch.at.data[k] = NULL;
    launch.value[k] = lm_cuda_value(value, compute);
  }
  lm_cuda_strided_order(&launch.at, LM_BY_MEMORY);
  lm_pointwise_launcher *launcher = compute == LM_F64   ? lm_pointwise_f64_copy
                                    : compute == LM_F32 ? lm_pointwise_f32_copy
                                                        : lm_pointwise_i64_copy;
  return lm_cuda_pointwise_launch("fill_", launcher, &launch, x->device, f->stream);
}

/* ---- sequences and random numbers */

static lm_status fill_from(lm_cuda_frame *f, lm_tensor *x, const lm_fill_source *source) {
  enum { PIECE = 1 << 30 };
  lm_strided_layout at = lm_cuda_strided(x);
  lm_cuda_strided_order(&at, LM_ROW_MAJOR);
  if (at.ndim > 1 && x->numel > PIECE) { /* kernels count in 31 bits: fills a contiguous tensor in pieces */
    lm_tensor *row_major;
    NEED(lm_cuda_take_tensor(f, x->dtype, x->ndim, x->size, &row_major));
    NEED(fill_from(f, row_major, source));
    return lm_cuda_copy(row_major, x);
  }
  int64_t bytes = (int64_t)lm_dtype_size(x->dtype);
  for (int64_t first = 0; first < x->numel; first += PIECE) {
    lm_strided_layout piece = at;
    if (at.ndim == 1) {
      piece.size[0] = x->numel - first < PIECE ? x->numel - first : PIECE;
      piece.data[0] = x->data + first * at.stride[0][0] * bytes;
    }
    NEED(LAUNCH(lm_op_running(), lm_fill_from(source, &piece, first, f->stream)));
  }
  return LM_OK;
}

lm_status lm_cuda_arange(const lm_arange_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  double start = isnan(a->stop) ? 0 : a->start;
  lm_fill_source s = {.kind = LM_ARANGE, .a = start, .b = a->step};
  if (!lm_dtype_is_float(out[0]->dtype) && start == trunc(start) && a->step == trunc(a->step)) {
    s = (lm_fill_source){.kind = LM_ARANGE_WHOLE, .from = (int64_t)start, .to = (int64_t)a->step};
  }
  return fill_from(f, out[0], &s);
}

lm_status lm_cuda_linspace(const lm_linspace_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_fill_source s = {.kind = LM_LINSPACE, .a = a->start, .stop = a->stop, .to = a->steps};
  if (a->steps > 1) s.b = (a->stop - a->start) / (double)(a->steps - 1);
  if (a->steps == 1) s.stop = a->start;
  return fill_from(f, out[0], &s);
}

/* Takes the blocks that n results of `words` 32-bit words need. */
static lm_blocks_drawn take_blocks(lm_generator *g, lm_device device, int64_t n, int words) {
  lm_draw draw = lm_generator_take(g, device, ((uint64_t)n * (uint64_t)words + 3) / 4);
  return (lm_blocks_drawn){draw.seed, draw.offset, lm_generator_extra()};
}

lm_status lm_cuda_fill_random(const lm_fill_random_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  lm_tensor *x = out[0];
  const lm_distribution drawn = (lm_distribution)a->distribution;
  bool wide =
      drawn == LM_DRAW_GEOMETRIC || drawn == LM_DRAW_INTEGERS || (x->dtype == LM_F64 && drawn != LM_DRAW_BERNOULLI);
  /* Rounding 24 bits to a shorter significand could reach 1, so half takes 11 bits and bfloat16 8. For other ranges
   * op/random.c chooses ends that rounding does not reach. */
  bool unit = drawn == LM_DRAW_UNIFORM && a->a == 0 && a->b == 1;
  uint32_t keep = unit && x->dtype == LM_F16 ? 0xffe00000u : unit && x->dtype == LM_BF16 ? 0xff000000u : 0xffffffffu;
  lm_fill_source source = {.kind = LM_UNIFORM + (int)drawn,
                           .draw = take_blocks(a->generator, x->device, x->numel, wide ? 2 : 1),
                           .a = a->a,
                           .b = a->b,
                           .from = a->from,
                           .to = a->to,
                           .keep = keep};
  return fill_from(f, x, &source);
}

/* ---- dropout: x is dense; y and the mask have its layout */

lm_status lm_cuda_dropout(const lm_dropout_args *a, lm_tensor *const *out, lm_cuda_frame *f) {
  int64_t n = a->x->numel;
  if (n == 0) return LM_OK;
  uint32_t threshold = (uint32_t)ceil(a->p * 0x1p24);
  double scale = a->p < 1 ? 1 / (1 - a->p) : 0;
  return LAUNCH("dropout", lm_dropout_mask(a->x->dtype, a->x->data, out[0]->data, (uint8_t *)out[1]->data, n,
                                           take_blocks(NULL, f->device, n, 1), threshold, scale, f->stream));
}
