/* The reducer's life, the hooks that tell it of gradients, and backward passes from their first gradient to the end. */
#include "distributed/ddp/reducer.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"

/* ---- messages */

/* How many slots `pick` takes, and the first few of their names: "'a', 'b', 'c' and 4 more". */
static int name_some(const lm_reducer *r, bool (*pick)(const lm_slot *s), char *out, size_t capacity) {
  enum { FEW = 5 };
  int n = 0;
  size_t used = 0;
  out[0] = '\0';
  for (int i = 0; i < r->n; i++) {
    if (!pick(&r->slot[i]) || ++n > FEW || used >= capacity) continue;
    used += (size_t)snprintf(out + used, capacity - used, "%s'%s'", n > 1 ? ", " : "", lm_brief(r->slot[i].name, 100));
  }
  if (n > FEW && used < capacity) snprintf(out + used, capacity - used, " and %d more", n - FEW);
  return n;
}

lm_status lm_reducer_publish(const lm_reducer *r, lm_status status) {
  if (r->g && r->g->core->world) lm_world_fail(r->g->core->world, lm_where(), lm_error());
  return status;
}

lm_status lm_reducer_usable(const lm_reducer *r) {
  if (!r->g) return lm_fail(LM_E_STATE, LM_DDP ": its process group was destroyed, or the wrapper is gone");
  lm_status status = r->g->core->world ? lm_world_check(r->g->core->world) : LM_OK;
  return status == LM_OK ? status : lm_fail_in(status, LM_DDP);
}

/* ---- a pass */

/* t: the slot's parameter, or a gradient of it. */
static bool reducer_fits(const lm_slot *s, const lm_tensor *t) {
  return t->dtype == s->view->dtype && t->device == s->view->device && lm_same_shape(t, s->view);
}

static lm_status check_kind(const lm_slot *s, const lm_tensor *t) {
  if (reducer_fits(s, t)) return LM_OK;
  return lm_fail(
      LM_E_STATE, LM_DDP ": '%s' was %s %s on %s when the model was wrapped, and is %s %s on %s now: convert it before",
      s->name, lm_dtype_name((lm_dtype)s->view->dtype), lm_shape_of(s->view), lm_device_name(s->view->device),
      lm_dtype_name((lm_dtype)t->dtype), lm_shape_of(t), lm_device_name(t->device));
}

static void forget_pass(lm_reducer *r) {
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    if (r->g) lm_set_grad_home(s->param, reducer_fits(s, s->param) ? s->view : NULL);
    s->fires = 0;
    s->absent = s->ready = s->scaled = false;
  }
  for (int b = 0; b < r->nbuckets; b++) {
    r->bucket[b].waits_for = r->bucket[b].nslots;
    lm_work_release(r->bucket[b].work);
    lm_release(r->bucket[b].wire);
    r->bucket[b].work = NULL;
    r->bucket[b].wire = NULL;
    r->bucket[b].asks = false;
  }
  r->launched = r->reduced = r->narrived = 0;
  r->begun = r->told = r->known = false;
}

/* What the bucket gets of this slot is there. From now on its place belongs to all ranks, and is nobody's home. */
static lm_status set_ready(lm_reducer *r, int i) {
  lm_status status = LM_OK;
  lm_slot *s = &r->slot[i];
  lm_tensor *grad = lm_grad_of(s->param), *copy = NULL;
  if (s->absent && grad && lm_is_same_view(grad, s->view)) {
    /* It leaves its place, which others may fill, until it is known whether they have a gradient. */
    TRY(lm_call(LM_OP_clone, &(lm_clone_args){grad, LM_PRESERVE}, &copy));
    TRY(lm_set_grad(s->param, copy));
    grad = s->view;
  }
  TRY(lm_reduce_put(r, i, grad));
  if (!s->absent) TRY(lm_slot_show(s));
  TRY(lm_set_grad_home(s->param, NULL));
  s->ready = true;
  r->bucket[s->bucket].waits_for--;
done:
  lm_release(copy);
  return status;
}

