#include "plan/plan.h"

#include "autograd/node.h"
#include "autograd/record_graph.h"
#include "base/message.h"
#include "op/pointwise.h"
#include "plan/compiled.h"
#include "plan/passes.h"
#include "tensor/prepack.h"

typedef struct lm_plan_output {
  int same;            /* index of the input that it is, or ~index of the output that it is; NONE: neither */
  int base;            /* likewise, of the tensor that it is a view of */
  int value;           /* index in the segment */
  lm_tensor *constant; /* retained; NULL: a step makes it */
  bool is_copied;      /* true for a constant that calls return copies of, since the function makes it each time */
} lm_plan_output;

struct lm_plan {
  lm_segment *g; /* its first instances are the inputs */
  int ninputs, noutputs;
  lm_plan_output *output;
};

/* ---- recording */

lm_status lm_op_recording_new(int ninputs, lm_tensor *const *inputs, lm_op_recording **out) {
  lm_op_recording *r = *out = lm_calloc(1, sizeof *r);
  if (!r) return LM_E_OOM;
  NEED(lm_tape_new(ninputs, inputs, &r->tape));
  NEED(lm_compiled_new(false, &r->steps));
  return lm_compiled_record_plan(r->steps, ninputs, r->tape->input);
}

void lm_op_recording_free(lm_op_recording *r) {
  if (!r) return;
  lm_tape_free(r->tape);
  if (r->steps) lm_segment_free(lm_compiled_take_plan(r->steps));
  lm_compiled_free(r->steps);
  lm_free(r);
}

lm_status lm_op_recording_begin(lm_op_recording *r) {
  NEED(lm_leave());
  r->outer = lm_tape_swap(r->tape);
  lm_compiled_watch_ops(r->steps, true);
  return LM_OK;
}

void lm_op_recording_end(lm_op_recording *r) {
  lm_compiled_watch_ops(r->steps, false);
  lm_tape_swap(r->outer);
}

/* ---- making a plan */

void lm_plan_free(lm_plan *p) {
  if (!p) return;
  for (int i = 0; i < p->noutputs; i++) lm_release(p->output[i].constant);
  lm_segment_free(p->g);
  lm_free(p->output);
  lm_free(p);
}

static void drop_plan(lm_plan **p) { lm_plan_free(*p); }

/* Returns which input, or which of n outputs as ~index, t is; NONE: none. */
static int find_same(const lm_tape *tape, int n, lm_tensor *const *outputs, const lm_tensor *t) {
  for (int i = 0; i < tape->ninputs && t; i++)
    if (tape->input[i] == t) return i;
  for (int i = 0; i < n && t; i++)
    if (outputs[i] == t) return ~i - 1; /* below NONE */
  return NONE;
}

static lm_status add_output(lm_plan *p, lm_op_recording *r, lm_tensor *const *outputs) {
  const int i = p->noutputs;
  lm_tensor *t = outputs[i];
  lm_plan_output *o = &p->output[p->noutputs++];
  *o = (lm_plan_output){.same = find_same(r->tape, i, outputs, t),
                        .base = find_same(r->tape, i, outputs, lm_view_base(t)),
                        .value = NONE};
  if (o->same != NONE) return LM_OK;
  o->constant = lm_retain(t); /* until a step is known to make it */
  if (t->number) return LM_OK;
  NEED(lm_compiled_plan_value(r->steps, t, &o->value));
  lm_segment_buffer *b = &p->g->buffer[p->g->value[o->value].buffer];
  o->is_copied = b->origin != LM_CONSTANT;
  b->is_result = true;
  return LM_OK;
}

/* Adds the outputs, and tensors that the function read as Lua values, on which the plan depends. */
static lm_status add_outputs(lm_plan *p, lm_op_recording *r, int n, lm_tensor *const *outputs) {
  p->output = lm_calloc((size_t)n + 1, sizeof *p->output);
  if (!p->output) return LM_E_OOM;
  while (p->noutputs < n) NEED(add_output(p, r, outputs));
  for (int i = 0, v; i < r->tape->nread; i++) NEED(lm_compiled_plan_value(r->steps, r->tape->read[i], &v));
  return LM_OK;
}

