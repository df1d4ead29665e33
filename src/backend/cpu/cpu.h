/* Lists the CPU backend's kernels, which backend.c puts in its table, and declares the functions that they share.
 * op/backend.h has each kernel's contract. */
#pragma once

#include "base/large_array.h"
#include "base/parallel.h"
#include "op/kernels.h"
#include "optim/optim.h"

/* Returns the least number of pieces for work of some microseconds with large pieces. A thread that slept, or whose
 * core runs another program, comes late; then the others take its pieces. */
static inline int lm_cpu_pieces(int threads) { return threads > 1 ? 4 * threads : 1; }

extern const lm_driver lm_cpu_driver; /* driver.c */

lm_status lm_cpu_pointwise(const lm_pointwise *job);
lm_status lm_cpu_copy(const lm_tensor *src, lm_tensor *dst);
/* Copies like lm_cpu_copy, for one dtype and a dst that is not empty, if dst has contiguous rows of few elements.
 * Otherwise returns false, with nothing copied. */
bool lm_cpu_copy_short_rows(const lm_tensor *src, lm_tensor *dst);
lm_status lm_cpu_optim(const lm_optim_step *step);
lm_status lm_cpu_norms(int n, lm_tensor *const *tensors, double p, lm_tensor *out);
lm_status lm_cpu_rescale(int n, lm_tensor *const *from, lm_tensor *const *to, double factor, lm_tensor *found);

/* clang-format off */
#define LM_CPU_KERNELS(X)                                                                                             \
  /* reduce.c, argmax.c, softmax.c */                                                                                 \
  X(reduce) X(extreme_along) X(softmax_along)                                                                         \
  /* matmul/matmul.c, conv/conv.c */                                                                                  \
  X(product) X(mm_with_sums) X(addmm_gelu) X(mm_gelu_backward) X(linear_with_epilogue) X(conv2d) X(conv2d_with_epilogue) X(conv2d_input) X(conv2d_weight)                                          \
  /* index/, cat.c, sort.c, pad.c */                                                                                      \
  X(cat) X(gather) X(scatter_along) X(index_select) X(index_add) X(index_get) X(index_put_) X(nonzero) X(masked_values) X(topk)         \
  X(kth_along) X(searchsorted) X(pad_around) X(embedding_bag_sums)                                                          \
  /* scan.c, index/, tril_triu.c */                                                                                   \
  X(scan)                                       \
  X(one_hot) X(embedding) X(embedding_backward) X(triangle)                                                                       \
  /* gather_weighted.c, grid_sample.c, boxes.c, ctc.c, pooling.c, norm.c, loss.c */                                                                                   \
  X(gather_weighted) X(gather_weighted_input) X(gather_weighted_weight) X(grid_sample) X(grid_sample_input)                 \
  X(grid_sample_grid) X(roi_pool) X(nms_sorted) X(ctc_nll) X(ctc_nll_backward)                                        \
  X(adaptive_max_pool2d) X(max_pool2d) X(max_pool2d_backward) X(avg_pool2d) X(avg_pool2d_backward)                    \
  X(relu_avg_pool2d) X(relu_avg_pool2d_backward) X(adaptive_avg_pool2d)                    \
  X(adaptive_avg_pool2d_backward) X(batch_normalize) X(batch_normalize_backward)                            \
  X(grouped_norm) X(grouped_norm_backward) X(row_norm) X(row_norm_backward) \
  X(nll_loss) X(nll_loss_backward) X(cross_entropy_rows) X(cross_entropy_rows_backward)                   \
  /* linalg/ */                                                                                                                    \
  X(inverse) X(det) X(slogdet) X(linalg_lu_factor) X(linalg_lu_solve) X(linalg_solve) X(lu_pivots_to_matrix)          \
  X(cholesky) X(linalg_solve_triangular) X(linalg_qr) X(orgqr) X(linalg_eigh) X(linalg_eigvalsh) X(linalg_svd)                 \
  X(linalg_svdvals) X(linalg_pinv) X(linalg_lstsq) X(row_distances) X(row_distances_backward) \
  X(pair_distances) X(pairs_to_matrix) X(matrix_to_pairs)                                                 \
  /* fft/fft.c */                                                                                                     \
  X(fft_c2c) X(fft_r2c) X(fft_r2c_2d) X(fft_c2r) X(stft_lines) X(overlap_add) X(fft_multiply)                                                        \
  /* attention.c */                                                                                                  \
  X(attention) X(attention_backward)                                                                                  \
  /* paged_attention.c */                                                                                             \
  X(paged_attention)                                                                                                  \
  /* int8_conv.c */                                                                                                   \
  X(int8_pack) X(int8_conv) X(int8_quantize) X(int8_dequantize) X(int8_add)                                           \
  /* blocks.c, block_quantize.c */                                                                                   \
  X(block_linear) X(block_linear_input) X(block_rows) X(expand_blocks) X(quantize_blocks)                             \
  /* int8_linear.c */                                                                                                \
  X(int8_linear)                                                                                                      \
  /* recurrent.c */                                                                                                  \
  X(recurrent_layer) X(recurrent_layer_backward)                                                                      \
  /* fill.c */                                                                                                        \
  X(dropout) X(attention_draw) X(dropout_by_draw) X(fill_) X(fill_random) X(randperm) X(arange)          \
  X(linspace) X(cosine_window)                                                                                        \
  /* sample.c */                                                                                                      \
  X(poisson) X(binomial) X(multinomial)
/* clang-format on */

#define X(name)            \
  struct lm_##name##_args; \
  lm_status lm_cpu_##name(const struct lm_##name##_args *a, lm_tensor *const *out);
LM_CPU_KERNELS(X)
#undef X
