/* Records segments: what a script calls as events, the ops that run beneath as steps. */
#include <stdio.h>

#include "autograd/gradient_rules.h"
#include "autograd/gradients.h"
#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/interned.h"
#include "base/mem.h"
#include "device/graph.h"
#include "op/pointwise.h"
#include "op/run.h"
#include "plan/compiled.h"
#include "plan/passes.h"

enum { FEW = 4, MOST = 1000000 }; /* steps below which a segment is not worth it; of a segment at most */

static lm_compiled *of_recorder(lm_op_recorder *r) {
  return (lm_compiled *)((char *)r - offsetof(lm_compiled, recorder));
}
static lm_compiled *of_watcher(lm_tensor_watcher *w) {
  return (lm_compiled *)((char *)w - offsetof(lm_compiled, watcher));
}

/* ---- recording: what becomes of tensors */

static void note_made(lm_tensor_watcher *w, const lm_storage *s) {
  lm_compiled *c = of_watcher(w);
  if (c->mode != RECORDING) return;
  if (!lm_address_set(&c->buffer_of, s, UNKNOWN)) lm_segment_refuse(c->now, "out of memory");
}

static void note_freed(lm_tensor_watcher *w, const lm_storage *s) {
  lm_compiled *c = of_watcher(w);
  if (c->outer) c->outer->freed(c->outer, s);
  if (lm_address_find(&c->buffer_of, s) != NONE) lm_address_set(&c->buffer_of, s, NONE);
}

static void note_dropped(lm_tensor_watcher *w, const lm_tensor *t) {
  lm_compiled *c = of_watcher(w);
  const int i = lm_address_find(&c->instance_of, t);
  if (c->outer) c->outer->dropped(c->outer, t);
  for (int k = 0; k < c->nopen; k++)
    if (c->open[k].t == t) c->open[k].t = NULL;
  if (i == NONE) return;
  c->noted[i].t = NULL;
  lm_address_set(&c->instance_of, t, NONE);
}

static void note_read(lm_tensor_watcher *w, const lm_tensor *t) {
  lm_compiled *c = of_watcher(w);
  const int number = t->number ? lm_address_find(&c->number_of, t) : NONE;
  const bool by_script = c->is_plan && lm_tape_current(); /* which the tape notes */
  if (number != NONE) c->now->value[number].is_read = true;
  if (!t->number && lm_ops_recorded == &c->recorder && !by_script) lm_segment_refuse(c->now, "an op reads values");
}

static bool note_instance(lm_compiled *c, int instance, lm_tensor *t) {
  const lm_noted n = {instance, t};
  return LM_APPEND(c->noted, c->nnoted, c->noted_capacity, n) && lm_address_set(&c->instance_of, t, c->nnoted - 1);
}

/* Returns the instance of a header; NONE if it has none. */
static int find_instance(const lm_compiled *c, const lm_tensor *t) {
  const int i = lm_address_find(&c->instance_of, t);
  return i == NONE ? NONE : c->noted[i].instance;
}

/* ---- recording: steps */

static lm_status add_buffer(lm_compiled *c, lm_buffer_origin origin, const lm_storage *s, int *out) {
  NEED(lm_segment_new_buffer(c->now, origin, s, out));
  return lm_address_set(&c->buffer_of, s, *out) ? LM_OK : LM_E_OOM;
}

/* Returns in *v the value of a number's header, which an op's gradient reads too. */
static lm_status number_value(lm_compiled *c, lm_tensor *number, int *v) {
  *v = lm_address_find(&c->number_of, number);
  if (*v != NONE) return LM_OK;
  NEED(lm_segment_add_number(c->now, number, v));
  return lm_address_set(&c->number_of, number, *v) ? LM_OK : LM_E_OOM;
}

/* Returns the buffer of t. Inputs of a plan that share memory have one each, which their views are known to be of. */
static int find_buffer(lm_compiled *c, const lm_tensor *t) {
  const int instance = c->is_plan ? find_instance(c, t) : NONE;
  if (instance != NONE) return c->now->value[c->now->instance[instance].value].buffer;
  const int buffer = lm_address_find(&c->buffer_of, t->storage);
  c->shares = c->shares || buffer == SHARED;
  return buffer;
}

