/* Makes gelu_tanh, or its gradient, a part of the product of halves whose result it reads: the library computes both
 * where it has a kernel for that. Values are not rounded to half in between, by which they differ from those of eager
 * ops. Devices but the CPU. */
#include "plan/passes.h"

typedef struct product {
  int x, other, bias; /* values; bias: -1: none */
  bool transposed;    /* true if `other` is [M, K] */
} product;

static const lm_place *place_of(const lm_segment *g, int v) { return &g->value[v].place; }

/* Sets the operands of a step that is a product of halves on a GPU with a contiguous result; false for others. */
static bool find_product(const lm_segment *g, const lm_segment_step *s, product *out) {
  if (!lm_step_is_product(s) || s->form == LM_RUN_IN_PLACE || s->widens || s->out[0] < 0) return false;
  const lm_addmm_args *a = s->op == LM_OP_addmm ? s->args : NULL;
  *out = (product){.x = s->in[a != NULL], .other = s->in[1 + (a != NULL)], .bias = a ? s->in[0] : -1};
  if (s->op == LM_OP_linear) out->transposed = true, out->bias = s->in[2];
  if (g->value[out->x].number || g->value[out->other].number || (a && (a->alpha != 1 || a->beta != 1))) return false;
  const lm_place *y = place_of(g, s->out[0]), *x = place_of(g, out->x);
  const lm_place *bias = out->bias < 0 ? NULL : place_of(g, out->bias);
  if (bias && (g->value[out->bias].number || bias->dtype != y->dtype || bias->ndim != 1 ||
               bias->size[0] != y->size[y->ndim - 1]))
    return false;
  return lm_dtype_is_half(y->dtype) && LM_DEVICE_KIND(y->device) != LM_CPU && lm_place_is_contiguous(y) &&
         x->dtype == y->dtype && (x->ndim == 2 || lm_place_is_contiguous(x)) && place_of(g, out->other)->ndim == 2 &&
         lm_place_numel(x) > 0 && lm_place_numel(y) > 0;
}

/* Returns true if a value is the contiguous tensor that product `s` has made. */
static bool is_result(const lm_segment *g, int v, const lm_segment_step *s) {
  const lm_place *p = place_of(g, v), *y = place_of(g, s->out[0]);
  return !g->value[v].number && g->value[v].buffer == g->value[s->out[0]].buffer && p->at == y->at &&
         p->dtype == y->dtype && lm_place_is_contiguous(p) && lm_place_numel(p) == lm_place_numel(y);
}

/* Returns in *out a value as a matrix: as it is if it has 2 dims, else contiguous. */
static lm_status as_matrix(lm_segment *g, int v, int64_t columns, int *out) {
  const lm_place *p = place_of(g, v);
  *out = v;
  if (p->ndim == 2 && p->size[1] == columns) return LM_OK;
  return lm_segment_reshape(g, v, 2, (int64_t[]){lm_place_numel(p) / columns, columns}, out);
}

static lm_status transposed(lm_segment *g, int v, int *out) {
  const lm_place *p = place_of(g, v);
  const lm_place t = {p->dtype, 2, p->device, p->at, {p->size[1], p->size[0]}, {p->stride[1], p->stride[0]}};
  return lm_segment_place(g, g->value[v].buffer, &t, out);
}

/* Makes step j the op that computes steps j and i. third: the bias, or what the gradient is at. */
static lm_status join_steps(lm_segment *g, lm_op_id op, int j, int i, const product *p, int third) {
  const lm_place *y = place_of(g, g->step[j].out[0]), *x = place_of(g, p->x);
  const int64_t columns = y->size[y->ndim - 1];
  int in[3] = {-1, p->other, third}, out[2] = {-1, -1};
  NEED(as_matrix(g, p->x, x->size[x->ndim - 1], &in[0]));
  if (p->transposed) NEED(transposed(g, p->other, &in[1]));
  NEED(as_matrix(g, g->step[i].out[0], columns, &out[0]));
  NEED(op == LM_OP_addmm_gelu ? as_matrix(g, g->step[j].out[0], columns, &out[1])
                              : as_matrix(g, third, columns, &in[2]));
  NEED(lm_segment_replace_step(g, j, op, lm_ops[op].defaults, 3, in, 1 + (out[1] >= 0), out));
  lm_segment_remove_step(g, i);
  return LM_OK;
}

lm_status lm_segment_join_gelu(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) {
    const lm_segment_step *s = &g->step[i];
    const bool is_gradient = s->op < 0 && s->kernel == LM_GRAD_gelu_tanh_x;
    product p;
    if ((!is_gradient && s->op != LM_OP_gelu_tanh) || s->form == LM_RUN_IN_PLACE || g->value[s->in[0]].number) continue;
    const int buffer = g->value[s->in[0]].buffer, j = lm_segment_maker(g, i, buffer);
    if (j < 0 || !find_product(g, &g->step[j], &p) || !is_result(g, s->in[0], &g->step[j]) ||
        !lm_place_is_contiguous(place_of(g, s->out[0])) || place_of(g, s->out[0])->dtype != place_of(g, p.x)->dtype ||
        g->buffer[g->value[s->out[0]].buffer].origin != LM_FROM_STEP || lm_segment_part_end(g, j) <= i)
      continue;
    if (is_gradient) {
      const lm_place *before = g->value[s->in[1]].number ? NULL : place_of(g, s->in[1]);
      if (p.bias >= 0 || !before || before->dtype != place_of(g, p.x)->dtype || !lm_place_is_contiguous(before) ||
          lm_place_numel(before) != lm_place_numel(place_of(g, s->in[0])) || lm_buffer_is_visible(g, buffer) ||
          lm_segment_reader(g, j, buffer) != i || lm_segment_maker(g, i, g->value[s->in[1]].buffer) >= j)
        continue;
    }
    NEED(join_steps(g, is_gradient ? LM_OP_mm_gelu_backward : LM_OP_addmm_gelu, j, i, &p,
                    is_gradient ? s->in[1] : p.bias));
    i = j;
  }
  return LM_OK;
}
