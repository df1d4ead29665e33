/* Runs the reducer through a backward pass: the parameters' accumulate hooks, and the end of backward. */
#include <stdio.h>

#include "base/mem.h"
#include "distributed/ddp/reducer_core.h"
#include "op_entries.h"

/* Returns the number of slots for which `pick` is true, and writes up to 5 names: "'a', 'b', 'c' and 4 more". */
static int name_slots(const lm_reducer *r, bool (*pick)(const lm_slot *s), char *out, size_t capacity) {
  enum { FEW = 5 };
  int n = 0;
  size_t used = 0;
  out[0] = '\0';
  for (int i = 0; i < r->n; i++) {
    if (!pick(&r->slot[i]) || ++n > FEW || used >= capacity) continue;
    used +=
        (size_t)snprintf(out + used, capacity - used, "%s'%s'", n > 1 ? ", " : "", lm_ellipsize(r->slot[i].name, 100));
  }
  if (n > FEW && used < capacity) snprintf(out + used, capacity - used, " and %d more", n - FEW);
  return n;
}

/* Returns true if t, the slot's parameter or its gradient, has the dtype, device and shape of the slot's view. */
static bool slot_fits(const lm_slot *s, const lm_tensor *t) {
  return t->dtype == s->view->dtype && t->device == s->view->device && lm_same_shape(t, s->view);
}

lm_status lm_slot_check(const lm_slot *s, const lm_tensor *t) {
  if (slot_fits(s, t)) return LM_OK;
  return lm_fail(
      LM_E_STATE,
      t == s->param ? LM_DDP
          ": '%s' was %s %s on %s when the model was wrapped and is %s %s on %s now; convert it before wrapping"
                    : LM_DDP ": the gradient of '%s' must be %s %s on %s, got %s %s on %s from a hook",
      s->name, lm_dtype_name(s->view->dtype), lm_shape_of(s->view), lm_device_name(s->view->device),
      lm_dtype_name(t->dtype), lm_shape_of(t), lm_device_name(t->device));
}

void lm_pass_forget(lm_reducer *r) {
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    bool fits = slot_fits(s, s->param) && lm_requires_grad(s->param) && !r->config.separate;
    if (r->g) lm_set_grad_buffer(s->param, fits ? s->view : NULL);
    s->fires = 0;
    s->absent = s->ready = s->scaled = false;
  }
  for (int b = 0; b < r->nbuckets; b++) {
    r->bucket[b].waits_for = r->bucket[b].nslots;
    lm_work_release(r->bucket[b].work);
    lm_release(r->bucket[b].wire);
    r->bucket[b].work = NULL;
    r->bucket[b].wire = NULL;
    r->bucket[b].calls_again = false;
  }
  r->launched = r->reduced = r->narrived = 0;
  r->begun = r->announced = r->known = false;
}

/* Puts slot i's gradient into its bucket and marks it ready. Until the pass ends, that memory belongs to all ranks. */
static lm_status slot_set_ready(lm_reducer *r, int i) {
  lm_status status = LM_OK;
  lm_slot *s = &r->slot[i];
  lm_tensor *grad = lm_grad_of(s->param), *copy = NULL;
  if (s->absent && grad && lm_is_same_view(grad, s->view)) {
    /* Another rank's gradient may overwrite the slot, so the old .grad moves to its own memory until that is known. */
    TRY(lm_call(LM_OP_clone, &(lm_clone_args){grad, LM_PRESERVE}, &copy));
    TRY(lm_set_grad(s->param, copy));
    grad = s->view;
  }
  if (grad) TRY(lm_slot_check(s, grad)); /* else a hook has dropped it, which counts as zeros */
  TRY(lm_reduce_put(r, i, grad));
  if (!s->absent && !r->config.separate) TRY(lm_slot_set_grad(s));
  TRY(lm_set_grad_buffer(s->param, NULL));
  s->ready = true;
  r->bucket[s->bucket].waits_for--;
done:
  lm_release(copy);
  return status;
}

static lm_status pass_set_absent_ready(lm_reducer *r) {
  for (int i = 0; i < r->n; i++) {
    if (r->slot[i].absent && !r->slot[i].ready) NEED(slot_set_ready(r, i));
  }
  return LM_OK;
}