/* Returns in *v the value of a step's argument, or result. `writes`: the step writes all of it before it reads any. */
static lm_status step_value(lm_compiled *c, lm_tensor *t, bool is_result, bool writes, int *v) {
  lm_segment *g = c->now;
  *v = NONE;
  if (!t) return LM_OK;
  if (t->number) return number_value(c, t, v);
  int buffer = find_buffer(c, t);
  const bool is_outside = buffer < 0 && !is_result && !(buffer == UNKNOWN && writes);
  lm_buffer_origin origin = is_result ? LM_FROM_STEP : LM_UNWRITTEN;
  if (is_outside && c->is_plan) origin = LM_CONSTANT;
  if (is_outside && !c->is_plan)
    lm_segment_refuse(g, "an op reads a tensor that the step neither made nor passed to an op");
  if (buffer < 0) NEED(add_buffer(c, origin, t->storage, &buffer));
  NEED(lm_segment_value_at(g, buffer, t, v));
  if (g->buffer[buffer].origin == LM_CONSTANT) lm_segment_set_constant(g, *v, t);
  return LM_OK;
}

typedef struct adding {
  lm_compiled *c;
  lm_segment_step *s;
  bool writes;
  lm_status status;
} adding;

static void add_slot(void *ctx, lm_tensor **slot) {
  adding *a = ctx;
  lm_segment_step *s = a->s;
  if (a->status == LM_OK) a->status = step_value(a->c, *slot, false, a->writes && s->nin == 0, &s->in[s->nin]);
  s->nin++;
}

static void count_slot(void *ctx, lm_tensor **slot) {
  (void)slot;
  ++*(int *)ctx;
}

static lm_status add_step(lm_compiled *c, lm_segment_step s, int slots, lm_segment_step **out) {
  lm_segment *g = c->now;
  s.widens = lm_halves_widen;
  s.in = lm_calloc((size_t)slots + 1, sizeof *s.in);
  if (!s.in || !s.args || !LM_APPEND(g->step, g->nsteps, g->step_capacity, s)) {
    lm_free(s.in);
    return LM_E_OOM;
  }
  *out = &g->step[g->nsteps - 1];
  for (int k = 0; k < LM_MAX_OUTS; k++) (*out)->out[k] = NONE;
  return LM_OK;
}

/* Refuses a step that a plan cannot repeat. Notes if its results depend on the inputs, and keeps those that may be
 * constants. */
static void note_plan_step(lm_compiled *c, const lm_segment_step *s, lm_tensor *const *out) {
  lm_segment *g = c->now;
  bool depends = false;
  const char *line = lm_script_line();
  if (s->op == LM_OP_as_strided) g->is_fixed = true;
  if (s->op >= 0 && lm_call_is_random(s->op, s->args))
    lm_segment_refuse(g, "%s draws random numbers%s%s", lm_ops[s->op].name, line ? " at " : "", line ? line : "");
  for (int k = 0; k < s->nin; k++) {
    lm_segment_buffer *b = lm_buffer_of(g, s->in[k]) >= 0 ? &g->buffer[lm_buffer_of(g, s->in[k])] : NULL;
    const bool writes = b && lm_step_writes(s, k);
    if (writes && (b->origin == LM_FROM_EVENT || b->origin == LM_CONSTANT))
      lm_segment_refuse(g, "a step writes in place to %s",
                        b->origin == LM_CONSTANT ? "a tensor that was made outside of the function" : "an input");
    if (writes) b->depends = true; /* it is made again in each call */
    depends = depends || (b && b->depends);
  }
  for (int k = 0; k < s->nout; k++) {
    if (!out[k] || s->out[k] < 0) continue;
    lm_segment_value *v = &g->value[s->out[k]];
    lm_segment_buffer *b = &g->buffer[v->buffer];
    b->depends = b->depends || depends;
    if (!b->depends && !v->t) v->t = lm_retain(out[k]);
    if (LM_DEVICE_KIND(out[k]->device) == LM_CPU) continue;
    if (LM_DEVICE_KIND(g->device) == LM_CPU) g->device = out[k]->device;
    g->is_exact = g->is_exact || g->device != out[k]->device; /* groups are on one GPU */
  }
}

