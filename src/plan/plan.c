#include "autograd/node.h"
#include "base/mapping_guard.h"
#include "base/message.h"
#include "op_entries.h"
#include "plan/plan_steps.h"
#include "tensor/prepack.h"

void lm_plan_free(lm_plan *p) {
  if (!p) return;
  for (int i = 0; i < p->nvalues; i++) {
    lm_prepack_drop(p->value[i].prepacked);
    lm_release(p->value[i].t);
  }
  for (int i = 0; i < p->nsources; i++) {
    lm_release(p->source[i].t);
    lm_release(p->source[i].as_read);
  }
  for (int i = 0; p->step && i < p->nsteps; i++) {
    lm_plan_step *s = &p->step[i];
    lm_args_free(s->op, s->args);
    lm_free(s->in);
  }
  lm_free(p->chain);
  lm_free(p->output);
  lm_free(p->value);
  lm_free(p->step);
  lm_free(p->source);
  lm_free(p->fold);
  lm_free(p);
}

static void drop_plan(lm_plan **p) { lm_plan_free(*p); }

/* ---- making a plan */

typedef struct builder {
  const lm_tape *tape;
  lm_plan *p;
  lm_address_map index; /* index of a tensor's value */
  lm_status status;
  lm_plan_step *step; /* the step whose inputs are added */
} builder;

static lm_status add_value(builder *m, lm_tensor *t, int *index) {
  lm_plan *p = m->p;
  if (!lm_list_grow(&p->value, &p->value_capacity, (size_t)p->nvalues + 1, sizeof *p->value) ||
      !lm_address_set(&m->index, t, p->nvalues))
    return LM_E_OOM;
  p->value[p->nvalues] = (lm_plan_value){.last_use = -1, .ndim = t->ndim, .dtype = t->dtype};
  memcpy(p->value[p->nvalues].size, t->size, sizeof t->size);
  *index = p->nvalues++;
  return LM_OK;
}

static lm_status add_source(lm_plan *p, lm_tensor *t) {
  if (t->number) return LM_OK; /* nobody writes to it */
  if (!lm_list_grow(&p->source, &p->source_capacity, (size_t)p->nsources + 1, sizeof *p->source)) return LM_E_OOM;
  lm_tensor *as_read;
  NEED(lm_alias(t, &as_read));
  p->source[p->nsources++] = (lm_plan_source){lm_retain(t), as_read, lm_version(t)};
  return LM_OK;
}

static bool is_step_output(const builder *m, const lm_tensor *t) { return lm_address_find(&m->tape->maker, t) > 0; }

/* Returns true if each call of the function makes t's memory. */
static bool is_made_per_call(const builder *m, const lm_tensor *t) {
  for (int i = 0; i < m->p->nsources; i++) {
    const lm_plan_source *s = &m->p->source[i];
    if (s->as_read->storage == t->storage && !is_step_output(m, s->t)) return false;
  }
  return is_step_output(m, t);
}

/* Returns in *index the value of t, which is a constant unless an earlier step or the inputs have it. */
static lm_status find_or_add_value(builder *m, lm_tensor *t, int *index) {
  lm_plan *p = m->p;
  *index = lm_address_find(&m->index, t);
  if (*index >= 0) return LM_OK;
  if (lm_tape_writes(m->tape, t))
    return lm_fail(LM_E_STATE, "a step writes in place to a tensor that was made outside of the function");
  NEED(add_value(m, t, index));
  p->value[*index].is_constant = true;
  p->value[*index].t = lm_retain(t);
  return add_source(p, t);
}

static void add_input(void *ctx, lm_tensor **slot) {
  builder *m = ctx;
  lm_plan_step *s = m->step;
  int index = -1;
  if (m->status == LM_OK && *slot) m->status = find_or_add_value(m, *slot, &index);
  s->in[s->nin++] = index;
}

static void count_slot(void *ctx, lm_tensor **slot) {
  (void)slot;
  ++*(int *)ctx;
}

