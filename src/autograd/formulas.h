/* Declares the functions that formulas in op/entries/ops.lua call besides ops. Tensors belong to e, and are NULL for a
 * NULL g. Sizes and dims are the op's own; dims are raw, as the caller passed them. The code generator reads these
 * prototypes. */
#pragma once

#include "autograd/autograd.h"

struct lm_expr;
struct lm_before;

/* Returns g times a number; g itself for 1. */
lm_tensor *lm_f_scaled(struct lm_expr *e, lm_tensor *g, double factor);
/* Returns t in the dtype of `like`. */
lm_tensor *lm_f_in_dtype_of(struct lm_expr *e, lm_tensor *t, const lm_tensor *like);
/* Returns t in float32 if it is float16 or bfloat16, else t. */
lm_tensor *lm_f_widened(struct lm_expr *e, lm_tensor *t);
/* Convert tensors of an op whose results autocast keeps in float32 (LM_KEEP_RESULT): under it a half-precision input t
 * to float32; outside of it a result t to x's dtype. Else return t. */
lm_tensor *lm_f_in_kept_dtype(struct lm_expr *e, lm_tensor *t);
lm_tensor *lm_f_in_result_dtype_of(struct lm_expr *e, lm_tensor *t, const lm_tensor *x);
/* Returns x [C], [N, C] or [N, C, ...] as rows [rows, C]. The second returns true if that needs no copy, and target has
 * one integer per row. */
lm_tensor *lm_f_class_rows(struct lm_expr *e, lm_tensor *x);
bool lm_f_has_class_rows(const lm_tensor *x, const lm_tensor *target);
/* Returns zeros of g's dtype and device. */
lm_tensor *lm_f_zeros_of(struct lm_expr *e, lm_tensor *g, lm_ints size);
/* Returns zeros of g's dtype and device as one expanded zero, without memory, for ops that copy it. */
lm_tensor *lm_f_zero_for(struct lm_expr *e, lm_tensor *g, lm_ints size);
/* Returns a reduction's result (or its gradient) broadcast back over `size`. */
lm_tensor *lm_f_expand_to(struct lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size);
/* Returns a reduction's result (or its gradient) with the dims it would have with keepdim. */
lm_tensor *lm_f_with_reduced_dims(struct lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size);
/* Returns the number of elements that a reduction over dims reduces to one. */
double lm_f_count(lm_ints dims, lm_ints size);
/* Scatters g to the positions that max_dim, sort, topk and others took their values from. */
lm_tensor *lm_f_position_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *index, int64_t dim, bool keepdim,
                              lm_ints size);
/* Shifts t: entry i of the result is t's entry i - 1 along dim, or i + 1 with `reverse`; the missing one is `edge`. */
lm_tensor *lm_f_shifted(struct lm_expr *e, lm_tensor *t, int64_t dim, bool reverse, double edge);
/* Returns prod's gradient: g times the product of the other elements. */
lm_tensor *lm_f_product_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *y, lm_ints dims, bool keepdim);
/* Returns, for each element of t [..., n], the product of all others in its row. */
lm_tensor *lm_f_product_of_others(struct lm_expr *e, lm_tensor *t);
/* Returns the n-th result, from 1, of the op just called, whose first result is t. */
lm_tensor *lm_f_result(struct lm_expr *e, lm_tensor *t, int64_t n);
/* Return the sum and the difference, with an undefined tensor as 0. */
lm_tensor *lm_f_plus(struct lm_expr *e, lm_tensor *a, lm_tensor *b);
lm_tensor *lm_f_minus(struct lm_expr *e, lm_tensor *a, lm_tensor *b);
/* Returns the product of matrices a and b, with dense columns if `transposed`. */
lm_tensor *lm_f_mm_in_layout(struct lm_expr *e, bool transposed, lm_tensor *a, lm_tensor *b);
/* Reshapes [..., n] to [rows, n]. */
lm_tensor *lm_f_rows(struct lm_expr *e, lm_tensor *g);
lm_tensor *lm_f_cat_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, const lm_ints *sizes, int at,
                         struct lm_before *before);
/* Returns the gradient of scatter_add's src, of sizes `size`; zero where src is larger than index. */
lm_tensor *lm_f_scattered_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, lm_tensor *index, lm_ints size);
/* Returns pad_around's gradient; size: x's sizes. */
lm_tensor *lm_f_padded_grad(struct lm_expr *e, lm_tensor *g, lm_ints size, lm_ints pad, int mode);
/* Returns the bag of each entry of index; offsets: the first entry of each bag. All count from 1. */
lm_tensor *lm_f_embedding_bag_of(struct lm_expr *e, lm_tensor *offsets, lm_tensor *index);
/* Returns true if a mask is among the indices. The second returns them with each mask replaced by one index per dim of
 * the mask; its list is valid until the next call on this thread. */
