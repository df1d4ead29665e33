/* Calls an op: casts its tensors under autocast (autocast.c), checks its preconditions, runs it as other ops if its
 * entry says so, else runs it, recorded if an input requires grad (record_graph.c). */
#include <string.h>

#include "autograd/composite.h"
#include "autograd/follow.h"
#include "autograd/record_graph.h"
#include "autograd/tape.h"
#include "op/trace.h"

/* Prefixes an error of an inner op with the name of the op that the user called. */
static lm_status with_op_name(lm_op_id id, lm_status status) {
  return status == LM_OK || status == LM_E_OOM ? status : lm_fail_in(status, lm_ops[id].name);
}

/* Checks an op's preconditions; runs the entry's other form for these arguments, if any, and sets *taken then. */
static lm_status precheck(lm_op_id id, const void *args, bool in_place, bool *taken, lm_tensor **out) {
  const lm_composition *c = &lm_compositions[id];
  lm_status status = c->needs ? c->needs(args) : LM_OK;
  if (status != LM_OK || !c->form) return status;
  *taken = true;
  return with_op_name(id, c->form(args, in_place, taken, out));
}

/* Runs a composite, or an op that is recorded as its formula. */
static lm_status run_formula(lm_op_id id, const void *args, lm_tensor **out) {
  const lm_rules *rules = &lm_rule_table[id];
  bool is_done = false, records = rules->record_as_one || rules->decompose;
  if (records && lm_record_may(&lm_ops[id], rules, args) && !lm_modes_here.no_grad) {
    NEED(lm_record_call(id, args, &is_done, out));
  }
  if (is_done) return LM_OK;
  if (lm_ops[id].kind != LM_COMP) return lm_run_unrecorded(id, args, false, out);
  if (!lm_halves_widen || !lm_ops[id].reuses || lm_modes_here.no_grad) return lm_compositions[id].made_of(args, out);
  lm_cast_args cast;
  lm_status status = lm_autocast_args(id, args, LM_SUMMED, &cast);
  if (status == LM_OK) status = lm_compositions[id].made_of(&cast.args, out);
  lm_autocast_args_free(&cast);
  return status;
}

/* Runs a formula in float32, and rounds its results if `dtype` is half precision. */
static lm_status run_widened(lm_op_id id, const void *args, lm_dtype dtype, lm_tensor **out) {
  lm_autocast before = lm_widen_begin();
  lm_status status = run_formula(id, args, out);
  lm_autocast_set(before);
  for (int i = 0; i < lm_ops[id].outs && status == LM_OK; i++) {
    lm_tensor *wide = out[i];
    bool kept = !lm_dtype_is_half(dtype) || !wide || wide->dtype != LM_F32;
    kept = kept || lm_modes_here.cast.keeps >> LM_DEVICE_KIND(wide->device) & 1;
    if (kept) continue;
    lm_to_copy_args round = {.x = wide, .dtype = dtype, .device = LM_NO_DEVICE, .memory_format = LM_PRESERVE};
    status = lm_call(LM_OP_to_copy, &round, &out[i]);
    if (status == LM_OK) lm_release(wide);
  }
  for (int i = 0; i < lm_ops[id].outs && status != LM_OK; i++) lm_release(lm_tensor_take(&out[i]));
  return status;
}

/* Returns args, copied to `copy`, without what an op writes beside its results, such as running statistics, if that is
 * older than a checkpoint's second run: the first has updated it. */
static const void *without_writes(const lm_op *op, const void *args, lm_args_union *copy) {
  bool writes = op->writes_when < 0 || *(const bool *)((const char *)args + op->writes_when);
  if (!writes) return args;
  memcpy(copy, args, op->size);
  for (int k = 0; k < op->ntensor; k++) {
    lm_tensor **t = &LM_ARG_TENSOR(copy, op->tensor[k]);
    if (op->writes >> k & 1 && *t && lm_recompute_is_older(*t)) *t = NULL;
  }
  return copy;
}

static lm_status run_or_record(lm_op_id id, const void *args, lm_tensor **out) {
  lm_status status = LM_OK;
  const lm_op *op = &lm_ops[id];
  const lm_rules *rules = &lm_rule_table[id];
  bool is_done = false;
  lm_args_union copy;
  if (op->writes && lm_recompute_is_rerun()) args = without_writes(op, args, &copy);
  if (op->has_precheck) TRY(precheck(id, args, false, &is_done, out));
  if (is_done) return LM_OK;
  bool records = !rules->none && lm_record_may(op, rules, args) && !lm_modes_here.no_grad;
  if (op->kind == LM_COMP || (records && rules->decompose)) {
    lm_dtype rounded = op->widens && !lm_halves_widen ? lm_widened_dtype(id, args) : LM_NO_DTYPE;
    return with_op_name(id, rounded == LM_NO_DTYPE ? run_formula(id, args, out) : run_widened(id, args, rounded, out));
  }
  if (op->kind == LM_WRITE) return lm_record_write(id, args, false, out);
  if (records) TRY(lm_record_call(id, args, &is_done, out));
  if (is_done) return LM_OK;
  TRY(lm_run_unrecorded(id, args, false, out));
  if (op->kind == LM_VIEW && !rules->none && lm_dtype_is_float(out[0]->dtype)) {
    status = lm_view_track(out[0], LM_ARG_TENSOR(args, op->tensor[0]), NULL);
    if (status != LM_OK) lm_release(lm_tensor_take(&out[0]));
  }
done:
  return status;
}

