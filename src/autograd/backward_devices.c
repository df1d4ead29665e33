/* Runs a backward pass over several devices, with a thread for each.
 *
 * Each device has a queue of its nodes. The calling thread runs the queue of the first root's device and all nodes with
 * a user's function; worker threads run the other queues. A queue runs strictly from its latest node to its first, and
 * waits while a gradient is still to come. The latest node of all that are left has every gradient it needs, so one
 * queue can always continue; and each queue runs in the same order every time.
 *
 * A queue adds to the sums of its own nodes and leaves. Its gradients for other queues are summed apart and joined in
 * the order of queues once all have arrived, so sums have the same bits in every run.
 *
 * Hooks run on the calling thread, whose Lua state or reducer they belong to. A queue sends that thread a node with
 * hooks and waits until it has run; it sends a leaf with hooks and continues.
 *
 * Hooks and functions that communicate with other ranks (lm_backward_keep_order) must not run in an order that depends
 * on the speed of queues. They run by the numbers of their nodes, the largest first, as on one thread, once all queues
 * are past any earlier node. A leaf's number is the smallest among the nodes that its gradients came from. */
#include <stdlib.h>
#include <string.h>

#include "autograd/backward_queues.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/thread_state.h"
#include "device/graph.h"
#include "device/stream.h"
#include "op/kernels.h"

static _Atomic int order_kept;

void lm_backward_keep_order(bool on) { atomic_fetch_add(&order_kept, on ? 1 : -1); }

static void fail_locked(lm_parallel_pass *t, lm_status status) {
  if (t->failed.status != LM_OK) return;
  lm_error_save(status, &t->failed);
  for (int i = 0; i < t->ndevice_queues; i++) pthread_cond_broadcast(&t->device_queue[i].wake);
}

/* ---- running nodes and leaves */

static void run_request_locked(lm_parallel_pass *t) {
  lm_main_thread_request *e = t->main_thread_requests;
  t->main_thread_requests = e->next;
  e->state = LM_REQUEST_RUNS;
  pthread_mutex_unlock(&t->lock);
  lm_status status = e->node ? lm_pass_step(t->run, e->node) : lm_pass_finish_leaf(t->run, e->leaf);
  pthread_mutex_lock(&t->lock);
  if (status != LM_OK) fail_locked(t, status);
  e->status = status;
  e->state = LM_REQUEST_DONE;
  if (e->node) {
    pthread_cond_signal(&t->device_queue[e->device_queue].wake);
  } else {
    lm_free(e);
  }
}

/* Returns true if running the node calls user code. */
static bool runs_hooks(const lm_node *n) {
  bool any = n->kind == LM_NODE_CUSTOM || n->recompute || n->fetches;
  for (int s = 0; s < n->nout && !any; s++) any = lm_watch_has_hooks(n->out[s].watch);
  return any;
}

static lm_status step_node(lm_parallel_pass *t, int k, lm_node *n) {
  return k > 0 && runs_hooks(n) ? lm_parallel_pass_send_node(t, k, n) : lm_pass_step(t->run, n);
}

/* Returns true if, when order is kept, no queue except `own` has a node left with this number or a larger one. */
static bool is_next_locked(const lm_parallel_pass *t, uint64_t number, int own) {
  for (int k = 0; k < t->ndevice_queues && t->ordered; k++) {
    const lm_device_queue *l = &t->device_queue[k];
    if (k != own && l->next < l->n && l->node[l->next]->number >= number) return false;
  }
  return true;
}

/* ---- running a queue */

/* Returns the queue's next node if its gradients are complete, else NULL. Requires the lock. */
static lm_node *next_locked(lm_device_queue *l) {
  lm_node *n = l->next < l->n ? l->node[l->next] : NULL;
  return n && n->waits_for == 0 ? n : NULL;
}

static void step_locked(lm_parallel_pass *t, int k, lm_node *n) {
  pthread_mutex_unlock(&t->lock);
  lm_status status = step_node(t, k, n);
  pthread_mutex_lock(&t->lock);
  t->device_queue[k].next++;
  if (k > 0 && t->main_thread_waits) pthread_cond_signal(&t->device_queue[0].wake);
  if (status != LM_OK) fail_locked(t, status);
}