static lm_status record_step(lm_compiled *c, lm_op_id id, const void *args, lm_run_form form, lm_tensor *const *out) {
  const lm_op *op = &lm_ops[id];
  int slots = 0;
  lm_segment_step *s;
  if (!c->is_plan && lm_step_shape_depends(id, args))
    lm_segment_refuse(c->now, "the shape of %s's result depends on values", op->name);
  if (op->kind == LM_VIEW && LM_ARG_TENSOR(args, op->tensor[0])->number)
    lm_segment_refuse(c->now, "%s is a view of a number", op->name);
  lm_segment_step made = {.op = id, .form = form, .args = lm_args_copy(id, args)};
  if (made.args) lm_each_tensor_slot(id, made.args, count_slot, &slots);
  lm_status status = add_step(c, made, slots, &s);
  if (status != LM_OK) {
    lm_args_free(id, made.args);
    return status;
  }
  adding a = {c, s, op->kind == LM_WRITE, LM_OK};
  lm_each_tensor_slot(id, s->args, add_slot, &a);
  NEED(a.status);
  s->nout = form == LM_RUN_IN_PLACE || op->kind == LM_WRITE ? 1 : form == LM_RUN_ALL ? op->outs + op->aux : op->outs;
  const lm_tensor *x = op->ntensor > 0 ? LM_ARG_TENSOR(args, op->tensor[0]) : NULL;
  const int input = c->is_plan && x ? find_instance(c, x) : NONE;
  for (int k = 0; k < s->nout; k++) {
    const bool is_view = input != NONE && out[k] && out[k]->storage == x->storage && find_instance(c, out[k]) == NONE;
    if (is_view && !note_instance(c, input, out[k])) return LM_E_OOM;
    NEED(step_value(c, out[k], true, false, &s->out[k]));
  }
  if (c->is_plan) note_plan_step(c, s, out);
  return LM_OK;
}

static void on_op(lm_op_recorder *r, lm_op_id id, const void *args, lm_run_form form, lm_tensor *const *out) {
  lm_compiled *c = of_recorder(r);
  if (c->now->nsteps == MOST) lm_segment_refuse(c->now, "it calls more than %d ops", MOST);
  if (!c->now->runs_as_is && record_step(c, id, args, form, out) != LM_OK) lm_segment_refuse(c->now, "out of memory");
}

static lm_status record_pointwise(lm_compiled *c, int kernel, int nin, lm_tensor *const *in, const double *numbers,
                                  lm_tensor *out) {
  lm_segment_step *s;
  double *copy = lm_calloc(LM_POINTWISE_MAX_NUMBERS, sizeof *copy);
  const int n = lm_ops[lm_pointwise_op(kernel)].nnumber;
  if (copy && numbers) memcpy(copy, numbers, (size_t)n * sizeof *copy);
  lm_status status = add_step(c, (lm_segment_step){.op = -1, .kernel = kernel, .nin = nin, .args = copy}, nin, &s);
  if (status != LM_OK) {
    lm_free(copy);
    return status;
  }
  for (int k = 0; k < nin; k++) NEED(step_value(c, in[k], false, false, &s->in[k]));
  s->nout = 1;
  NEED(step_value(c, out, true, false, &s->out[0]));
  if (c->is_plan) note_plan_step(c, s, &out);
  return LM_OK;
}

static void on_pointwise(lm_op_recorder *r, int kernel, int nin, lm_tensor *const *in, const double *numbers,
                         lm_tensor *out) {
  lm_compiled *c = of_recorder(r);
  if (!c->now->runs_as_is && record_pointwise(c, kernel, nin, in, numbers, out) != LM_OK)
    lm_segment_refuse(c->now, "out of memory");
}

static lm_status record_delivery(lm_compiled *c, int instance, lm_tensor *grad) {
  lm_segment *g = c->now;
  lm_segment_leaf leaf = {.instance = instance, .before = NONE, .after = NONE};
  if (grad) NEED(step_value(c, grad, false, false, &leaf.after));
  if (!LM_APPEND(g->leaf, g->nleaves, g->leaf_capacity, leaf)) return LM_E_OOM;
  if (!grad || lm_gradient_take(grad)) return LM_OK;
  if (!LM_APPEND(c->delivered, c->ndelivered, c->delivered_capacity, grad)) return LM_E_OOM;
  lm_retain(grad);
  return LM_OK;
}

static bool on_leaf(lm_op_recorder *r, const lm_node *leaf, lm_tensor *grad) {
  lm_compiled *c = of_recorder(r);
  if (!c->delivers) return false;
  for (int i = 0; i < c->nnoted && !c->now->runs_as_is; i++) {
    const lm_tensor *t = c->noted[i].t;
    if (!t || !t->grad || t->grad->node != leaf) continue;
    if (record_delivery(c, c->noted[i].instance, grad) != LM_OK) lm_segment_refuse(c->now, "out of memory");
    return true;
  }
  lm_segment_refuse(c->now, "a gradient is of a leaf that no op was passed");
  return true;
}

void lm_compiled_set_recorder(lm_compiled *c) {
  c->recorder = (lm_op_recorder){on_op, on_pointwise, on_leaf};
  c->watcher = (lm_tensor_watcher){note_made, note_freed, note_dropped, note_read};
}

/* ---- recording: events */

