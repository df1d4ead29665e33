/* Moves elementwise steps up to a step whose values they read, so that rows are longer, and each value is read while it
 * is in the caches. A step passes only steps that change nothing of what it reads. */
#include "plan/passes.h"

enum { FAR = 64 }; /* steps that one may pass */

static bool shares_values(const lm_segment *g, const lm_segment_step *s, const lm_segment_step *before) {
  for (int k = 0; k < s->nin; k++) {
    const int buffer = lm_buffer_of(g, s->in[k]);
    if (buffer < 0) continue;
    if (lm_step_changes(g, before, buffer)) return true;
    if (lm_step_is_elementwise(before) && lm_step_reads(g, before, buffer)) return true;
  }
  return false;
}

/* Returns true if a step can be computed with the one before it. */
static bool goes_with(const lm_segment *g, const lm_segment_step *s, const lm_segment_step *before) {
  if (!lm_step_is_elementwise(before) && !lm_step_is_product(before)) return false;
  return before->out[0] >= 0 && shares_values(g, s, before) &&
         lm_place_numel(&g->value[s->out[0]].place) == lm_place_numel(&g->value[before->out[0]].place);
}

static bool depends_on(const lm_segment *g, const lm_segment_step *s, const lm_segment_step *before) {
  for (int k = 0; k < s->nin; k++) {
    const int buffer = lm_buffer_of(g, s->in[k]);
    if (buffer >= 0 && lm_step_changes(g, before, buffer)) return true;
  }
  return false;
}

static bool may_move(const lm_segment *g, const lm_segment_step *s) {
  return lm_step_is_elementwise(s) && s->out[0] >= 0 && !lm_step_may_fail(g, s);
}

/* Returns the index to which step i can move, within the part from `begin` on; i: it stays. */
static int index_for(const lm_segment *g, int i, int begin) {
  const lm_segment_step *s = &g->step[i];
  for (int q = i - 1, last = i; q >= begin && q >= i - FAR; last = q--) {
    const lm_segment_step *before = &g->step[q];
    if (lm_step_is_view(before)) continue;
    if (goes_with(g, s, before)) return last < i ? q + 1 : i;
    if (depends_on(g, s, before)) break;
  }
  return i;
}

void lm_segment_order(lm_segment *g) {
  for (int begin = 0, end; begin < g->nsteps; begin = end) {
    bool has_moved = false;
    end = lm_segment_part_end(g, begin);
    for (int i = begin; i < end; i++) {
      const int to = may_move(g, &g->step[i]) ? index_for(g, i, begin) : i;
      if (to == i) continue;
      const lm_segment_step s = g->step[i];
      memmove(&g->step[to + 1], &g->step[to], (size_t)(i - to) * sizeof s);
      g->step[to] = s;
      has_moved = true;
    }
    for (int e = 0; has_moved && e < g->nevents; e++)
      if (g->event[e].nsteps > begin && g->event[e].nsteps < end) g->event[e].nsteps = begin;
  }
}