/* Adds the sources that a step which is computed once has read. */
static void add_slot_source(void *ctx, lm_tensor **slot) {
  builder *m = ctx;
  if (*slot && m->status == LM_OK && !is_step_output(m, *slot)) m->status = add_source(m->p, *slot);
}

static lm_status add_step(builder *m, const lm_tape_step *from) {
  lm_plan *p = m->p;
  lm_plan_step *s = &p->step[p->nsteps++];
  int slots = 0;
  *s = (lm_plan_step){.op = from->op, .in_place = from->in_place, .cast = from->cast};
  for (int k = 0; k < LM_MAX_OUTS; k++) s->out[k] = -1;
  lm_each_tensor_slot(from->op, from->args, count_slot, &slots);
  s->in = lm_calloc((size_t)slots + 1, sizeof *s->in);
  s->args = lm_args_copy(from->op, from->args);
  if (!s->in || !s->args) return LM_E_OOM;
  m->step = s;
  lm_each_tensor_slot(s->op, s->args, add_input, m);
  NEED(m->status);
  for (int k = 0; k < LM_MAX_OUTS; k++) {
    if (!from->out[k]) continue;
    s->nout = k + 1;
    s->out[k] = lm_address_find(&m->index, from->out[k]);
    if (s->out[k] < 0) NEED(add_value(m, from->out[k], &s->out[k]));
  }
  return LM_OK;
}

static lm_status add_steps(builder *m) {
  const lm_tape *tape = m->tape;
  for (int i = 0; i < tape->nsteps; i++) {
    const lm_tape_step *s = &tape->step[i];
    bool is_written = false;
    if (lm_call_is_random(s->op, s->args))
      return lm_fail(LM_E_STATE, "%s draws random numbers%s%s", lm_ops[s->op].name, s->line ? " at " : "",
                     s->line ? s->line : "");
    for (int k = 0; k < LM_MAX_OUTS; k++) is_written |= s->out[k] && lm_tape_writes(tape, s->out[k]);
    if (s->dynamic || is_written) {
      NEED(add_step(m, s));
    } else {
      lm_each_tensor_slot(s->op, s->args, add_slot_source, m);
      NEED(m->status);
    }
  }
  return LM_OK;
}

/* Removes steps that write nowhere and whose results nobody reads. */
static void remove_unread(lm_plan *p) {
  for (int i = p->nsteps - 1; i >= 0; i--) {
    lm_plan_step *s = &p->step[i];
    bool is_read = s->in_place || lm_ops[s->op].kind == LM_WRITE || lm_ops[s->op].writes;
    for (int k = 0; k < s->nout; k++)
      is_read |= s->out[k] >= 0 && (p->value[s->out[k]].is_output || p->value[s->out[k]].last_use > i);
    s->is_removed = !is_read;
    for (int k = 0; k < s->nin && is_read; k++)
      if (s->in[k] >= 0) p->value[s->in[k]].last_use = p->nsteps;
  }
}

/* Sets each value's last use, once the steps are final. */
static void set_last_uses(lm_plan *p) {
  for (int i = 0; i < p->nvalues; i++) p->value[i].last_use = -1;
  for (int i = 0; i < p->nsteps; i++) {
    if (p->step[i].is_removed) continue;
    for (int k = 0; k < p->step[i].nin; k++)
      if (p->step[i].in[k] >= 0) p->value[p->step[i].in[k]].last_use = i;
    for (int k = 0; k < p->step[i].nout; k++)
      if (p->step[i].out[k] >= 0) p->value[p->step[i].out[k]].last_use = i;
  }
}

static bool is_elementwise(const lm_plan_step *s) { return lm_ops[s->op].kind == LM_POINTWISE && !s->in_place; }

