/* Attention of [N, H, L, E]: checks, what kernels compute in, layouts; and the random numbers of its dropout. */
#include "op/nn/attention.h"

#include "backend/known/setting.h"
#include "base/message.h"
#include "op/input_layout.h"

/* t as kernels want it, a new reference: in the dtype `compute`, its last dim dense, rows apart unless it is a mask. */
static lm_status readied(lm_tensor *t, lm_dtype compute, bool mask, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *same = NULL;
  TRY(lm_at_least_1d(t, compute, &same));
  int last = same->ndim - 1;
  bool gaps = same->size[last] > 1 && same->stride[last] != 1;
  bool overlap = !mask && last > 0 && same->size[last - 1] > 1 && same->stride[last - 1] < same->size[last];
  if (gaps || overlap) {
    TRY(lm_to_layout(same, LM_CONTIGUOUS, out));
  } else {
    *out = lm_retain(same);
  }
done:
  lm_release(same);
  return status;
}

/* What halves are summed in; on the CPU, what they are computed from as well. */
static lm_dtype sum_dtype(const lm_tensor *query) { return query->dtype == LM_F64 ? LM_F64 : LM_F32; }
static lm_dtype compute_dtype(const lm_tensor *query) {
  return LM_DEVICE_KIND(query->device) == LM_CPU ? sum_dtype(query) : query->dtype;
}

static lm_status check(lm_op_id op, const lm_tensor *query, const lm_tensor *key, const lm_tensor *value,
                       const lm_tensor *mask) {
  lm_status status = LM_OK;
  const lm_tensor *all[] = {query, key, value};
  const char *name[] = {"query", "key", "value"};
  for (int k = 0; k < 3; k++) {
    TRY(lm_check_ndim(op, name[k], all[k], 4));
    TRY(lm_check_float(op, name[k], all[k]));
    if (all[k]->dtype != query->dtype) {
      TRY(lm_fail_dtypes(lm_ops[op].name, "query", lm_dtype_name(query->dtype), name[k], lm_dtype_name(all[k]->dtype)));
    }
  }
  TRY(lm_check_same_device(op, 3, (lm_tensor *[]){(lm_tensor *)query, (lm_tensor *)key, (lm_tensor *)value}));
  bool fits = query->size[0] == key->size[0] && key->size[0] == value->size[0] && key->size[1] == value->size[1] &&
              key->size[2] == value->size[2] && query->size[3] == key->size[3] &&
              (key->size[1] == 0 ? query->size[1] == 0 : query->size[1] % key->size[1] == 0);
  if (!fits) {
    TRY(lm_fail(LM_E_SHAPE,
                "%s: expected query, key and value to have shapes [N, H, L, E], [N, H, S, E] and [N, H, S, Ev], got "
                "%s, %s and %s",
                lm_ops[op].name, lm_shape_of(query), lm_shape_of(key), lm_shape_of(value)));
  }
  if (mask && mask->dtype != LM_BOOL && mask->dtype != query->dtype) {
    TRY(lm_fail_dtype(lm_ops[op].name, "attn_mask", lm_text("bool, or %s as query", lm_dtype_name(query->dtype)),
                      lm_dtype_name(mask->dtype)));
  }
  if (mask) TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)query, (lm_tensor *)mask}));
done:
  return status;
}

/* What a tensor of attention_draw's is checked for; *out is as kernels want it, a new reference. */
static lm_status ready_draw(lm_op_id op, lm_tensor *draw, const lm_tensor *like, lm_tensor **out) {
  lm_status status = LM_OK;
  if (draw->dtype != LM_I64 || draw->ndim != 1 || draw->size[0] != 2) {
    TRY(lm_remedy(lm_fail_value(lm_ops[op].name, "draw", "int64 [2]",
                                lm_text("%s %s", lm_dtype_name(draw->dtype), lm_shape_of(draw))),
                  "attention_draw returns it"));
  }
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){(lm_tensor *)like, draw}));
  TRY(lm_to_layout(draw, LM_CONTIGUOUS, out));
done:
  return status;
}

static lm_status check_probability(lm_op_id op, const char *name, double p) {
  if (p >= 0 && p <= 1) return LM_OK;
  return lm_fail_number(lm_ops[op].name, name, "from 0 to 1", p);
}

/* *out stays NULL where nothing is dropped. */
static lm_status ready_dropout(lm_op_id op, double p, lm_tensor *draw, const lm_tensor *like, lm_tensor **out) {
  lm_status status = check_probability(op, "dropout_p", p);
  if (status != LM_OK || p == 0) return status;
  if (draw) return ready_draw(op, draw, like, out);
  return lm_remedy(lm_fail_value(lm_ops[op].name, "draw", lm_text("a tensor for dropout_p = %g", p), "nil"),
                   "attention_draw(query, key) returns it");
}

