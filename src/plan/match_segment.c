/* Compares calls with a segment's events, and segments that begin alike. */
#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "base/mem.h"
#include "plan/compiled.h"

static bool cast_is_equal(const lm_autocast *a, const lm_autocast *b) {
  if (a->on != b->on || a->keeps != b->keeps || a->uncached != b->uncached) return false;
  for (int k = 0; k < LM_DEVICE_KINDS; k++)
    if (a->on >> k & 1 && a->dtype[k] != b->dtype[k]) return false;
  return true;
}

static bool is_in_mode_of(const lm_compiled *c, const lm_segment_event *e) {
  const lm_autocast cast = lm_autocast_get();
  return e->scope == lm_compiled_scope_here(c) && e->no_grad == !lm_grad_enabled() &&
         e->default_dtype == lm_default_dtype() && e->default_device == lm_default_device() &&
         cast_is_equal(&e->cast, &cast);
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
  const lm_segment_value *v = &g->value[n->value];
  lm_segment_buffer *b = &g->buffer[v->buffer];
  int64_t shift = b->shift;
  if (!b->storage) shift = g->is_fixed || t->numel == 0 ? 0 : t->data - (char *)t->storage->data - v->place.at;
  if (!lm_place_is(&v->place, shift, t) || (!n->any_history && lm_requires_grad(t) != n->is_leaf) ||
      lm_is_without_values(t) || lm_compiled_refuses(t, n->any_history))
    return false;
  const bool is_bound = lm_address_find(&c->bound, t->storage) != NONE;
  for (int i = 0; i < g->ninstances && is_bound; i++)
    if (g->instance[i].t == t) return false; /* recorded as another */
  if (!bind_buffer(c, v->buffer, t->storage)) return false;
  b->shift = shift;
  n->t = lm_retain(t);
  return true;
}

/* Takes over a call's number for the steps that read it: the recorded one, or another if no code but ops read that and
 * no op may refuse it. */
static bool take_number(lm_compiled *c, const lm_segment_event *e, lm_segment_value *v, lm_tensor *t) {
  double x;
  if (t->number && lm_numbers_equal(v->number, t)) return true;
  if (!t->number || v->is_read || (v->number->dtype != t->dtype && !e->is_real) || lm_tensor_item_f64(t, &x) != LM_OK ||
      fabs(x) > lm_dtype_largest(LM_BF16))
    return false;
  lm_retain(t);
  lm_release(v->number);
  v->number = t;
  c->changes++;
  return true;
}

/* Takes over a call's arguments, tensors aside: those of the event, or other numbers that one step alone reads. */
static bool take_args(lm_compiled *c, const lm_segment_event *e, const void *args) {
  const lm_op *op = &lm_ops[e->op];
  for (int i = 0; (i = lm_args_difference(e->op, e->args, args, i)) >= 0; i++) {
    const size_t at = op->arg[i].offset;
    if (!e->step_args || op->arg[i].kind != LM_ARG_F) return false;
    memcpy((char *)e->args + at, (const char *)args + at, sizeof(double));
    memcpy((char *)e->step_args + at, (const char *)args + at, sizeof(double));
    c->changes++;
  }
  return true;
}

static bool input_is(lm_compiled *c, const lm_segment_event *e, int in, lm_tensor *t) {
  lm_segment *g = c->now;
  if (in == NONE || !t) return in == NONE && !t;
  if (in < NONE) return take_number(c, e, lm_segment_number(g, in), t);
  if (t->number) return false;
  lm_segment_instance *n = &g->instance[in];
  return n->is_outside ? bind_outside(c, n, t) : n->t == t;
}

typedef struct comparing {
  lm_compiled *c;
  const lm_segment_event *e;
  const int *in;
  bool is_equal;
} comparing;

static void compare_slot(void *ctx, lm_tensor **slot) {
  comparing *k = ctx;
  if (k->is_equal && !input_is(k->c, k->e, *k->in, *slot)) {
    k->is_equal = false;
    k->c->unlike = (int)(k->in - k->e->in);
    k->c->unlike_tensor = *slot;
  }
  k->in++;
}

bool lm_compiled_is_event(lm_compiled *c, const lm_segment_event *e, lm_op_id id, const void *args, bool in_place) {
  if (e->is_backward || e->is_pause || e->op != id || e->in_place != in_place || !is_in_mode_of(c, e) ||
      !take_args(c, e, args))
    return false;
  comparing k = {c, e, e->in, true};
  lm_each_tensor_slot(id, (void *)args, compare_slot, &k);
  return k.is_equal;
}