static lm_status set_absent_ready(lm_reducer *r) {
  lm_status status = LM_OK;
  for (int i = 0; i < r->n; i++) {
    if (r->slot[i].absent && !r->slot[i].ready) TRY(set_ready(r, i));
  }
done:
  return status;
}

static bool is_missing(const lm_slot *s) { return !s->ready; }

/* The end of backward. Which parameters got nothing? */
static lm_status reducer_settle(lm_reducer *r) {
  lm_status status = LM_OK;
  if (r->config.static_graph && !r->settled) { /* this was the first pass: so it shall be */
    for (int i = 0; i < r->n; i++) {
      lm_slot *s = &r->slot[i];
      s->expected = s->fires;
      s->absent = s->fires == 0;
    }
    TRY(lm_facts_tell(r, LM_ARRIVAL_BACKWARD));
    r->settled = true;
    for (int i = 0; i < r->n; i++) TRY(set_ready(r, i));
  }
  for (int i = 0; i < r->n && r->config.find_unused && !r->config.static_graph; i++) {
    /* Part of the graph, but its gradient was undefined. */
    if (!r->slot[i].ready) r->slot[i].absent = true;
  }
  TRY(set_absent_ready(r));
  char names[640];
  int n = name_some(r, is_missing, names, sizeof names);
  if (n == 0) goto done;
  if (r->config.static_graph) {
    status = lm_fail(LM_E_STATE,
                     LM_DDP
                     ": %d of %d parameters got fewer gradients in this backward pass than in the first (%s): "
                     "with {static_graph = true} all have to be alike",
                     n, r->n, names);
  } else {
    status = lm_fail(LM_E_STATE,
                     LM_DDP
                     ": %d of %d parameters got no gradient in this backward pass: %s. If the loss does not use "
                     "all of the model, wrap it with {find_unused_parameters = true}",
                     n, r->n, names);
  }
  lm_reducer_publish(r, status);
done:
  return status;
}

/* What anybody had a gradient for has the average now, whether it was absent here or a hook has changed its .grad. */
static lm_status hand_out(lm_reducer *r) {
  lm_status status = LM_OK;
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    if ((s->used || s->absent) && lm_used_anywhere(r, i)) TRY(lm_slot_show(s));
    s->used = false;
  }
done:
  return status;
}

static lm_status end_pass(lm_reducer *r) {
  lm_status status = LM_OK;
  r->averaged = true;
  TRY(lm_buckets_rebuild(r));
  forget_pass(r);
done:
  return status;
}

static lm_status reducer_finish(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  (void)grad, (void)replacement;
  lm_status status = LM_OK;
  lm_reducer *r = ctx;
  if (!r->g) TRY(lm_reducer_usable(r));
  TRY(reducer_settle(r));
  TRY(lm_reduce_finish(r));
  TRY(hand_out(r));
  TRY(end_pass(r));
done:
  return status;
}

static void reducer_release(lm_reducer *r);

/* Backward is over. If it failed, the pass is forgotten as if nothing had been; but if the others count on it already,
 * they have to know why they wait in vain. */
static void leave_pass(void *ctx) {
  lm_reducer *r = ctx;
  if (r->begun) {
    if (r->told && r->g) lm_reducer_publish(r, LM_E_STATE);
    forget_pass(r);
  }
  reducer_release(r);
}

static lm_status begin_pass(lm_reducer *r) {
  lm_status status = LM_OK;
  TRY(lm_reducer_usable(r));
  atomic_fetch_add(&r->rc, 1);
  TRY(lm_backward_finally((lm_hook){reducer_finish, r, leave_pass}));
  r->begun = true;
  if (r->config.static_graph && !r->settled) goto done; /* nothing is sent before it is known what there is */
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    s->absent = r->config.static_graph ? s->expected == 0 : r->config.find_unused && !lm_backward_reaches(s->param);
  }
  TRY(lm_facts_tell(r, LM_ARRIVAL_BACKWARD));
  TRY(set_absent_ready(r));
done:
  return status;
}

/* ---- hooks */

