/* Declares checks that entries name, for conditions beyond sizes, dtypes and bounds, and computes formats and counts. A
 * check begins with the op that runs; through pointers it returns sizes of results or replaces defaults. */
#pragma once

#include "integers.h"
#include "op/frame.h"

/* ---- op/check.c: dtypes. `t` is the operand `name` */

/* Returns the dtype of x's statistics and of sums beside it: float64 for float64, else float32. */
static inline lm_dtype lm_stat_dtype(const lm_tensor *x) { return x->dtype == LM_F64 ? LM_F64 : LM_F32; }
lm_status lm_check_real(lm_op_id op, const char *name, const lm_tensor *t); /* requires float32 or float64 */
lm_status lm_check_not_bool(lm_op_id op, const char *name, const lm_tensor *t);
lm_status lm_check_float_or_int(lm_op_id op, const char *name, const lm_tensor *t);
lm_status lm_check_float_or_int64(lm_op_id op, const char *name, const lm_tensor *t);
lm_status lm_check_dtype(lm_op_id op, const char *name, const lm_tensor *t, lm_dtype dtype);
lm_status lm_check_dtypes(lm_op_id op, const char *first, const lm_tensor *a, const char *second, const lm_tensor *b);
/* Requires x's sizes and dtype. */
lm_status lm_check_like(lm_op_id op, const char *name, const lm_tensor *t, const char *of, const lm_tensor *x);
/* Requires the dtype of x's statistics or, with `own`, also accepts x's own. */
lm_status lm_check_stat(lm_op_id op, const char *name, const lm_tensor *t, const char *of, const lm_tensor *x,
                        bool own);

/* Returns t's sizes as a matrix: {rows, last}. */
static inline lm_ints lm_matrix_sizes(const lm_tensor *t) {
  lm_ints size = {2, {1, t->size[t->ndim - 1]}};
  for (int d = 0; d < t->ndim - 1; d++) size.v[0] *= t->size[d];
  return size;
}
/* Computes the size of a result that is along one of two dims. */
static inline lm_status lm_check_chosen(lm_op_id op, bool is_second, int64_t first, int64_t second, int64_t *size) {
  (void)op;
  *size = is_second ? second : first;
  return LM_OK;
}
lm_status lm_check_elements(lm_op_id op, const lm_tensor *t); /* requires fewer than 2^31 */
lm_status lm_check_points(lm_op_id op, int64_t points);       /* requires the same of gather_weighted's x */
lm_status lm_check_odd(lm_op_id op, int64_t states);          /* requires an odd last size of ctc_nll's log_alpha */

/* ---- op/nn/grid_sample.c */

/* Checks the grid's dims for an x of [N, C, from...], and the digits of order, each at most `highest`. */
lm_status lm_check_grid(lm_op_id op, const lm_ints *from, const lm_tensor *grid, int64_t order, int highest);

/* ---- op/nn/pooling.c. dilation may be NULL, for 1 */

/* Checks window sizes; a stride left out becomes kernel_size. */
lm_status lm_check_windows(lm_op_id op, const int64_t *kernel_size, int64_t *stride, const int64_t *padding,
                           const int64_t *dilation);
/* Checks window sizes, if kernel_size is given. */
lm_status lm_check_known_windows(lm_op_id op, const int64_t *kernel_size, int64_t *stride, const int64_t *padding,
                                 const int64_t *dilation);
lm_status lm_check_pooled(lm_op_id op, const int64_t *kernel_size, const int64_t *stride, const int64_t *padding,
                          const int64_t *dilation, bool ceil_mode, int64_t h, int64_t w, int64_t *oh, int64_t *ow);
lm_status lm_check_plane(lm_op_id op, int64_t h, int64_t w);
lm_status lm_check_divisor(lm_op_id op, int64_t divisor);
/* Replaces a size of the pair that is left out by the input's. */
lm_status lm_check_adapted(lm_op_id op, int64_t *output_size, int64_t h, int64_t w);
/* True if max pooling returns its maxima's indices in a plane, or, on a GPU for the gradient alone, their positions in
 * the window, which fit a byte. */
bool lm_pool_needs_indices(const lm_tensor *x, const int64_t *kernel_size, bool return_indices);
bool lm_pool_needs_taps(const lm_tensor *x, const int64_t *kernel_size, bool return_indices);
lm_status lm_check_pool_indices(lm_op_id op, const lm_tensor *indices, const int64_t *kernel_size);
lm_format lm_pooled_format(const lm_tensor *indices);

/* ---- op/nn/blocks.c. kind: of block_kinds.h, by its position */

/* Requires rows of whole blocks: of `bytes` bytes, whose elements it computes, or the reverse. */
lm_status lm_check_blocks(lm_op_id op, int64_t bytes, int kind, int64_t *elements);
lm_status lm_check_elements_of_blocks(lm_op_id op, int64_t elements, int kind, int64_t *bytes);
/* Requires t, whose last size is `size`, to have floats, or blocks of uint8. Computes the elements of a row. */
lm_status lm_check_floats_or_blocks(lm_op_id op, const lm_tensor *t, int64_t size, int kind, int64_t *elements);

/* ---- op/nn/conv.c. x and weight: 4 sizes each */

LM_API lm_status lm_check_conv(lm_op_id op, const int64_t *x, const int64_t *weight, const int64_t *stride,
                               const int64_t *padding, const int64_t *dilation, int64_t groups, int64_t *oh,
                               int64_t *ow);