/* Returns the k-th of the buffers that a step reads, makes or writes to; NULL: that is none. */
static lm_segment_buffer *buffer_at(lm_segment *g, const lm_segment_step *s, int k, bool is_read) {
  const int in = k - s->nout, v = in < 0                             ? (is_read ? NONE : s->out[k])
                                  : is_read || lm_step_writes(s, in) ? s->in[in]
                                                                     : NONE;
  return lm_buffer_of(g, v) >= 0 ? &g->buffer[lm_buffer_of(g, v)] : NULL;
}

/* Removes steps whose results are the same in each call, which become constants. */
static void fold_constants(lm_segment *g) {
  for (int i = 0; i < g->nsteps; i++) {
    lm_segment_step *s = &g->step[i];
    const int n = s->nout + s->nin;
    s->is_removed = true;
    for (int k = 0; k < 2 * n; k++) {
      const lm_segment_buffer *b = buffer_at(g, s, k / 2, k % 2);
      if (b && b->depends) s->is_removed = false;
    }
    for (int k = 0; k < n && !s->is_removed; k++) {
      lm_segment_buffer *b = buffer_at(g, s, k, false);
      if (b) b->depends = true;
    }
  }
  for (int b = 0; b < g->nbuffers; b++) {
    lm_segment_buffer *buffer = &g->buffer[b];
    if (buffer->depends) lm_segment_drop_buffer(g, buffer);
    if (buffer->depends || buffer->origin == LM_CONSTANT) continue;
    buffer->origin = LM_CONSTANT;
    for (int v = buffer->first; v >= 0; v = g->value[v].next)
      if (g->value[v].t) lm_segment_set_constant(g, v, g->value[v].t);
  }
}

/* Removes views, which are no work, and steps that change nothing that a result depends on. */
static void remove_unread(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) g->buffer[b].is_kept = g->buffer[b].is_result;
  for (int i = g->nsteps - 1; i >= 0; i--) {
    lm_segment_step *s = &g->step[i];
    bool is_needed = false;
    for (int k = 0; k < s->nout + s->nin; k++) {
      const lm_segment_buffer *b = buffer_at(g, s, k, false);
      is_needed = is_needed || (b && b->is_kept);
    }
    s->is_removed = s->is_removed || lm_step_is_view(s) || !is_needed;
    for (int k = 0; k < s->nout + s->nin && !s->is_removed; k++) {
      lm_segment_buffer *b = buffer_at(g, s, k, true);
      if (b) b->is_kept = true;
    }
  }
  lm_segment_drop_removed(g);
}

/* Makes instances of results that steps make, so that passes and the runner keep them. */
static lm_status set_outputs(lm_plan *p) {
  lm_segment *g = p->g;
  for (int i = 0; i < p->noutputs; i++) {
    lm_plan_output *o = &p->output[i];
    if (o->value < 0 || g->buffer[g->value[o->value].buffer].origin == LM_CONSTANT) continue;
    const lm_segment_instance n = {.value = o->value, .is_result = true, .base = NONE};
    lm_release(lm_tensor_take(&o->constant));
    if (!LM_APPEND(g->instance, g->ninstances, g->instance_capacity, n)) return LM_E_OOM;
  }
  return LM_OK;
}

/* Makes kernels pack constants once. */
static void keep_packed(lm_segment *g) {
  for (int i = 0; i < g->nbuffers; i++) {
    lm_segment_buffer *b = &g->buffer[i];
    b->is_packed = b->origin == LM_CONSTANT && b->last_use >= 0 && b->storage;
    if (b->is_packed) lm_prepack_keep(b->storage);
  }
}

lm_status lm_plan_new(lm_op_recording *r, int noutputs, lm_tensor *const *outputs, const lm_plan *like, lm_plan **out) {
  if (r->tape->refusal[0]) return lm_fail(LM_E_STATE, "%s", r->tape->refusal);
  lm_plan *p __attribute__((cleanup(drop_plan))) = lm_calloc(1, sizeof *p);
  if (!p) return LM_E_OOM;
  lm_segment *g = r->steps->now;
  if (!g) return lm_fail(LM_E_STATE, "the recording has a plan already");
  p->ninputs = r->tape->ninputs;
  p->g = g;
  lm_status status = add_outputs(p, r, noutputs, outputs);
  lm_compiled_take_plan(r->steps);
  NEED(status);
  if (r->tape->shares || r->steps->shares) return lm_fail(LM_E_ARG, "an argument has the memory of another tensor");
  if (g->runs_as_is) return lm_fail(LM_E_STATE, "%s", g->reason);
  fold_constants(g);
  remove_unread(g);
  NEED(set_outputs(p));
  lm_segment_set_last_uses(g);
  NEED(lm_segment_join_layers(g, like && lm_plan_is_current(like) ? like->g : NULL));
  lm_segment_drop_removed(g);
  NEED(lm_segment_plan(g));
  keep_packed(g);
  *out = p;
  p = NULL;
  return LM_OK;
}

