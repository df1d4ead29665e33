#include "op/trace.h"

#include <stdio.h>

#include "base/interned.h"
#include "base/message.h"

/* Writes the op's tensors to text, such as " float32 [2, 3], number". */
static void describe_tensors(const lm_op *op, const void *args, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = 0;
  for (int i = 0; i < op->ntensor && used < bytes; i++) {
    const lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[i]);
    const char *comma = i ? "," : "";
    int n = t == NULL   ? snprintf(text + used, bytes - used, "%s nil", comma)
            : t->number ? snprintf(text + used, bytes - used, "%s number", comma)
                        : snprintf(text + used, bytes - used, "%s %s%s%s %s", comma, lm_dtype_name(t->dtype),
                                   t->device ? " " : "", t->device ? lm_device_name(t->device) : "", lm_shape_of(t));
    used += n > 0 ? (size_t)n : 0;
  }
  if (op->list >= 0 && used < bytes) {
    const lm_list *list = (const lm_list *)((const char *)args + op->list);
    snprintf(text + used, bytes - used, " {%d tensors}", list->n);
  }
}

static lm_device prefer_streams(lm_device found, lm_device other) {
  return other != LM_NO_DEVICE && (found == LM_NO_DEVICE || LM_DEVICE_KIND(found) == LM_CPU) ? other : found;
}

/* Returns the device whose stream does the work: the GPU for a copy between it and the CPU, and for an op that creates
 * a tensor there. */
static lm_device device_of(const lm_op *op, const void *args) {
  lm_device found = LM_NO_DEVICE;
  for (int i = 0; i < op->ntensor; i++) {
    const lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[i]);
    if (t && !t->number) found = prefer_streams(found, t->device);
  }
  const lm_list *list = op->list >= 0 ? (const lm_list *)((const char *)args + op->list) : NULL;
  if (list && list->n > 0 && list->v[0]) found = prefer_streams(found, list->v[0]->device);
  const bool creates = found == LM_NO_DEVICE;
  for (int i = 0; i < op->nargs; i++) {
    if (op->arg[i].kind != LM_ARG_DEVICE) continue;
    lm_device asked = *(const lm_device *)((const char *)args + op->arg[i].offset);
    found = prefer_streams(found, asked == LM_NO_DEVICE && creates ? lm_default_device() : asked);
  }
  return found;
}

void lm_op_trace_begin(lm_span *span, lm_op_id id, const void *args, const char *suffix) {
  const lm_op *op = &lm_ops[id];
  const bool composite = op->kind == LM_COMP, logged = !composite && lm_log_on(LM_LOG_OP);
  const char *name = *suffix ? lm_interned(lm_text("%s%s", op->name, suffix)) : op->name, *shapes = NULL;
  char text[512];
  if (logged || lm_traces(LM_TRACE_SHAPES)) describe_tensors(op, args, text, sizeof text);
  if (logged) lm_log(LM_LOG_OP, "%s%s%s", op->name, suffix, text);
  if (lm_traces(LM_TRACE_SHAPES)) shapes = lm_interned(text[0] == ' ' ? text + 1 : text);
  lm_span_begin(span, LM_SPAN_OP, name ? name : op->name, composite ? LM_NO_DEVICE : device_of(op, args));
  span->shapes = shapes;
}

void lm_op_trace_end(lm_span *span, lm_op_id id, const void *args, lm_status status) {
  if (span->recording && status == LM_OK) span->flops = lm_op_flops(id, args);
  lm_span_end(span);
}

/* ---- floating-point operations */

/* Returns the operations of x [..., n, k] times other, [k, m] or, if transposed, [m, k] in its last dims. */
static double of_product(const lm_tensor *x, const lm_tensor *other, bool transposed) {
  if (other->ndim < 2) return 2.0 * (double)x->numel;
  return 2.0 * (double)x->numel * (double)other->size[other->ndim - (transposed ? 2 : 1)];
}

/* Returns the operations of a convolution with result sizes y and `weights` weights in all. */
static double of_conv(const int64_t *y, int ndim, int64_t weights) {
  double n = 2.0 * (double)weights;
  for (int d = 0; d < ndim; d++) n *= d == ndim - 3 ? 1 : (double)y[d];
  return n;
}

/* Returns attention's operations: of_e products of 2 L S E and of_v of 2 L S V, summed over batches and heads. */
static double of_attention(const lm_tensor *query, const lm_tensor *key, const lm_tensor *value, double of_e,
                           double of_v) {
  double rows = (double)query->numel / (double)(query->size[query->ndim - 1] ? query->size[query->ndim - 1] : 1);
  double each = 2.0 * rows * (double)key->size[key->ndim - 2];
  return each *
         (of_e * (double)query->size[query->ndim - 1] + (value ? of_v * (double)value->size[value->ndim - 1] : 0));
}

double lm_op_flops(lm_op_id id, const void *args) {
  switch (id) {
    case LM_OP_mm: return of_product(((const lm_mm_args *)args)->x, ((const lm_mm_args *)args)->other, false);
    case LM_OP_bmm: return of_product(((const lm_bmm_args *)args)->x, ((const lm_bmm_args *)args)->other, false);
    case LM_OP_addmm: return of_product(((const lm_addmm_args *)args)->x, ((const lm_addmm_args *)args)->other, false);
    case LM_OP_linear:
      return of_product(((const lm_linear_args *)args)->x, ((const lm_linear_args *)args)->weight, true);
    case LM_OP_int8_linear:
      return of_product(((const lm_int8_linear_args *)args)->x, ((const lm_int8_linear_args *)args)->weight, true);
    case LM_OP_conv2d: {
      const lm_conv2d_args *a = args;
      double n = 2.0 * (double)a->weight->numel;
      for (int k = 0; k < 2; k++) {
        int64_t size = a->x->size[a->x->ndim - 2 + k], reach = a->dilation[k] * (a->weight->size[2 + k] - 1);
        n *= (double)(a->padding[k] == LM_PAD_SAME ? size : (size + 2 * a->padding[k] - reach - 1) / a->stride[k] + 1);
      }
      return a->x->ndim == 4 ? n * (double)a->x->size[0] : n;
    }
    case LM_OP_conv2d_input: {
      const lm_conv2d_input_args *a = args;
      return of_conv(a->grad->size, a->grad->ndim, a->weight->numel);
    }
    case LM_OP_conv2d_weight: {
      const lm_conv2d_weight_args *a = args;
      return of_conv(a->grad->size, a->grad->ndim, lm_sizes_product(&a->size));
    }
    case LM_OP_attention: {
      const lm_attention_args *a = args;
      return of_attention(a->query, a->key, a->value, 1, 1);
    }
    case LM_OP_attention_weights: {
      const lm_attention_weights_args *a = args;
      return of_attention(a->query, a->key, NULL, 1, 0);
    }
    case LM_OP_attention_backward: { /* of_e: scores again, dQ, dK; of_v: dP, dV */
      const lm_attention_backward_args *a = args;
      return of_attention(a->query, a->key, a->value, 3, 2);
    }
    default: return 0;
  }
}