bool lm_f_has_masks(lm_list indices);
lm_list lm_f_without_masks(struct lm_expr *e, lm_tensor *x, lm_list indices);
/* Returns the number of index entries for each element of x, plus 1 if include_self, and at least 1. The result has
 * size 1 in dims along which index is expanded. */
lm_tensor *lm_f_scatter_counts(struct lm_expr *e, lm_tensor *x, int64_t dim, lm_tensor *index, bool include_self);
/* Returns true if max pooling's first window covers only padding; it is then the only window of its axis. The second
 * returns explicit padding with the same number of windows; the last the least value of x's dtype (-inf for floats). */
bool lm_f_has_empty_window(const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                           const int64_t *padding, const int64_t *dilation, bool ceil_mode);
lm_pads lm_f_window_padding(struct lm_expr *e, const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                            const int64_t *padding, const int64_t *dilation, bool ceil_mode);
double lm_f_lowest(const lm_tensor *x);
/* Gathers from g [..., H, W] the elements at max pooling's indices [..., h, w] (double backward of max_pool2d). */
lm_tensor *lm_f_pooled_indices(struct lm_expr *e, lm_tensor *g, lm_tensor *indices, const int64_t *kernel_size,
                               const int64_t *stride, const int64_t *padding, const int64_t *dilation);
/* Returns the first `size` entries of each dim of t if the numbers of dims match; else t. */
lm_tensor *lm_f_cut_to(struct lm_expr *e, lm_tensor *t, lm_ints size);
lm_tensor *lm_f_unpermuted(struct lm_expr *e, lm_tensor *g, lm_ints dims);
lm_tensor *lm_f_select_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t index, lm_ints size);
lm_tensor *lm_f_slice_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size);
lm_tensor *lm_f_slice_grad_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step,
                                lm_ints size);

/* Reshapes [n] to dim `dim` (from 0) of ndim dims: [1, n, 1, 1]. */
lm_tensor *lm_f_along(struct lm_expr *e, lm_tensor *t, int64_t dim, int64_t ndim);
/* Reduces a loss per element to its mean or sum, or returns it. */
lm_tensor *lm_f_reduced(struct lm_expr *e, lm_tensor *t, int reduction);
/* Return conv2d's x and padding for padding = "same": dilation * (kernel - 1) more entries, half of them on either
 * side. An odd one comes last, and is added to x. i: 1 for H, 2 for W. */
lm_tensor *lm_f_padded_to_same(struct lm_expr *e, lm_tensor *x, lm_tensor *weight, const int64_t *dilation);
int64_t lm_f_same_padding(const lm_tensor *weight, const int64_t *dilation, int64_t i);

/* Returns all gradients of recurrent_layer by ordinary, recordable ops; gy, gh, gc: gradients of its results. */
lm_tensor *lm_f_recurrent_gradients(struct lm_expr *e, lm_tensor *gates, lm_tensor *weight_hh, lm_tensor *h0,
                                    lm_tensor *gy, lm_tensor *gh, lm_tensor *gc, lm_tensor *c0, lm_tensor *bias_hh,
                                    lm_tensor *weight_hr, lm_tensor *batch_sizes, int cell, bool reverse);

/* Returns recurrent_weights' tensor `at` out of g [n]: its elements begin at positions[at], from 0. */
lm_tensor *lm_f_packed_weight(struct lm_expr *e, lm_tensor *g, lm_tensor *positions, const lm_ints *sizes, int at);

/* ---- attention on [..., H, L, E]; H is 1 for 2-d tensors */

int64_t lm_f_heads_of(const lm_tensor *t);
/* Returns scale, or 1 / sqrt(E) if it is NaN. */
double lm_f_scale_of(double scale, const lm_tensor *query);
/* Repeats each head of t `groups` times in a row; the second sums such heads again. */
lm_tensor *lm_f_repeated_heads(struct lm_expr *e, lm_tensor *t, int64_t groups);
lm_tensor *lm_f_summed_heads(struct lm_expr *e, lm_tensor *t, int64_t groups);
/* Returns true if cuDNN supports the sizes and settings in every pass needed. Dropout always needs both: a checkpoint's
 * first pass, without gradients, must draw the same numbers as its second. */
bool lm_f_attention_is_fused(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                             const lm_tensor *mask, bool causal, double dropout_p);
/* Returns true if the op attention accepts these: [N, H, L, E] or [H, L, E], no gradient of the mask. The second also
 * requires, on a GPU, that the op is faster than products and softmax. */
bool lm_f_attention_is_possible(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                                const lm_tensor *mask);
bool lm_f_attention_is_supported(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                                 const lm_tensor *mask, bool causal, double dropout_p);

