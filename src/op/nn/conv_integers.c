/* Convolves integers, for which backends have no kernels: im2col and matrix products. Sums wrap around, as in PyTorch.
 * */
#include "op/nn/conv.h"
#include "op/run.h"
#include "op_entries.h"

/* Sizes of the products: for each group, [outs, taps] times [taps, indices]. */
typedef struct products {
  int64_t groups, outs, taps, indices;
} products;

static products products_of(const lm_conv_shape *s) {
  return (products){s->groups, s->k / s->groups, s->c / s->groups * s->kh * s->kw, s->n * s->oh * s->ow};
}

static lm_status copy_contiguous(lm_tensor *t, lm_tensor **out) {
  lm_status status = lm_tensor_empty(t->dtype, t->device, t->ndim, t->size, LM_CONTIGUOUS, out);
  return status == LM_OK ? lm_copy(t, *out) : status;
}

/* Creates a view of t, contiguous, as [groups, rows, columns], or of its transposed matrices. */
static lm_status as_matrices(lm_tensor *t, int64_t groups, int64_t rows, int64_t columns, bool transposed,
                             lm_tensor **out) {
  const int64_t each = rows * columns;
  if (transposed) {
    return lm_tensor_view(t, 3, (int64_t[]){groups, columns, rows}, (int64_t[]){each, 1, columns}, 0, out);
  }
  return lm_tensor_view(t, 3, (int64_t[]){groups, rows, columns}, (int64_t[]){each, columns, 1}, 0, out);
}

/* Creates a view of y [n, k, oh, ow] as [groups, outs, n, oh, ow]. */
static lm_status view_by_groups(const lm_conv_shape *s, lm_tensor *y, lm_tensor **out) {
  const int64_t outs = s->k / s->groups, *step = y->stride;
  return lm_tensor_view(y, 5, (int64_t[]){s->groups, outs, s->n, s->oh, s->ow},
                        (int64_t[]){outs * step[1], step[1], step[0], step[2], step[3]}, 0, out);
}

/* Creates zeros of the padded image's size, and a view of the part that the image fills. */
static lm_status padded_image(const lm_conv_shape *s, const lm_tensor *like, lm_tensor **padded, lm_tensor **inner) {
  const int64_t size[4] = {s->n, s->c, s->h + 2 * s->padding[0], s->w + 2 * s->padding[1]};
  LM_OWNED *zeroed = NULL;
  NEED(lm_tensor_empty(like->dtype, like->device, 4, size, LM_CONTIGUOUS, padded));
  NEED(lm_op_zero_(&(lm_zero__args){.x = *padded}, &zeroed));
  NEED(lm_tensor_view(*padded, 4, (int64_t[]){s->n, s->c, s->h, s->w}, (*padded)->stride,
                      s->padding[0] * size[3] + s->padding[1], inner));
  return LM_OK;
}

static lm_status add_to(lm_tensor *x, lm_tensor *other) {
  LM_OWNED *sum = NULL;
  return lm_pointwise_run(LM_OP_add, 2, (lm_tensor *[]){x, other}, (double[]){1}, x, &sum);
}

