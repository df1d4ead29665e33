#include "autograd/tape.h"

#include <stdarg.h>
#include <stdio.h>

#include "autograd/follow.h"
#include "autograd/node.h"
#include "base/interned.h"
#include "base/mem.h"

bool lm_call_is_random(lm_op_id id, const void *args) {
  const lm_op *op = &lm_ops[id];
  const lm_arg *a = op->draws == 0 || op->draws == LM_DRAWS ? NULL : &op->arg[op->draws - 1];
  const char *p = a ? (const char *)args + a->offset : NULL;
  return !a ? op->draws == LM_DRAWS : a->kind == LM_ARG_B ? *(const bool *)p : *(const double *)p > 0;
}

void lm_each_tensor_slot(lm_op_id id, void *args, lm_tensor_slot_fn f, void *ctx) {
  const lm_op *op = &lm_ops[id];
  for (int i = 0; i < op->ntensor; i++) f(ctx, &LM_ARG_TENSOR(args, op->tensor[i]));
  const lm_list *list = op->list >= 0 ? (const lm_list *)((const char *)args + op->list) : NULL;
  for (int i = 0; list && list->v && i < list->n; i++) f(ctx, &list->v[i]);
}

static void retain_slot(void *ctx, lm_tensor **slot) {
  (void)ctx;
  lm_retain(*slot);
}
static void release_slot(void *ctx, lm_tensor **slot) {
  (void)ctx;
  lm_release(*slot);
}

void *lm_args_copy(lm_op_id id, const void *args) {
  const lm_op *op = &lm_ops[id];
  char *copy = lm_calloc(1, op->size);
  if (!copy) return NULL;
  memcpy(copy, args, op->size);
  if (op->list < 0) return copy;
  lm_list *list = (lm_list *)(copy + op->list);
  lm_tensor **v = lm_calloc((size_t)list->n + 1, sizeof(lm_tensor *));
  for (int i = 0; v && i < list->n; i++) v[i] = list->v[i];
  list->v = v;
  if (v) return copy;
  lm_free(copy);
  return NULL;
}

void lm_args_free(lm_op_id id, void *args) {
  if (args && lm_ops[id].list >= 0) lm_free(((lm_list *)((char *)args + lm_ops[id].list))->v);
  lm_free(args);
}

lm_status lm_tape_new(int ninputs, lm_tensor *const *inputs, lm_tape **out) {
  lm_tape *tape = lm_calloc(1, sizeof *tape);
  if (!tape) return LM_E_OOM;
  tape->input = lm_calloc((size_t)ninputs + 1, sizeof(lm_tensor *));
  if (!tape->input) {
    lm_free(tape);
    return LM_E_OOM;
  }
  lm_status status = LM_OK;
  for (int i = 0; i < ninputs && status == LM_OK; i++) {
    status = lm_alias(inputs[i], &tape->input[i]);
    tape->ninputs += status == LM_OK;
    if (status == LM_OK &&
        (!lm_address_set(&tape->maker, tape->input[i], 0) || !lm_address_set(&tape->memory, inputs[i]->storage, 0)))
      status = LM_E_OOM;
  }
  if (status == LM_OK) {
    *out = tape;
  } else {
    lm_tape_free(tape);
  }
  return status;
}

void lm_tape_free(lm_tape *tape) {
  if (!tape) return;
  for (int i = 0; i < tape->ninputs; i++) lm_release(tape->input[i]);
  for (int i = 0; i < tape->nsteps; i++) {
    lm_tape_step *s = &tape->step[i];
    lm_each_tensor_slot(s->op, s->args, release_slot, NULL);
    lm_args_free(s->op, s->args);
    for (int k = 0; k < LM_MAX_OUTS; k++) lm_release(s->out[k]);
  }
  for (int i = 0; i < tape->nread; i++) lm_release(tape->read[i]);
  lm_free(tape->read);
  lm_free(tape->input);
  lm_free(tape->step);
  lm_free(tape->maker.entry);
  lm_free(tape->memory.entry);
  lm_free(tape);
}

lm_tape *lm_tape_current(void) { return lm_modes_here.tape; }

lm_tape *lm_tape_swap(lm_tape *tape) {
  lm_tape *before = lm_modes_here.tape;
  lm_modes_here.tape = tape;
  lm_modes_here.is_watched = tape || lm_modes_here.follower;
  return before;
}

lm_follower *lm_follower_current(void) { return lm_modes_here.follower; }