/* ---- norms */

/* Returns true if the op grouped_norm accepts these: on the CPU, not empty, parameters of x's dtype, or float32 for a
 * half x. */
bool lm_f_grouped_norm_is_supported(const lm_tensor *x, const lm_tensor *weight, const lm_tensor *bias);
/* Returns true if the op rms_norm_rows accepts these: on the CPU, not empty, weight of x's dtype. */
bool lm_f_rms_norm_rows_is_supported(const lm_tensor *x, const lm_tensor *weight);

/* ---- linear algebra on matrices in the last two dims (formulas_linalg.c) */

/* Returns true if the gradient is recorded for a double backward; it must be computed from the op's inputs then. */
bool lm_f_recorded(void);
/* Return a bool tensor, true on the diagonal, of a's sizes; a matrix with diagonal v; the identity of t's sizes. */
lm_tensor *lm_f_is_diagonal(struct lm_expr *e, lm_tensor *a);
lm_tensor *lm_f_diagonal_matrix(struct lm_expr *e, lm_tensor *v);
lm_tensor *lm_f_identity_like(struct lm_expr *e, lm_tensor *t);
/* Return the gradients of det x and log |det x| for g [...]. The first is exact for every x; the second, for a singular
 * x, is that of a nearby matrix. */
lm_tensor *lm_f_det_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *det, lm_tensor *x, lm_tensor *lu,
                         lm_tensor *pivots);
lm_tensor *lm_f_slogdet_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots);
/* Return L [..., m, k] with ones on its diagonal, and U [..., k, n], from the packed factors lu. */
lm_tensor *lm_f_lower_of_lu(struct lm_expr *e, lm_tensor *lu);
lm_tensor *lm_f_upper_of_lu(struct lm_expr *e, lm_tensor *lu);
/* Returns q; fails for a mode of linalg_qr that has no gradient. */
lm_tensor *lm_f_reduced_q(struct lm_expr *e, lm_tensor *q, const lm_tensor *r, int mode);

/* ---- numbers, sizes and names; a NULL tensor has no dims and no dtype */
bool lm_f_given(const lm_tensor *t);
bool lm_f_defined(const lm_tensor *t); /* true if t, any tensor of a formula, is not NULL */
/* Returns true if t is a Lua number, not a tensor; the second returns the value of a one-element tensor. */
bool lm_f_is_number(const lm_tensor *t);
double lm_f_value_of(lm_tensor *t);
bool lm_f_is_float(const lm_tensor *t);
bool lm_f_is_half(const lm_tensor *t); /* float16 or bfloat16 */
bool lm_f_is_bool(const lm_tensor *t);
double lm_f_shown(double x); /* x for a message: NaN without the sign that printf would print */
bool lm_f_is_integral(double x);
/* Returns x, truncated to an integer if t's dtype is not floating point. */
double lm_f_cut_for(const lm_tensor *t, double x);
/* Returns the epsilon of the dtype that ops on t compute in (float32 for halves); 0 for integers. */
double lm_f_epsilon_of(const lm_tensor *t);
bool lm_f_on_cpu(const lm_tensor *t);
bool lm_f_same_dtype(const lm_tensor *a, const lm_tensor *b);
const char *lm_f_dtype_of(const lm_tensor *t);
/* Returns the largest exponent of ten in the dtype that an op on t computes in. */
int64_t lm_f_largest_power(const lm_tensor *t);
/* Returns the largest number of t's dtype; 0 for integers. */
double lm_f_largest(const lm_tensor *t);
double lm_f_power_of_ten(double exponent);
int64_t lm_f_ndim_of(const lm_tensor *t);
int64_t lm_f_numel_of(const lm_tensor *t);
int64_t lm_f_size_along(const lm_tensor *t, int64_t dim); /* LM_NO_DIM: the last; 0 if no such dim */
bool lm_f_same_size(const lm_tensor *a, const lm_tensor *b);
lm_ints lm_f_size_of(const lm_tensor *t);
lm_ints lm_f_negated(lm_ints v);
int64_t lm_f_length_of(lm_ints v);
const char *lm_f_text_of(lm_ints v);
/* Returns true if v ends with the entries of `last`. */
bool lm_f_ends_with(lm_ints v, lm_ints last);
bool lm_f_divides(int64_t divisor, int64_t n);
/* Return first, first + 1, ... below last, and 0 to n - 1 except `one`. */
lm_ints lm_f_range(int64_t first, int64_t last);
lm_ints lm_f_all_but(int64_t one, int64_t n);
/* Return the least and the largest element of a floating-point t on the CPU; NaN for others, as a GPU would block. */
double lm_f_least_of(lm_tensor *t);
double lm_f_largest_of(lm_tensor *t);