int lm_compiled_scope_here(const lm_compiled *c) {
  const uint32_t scope = lm_autocast_scope();
  return scope == 0 ? NO_SCOPE : scope == c->scope ? SAME_SCOPE : NEXT_SCOPE;
}

void lm_compiled_note_scope(lm_compiled *c) {
  if (lm_autocast_scope() != 0) c->scope = lm_autocast_scope();
}

static lm_segment_event event_here(lm_compiled *c, lm_op_id id, bool in_place) {
  lm_segment_event e = {.op = id,
                        .in_place = in_place,
                        .no_grad = !lm_grad_enabled(),
                        .cast = lm_autocast_get(),
                        .scope = c->again ? c->again->scope : lm_compiled_scope_here(c),
                        .default_dtype = lm_default_dtype(),
                        .default_device = lm_default_device(),
                        .nsteps = c->now->nsteps};
  if (!c->again) lm_compiled_note_scope(c);
  for (int k = 0; k < LM_MAX_OUTS; k++) e.out[k] = e.same[k] = NONE;
  return e;
}

const char *lm_compiled_refuses(const lm_tensor *t, bool any_history) {
  if (lm_has_source(t) || lm_is_placeholder(t)) return "a parameter is gathered when it is needed";
  if (any_history) return NULL;
  if (lm_requires_grad(t) && !lm_is_leaf(t))
    return "an argument has a history from outside of the segment, as after a hook";
  const lm_tensor *base = lm_view_base(t);
  return base && lm_requires_grad(base) ? "a tensor is a view of one that requires grad" : NULL;
}

/* Notes the device of a header; refuses a segment of several GPUs, or whose graph is on several devices. */
static void note_device(lm_segment *g, const lm_tensor *t) {
  const bool is_on_gpu = LM_DEVICE_KIND(t->device) != LM_CPU;
  if (is_on_gpu && LM_DEVICE_KIND(g->device) == LM_CPU) g->device = t->device;
  if (is_on_gpu && g->device != t->device) lm_segment_refuse(g, "its tensors are on several GPUs");
  if (!lm_requires_grad(t)) return;
  if (g->graph_device == LM_NO_DEVICE) g->graph_device = t->device;
  if (g->graph_device != t->device) lm_segment_refuse(g, "its graph is on several devices");
}

/* Returns in *out the instance of a header, added as one from outside if it is new. */
static lm_status need_instance(lm_compiled *c, const lm_segment_event *e, lm_tensor *t, int *out) {
  lm_segment *g = c->now;
  const bool reads_only = !e->is_backward && lm_rule_table[e->op].none;
  const char *name = e->is_backward ? "backward" : lm_ops[e->op].name;
  int buffer = lm_address_find(&c->buffer_of, t->storage), v;
  *out = find_instance(c, t);
  if (*out != NONE) {
    const lm_segment_value *known = &g->value[g->instance[*out].value];
    const char *reason = g->instance[*out].any_history && !reads_only ? lm_compiled_refuses(t, false) : NULL;
    if (reason) lm_segment_refuse(g, "%s: %s", name, reason);
    if (known->buffer != buffer || !lm_place_is(&known->place, 0, t)) lm_segment_refuse(g, "a tensor got other memory");
    return LM_OK;
  }
  const bool any_history = reads_only && lm_compiled_refuses(t, false);
  const char *reason = lm_compiled_refuses(t, any_history);
  note_device(g, t);
  if (!reason && buffer >= 0 && g->buffer[buffer].origin != LM_FROM_EVENT) reason = "a tensor has memory of another";
  if (reason) lm_segment_refuse(g, "%s: %s", name, reason);
  if (buffer < 0) NEED(add_buffer(c, LM_FROM_EVENT, t->storage, &buffer));
  NEED(lm_segment_value_at(g, buffer, t, &v));
  const lm_segment_instance n = {.value = v,
                                 .is_outside = true,
                                 .is_leaf = lm_requires_grad(t) && !any_history,
                                 .any_history = any_history,
                                 .base = NONE};
  if (!LM_APPEND(g->instance, g->ninstances, g->instance_capacity, n)) return LM_E_OOM;
  *out = g->ninstances - 1;
  return note_instance(c, *out, t) ? LM_OK : LM_E_OOM;
}

typedef struct gathered {
  lm_compiled *c;
  lm_segment_event *e;
  lm_status status;
} gathered;

static lm_status event_input(lm_compiled *c, const lm_segment_event *e, lm_tensor *t, int *out) {
  int v;
  *out = NONE;
  if (!t) return LM_OK;
  if (!t->number) return need_instance(c, e, t, out);
  NEED(number_value(c, t, &v));
  *out = ~v - 1; /* below NONE */
  return LM_OK;
}
static void add_input(void *ctx, lm_tensor **slot) {
  gathered *a = ctx;
  if (a->status == LM_OK) a->status = event_input(a->c, a->e, *slot, &a->e->in[a->e->nin]);
  a->e->nin++;
}

