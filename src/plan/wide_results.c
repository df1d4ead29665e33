/* Makes a product, reduction or elementwise op of halves write float32, where its result is only read to be converted
 * to what the script sees, as gradients of weights under autocast are. The conversion goes, and values are not rounded
 * to half in between, by which they differ from those of eager ops. Other conversions are left to groups, which read
 * half of the bytes. Devices but the CPU, whose steps keep the bits of eager ops. */
#include "plan/passes.h"

/* Returns true for a step of halves that would write float32 if lm_halves_widen were true. */
static bool can_widen(const lm_segment *g, const lm_segment_step *s) {
  if (s->op < 0 || s->form == LM_RUN_IN_PLACE || s->widens || s->nout != 1 || s->out[0] < 0) return false;
  const lm_op *op = &lm_ops[s->op];
  const bool adds = op->slot == LM_OP_product && s->nin > 2 && s->in[2] >= 0; /* a bias, or input */
  const lm_place *p = &g->value[s->out[0]].place;
  return (op->kind == LM_POINTWISE || op->slot == LM_OP_reduce || op->slot == LM_OP_product) && !adds &&
         lm_dtype_is_half(p->dtype) && LM_DEVICE_KIND(p->device) != LM_CPU &&
         g->buffer[g->value[s->out[0]].buffer].origin == LM_FROM_STEP;
}

static bool converts(const lm_segment *g, const lm_segment_step *s, int from) {
  if (s->op != LM_OP_to_copy || s->in[0] != from || s->out[0] < 0) return false;
  lm_place as_float = g->value[from].place;
  as_float.dtype = LM_F32;
  return lm_place_equals(&as_float, &g->value[s->out[0]].place) && as_float.at == 0;
}

void lm_segment_widen_results(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) {
    lm_segment_step *s = &g->step[i];
    if (!can_widen(g, s)) continue;
    const int buffer = g->value[s->out[0]].buffer, reader = lm_segment_reader(g, i, buffer);
    if (reader < 0 || lm_buffer_is_visible(g, buffer) || !converts(g, &g->step[reader], s->out[0]) ||
        !lm_buffer_is_visible(g, g->value[g->step[reader].out[0]].buffer) || lm_segment_part_end(g, i) <= reader)
      continue;
    s->out[0] = g->step[reader].out[0];
    s->widens = true;
    lm_segment_remove_step(g, reader);
  }
}
