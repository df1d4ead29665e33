/* Creates and closes a reducer, prepares it before each forward pass, and lets ranks that run out of batches join. */
#include "distributed/ddp/reducer.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"

/* ---- creating and closing */

void lm_reducer_close(lm_reducer *r) {
  if (!r) return;
  if (r->begun) lm_pass_forget(r);
  lm_work_release(r->announcing);
  r->announcing = NULL;
  r->g = NULL;
  for (int i = 0; i < r->n && r->slot; i++) {
    if (r->slot[i].hook) {
      lm_remove_hook(r->slot[i].param, r->slot[i].hook);
      lm_set_grad_buffer(r->slot[i].param, NULL);
    }
    r->slot[i].hook = 0;
  }
  lm_reducer_release(r);
}

static lm_status take_params(lm_reducer *r, lm_tensor *const *param, const char *const *name) {
  size_t bytes = 0;
  for (int i = 0; i < r->n; i++) bytes += strlen(name[i]) + 1;
  r->slot = lm_calloc((size_t)r->n, sizeof *r->slot);
  r->arrived = lm_calloc((size_t)r->n, sizeof *r->arrived);
  r->order = lm_calloc((size_t)r->n, sizeof *r->order);
  r->names = lm_malloc(bytes);
  if (!r->slot || !r->arrived || !r->order || !r->names) return LM_E_OOM;
  char *at = r->names;
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    s->param = lm_retain(param[i]);
    s->name = at;
    s->bytes = lm_nbytes(param[i]);
    at = stpcpy(at, name[i]) + 1;
    if (!lm_is_leaf(param[i]) || !lm_requires_grad(param[i])) {
      return lm_fail(LM_E_STATE, LM_DDP ": parameter '%s' must be a leaf that requires grad", name[i]);
    }
    if (lm_is_dense(param[i])) {
      memcpy(s->stride, param[i]->stride, sizeof s->stride);
      continue;
    }
    int64_t stride = 1;
    for (int d = param[i]->ndim - 1; d >= 0; d--) {
      s->stride[d] = stride;
      stride *= param[i]->size[d];
    }
  }
  return LM_OK;
}

/* Takes rank 0's gradient strides on all ranks, since a bucket's elements are summed by position. Collective. */
static lm_status agree_on_strides(lm_reducer *r) {
  size_t each = sizeof r->slot->stride, bytes = (size_t)r->n * each, heard = 0;
  LM_FREED char *strides = lm_malloc(bytes), *theirs = NULL;
  if (!strides) return LM_E_OOM;
  for (int i = 0; i < r->n; i++) memcpy(strides + (size_t)i * each, r->slot[i].stride, each);
  NEED(lm_broadcast_bytes(r->g, 0, strides, bytes, &theirs, &heard));
  if (heard != bytes) {
    NEED(lm_reducer_publish(
        r, lm_fail(LM_E_STATE,
                   LM_DDP ": the number of parameters must be the same on all ranks, got %zu on rank 0 and %d here",
                   heard / each, r->n)));
  }
  for (int i = 0; i < r->n; i++) memcpy(r->slot[i].stride, theirs + (size_t)i * each, each);
  return LM_OK;
}

lm_status lm_reducer_new(lm_group *g, int n, lm_tensor *const *param, const char *const *name,
                         const lm_reducer_config *config, lm_reducer **out) {
  lm_status status = LM_OK;
  *out = NULL;
  lm_reducer *r = lm_calloc(1, sizeof *r);
  if (!r) return LM_E_OOM;
  atomic_init(&r->rc, 1);
  r->g = g;
  r->config = *config;
  r->n = n;
  r->weight = 1;
  r->averaged = r->sync = true;
  r->first_call = atomic_load(&g->core->seq);
  int number = atomic_fetch_add(&g->core->reducers, 1) + 1;
  int n_title = snprintf(r->title, sizeof r->title, LM_DDP);
  if (number > 1) snprintf(r->title + n_title, sizeof r->title - (size_t)n_title, " %d", number);
  r->facts_bytes = lm_round_up(sizeof(lm_facts) + (size_t)n / 8 + 1, 64);
  TRY(take_params(r, param, name));
  TRY(agree_on_strides(r));
  TRY(lm_facts_open(r));
  for (int i = 0; i < n; i++) r->order[i] = n - 1 - i;
  TRY(lm_buckets_make(r, r->order));
  TRY(lm_reducer_add_hooks(r));
  *out = r;
  r = NULL;
done:
  lm_reducer_close(r);
  return status;
}

int lm_reducer_buckets(const lm_reducer *r, bool *shared) {
  *shared = r->shared != NULL;
  return r->nbuckets;
}

/* ---- forward passes, and running out of batches */

lm_status lm_reducer_forward(lm_reducer *r, const lm_forward *f, int *root) {
  NEED(lm_reducer_usable(r));
  for (int i = 0; i < r->n; i++) NEED(lm_slot_check(&r->slot[i], r->slot[i].param));
  r->sync = f->sync;
  if (!f->training) {
    if (r->averaged) r->weight = f->weight;
  } else {
    r->weight = f->weight + (r->averaged ? 0 : r->weight);
    r->averaged = false;
  }
  if (r->joining && f->sync && f->training && f->buffers) {
    NEED(lm_facts_announce(r, LM_ARRIVAL_FORWARD));
    NEED(lm_facts_wait(r));
    r->announced = r->known = false;
  }
  *root = r->root;
  return LM_OK;
}

lm_status lm_reducer_join(lm_reducer *r, bool on) {
  if (on && r->joining) NEED(lm_fail(LM_E_STATE, "join: this model is already inside a join"));
  if (on) NEED(lm_reducer_usable(r));
  r->joining = on;
  if (!on) r->root = 0;
  return LM_OK;
}

/* Takes part in the other ranks' backward pass with a weight of 0, so that their collectives complete. */
static lm_status shadow_backward(lm_reducer *r) {
  lm_status status = LM_OK;
  r->begun = true;
  for (int i = 0; i < r->n && !r->shared; i++) {
    TRY(lm_reduce_put(r, i, NULL));
    r->slot[i].ready = true;
  }
  for (int b = 0; b < r->nbuckets; b++) r->bucket[b].waits_for = 0;
  TRY(lm_reduce_finish(r));
  TRY(lm_pass_end(r));
done:
  if (status != LM_OK) lm_reducer_publish(r, status);
  if (r->begun) lm_pass_forget(r);
  return status;
}

lm_status lm_reducer_shadow(lm_reducer *r, lm_shadow *what, int *root) {
  lm_status status = LM_OK;
  atomic_fetch_add(&r->rc, 1); /* keeps r alive: a communication hook may close it */
  TRY(lm_reducer_usable(r));
  TRY(lm_facts_announce(r, LM_ARRIVAL_JOINED));
  TRY(lm_facts_wait(r));
  *root = r->root;
  switch (r->event) {
    case LM_ARRIVAL_FORWARD:
      *what = LM_SHADOW_BUFFERS;
      r->announced = r->known = false;
      break;
    case LM_ARRIVAL_BACKWARD:
      *what = LM_SHADOW_BACKWARD;
      TRY(shadow_backward(r));
      break;
    default:
      *what = LM_SHADOW_OVER;
      r->announced = r->known = false;
      break;
  }
done:
  lm_reducer_release(r);
  return status;
}