static bool slot_is_missing(const lm_slot *s) { return !s->ready; }
static bool slot_is_frozen(const lm_slot *s) { return !s->ready && !lm_requires_grad(s->param); }

/* Finds, at the end of backward, the parameters without a gradient; fails unless the configuration allows them. */
static lm_status pass_fix_used(lm_reducer *r) {
  lm_status status = LM_OK;
  if (r->config.static_graph && !r->used_is_known) { /* the first pass, which sets the expected numbers */
    for (int i = 0; i < r->n; i++) {
      lm_slot *s = &r->slot[i];
      s->expected = s->fires;
      s->absent = s->fires == 0;
    }
    NEED(lm_facts_announce(r, LM_ARRIVAL_BACKWARD));
    r->used_is_known = true;
    for (int i = 0; i < r->n; i++) NEED(slot_set_ready(r, i));
  }
  for (int i = 0; i < r->n && r->config.find_unused && !r->config.static_graph; i++) {
    /* The parameter is part of the graph, but its gradient was undefined. */
    if (!r->slot[i].ready) r->slot[i].absent = true;
  }
  NEED(pass_set_absent_ready(r));
  char names[640];
  int n = name_slots(r, slot_is_missing, names, sizeof names);
  if (n == 0) return LM_OK;
  char frozen[640];
  int nfrozen = name_slots(r, slot_is_frozen, frozen, sizeof frozen);
  if (nfrozen > 0) {
    status = lm_fail(LM_E_STATE,
                     LM_DDP
                     ": %d of %d parameters required gradients when the model was wrapped and do not now: %s; change "
                     "requires_grad before wrapping the model, or wrap it again%s",
                     nfrozen, r->n, frozen, r->config.static_graph ? "" : ", or with {find_unused_parameters = true}");
  } else if (r->config.static_graph) {
    status = lm_fail(LM_E_STATE,
                     LM_DDP
                     ": %d of %d parameters got fewer gradients in this backward pass than in the first (%s); "
                     "{static_graph = true} requires the same in every pass",
                     n, r->n, names);
  } else {
    status = lm_fail(LM_E_STATE,
                     LM_DDP
                     ": %d of %d parameters got no gradient in this backward pass: %s; if the loss does not use all of "
                     "the model, wrap it with {find_unused_parameters = true}",
                     n, r->n, names);
  }
  lm_reducer_publish(r, status);
  return status;
}

/* Makes .grad the averaged view of each parameter for which any rank had a gradient, also if it was absent here. */
static lm_status pass_hand_out(lm_reducer *r) {
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    LM_OWNED *copy = NULL;
    if ((s->used || s->absent) && lm_used_anywhere(r, i)) {
      if (r->config.separate) NEED(lm_call(LM_OP_clone, &(lm_clone_args){s->view, LM_PRESERVE}, &copy));
      NEED(copy ? lm_set_grad(s->param, copy) : lm_slot_set_grad(s));
    }
    s->used = false;
  }
  return LM_OK;
}

lm_status lm_pass_end(lm_reducer *r) {
  r->averaged = true;
  NEED(lm_buckets_rebuild(r));
  lm_pass_forget(r);
  return LM_OK;
}

/* Fails if a hook has changed the parameter in this pass: it knows this rank's gradient alone, so replicas would part.
 */
static lm_status slot_check_version(const lm_slot *s) {
  if (s->version == lm_version(s->param)) return LM_OK;
  return lm_fail(LM_E_STATE,
                 LM_DDP
                 ": a hook changed '%s' during backward, before its gradient was averaged; change parameters after "
                 "backward, or use fully_shard, whose hooks get averaged gradients",
                 s->name);
}

static lm_status pass_finish(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  (void)grad, (void)replacement;
  lm_reducer *r = ctx;
  if (!r->g) NEED(lm_reducer_usable(r));
  NEED(pass_fix_used(r));
  for (int i = 0; i < r->n; i++) {
    if (r->slot[i].fires > 0) NEED(slot_check_version(&r->slot[i]));
  }
  NEED(lm_reduce_finish(r));
  NEED(pass_hand_out(r));
  return lm_pass_end(r);
}

