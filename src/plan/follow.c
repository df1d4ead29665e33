#include "plan/follow.h"

#include <stdio.h>

#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/interned.h"
#include "base/mem.h"
#include "op/pointwise.h"
#include "op/run.h"
#include "op_entries.h"
#include "plan/segment.h"

enum { MOST = 64, CREDIT = 32, FEW = 4, NONE = -1, UNKNOWN = -2 };
enum { NO_SCOPE, SAME_SCOPE, NEXT_SCOPE };

typedef enum follow_mode { AT_START, AS_IS, RECORDING, MATCHING } follow_mode;

typedef struct noted { /* a header that the script sees, while a segment is recorded */
  int instance;
  lm_tensor *t; /* not retained; NULL once it is freed */
} noted;

typedef struct open_result { /* a result of a finished segment whose history backward has not freed */
  lm_segment *segment;
  lm_tensor *t; /* not retained; NULL once it is freed */
} open_result;

struct lm_compiled {
  lm_follower follower;
  lm_op_recorder recorder;
  lm_tensor_watcher watcher;
  lm_segment *segments; /* the last used first */
  lm_segment *now;      /* the segment of this call's latest events, or NULL */
  follow_mode mode;
  int at;                                 /* MATCHING: number of its events so far */
  int recordings, recordings_before, ran; /* recordings_before: before this call */
  double credit;
  uint32_t scope;                /* autocast's outermost scope of the segment's last event in one */
  const lm_segment_event *again; /* the event that is called again, or NULL */
  lm_address_map buffer_of;      /* buffers of storages, while a segment is recorded; UNKNOWN: made by no step */
  lm_address_map instance_of;    /* indices in `noted` of headers */
  lm_address_map bound;          /* MATCHING: buffers of storages from outside */
  noted *noted;
  int nnoted;
  size_t noted_capacity;
  open_result *open;
  int nopen;
  size_t open_capacity;
  char reason[200];
  const char *line;
};

static lm_compiled *of_recorder(lm_op_recorder *r) {
  return (lm_compiled *)((char *)r - offsetof(lm_compiled, recorder));
}
static lm_compiled *of_watcher(lm_tensor_watcher *w) {
  return (lm_compiled *)((char *)w - offsetof(lm_compiled, watcher));
}

bool lm_is_without_values(const lm_tensor *t) {
  return t->numel > 0 && !t->storage->data && !t->storage->source && !t->number;
}

bool lm_is_lost(const lm_tensor *t) {
  return lm_is_without_values(t) && atomic_load_explicit(&t->storage->writer, memory_order_relaxed) == LM_BY_COMPILED;
}

/* ---- recording: what becomes of tensors */

static void note_made(lm_tensor_watcher *w, const lm_storage *s) {
  lm_compiled *c = of_watcher(w);
  if (c->mode != RECORDING) return;
  if (!lm_address_set(&c->buffer_of, s, UNKNOWN)) lm_segment_refuse(c->now, "out of memory");
}

static void note_freed(lm_tensor_watcher *w, const lm_storage *s) {
  lm_compiled *c = of_watcher(w);
  if (lm_address_find(&c->buffer_of, s) != NONE) lm_address_set(&c->buffer_of, s, NONE);
}

static void note_dropped(lm_tensor_watcher *w, const lm_tensor *t) {
  lm_compiled *c = of_watcher(w);
  const int i = lm_address_find(&c->instance_of, t);
  for (int k = 0; k < c->nopen; k++)
    if (c->open[k].t == t) c->open[k].t = NULL;
  if (i == NONE) return;
  c->noted[i].t = NULL;
  lm_address_set(&c->instance_of, t, NONE);
}

static void note_read(lm_tensor_watcher *w) {
  lm_compiled *c = of_watcher(w);
  if (lm_ops_recorded == &c->recorder) lm_segment_refuse(c->now, "an op reads values");
}