static lm_status conv_integers_forward(const lm_conv_call *call) {
  const lm_conv_shape *s = &call->shape;
  const products p = products_of(s);
  const int64_t each = s->c / s->groups;
  lm_tensor *x = call->t[0], *y = call->t[2], *bias = call->bias;
  enum { PADDED, INNER, WINDOWS, COLUMNS, MATRIX, DENSE, WEIGHT, PRODUCT, FROM, TO, BIAS, COUNT };
  LM_OWNED_ARRAY(t, COUNT);
  NEED(padded_image(s, x, &t[PADDED], &t[INNER]));
  NEED(lm_copy(x, t[INNER]));
  const int64_t *step = t[PADDED]->stride;
  NEED(lm_tensor_view(t[PADDED], 7, (int64_t[]){s->groups, each, s->kh, s->kw, s->n, s->oh, s->ow},
                      (int64_t[]){each * step[1], step[1], s->dilation[0] * step[2], s->dilation[1] * step[3], step[0],
                                  s->stride[0] * step[2], s->stride[1] * step[3]},
                      0, &t[WINDOWS]));
  NEED(copy_contiguous(t[WINDOWS], &t[COLUMNS]));
  NEED(as_matrices(t[COLUMNS], p.groups, p.taps, p.indices, false, &t[MATRIX]));
  NEED(copy_contiguous(call->t[1], &t[DENSE]));
  NEED(as_matrices(t[DENSE], p.groups, p.outs, p.taps, false, &t[WEIGHT]));
  NEED(lm_op_product(LM_OP_bmm, &(lm_product_args){.x = t[WEIGHT], .other = t[MATRIX], .alpha = 1}, &t[PRODUCT]));
  NEED(view_by_groups(s, y, &t[TO]));
  NEED(lm_tensor_view(t[PRODUCT], 5, t[TO]->size, (int64_t[]){p.outs * p.indices, p.indices, s->oh * s->ow, s->ow, 1},
                      0, &t[FROM]));
  NEED(lm_copy(t[FROM], t[TO]));
  if (bias) {
    NEED(lm_tensor_view(bias, 4, (int64_t[]){1, s->k, 1, 1}, (int64_t[]){0, bias->stride[0], 0, 0}, 0, &t[BIAS]));
    NEED(add_to(y, t[BIAS]));
  }
  return LM_OK;
}

/* Multiplies the weight's transpose by y, and adds each tap's columns to the pixels it read. */
static lm_status input_gradient(const lm_conv_call *call) {
  const lm_conv_shape *s = &call->shape;
  const products p = products_of(s);
  const int64_t each = s->c / s->groups, size[5] = {s->groups, each, s->n, s->oh, s->ow};
  const int64_t from[5] = {p.taps * p.indices, s->kh * s->kw * p.indices, s->oh * s->ow, s->ow, 1};
  enum { PADDED, INNER, GROUPED, OUTS, MATRIX, DENSE, WEIGHT, PRODUCT, COUNT };
  LM_OWNED_ARRAY(t, COUNT);
  NEED(padded_image(s, call->t[0], &t[PADDED], &t[INNER]));
  NEED(view_by_groups(s, call->t[2], &t[GROUPED]));
  NEED(copy_contiguous(t[GROUPED], &t[OUTS]));
  NEED(as_matrices(t[OUTS], p.groups, p.outs, p.indices, false, &t[MATRIX]));
  NEED(copy_contiguous(call->t[1], &t[DENSE]));
  NEED(as_matrices(t[DENSE], p.groups, p.outs, p.taps, true, &t[WEIGHT]));
  NEED(lm_op_product(LM_OP_bmm, &(lm_product_args){.x = t[WEIGHT], .other = t[MATRIX], .alpha = 1}, &t[PRODUCT]));
  const int64_t *step = t[PADDED]->stride;
  const int64_t to[5] = {each * step[1], step[1], step[0], s->stride[0] * step[2], s->stride[1] * step[3]};
  for (int64_t i = 0; i < s->kh * s->kw; i++) {
    LM_OWNED *read = NULL, *tap = NULL;
    int64_t row = i / s->kw * s->dilation[0], column = i % s->kw * s->dilation[1];
    NEED(lm_tensor_view(t[PADDED], 5, size, to, row * step[2] + column, &read));
    NEED(lm_tensor_view(t[PRODUCT], 5, size, from, i * p.indices, &tap));
    NEED(add_to(read, tap));
  }
  return lm_copy(t[INNER], call->t[0]);
}

lm_status lm_conv_integers(const lm_conv_call *call) {
  return call->pass == LM_CONV_FORWARD ? conv_integers_forward(call) : input_gradient(call);
}