/* Channels and numbers to whose multiples packed weights are padded. */
enum { LM_INT8_COLUMNS = 32, LM_INT8_STEP = 4 };
/* Requires groups that divide the weight's outputs; computes the bytes of packed weights. */
lm_status lm_check_int8_pack(lm_op_id op, const int64_t *weight, int64_t groups, int64_t *bytes);
static inline bool lm_int8_is_depthwise(const int64_t *weight, int64_t groups) {
  return weight[1] == 1 && weight[0] == groups;
}
lm_format lm_conv_format(const lm_tensor *x);
lm_format lm_weight_format(const lm_tensor *x);
lm_status lm_compute_conv(lm_frame *f, const void *run);

/* ---- op/nn/attention.c */

lm_dtype lm_attention_dtype(const lm_tensor *query);
/* Makes the last dim dense, and rows not overlapping. */
lm_status lm_layout_rows(lm_frame *f, lm_tensor **t);
/* Expands *mask to [N, H, L, S], in query's dtype or bool. */
lm_status lm_layout_mask(lm_frame *f, lm_tensor **mask, const lm_tensor *query, const lm_tensor *key);
lm_status lm_check_heads(lm_op_id op, int64_t heads, int64_t key_heads);
/* Replaces a NaN scale by the default, 1 / sqrt(width). */
lm_status lm_check_scale(lm_op_id op, double *scale, int64_t width);
/* Sets *draw to NULL if p is 0; else requires it. */
lm_status lm_check_draw(lm_op_id op, double p, lm_tensor **draw);
/* Refuses dropout drawn by a library: only attention's own passes know those masks. */
lm_status lm_check_own_draw(lm_op_id op, bool fused);
lm_status lm_check_mask(lm_op_id op, const lm_tensor *mask, const lm_tensor *query);

/* ---- op/nn/norm.c */

/* Sets *channels, which is 0 for an empty 1-d x, which PyTorch accepts too. */
lm_status lm_check_channels(lm_op_id op, const lm_tensor *x, int64_t *channels);
/* Requires more than one value per channel in training, else running statistics. */
lm_status lm_check_statistics(lm_op_id op, const lm_tensor *x, int64_t channels, bool training,
                              const lm_tensor *running_mean, const lm_tensor *running_var);
lm_status lm_check_known_statistics(lm_op_id op, bool training, const lm_tensor *save_mean,
                                    const lm_tensor *save_invstd, const lm_tensor *running_mean,
                                    const lm_tensor *running_var);
/* Return the bytes of a GPU's mask of relu, and true if x needs one. A byte is for the elements that one thread writes,
 * adjacent in memory. */
int64_t lm_relu_mask_bytes(const lm_tensor *x, const lm_tensor *addend);
bool lm_needs_relu_mask(const lm_tensor *x);
lm_status lm_check_relu_mask(lm_op_id op, const lm_tensor *x, const lm_tensor *mask);
lm_status lm_check_groups(lm_op_id op, const lm_tensor *x, int64_t groups);
/* Requires x's last sizes; *rows: the sizes of its statistics, 1 for each normalized dim. */
lm_status lm_check_normalized(lm_op_id op, const lm_tensor *x, const lm_ints *normalized_shape, lm_ints *rows);

/* ---- op/nn/recurrent.c */

/* Checks weight_hh [gates, width] of a cell, such as LM_LSTM; computes the number of hidden units. */
lm_status lm_check_cell(lm_op_id op, int cell, const lm_tensor *weight_hh, bool has_c0, bool has_projection,
                        int64_t *hidden);
/* Checks batch_sizes, or NULL for equal sequences, against the number of rows. */
lm_status lm_check_steps(lm_op_id op, const lm_tensor *sizes, int64_t batch, int64_t rows);
int64_t lm_recurrent_slots(int cell); /* numbers that a step saves per hidden unit */
lm_status lm_compute_recurrent_layer(lm_frame *f, const void *run);

/* ---- op/nn/loss.c. x: [C], [N, C] or [N, C, ...] */

/* Computes the number of classes and the sizes of targets. */
lm_status lm_check_classes(lm_op_id op, int ndim, const int64_t *size, int64_t *classes, lm_ints *target);
/* Computes the sizes of losses after reduction. */
lm_status lm_check_reduced(lm_op_id op, int reduction, const lm_ints *target, lm_ints *shape);
/* Replaces *x by a view [N, C, S], of any strides. */
lm_status lm_layout_classes(lm_frame *f, lm_tensor **x);

/* ---- op/nn/embedding.c */

/* Checks padding_idx: 0 for none, 1 to num, or negative from the end, which becomes positive. */
lm_status lm_check_padding_row(lm_op_id op, int64_t *padding_idx, int64_t num);

/* ---- op/linalg/ */

lm_status lm_check_matrix(lm_op_id op, const char *name, const lm_tensor *x);
/* Checks B [..., n, k], or [..., k, n] without left, against A (or LU) [..., n, n]. */
lm_status lm_check_solves(lm_op_id op, const lm_tensor *A, const lm_tensor *B, bool left);
lm_status lm_check_pivots(lm_op_id op, const lm_tensor *pivots, const lm_tensor *LU);
static inline int64_t lm_pairs(int64_t n) { return n > 1 ? n * (n - 1) / 2 : 0; }
/* Makes *t contiguous, unless its lines and entries are transposed in memory. */
lm_status lm_layout_transposed(lm_frame *f, lm_tensor **t);
lm_status lm_check_samples(lm_op_id op, int64_t samples, int64_t n);
lm_status lm_check_overlap(lm_op_id op, int64_t count, int64_t n, int64_t hop, int64_t length);
