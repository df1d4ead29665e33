/* Calls backends, and creates works, which record asynchronous calls, and the queues they belong to. */
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/group/call.h"
#include "distributed/group/enqueued_calls.h"
#include "op_entries.h"

/* ---- calling the backend */

lm_status lm_scale_in_place(lm_tensor *t, double factor) {
  lm_status status = LM_OK;
  lm_tensor *number = NULL, *same = NULL;
  if (factor == 1) return LM_OK;
  if (factor != 0 && LM_DEVICE_KIND(t->device) == LM_CPU) {
    lm_reduce_scale(t->dtype, t->data, (size_t)t->numel, factor);
    return LM_OK;
  }
  TRY(lm_tensor_number(factor, &number));
  if (factor == 0) {
    TRY(lm_op_run(LM_OP_fill_, &(lm_fill__args){.x = t, .value = number}, &same));
  } else {
    TRY(lm_op_run_inplace(LM_OP_mul, &(lm_mul_args){.x = t, .other = number}, &same));
  }
done:
  lm_release(same);
  lm_release(number);
  return status;
}

lm_status lm_call_dispatch(const lm_exchange *c) {
  const lm_group_table *table = c->g->table;
  lm_group_call call = c->call;
  lm_request *none = NULL;
  if (lm_kind_is_p2p(call.kind)) return table->post(c->g, call.kind == LM_SEND, call.t, call.peer, call.tag, &none);
  if (c->empty) {
    if (!(table->collectives >> LM_BARRIER & 1))
      return lm_fail(LM_E_MISSING, "backend '%s' has no barrier, which calls on empty tensors need", table->name);
    call = (lm_group_call){.kind = LM_BARRIER};
  } else if (call.kind == LM_BARRIER) {
    call.kind = LM_ALL_REDUCE; /* an enqueued one: see make_barrier */
  } else if (call.scaled) {    /* NCCL's own scaled sums cannot be reduced by the switches of NVLink */
    NEED(lm_scale_in_place(call.t, call.scale));
  }
  return table->run(c->g, &call);
}

/* ---- works */

lm_status lm_work_new(lm_queue *q, lm_issuer *issuer, lm_exchange *c, lm_work **out) {
  lm_work *w = lm_calloc(1, sizeof *w);
  *out = w;
  if (!w) {
    lm_call_clear(c);
    return LM_E_OOM;
  }
  atomic_init(&w->rc, 1);
  if (q) atomic_fetch_add_explicit(&q->rc, 1, memory_order_relaxed);
  if (issuer) lm_issuer_retain(issuer);
  w->queue = q;
  w->issuer = issuer;
  w->peer = -1;
  w->exchange = *c;
  return LM_OK;
}

void lm_work_finish(lm_work *w, lm_status status) {
  lm_error_save(status, &w->outcome);
  lm_call_clear(&w->exchange);
  atomic_store_explicit(&w->done, true, memory_order_release);
}

lm_status lm_work_outcome(const lm_work *w) { return lm_error_restore(&w->outcome); }

static bool drops_to_zero(_Atomic int *rc) { return atomic_fetch_sub_explicit(rc, 1, memory_order_acq_rel) == 1; }

void lm_queue_release(lm_queue *q) {
  if (!q || !drops_to_zero(&q->rc)) return;
  pthread_cond_destroy(&q->more);
  pthread_cond_destroy(&q->posting);
  pthread_cond_destroy(&q->finished);
  pthread_mutex_destroy(&q->lock);
  lm_free(q);
}

void lm_work_release(lm_work *w) {
  if (!w || !drops_to_zero(&w->rc)) return;
  lm_call_clear(&w->exchange);
  lm_event_free(w->event);
  lm_queue_release(w->queue);
  lm_issuer_release(w->issuer);
  lm_free(w);
}

/* ---- queues */

lm_status lm_queue_thread(lm_queue *q, bool *started, pthread_t *thread, void *(*run)(void *queue)) {
  lm_status status = *started ? LM_OK : lm_thread_start(NULL, "lm-queue", thread, run, q);
  *started = status == LM_OK;
  return status;
}

lm_status lm_group_queue_get(lm_group_core *core, lm_queue **out) {
  LM_LOCKED(&core->lock);
  if ((*out = core->queue)) return LM_OK;
  lm_queue *q = *out = core->queue = lm_calloc(1, sizeof *q);
  if (!q) return LM_E_OOM;
  atomic_init(&q->rc, 1);
  pthread_mutex_init(&q->lock, NULL);
  lm_cond_init(&q->more);
  lm_cond_init(&q->posting);
  lm_cond_init(&q->finished);
  return LM_OK;
}