/* Cleans up after backward. If it failed, resets the pass, and reports the error to the other ranks if facts were sent:
 * they wait for this rank's gradients. */
static void pass_leave(void *ctx) {
  lm_reducer *r = ctx;
  if (r->begun) {
    if (r->announced && r->g) lm_reducer_publish(r, LM_E_STATE);
    lm_pass_forget(r);
  }
  lm_reducer_release(r);
}

static lm_status pass_begin(lm_reducer *r) {
  NEED(lm_reducer_usable(r));
  atomic_fetch_add(&r->rc, 1);
  NEED(lm_backward_finally((lm_hook){pass_finish, r, pass_leave}));
  r->begun = true;
  if (r->config.static_graph && !r->used_is_known) return LM_OK; /* nothing is sent before `expected` is known */
  for (int i = 0; i < r->n; i++) {
    lm_slot *s = &r->slot[i];
    s->absent = r->config.static_graph ? s->expected == 0 : r->config.find_unused && !lm_backward_reaches(s->param);
  }
  NEED(lm_facts_announce(r, LM_ARRIVAL_BACKWARD));
  return pass_set_absent_ready(r);
}

/* ---- hooks */

typedef struct hook_context { /* the context of one parameter's hook */
  lm_reducer *r;
  int i;
} hook_context;

static lm_status fail_repeated(const lm_reducer *r, const lm_slot *s) {
  if (r->config.static_graph) {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got more gradients in this backward pass than in the first (%d); {static_graph = true} requires "
            "the same in every pass",
            s->name, s->expected);
  } else if (s->absent) {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got a gradient, but is unused in the graph (is part of it recomputed in backward?); pass "
            "{static_graph = true} instead of find_unused_parameters",
            s->name);
  } else {
    lm_fail(LM_E_STATE,
            LM_DDP
            ": '%s' got two gradients in one backward pass (is part of the graph recomputed in backward?); pass "
            "{static_graph = true}",
            s->name);
  }
  return lm_reducer_publish(r, LM_E_STATE);
}

static lm_status on_begin(void *ctx, bool create_graph) {
  const hook_context *w = ctx;
  lm_slot *s = &w->r->slot[w->i];
  s->version = lm_version(s->param);
  if (!create_graph || !w->r->g || !w->r->sync) return LM_OK;
  return lm_fail(LM_E_STATE, LM_DDP
                 ": create_graph is not supported; gradients are averaged without a graph (lm.autograd.grad and "
                 "no_sync return this rank's, with one)");
}

static lm_status on_gradient(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  (void)grad, (void)replacement;
  const hook_context *w = ctx;
  lm_reducer *r = w->r;
  lm_slot *s = &r->slot[w->i];
  if (!r->g) NEED(lm_reducer_usable(r));
  NEED(lm_slot_check(s, s->param)); /* the parameter may have been converted since the forward pass */
  NEED(slot_check_version(s));
  s->used = true;
  if (!r->sync) return LM_OK;
  if (!r->begun) NEED(pass_begin(r));
  if (s->ready) NEED(fail_repeated(r, s));
  s->fires++;
  if (r->config.static_graph && !r->used_is_known) {
    if (s->fires == 1) r->arrived[r->narrived++] = w->i;
    return LM_OK;
  }
  if (r->config.static_graph && s->fires < s->expected) return LM_OK;
  NEED(slot_set_ready(r, w->i));
  r->arrived[r->narrived++] = w->i;
  return lm_reduce_advance(r);
}

static void hook_context_free(void *ctx) {
  hook_context *w = ctx;
  lm_reducer_release(w->r);
  lm_free(w);
}

lm_status lm_reducer_add_hooks(lm_reducer *r) {
  for (int i = 0; i < r->n; i++) {
    hook_context *w = lm_malloc(sizeof *w);
    if (!w) NEED(LM_E_OOM);
    *w = (hook_context){r, i};
    atomic_fetch_add(&r->rc, 1);
    NEED(lm_register_accumulate_hook(r->slot[i].param, (lm_hook){on_gradient, w, hook_context_free}, on_begin,
                                     &r->slot[i].hook));
    if (!r->config.separate) NEED(lm_set_grad_buffer(r->slot[i].param, r->slot[i].view));
  }
  return LM_OK;
}
