/* Finds rows: elementwise steps one after the other, and a product before them whose result the first one reads. */
#include "plan/passes.h"

static bool is_on_cpu(const lm_segment *g, const lm_segment_step *s) {
  return s->out[0] >= 0 && LM_DEVICE_KIND(g->value[s->out[0]].place.device) == LM_CPU;
}

void lm_segment_find_rows(lm_segment *g) {
  lm_segment_step *before = NULL;
  for (int i = 0; i < g->nsteps; i++) {
    lm_segment_step *s = &g->step[i];
    s->is_chained = s->joins = false;
    if (lm_step_is_view(s)) continue;
    const bool is_next = before && lm_step_is_elementwise(s) && is_on_cpu(g, s) && is_on_cpu(g, before) &&
                         (lm_step_is_elementwise(before) ||
                          (lm_step_is_product(before) && lm_step_reads(g, s, lm_buffer_of(g, before->out[0]))));
    if (is_next) before->is_chained = s->is_chained = s->joins = true;
    before = s;
  }
}