bool lm_compiled_is_backward_event(lm_compiled *c, const lm_segment_event *e, const lm_backward_args *a) {
  lm_segment *g = c->now;
  if (!e->is_backward || e->retains != a->retain_graph || e->nout != a->nroots || !is_in_mode_of(c, e)) return false;
  for (int i = 0; i < a->nroots; i++) {
    if (!input_is(c, e, e->in[i], a->roots[i])) return false;
    if (!input_is(c, e, e->in[a->nroots + i], a->grads ? a->grads[i] : NULL)) return false;
  }
  for (int k = e->first_leaf; k < e->first_leaf + e->nleaves; k++) {
    const lm_segment_leaf *leaf = &g->leaf[k];
    const lm_tensor *t = g->instance[leaf->instance].t;
    if (!t || (!e->delivers && !lm_is_plain_leaf(t))) return false;
    if (e->delivers) continue;
    lm_tensor *grad = lm_grad_of(t);
    if (leaf->before >= 0 && g->buffer[g->value[leaf->before].buffer].origin == LM_FROM_STEP) continue; /* set here */
    if (!grad != (leaf->before < 0)) return false;
    if (grad && (lm_requires_grad(grad) || !lm_place_is(&g->value[leaf->before].place, 0, grad) ||
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
  NEED(lm_tensor_at(s, p->dtype, p->device, p->ndim, p->size, p->stride, p->at + b->shift, &n->t));
  if (!s) lm_storage_retain(b->pending = n->t->storage);
  return LM_OK;
}

lm_status lm_compiled_return_results(lm_compiled *c, const lm_segment_event *e, lm_tensor **out) {
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

void lm_compiled_forget_call(lm_compiled *c, lm_segment *g) {
  lm_segment_reset(g);
  lm_free(c->bound.entry);
  c->bound = (lm_address_map){0};
}

static bool inputs_alike(lm_compiled *c, const lm_segment *a, int i, const lm_segment *b, int j,
                         const lm_segment_event *of_b) {
  if (i < NONE && j < NONE) return take_number(c, of_b, lm_segment_number(b, j), lm_segment_number(a, i)->number);
  if (i != j || i == NONE) return i == j;
  const lm_segment_instance *m = &a->instance[i], *n = &b->instance[j];
  return m->is_outside == n->is_outside && m->is_leaf == n->is_leaf && m->any_history == n->any_history &&
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

/* Returns true if the events e of a, whose numbers are a call's, and f of b are alike; then f has these numbers too. */
static bool events_alike(lm_compiled *c, const lm_segment *a, const lm_segment_event *e, const lm_segment *b,
                         const lm_segment_event *f) {
  if (e->is_backward != f->is_backward || e->is_pause != f->is_pause || e->retains != f->retains || e->op != f->op ||
      e->delivers != f->delivers || e->in_place != f->in_place || e->nsteps != f->nsteps || e->nin != f->nin ||
      e->nout != f->nout)
    return false;
  if (e->is_pause) return true;
  if (e->scope != f->scope || e->no_grad != f->no_grad || e->default_dtype != f->default_dtype ||
      e->default_device != f->default_device || !cast_is_equal(&e->cast, &f->cast) || !leaves_alike(a, e, b, f))
    return false;
  for (int k = 0; k < e->nin; k++)
    if (!inputs_alike(c, a, e->in[k], b, f->in[k], f)) return false;
  if (e->is_backward) return true;
  for (int k = 0; k < e->nout; k++)
    if (e->same[k] != f->same[k] || !inputs_alike(c, a, e->out[k], b, f->out[k], f)) return false;
  return take_args(c, f, e->args);
}

static bool steps_alike(const lm_segment_step *s, const lm_segment_step *t) {
  return s->op == t->op && s->kernel == t->kernel && s->form == t->form && s->nin == t->nin && s->nout == t->nout &&
         memcmp(s->in, t->in, (size_t)s->nin * sizeof *s->in) == 0 && memcmp(s->out, t->out, sizeof s->out) == 0;
}

/* Returns true if another segment begins with the same events, and with the steps that have run. */
static bool begins_as(lm_compiled *c, const lm_segment *g, const lm_segment *other, int events) {
  if (other == g || other->runs_as_is || other->nevents <= events) return false;
  for (int i = 0; i < events; i++)
    if (!events_alike(c, g, &g->event[i], other, &other->event[i])) return false;
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
  to->shift = from->shift;
  to->was_made = from->was_made;
  if (from->was_made && !from->storage && to->last_use >= g->done) return false; /* it is needed longer */
  return from->origin == LM_FROM_STEP || !from->storage || lm_address_set(&c->bound, from->storage, i);
}

/* Copies to another segment what the first c->at events have bound, and what steps have made. */
static bool copy_call(lm_compiled *c, const lm_segment *g, lm_segment *other) {
  const int n = lm_segment_count_instances(g, c->at);
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

bool lm_compiled_change_segment(lm_compiled *c, bool (*is_next)(lm_compiled *, const lm_segment_event *, const void *),
                                const void *call) {
  lm_segment *g = c->now;
  const lm_address_map bound = c->bound;
  for (lm_segment *other = c->segments; other; other = other->next) {
    if (!begins_as(c, g, other, c->at)) continue;
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
