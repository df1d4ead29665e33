#include "autograd/backward_queues.h"

#include "base/mem.h"

/* ---- gradients between queues */

int lm_parallel_pass_queue_of(const lm_parallel_pass *t, lm_device device) {
  for (int i = 0; i < t->ndevice_queues; i++) {
    if (t->device_queue[i].device == device) return i;
  }
  return 0;
}

static int queue_of_target(const lm_parallel_pass *t, const lm_node *n) {
  return n->kind == LM_NODE_LEAF ? lm_parallel_pass_queue_of(t, n->out[0].meta.device) : n->device_queue;
}

lm_status lm_parallel_pass_sum_slot(lm_pass *r, int from, lm_edge e, lm_tensor ***sum) {
  lm_parallel_pass *t = r->parallel;
  if (queue_of_target(t, e.node) == from) return LM_OK;
  pthread_mutex_lock(&t->lock);
  lm_queue_part *p = t->parts;
  while (p && (p->to.node != e.node || p->to.slot != e.slot || p->device_queue != from)) p = p->next;
  pthread_mutex_unlock(&t->lock);
  if (!p) {
    p = lm_calloc(1, sizeof *p);
    if (!p) return LM_E_OOM;
    p->to = e;
    p->device_queue = from;
    pthread_mutex_lock(&t->lock);
    p->next = t->parts;
    t->parts = p;
    pthread_mutex_unlock(&t->lock);
  }
  *sum = &p->sum;
  return LM_OK;
}

bool lm_parallel_pass_arrived(lm_pass *r, const lm_node *from, lm_node *target, lm_leaf_state *leaf) {
  lm_parallel_pass *t = r->parallel;
  pthread_mutex_lock(&t->lock);
  bool last = --*(leaf ? &leaf->waits_for : &target->waits_for) == 0;
  if (leaf && (leaf->last == 0 || from->number < leaf->last)) leaf->last = from->number;
  if (last && !leaf) {
    lm_device_queue *l = &t->device_queue[target->device_queue];
    if (l->next < l->n && l->node[l->next] == target) pthread_cond_signal(&l->wake);
  }
  pthread_mutex_unlock(&t->lock);
  return last;
}

static lm_queue_part *take_first_part(lm_parallel_pass *t, const lm_node *n, int slot) {
  lm_queue_part **best = NULL;
  pthread_mutex_lock(&t->lock);
  for (lm_queue_part **p = &t->parts; *p; p = &(*p)->next) {
    if ((*p)->to.node == n && (*p)->to.slot == slot && (!best || (*p)->device_queue < (*best)->device_queue)) best = p;
  }
  lm_queue_part *taken = best ? *best : NULL;
  if (taken) *best = taken->next;
  pthread_mutex_unlock(&t->lock);
  return taken;
}

lm_status lm_parallel_pass_collect(lm_pass *r, const lm_node *n, int slot, lm_tensor **sum) {
  lm_status status = LM_OK;
  for (lm_queue_part *p; status == LM_OK && (p = take_first_part(r->parallel, n, slot));) {
    if (p->sum) status = lm_sum_gradient(sum, p->sum, false);
    lm_free(p);
  }
  return status;
}

bool lm_parallel_pass_leaf_is_free(lm_pass *r, const lm_leaf_state *l) {
  lm_parallel_pass *t = r->parallel;
  pthread_mutex_lock(&t->lock);
  bool is_free = l->waits_for == 1 && !l->grad;
  for (const lm_queue_part *p = t->parts; p && is_free; p = p->next) is_free = p->to.node != l->node;
  pthread_mutex_unlock(&t->lock);
  return is_free;
}

/* ---- requests to the main thread */

/* Orders requests by descending node number; leaves of one node by creation, usually the order of its edges. */
static bool comes_before(const lm_main_thread_request *a, const lm_main_thread_request *b) {
  if (a->number != b->number) return a->number > b->number;
  return a->leaf && b->leaf && a->leaf->node->number < b->leaf->node->number;
}

static void put_locked(lm_parallel_pass *t, lm_main_thread_request *e) {
  lm_main_thread_request **at = &t->main_thread_requests;
  while (*at && !comes_before(e, *at)) at = &(*at)->next;
  e->next = *at;
  *at = e;
  pthread_cond_signal(&t->device_queue[0].wake);
}

lm_status lm_parallel_pass_send_node(lm_parallel_pass *t, int device_queue, lm_node *n) {
  lm_main_thread_request e = {.node = n, .number = n->number, .device_queue = device_queue};
  pthread_mutex_lock(&t->lock);
  put_locked(t, &e);
  while (e.state == LM_REQUEST_RUNS || (e.state == LM_REQUEST_WAITS && t->failed.status == LM_OK)) {
    pthread_cond_wait(&t->device_queue[device_queue].wake, &t->lock);
  }
  if (e.state == LM_REQUEST_WAITS) LM_UNLINK(t->main_thread_requests, &e);
  lm_status status = e.state == LM_REQUEST_DONE ? e.status : t->failed.status;
  pthread_mutex_unlock(&t->lock);
  return status;
}

lm_status lm_parallel_pass_queue_leaf(lm_pass *r, lm_leaf_state *l, bool *queued) {
  lm_parallel_pass *t = r->parallel;
  bool caller = pthread_equal(t->caller, pthread_self());
  *queued = (!caller || t->ordered) && lm_watch_has_hooks(l->node->out[0].watch);
  if (!*queued) return LM_OK;
  lm_main_thread_request *e = lm_calloc(1, sizeof *e);
  if (!e) return LM_E_OOM;
  *e = (lm_main_thread_request){.leaf = l, .number = l->last};
  pthread_mutex_lock(&t->lock);
  put_locked(t, e);
  pthread_mutex_unlock(&t->lock);
  return LM_OK;
}
