#include <string.h>

#include "base/mapping_guard.h"
#include "base/message.h"
#include "op/check.h"
#include "op/elementwise_chain.h"
#include "op/op_recorder.h"
#include "op/run.h"
#include "op/stream_order.h"
#include "op/trace.h"

/* ---- runners of each kind */

lm_status lm_run_pointwise(lm_op_id id, const void *args, lm_tensor *into, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  lm_tensor *in[LM_POINTWISE_MAX_IN];
  double number[LM_POINTWISE_MAX_NUMBERS];
  for (int i = 0; i < op->ntensor; i++) in[i] = LM_ARG_TENSOR(args, op->tensor[i]);
  for (int i = 0; i < op->nnumber; i++) {
    number[i] = *(const double *)((const char *)args + op->arg[op->ntensor + i].offset);
  }
  return lm_pointwise_run((int)id, op->ntensor, in, op->nnumber ? number : NULL, into, out);
}

const char *lm_slot_name(lm_op_id op) {
  return op >= LM_OP_COUNT && lm_now_running.name ? lm_now_running.name : lm_ops[op].name;
}

lm_status lm_dispatch(lm_op_id op, lm_device device, const void *args, lm_tensor *const *out) {
  const lm_backend *backend = lm_backend_of(device);
  if (!backend) return LM_E_MISSING;
  if (!backend->op[op]) return lm_fail_missing(lm_slot_name(op), lm_device_name(device));
  return lm_is_ordered(device) ? lm_ordered_op(backend, op, device, args, out) : backend->op[op](args, out);
}

lm_status lm_run_write(lm_op_id id, const void *args, lm_op_fn fn, lm_tensor **out) {
  lm_tensor *x = LM_ARG_TENSOR(args, lm_ops[id].tensor[0]);
  lm_status status = lm_check_writable(id, x);
  if (status == LM_OK) status = fn(args, out);
  if (status == LM_OK) lm_bump(x, (int)id);
  return status;
}

int lm_op_find(const char *name) {
  for (int i = 0; i < LM_OP_COUNT; i++) {
    if (strcmp(lm_ops[i].name, name) == 0) return i;
  }
  return -1;
}

/* ---- running */

/* Releases results computed from zeros that replace a truncated file, and returns that error in place of `status`. */
static lm_status release_if_truncated(const lm_op *op, lm_status status, lm_tensor **out) {
  lm_status lost = lm_truncation_check();
  if (lost == LM_OK) return status;
  for (int i = 0; status == LM_OK && i < op->outs + op->aux; i++) {
    lm_release(out[i]);
    out[i] = NULL;
  }
  return lost;
}

static lm_status run_op(lm_op_id id, const void *args, bool only_visible, lm_tensor **out) {
  const lm_op *op = &lm_ops[id];
  if (!op->run) return lm_fail(LM_E_STATE, "%s: composite ops must run by lm_call", op->name);
  lm_span span;
  const bool traced = lm_ops_are_traced();
  if (traced) lm_op_trace_begin(&span, id, args, "");
  if (op->kind != LM_POINTWISE) lm_chain_before_op();
  lm_running before = lm_run_begin(op->name, (int)id);
  lm_now_running.only_visible = only_visible;
  lm_op_recorder *recorder = lm_recorder_begin();
  lm_status status = op->kind == LM_POINTWISE ? lm_run_pointwise(id, args, NULL, out) : op->run(args, out);
  lm_recorder_end(recorder);
  lm_run_end(before);
  if (__builtin_expect(recorder != NULL, 0) && status == LM_OK)
    recorder->op(recorder, id, args, only_visible ? LM_RUN_VISIBLE : LM_RUN_ALL, out);
  if (traced) lm_op_trace_end(&span, id, args, out, status);
  return release_if_truncated(op, status, out);
}

lm_status lm_op_run(lm_op_id id, const void *args, lm_tensor **out) { return run_op(id, args, false, out); }

lm_status lm_op_run_visible(lm_op_id id, const void *args, lm_tensor **out) {
  lm_tensor *results[LM_MAX_OUTS] = {NULL};
  const lm_op *op = &lm_ops[id];
  if (op->aux == 0) return run_op(id, args, false, out);
  lm_status status = run_op(id, args, true, results);
  if (status != LM_OK) return status;
  for (int i = 0; i < op->outs; i++) out[i] = results[i];
  for (int i = op->outs; i < op->outs + op->aux; i++) lm_release(results[i]);
  return LM_OK;
}

lm_status lm_op_run_inplace(lm_op_id id, const void *args, lm_tensor **out) {
  lm_status status = LM_OK;
  const lm_op *op = &lm_ops[id];
  if (op->kind != LM_POINTWISE) return lm_fail_missing(lm_text("%s_", op->name), "writing in place");
  lm_tensor *x = LM_ARG_TENSOR(args, op->tensor[0]), *result = NULL;
  if (x->number) return lm_fail_value(lm_text("%s_", op->name), "x", "a tensor", "a number");
  lm_span span;
  const bool traced = lm_ops_are_traced();
  if (traced) lm_op_trace_begin(&span, id, args, "_");
  lm_running before = lm_run_begin(op->name, (int)id);
  lm_op_recorder *recorder = lm_recorder_begin();
  TRY(lm_check_writable(id, x));
  TRY(lm_run_pointwise(id, args, x, &result));
  lm_bump(x, (int)id);
  *out = result;
  lm_recorder_end(recorder);
  if (__builtin_expect(recorder != NULL, 0)) recorder->op(recorder, id, args, LM_RUN_IN_PLACE, out);
  TRY(release_if_truncated(op, LM_OK, out));
done:
  lm_recorder_end(recorder);
  lm_run_end(before);
  if (traced) lm_op_trace_end(&span, id, args, out, status);
  return status;
}
