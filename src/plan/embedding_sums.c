/* Adds an embedding's gradient to another gradient of its weight, as of an output layer that shares it or of backward
 * passes before, row by row, so that it is not made for all rows. The sum's order is another than that of eager ops.
 * Devices but the CPU. */
#include "plan/passes.h"

static const lm_place *place_of(const lm_segment *g, int v) { return g->value[v].number ? NULL : &g->value[v].place; }

/* Returns the step that made the embedding's gradient that step i adds; -1 if it does not, or may not add its rows. */
static int find_embedding(const lm_segment *g, int i) {
  const lm_segment_step *s = &g->step[i];
  if (s->op != LM_OP_add || s->form != LM_RUN_IN_PLACE || ((const lm_add_args *)s->args)->alpha != 1) return -1;
  const lm_place *x = place_of(g, s->in[0]), *y = place_of(g, s->in[1]);
  const int buffer = lm_buffer_of(g, s->in[1]), j = buffer < 0 ? -1 : lm_segment_maker(g, i, buffer);
  if (!x || !y || j < 0 || g->step[j].op != LM_OP_embedding_backward || LM_DEVICE_KIND(x->device) == LM_CPU) return -1;
  const int *in = g->step[j].in;
  const bool is_alike = x->dtype == y->dtype && x->ndim == 2 && y->ndim == 2 && x->size[0] == y->size[0] &&
                        x->size[1] == y->size[1] && lm_place_is_contiguous(x) && lm_place_is_contiguous(y);
  const bool is_only = !lm_buffer_is_visible(g, buffer) && lm_segment_reader(g, j, buffer) == i &&
                       lm_segment_maker(g, i, lm_buffer_of(g, in[0])) < j &&
                       lm_segment_maker(g, i, lm_buffer_of(g, in[1])) < j && lm_segment_part_end(g, j) > i;
  const bool takes_rows = lm_place_is_contiguous(place_of(g, in[0])) && lm_place_is_contiguous(place_of(g, in[1])) &&
                          ((const lm_embedding_backward_args *)g->step[j].args)->padding_idx == 0;
  return is_alike && is_only && takes_rows ? j : -1;
}

lm_status lm_segment_add_embeddings(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) {
    const int j = find_embedding(g, i);
    if (j < 0) continue;
    int in[3] = {g->step[i].in[0]};
    const lm_index_add__args args = {.dim = 0, .alpha = 1};
    const int64_t columns = place_of(g, in[0])->size[1], n = lm_place_numel(place_of(g, g->step[j].in[1]));
    NEED(lm_segment_reshape(g, g->step[j].in[1], 1, &n, &in[1]));
    NEED(lm_segment_reshape(g, g->step[j].in[0], 2, (int64_t[]){n, columns}, &in[2]));
    NEED(lm_segment_replace_step(g, i, LM_OP_index_add_, &args, 3, in, 1, &in[0]));
    lm_segment_remove_step(g, j);
    i--;
  }
  return LM_OK;
}
