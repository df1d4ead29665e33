#include "op/stream_order.h"
#include "device/graph.h"

#include "base/environment_variable.h"
#include "device/alloc.h"
#include "op/pointwise.h"
#include "op/run.h"
#include "op_entries.h"

/* True if LM_SYNC=1, with which a kernel's error is raised at the line of its op. */
static bool waits_for_each(void) {
  static _Atomic int wanted; /* 0: not read yet, 1: no, 2: yes */
  int w = atomic_load_explicit(&wanted, memory_order_relaxed);
  if (w == 0) {
    w = lm_variable_is_on(LM_VAR_SYNC, false) ? 2 : 1;
    atomic_store_explicit(&wanted, w, memory_order_relaxed);
  }
  return w == 2;
}

lm_status lm_stream_order_begin(lm_device device, lm_stream **s) {
  *s = NULL;
  if (!lm_is_ordered(device)) return LM_OK;
  *s = lm_stream_current(device);
  return *s ? lm_graph_join(*s) : LM_E_STATE; /* the driver recorded the message */
}

lm_status lm_stream_order_read(lm_stream *s, const lm_tensor *t) {
  return s && t && t->device == s->device ? lm_use_read(lm_tensor_used(t), s) : LM_OK;
}

lm_status lm_stream_order_write(lm_stream *s, const lm_tensor *t) {
  return s && t && t->device == s->device ? lm_use_write(lm_tensor_used(t), s) : LM_OK;
}

lm_status lm_stream_order_end(lm_stream *s, lm_status status) {
  if (!s) return status;
  lm_stream_touch(s);
  if (status != LM_OK || !waits_for_each() || lm_graph_capturing()) return status;
  return lm_stream_synchronize(s);
}

/* Orders reads of all tensor arguments of an op. */
static lm_status read_all(lm_stream *s, const lm_op *op, const void *args) {
  for (int i = 0; i < op->ntensor; i++) NEED(lm_stream_order_read(s, LM_ARG_TENSOR(args, op->tensor[i])));
  if (op->list >= 0) {
    const lm_list *list = (const lm_list *)((const char *)args + op->list);
    for (int i = 0; i < list->n; i++) NEED(lm_stream_order_read(s, list->v[i]));
  }
  return LM_OK;
}

/* Orders writes of an op's outputs and of the arguments it changes. */
static lm_status write_all(lm_stream *s, lm_op_id id, const void *args, lm_tensor *const *out) {
  const lm_op *op = &lm_ops[id];
  for (int i = 0; i < op->outs + op->aux; i++) NEED(lm_stream_order_write(s, out[i]));
  bool writes = op->writes && (op->writes_when < 0 || *((const bool *)args + op->writes_when));
  for (int i = 0; writes && i < op->ntensor; i++) {
    if (op->writes >> i & 1) NEED(lm_stream_order_write(s, LM_ARG_TENSOR(args, op->tensor[i])));
  }
  return LM_OK;
}

lm_status lm_ordered_op(const lm_backend *backend, lm_op_id op, lm_device device, const void *args,
                        lm_tensor *const *out) {
  lm_stream *s;
  /* Errors of a kernel that several ops share name the op that runs. */
  bool shared = (op == LM_OP_scatter_along || op >= LM_OP_COUNT) && lm_now_running.op >= 0;
  LM_RUNNING before = shared ? lm_now_running : lm_run_begin(lm_ops[op].name, (int)op);
  NEED(lm_stream_order_begin(device, &s));
  NEED(read_all(s, &lm_ops[op], args));
  NEED(write_all(s, op, args, out));
  return lm_stream_order_end(s, backend->op[op](args, out));
}

lm_status lm_ordered_pointwise(const lm_backend *backend, const lm_pointwise *job) {
  lm_stream *s;
  int op = lm_pointwise_op(job->kernel);
  LM_RUNNING before = lm_run_begin(lm_ops[op].name, op);
  NEED(lm_stream_order_begin(job->out->device, &s));
  for (int i = 0; i < job->nin; i++) NEED(lm_stream_order_read(s, job->in[i]));
  NEED(lm_stream_order_write(s, job->out));
  return lm_stream_order_end(s, backend->pointwise(job));
}

lm_status lm_ordered_copy(const lm_backend *backend, const lm_tensor *src, lm_tensor *dst) {
  lm_stream *s;
  NEED(lm_stream_order_begin(dst->device, &s));
  NEED(lm_stream_order_read(s, src));
  NEED(lm_stream_order_write(s, dst));
  return lm_stream_order_end(s, backend->copy(src, dst));
}
