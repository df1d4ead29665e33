/* What gradients in op/ops.lua say in one word. All give NULL for a NULL g, and belong to e. Sizes and dims
 * are those of the differentiated op: dims raw, as its caller gave them. */
#ifndef LM_AUTOGRAD_FORMULAS_H
#define LM_AUTOGRAD_FORMULAS_H

#include "autograd/autograd.h"

struct lm_expr;
struct lm_before;

/* g times a number, or g itself for 1. */
lm_tensor *lm_f_scaled(struct lm_expr *e, lm_tensor *g, double factor);
/* Zeros of g's dtype and device. */
lm_tensor *lm_f_zeros_of(struct lm_expr *e, lm_tensor *g, lm_ints size);
/* A reduction's result (or its gradient) broadcast back over `size`. */
lm_tensor *lm_f_spread(struct lm_expr *e, lm_tensor *g, lm_ints dims, bool keepdim, lm_ints size);
/* How many elements a reduction over dims puts into one. */
double lm_f_count(struct lm_expr *e, lm_ints dims, lm_ints size);
lm_tensor *lm_f_var_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_ints dims, int64_t correction, bool keepdim);
lm_tensor *lm_f_norm_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *y, double p, lm_ints dims,
                          bool keepdim);
/* amax, amin: ties share. */
lm_tensor *lm_f_extreme_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *x, lm_tensor *y, lm_ints dims, bool keepdim);
/* max_dim, min_dim, topk: to where the values came from. */
lm_tensor *lm_f_place_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *index, int64_t dim, bool keepdim, lm_ints size);
/* [..., n] -> [rows, n] */
lm_tensor *lm_f_rows(struct lm_expr *e, lm_tensor *g);
lm_tensor *lm_f_cat_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, const lm_ints *sizes, int at,
                         struct lm_before *before);
/* scatter_add's src; where it is larger than index, the rest gets zeros. */
lm_tensor *lm_f_scattered_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, lm_tensor *index, lm_ints size);
lm_tensor *lm_f_index_put_grad(struct lm_expr *e, lm_tensor *g, lm_list indices, bool accumulate);
lm_tensor *lm_f_embedding_grad_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *index, int64_t padding);
/* [N, C, H, W] or [C, H, W] -> [C] */
lm_tensor *lm_f_channel_sum(struct lm_expr *e, lm_tensor *g);
/* g [..., H, W] read at places [..., h, w], which count through H * W. */
lm_tensor *lm_f_pooled_places(struct lm_expr *e, lm_tensor *g, lm_tensor *places);
lm_tensor *lm_f_adaptive_pooled(struct lm_expr *e, lm_tensor *g, lm_ints size);
lm_tensor *lm_f_dropout_grad(struct lm_expr *e, lm_tensor *g, lm_tensor *mask, double p, bool training);
lm_tensor *lm_f_unpermuted(struct lm_expr *e, lm_tensor *g, lm_ints dims);
lm_tensor *lm_f_select_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t index, lm_ints size);
lm_tensor *lm_f_slice_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step, lm_ints size);
lm_tensor *lm_f_slice_grad_grad(struct lm_expr *e, lm_tensor *g, int64_t dim, int64_t first, int64_t step,
                                lm_ints size);

#define scaled(...) lm_f_scaled(e_, __VA_ARGS__)
#define zeros_of(...) lm_f_zeros_of(e_, __VA_ARGS__)
#define spread(...) lm_f_spread(e_, __VA_ARGS__)
#define count(...) lm_f_count(e_, __VA_ARGS__)
#define var_grad(...) lm_f_var_grad(e_, __VA_ARGS__)
#define norm_grad(...) lm_f_norm_grad(e_, __VA_ARGS__)
#define extreme_grad(...) lm_f_extreme_grad(e_, __VA_ARGS__)
#define place_grad(...) lm_f_place_grad(e_, __VA_ARGS__)
#define rows(...) lm_f_rows(e_, __VA_ARGS__)
#define cat_grad(...) lm_f_cat_grad(e_, __VA_ARGS__)
#define scattered_grad(...) lm_f_scattered_grad(e_, __VA_ARGS__)
#define index_put_grad(...) lm_f_index_put_grad(e_, __VA_ARGS__)
#define embedding_grad_grad(...) lm_f_embedding_grad_grad(e_, __VA_ARGS__)
#define channel_sum(...) lm_f_channel_sum(e_, __VA_ARGS__)
#define pooled_places(...) lm_f_pooled_places(e_, __VA_ARGS__)
#define adaptive_pooled(...) lm_f_adaptive_pooled(e_, __VA_ARGS__)
#define dropout_grad(...) lm_f_dropout_grad(e_, __VA_ARGS__)
#define unpermuted(...) lm_f_unpermuted(e_, __VA_ARGS__)
#define select_grad(...) lm_f_select_grad(e_, __VA_ARGS__)
#define slice_grad(...) lm_f_slice_grad(e_, __VA_ARGS__)
#define slice_grad_grad(...) lm_f_slice_grad_grad(e_, __VA_ARGS__)

#endif
