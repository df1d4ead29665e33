/* Finds steps on the CPU whose results can take the memory of a value that they, or their row, are the last to read.
 * Their kernels read each element, or each row of a cross entropy's scores, before they write it. */
#include "plan/passes.h"

static int row_begin(const lm_segment *g, int i) {
  while (i > 0 && (g->step[i].joins || lm_step_is_view(&g->step[i]))) i--;
  return i;
}

/* Returns true if the result of step i is needed after its row, which ends before `end`; others are in no memory. */
static bool is_stored(const lm_segment *g, int i, int end) {
  const lm_segment_buffer *b = &g->buffer[g->value[g->step[i].out[0]].buffer];
  return b->is_result || b->last_use >= end;
}

/* Returns true if steps of a row read memory other than element by element, or make it and leave it in the caches. */
static bool row_needs(const lm_segment *g, int begin, int i, int value) {
  const int buffer = g->value[value].buffer;
  for (int j = begin; j <= i; j++) {
    const lm_segment_step *s = &g->step[j];
    if (lm_step_is_view(s)) continue;
    const bool is_elementwise = lm_step_is_elementwise(s);
    for (int k = 0; k < s->nin; k++)
      if (lm_buffer_of(g, s->in[k]) == buffer && (!is_elementwise || s->in[k] != value)) return true;
    if (is_elementwise && lm_step_changes(g, s, buffer)) return true;
  }
  return false;
}

/* Returns true if the result of step i can take the memory of a value, which steps from `begin` on read last. */
static bool can_take(const lm_segment *g, int begin, int i, int value) {
  if (value < 0 || g->value[value].number) return false;
  const lm_segment_value *from = &g->value[value], *to = &g->value[g->step[i].out[0]];
  const lm_segment_buffer *b = &g->buffer[from->buffer];
  const bool is_in_row = b->made >= begin && b->made <= i && lm_step_is_elementwise(&g->step[b->made]);
  return b->origin == LM_FROM_STEP && !b->is_taken && !is_in_row && b->last_use >= begin && b->last_use <= i &&
         LM_DEVICE_KIND(b->device) == LM_CPU && from->place.at == 0 && lm_place_equals(&from->place, &to->place) &&
         b->bytes == g->buffer[to->buffer].bytes;
}

static void take_memory(lm_segment *g, int i, int value) {
  lm_segment_buffer *b = &g->buffer[g->value[value].buffer];
  g->step[i].overwrites = value;
  b->is_taken = true;
  b->last_use = i;
}

static void find_taken(lm_segment *g, int i) {
  const int begin = row_begin(g, i);
  for (int j = i; j >= begin; j--) {
    const lm_segment_step *s = &g->step[j];
    for (int k = 0; k < s->nin && lm_step_is_elementwise(s); k++)
      if (can_take(g, begin, i, s->in[k]) && !row_needs(g, begin, i, s->in[k])) {
        take_memory(g, i, s->in[k]);
        return;
      }
  }
}

void lm_segment_overwrite(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) g->buffer[b].is_taken = false;
  for (int i = 0; i < g->nleaves; i++)
    if (g->leaf[i].after >= 0) g->buffer[g->value[g->leaf[i].after].buffer].is_result = true;
  for (int i = g->nsteps - 1, end = g->nsteps; i >= 0; i--) {
    lm_segment_step *s = &g->step[i];
    s->overwrites = -1;
    if (s->op == LM_OP_cross_entropy_rows_backward && can_take(g, i, i, s->in[1])) take_memory(g, i, s->in[1]);
    if (lm_step_is_elementwise(s) && s->out[0] >= 0 && is_stored(g, i, end)) find_taken(g, i);
    if (!s->joins && !lm_step_is_view(s)) end = i;
  }
}
