/* What formulas in op/entries/ops.lua say in one word, beside ops. Tensors belong to e, and are NULL for a NULL g; what
 * asks for numbers needs no e. Sizes and dims are those of the op: dims raw, as its caller gave them. The generator
 * reads the prototypes. */
#pragma once

#include "autograd/autograd.h"

struct lm_expr;
struct lm_before;

/* g times a number, or g itself for 1. */
lm_tensor *lm_f_scaled(struct lm_expr *e, lm_tensor *g, double factor);
/* t in the dtype of `like`. */
lm_tensor *lm_f_in_dtype_of(struct lm_expr *e, lm_tensor *t, const lm_tensor *like);
/* t in float32 if it is of halves. */
lm_tensor *lm_f_widened(struct lm_expr *e, lm_tensor *t);
/* Within an op whose results autocast keeps in float32: t in float32; and a float32 result as it is, else in the dtype
 * of x. */
lm_tensor *lm_f_in_kept_dtype(struct lm_expr *e, lm_tensor *t);
lm_tensor *lm_f_in_result_dtype_of(struct lm_expr *e, lm_tensor *t, const lm_tensor *x);
/* x [C], [N, C] or [N, C, ...] as rows of classes. Whether that takes no copy, and target has a class for each row. */
lm_tensor *lm_f_class_rows(struct lm_expr *e, lm_tensor *x);
bool lm_f_has_class_rows(struct lm_expr *e, const lm_tensor *x, const lm_tensor *target);
/* Zeros of g's dtype and device. */
lm_tensor *lm_f_zeros_of(struct lm_expr *e, lm_tensor *g, lm_ints size);
/* The same without memory: one zero, expanded, for ops that copy it. */
lm_tensor *lm_f_zero_for(struct lm_expr *e, lm_tensor *g, lm_ints size);
/* A reduction's result (or its gradient) broadcast back over `size`. */
lm_tensor *lm_f_expand_to(struct lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size);
/* A reduction's result (or its gradient) with the dims it would have with keepdim. */
lm_tensor *lm_f_kept(struct lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size);
/* How many elements a reduction over dims puts into one. */
double lm_f_count(struct lm_expr *e, lm_ints dims, lm_ints size);
/* max_dim, sort, topk and the like: to where the values came from. */
lm_tensor *lm_f_position_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *index, int64_t dim, bool keepdim,
                              lm_ints size);
/* Entry i of the result is t's entry i - 1 along dim, or with `reverse` i + 1; the one that has none is `edge`. */
lm_tensor *lm_f_shifted(struct lm_expr *e, lm_tensor *t, int64_t dim, bool reverse, double edge);
/* prod's gradient: g times the product of the other elements. */
lm_tensor *lm_f_product_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *y, lm_ints dims, bool keepdim);
/* Of t [..., n] each element's product of all others in its line. */
lm_tensor *lm_f_product_of_others(struct lm_expr *e, lm_tensor *t);
/* The n-th result of the op just called, whose first is t. */
lm_tensor *lm_f_result(struct lm_expr *e, lm_tensor *t, int64_t n);
/* Sums and differences in which an undefined tensor is 0. */
lm_tensor *lm_f_plus(struct lm_expr *e, lm_tensor *a, lm_tensor *b);
lm_tensor *lm_f_minus(struct lm_expr *e, lm_tensor *a, lm_tensor *b);
/* The product of matrices a and b, with dense columns if `transposed`. */
lm_tensor *lm_f_mm_in_layout(struct lm_expr *e, bool transposed, lm_tensor *a, lm_tensor *b);
/* [..., n] -> [rows, n] */
lm_tensor *lm_f_rows(struct lm_expr *e, lm_tensor *g);
lm_tensor *lm_f_cat_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, const lm_ints *sizes, int at,
                         struct lm_before *before);
/* scatter_add's src; where it is larger than index, the rest gets zeros. */
lm_tensor *lm_f_scattered_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, lm_tensor *index, lm_ints size);
/* pad_around's gradient, of an x of that size. */
lm_tensor *lm_f_padded_grad(struct lm_expr *e, lm_tensor *g, lm_ints size, lm_ints pad, int mode);
/* Which bag each entry of index is in; offsets: where each bag begins. All from 1. */
lm_tensor *lm_f_embedding_bag_of(struct lm_expr *e, lm_tensor *offsets, lm_tensor *index);
/* Indices by which x is indexed, whether there are masks among them, and these as indices: an index for each of a
 * mask's dims. Valid until the next call of that on this thread. */
bool lm_f_has_masks(struct lm_expr *e, lm_list indices);
lm_list lm_f_without_masks(struct lm_expr *e, lm_tensor *x, lm_list indices);
/* How many entries index has for each element of x's sizes, beside one of x's own if include_self; of size 1 in dims
 * along which index is expanded. */