static lm_status add_result(lm_compiled *c, lm_segment_event *e, int k, lm_tensor *t) {
  lm_segment *g = c->now;
  if (!t) return LM_OK;
  e->out[k] = find_instance(c, t);
  if (e->out[k] != NONE) {
    for (int j = 0; j < e->nin; j++)
      if (e->in[j] == e->out[k]) e->same[k] = j;
    if (e->same[k] == NONE) lm_segment_refuse(g, "%s returns a tensor that it was not passed", lm_ops[e->op].name);
    return LM_OK;
  }
  const int buffer = lm_address_find(&c->buffer_of, t->storage);
  if (buffer < 0) {
    lm_segment_refuse(g, "the memory of %s's result is made by no op", lm_ops[e->op].name);
    return LM_OK;
  }
  int v;
  note_device(g, t);
  NEED(lm_segment_value_at(g, buffer, t, &v));
  lm_segment_instance n = {.value = v, .is_freed = lm_requires_grad(t), .maker = lm_ops[e->op].name, .base = NONE};
  if (lm_view_base(t) && e->nin > 0 && e->in[0] >= 0) {
    n.base = e->in[0];
    n.without_grad = t->grad->without_grad;
  }
  if (!LM_APPEND(g->instance, g->ninstances, g->instance_capacity, n)) return LM_E_OOM;
  e->out[k] = g->ninstances - 1;
  return note_instance(c, e->out[k], t) ? LM_OK : LM_E_OOM;
}

lm_status lm_compiled_call_plain(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_follower_swap(NULL);
  lm_status status = in_place ? lm_call_inplace(id, args, out) : lm_call(id, args, out);
  lm_follower_swap(&c->follower);
  return status;
}

void lm_header_become(lm_tensor *p, lm_tensor **o) {
  lm_tensor *t = *o;
  lm_tensor_move(p, t->storage, 0);
  p->data = t->data;
  p->ndim = t->ndim;
  p->numel = t->numel;
  memcpy(p->size, t->size, sizeof p->size);
  memcpy(p->stride, t->stride, sizeof p->stride);
  if (p->grad) lm_grad_free(p->grad);
  p->grad = t->grad;
  t->grad = NULL;
  lm_release(t);
  *o = lm_retain(p);
}

/* Notes which numbers a call may have where this one has its own. */
static void note_numbers(const lm_segment *g, lm_segment_event *e) {
  const lm_op *op = &lm_ops[e->op];
  if (op->kind != LM_POINTWISE || LM_DEVICE_KIND(g->device) != LM_CPU) return;
  for (int k = 0; k < e->nin; k++)
    e->is_real = e->is_real || (e->in[k] >= 0 && lm_dtype_is_float(g->value[g->instance[e->in[k]].value].place.dtype));
  const lm_segment_step *s = g->nsteps == e->nsteps + 1 ? &g->step[e->nsteps] : NULL;
  if (e->is_real && e->no_grad && !op->has_precheck && s && s->op == e->op) e->step_args = s->args;
}

lm_status lm_compiled_record_call(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **into,
                                  lm_tensor **out) {
  lm_segment *g = c->now;
  const lm_op *op = &lm_ops[id];
  lm_segment_event e = event_here(c, id, in_place);
  int slots = 0;
  lm_status status = LM_OK;
  g->is_fixed = g->is_fixed || id == LM_OP_as_strided;
  if (lm_recompute_is_active() || lm_anomaly()) lm_segment_refuse(g, "a checkpoint or anomaly detection records it");
  e.args = lm_args_copy(id, args);
  if (e.args) lm_each_tensor_slot(id, e.args, count_slot, &slots);
  e.in = lm_calloc((size_t)slots + 1, sizeof *e.in);
  gathered a = {c, &e, e.args && e.in ? LM_OK : LM_E_OOM};
  if (a.status == LM_OK) lm_each_tensor_slot(id, e.args, add_input, &a);
  if (a.status != LM_OK) lm_segment_refuse(g, "out of memory");
  lm_ops_recorded = g->runs_as_is ? NULL : &c->recorder;
  status = lm_compiled_call_plain(c, id, args, in_place, out);
  lm_ops_recorded = NULL;
  if (status != LM_OK) lm_segment_refuse(g, "%s failed", op->name);
  for (int i = e.nsteps; i < g->nsteps; i++) e.may_fail = e.may_fail || lm_step_may_fail(g, &g->step[i]);
  note_numbers(g, &e);
  e.nout = status != LM_OK ? 0 : in_place || op->kind == LM_WRITE ? 1 : op->outs;
  for (int k = 0; k < e.nout; k++) {
    if (into && into[k] && out[k]) lm_header_become(into[k], &out[k]);
    if (out[k] && lm_requires_grad(out[k])) e.histories |= (uint8_t)(1u << k);
    if (!g->runs_as_is && add_result(c, &e, k, out[k]) != LM_OK) lm_segment_refuse(g, "out of memory");
  }
  if (a.status == LM_OK && LM_APPEND(g->event, g->nevents, g->event_capacity, e)) return status;
  lm_segment_refuse(g, "out of memory");
  lm_args_free(id, e.args);
  lm_free(e.in);
  return status;
}