static bool note_instance(lm_compiled *c, int instance, lm_tensor *t) {
  const noted n = {instance, t};
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

/* Returns in *v the value of a step's argument, or result. `writes`: the step writes all of it before it reads any. */
static lm_status step_value(lm_compiled *c, lm_tensor *t, bool is_result, bool writes, int *v) {
  *v = NONE;
  if (!t) return LM_OK;
  if (t->number) return lm_segment_number(c->now, t, v);
  int buffer = lm_address_find(&c->buffer_of, t->storage);
  if (buffer < 0 && !is_result && !(buffer == UNKNOWN && writes))
    lm_segment_refuse(c->now, "an op reads a tensor that the step neither made nor passed to an op");
  if (buffer < 0) NEED(add_buffer(c, is_result ? LM_FROM_STEP : LM_UNWRITTEN, t->storage, &buffer));
  return lm_segment_value_at(c->now, buffer, t, v);
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

/* Returns true for an op whose result's shape depends on values. */
static bool depends_on_values(lm_op_id id, const void *args) {
  static const char *const names[] = {"nonzero", "masked_values", "one_hot", "nms_sorted", "linalg_lstsq"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(lm_ops[id].name, names[i]) == 0) return true;
  const lm_list *list = lm_ops[id].list >= 0 ? (const lm_list *)((const char *)args + lm_ops[id].list) : NULL;
  for (int i = 0; list && i < list->n; i++)
    if (list->v[i] && list->v[i]->dtype == LM_BOOL && strncmp(lm_ops[id].name, "index", 5) == 0) return true;
  return false;
}

/* Returns true if values may make a step fail: indices, labels, matrices, parameters of distributions, divisors. */
static bool may_fail(const lm_segment *g, const lm_segment_step *s) {
  static const char *const names[] = {"linalg_", "cholesky", "inverse", "bernoulli", "multinomial",
                                      "poisson", "binomial", "normal",  "slogdet",   "triangular_solve"};
  if (s->op < 0) return false;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strncmp(lm_ops[s->op].name, names[i], strlen(names[i])) == 0) return true;
  if (lm_ops[s->op].kind == LM_VIEW || (lm_ops[s->op].kind == LM_POINTWISE && !lm_ops[s->op].divisor_arg)) return false;
  for (int k = 0; k < s->nin; k++) {
    const lm_segment_value *v = s->in[k] >= 0 ? &g->value[s->in[k]] : NULL;
    if (v && !v->number && !lm_dtype_is_float(v->place.dtype) && v->place.dtype != LM_BOOL) return true;
  }
  return false;
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

static lm_status record_step(lm_compiled *c, lm_op_id id, const void *args, lm_run_form form, lm_tensor *const *out) {
  const lm_op *op = &lm_ops[id];
  int slots = 0;
  lm_segment_step *s;
  if (depends_on_values(id, args)) lm_segment_refuse(c->now, "the shape of %s's result depends on values", op->name);
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
  for (int k = 0; k < s->nout; k++) NEED(step_value(c, out[k], true, false, &s->out[k]));
  return LM_OK;
}

static void on_op(lm_op_recorder *r, lm_op_id id, const void *args, lm_run_form form, lm_tensor *const *out) {
  lm_compiled *c = of_recorder(r);
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
  return step_value(c, out, true, false, &s->out[0]);
}

static void on_pointwise(lm_op_recorder *r, int kernel, int nin, lm_tensor *const *in, const double *numbers,
                         lm_tensor *out) {
  lm_compiled *c = of_recorder(r);
  if (!c->now->runs_as_is && record_pointwise(c, kernel, nin, in, numbers, out) != LM_OK)
    lm_segment_refuse(c->now, "out of memory");
}

/* ---- recording: events */

/* Returns how autocast's outermost scope is to that of the event before: a weight is cast once in each. */
static int scope_here(const lm_compiled *c) {
  const uint32_t scope = lm_autocast_scope();
  return scope == 0 ? NO_SCOPE : scope == c->scope ? SAME_SCOPE : NEXT_SCOPE;
}

static void note_scope(lm_compiled *c) {
  if (lm_autocast_scope() != 0) c->scope = lm_autocast_scope();
}

static lm_segment_event event_here(lm_compiled *c, lm_op_id id, bool in_place) {
  lm_segment_event e = {.op = id,
                        .in_place = in_place,
                        .no_grad = !lm_grad_enabled(),
                        .cast = lm_autocast_get(),
                        .scope = c->again ? c->again->scope : scope_here(c),
                        .default_dtype = lm_default_dtype(),
                        .default_device = lm_default_device(),
                        .nsteps = c->now->nsteps};
  if (!c->again) note_scope(c);
  for (int k = 0; k < LM_MAX_OUTS; k++) e.out[k] = e.same[k] = NONE;
  return e;
}

/* Returns a sentence that says why a tensor from outside makes its segment run as it is; NULL if it does not. */
static const char *refuses(const lm_tensor *t) {
  if (LM_DEVICE_KIND(t->device) != LM_CPU) return "a tensor is not on the CPU";
  if (lm_has_source(t) || lm_is_placeholder(t)) return "a parameter is gathered when it is needed";
  if (lm_requires_grad(t) && !lm_is_plain_leaf(t))
    return lm_is_leaf(t) ? "a parameter has hooks, or a buffer for its gradient" : "a tensor has a history already";
  const lm_tensor *base = lm_view_base(t);
  return base && lm_requires_grad(base) ? "a tensor is a view of one that requires grad" : NULL;
}

/* Returns in *out the instance of a header, added as one from outside if it is new. */
static lm_status need_instance(lm_compiled *c, lm_tensor *t, int *out) {
  lm_segment *g = c->now;
  int buffer = lm_address_find(&c->buffer_of, t->storage), v;
  *out = find_instance(c, t);
  if (*out != NONE) {
    const lm_segment_value *known = &g->value[g->instance[*out].value];
    if (known->buffer != buffer || !lm_place_is(&known->place, t)) lm_segment_refuse(g, "a tensor got other memory");
    return LM_OK;
  }
  const char *reason = refuses(t);
  if (!reason && buffer >= 0 && g->buffer[buffer].origin != LM_FROM_EVENT) reason = "a tensor has memory of another";
  if (reason) lm_segment_refuse(g, "%s", reason);
  if (buffer < 0) NEED(add_buffer(c, LM_FROM_EVENT, t->storage, &buffer));
  NEED(lm_segment_value_at(g, buffer, t, &v));
  const lm_segment_instance n = {.value = v, .is_outside = true, .is_leaf = lm_requires_grad(t), .base = NONE};
  if (!LM_APPEND(g->instance, g->ninstances, g->instance_capacity, n)) return LM_E_OOM;
  *out = g->ninstances - 1;
  return note_instance(c, *out, t) ? LM_OK : LM_E_OOM;
}

typedef struct gathered {
  lm_compiled *c;
  lm_segment_event *e;
  lm_status status;
} gathered;

static lm_status event_input(lm_compiled *c, lm_tensor *t, int *out) {
  int v;
  *out = NONE;
  if (!t) return LM_OK;
  if (!t->number) return need_instance(c, t, out);
  NEED(lm_segment_number(c->now, t, &v));
  *out = ~v - 1; /* below NONE */
  return LM_OK;
}
static lm_tensor *number_of(const lm_segment *g, int in) { return g->value[~(in + 1)].number; }

static void add_input(void *ctx, lm_tensor **slot) {
  gathered *a = ctx;
  if (a->status == LM_OK) a->status = event_input(a->c, *slot, &a->e->in[a->e->nin]);
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
  NEED(lm_segment_value_at(g, buffer, t, &v));
  lm_segment_instance n = {.value = v, .is_freed = lm_requires_grad(t), .maker = e->op, .base = NONE};
  if (lm_view_base(t) && e->nin > 0 && e->in[0] >= 0) {
    n.base = e->in[0];
    n.without_grad = t->grad->without_grad;
  }
  if (!LM_APPEND(g->instance, g->ninstances, g->instance_capacity, n)) return LM_E_OOM;
  e->out[k] = g->ninstances - 1;
  return note_instance(c, e->out[k], t) ? LM_OK : LM_E_OOM;
}

static lm_status call_plain(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_follower_swap(NULL);
  lm_status status = in_place ? lm_call_inplace(id, args, out) : lm_call(id, args, out);
  lm_follower_swap(&c->follower);
  return status;
}

/* Makes the header p, which has no values, what o is, and replaces *o by p. */
static void become(lm_tensor *p, lm_tensor **o) {
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

/* Notes inputs, calls the op with its steps recorded, notes results. into: headers that become the results, or NULL. */
static lm_status record_call(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **into,
                             lm_tensor **out) {
  lm_segment *g = c->now;
  const lm_op *op = &lm_ops[id];
  lm_segment_event e = event_here(c, id, in_place);
  int slots = 0;
  lm_status status = LM_OK;
  if (lm_recompute_is_active() || lm_anomaly()) lm_segment_refuse(g, "a checkpoint or anomaly detection records it");
  e.args = lm_args_copy(id, args);
  if (e.args) lm_each_tensor_slot(id, e.args, count_slot, &slots);
  e.in = lm_calloc((size_t)slots + 1, sizeof *e.in);
  gathered a = {c, &e, e.args && e.in ? LM_OK : LM_E_OOM};
  if (a.status == LM_OK) lm_each_tensor_slot(id, e.args, add_input, &a);
  if (a.status != LM_OK) lm_segment_refuse(g, "out of memory");
  lm_ops_recorded = g->runs_as_is ? NULL : &c->recorder;
  status = call_plain(c, id, args, in_place, out);
  lm_ops_recorded = NULL;
  if (status != LM_OK) lm_segment_refuse(g, "%s failed", op->name);
  for (int i = e.nsteps; i < g->nsteps; i++) e.may_fail = e.may_fail || may_fail(g, &g->step[i]);
  e.nout = status != LM_OK ? 0 : in_place || op->kind == LM_WRITE ? 1 : op->outs;
  for (int k = 0; k < e.nout; k++) {
    if (into && into[k] && out[k]) become(into[k], &out[k]);
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
    const noted *n = &c->noted[i];
    if (!n->t || !g->instance[n->instance].is_leaf) continue;
    lm_segment_leaf leaf = {n->instance, NONE, NONE};
    NEED(grad_value(c, n->t, &leaf.before));
    if (!LM_APPEND(g->leaf, g->nleaves, g->leaf_capacity, leaf)) return LM_E_OOM;
    e->nleaves++;
  }
  return LM_OK;
}

static lm_status set_leaves(lm_compiled *c, const lm_segment_event *e) {
  lm_segment *g = c->now;
  for (int i = 0; i < c->nnoted; i++) {
    const noted *n = &c->noted[i];
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

static lm_status backward_plain(lm_compiled *c, const lm_backward_args *a) {
  lm_follower_swap(NULL);
  lm_status status = lm_backward(a, NULL);
  lm_follower_swap(&c->follower);
  return status;
}

static lm_status record_backward(lm_compiled *c, const lm_backward_args *a) {
  lm_segment *g = c->now;
  lm_segment_event e = event_here(c, NONE, false);
  e.is_backward = true;
  e.retains = a->retain_graph;
  e.nout = a->nroots; /* number of roots */
  e.in = lm_calloc(2 * (size_t)a->nroots + 1, sizeof *e.in);
  lm_status noting = e.in ? LM_OK : LM_E_OOM;
  for (int i = 0; i < 2 * a->nroots && noting == LM_OK; i++) {
    lm_tensor *t = i < a->nroots ? a->roots[i] : a->grads ? a->grads[i - a->nroots] : NULL;
    noting = event_input(c, t, &e.in[e.nin++]);
  }
  if (noting == LM_OK) noting = add_leaves(c, &e);
  if (noting != LM_OK) lm_segment_refuse(g, "out of memory");
  lm_ops_recorded = g->runs_as_is ? NULL : &c->recorder;
  lm_status status = backward_plain(c, a);
  lm_ops_recorded = NULL;
  if (status != LM_OK) lm_segment_refuse(g, "backward failed");
  if (!g->runs_as_is && set_leaves(c, &e) != LM_OK) lm_segment_refuse(g, "out of memory");
  if (e.in && LM_APPEND(g->event, g->nevents, g->event_capacity, e)) return status;
  lm_segment_refuse(g, "out of memory");
  lm_free(e.in);
  return status;
}

static bool begin_recording(lm_compiled *c) {
  lm_segment *g = c->credit >= 1 ? lm_calloc(1, sizeof *g) : NULL;
  c->now = g;
  c->mode = g ? RECORDING : AS_IS;
  if (!g) return false;
  g->patience = 2;
  c->credit--;
  c->recordings++;
  lm_tensors_watched = &c->watcher;
  return true;
}

/* Returns the number of instances that the first n events have. */
static int count_instances(const lm_segment *g, int n) {
  int most = 0;
  for (int i = 0; i < n; i++) {
    const lm_segment_event *e = &g->event[i];
    for (int k = 0; k < e->nin; k++) most = e->in[k] >= most ? e->in[k] + 1 : most;
    for (int k = 0; k < e->nout && !e->is_backward; k++) most = e->out[k] >= most ? e->out[k] + 1 : most;
  }
  return most;
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
    if (g->event[i].is_backward) used = count_instances(g, i);
  for (int i = 0; i < c->nnoted; i++) {
    const noted *n = &c->noted[i];
    lm_segment_instance *instance = &g->instance[n->instance];
    if (!n->t) continue;
    if (instance->is_outside) {
      if (lm_requires_grad(n->t) != instance->is_leaf) lm_segment_refuse(g, "a tensor from outside got a history");
      continue;
    }
    instance->is_freed = lm_requires_grad(n->t);
    if (!instance->is_freed) continue;
    const open_result open = {g, n->t};
    const bool is_freed = lm_has_freed_history(n->t, &instance->maker) && n->instance < used;
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

/* Returns true if backward is among the first n events. */
static bool has_backward_before(const lm_segment *g, int n) {
  for (int i = 0; i < n; i++)
    if (g->event[i].is_backward) return true;
  return false;
}

/* Returns true if a result that is noted leads to a graph that backward has not freed. */
static bool has_open_graph(const lm_compiled *c) {
  lm_op_id op;
  for (int i = 0; i < c->nnoted; i++) {
    const noted *n = &c->noted[i];
    if (n->t && !c->now->instance[n->instance].is_outside && lm_requires_grad(n->t) && !lm_has_freed_history(n->t, &op))
      return true;
  }
  return false;
}

/* Notes that values are needed here while the graph is still open; false if the segment has to end. */
static bool record_pause(lm_compiled *c) {
  lm_segment *g = c->now;
  if (g->runs_as_is || g->nevents == 0 || has_backward_before(g, g->nevents) || !has_open_graph(c)) return false;
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

/* Makes segments run as they are of which t (NULL: any) is a result that still has a history, now that it is used. */
static void refuse_open(lm_compiled *c, const lm_tensor *t) {
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
  c->instance_of = c->buffer_of = (lm_address_map){0};
}

static void finish_recording(lm_compiled *c) {
  lm_segment *g = c->now;
  g->line = lm_script_line();
  if (!g->runs_as_is) describe_results(c);
  if (!g->runs_as_is && g->nsteps < FEW) lm_segment_refuse(g, "it is too short");
  if (!g->runs_as_is && lm_segment_plan(g) != LM_OK) lm_segment_refuse(g, "out of memory");
  note_reason(c, g);
  g->next = c->segments;
  c->segments = g;
  forget_recording(c);
}

/* ---- matching */

static bool cast_is_equal(const lm_autocast *a, const lm_autocast *b) {
  if (a->on != b->on || a->keeps != b->keeps || a->uncached != b->uncached) return false;
  for (int k = 0; k < LM_DEVICE_KINDS; k++)
    if (a->on >> k & 1 && a->dtype[k] != b->dtype[k]) return false;
  return true;
}

static bool is_in_mode_of(const lm_compiled *c, const lm_segment_event *e) {
  const lm_autocast cast = lm_autocast_get();
  return e->scope == scope_here(c) && e->no_grad == !lm_grad_enabled() && e->default_dtype == lm_default_dtype() &&
         e->default_device == lm_default_device() && cast_is_equal(&e->cast, &cast);
}

static bool bind_buffer(lm_compiled *c, int buffer, lm_storage *s) {
  lm_segment_buffer *b = &c->now->buffer[buffer];
  if (b->storage) return b->storage == s;
  if (lm_address_find(&c->bound, s) != NONE || !lm_address_set(&c->bound, s, buffer)) return false;
  lm_storage_retain(b->storage = s);
  b->version = atomic_load(&s->version);
  return true;
}

static bool bind_outside(lm_compiled *c, lm_segment_instance *n, lm_tensor *t) {
  lm_segment *g = c->now;
  if (n->t) return n->t == t && t->storage == g->buffer[g->value[n->value].buffer].storage;
  if (!lm_place_is(&g->value[n->value].place, t) || lm_requires_grad(t) != n->is_leaf || lm_is_without_values(t) ||
      refuses(t))
    return false;
  const bool is_bound = lm_address_find(&c->bound, t->storage) != NONE;
  for (int i = 0; i < g->ninstances && is_bound; i++)
    if (g->instance[i].t == t) return false; /* recorded as another */
  if (!bind_buffer(c, g->value[n->value].buffer, t->storage)) return false;
  n->t = lm_retain(t);
  return true;
}

static bool input_is(lm_compiled *c, int in, lm_tensor *t) {
  lm_segment *g = c->now;
  if (in == NONE || !t) return in == NONE && !t;
  if (in < NONE) return t->number && lm_numbers_equal(number_of(g, in), t);
  if (t->number) return false;
  lm_segment_instance *n = &g->instance[in];
  return n->is_outside ? bind_outside(c, n, t) : n->t == t;
}

typedef struct comparing {
  lm_compiled *c;
  const int *in;
  bool is_equal;
} comparing;

static void compare_slot(void *ctx, lm_tensor **slot) {
  comparing *k = ctx;
  k->is_equal = k->is_equal && input_is(k->c, *k->in, *slot);
  k->in++;
}

static bool is_event(lm_compiled *c, const lm_segment_event *e, lm_op_id id, const void *args, bool in_place) {
  if (e->is_backward || e->is_pause || e->op != id || e->in_place != in_place || !is_in_mode_of(c, e) ||
      !lm_args_equal(id, e->args, args))
    return false;
  comparing k = {c, e->in, true};
  lm_each_tensor_slot(id, (void *)args, compare_slot, &k);
  return k.is_equal;
}

static bool is_backward_event(lm_compiled *c, const lm_segment_event *e, const lm_backward_args *a) {
  lm_segment *g = c->now;
  if (!e->is_backward || e->retains != a->retain_graph || e->nout != a->nroots || !is_in_mode_of(c, e)) return false;
  for (int i = 0; i < a->nroots; i++) {
    if (!input_is(c, e->in[i], a->roots[i])) return false;
    if (!input_is(c, e->in[a->nroots + i], a->grads ? a->grads[i] : NULL)) return false;
  }
  for (int k = e->first_leaf; k < e->first_leaf + e->nleaves; k++) {
    const lm_segment_leaf *leaf = &g->leaf[k];
    const lm_tensor *t = g->instance[leaf->instance].t;
    if (!t || !lm_is_plain_leaf(t)) return false;
    lm_tensor *grad = lm_grad_of(t);
    if (leaf->before >= 0 && g->buffer[g->value[leaf->before].buffer].origin == LM_FROM_STEP) continue; /* set here */
    if (!grad != (leaf->before < 0)) return false;
    if (grad && (lm_requires_grad(grad) || !lm_place_is(&g->value[leaf->before].place, grad) ||
                 !bind_buffer(c, g->value[leaf->before].buffer, grad->storage)))
      return false;
  }
  return true;
}

/* Makes the header of an event's new result, without values. */
static lm_status new_result(lm_segment *g, lm_segment_instance *n) {
  const lm_segment_value *v = &g->value[n->value];
  lm_segment_buffer *b = &g->buffer[v->buffer];
  const lm_place *p = &v->place;
  lm_storage *s = b->storage ? b->storage : b->pending;
  NEED(lm_tensor_at(s, p->dtype, p->device, p->ndim, p->size, p->stride, p->at, &n->t));
  if (!s) lm_storage_retain(b->pending = n->t->storage);
  return LM_OK;
}

static lm_status return_results(lm_compiled *c, const lm_segment_event *e, lm_tensor **out) {
  lm_segment *g = c->now;
  for (int k = 0; k < e->nout; k++) {
    out[k] = NULL;
    if (e->out[k] == NONE) continue;
    lm_segment_instance *n = &g->instance[e->out[k]];
    if (e->same[k] == NONE) NEED(new_result(g, n));
    out[k] = lm_retain(n->t);
  }
  return LM_OK;
}

/* Drops what this call has of a segment that it followed. */
static void forget_call(lm_compiled *c, lm_segment *g) {
  lm_segment_reset(g);
  lm_free(c->bound.entry);
  c->bound = (lm_address_map){0};
}

/* Runs the segment's steps, whose events were all called. */
static lm_status run_segment(lm_compiled *c) {
  lm_segment *g = c->now, **at = &c->segments;
  lm_status status = lm_segment_run(g);
  if (status == LM_E_STATE) lm_segment_refuse(g, "%s", lm_error());
  forget_call(c, g);
  while (*at != g) at = &(*at)->next;
  *at = g->next;
  g->next = c->segments;
  c->segments = g;
  c->now = NULL;
  c->mode = AT_START;
  c->ran++;
  if (c->credit < CREDIT) c->credit += 0.25;
  return status;
}

typedef struct refilling {
  const lm_segment *g;
  const int *in;
} refilling;

static void refill_slot(void *ctx, lm_tensor **slot) {
  refilling *r = ctx;
  const int in = *r->in++;
  *slot = in == NONE ? NULL : in < NONE ? number_of(r->g, in) : r->g->instance[in].t;
}

/* Calls again, now with values, what was called since the segment began. */
static lm_status call_again(lm_compiled *c, lm_segment *g, const lm_segment_event *e) {
  if (e->is_pause) {
    if (c->mode == RECORDING && !record_pause(c)) lm_segment_refuse(c->now, "out of memory");
    return LM_OK;
  }
  if (e->is_backward) {
    lm_tensor *roots[2 * 64] = {NULL};
    const int n = e->nout;
    for (int i = 0; i < 2 * n; i++) refill_slot(&(refilling){g, &e->in[i]}, &roots[i]);
    const lm_backward_args a = {.nroots = n, .roots = roots, .grads = roots + n, .retain_graph = e->retains};
    return c->mode == RECORDING ? record_backward(c, &a) : backward_plain(c, &a);
  }
  lm_tensor *into[LM_MAX_OUTS] = {NULL}, *out[LM_MAX_OUTS] = {NULL};
  refilling r = {g, e->in};
  lm_each_tensor_slot(e->op, e->args, refill_slot, &r);
  for (int k = 0; k < e->nout; k++)
    if (e->out[k] != NONE && e->same[k] == NONE) into[k] = g->instance[e->out[k]].t;
  lm_status status = c->mode == RECORDING ? record_call(c, e->op, e->args, e->in_place, into, out)
                                          : call_plain(c, e->op, e->args, e->in_place, out);
  for (int k = 0; k < e->nout && status == LM_OK; k++) {
    if (c->mode != RECORDING && into[k] && out[k]) become(into[k], &out[k]);
    lm_release(out[k]);
  }
  return status;
}

/* Returns the number of steps up to the end of an event. */
static int count_steps_after(const lm_segment *g, int event) {
  return event + 1 < g->nevents ? g->event[event + 1].nsteps : g->nsteps;
}

/* Leaves the segment in which a call was not as recorded: calls again one by one what was called so far, recorded as
 * the begin of another segment. */
static lm_status diverge(lm_compiled *c, bool records) {
  lm_segment *g = c->now;
  const lm_dtype dtype = lm_default_dtype();
  const lm_device device = lm_default_device();
  const lm_autocast cast = lm_autocast_get();
  const bool grad = lm_grad_enabled();
  const uint32_t scope = lm_autocast_scope();
  const lm_draw drawn = lm_generator_get(NULL, LM_DEVICE(LM_CPU, 0));
  int part = 0;
  lm_status status = lm_segment_undo_steps(g);
  if (!records || !begin_recording(c)) c->mode = AS_IS, c->now = NULL;
  if (scope == 0) lm_autocast_enter(cast); /* so that weights are cast once */
  for (int i = 0; i < c->at && status == LM_OK; i++) {
    const lm_segment_event *e = &g->event[i];
    lm_set_default_dtype(e->default_dtype);
    lm_set_default_device(e->default_device);
    lm_autocast_set(e->cast);
    lm_set_grad_enabled(!e->no_grad);
    for (; part < g->nparts && g->part[part].begin == e->nsteps; part++)
      lm_generator_set(NULL, LM_DEVICE(LM_CPU, 0), g->part[part].drawn);
    if (e->scope == NEXT_SCOPE) lm_autocast_forget();
    c->again = e;
    status = call_again(c, g, e);
    c->again = NULL;
    if ((e->is_pause || e->may_fail) && count_steps_after(g, i) == g->done)
      lm_generator_set(NULL, LM_DEVICE(LM_CPU, 0), drawn);
  }
  lm_set_default_dtype(dtype);
  lm_set_default_device(device);
  if (scope == 0)
    lm_autocast_leave(cast);
  else if (scope != c->scope)
    lm_autocast_forget();
  lm_autocast_set(cast);
  lm_set_grad_enabled(grad);
  forget_call(c, g);
  return status;
}

/* ---- segments that begin alike */

static bool inputs_alike(const lm_segment *a, int i, const lm_segment *b, int j) {
  if (i < NONE && j < NONE) return lm_numbers_equal(number_of(a, i), number_of(b, j));
  if (i != j || i == NONE) return i == j;
  const lm_segment_instance *m = &a->instance[i], *n = &b->instance[j];
  return m->is_outside == n->is_outside && m->is_leaf == n->is_leaf &&
         lm_place_equals(&a->value[m->value].place, &b->value[n->value].place);
}

static bool leaves_alike(const lm_segment *a, const lm_segment_event *e, const lm_segment *b,
                         const lm_segment_event *f) {
  for (int k = 0; k < e->nleaves && e->nleaves == f->nleaves; k++) {
    const lm_segment_leaf *m = &a->leaf[e->first_leaf + k], *n = &b->leaf[f->first_leaf + k];
    if (m->instance != n->instance || (m->before < 0) != (n->before < 0) || (m->after < 0) != (n->after < 0))
      return false;
  }
  return e->nleaves == f->nleaves;
}

static bool events_alike(const lm_segment *a, const lm_segment_event *e, const lm_segment *b,
                         const lm_segment_event *f) {
  if (e->is_backward != f->is_backward || e->is_pause != f->is_pause || e->retains != f->retains || e->op != f->op ||
      e->in_place != f->in_place || e->nsteps != f->nsteps || e->nin != f->nin || e->nout != f->nout)
    return false;
  if (e->is_pause) return true;
  if (e->scope != f->scope || e->no_grad != f->no_grad || e->default_dtype != f->default_dtype ||
      e->default_device != f->default_device || !cast_is_equal(&e->cast, &f->cast) || !leaves_alike(a, e, b, f))
    return false;
  for (int k = 0; k < e->nin; k++)
    if (!inputs_alike(a, e->in[k], b, f->in[k])) return false;
  if (e->is_backward) return true;
  for (int k = 0; k < e->nout; k++)
    if (e->same[k] != f->same[k] || !inputs_alike(a, e->out[k], b, f->out[k])) return false;
  return lm_args_equal(e->op, e->args, f->args);
}

static bool steps_alike(const lm_segment_step *s, const lm_segment_step *t) {
  return s->op == t->op && s->kernel == t->kernel && s->form == t->form && s->nin == t->nin && s->nout == t->nout &&
         memcmp(s->in, t->in, (size_t)s->nin * sizeof *s->in) == 0 && memcmp(s->out, t->out, sizeof s->out) == 0;
}

/* Returns true if another segment begins with the same events, and with the steps that have run. */
static bool begins_as(const lm_segment *g, const lm_segment *other, int events) {
  if (other == g || other->runs_as_is || other->nevents <= events) return false;
  for (int i = 0; i < events; i++)
    if (!events_alike(g, &g->event[i], other, &other->event[i])) return false;
  for (int i = 0; i < g->done; i++)
    if (!steps_alike(&g->step[i], &other->step[i])) return false;
  return true;
}

static bool copy_buffer(lm_compiled *c, const lm_segment *g, lm_segment *other, int i) {
  const lm_segment_buffer *from = &g->buffer[i];
  lm_segment_buffer *to = i < other->nbuffers ? &other->buffer[i] : NULL;
  if (!to || from->origin != to->origin) return false;
  if (to->storage || to->pending) return true;
  if (from->storage) lm_storage_retain(to->storage = from->storage);
  if (from->pending) lm_storage_retain(to->pending = from->pending);
  to->version = from->version;
  to->was_made = from->was_made;
  if (from->was_made && !from->storage && to->last_use >= g->done) return false; /* it is needed longer */
  return from->origin == LM_FROM_STEP || !from->storage || lm_address_set(&c->bound, from->storage, i);
}

/* Copies to another segment what the first c->at events have bound, and what steps have made. */
static bool copy_call(lm_compiled *c, const lm_segment *g, lm_segment *other) {
  const int n = count_instances(g, c->at);
  bool fits = n <= other->ninstances;
  for (int i = 0; i < n && fits; i++) {
    const int buffer = g->value[g->instance[i].value].buffer;
    fits = g->instance[i].is_outside == other->instance[i].is_outside &&
           buffer == other->value[other->instance[i].value].buffer && copy_buffer(c, g, other, buffer);
    if (!fits) break;
    other->instance[i].t = lm_retain(g->instance[i].t);
    other->instance[i].has_history = g->instance[i].has_history;
  }
  for (int b = 0; b < g->nbuffers && fits; b++)
    if (g->buffer[b].was_made || g->buffer[b].origin == LM_FROM_GRAD) fits = copy_buffer(c, g, other, b);
  other->done = g->done;
  return fits;
}

/* Drops what a call has of a segment, while another has it too. */
static void drop_copy(lm_segment *g) {
  for (int b = 0; b < g->nbuffers; b++) {
    lm_storage_release(g->buffer[b].pending);
    g->buffer[b].pending = NULL;
  }
  lm_segment_reset(g);
}

/* Changes to another segment that begins with the same events and whose next is the call, which `is_next` compares;
 * false, and nothing was done, if there is none. */
static bool change_segment(lm_compiled *c, bool (*is_next)(lm_compiled *, const lm_segment_event *, const void *),
                           const void *call) {
  lm_segment *g = c->now;
  const lm_address_map bound = c->bound;
  for (lm_segment *other = c->segments; other; other = other->next) {
    if (!begins_as(g, other, c->at)) continue;
    c->bound = (lm_address_map){0};
    c->now = other;
    if (copy_call(c, g, other) && is_next(c, &other->event[c->at], call)) {
      lm_segment before = *other;
      other->undo = g->undo, other->nundo = g->nundo, other->undo_capacity = g->undo_capacity;
      other->part = g->part, other->nparts = g->nparts, other->part_capacity = g->part_capacity;
      g->undo = before.undo, g->nundo = 0, g->undo_capacity = before.undo_capacity;
      g->part = before.part, g->nparts = 0, g->part_capacity = before.part_capacity;
      drop_copy(g);
      lm_free(bound.entry);
      return true;
    }
    drop_copy(other);
    lm_free(c->bound.entry);
  }
  c->bound = bound;
  c->now = g;
  return false;
}

/* ---- calls */

static lm_status follow_call(lm_follower *f, lm_op_id id, const void *args, bool in_place, lm_tensor **out);

static lm_status pass_pause(lm_compiled *c);
static lm_status pass_event(lm_compiled *c, lm_tensor **out, bool *failed);

/* Sets c->now to a segment that begins with the call, the last used first; false if there is none. */
static bool find_segment(lm_compiled *c, lm_op_id id, const void *args, bool in_place, bool runs_as_is) {
  for (lm_segment *g = c->segments; g; g = g->next) {
    if (g->runs_as_is != runs_as_is || g->nevents == 0) continue;
    c->now = g;
    if (is_event(c, &g->event[0], id, args, in_place)) return true;
    forget_call(c, g);
  }
  c->now = NULL;
  return false;
}

/* Begins a segment with a call: one that begins like that, or a new one. */
static lm_status begin_segment(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  c->scope = 0;
  if (find_segment(c, id, args, in_place, false)) {
    bool failed;
    c->mode = MATCHING;
    c->at = 0;
    NEED(pass_event(c, out, &failed));
    if (!failed) return LM_OK;
    NEED(diverge(c, true));
    return follow_call(&c->follower, id, args, in_place, out);
  }
  bool waits = false;
  if (find_segment(c, id, args, in_place, true)) {
    lm_segment *g = c->now;
    forget_call(c, g);
    waits = --g->patience > 0;
    if (!waits) g->patience = g->waits = g->waits > 0 ? 2 * g->waits : 4;
  }
  if (!waits && begin_recording(c)) return record_call(c, id, args, in_place, NULL, out);
  c->mode = AS_IS;
  c->now = NULL;
  return call_plain(c, id, args, in_place, out);
}

typedef struct called { /* a call of an op */
  lm_op_id id;
  bool in_place;
  const void *args;
} called;

static bool is_called(lm_compiled *c, const lm_segment_event *e, const void *call) {
  const called *o = call;
  return is_event(c, e, o->id, o->args, o->in_place);
}

static bool is_backward_called(lm_compiled *c, const lm_segment_event *e, const void *call) {
  return is_backward_event(c, e, call);
}

/* Returns true if the indices or labels that a step reads are known by now, and in range. */
static bool is_in_range(const lm_segment *g, const lm_segment_step *s) {
  static const struct {
    lm_op_id op;
    int index, of, dim; /* positions of tensors; dim: whose size is the limit */
  } known[] = {{LM_OP_embedding, 0, 1, 0}, {LM_OP_nll_loss, 1, 0, 1}, {LM_OP_cross_entropy_rows, 1, 0, 1}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i].op != s->op) continue;
    const lm_segment_value *v = &g->value[s->in[known[i].index]], *of = &g->value[s->in[known[i].of]];
    const lm_segment_buffer *b = &g->buffer[v->buffer];
    int64_t numel = 1;
    for (int d = v->place.ndim - 1; d >= 0; numel *= v->place.size[d--])
      if (v->place.stride[d] != numel && v->place.size[d] != 1) return false;
    if (b->origin != LM_FROM_EVENT || b->is_written || !b->storage || v->place.dtype != LM_I64 ||
        of->place.ndim <= known[i].dim)
      return false;
    const int64_t *x = (const int64_t *)((const char *)b->storage->data + v->place.at);
    for (int64_t k = 0; k < numel; k++)
      if (x[k] < 1 || x[k] > of->place.size[known[i].dim]) return false;
    return true;
  }
  return false;
}

static bool can_fail(const lm_segment *g, int event) {
  for (int i = g->event[event].nsteps; i < count_steps_after(g, event); i++)
    if (may_fail(g, &g->step[i]) && !is_in_range(g, &g->step[i])) return true;
  return false;
}

/* Returns the results of the event c->at, which was called; runs it if values may make it fail. `failed`: they did. */
static lm_status pass_event(lm_compiled *c, lm_tensor **out, bool *failed) {
  const lm_segment_event *e = &c->now->event[c->at];
  *failed = false;
  NEED(return_results(c, e, out));
  for (int k = 0; k < e->nout; k++)
    if (e->out[k] != NONE) c->now->instance[e->out[k]].has_history = e->histories >> k & 1;
  *failed =
      e->may_fail && can_fail(c->now, c->at) && lm_segment_run_to(c->now, count_steps_after(c->now, c->at)) != LM_OK;
  for (int k = 0; k < e->nout && *failed; k++) lm_release(lm_tensor_take(&out[k]));
  c->at += !*failed;
  if (!*failed) note_scope(c);
  return LM_OK;
}

static lm_status match_call(lm_compiled *c, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  NEED(pass_pause(c));
  const called call = {id, in_place, args};
  bool ends = c->at == c->now->nevents, failed = false;
  if ((!ends && is_called(c, &c->now->event[c->at], &call)) || change_segment(c, is_called, &call)) {
    NEED(pass_event(c, out, &failed));
    if (!failed) return LM_OK;
    ends = false;
  }
  if (!ends) NEED(diverge(c, true)); /* after a failure the call itself fails, as it does without a recording */
  if (!ends) return follow_call(&c->follower, id, args, in_place, out);
  NEED(run_segment(c));
  return begin_segment(c, id, args, in_place, out);
}

static void note_use(void *ctx, lm_tensor **slot) {
  if (*slot) refuse_open(ctx, *slot);
}

static lm_status follow_call(lm_follower *f, lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_compiled *c = (lm_compiled *)f;
  if (c->nopen > 0 && lm_grad_enabled()) lm_each_tensor_slot(id, (void *)args, note_use, c);
  switch (c->mode) {
    case AS_IS: return call_plain(c, id, args, in_place, out);
    case RECORDING: return record_call(c, id, args, in_place, NULL, out);
    case MATCHING: return match_call(c, id, args, in_place, out);
    default: return begin_segment(c, id, args, in_place, out);
  }
}

static lm_status follow_backward(lm_follower *f, const lm_backward_args *a) {
  lm_compiled *c = (lm_compiled *)f;
  if (a->nroots > 64) NEED(f->settle(f));
  for (int i = 0; i < a->nroots; i++) refuse_open(c, a->roots[i]);
  if (c->mode == RECORDING && a->nroots <= 64) return record_backward(c, a);
  if (c->mode == MATCHING) {
    NEED(pass_pause(c));
    if ((c->at < c->now->nevents && is_backward_event(c, &c->now->event[c->at], a)) ||
        change_segment(c, is_backward_called, a)) {
      note_scope(c);
      c->at++;
      return LM_OK;
    }
    NEED(c->at == c->now->nevents ? run_segment(c) : diverge(c, true));
    return follow_backward(f, a);
  }
  return backward_plain(c, a);
}

static bool has_backward(const lm_follower *f) {
  const lm_compiled *c = (const lm_compiled *)f;
  const int n = c->mode == MATCHING ? c->at : c->mode == RECORDING ? c->now->nevents : 0;
  return n > 0 && has_backward_before(c->now, n);
}

/* Ends the segment that is recorded, or the calls that run as they are. */
static lm_status stop_following(lm_compiled *c, lm_status status) {
  if (c->mode == RECORDING) finish_recording(c);
  c->mode = AT_START;
  c->now = NULL;
  return status;
}

/* Runs the steps before a pause, if the next event is one. */
static lm_status pass_pause(lm_compiled *c) {
  const lm_segment_event *e = &c->now->event[c->at];
  if (c->at == c->now->nevents || !e->is_pause) return LM_OK;
  c->at++;
  return lm_segment_run_to(c->now, e->nsteps);
}

static lm_status follow_settle(lm_follower *f) {
  lm_compiled *c = (lm_compiled *)f;
  lm_status status = LM_OK;
  if (c->mode == MATCHING) {
    NEED(pass_pause(c));
    if (c->at < c->now->nevents && c->at > 0 && c->now->event[c->at - 1].is_pause) return LM_OK;
    status = c->at == c->now->nevents ? run_segment(c) : diverge(c, true);
  }
  if (c->mode == RECORDING && record_pause(c)) return status;
  return stop_following(c, status);
}

static lm_status follow_leave(lm_follower *f) {
  lm_compiled *c = (lm_compiled *)f;
  lm_status status = LM_OK;
  if (c->mode == MATCHING) status = c->at == c->now->nevents ? run_segment(c) : diverge(c, true);
  status = stop_following(c, status);
  if (lm_grad_enabled()) refuse_open(c, NULL);
  return status;
}

/* ---- the function */

lm_status lm_compiled_new(lm_compiled **out) {
  lm_compiled *c = *out = lm_calloc(1, sizeof *c);
  if (!c) return LM_E_OOM;
  c->follower = (lm_follower){follow_call, follow_backward, follow_settle, follow_leave, has_backward, true};
  c->recorder = (lm_op_recorder){on_op, on_pointwise};
  c->watcher = (lm_tensor_watcher){note_made, note_freed, note_dropped, note_read};
  c->credit = CREDIT;
  return LM_OK;
}

void lm_compiled_free(lm_compiled *c) {
  if (!c) return;
  for (lm_segment *g = c->segments, *next; g; g = next) {
    next = g->next;
    lm_segment_free(g);
  }
  lm_free(c->noted);
  lm_free(c->open);
  lm_free(c->instance_of.entry);
  lm_free(c->buffer_of.entry);
  lm_free(c->bound.entry);
  lm_free(c);
}

bool lm_compiled_begin(lm_compiled *c) {
  if (lm_follower_current() || lm_tape_current() || lm_tensors_watched || lm_anomaly() || lm_recompute_is_active())
    return false;
  lm_segment **at = &c->segments;
  for (int i = 0; *at && i < MOST; i++) at = &(*at)->next;
  while (*at) {
    lm_segment *g = *at;
    *at = g->next;
    lm_segment_free(g);
  }
  c->mode = AT_START;
  c->recordings_before = c->recordings;
  atomic_fetch_add(&lm_compiled_calls, 1);
  lm_follower_swap(&c->follower);
  return true;
}

lm_status lm_compiled_end(lm_compiled *c, bool failed) {
  lm_status status = LM_OK;
  if (c->mode == MATCHING) status = c->at == c->now->nevents ? run_segment(c) : diverge(c, !failed);
  if (c->mode == RECORDING) finish_recording(c);
  c->now = NULL;
  c->mode = AT_START;
  c->follower.wants_lines = c->recordings > c->recordings_before;
  lm_follower_swap(NULL);
  atomic_fetch_sub(&lm_compiled_calls, 1);
  return status;
}

bool lm_compiled_has_open(const lm_compiled *c) { return c->nopen > 0; }

void lm_compiled_decide(lm_compiled *c) {
  refuse_open(c, NULL);
  lm_tensors_watched = NULL;
  c->nopen = 0;
}

lm_compiled_state lm_compiled_get_state(const lm_compiled *c) {
  lm_compiled_state s = {.recordings = c->recordings, .runs = c->ran};
  for (const lm_segment *g = c->segments; g; g = g->next) s.segments += !g->runs_as_is;
  if (c->reason[0]) s.reason = c->reason, s.line = c->line;
  return s;
}

static const lm_segment *segment_at(const lm_compiled *c, int i) {
  const lm_segment *g = c->segments;
  while (g && (g->runs_as_is || i-- > 0)) g = g->next;
  return g;
}

int lm_compiled_nsteps(const lm_compiled *c, int segment) {
  const lm_segment *g = segment_at(c, segment);
  return g ? g->nsteps : 0;
}

const char *lm_compiled_step_name(const lm_compiled *c, int segment, int step, bool *is_chained) {
  const lm_segment_step *s = &segment_at(c, segment)->step[step];
  *is_chained = s->is_chained;
  return lm_ops[s->op < 0 ? lm_pointwise_op(s->kernel) : s->op].name;
}
