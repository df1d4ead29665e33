/* Finds what values decide of a step: a shape, whether it fails. */
#include "op/kernels.h"
#include "op_entries.h"
#include "plan/segment.h"

bool lm_step_shape_depends(lm_op_id id, const void *args) {
  const lm_op *op = &lm_ops[id];
  const lm_list *list = op->list >= 0 ? (const lm_list *)((const char *)args + op->list) : NULL;
  for (int i = 0; list && i < list->n && op->values == LM_VALUES_MASK; i++)
    if (list->v[i] && list->v[i]->dtype == LM_BOOL) return true;
  return op->values == LM_VALUES_SHAPE;
}

bool lm_step_may_fail(const lm_segment *g, const lm_segment_step *s) {
  if (s->op < 0) return false;
  const lm_op *op = &lm_ops[s->op];
  if (op->values == LM_VALUES_FAIL) return true;
  if (op->kind == LM_VIEW || (op->kind == LM_POINTWISE && !op->divisor_arg)) return false;
  const bool has_kernel = op->kind == LM_POINTWISE || lm_backend_of(g->device)->op[op->slot];
  if (LM_DEVICE_KIND(g->device) != LM_CPU && has_kernel) return false; /* which reports later, whoever calls it */
  for (int k = 0; k < s->nin; k++) {
    const bool counts = k < op->ntensor && op->writes >> k & 1; /* batches, for example */
    const lm_segment_value *v = s->in[k] >= 0 && !counts ? &g->value[s->in[k]] : NULL;
    if (v && !v->number && !lm_dtype_is_float(v->place.dtype) && v->place.dtype != LM_BOOL) return true;
  }
  return false;
}

/* Returns true if the indices or labels that a step reads are known by now, and in range. */
static bool is_in_range(const lm_segment *g, const lm_segment_step *s) {
  const lm_op *op = &lm_ops[s->op];
  if (!op->index) return false;
  const lm_segment_value *v = &g->value[s->in[op->index - 1]], *of = &g->value[s->in[op->index_of]];
  const lm_segment_buffer *b = &g->buffer[v->buffer];
  if (!lm_place_is_contiguous(&v->place) || b->origin != LM_FROM_EVENT || LM_DEVICE_KIND(b->device) != LM_CPU ||
      b->is_written || !b->storage || v->place.dtype != LM_I64 || of->place.ndim <= op->index_dim)
    return false;
  const int64_t *x = (const int64_t *)((const char *)b->storage->data + v->place.at + b->shift);
  const int64_t numel = lm_place_numel(&v->place);
  const bool is_loss = s->op == LM_OP_cross_entropy_rows;
  const int64_t ignored = is_loss ? ((const lm_cross_entropy_rows_args *)s->args)->ignore_index : 1;
  for (int64_t k = 0; k < numel; k++)
    if ((x[k] < 1 || x[k] > of->place.size[op->index_dim]) && x[k] != ignored) return false;
  return true;
}

bool lm_event_can_fail(const lm_segment *g, int event) {
  for (int i = g->event[event].nsteps; i < lm_segment_steps_after(g, event); i++)
    if (lm_step_may_fail(g, &g->step[i]) && !is_in_range(g, &g->step[i])) return true;
  return false;
}
