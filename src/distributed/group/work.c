/* Calls backends, and creates works, which record asynchronous calls, and the queues they belong to. */
#include "base/mem.h"
#include "base/thread.h"
#include "distributed/group/call.h"
#include "distributed/group/enqueued_calls.h"
#include "op/op.h"

/* ---- calling the backend */

/* Multiplies t by factor, if the backend cannot; 0 yields zeros, also for inf and NaN. */
static lm_status work_scale(lm_tensor *t, double factor) {
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

static lm_status work_all_reduce_scaled(const lm_exchange *c) {
  const lm_group_table *table = c->g->table;
  if (table->all_reduce_scaled && c->scale != 0) return table->all_reduce_scaled(c->g, c->t, c->scale);
  NEED(work_scale(c->t, c->scale));
  /* A rank with zeros must call the same function as the other ranks. */
  return table->all_reduce_scaled ? table->all_reduce_scaled(c->g, c->t, 1)
                                  : table->all_reduce(c->g, c->t, LM_REDUCE_SUM);
}

lm_status lm_call_dispatch(const lm_exchange *c) {
  lm_group *g = c->g;
  const lm_group_table *table = g->table;
  lm_request *none = NULL;
  if (c->empty && !table->barrier)
    return lm_fail(LM_E_MISSING, "backend '%s' has no barrier, which calls on empty tensors need", table->name);
  if (c->empty) return table->barrier(g);
  switch (c->kind) {
    case LM_ALL_REDUCE: return c->scaled ? work_all_reduce_scaled(c) : table->all_reduce(g, c->t, c->op);
    case LM_BROADCAST: return table->broadcast(g, c->t, c->root);
    case LM_REDUCE: return table->reduce(g, c->t, c->root, c->op);
    case LM_ALL_GATHER: return table->all_gather(g, c->t, c->out);
    case LM_GATHER: return table->gather(g, c->t, c->root, c->out);
    case LM_SCATTER: return table->scatter(g, c->t, c->root, c->in);
    case LM_REDUCE_SCATTER: return table->reduce_scatter(g, c->t, c->in, c->op);
    case LM_ALL_TO_ALL: return table->all_to_all(g, c->in, c->out);
    case LM_BARRIER: return table->all_reduce(g, c->t, LM_REDUCE_SUM); /* an enqueued one: see make_barrier */
    case LM_SEND:
    case LM_RECV: return table->post(g, c->kind == LM_SEND, c->t, c->peer, c->tag, &none);
    default: return lm_fail(LM_E_ARG, "%s is not a collective", lm_collective_name(c->kind));
  }
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
  w->call = *c;
  return LM_OK;
}

void lm_work_finish(lm_work *w, lm_status status) {
  lm_error_save(status, &w->outcome);
  lm_call_clear(&w->call);
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
  lm_call_clear(&w->call);
  lm_event_free(w->event);
  lm_queue_release(w->queue);
  lm_issuer_release(w->issuer);
  lm_free(w);
}

/* ---- queues */

lm_status lm_queue_thread(lm_queue *q, bool *started, pthread_t *thread, void *(*run)(void *queue)) {
  lm_status status = *started ? LM_OK : lm_thread_start(thread, run, q);
  *started = status == LM_OK;
  return status;
}

lm_status lm_queue_of(lm_group_core *core, lm_queue **out) {
  lm_status status = LM_OK;
  pthread_mutex_lock(&core->lock);
  lm_queue *q = core->queue;
  if (!q) {
    q = lm_calloc(1, sizeof *q);
    if (!q) TRY(LM_E_OOM);
    atomic_init(&q->rc, 1);
    pthread_mutex_init(&q->lock, NULL);
    lm_cond_init(&q->more);
    lm_cond_init(&q->posting);
    lm_cond_init(&q->finished);
    core->queue = q;
  }
done:
  pthread_mutex_unlock(&core->lock);
  *out = q;
  return status;
}