lm_tensor *lm_f_scatter_counts(struct lm_expr *e, lm_tensor *x, int64_t dim, lm_tensor *index, bool include_self);
/* Returns true if the first window of max pooling is wholly in the padding; it is the only one along its axis then.
 * Padding that leaves as many windows if it is explicit. The smallest number of x's dtype. */
bool lm_f_has_empty_window(struct lm_expr *e, const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                           const int64_t *padding, const int64_t *dilation, bool ceil_mode);
lm_pads lm_f_window_padding(struct lm_expr *e, const lm_tensor *x, const int64_t *kernel_size, const int64_t *stride,
                            const int64_t *padding, const int64_t *dilation, bool ceil_mode);
double lm_f_lowest(struct lm_expr *e, const lm_tensor *x);
/* g [..., H, W] read at indices [..., h, w], which count through H * W. */
/* Of g, the elements at the indices of max_pool2d_backward. */
lm_tensor *lm_f_pooled_indices(struct lm_expr *e, lm_tensor *g, lm_tensor *indices, const int64_t *kernel_size,
                               const int64_t *stride, const int64_t *padding, const int64_t *dilation);
/* The first `size` entries of each dim of t, where t has as many dims; else t. */
lm_tensor *lm_f_cut_to(struct lm_expr *e, lm_tensor *t, lm_ints size);
lm_tensor *lm_f_unpermuted(struct lm_expr *e, lm_tensor *g, lm_ints dims);
lm_tensor *lm_f_select_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t index, lm_ints size);
lm_tensor *lm_f_slice_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size);
lm_tensor *lm_f_slice_grad_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step,
                                lm_ints size);

/* [n] as dim `dim` (from 0) of ndim: [1, n, 1, 1]. */
lm_tensor *lm_f_along(struct lm_expr *e, lm_tensor *t, int64_t dim, int64_t ndim);
/* A loss for each element, or their mean or sum. */
lm_tensor *lm_f_reduced(struct lm_expr *e, lm_tensor *t, int reduction);
/* conv2d's x and padding for padding = "same": dilation * (kernel - 1) more indices, half of them on either side; an
 * odd one comes last, and x has it already. i: 1 or 2, of H or W. */
lm_tensor *lm_f_padded_to_same(struct lm_expr *e, lm_tensor *x, lm_tensor *weight, const int64_t *dilation);
int64_t lm_f_same_padding(struct lm_expr *e, const lm_tensor *weight, const int64_t *dilation, int64_t i);

/* All gradients of recurrent_layer by ordinary ops, for gradients of them; gy, gh, gc: of its results. */
lm_tensor *lm_f_recurrent_gradients(struct lm_expr *e, lm_tensor *gates, lm_tensor *weight_hh, lm_tensor *h0,
                                    lm_tensor *gy, lm_tensor *gh, lm_tensor *gc, lm_tensor *c0, lm_tensor *bias_hh,
                                    lm_tensor *weight_hr, lm_tensor *batch_sizes, int cell, bool reverse);

/* What g [n] has for recurrent_weights' tensor number `at`: as many numbers as its sizes say, from indices[at] on. */
lm_tensor *lm_f_packed_weight(struct lm_expr *e, lm_tensor *g, lm_tensor *positions, const lm_ints *sizes, int at);

/* ---- attention, of [..., H, L, E]; H is 1 where there is no such dim */

int64_t lm_f_heads_of(struct lm_expr *e, const lm_tensor *t);
/* scale, or 1 / sqrt(E) where it is NaN. */
double lm_f_scale_of(struct lm_expr *e, double scale, const lm_tensor *query);
/* Each head of t `groups` times, one after the other; and the sum of those again. */
lm_tensor *lm_f_repeated_heads(struct lm_expr *e, lm_tensor *t, int64_t groups);
lm_tensor *lm_f_summed_heads(struct lm_expr *e, lm_tensor *t, int64_t groups);
/* Whether it is cuDNN's by its sizes and the settings, in both passes if both are needed: with dropout always, as a
 * checkpoint's first pass, without gradients, draws what its second one draws. */
bool lm_f_attention_is_fused(struct lm_expr *e, const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                             const lm_tensor *mask, bool causal, double dropout_p);
/* Whether the op attention computes this: [N, H, L, E] or [H, L, E], no gradient of the mask; and whether it should: on
 * a GPU only what products would not do faster. */
bool lm_f_attention_is_possible(struct lm_expr *e, const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                                const lm_tensor *mask);
bool lm_f_attention_is_supported(struct lm_expr *e, const lm_tensor *query, const lm_tensor *key,
                                 const lm_tensor *value, const lm_tensor *mask, bool causal, double dropout_p);

/* ---- norms */

/* Whether the op grouped_norm computes this: on the CPU, not empty, and the parameters of x's dtype or beside halves of
 * float32. */
bool lm_f_grouped_norm_is_supported(struct lm_expr *e, const lm_tensor *x, const lm_tensor *weight,
                                    const lm_tensor *bias);
