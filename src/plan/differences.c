/* Describes how a call differs from the event that a segment has at its place, for the state of a step whose calls are
 * recorded again and again. */
#include <stdarg.h>
#include <stdio.h>

#include "autograd/tape.h"
#include "base/interned.h"
#include "base/message.h"
#include "plan/compiled.h"

void lm_compiled_note_difference(lm_compiled *c, const char *format, ...) {
  const char *line = lm_script_line();
  const int n = snprintf(c->difference, sizeof c->difference, "each call is recorded again: %s%s", line ? line : "",
                         line ? ": " : "");
  va_list list;
  va_start(list, format);
  vsnprintf(c->difference + n, sizeof c->difference - (size_t)n, format, list);
  va_end(list);
}

/* Returns the name of an op's k-th tensor argument, such as "tensors[2]". */
static const char *name_of_tensor(const lm_op *op, int k) {
  const int at = k < op->ntensor ? op->tensor[k] : op->list;
  for (int i = 0; i < op->nargs; i++)
    if (op->arg[i].offset == at)
      return k < op->ntensor ? op->arg[i].name : lm_text("%s[%d]", op->arg[i].name, k - op->ntensor + 1);
  return "an argument";
}

static const char *number_difference(const lm_segment_value *v, const lm_tensor *t) {
  double before = 0, now = 0;
  lm_tensor_item_f64(v->number, &before);
  lm_tensor_item_f64(t, &now);
  return lm_text("is %.9g, not %.9g%s", now, before, v->is_read ? ", and decides which ops run or fail" : "");
}

static const char *tensor_difference(const lm_segment *g, int in, const lm_tensor *t) {
  if (!t || in == NONE) return t ? "is passed" : "is left out";
  if ((in < NONE) != t->number) return t->number ? "is a number, not a tensor" : "is a tensor, not a number";
  if (in < NONE) return number_difference(lm_segment_number(g, in), t);
  const lm_segment_instance *n = &g->instance[in];
  const lm_place *p = &g->value[n->value].place;
  if (!n->is_outside) return "is another tensor than the result that it was";
  if (n->t) return "is another tensor than the one that it was in this call";
  if (p->dtype != t->dtype || p->ndim != t->ndim || memcmp(p->size, t->size, t->ndim * sizeof *t->size) != 0)
    return lm_text("is %s %s, not %s %s", lm_dtype_name(t->dtype), lm_shape_of(t), lm_dtype_name(p->dtype),
                   lm_shape_text(p->ndim, p->size));
  if (p->device != t->device) return lm_text("is on %s, not %s", lm_device_name(t->device), lm_device_name(p->device));
  if (!n->any_history && lm_requires_grad(t) != n->is_leaf)
    return n->is_leaf ? "does not require grad" : "requires grad";
  if (memcmp(p->stride, t->stride, t->ndim * sizeof *t->stride) != 0) return "has other strides";
  if (g->buffer[g->value[n->value].buffer].storage) return "is at another distance from a tensor in the same memory";
  const char *refused = lm_compiled_refuses(t, n->any_history);
  return refused ? lm_text("is not as it was: %s", refused) : "shares its memory with another tensor than before";
}

void lm_compiled_note_call(lm_compiled *c, const lm_segment_event *e, lm_op_id id, const void *args, bool in_place) {
  const lm_op *op = &lm_ops[id];
  if (e->is_backward || e->op != id || e->in_place != in_place) {
    lm_compiled_note_difference(c, "%s%s is called, not %s", op->name, in_place ? "_" : "",
                                e->is_backward ? "backward" : lm_ops[e->op].name);
    return;
  }
  c->unlike = NONE;
  const int arg = lm_args_difference(id, e->args, args, 0);
  if (lm_compiled_is_event(c, e, id, args, in_place)) return;
  const double *before = (const double *)((const char *)e->args + (arg < 0 ? 0 : op->arg[arg].offset));
  const double *now = (const double *)((const char *)args + (arg < 0 ? 0 : op->arg[arg].offset));
  if (arg >= 0 && op->arg[arg].kind == LM_ARG_F)
    lm_compiled_note_difference(c, "%s: %s is %.9g, not %.9g", op->name, op->arg[arg].name, *now, *before);
  else if (arg >= 0)
    lm_compiled_note_difference(c, "%s: %s is another one", op->name, op->arg[arg].name);
  else if (c->unlike >= 0)
    lm_compiled_note_difference(c, "%s: %s %s", op->name, name_of_tensor(op, c->unlike),
                                tensor_difference(c->now, e->in[c->unlike], c->unlike_tensor));
  else
    lm_compiled_note_difference(c, "%s runs in another mode: gradients, autocast, or a default", op->name);
}

void lm_compiled_note_backward(lm_compiled *c, const lm_segment_event *e) {
  const char *before = e->is_backward ? "as before: roots, gradients or hooks differ" : lm_ops[e->op].name;
  lm_compiled_note_difference(c, "backward is called, not %s", before);
  for (int k = e->first_leaf; e->is_backward && !e->delivers && k < e->first_leaf + e->nleaves; k++) {
    const lm_tensor *t = c->now->instance[c->now->leaf[k].instance].t;
    const char *now = t && lm_grad_of(t) ? "set, and was nil" : "nil, and was set";
    if (t && !lm_grad_of(t) != (c->now->leaf[k].before < 0))
      lm_compiled_note_difference(c, "backward: the .grad of a %s leaf is %s", lm_shape_of(t), now);
  }
}

void lm_compiled_note_begin(lm_compiled *c, lm_op_id id, const void *args, bool in_place) {
  lm_segment *like = NULL;
  for (lm_segment *g = c->segments; g; g = g->next)
    if (!g->runs_as_is && (!like || (g->event[0].op == id && like->event[0].op != id))) like = g;
  c->now = like;
  if (like) lm_compiled_note_call(c, &like->event[0], id, args, in_place);
  if (like) lm_compiled_forget_call(c, like);
  c->now = NULL;
}