/* Traces a composite as a span around its ops. */
static lm_status call_traced(lm_op_id id, const void *args, lm_tensor **out) {
  lm_span span;
  if (!lm_ops_are_traced() || lm_ops[id].kind != LM_COMP) return run_or_record(id, args, out);
  lm_op_trace_begin(&span, id, args, "");
  lm_status status = run_or_record(id, args, out);
  lm_op_trace_end(&span, id, args, out, status);
  return status;
}

static lm_status call_taped(lm_op_id id, const void *args, bool in_place, lm_tensor **out);

static lm_status cast_and_call(lm_op_id id, const void *args, lm_cast_rule rule, lm_tensor **out) {
  lm_cast_args cast;
  lm_status status = lm_autocast_args(id, args, rule, &cast);
  if (status == LM_OK && lm_modes_here.tape)
    status = call_taped(id, &cast.args, false, out);
  else if (status == LM_OK)
    status = call_traced(id, &cast.args, out);
  lm_autocast_args_free(&cast);
  return status;
}

/* Returns how an op casts. Where halves widen, elementwise ops, reductions and views read them, others get a copy. */
static lm_cast_rule rule_of(lm_op_id id) {
  const lm_op *op = &lm_ops[id];
  if (op->kind == LM_WRITE) return LM_ASIS;
  if (!lm_halves_widen) return (lm_cast_rule)op->cast;
  return op->kind == LM_PRIM && op->slot != LM_OP_reduce && id != LM_OP_to_copy ? LM_WIDENED : LM_ASIS;
}

static lm_status dispatch(lm_op_id id, const void *args, lm_tensor **out) {
  const lm_cast_rule rule = lm_modes_here.cast.on ? rule_of(id) : LM_ASIS;
  return rule == LM_ASIS ? call_traced(id, args, out) : cast_and_call(id, args, rule, out);
}

static lm_status call_inplace(lm_op_id id, const void *args, lm_tensor **out) {
  bool taken = false;
  lm_status status = lm_ops[id].has_precheck ? precheck(id, args, true, &taken, out) : LM_OK;
  return status != LM_OK || taken ? status : lm_record_write(id, args, true, out);
}

/* Calls an op and adds it to the tape, but not the ops that it calls. Autocast's casts of its arguments are steps. */
static lm_status call_taped(lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  const lm_cast_rule rule = lm_modes_here.cast.on && !in_place ? rule_of(id) : LM_ASIS;
  if (rule != LM_ASIS) return cast_and_call(id, args, rule, out);
  lm_tape *tape = lm_tape_swap(NULL);
  lm_status status = in_place ? call_inplace(id, args, out) : dispatch(id, args, out);
  lm_tape_swap(tape);
  if (status == LM_OK) lm_tape_add(tape, id, args, in_place, out);
  return status;
}

/* Calls an op for the tape; under a follower, one that no script calls, so that it needs the values of all tensors. */
static lm_status call_watched(lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_follower *follower = lm_modes_here.follower;
  lm_status status = follower ? follower->leave(follower) : LM_OK;
  if (status != LM_OK) return status;
  lm_follower_swap(NULL);
  status = lm_modes_here.tape ? call_taped(id, args, in_place, out)
           : in_place         ? call_inplace(id, args, out)
                              : dispatch(id, args, out);
  lm_follower_swap(follower);
  return status;
}

lm_status lm_call(lm_op_id id, const void *args, lm_tensor **out) {
  return __builtin_expect(lm_modes_here.is_watched, 0) ? call_watched(id, args, false, out) : dispatch(id, args, out);
}

lm_status lm_call_inplace(lm_op_id id, const void *args, lm_tensor **out) {
  return __builtin_expect(lm_modes_here.is_watched, 0) ? call_watched(id, args, true, out)
                                                       : call_inplace(id, args, out);
}

lm_status lm_call_by_script(lm_op_id id, const void *args, bool in_place, lm_tensor **out) {
  lm_follower *follower = lm_modes_here.tape ? NULL : lm_modes_here.follower;
  if (__builtin_expect(follower != NULL, 0)) return follower->call(follower, id, args, in_place, out);
  return in_place ? lm_call_inplace(id, args, out) : lm_call(id, args, out);
}
