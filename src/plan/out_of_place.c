/* Makes elementwise steps that write in place to memory which steps made steps with results of their own: these can be
 * in rows, and take that memory (overwrite.c). */
#include "plan/passes.h"

static bool is_contiguous(const lm_place *p) {
  int64_t step = 1;
  for (int d = p->ndim - 1; d >= 0; step *= p->size[d--])
    if (p->stride[d] != step || p->size[d] < 1) return false;
  return true;
}

/* Returns true if a step's result, out of place, would be as its first tensor: of all inputs' dtype and sizes. */
static bool keeps_place(const lm_segment *g, const lm_segment_step *s) {
  const lm_place *to = &g->value[s->in[0]].place;
  if (s->widens || lm_ops[s->op].result_dtype != LM_RESULT_DTYPE_SAME || lm_ops[s->op].masks ||
      !lm_dtype_is_float(to->dtype) || !is_contiguous(to))
    return false;
  for (int k = 1; k < s->nin; k++) {
    if (s->in[k] < 0 || g->value[s->in[k]].number) return false;
    const lm_place *p = &g->value[s->in[k]].place;
    if (p->dtype != to->dtype || p->device != to->device || p->ndim != to->ndim ||
        memcmp(p->size, to->size, p->ndim * sizeof *p->size) != 0)
      return false;
  }
  return true;
}

static bool is_set_before(const lm_segment *g, int buffer) {
  for (int i = 0; i < g->nleaves; i++)
    if (lm_buffer_of(g, g->leaf[i].before) == buffer) return true;
  return false;
}

static bool can_change(const lm_segment *g, const lm_segment_step *s) {
  if (s->op < 0 || lm_ops[s->op].kind != LM_POINTWISE || s->form != LM_RUN_IN_PLACE || s->out[0] != s->in[0])
    return false;
  const lm_segment_value *v = &g->value[s->in[0]];
  const lm_segment_buffer *b = &g->buffer[v->buffer];
  const int64_t bytes = (int64_t)lm_dtype_size(v->place.dtype) * lm_place_numel(&v->place);
  return b->origin == LM_FROM_STEP && (size_t)bytes == b->bytes && keeps_place(g, s) &&
         !lm_buffer_has_instance(g, v->buffer) && !is_set_before(g, v->buffer);
}

/* Returns in *value the value of buffer `to` at the place of *value, which is of buffer `from`; else leaves it. */
static lm_status rename(lm_segment *g, int from, int to, int *value) {
  if (lm_buffer_of(g, *value) != from) return LM_OK;
  return lm_segment_place(g, to, &g->value[*value].place, value);
}

static lm_status change(lm_segment *g, int i) {
  const int from = g->value[g->step[i].in[0]].buffer;
  const lm_segment_buffer *b = &g->buffer[from];
  const lm_segment_buffer new = {.origin = LM_FROM_STEP,
                                 .first = -1,
                                 .last_use = -1,
                                 .bytes = b->bytes,
                                 .device = b->device,
                                 .writes_replaced = b->writes_replaced + 1};
  if (!LM_APPEND(g->buffer, g->nbuffers, g->buffer_capacity, new)) return LM_E_OOM;
  const int to = g->nbuffers - 1;
  g->step[i].form = LM_RUN_ALL;
  NEED(rename(g, from, to, &g->step[i].out[0]));
  for (int j = i + 1; j < g->nsteps; j++) {
    for (int k = 0; k < g->step[j].nin; k++) NEED(rename(g, from, to, &g->step[j].in[k]));
    for (int k = 0; k < g->step[j].nout; k++) NEED(rename(g, from, to, &g->step[j].out[k]));
  }
  for (int k = 0; k < g->nleaves; k++) NEED(rename(g, from, to, &g->leaf[k].after));
  return LM_OK;
}

lm_status lm_segment_out_of_place(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++)
    if (can_change(g, &g->step[i])) NEED(change(g, i));
  return LM_OK;
}
