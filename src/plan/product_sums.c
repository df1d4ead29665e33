/* Makes the sums over a gradient's rows, as of a bias, a result of the product that reads that gradient, as of the
 * weight: the library adds up what it multiplies anyway. Both are float32 then (float64), which are other roundings
 * than those of an op of its own. Devices but the CPU. */
#include "plan/passes.h"

static bool has_wide_result(const lm_segment *g, const lm_segment_step *s) {
  if (s->nout != 1 || s->out[0] < 0 || (s->form != LM_RUN_ALL && s->form != LM_RUN_VISIBLE)) return false;
  const lm_dtype to = g->value[s->out[0]].place.dtype;
  return to == LM_F64 || to == LM_F32;
}

static bool is_product(const lm_segment *g, const lm_segment_step *s) {
  return s->op == LM_OP_mm && lm_step_is_product(s) && has_wide_result(g, s) &&
         LM_DEVICE_KIND(g->value[s->out[0]].place.device) != LM_CPU && !g->value[s->in[0]].number &&
         !g->value[s->in[1]].number;
}

/* Returns true if a step sums over all but the last dim of what a product's operand is, which is a contiguous matrix as
 * `other`, and one transposed as x. */
static bool sums_rows(const lm_segment *g, const lm_segment_step *s, const lm_segment_step *product, bool of_other) {
  if (s->op != LM_OP_sum || !has_wide_result(g, s) || s->in[0] < 0 || g->value[s->in[0]].number) return false;
  const lm_segment_value *from = &g->value[s->in[0]], *operand = &g->value[product->in[of_other]];
  const lm_place *p = &from->place, *m = &operand->place;
  const lm_ints *dims = &((const lm_sum_args *)s->args)->dim;
  bool keeps_last = dims->n == p->ndim - 1 && p->ndim > 1;
  for (int i = 0; i < dims->n; i++) keeps_last = keeps_last && dims->v[i] != p->ndim - 1;
  const int last = of_other; /* the operand's dim that is the last of what is summed */
  return keeps_last && from->buffer == operand->buffer && p->at == m->at && p->dtype == m->dtype && m->size[0] > 1 &&
         m->size[1] > 1 && m->stride[last] == 1 && m->stride[!last] == m->size[last] &&
         p->size[p->ndim - 1] == m->size[last] && lm_place_is_contiguous(p) && lm_place_numel(p) == lm_place_numel(m) &&
         lm_place_numel(&g->value[s->out[0]].place) == m->size[last];
}

/* Returns true if nothing between two steps changes what a product reads. */
static bool reads_the_same(const lm_segment *g, int begin, int end, const lm_segment_step *product) {
  return lm_segment_maker(g, end, lm_buffer_of(g, product->in[0])) <= begin &&
         lm_segment_maker(g, end, lm_buffer_of(g, product->in[1])) <= begin;
}

static lm_status join_steps(lm_segment *g, int product, int sum, bool of_other) {
  const int in[] = {g->step[product].in[0], g->step[product].in[1]};
  const int out[] = {g->step[product].out[0], g->step[sum].out[0]};
  const lm_mm_with_sums_args args = {.of_other = of_other};
  NEED(lm_segment_replace_step(g, product < sum ? product : sum, LM_OP_mm_with_sums, &args, 2, in, 2, out));
  lm_segment_remove_step(g, product < sum ? sum : product);
  return LM_OK;
}

lm_status lm_segment_join_sums(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) {
    const lm_segment_step *s = &g->step[i];
    if (!is_product(g, s)) continue;
    for (int k = 0; k < g->nsteps; k++) {
      const int first = i < k ? i : k, last = i < k ? k : i;
      const bool of_other = k != i && sums_rows(g, &g->step[k], s, true);
      if (k == i || !(of_other || sums_rows(g, &g->step[k], s, false)) || lm_segment_part_end(g, first) <= last ||
          !reads_the_same(g, first, last, s))
        continue;
      NEED(join_steps(g, i, k, of_other));
      i = first;
      break;
    }
  }
  return LM_OK;
}