/* The mask expanded to [N, H, L, S]. */
static lm_status expanded(lm_op_id op, lm_tensor *mask, const lm_tensor *query, const lm_tensor *key, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *own = NULL;
  int64_t size[4] = {query->size[0], query->size[1], query->size[2], key->size[2]}, stride[4];
  if (!mask) return LM_OK;
  TRY(readied(mask, mask->dtype == LM_BOOL ? LM_BOOL : compute_dtype(query), true, &own));
  for (int d = 3, from = own->ndim - 1; d >= 0; d--, from--) {
    bool there = from >= 0, alike = there && own->size[from] == size[d];
    if (own->ndim > 4 || (there && !alike && own->size[from] != 1)) {
      TRY(lm_fail_broadcast(lm_ops[op].name, "attn_mask", lm_shape_of(mask), lm_shape_text(4, size)));
    }
    stride[d] = alike && size[d] > 1 ? own->stride[from] : 0;
  }
  TRY(lm_tensor_view(own, 4, size, stride, 0, out));
done:
  lm_release(own);
  return status;
}

/* Uninitialized, laid out as t if it has t's sizes and no gaps, else contiguous. */
static lm_status like_or_dense(const lm_tensor *t, const int64_t *size, lm_tensor **out) {
  bool same = true;
  for (int d = 0; d < 4; d++) same = same && t->size[d] == size[d];
  return same ? lm_tensor_empty_like(t, t->dtype, t->device, out)
              : lm_tensor_empty(t->dtype, t->device, 4, size, LM_CONTIGUOUS, out);
}

static double scale_of(double scale, const lm_tensor *query) {
  return scale == scale ? scale : query->size[3] > 0 ? 1 / sqrt((double)query->size[3]) : 1;
}

lm_status lm_op_attention(const lm_attention_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_attention;
  lm_status status = LM_OK;
  lm_tensor *query = NULL, *key = NULL, *value = NULL, *mask = NULL, *draw = NULL, *y = NULL, *log_sum = NULL;
  TRY(check(op, a->query, a->key, a->value, a->attn_mask));
  TRY(ready_dropout(op, a->dropout_p, a->draw, a->query, &draw));
  lm_dtype compute = compute_dtype(a->query);
  TRY(readied(a->query, compute, false, &query));
  TRY(readied(a->key, compute, false, &key));
  TRY(readied(a->value, compute, false, &value));
  TRY(expanded(op, a->attn_mask, query, key, &mask));
  int64_t size[4] = {query->size[0], query->size[1], query->size[2], value->size[3]};
  TRY(like_or_dense(query, size, &y));
  TRY(lm_tensor_empty(sum_dtype(query), query->device, 3, size, LM_CONTIGUOUS, &log_sum));
  if (y->numel > 0 || log_sum->numel > 0) {
    lm_attention_args job = {query, key, value, mask, a->is_causal, scale_of(a->scale, query), a->dropout_p, draw};
    TRY(lm_dispatch_or_host(op, query->device, &job, (lm_tensor *[]){y, log_sum}));
  }
  TRY(lm_at_least_1d(y, a->query->dtype, &out[0]));
  out[1] = lm_retain(log_sum);
done:
  lm_release(query);
  lm_release(key);
  lm_release(value);
  lm_release(mask);
  lm_release(draw);
  lm_release(y);
  lm_release(log_sum);
  return status;
}