static void run_device_queue(lm_parallel_pass *t, int k) {
  lm_device_queue *l = &t->device_queue[k];
  lm_modes before = lm_modes_swap((lm_modes){.no_grad = true});
  lm_set_default_dtype(t->default_dtype);
  lm_set_thread_limit(t->threads);
  for (int i = 0; i < t->ndevice_queues; i++)
    lm_stream_set_current(t->device_queue[i].stream); /* a queue copies to other devices, too */
  pthread_mutex_lock(&t->lock);
  while (t->failed.status == LM_OK && l->next < l->n) {
    lm_node *n = next_locked(l);
    if (n) {
      step_locked(t, k, n);
    } else {
      pthread_cond_wait(&l->wake, &t->lock);
    }
  }
  for (int i = 0; i < t->ndevice_queues; i++) lm_stream_set_current(lm_stream_by_id(t->device_queue[i].device, 0));
  t->busy--;
  pthread_cond_signal(&t->device_queue[0].wake);
  pthread_mutex_unlock(&t->lock);
  lm_modes_swap(before);
}

static void run_main_thread(lm_parallel_pass *t) {
  lm_device_queue *l = &t->device_queue[0];
  int limit = lm_thread_limit();
  if (t->threads > 0) lm_set_thread_limit(t->threads);
  pthread_mutex_lock(&t->lock);
  while (t->failed.status == LM_OK && (l->next < l->n || t->busy > 0 || t->main_thread_requests)) {
    lm_node *n = next_locked(l);
    const lm_main_thread_request *e = t->main_thread_requests;
    if (e && is_next_locked(t, e->number, e->node ? e->device_queue : -1)) {
      run_request_locked(t);
    } else if (n && (!t->ordered || !runs_hooks(n) || is_next_locked(t, n->number, 0))) {
      step_locked(t, 0, n);
    } else {
      t->main_thread_waits = e || n;
      pthread_cond_wait(&l->wake, &t->lock);
      t->main_thread_waits = false;
    }
  }
  pthread_mutex_unlock(&t->lock);
  lm_set_thread_limit(limit);
}

/* ---- worker threads wait for the next pass, and end with the process; a pass within another's hook, or of another Lua
 * state, uses other workers */

typedef struct worker {
  pthread_cond_t wake, done;
  lm_parallel_pass *parallel; /* NULL: idle */
  int device_queue;
  struct worker *next; /* next idle worker */
} worker;

static pthread_mutex_t workers_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all workers */
static worker *idle;

static void *worker_main(void *arg) {
  worker *h = arg;
  pthread_mutex_lock(&workers_lock);
  for (;;) {
    while (!h->parallel) pthread_cond_wait(&h->wake, &workers_lock);
    pthread_mutex_unlock(&workers_lock);
    run_device_queue(h->parallel, h->device_queue);
    lm_busy_threads(-1);
    pthread_mutex_lock(&workers_lock);
    h->parallel = NULL;
    h->next = idle;
    idle = h;
    pthread_cond_broadcast(&h->done);
  }
  return NULL;
}

static worker *worker_new(void) {
  worker *h = lm_calloc(1, sizeof *h);
  if (!h) return NULL;
  pthread_cond_init(&h->wake, NULL);
  pthread_cond_init(&h->done, NULL);
  if (lm_thread_start_detached("lm-backward", worker_main, h) == LM_OK) return h;
  pthread_cond_destroy(&h->wake);
  pthread_cond_destroy(&h->done);
  lm_free(h);
  return NULL;
}

static worker *acquire_worker(void) {
  pthread_mutex_lock(&workers_lock);
  worker *h = idle;
  if (h) idle = h->next;
  pthread_mutex_unlock(&workers_lock);
  return h ? h : worker_new();
}

static bool acquire_workers(lm_parallel_pass *t) {
  for (int k = 1; k < t->ndevice_queues; k++) {
    if ((t->device_queue[k].worker = acquire_worker())) continue;
    pthread_mutex_lock(&workers_lock);
    while (--k > 0) {
      t->device_queue[k].worker->next = idle;
      idle = t->device_queue[k].worker;
    }
    pthread_mutex_unlock(&workers_lock);
    return false;
  }
  return true;
}

static void start_worker(lm_parallel_pass *t) {
  t->busy = t->ndevice_queues - 1;
  pthread_mutex_lock(&workers_lock);
  for (int k = 1; k < t->ndevice_queues; k++) {
    worker *h = t->device_queue[k].worker;
    h->device_queue = k;
    h->parallel = t;
    lm_busy_threads(1);
    pthread_cond_signal(&h->wake);
  }
  pthread_mutex_unlock(&workers_lock);
}

