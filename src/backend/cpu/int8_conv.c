/* Convolves 8-bit integers with sums of 32 bits: windows of a block of pixels are gathered as rows, and multiplied by
 * packed weights. A matrix product is a convolution of images of one pixel. Also converts to and from such integers. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/isa/int8_tiles.h"
#include "backend/cpu/memory.h"
#include "base/message.h"
#include "op/input_layout.h"
#include "op/nn/conv.h"
#include "op/operand_checks.h"
#include "op_args_convolution.h"

enum { FLIP = 0x80 }; /* makes signed bytes unsigned ones that are 128 larger, and the reverse */

_Static_assert(LM_BYTE_COLUMNS == (int)LM_INT8_COLUMNS && LM_BYTE_STEP == (int)LM_INT8_STEP,
               "the op allocates what the tiles read");

static bool is_byte(const lm_tensor *t) { return t->dtype == LM_U8 || t->dtype == LM_I8; }

static int32_t zero_of(const lm_tensor *zero) {
  return zero->dtype == LM_U8 ? *(const uint8_t *)zero->data : *(const int8_t *)zero->data;
}

static lm_status check_bytes(const char *op, const char *name, const lm_tensor *t) {
  return is_byte(t) ? LM_OK : lm_fail_dtype(op, name, "uint8 or int8", lm_dtype_name(t->dtype));
}

/* Packs weights: panels of LM_BYTE_COLUMNS channels, in steps of LM_BYTE_STEP numbers ordered by row, column and input
 * channel; of depthwise convolutions the numbers of each tap. The sums of each channel follow. */
lm_status lm_cpu_int8_pack(const lm_int8_pack_args *a, lm_tensor *const *out) {
  const lm_tensor *w = a->weight;
  NEED(check_bytes("int8_pack", "weight", w));
  const int64_t K = w->size[0], C = w->size[1], taps = w->size[2] * w->size[3], each = K / a->groups;
  const bool flat = lm_int8_is_depthwise(w->size, a->groups);
  const int64_t steps = lm_round_up(C * taps, LM_BYTE_STEP) / LM_BYTE_STEP;
  const int64_t panels = lm_round_up(each, LM_BYTE_COLUMNS) / LM_BYTE_COLUMNS;
  const uint8_t *from = (const uint8_t *)w->data, flip = w->dtype == LM_U8 ? FLIP : 0;
  int8_t *to = (int8_t *)out[0]->data;
  int32_t *sum = (int32_t *)(to + out[0]->numel) - K;
  memset(to, 0, (size_t)out[0]->numel);
  for (int64_t k = 0; k < K; k++) {
    const int64_t panel = k / each * panels + k % each / LM_BYTE_COLUMNS, column = k % each % LM_BYTE_COLUMNS;
    for (int64_t c = 0; c < C; c++)
      for (int64_t t = 0; t < taps; t++) {
        const int64_t at = t * C + c;
        const int8_t v = (int8_t)(*from++ ^ flip);
        const int64_t step = panel * steps + at / LM_BYTE_STEP;
        to[flat ? t * K + k : (step * LM_BYTE_COLUMNS + column) * LM_BYTE_STEP + at % LM_BYTE_STEP] = v;
        sum[k] += v;
      }
  }
  return LM_OK;
}

typedef struct bytes_job {
  lm_conv_shape s;
  const uint8_t *x;
  char *y;
  const int8_t *w;
  const int32_t *zero; /* zero points of weights, for each channel */
  const uint8_t *edge; /* a pixel outside of x */
  uint8_t flip;        /* makes x unsigned */
  bool has_zeros;      /* true if `zero` is not all 0 */
  int64_t y_size;      /* bytes of an element of y */
  int64_t row, steps;  /* bytes of a gathered row, and their steps */
  int64_t block, blocks, panels, splits;
  lm_byte_finish finish;
} bytes_job;

/* Copies the window of pixel p and group g to `to`; returns the sum of its bytes, or 0 if weights
 * have no zero points. */
