/* Writes a segment's steps as text, a line for each. */
#include <stdio.h>

#include "base/bytes.h"
#include "op/pointwise.h"
#include "plan/segment.h"

static void put_value(lm_bytes *out, const lm_segment *g, int v) {
  char text[128 + LM_MAX_DIMS * 24] = "nil";
  const lm_segment_value *value = v >= 0 ? &g->value[v] : NULL;
  double number = 0;
  if (value && value->number) {
    lm_tensor_item_f64(value->number, &number);
    snprintf(text, sizeof text, "%.9g", number);
  } else if (value) {
    const char *origin = (const char *[]){"outside", "grad", "v", "v", "constant"}[g->buffer[value->buffer].origin];
    snprintf(text, sizeof text, "%s%d %s %s", origin, v + 1, lm_dtype_name(value->place.dtype),
             lm_shape_text(value->place.ndim, value->place.size));
  }
  lm_put(out, text, strlen(text));
}

static void put_list(lm_bytes *out, const lm_segment *g, int n, const int *v) {
  for (int k = 0; k < n; k++) {
    if (k > 0) lm_put(out, ", ", 2);
    put_value(out, g, v[k]);
  }
}

static bool joins_chunks(const lm_segment *g, int i) {
  bool joins = false;
  for (int k = 0; k < g->nchunks; k++) joins = joins || (i > g->chunks[k].scores && i < g->chunks[k].end);
  return joins && g->step[i].chunks == LM_BY_CHUNKS;
}

void lm_segment_write(const lm_segment *g, bool is_planned, lm_bytes *out) {
  for (int i = 0; i < g->nsteps; i++) {
    const lm_segment_step *s = &g->step[i];
    const lm_op *op = &lm_ops[s->op < 0 ? lm_pointwise_op(s->kernel) : s->op];
    if (is_planned && s->op >= 0 && op->kind == LM_VIEW) continue; /* nothing runs */
    const lm_segment_step *before = is_planned && i > 0 ? s - 1 : NULL;
    const bool joins = before && (s->joins || (s->group > 0 && s->group == before->group) || joins_chunks(g, i));
    lm_put(out, joins ? "  + " : "    ", 4);
    put_list(out, g, s->nout, s->out);
    lm_put(out, " = ", 3);
    lm_put(out, op->name, strlen(op->name));
    if (s->op < 0) lm_put(out, " gradient", 9);
    if (s->form == LM_RUN_IN_PLACE) lm_put(out, "_", 1);
    lm_put(out, "(", 1);
    put_list(out, g, s->nin, s->in);
    lm_put(out, ")\n", 2);
  }
}