typedef struct watcher { /* the context of one parameter's hook */
  lm_reducer *r;
  int i;
} watcher;

static lm_status once_more(const lm_reducer *r, const lm_slot *s) {
  if (r->config.static_graph) {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got more gradients in this backward pass than in the first (%d): with {static_graph = true} "
            "all have to be alike",
            s->name, s->expected);
  } else if (s->absent) {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got a gradient although the graph did not show that it would (is part of it recomputed in "
            "backward?); with {static_graph = true} instead of find_unused_parameters that is allowed",
            s->name);
  } else {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got two gradients in one backward pass (is part of the graph recomputed in backward?); "
            "with {static_graph = true} that is allowed",
            s->name);
  }
  return lm_reducer_publish(r, LM_E_STATE);
}

static lm_status on_gradient(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  (void)replacement;
  const watcher *w = ctx;
  lm_reducer *r = w->r;
  lm_status status = LM_OK;
  lm_slot *s = &r->slot[w->i];
  if (!r->g) TRY(lm_reducer_usable(r));
  TRY(check_kind(s, grad));
  TRY(check_kind(s, s->param)); /* which may have been converted since the forward pass */
  s->used = true;
  if (!r->sync) goto done;
  if (!r->begun) TRY(begin_pass(r));
  if (s->ready) TRY(once_more(r, s));
  s->fires++;
  if (r->config.static_graph && !r->settled) {
    if (s->fires == 1) r->arrived[r->narrived++] = w->i;
    goto done;
  }
  if (r->config.static_graph && s->fires < s->expected) goto done;
  TRY(set_ready(r, w->i));
  r->arrived[r->narrived++] = w->i;
  TRY(lm_reduce_advance(r));
done:
  return status;
}

static void drop_watcher(void *ctx) {
  watcher *w = ctx;
  reducer_release(w->r);
  lm_free(w);
}

/* ---- life */

static void reducer_release(lm_reducer *r) {
  if (atomic_fetch_sub(&r->rc, 1) > 1) return;
  for (int i = 0; i < r->n && r->slot; i++) {
    lm_release(r->slot[i].view);
    lm_release(r->slot[i].param);
  }
  lm_buckets_free(r->nbuckets, r->bucket);
  lm_facts_close(r);
  lm_shared_release(r->shared);
  lm_free(r->slot);
  lm_free(r->names);
  lm_free(r->arrived);
  lm_free(r->order);
  lm_free(r);
}