static int32_t gather_window(const bytes_job *j, int64_t p, int64_t g, uint8_t *to) {
  const lm_conv_shape *s = &j->s;
  const int64_t C = s->c / s->groups, ox = p % s->ow, oy = p / s->ow % s->oh, n = p / s->ow / s->oh;
  const int64_t left = ox * s->stride[1] - s->padding[1];
  const bool run = s->groups == 1 && s->dilation[1] == 1 && left >= 0 && left + s->kw <= s->w;
  uint8_t *at = to;
  for (int64_t ky = 0; ky < s->kh; ky++) {
    const int64_t iy = oy * s->stride[0] - s->padding[0] + ky * s->dilation[0];
    const bool inside = iy >= 0 && iy < s->h;
    const uint8_t *line = j->x + ((n * s->h + iy) * s->w + left) * s->c + g * C;
    if (run && inside) {
      memcpy(at, line, (size_t)(s->kw * C));
      at += s->kw * C;
      continue;
    }
    for (int64_t kx = 0; kx < s->kw; kx++, at += C) {
      const int64_t ix = left + kx * s->dilation[1];
      memcpy(at, inside && ix >= 0 && ix < s->w ? line + kx * s->dilation[1] * s->c : j->edge, (size_t)C);
    }
  }
  memset(at, j->flip, (size_t)(to + j->row - at));
  int32_t sum = 0;
  for (int64_t i = 0; j->flip && i < j->row; i++) to[i] ^= j->flip;
  for (int64_t i = 0; j->has_zeros && i < j->row; i++) sum += to[i];
  return sum;
}

static void multiply_blocks(void *ctx, int64_t first, int64_t last) {
  const bytes_job *j = ctx;
  const struct lm_byte_loops *loops = LM_ISA_PICK(lm_byte_loops);
  const int64_t each = j->s.k / j->s.groups, pixels = j->s.n * j->s.oh * j->s.ow;
  uint8_t *rows = lm_scratch();
  int32_t *totals = (int32_t *)(rows + lm_round_up(j->block * j->row, 64));
  int32_t tile[LM_BYTE_ROWS * LM_BYTE_COLUMNS];
  for (int64_t i = first; i < last; i++) {
    const int64_t part = i % j->splits, g = i / j->splits / j->blocks;
    const int64_t from = i / j->splits % j->blocks * j->block, n = lm_min(j->block, pixels - from);
    for (int64_t r = 0; r < n; r++) totals[r] = gather_window(j, from + r, g, rows + r * j->row);
    for (int64_t p = lm_part_begin(j->panels, part, j->splits); p < lm_part_begin(j->panels, part + 1, j->splits);
         p++) {
      const int8_t *w = j->w + (g * j->panels + p) * j->steps * LM_BYTE_COLUMNS * LM_BYTE_STEP;
      const int64_t column = p * LM_BYTE_COLUMNS, columns = lm_min(LM_BYTE_COLUMNS, each - column);
      for (int64_t r = 0; r < n; r += LM_BYTE_ROWS) {
        const int64_t count = lm_min(LM_BYTE_ROWS, n - r);
        loops->tile((int)count, j->steps, rows + r * j->row, j->row, w, tile);
        for (int64_t k = 0; k < count; k++)
          loops->finish(&j->finish, g * each + column, columns, tile + k * LM_BYTE_COLUMNS, totals[r + k], j->zero,
                        j->y + ((from + r + k) * j->s.k + g * each + column) * j->y_size);
      }
    }
  }
}

static void multiply_taps(void *ctx, int64_t first, int64_t last) {
  const bytes_job *j = ctx;
  const lm_conv_shape *s = &j->s;
  const struct lm_byte_loops *loops = LM_ISA_PICK(lm_byte_loops);
  const uint8_t **taps = lm_scratch();
  int32_t *sum = (int32_t *)(taps + s->kh * s->kw);
  for (int64_t p = first; p < last; p++) {
    const int64_t ox = p % s->ow, oy = p / s->ow % s->oh, n = p / s->ow / s->oh;
    for (int64_t t = 0; t < s->kh * s->kw; t++) {
      const int64_t iy = oy * s->stride[0] - s->padding[0] + t / s->kw * s->dilation[0];
      const int64_t ix = ox * s->stride[1] - s->padding[1] + t % s->kw * s->dilation[1];
      const bool inside = iy >= 0 && iy < s->h && ix >= 0 && ix < s->w;
      taps[t] = inside ? j->x + ((n * s->h + iy) * s->w + ix) * s->c : j->edge;
    }
    loops->depthwise(s->c, s->kh * s->kw, taps, j->flip, j->w, j->zero, sum);
    loops->finish(&j->finish, 0, s->k, sum, 0, j->zero, j->y + p * s->k * j->y_size);
  }
}