/* Returns in *v the value of a leaf's .grad, NONE for nil. */
static lm_status grad_value(lm_compiled *c, const lm_tensor *leaf, int *v) {
  lm_tensor *grad = lm_grad_of(leaf);
  *v = NONE;
  if (!grad) return LM_OK;
  if (lm_requires_grad(grad)) lm_segment_refuse(c->now, "a gradient has a history");
  int buffer = lm_address_find(&c->buffer_of, grad->storage);
  if (buffer < 0) NEED(add_buffer(c, LM_FROM_GRAD, grad->storage, &buffer));
  return lm_segment_value_at(c->now, buffer, grad, v);
}

static lm_status add_leaves(lm_compiled *c, lm_segment_event *e) {
  lm_segment *g = c->now;
  e->first_leaf = g->nleaves;
  for (int i = 0; i < c->nnoted; i++) {
    const lm_noted *n = &c->noted[i];
    e->delivers = e->delivers || (n->t && g->instance[n->instance].is_leaf && !lm_is_plain_leaf(n->t));
  }
  for (int i = 0; i < c->nnoted && !e->delivers; i++) {
    const lm_noted *n = &c->noted[i];
    if (!n->t || !g->instance[n->instance].is_leaf) continue;
    lm_segment_leaf leaf = {.instance = n->instance, .before = NONE, .after = NONE};
    NEED(grad_value(c, n->t, &leaf.before));
    if (!LM_APPEND(g->leaf, g->nleaves, g->leaf_capacity, leaf)) return LM_E_OOM;
    e->nleaves++;
  }
  return LM_OK;
}

static lm_status set_leaves(lm_compiled *c, lm_segment_event *e) {
  lm_segment *g = c->now;
  while (c->ndelivered > 0) lm_release(c->delivered[--c->ndelivered]);
  if (e->delivers) e->nleaves = g->nleaves - e->first_leaf;
  if (e->delivers) return LM_OK;
  for (int i = 0; i < c->nnoted; i++) {
    const lm_noted *n = &c->noted[i];
    for (int k = e->first_leaf; n->t && k < e->first_leaf + e->nleaves; k++)
      if (g->leaf[k].instance == n->instance) NEED(grad_value(c, n->t, &g->leaf[k].after));
  }
  for (int k = e->first_leaf; k < e->first_leaf + e->nleaves; k++) {
    const int after = g->leaf[k].after;
    if (after >= 0 && g->buffer[g->value[after].buffer].origin == LM_FROM_GRAD && after != g->leaf[k].before)
      lm_segment_refuse(g, "a gradient has memory that no op made");
  }
  return LM_OK;
}

lm_status lm_compiled_backward_plain(lm_compiled *c, const lm_backward_args *a) {
  lm_follower_swap(NULL);
  lm_status status = lm_backward(a, NULL);
  lm_follower_swap(&c->follower);
  return status;
}

lm_status lm_compiled_record_backward(lm_compiled *c, const lm_backward_args *a) {
  lm_segment *g = c->now;
  lm_segment_event e = event_here(c, NONE, false);
  e.is_backward = true;
  e.retains = a->retain_graph;
  e.nout = a->nroots; /* number of roots */
  e.in = lm_calloc(2 * (size_t)a->nroots + 1, sizeof *e.in);
  lm_status noting = e.in ? LM_OK : LM_E_OOM;
  for (int i = 0; i < 2 * a->nroots && noting == LM_OK; i++) {
    lm_tensor *t = i < a->nroots ? a->roots[i] : a->grads ? a->grads[i - a->nroots] : NULL;
    noting = event_input(c, &e, t, &e.in[e.nin++]);
  }
  if (noting == LM_OK) noting = add_leaves(c, &e);
  if (noting != LM_OK) lm_segment_refuse(g, "out of memory");
  lm_ops_recorded = g->runs_as_is ? NULL : &c->recorder;
  c->delivers = e.delivers;
  lm_status status = lm_compiled_backward_plain(c, a);
  lm_ops_recorded = NULL;
  if (status != LM_OK) lm_segment_refuse(g, "backward failed");
  if (set_leaves(c, &e) != LM_OK) lm_segment_refuse(g, "out of memory");
  const bool is_added = e.in && LM_APPEND(g->event, g->nevents, g->event_capacity, e);
  if (!is_added) lm_segment_refuse(g, "out of memory");
  if (!is_added) lm_free(e.in);
  if (e.delivers) lm_compiled_finish_recording(c); /* hooks run when backward is called */
  return status;
}

