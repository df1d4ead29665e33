/* Moves conversions on a GPU that do not depend on each other to one another, so that one launch computes them: those
 * of weights, which autocast makes where each is first used, to the first of them, and those whose results nothing
 * reads, as gradients, to the last. */
#include "op/kernels.h"
#include "op_entries.h"
#include "plan/segment.h"

enum { NO_CAST, EARLY, LATE };

/* Returns true for a conversion between floating dtypes that keeps the layout. */
static bool converts(const lm_segment *g, const lm_segment_step *s) {
  if (s->op != LM_OP_to_copy || s->widens || s->in[0] < 0 || s->out[0] < 0 || g->value[s->in[0]].number) return false;
  lm_place from = g->value[s->in[0]].place;
  const lm_place *to = &g->value[s->out[0]].place;
  const bool are_floats = lm_dtype_is_float(from.dtype) && lm_dtype_is_float(to->dtype);
  from.dtype = to->dtype;
  from.at = to->at;
  return are_floats && lm_place_equals(&from, to) && to->at == 0 && LM_DEVICE_KIND(to->device) != LM_CPU &&
         lm_backend_of(to->device)->rescale;
}

static int find_cast(const lm_segment *g, int i) {
  if (!converts(g, &g->step[i])) return NO_CAST;
  const lm_segment_buffer *from = &g->buffer[g->value[g->step[i].in[0]].buffer];
  if (from->is_written) return NO_CAST;
  if (from->origin == LM_FROM_EVENT) return EARLY;
  return g->buffer[g->value[g->step[i].out[0]].buffer].last_use == i ? LATE : NO_CAST;
}

static void move_step(lm_segment *g, int i, int to) {
  const lm_segment_step s = g->step[i];
  const int up = i > to;
  if (up)
    memmove(&g->step[to + 1], &g->step[to], (size_t)(i - to) * sizeof s);
  else
    memmove(&g->step[i], &g->step[i + 1], (size_t)(to - i) * sizeof s);
  g->step[to] = s;
  for (int e = 0; e < g->nevents; e++) {
    int *n = &g->event[e].nsteps;
    if (*n > (up ? to : i) && *n <= (up ? i : to)) *n += up ? 1 : -1;
  }
}

static void gather_early(lm_segment *g) {
  for (int i = 0, first = -1, n = 0; i < g->nsteps; i++) {
    if (g->step[i].cast != EARLY) continue;
    if (first < 0 || !lm_segment_runs_at_once(g, first, i))
      first = i, n = 0;
    else
      move_step(g, i, first + n);
    n++;
  }
}

static void gather_late(lm_segment *g) {
  for (int i = g->nsteps - 1, last = -1, n = 0; i >= 0; i--) {
    if (g->step[i].cast != LATE) continue;
    if (last < 0 || !lm_segment_runs_at_once(g, i, last))
      last = i, n = 0;
    else
      move_step(g, i, last - n);
    n++;
  }
}

void lm_segment_gather_casts(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) g->step[i].cast = (uint8_t)find_cast(g, i);
  gather_early(g);
  gather_late(g);
  for (int i = 0, n; i < g->nsteps; i += n) {
    const int cast = g->step[i].cast;
    for (n = 1; cast != NO_CAST && i + n < g->nsteps && g->step[i + n].cast == cast; n++)
      if (!lm_segment_runs_at_once(g, i, i + n)) break;
    g->step[i].ncasts = n;
  }
}