/* Marks elementwise steps that follow one another: a chain computes them together. */
static lm_status mark_chains(lm_plan *p) {
  lm_plan_step *before = NULL;
  bool any = false;
  for (int i = 0; i < p->nsteps; i++) {
    lm_plan_step *s = &p->step[i];
    if (s->is_removed) continue;
    if (before && is_elementwise(before) && is_elementwise(s)) any = before->is_chained = s->is_chained = true;
    before = s;
  }
  return any ? lm_chain_new(&p->chain) : LM_OK;
}

/* Makes kernels pack constants once. */
static void keep_packed(lm_plan *p) {
  for (int i = 0; i < p->nvalues; i++) {
    lm_plan_value *v = &p->value[i];
    if (!v->is_constant || v->t->number || v->last_use < 0) continue;
    v->prepacked = v->t->storage;
    lm_prepack_keep(v->prepacked);
  }
}

static void free_builder(builder *m) { lm_free(m->index.entry); }

lm_status lm_plan_new(const lm_tape *tape, int noutputs, lm_tensor *const *outputs, const lm_plan *like,
                      lm_plan **out) {
  if (tape->refusal[0]) return lm_fail(LM_E_STATE, "%s", tape->refusal);
  lm_plan *p __attribute__((cleanup(drop_plan))) = lm_calloc(1, sizeof *p);
  builder m __attribute__((cleanup(free_builder))) = {.tape = tape, .p = p};
  if (!p) return LM_E_OOM;
  p->step = lm_calloc((size_t)tape->nsteps + 1, sizeof *p->step);
  p->output = lm_calloc((size_t)noutputs + 1, sizeof *p->output);
  if (!p->step || !p->output) return LM_E_OOM;
  p->ninputs = tape->ninputs;
  for (int i = 0, index; i < tape->ninputs; i++) {
    NEED(add_value(&m, tape->input[i], &index));
    if (lm_tape_writes(tape, tape->input[i])) return lm_fail(LM_E_STATE, "a step writes in place to an input");
  }
  NEED(add_steps(&m));
  for (int i = 0; i < tape->nread; i++)
    if (!is_step_output(&m, tape->read[i])) NEED(add_source(p, tape->read[i]));
  for (p->noutputs = 0; p->noutputs < noutputs; p->noutputs++) {
    NEED(find_or_add_value(&m, outputs[p->noutputs], &p->output[p->noutputs]));
    lm_plan_value *v = &p->value[p->output[p->noutputs]];
    v->is_output = true;
    v->is_copied = v->is_constant && is_made_per_call(&m, v->t);
  }
  remove_unread(p);
  set_last_uses(p);
  NEED(lm_plan_join(p, like && lm_plan_is_current(like) ? like : NULL));
  set_last_uses(p);
  keep_packed(p);
  NEED(mark_chains(p));
  *out = p;
  p = NULL;
  return LM_OK;
}

/* ---- running it */

bool lm_plan_is_current(const lm_plan *p) {
  for (int i = 0; i < p->nsources; i++) {
    const lm_plan_source *s = &p->source[i];
    if (s->t->storage != s->as_read->storage || s->t->data != s->as_read->data || lm_version(s->t) != s->version)
      return false;
  }
  return true;
}

int lm_plan_ninputs(const lm_plan *p) { return p->ninputs; }
int lm_plan_noutputs(const lm_plan *p) { return p->noutputs; }
int lm_plan_nsteps(const lm_plan *p) { return p->nsteps; }
const char *lm_plan_op_name(const lm_plan *p, int step) {
  return p->step[step].is_removed ? NULL : lm_ops[p->step[step].op].name;
}

bool lm_plan_is_chained(const lm_plan *p, int step) { return p->step[step].is_chained; }

static void release_value(lm_plan_value *v) {
  if (v->is_constant) return;
  lm_release(v->t);
  v->t = NULL;
}

typedef struct filling {
  const lm_plan *p;
  const int *in;
} filling;

static void fill_slot(void *ctx, lm_tensor **slot) {
  filling *f = ctx;
  const int index = *f->in++;
  *slot = index < 0 ? NULL : f->p->value[index].t;
}