lm_status lm_op_attention_backward(const lm_attention_backward_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_attention_backward;
  lm_status status = LM_OK;
  lm_tensor *in[5] = {NULL}, *mask = NULL, *draw = NULL, *log_sum = NULL, *result[3] = {NULL};
  lm_tensor *const given[5] = {a->query, a->key, a->value, a->grad, a->out};
  TRY(check(op, a->query, a->key, a->value, a->attn_mask));
  TRY(ready_dropout(op, a->dropout_p, a->draw, a->query, &draw));
  int64_t size[4] = {a->query->size[0], a->query->size[1], a->query->size[2], a->value->size[3]};
  for (int k = 3; k < 5; k++) {
    bool fits = given[k]->ndim == 4;
    for (int d = 0; fits && d < 4; d++) fits = given[k]->size[d] == size[d];
    if (!fits || !lm_dtype_is_float(given[k]->dtype)) {
      TRY(lm_fail_value(lm_ops[op].name, k == 3 ? "grad" : "out", "floating point and of the result's shape",
                        lm_text("%s %s", lm_dtype_name(given[k]->dtype), lm_shape_of(given[k]))));
    }
  }
  if (a->log_sum->ndim != 3 || a->log_sum->numel != size[0] * size[1] * size[2]) {
    TRY(lm_fail_shape(lm_ops[op].name, "log_sum",
                      lm_text("[%lld, %lld, %lld]", (long long)size[0], (long long)size[1], (long long)size[2]),
                      lm_shape_of(a->log_sum)));
  }
  TRY(lm_check_same_device(op, 4, (lm_tensor *[]){a->query, a->grad, a->out, a->log_sum}));
  lm_dtype compute = compute_dtype(a->query);
  for (int k = 0; k < 5; k++) TRY(readied(given[k], compute, false, &in[k]));
  TRY(lm_at_least_1d(a->log_sum, sum_dtype(a->query), &log_sum));
  if (!lm_is_contiguous(log_sum)) {
    lm_tensor *dense;
    TRY(lm_to_layout(log_sum, LM_CONTIGUOUS, &dense));
    lm_release(log_sum);
    log_sum = dense;
  }
  TRY(expanded(op, a->attn_mask, in[0], in[1], &mask));
  for (int k = 0; k < 3; k++) TRY(like_or_dense(in[k], in[k]->size, &result[k]));
  lm_attention_backward_args job = {
      in[3], in[0], in[1], in[2], in[4], log_sum, mask, a->is_causal, scale_of(a->scale, in[0]), a->dropout_p, draw};
  TRY(lm_dispatch_or_host(op, in[0]->device, &job, result));
  for (int k = 0; k < 3; k++) TRY(lm_at_least_1d(result[k], a->query->dtype, &out[k]));
done:
  for (int k = 0; k < 5; k++) lm_release(in[k]);
  for (int k = 0; k < 3; k++) lm_release(result[k]);
  lm_release(mask);
  lm_release(draw);
  lm_release(log_sum);
  return status;
}

/* What the library's engines take, and nothing of what they compute wrongly: on compute capability 9.0 the backward
 * pass (up to cuDNN 9.30) lets keys behind the last one count where 64 are left of a tile of 128 and no causal mask
 * hides them; of one query, and of one key, its results are not those of attention; above 128 numbers it came later
 * than the forward pass; grids end at 65535. For few queries a plan, which is made for each length, is not worth it. */
bool lm_attention_fuses(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value, const lm_tensor *mask,
                        bool causal, double dropout_p, bool backward) {
  enum { PACK = 8, WIDEST = 256, WIDEST_BACK = 128, FEWEST = 32, TILE = 128, MAX_HEAD = 65535 };
  bool half = query->dtype == LM_F16 || query->dtype == LM_BF16;
  if (!half || mask || dropout_p != 0 || !lm_setting_get(LM_SETTING_CUDNN_ENABLED)) return false;
  if (backward && lm_setting_get(LM_SETTING_CUDNN_DETERMINISTIC)) return false;
  const int d = query->ndim - 2;
  int64_t queries = query->size[d], keys = key->size[d], width = query->size[d + 1], values = value->size[d + 1];
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

lm_status lm_op_attention_draw(const lm_attention_draw_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_attention_draw;
  lm_status status = LM_OK;
  lm_tensor *draw = NULL;
  const lm_tensor *query = a->query, *key = a->key;
  TRY(lm_check_same_device(op, 2, (lm_tensor *[]){a->query, a->key}));
  if (query->ndim < 2 || key->ndim < 2) {
    TRY(lm_fail(LM_E_SHAPE, "%s: expected query and key to have shapes [..., L, E] and [..., S, E], got %s and %s",
                lm_ops[op].name, lm_shape_of(query), lm_shape_of(key)));
  }
  TRY(lm_tensor_empty(LM_I64, query->device, 1, (int64_t[]){2}, LM_CONTIGUOUS, &draw));
  TRY(lm_dispatch(op, query->device, a, &draw));
  *out = lm_retain(draw);
done:
  lm_release(draw);
  return status;
}

lm_status lm_op_dropout_by_draw(const lm_dropout_by_draw_args *a, lm_tensor **out) {
  const lm_op_id op = LM_OP_dropout_by_draw;
  lm_status status = LM_OK;
  lm_tensor *x = NULL, *draw = NULL, *y = NULL;
  TRY(lm_check_float(op, "x", a->x));
  TRY(check_probability(op, "p", a->p));
  TRY(ready_draw(op, a->draw, a->x, &draw));
  TRY(lm_to_layout(a->x, LM_CONTIGUOUS, &x));
  TRY(lm_tensor_empty_like(x, x->dtype, x->device, &y));
  TRY(lm_dispatch_or_host(op, x->device, &(lm_dropout_by_draw_args){x, a->p, draw}, &y));
  *out = lm_retain(y);
done:
  lm_release(x);
  lm_release(draw);
  lm_release(y);
  return status;
}
