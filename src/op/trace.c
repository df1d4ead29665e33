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

void lm_op_trace_end(lm_span *span, lm_op_id id, const void *args, lm_tensor *const *out, lm_status status) {
  if (span->recording && status == LM_OK && lm_ops[id].flops) span->flops = lm_ops[id].flops(args, out);
  lm_span_end(span);
}