static lm_status run_job(bytes_job *j, bool depthwise) {
  enum { BLOCK_BYTES = 192 << 10, MOST_ROWS = 96, TASKS = 8, WORK = 100 /* products in a nanosecond */ };
  const lm_conv_shape *s = &j->s;
  const int64_t pixels = s->n * s->oh * s->ow;
  const double work = (double)(pixels * s->k) * (double)(s->c / s->groups * s->kh * s->kw) / WORK;
  if (depthwise)
    return lm_parallel(pixels, work * 8, (size_t)(s->kh * s->kw) * sizeof(void *) + (size_t)s->c * sizeof(int32_t),
                       multiply_taps, j);
  j->steps = lm_round_up(s->c / s->groups * s->kh * s->kw, LM_BYTE_STEP) / LM_BYTE_STEP;
  j->row = j->steps * LM_BYTE_STEP;
  j->panels = lm_round_up(s->k / s->groups, LM_BYTE_COLUMNS) / LM_BYTE_COLUMNS;
  j->block = lm_min(MOST_ROWS, lm_max(1, BLOCK_BYTES / lm_max(1, j->row) / LM_BYTE_ROWS) * LM_BYTE_ROWS);
  j->blocks = (pixels + j->block - 1) / j->block;
  j->splits = lm_max(1, lm_min(j->panels, TASKS / (j->blocks * s->groups)));
  const size_t scratch = (size_t)lm_round_up(j->block * j->row, 64) + (size_t)j->block * sizeof(int32_t);
  return lm_parallel(s->groups * j->blocks * j->splits, work, scratch, multiply_blocks, j);
}

lm_status lm_cpu_int8_conv(const lm_int8_conv_args *a, lm_tensor *const *out) {
  const lm_tensor *w = a->weight, *zero = a->zero;
  const bool raw = zero->dtype == LM_I32, depthwise = lm_int8_is_depthwise(w->size, a->groups);
  LM_OWNED *x = NULL, *y = NULL;
  double zero_of_x = 0;
  NEED(check_bytes("int8_conv", "x", a->x));
  if (a->x_zero) NEED(lm_tensor_item_f64(a->x_zero, &zero_of_x));
  NEED(check_bytes("int8_conv", "weight", w));
  if (!raw && !is_byte(zero) && zero->dtype != LM_F32)
    return lm_fail_dtype("int8_conv", "zero", "uint8, int8, int32 or float32", lm_dtype_name(zero->dtype));
  if (!raw && !a->scale)
    return lm_fail(LM_E_ARG, "int8_conv: scale is missing; results of %s need it", lm_dtype_name(zero->dtype));
  NEED(lm_to_layout(a->x, LM_CHANNELS_LAST, &x));
  if (lm_is_channels_last(out[0]))
    y = lm_retain(out[0]);
  else
    NEED(lm_tensor_empty(out[0]->dtype, out[0]->device, 4, out[0]->size, LM_CHANNELS_LAST, &y));
  const int64_t K = w->size[0], taps = w->size[2] * w->size[3];
  bytes_job j = {.s = {x->size[0],
                       x->size[1],
                       x->size[2],
                       x->size[3],
                       K,
                       w->size[2],
                       w->size[3],
                       y->size[2],
                       y->size[3],
                       {a->stride[0], a->stride[1]},
                       {a->padding[0], a->padding[1]},
                       {a->dilation[0], a->dilation[1]},
                       a->groups},
                 .x = (const uint8_t *)x->data,
                 .y = y->data,
                 .w = (const int8_t *)a->packed->data,
                 .flip = x->dtype == LM_I8 ? FLIP : 0,
                 .y_size = (int64_t)lm_dtype_size(y->dtype)};
  LM_WORKSPACE(int32_t, base, 3 * K + x->size[1]);
  int32_t *const zeros = base + K, x_zero = (int32_t)zero_of_x + j.flip;
  float *const scale = (float *)(base + 2 * K);
  const char *sums = a->packed->data + a->packed->numel - K * (int64_t)sizeof(int32_t); /* at any address */
  memset(base + 3 * K, (int)zero_of_x, (size_t)x->size[1]);
  for (int64_t k = 0; k < K; k++) {
    zeros[k] = a->w_zero           ? ((const int32_t *)a->w_zero->data)[k] - (w->dtype == LM_U8 ? 128 : 0)
               : w->dtype == LM_U8 ? -128
                                   : 0;
    j.has_zeros = j.has_zeros || zeros[k] != 0;
    uint32_t sum;
    memcpy(&sum, sums + k * (int64_t)sizeof sum, sizeof sum);
    const uint32_t count = (uint32_t)(w->size[1] * taps);
    base[k] = (int32_t)(count * (uint32_t)zeros[k] * (uint32_t)x_zero - (uint32_t)x_zero * sum +
                        (a->bias ? ((const uint32_t *)a->bias->data)[k] : 0));
    scale[k] = raw ? 1 : ((const float *)a->scale->data)[k];
  }
  j.zero = zeros, j.edge = (const uint8_t *)(base + 3 * K);
  j.finish = (lm_byte_finish){.dtype = y->dtype, .base = base, .scale = scale};
  if (is_byte(zero)) j.finish.zero = zero_of(zero);
  if (y->numel > 0) NEED(run_job(&j, depthwise));
  return y == out[0] ? LM_OK : lm_cpu_copy(y, out[0]);
}