static bool new_segment(lm_compiled *c) {
  lm_segment *g = c->now = lm_calloc(1, sizeof *g);
  if (!g) return false;
  c->mode = RECORDING;
  g->patience = 2;
  g->is_exact = c->is_exact;
  g->device = LM_DEVICE(LM_CPU, 0);
  g->graph_device = LM_NO_DEVICE;
  return true;
}

bool lm_compiled_record(lm_compiled *c) {
  const bool records = c->credit >= 1 && !lm_graph_capturing(); /* the collector, which may follow, breaks captures */
  if (!records || !new_segment(c)) {
    c->now = NULL;
    c->mode = AS_IS;
    return false;
  }
  c->credit--;
  c->recordings++;
  lm_tensors_watched = &c->watcher;
  return true;
}

/* Finds which leaves of backward passes the history of each instance leads to. */
static bool find_reached_leaves(lm_segment *g) {
  const int words = g->words = g->nleaves / 64 + 1;
  g->reached = lm_calloc((size_t)(g->ninstances + 1) * (size_t)words, sizeof *g->reached);
  if (!g->reached) return false;
  for (int i = 0; i < g->nleaves; i++) g->reached[g->leaf[i].instance * words + i / 64] |= UINT64_C(1) << i % 64;
  for (int i = 0; i < g->nevents; i++) {
    const lm_segment_event *e = &g->event[i];
    for (int k = 0; k < e->nout && !e->is_backward && !e->no_grad; k++)
      for (int j = 0; j < e->nin && e->out[k] >= 0; j++)
        for (int w = 0; w < words && e->in[j] >= 0; w++)
          g->reached[e->out[k] * words + w] |= g->reached[e->in[j] * words + w];
    for (int k = 0; k < e->nout && !e->is_backward; k++)
      for (int w = 0;
           w < words && e->out[k] >= 0 && !g->instance[e->out[k]].is_freed && !g->instance[e->out[k]].is_leaf; w++)
        g->reached[e->out[k] * words + w] = 0;
  }
  return true;
}

/* Finds what becomes of results of the segment that ends here. */
static void describe_results(lm_compiled *c) {
  lm_segment *g = c->now;
  if (!find_reached_leaves(g)) lm_segment_refuse(g, "out of memory");
  int used = 0; /* number of instances that were there when backward last ran */
  for (int i = 0; i < g->nevents; i++)
    if (g->event[i].is_backward) used = lm_segment_count_instances(g, i);
  for (int i = 0; i < c->nnoted; i++) {
    const lm_noted *n = &c->noted[i];
    lm_segment_instance *instance = &g->instance[n->instance];
    if (!n->t && !instance->is_outside && instance->is_freed && used == 0) lm_segment_refuse(g, LM_GRAPH_DROPPED);
    if (!n->t) continue;
    if (instance->is_outside) {
      if (!instance->any_history && lm_requires_grad(n->t) != instance->is_leaf)
        lm_segment_refuse(g, "a tensor from outside got a history");
      continue;
    }
    instance->is_freed = lm_requires_grad(n->t);
    if (!instance->is_freed) continue;
    const lm_open_result open = {g, n->t};
    const bool is_freed = lm_has_freed_history(n->t, &instance->maker, &instance->freed) && n->instance < used;
    if (!is_freed && !LM_APPEND(c->open, c->nopen, c->open_capacity, open)) lm_segment_refuse(g, "out of memory");
  }
}

/* Returns true for a step that draws from a generator that the script made. */
static bool draws_from_own(const lm_segment_step *s) {
  for (int i = 0; s->op >= 0 && i < lm_ops[s->op].nargs; i++) {
    const lm_arg *a = &lm_ops[s->op].arg[i];
    if (a->kind == LM_ARG_GENERATOR && *(void *const *)((const char *)s->args + a->offset)) return true;
  }
  return false;
}