lm_follower *lm_follower_swap(lm_follower *f) {
  lm_follower *before = lm_modes_here.follower;
  lm_modes_here.follower = f;
  lm_modes_here.is_watched = f || lm_modes_here.tape;
  return before;
}

void lm_tape_refuse(lm_tape *tape, const char *format, ...) {
  tape->nrefusals++;
  if (tape->refusal[0]) return;
  va_list list;
  va_start(list, format);
  vsnprintf(tape->refusal, sizeof tape->refusal, format, list);
  va_end(list);
}

bool lm_tape_is_dynamic(const lm_tape *tape, const lm_tensor *t) {
  const int maker = lm_address_find(&tape->maker, t);
  return maker == 0 || lm_address_find(&tape->memory, t->storage) >= 0 || (maker > 0 && tape->step[maker - 1].dynamic);
}

void lm_tape_note_read(lm_tensor *t, const char *how) {
  lm_tape *tape = lm_tape_current();
  if (!tape) return;
  if (lm_tape_is_dynamic(tape, t)) {
    const char *line = lm_script_line();
    lm_tape_refuse(tape, "%s%s%s reads values that depend on the inputs, which a recording cannot follow",
                   line ? line : "", line ? ": " : "", how);
  } else if (lm_list_grow(&tape->read, &tape->read_capacity, (size_t)tape->nread + 1, sizeof *tape->read)) {
    tape->read[tape->nread++] = lm_retain(t);
  } else {
    lm_tape_refuse(tape, "out of memory while recording");
  }
}

void lm_tape_note_call(const char *name) {
  lm_tape *tape = lm_tape_current();
  if (tape) lm_tape_refuse(tape, "it calls %s, which a recording cannot follow", name);
}

typedef struct dynamic_search {
  lm_tape *tape;
  bool found;
} dynamic_search;

static void look_for_dynamic(void *ctx, lm_tensor **slot) {
  dynamic_search *search = ctx;
  lm_tape *tape = search->tape;
  if (!*slot) return;
  tape->shares = tape->shares ||
                 (lm_address_find(&tape->maker, *slot) < 0 && lm_address_find(&tape->memory, (*slot)->storage) == 0);
  if (!search->found) search->found = lm_tape_is_dynamic(tape, *slot);
}

static void note_write(lm_tape *tape, const lm_tensor *t) {
  if (t && !lm_address_set(&tape->memory, t->storage, 1)) lm_tape_refuse(tape, "out of memory while recording");
}

void lm_tape_add(lm_tape *tape, lm_op_id id, const void *args, bool in_place, lm_tensor *const *out) {
  const lm_op *op = &lm_ops[id];
  void *copy = NULL;
  if (tape->nsteps == LM_TAPE_MOST) {
    if (!tape->is_full) lm_tape_refuse(tape, "it calls more than %d ops, the most of a recording", LM_TAPE_MOST);
    tape->is_full = true;
    return;
  }
  if (lm_list_grow(&tape->step, &tape->step_capacity, (size_t)tape->nsteps + 1, sizeof *tape->step)) {
    copy = lm_args_copy(id, args);
  }
  if (!copy) {
    lm_tape_refuse(tape, "out of memory while recording");
    return;
  }
  lm_each_tensor_slot(id, copy, retain_slot, NULL);
  const bool writes_first = in_place || op->kind == LM_WRITE;
  const bool enabled = op->writes_when < 0 || *(const bool *)((const char *)args + op->writes_when);
  if (writes_first && op->ntensor > 0) note_write(tape, LM_ARG_TENSOR(copy, op->tensor[0]));
  for (int k = 0; k < op->ntensor && enabled; k++)
    if (op->writes >> k & 1) note_write(tape, LM_ARG_TENSOR(copy, op->tensor[k]));
  dynamic_search search = {tape, lm_call_is_random(id, args)};
  lm_each_tensor_slot(id, copy, look_for_dynamic, &search);
  lm_tape_step *s = &tape->step[tape->nsteps];
  *s = (lm_tape_step){.op = id, .in_place = in_place, .dynamic = search.found, .line = lm_script_line(), .args = copy};
  tape->nsteps++;
  for (int k = 0; k < (writes_first ? 1 : op->outs); k++) {
    s->out[k] = lm_retain(out[k]);
    if (out[k] && !lm_address_set(&tape->maker, out[k], tape->nsteps))
      lm_tape_refuse(tape, "out of memory while recording");
  }
}