typedef struct convert_job {
  const void *x, *other;
  void *y;
  bool x_signed, other_signed;
  float scale, other_scale, shift;
  int32_t zero;
  lm_byte_finish finish;
} convert_job;

static void quantize(void *ctx, int64_t first, int64_t last) {
  const convert_job *j = ctx;
  LM_ISA_PICK(lm_byte_loops)
      ->quantize(&j->finish, j->scale, (const float *)j->x + first, last - first, (uint8_t *)j->y + first);
}

lm_status lm_cpu_int8_quantize(const lm_int8_quantize_args *a, lm_tensor *const *out) {
  double scale;
  NEED(check_bytes("int8_quantize", "zero", a->zero));
  NEED(lm_tensor_item_f64(a->scale, &scale));
  convert_job j = {.x = a->x->data,
                   .y = out[0]->data,
                   .scale = (float)scale,
                   .finish = {.dtype = a->zero->dtype, .zero = zero_of(a->zero)}};
  return lm_parallel(out[0]->numel, (double)out[0]->numel / 4, 0, quantize, &j);
}

static void dequantize(void *ctx, int64_t first, int64_t last) {
  const convert_job *j = ctx;
  LM_ISA_PICK(lm_byte_loops)
      ->dequantize(j->x_signed, (const uint8_t *)j->x + first, last - first, j->zero, j->scale, (float *)j->y + first);
}

lm_status lm_cpu_int8_dequantize(const lm_int8_dequantize_args *a, lm_tensor *const *out) {
  NEED(check_bytes("int8_dequantize", "x", a->x));
  convert_job j = {.x = a->x->data,
                   .y = out[0]->data,
                   .x_signed = a->x->dtype == LM_I8,
                   .scale = (float)a->scale,
                   .zero = (int32_t)a->x_zero};
  return lm_parallel(out[0]->numel, (double)out[0]->numel / 4, 0, dequantize, &j);
}

static void add_bytes(void *ctx, int64_t first, int64_t last) {
  const convert_job *j = ctx;
  const float scale[2] = {j->scale, j->other_scale};
  LM_ISA_PICK(lm_byte_loops)
      ->add(&j->finish, (const uint8_t *)j->x + first, j->x_signed, (const uint8_t *)j->other + first, j->other_signed,
            scale, j->shift, last - first, (uint8_t *)j->y + first);
}

/* Adds quantized tensors. Rounds scales and the zero points' terms to float32, as onnxruntime does, for equal ties. */
lm_status lm_cpu_int8_add(const lm_int8_add_args *a, lm_tensor *const *out) {
  NEED(check_bytes("int8_add", "x", a->x));
  NEED(check_bytes("int8_add", "other", a->other));
  NEED(check_bytes("int8_add", "zero", a->zero));
  const double fixed =
      (double)(float)a->scale * (double)a->x_zero + (double)(float)a->other_scale * (double)a->other_zero;
  convert_job j = {.x = a->x->data,
                   .other = a->other->data,
                   .y = out[0]->data,
                   .x_signed = a->x->dtype == LM_I8,
                   .other_signed = a->other->dtype == LM_I8,
                   .scale = (float)a->scale,
                   .other_scale = (float)a->other_scale,
                   .shift = (float)(zero_of(a->zero) - fixed),
                   .finish = {.dtype = a->zero->dtype}};
  return lm_parallel(out[0]->numel, (double)out[0]->numel / 4, 0, add_bytes, &j);
}