/* Returns true if a result that is noted leads to a graph that backward has not freed; notes the names of histories. */
static bool has_open_graph(const lm_compiled *c) {
  bool is_open = false;
  for (int i = 0; i < c->nnoted; i++) {
    const lm_noted *n = &c->noted[i];
    lm_segment_instance *instance = &c->now->instance[n->instance];
    const char *freed;
    if (n->t && !instance->is_outside && lm_requires_grad(n->t))
      is_open = !lm_has_freed_history(n->t, &instance->paused, &freed) || is_open;
  }
  return is_open;
}

bool lm_compiled_record_pause(lm_compiled *c) {
  lm_segment *g = c->now;
  if (g->runs_as_is || g->nevents == 0 || lm_segment_has_backward(g, g->nevents) || !has_open_graph(c)) return false;
  for (int i = 0; i < g->nsteps; i++)
    if (draws_from_own(&g->step[i])) return false;
  if (g->event[g->nevents - 1].is_pause) return true;
  lm_segment_event e = event_here(c, NONE, false);
  e.is_pause = true;
  return LM_APPEND(g->event, g->nevents, g->event_capacity, e);
}

static void note_reason(lm_compiled *c, const lm_segment *g) {
  if (!g->runs_as_is || g->nsteps < FEW || (c->line && !g->line)) return;
  snprintf(c->reason, sizeof c->reason, "%s", g->reason);
  c->line = g->line;
}

void lm_compiled_refuse_open(lm_compiled *c, const lm_tensor *t) {
  for (int i = 0; i < c->nopen; i++) {
    lm_segment *g = c->open[i].segment;
    if (!c->open[i].t || (t && c->open[i].t != t)) continue;
    lm_segment_refuse(g, "a tensor still has a history that more than backward may need");
    note_reason(c, g);
  }
}

static void forget_recording(lm_compiled *c) {
  if (c->nopen == 0) lm_tensors_watched = NULL;
  c->now = NULL;
  c->mode = AT_START;
  c->nnoted = 0;
  lm_free(c->instance_of.entry);
  lm_free(c->buffer_of.entry);
  lm_free(c->number_of.entry);
  c->instance_of = c->buffer_of = c->number_of = (lm_address_map){0};
}

void lm_compiled_finish_recording(lm_compiled *c) {
  lm_segment *g = c->now;
  g->line = lm_script_line();
  if (!g->runs_as_is) describe_results(c);
  if (!g->runs_as_is && g->nsteps < FEW) lm_segment_refuse(g, "it is too short");
  if (!g->runs_as_is && c->explains) lm_segment_write(g, false, &g->recorded);
  if (!g->runs_as_is && lm_segment_plan(g) != LM_OK) lm_segment_refuse(g, "out of memory");
  note_reason(c, g);
  c->made += !g->runs_as_is;
  g->next = c->segments;
  c->segments = g;
  forget_recording(c);
}

/* ---- recording: plans */

lm_status lm_compiled_record_plan(lm_compiled *c, int n, lm_tensor *const *inputs) {
  if (!new_segment(c)) return LM_E_OOM;
  c->is_plan = true;
  for (int i = 0, buffer; i < n; i++) {
    lm_segment_instance instance = {.is_outside = true, .base = NONE};
    const bool is_shared = lm_address_find(&c->buffer_of, inputs[i]->storage) != NONE;
    NEED(add_buffer(c, LM_FROM_EVENT, inputs[i]->storage, &buffer));
    if (is_shared) lm_address_set(&c->buffer_of, inputs[i]->storage, SHARED);
    c->now->buffer[buffer].depends = true;
    NEED(lm_segment_value_at(c->now, buffer, inputs[i], &instance.value));
    if (!LM_APPEND(c->now->instance, c->now->ninstances, c->now->instance_capacity, instance) ||
        !note_instance(c, i, inputs[i]))
      return LM_E_OOM;
  }
  return LM_OK;
}

void lm_compiled_watch_ops(lm_compiled *c, bool watches) {
  if (watches) c->outer = lm_tensors_watched, c->outer_ops = lm_ops_recorded;
  lm_tensors_watched = watches ? &c->watcher : c->outer;
  lm_ops_recorded = watches ? &c->recorder : c->outer_ops;
  atomic_fetch_add(&lm_compiled_calls, watches ? 1 : -1);
}

lm_status lm_compiled_plan_value(lm_compiled *c, lm_tensor *t, int *v) { return step_value(c, t, false, false, v); }

lm_segment *lm_compiled_take_plan(lm_compiled *c) {
  lm_segment *g = c->now;
  c->now = NULL;
  c->mode = AT_START;
  return g;
}