static void wait_for_workers(lm_parallel_pass *t) {
  pthread_mutex_lock(&workers_lock);
  for (int k = 1; k < t->ndevice_queues; k++) {
    worker *h = t->device_queue[k].worker;
    while (h->parallel == t) pthread_cond_wait(&h->done, &workers_lock);
  }
  pthread_mutex_unlock(&workers_lock);
}

/* ---- queues */

/* Assigns a queue index to each node; nodes that are not needed get LM_MAX_DEVICE_QUEUES. */
static void assign(lm_parallel_pass *t) {
  lm_pass *r = t->run;
  t->ndevice_queues = 1;
  t->device_queue[0].device = lm_edge_meta(r->edge[0])->device;
  for (int i = 0; i < r->nnodes; i++) {
    lm_node *n = r->node[i];
    lm_device device = n->out[0].meta.device;
    n->device_queue = LM_MAX_DEVICE_QUEUES;
    if (!n->needed) continue;
    n->device_queue = n->kind == LM_NODE_CUSTOM ? 0 : (uint8_t)lm_parallel_pass_queue_of(t, device);
    if (n->device_queue > 0 || n->kind == LM_NODE_CUSTOM || t->device_queue[0].device == device ||
        t->ndevice_queues == LM_MAX_DEVICE_QUEUES)
      continue;
    n->device_queue = (uint8_t)t->ndevice_queues;
    t->device_queue[t->ndevice_queues++].device = device;
  }
}

static int by_device_queue(const void *a, const void *b) {
  const lm_node *m = *(lm_node *const *)a, *n = *(lm_node *const *)b;
  if (m->device_queue != n->device_queue) return m->device_queue - n->device_queue;
  return (m->number < n->number) - (m->number > n->number);
}

static void fill_device_queues(lm_parallel_pass *t) {
  lm_pass *r = t->run;
  qsort(r->node, (size_t)r->nnodes, sizeof *r->node, by_device_queue);
  for (int i = 0; i < r->nnodes && r->node[i]->device_queue < LM_MAX_DEVICE_QUEUES; i++) {
    lm_device_queue *l = &t->device_queue[r->node[i]->device_queue];
    if (l->n++ == 0) l->node = &r->node[i];
  }
}

static lm_status prepare_device_queues(lm_parallel_pass *t) {
  int cpus = 0;
  for (int k = 0; k < t->ndevice_queues; k++) {
    lm_device_queue *l = &t->device_queue[k];
    cpus += LM_DEVICE_KIND(l->device) == LM_CPU;
    if (!(l->stream = lm_stream_current(l->device))) NEED(LM_E_DEVICE);
  }
  const lm_backend *cpu = lm_backend_of(LM_DEVICE(LM_CPU, 0));
  if (cpus > 1 && cpu) t->threads = cpu->get_threads() / cpus > 0 ? cpu->get_threads() / cpus : 1;
  return LM_OK;
}

bool lm_backward_run_parallel(lm_pass *r, lm_status *status) {
  if (r->a->create_graph || lm_graph_capturing()) return false;
  lm_parallel_pass *t = lm_calloc(1, sizeof *t);
  if (!t) return false;
  t->run = r;
  t->caller = pthread_self();
  t->default_dtype = lm_default_dtype();
  t->ordered = atomic_load(&order_kept) > 0;
  assign(t);
  *status = prepare_device_queues(t);
  if (*status != LM_OK || t->ndevice_queues == 1 || !acquire_workers(t)) {
    lm_free(t);
    return *status != LM_OK;
  }
  fill_device_queues(t);
  pthread_mutex_init(&t->lock, NULL);
  for (int k = 0; k < t->ndevice_queues; k++) pthread_cond_init(&t->device_queue[k].wake, NULL);
  r->parallel = t;
  start_worker(t);
  run_main_thread(t);
  wait_for_workers(t);
  r->parallel = NULL;

  for (lm_main_thread_request *e = t->main_thread_requests, *next; e;
       e = next) { /* leaves not finished after an error */
    next = e->next;
    lm_free(e);
  }
  for (lm_queue_part *p = t->parts, *next; p; p = next) {
    next = p->next;
    lm_release(p->sum);
    lm_free(p);
  }
  for (int k = 0; k < t->ndevice_queues; k++) pthread_cond_destroy(&t->device_queue[k].wake);
  pthread_mutex_destroy(&t->lock);
  *status = lm_error_restore(&t->failed);
  lm_free(t);
  return true;
}