static bool is_as_recorded(const lm_plan_value *v, const lm_tensor *t) {
  return t->dtype == v->dtype && t->ndim == v->ndim && memcmp(t->size, v->size, v->ndim * sizeof *v->size) == 0;
}

static lm_status run_step(lm_plan *p, int i) {
  lm_plan_step *s = &p->step[i];
  lm_tensor *out[LM_MAX_OUTS] = {NULL};
  filling f = {p, s->in};
  lm_each_tensor_slot(s->op, s->args, fill_slot, &f);
  lm_autocast_set(s->cast);
  NEED(s->in_place ? lm_call_inplace(s->op, s->args, out) : lm_call(s->op, s->args, out));
  bool same = true;
  for (int k = 0; k < LM_MAX_OUTS; k++) {
    if (s->out[k] < 0) {
      lm_release(out[k]);
      continue;
    }
    lm_plan_value *v = &p->value[s->out[k]];
    lm_release(v->t);
    v->t = out[k];
    same = same && out[k] && is_as_recorded(v, out[k]);
  }
  if (!same) return lm_fail(LM_E_STATE, "the shape of %s's result depends on values", lm_ops[s->op].name);
  for (int k = 0; k < s->nin; k++)
    if (s->in[k] >= 0 && p->value[s->in[k]].last_use == i && !p->value[s->in[k]].is_output)
      release_value(&p->value[s->in[k]]);
  for (int k = 0; k < s->nout; k++)
    if (s->out[k] >= 0 && p->value[s->out[k]].last_use == i && !p->value[s->out[k]].is_output)
      release_value(&p->value[s->out[k]]);
  return LM_OK;
}

/* Runs the steps; a row of elementwise ones is deferred to its end. */
static lm_status run_steps(lm_plan *p) {
  lm_status status = LM_OK;
  bool defers = false;
  for (int i = 0; i < p->nsteps && status == LM_OK; i++) {
    if (p->step[i].is_removed) continue;
    if (defers && !p->step[i].is_chained) status = lm_chain_end(p->chain), defers = false;
    if (status != LM_OK) break;
    if (!defers && p->step[i].is_chained) lm_chain_begin(p->chain);
    defers = p->step[i].is_chained;
    status = run_step(p, i);
  }
  if (defers) {
    const lm_status ended = lm_chain_end(p->chain);
    if (status == LM_OK) status = ended;
  }
  return status == LM_OK ? lm_truncation_check() : status; /* a chain may have read a truncated file */
}

lm_status lm_plan_run(lm_plan *p, lm_tensor *const *inputs, lm_tensor **out) {
  const bool grad = lm_grad_enabled();
  const lm_autocast cast = lm_autocast_get();
  lm_status status = LM_OK;
  for (int i = 0; i < p->ninputs; i++) {
    if (!is_as_recorded(&p->value[i], inputs[i]))
      return lm_fail_shape("plan", lm_text("input %d", i + 1), lm_shape_text(p->value[i].ndim, p->value[i].size),
                           lm_shape_of(inputs[i]));
  }
  for (int i = 0; i < p->ninputs; i++) p->value[i].t = lm_retain(inputs[i]);
  lm_set_grad_enabled(false);
  status = run_steps(p);
  for (int i = 0; i < p->noutputs && status == LM_OK; i++) {
    const lm_plan_value *v = &p->value[p->output[i]];
    out[i] = v->is_copied ? NULL : lm_retain(v->t);
    if (v->is_copied) status = lm_call(LM_OP_clone, &(lm_clone_args){.x = v->t, .memory_format = LM_PRESERVE}, &out[i]);
    for (int k = 0; k < i && status != LM_OK; k++) lm_release(out[k]);
  }
  lm_set_grad_enabled(grad);
  lm_autocast_set(cast);
  for (int i = 0; i < p->nvalues; i++) release_value(&p->value[i]);
  return status;
}