void lm_reducer_close(lm_reducer *r) {
  if (!r) return;
  if (r->begun) forget_pass(r);
  lm_work_release(r->telling);
  r->telling = NULL;
  r->g = NULL;
  for (int i = 0; i < r->n && r->slot; i++) {
    if (r->slot[i].hook) {
      lm_remove_hook(r->slot[i].param, r->slot[i].hook);
      lm_set_grad_home(r->slot[i].param, NULL);
    }
    r->slot[i].hook = 0;
  }
  reducer_release(r);
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
      return lm_fail(LM_E_STATE, LM_DDP ": '%s' is no leaf that requires grad", name[i]);
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

/* Elements of a bucket are added up by their place, so gradients lie on all ranks as they do on rank 0. */
static lm_status agree_on_strides(lm_reducer *r) {
  lm_status status = LM_OK;
  size_t each = sizeof r->slot->stride, bytes = (size_t)r->n * each, heard = 0;
  char *strides = lm_malloc(bytes), *theirs = NULL;
  if (!strides) TRY(LM_E_OOM);
  for (int i = 0; i < r->n; i++) memcpy(strides + (size_t)i * each, r->slot[i].stride, each);
  TRY(lm_share_bytes(r->g, 0, strides, bytes, &theirs, &heard));
  if (heard != bytes) {
    TRY(lm_reducer_publish(r, lm_fail(LM_E_STATE, LM_DDP ": %zu parameters on rank 0, %d here", heard / each, r->n)));
  }
  for (int i = 0; i < r->n; i++) memcpy(r->slot[i].stride, theirs + (size_t)i * each, each);
done:
  lm_free(strides);
  lm_free(theirs);
  return status;
}

static lm_status add_hooks(lm_reducer *r) {
  lm_status status = LM_OK;
  for (int i = 0; i < r->n; i++) {
    watcher *w = lm_malloc(sizeof *w);
    if (!w) TRY(LM_E_OOM);
    *w = (watcher){r, i};
    atomic_fetch_add(&r->rc, 1);
    TRY(lm_register_accumulate_hook(r->slot[i].param, (lm_hook){on_gradient, w, drop_watcher}, &r->slot[i].hook));
    TRY(lm_set_grad_home(r->slot[i].param, r->slot[i].view));
  }
done:
  return status;
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
  r->made = atomic_load(&g->core->seq);
  int number = atomic_fetch_add(&g->core->reducers, 1) + 1;
  int n_title = snprintf(r->title, sizeof r->title, LM_DDP);
  if (number > 1) snprintf(r->title + n_title, sizeof r->title - (size_t)n_title, " %d", number);
  r->facts_bytes = (sizeof(lm_facts) + (size_t)n / 8 + 1 + 63) / 64 * 64;
  TRY(take_params(r, param, name));
  TRY(agree_on_strides(r));
  TRY(lm_facts_open(r));
  for (int i = 0; i < n; i++) r->order[i] = n - 1 - i;
  TRY(lm_buckets_make(r, r->order));
  TRY(add_hooks(r));
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
  lm_status status = LM_OK;
  TRY(lm_reducer_usable(r));
  for (int i = 0; i < r->n; i++) TRY(check_kind(&r->slot[i], r->slot[i].param));
  r->sync = f->sync;
  if (!f->training) {
    if (r->averaged) r->weight = f->weight;
  } else {
    r->weight = f->weight + (r->averaged ? 0 : r->weight);
    r->averaged = false;
  }
  if (r->joining && f->sync && f->training && f->buffers) {
    TRY(lm_facts_tell(r, LM_ARRIVAL_FORWARD));
    TRY(lm_facts_wait(r));
    r->told = r->known = false;
  }
  *root = r->root;
done:
  return status;
}

lm_status lm_reducer_join(lm_reducer *r, bool on) {
  lm_status status = LM_OK;
  if (on && r->joining) TRY(lm_fail(LM_E_STATE, "join: this model is inside a join already"));
  if (on) TRY(lm_reducer_usable(r));
  r->joining = on;
  if (!on) r->root = 0;
done:
  return status;
}

/* The others' backward pass: nothing comes from here. */
static lm_status shadow_backward(lm_reducer *r) {
  lm_status status = LM_OK;
  r->begun = true;
  for (int i = 0; i < r->n && !r->shared; i++) {
    TRY(lm_reduce_put(r, i, NULL));
    r->slot[i].ready = true;
  }
  for (int b = 0; b < r->nbuckets; b++) r->bucket[b].waits_for = 0;
  TRY(lm_reduce_finish(r));
  TRY(end_pass(r));
done:
  if (status != LM_OK) lm_reducer_publish(r, status);
  if (r->begun) forget_pass(r);
  return status;
}

lm_status lm_reducer_shadow(lm_reducer *r, lm_shadow *what, int *root) {
  lm_status status = LM_OK;
  atomic_fetch_add(&r->rc, 1); /* a communication hook may close it */
  TRY(lm_reducer_usable(r));
  TRY(lm_facts_tell(r, LM_ARRIVAL_JOINED));
  TRY(lm_facts_wait(r));
  *root = r->root;
  switch (r->event) {
    case LM_ARRIVAL_FORWARD:
      *what = LM_SHADOW_BUFFERS;
      r->told = r->known = false;
      break;
    case LM_ARRIVAL_BACKWARD:
      *what = LM_SHADOW_BACKWARD;
      TRY(shadow_backward(r));
      break;
    default:
      *what = LM_SHADOW_OVER;
      r->told = r->known = false;
      break;
  }
done:
  reducer_release(r);
  return status;
}
