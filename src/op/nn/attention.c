/* Prepares attention of [N, H, L, E]: checks, dtype of the computation, layouts, random numbers of its dropout. */
#include "op/nn/attention.h"

#include "backend/known/setting.h"
#include "base/message.h"
#include "op/operand_checks.h"

/* Returns the dtype attention computes in: query's, except that the CPU computes halves in float32. */
lm_dtype lm_attention_dtype(const lm_tensor *query) {
  return LM_DEVICE_KIND(query->device) == LM_CPU ? lm_stat_dtype(query) : query->dtype;
}

bool lm_attention_is_packed(const lm_tensor *t) {
  const int64_t pack = 16 / (int64_t)lm_dtype_size(t->dtype);
  bool packed = (uintptr_t)t->data % 16 == 0 && t->size[3] % pack == 0 && (t->stride[3] == 1 || t->size[3] == 1);
  for (int d = 0; d < 3; d++) packed = packed && (t->size[d] <= 1 || t->stride[d] % pack == 0);
  return packed;
}

lm_status lm_layout_rows(lm_frame *f, lm_tensor **t) {
  const lm_tensor *x = *t;
  const int last = x->ndim - 1;
  bool gaps = x->size[last] > 1 && x->stride[last] != 1;
  bool overlap = x->size[last - 1] > 1 && x->stride[last - 1] < x->size[last];
  if (gaps || overlap) return lm_frame_layout(f, t, LM_CONTIGUOUS);
  /* Copies rows that are only misaligned: cuDNN would accept them in one pass and not in the other. */
  bool good = lm_attention_is_packed(x);
  for (int d = 0; d < last; d++) good = good && (x->size[d] == 1 || x->stride[d] > 0);
  if (good || LM_DEVICE_KIND(x->device) == LM_CPU || lm_dtype_size(x->dtype) != 2 || x->size[last] % 8 != 0 ||
      x->numel == 0)
    return LM_OK;
  lm_tensor *own = NULL;
  NEED(lm_tensor_empty(x->dtype, x->device, x->ndim, x->size, LM_CONTIGUOUS, &own));
  *t = lm_frame_hold(f, own);
  return lm_copy(x, own);
}

lm_status lm_check_heads(lm_op_id op, int64_t heads, int64_t key_heads) {
  if (key_heads == 0 ? heads == 0 : heads % key_heads == 0) return LM_OK;
  return lm_fail_divisible(lm_ops[op].name, "heads of query", heads, "heads of key", key_heads);
}

lm_status lm_check_scale(lm_op_id op, double *scale, int64_t width) {
  (void)op;
  if (isnan(*scale)) *scale = width > 0 ? 1 / sqrt((double)width) : 1;
  return LM_OK;
}

lm_status lm_check_draw(lm_op_id op, double p, lm_tensor **draw) {
  if (p == 0) *draw = NULL;
  if (p == 0 || *draw) return LM_OK;
  return lm_remedy(lm_fail_value(lm_ops[op].name, "draw", lm_text("a tensor for dropout_p = %g", p), "nil"),
                   "attention_draw(query, key) returns it");
}

lm_status lm_check_own_draw(lm_op_id op, bool fused) {
  (void)op;
  if (!fused) return LM_OK;
  return lm_remedy(lm_fail(LM_E_MISSING, "attention: gradients of gradients are not available with cuDNN's dropout"),
                   "set lm.backends.cudnn.enabled = false");
}

lm_status lm_check_mask(lm_op_id op, const lm_tensor *mask, const lm_tensor *query) {
  if (!mask || mask->dtype == LM_BOOL || mask->dtype == query->dtype) return LM_OK;
  return lm_fail_dtype(lm_ops[op].name, "attn_mask", lm_text("bool, or %s as query", lm_dtype_name(query->dtype)),
                       lm_dtype_name(mask->dtype));
}

lm_status lm_layout_mask(lm_frame *f, lm_tensor **mask, const lm_tensor *query, const lm_tensor *key) {
  lm_tensor *expanded = NULL;
  const int64_t size[4] = {query->size[0], query->size[1], query->size[2], key->size[2]};
  int64_t stride[4];
  if (!*mask) return LM_OK;
  if ((*mask)->dtype != LM_BOOL) NEED(lm_frame_convert(f, mask, lm_attention_dtype(query)));
  const int ndim = (*mask)->ndim;
  if (ndim == 0) NEED(lm_frame_reshape(f, mask, 1, (int64_t[]){1}));
  if (ndim > 0 && (*mask)->size[ndim - 1] > 1 && (*mask)->stride[ndim - 1] != 1)
    NEED(lm_frame_layout(f, mask, LM_CONTIGUOUS));
  const lm_tensor *own = *mask;
  for (int d = 3, from = own->ndim - 1; d >= 0; d--, from--) {
    bool there = from >= 0, alike = there && own->size[from] == size[d];
    if (own->ndim > 4 || (there && !alike && own->size[from] != 1)) {
      return lm_fail_broadcast(lm_ops[f->op].name, "attn_mask", lm_shape_of(own), lm_shape_text(4, size));
    }
    stride[d] = alike && size[d] > 1 ? own->stride[from] : 0;
  }
  NEED(lm_tensor_view(*mask, 4, size, stride, 0, &expanded));
  *mask = lm_frame_hold(f, expanded);
  return LM_OK;
}

/* Excludes what cuDNN's engines compute wrongly or refuse. On compute capability 9.0, the backward pass (up to cuDNN
 * 9.30) counts keys beyond the last one if 64 remain of a tile of 128 and no causal mask hides them. Results for one
 * query or one key are wrong; widths above 128 came later than in the forward pass; grids end at 65535. For few
 * queries, a plan per length does not pay. */
bool lm_attention_fuses(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value, const lm_tensor *mask,
                        bool causal, double dropout_p, bool backward) {
  enum { PACK = 8, WIDEST = 256, WIDEST_BACK = 128, FEWEST = 32, TILE = 128, MAX_HEAD = 65535 };
  bool half = lm_dtype_is_half(query->dtype);
  if (!half || dropout_p >= 1 || !lm_setting_get(LM_SETTING_CUDNN_ENABLED)) return false;
  if (backward && lm_setting_get(LM_SETTING_CUDNN_DETERMINISTIC)) return false;
  const int d = query->ndim - 2;
  int64_t queries = query->size[d], keys = key->size[d], width = query->size[d + 1], values = value->size[d + 1];
  if (mask && (causal || mask->ndim < 1 || mask->size[mask->ndim - 1] != keys || keys % PACK != 0)) return false;
  int64_t widest = width > values ? width : values, samples = d > 1 ? query->size[0] : 1;
  bool good = queries >= FEWEST && keys > 1 && width > 0 && values > 0 && width % PACK == 0 && values % PACK == 0 &&
              query->numel > 0 && key->numel > 0 && samples <= MAX_HEAD && query->size[d - 1] <= MAX_HEAD;
  bool tail_counts = keys % TILE == TILE / 2 && !(causal && queries <= keys);
  return good && (backward ? widest <= WIDEST_BACK && !tail_counts : widest <= WIDEST);
}

lm_draw lm_attention_take(const lm_tensor *query, const lm_tensor *key) {
  uint64_t count = (uint64_t)key->size[key->ndim - 2];
  for (int d = 0; d < query->ndim - 1; d++) count *= (uint64_t)query->size[d];
  return lm_generator_take(NULL, query->device, (count + 3) / 4);
}