/* Whether the op rms_norm_rows computes this: on the CPU, not empty, and weight of x's dtype. */
bool lm_f_rms_norm_rows_is_supported(struct lm_expr *e, const lm_tensor *x, const lm_tensor *weight);

/* ---- linear algebra (formulas_linalg.c), of matrices in the last two dims */

/* Whether the gradient is recorded, for gradients of it: then it must be made of the op's inputs. */
bool lm_f_recorded(struct lm_expr *e);
/* True on the diagonal of matrices of a's sizes; a matrix with v as its diagonal; the identity of t's sizes. */
lm_tensor *lm_f_is_diagonal(struct lm_expr *e, lm_tensor *a);
lm_tensor *lm_f_diagonal_matrix(struct lm_expr *e, lm_tensor *v);
lm_tensor *lm_f_identity_like(struct lm_expr *e, lm_tensor *t);
/* g [...], what det x or the logarithm of |det x| is weighted by. The gradient of det x is there for every x; of the
 * other, where there is no inverse, that of something near. */
lm_tensor *lm_f_det_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *det, lm_tensor *x, lm_tensor *lu,
                         lm_tensor *pivots);
lm_tensor *lm_f_slogdet_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *lu, lm_tensor *pivots);
/* L [..., m, k] with ones on its diagonal and U [..., k, n] of what holds both. */
lm_tensor *lm_f_lower_of_lu(struct lm_expr *e, lm_tensor *lu);
lm_tensor *lm_f_upper_of_lu(struct lm_expr *e, lm_tensor *lu);
/* q; an error for a mode of linalg_qr that has no gradient. */
lm_tensor *lm_f_reduced_q(struct lm_expr *e, lm_tensor *q, const lm_tensor *r, int mode);

/* ---- numbers, sizes and words; a missing tensor has no dims and is of no dtype */
bool lm_f_given(struct lm_expr *e, const lm_tensor *t);
bool lm_f_defined(struct lm_expr *e, const lm_tensor *t); /* the same of any tensor of a formula */
/* A number of Lua's, not a tensor; its value. */
bool lm_f_is_number(struct lm_expr *e, const lm_tensor *t);
double lm_f_value_of(struct lm_expr *e, lm_tensor *t);
bool lm_f_is_float(struct lm_expr *e, const lm_tensor *t);
bool lm_f_is_half(struct lm_expr *e, const lm_tensor *t); /* float16 or bfloat16 */
bool lm_f_is_bool(struct lm_expr *e, const lm_tensor *t);
double lm_f_shown(struct lm_expr *e, double x); /* x for a message: NaN without the sign that printf would show */
bool lm_f_is_integral(struct lm_expr *e, double x);
/* x, or where t is of integers x cut off to one. */
double lm_f_cut_for(struct lm_expr *e, const lm_tensor *t, double x);
/* From 1 to the next larger number of t's dtype; 0 of integers. */
double lm_f_epsilon_of(struct lm_expr *e, const lm_tensor *t);
bool lm_f_on_cpu(struct lm_expr *e, const lm_tensor *t);
bool lm_f_same_dtype(struct lm_expr *e, const lm_tensor *a, const lm_tensor *b);
const char *lm_f_dtype_of(struct lm_expr *e, const lm_tensor *t);
/* The largest power of ten that the dtype an op on t computes in has. */
int64_t lm_f_largest_power(struct lm_expr *e, const lm_tensor *t);
/* The largest number that t's dtype has; 0 of integers. */
double lm_f_largest(struct lm_expr *e, const lm_tensor *t);
double lm_f_power_of_ten(struct lm_expr *e, double exponent);
int64_t lm_f_ndim_of(struct lm_expr *e, const lm_tensor *t);
int64_t lm_f_numel_of(struct lm_expr *e, const lm_tensor *t);
int64_t lm_f_size_along(struct lm_expr *e, const lm_tensor *t, int64_t dim); /* the last without dim; 0: no such dim */
bool lm_f_same_size(struct lm_expr *e, const lm_tensor *a, const lm_tensor *b);
lm_ints lm_f_size_of(struct lm_expr *e, const lm_tensor *t);
lm_ints lm_f_negated(struct lm_expr *e, lm_ints v);
int64_t lm_f_length_of(struct lm_expr *e, lm_ints v);
const char *lm_f_text_of(struct lm_expr *e, lm_ints v);
/* Whether the last of v's entries are those of `last`. */
bool lm_f_ends_with(struct lm_expr *e, lm_ints v, lm_ints last);
bool lm_f_divides(struct lm_expr *e, int64_t divisor, int64_t n);
/* first, first + 1, ... below last; 0 to n - 1 but one. */
lm_ints lm_f_range(struct lm_expr *e, int64_t first, int64_t last);
lm_ints lm_f_all_but(struct lm_expr *e, int64_t one, int64_t n);
/* The least and the largest of floating t on the CPU; NaN of others, which would must be waited for. */
double lm_f_least_of(struct lm_expr *e, lm_tensor *t);
double lm_f_largest_of(struct lm_expr *e, lm_tensor *t);