/* ---- running it */

bool lm_plan_is_current(const lm_plan *p) {
  for (int i = 0; i < p->g->nvalues; i++) {
    const lm_segment_value *v = &p->g->value[i];
    const lm_segment_buffer *b = v->t && v->buffer >= 0 ? &p->g->buffer[v->buffer] : NULL;
    if (b && (v->t->storage != b->storage || lm_version(v->t) != b->version ||
              (v->t->numel > 0 && v->t->data - (char *)b->storage->data != v->place.at)))
      return false;
  }
  return true;
}

int lm_plan_ninputs(const lm_plan *p) { return p->ninputs; }
int lm_plan_noutputs(const lm_plan *p) { return p->noutputs; }
const char *lm_plan_step_name(const lm_plan *p, int step, bool *joins) {
  if (step >= p->g->nsteps) return NULL;
  const lm_segment_step *s = &p->g->step[step];
  *joins = s->joins;
  return lm_ops[s->op < 0 ? lm_pointwise_op(s->kernel) : s->op].name;
}

/* Makes t the i-th input of a call. */
static lm_status bind_input(lm_segment *g, int i, lm_tensor *t) {
  const lm_segment_value *v = &g->value[g->instance[i].value];
  const lm_place *p = &v->place;
  lm_segment_buffer *b = &g->buffer[v->buffer];
  if (t->dtype != p->dtype || t->ndim != p->ndim || memcmp(t->size, p->size, p->ndim * sizeof *p->size) != 0)
    return lm_fail_shape("plan", lm_text("input %d", i + 1), lm_shape_text(p->ndim, p->size), lm_shape_of(t));
  b->shift = t->numel == 0 ? 0 : t->data - (char *)t->storage->data - p->at;
  if ((!lm_has_strides(t, p->stride) && t->numel > 0) || (g->is_fixed && b->shift != 0))
    return lm_fail(LM_E_STATE, "input %d has another layout than in the recording", i + 1);
  lm_storage_retain(b->storage = t->storage);
  return LM_OK;
}

static lm_tensor *of_call(int i, lm_tensor *const *inputs, lm_tensor *const *out) {
  return i >= 0 ? inputs[i] : out[~(i + 1)];
}

static lm_status take_output(lm_plan *p, const lm_plan_output *o, lm_tensor *const *inputs, lm_tensor *const *out,
                             lm_tensor **t) {
  if (o->same != NONE) *t = lm_retain(of_call(o->same, inputs, out));
  if (o->same != NONE) return LM_OK;
  if (o->is_copied && o->constant)
    return lm_op_run(LM_OP_clone, &(lm_clone_args){.x = o->constant, .memory_format = LM_PRESERVE}, t);
  if (o->constant) *t = lm_retain(o->constant);
  if (o->constant) return LM_OK;
  NEED(lm_segment_header(p->g, o->value, false, t));
  *t = lm_tensor_take(&p->g->value[o->value].t); /* each output has a header of its own */
  return o->base == NONE ? LM_OK : lm_view_track(*t, of_call(o->base, inputs, out), NULL);
}

lm_status lm_plan_run(lm_plan *p, lm_tensor *const *inputs, lm_tensor **out) {
  const bool grad = lm_grad_enabled();
  lm_status status = lm_leave();
  for (int i = 0; i < p->noutputs; i++) out[i] = NULL;
  for (int i = 0; i < p->ninputs && status == LM_OK; i++) status = bind_input(p->g, i, inputs[i]);
  lm_set_grad_enabled(false);
  if (status == LM_OK) status = lm_segment_run(p->g);
  for (int i = 0; i < p->noutputs && status == LM_OK; i++) status = take_output(p, &p->output[i], inputs, out, &out[i]);
  for (int i = 0; i < p->noutputs && status != LM_OK; i++) lm_release(lm_tensor_take(&out[i]));
  lm_set_grad_enabled(grad);
  lm_segment_reset(p->g);
  return status;
}
