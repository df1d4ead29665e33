/* Backward passes over several devices, from several threads at once, with hooks and passes within them. Meant for
 * ThreadSanitizer; see tsan/run. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "autograd/autograd.h"
#include "op_entries.h"

enum { CALLERS = 3, DEVICES = 4, STEPS = 12, ROUNDS = 40, N = 8 };

static _Atomic int wrong;

static lm_status device_of(lm_tensor *x, int d, lm_tensor **out) {
  return lm_call(LM_OP_to_copy, &(lm_to_copy_args){.x = x, .dtype = LM_F64, .device = LM_DEVICE(LM_CPU, d)}, out);
}

/* Replaces *x by y, whose reference it takes. */
static void become(lm_tensor **x, lm_tensor *y) {
  lm_release(*x);
  *x = y;
}

typedef struct seen {
  pthread_t caller;
  int calls;
  bool within;
  lm_tensor *early[DEVICES]; /* values that a pass reaches after its hooks on other devices */
} seen;

/* Computes the sum over all devices of a chain that begins and continues with w; hook.ctx, if any, is a seen. */
static lm_status loss_of(lm_tensor *w, lm_hook hook, lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *there = NULL, *y = NULL, *next = NULL, *total = NULL;
  int64_t id;
  for (int d = 0; d < DEVICES; d++) {
    TRY(device_of(w, d, &there));
    y = lm_retain(there);
    for (int s = 0; s < STEPS; s++) {
      TRY(lm_call(LM_OP_mul, &(lm_mul_args){y, there}, &next));
      become(&y, next);
      TRY(lm_call(LM_OP_tanh, &(lm_tanh_args){y}, &next));
      become(&y, next);
      if (s == STEPS / 2 && hook.fn) TRY(lm_register_hook(y, hook, &id));
      if (s == STEPS / 4 && hook.fn) ((seen *)hook.ctx)->early[d] = lm_retain(y);
    }
    TRY(lm_call(LM_OP_sum, &(lm_sum_args){.x = y, .dtype = LM_NO_DTYPE}, &next));
    become(&y, next);
    TRY(device_of(y, 0, &next));
    become(&y, next);
    if (total) {
      TRY(lm_call(LM_OP_add, &(lm_add_args){total, y, 1}, &next));
      become(&total, next);
    } else {
      total = lm_retain(y);
    }
    become(&y, NULL);
    become(&there, NULL);
  }
  *out = total;
  total = NULL;
done:
  lm_release(total);
  lm_release(y);
  lm_release(there);
  return status;
}

static lm_status make_leaf(lm_tensor **out) {
  lm_status status = LM_OK;
  lm_tensor *w = NULL;
  TRY(lm_tensor_empty(LM_F64, LM_DEVICE(LM_CPU, 0), 1, &(int64_t){N}, LM_CONTIGUOUS, &w));
  for (int i = 0; i < N; i++) ((double *)w->data)[i] = 0.5 + 0.05 * i;
  TRY(lm_set_requires_grad(w, true));
  *out = w;
  w = NULL;
done:
  lm_release(w);
  return status;
}

static lm_status pass(lm_tensor *w, lm_hook hook) {
  lm_status status = LM_OK;
  lm_tensor *loss = NULL;
  TRY(loss_of(w, hook, &loss));
  TRY(lm_backward(&(lm_backward_args){.nroots = 1, .roots = &loss}, NULL));
done:
  lm_release(loss);
  return status;
}

static lm_status ignore(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  (void)ctx, (void)grad, (void)replacement;
  return LM_OK;
}

/* Checks that a hook runs on the thread that called backward. The first call runs its own pass; each registers hooks on
 * values that other threads of the pass have still to reach. */
static lm_status look(void *ctx, lm_tensor *grad, lm_tensor **replacement) {
  seen *s = ctx;
  lm_status status = LM_OK;
  lm_tensor *w = NULL;
  int64_t id;
  (void)grad, (void)replacement;
  s->calls++;
  if (!pthread_equal(s->caller, pthread_self())) return lm_fail(LM_E_STATE, "a hook on another thread");
  for (int d = 0; d < DEVICES; d++) {
    NEED(lm_register_hook(s->early[d], (lm_hook){ignore, NULL, NULL}, &id));
    NEED(lm_retain_grad(s->early[d]));
  }
  if (s->within) return LM_OK;
  s->within = true;
  lm_set_grad_enabled(true);
  TRY(make_leaf(&w));
  TRY(pass(w, (lm_hook){0}));
done:
  lm_set_grad_enabled(false);
  s->within = false;
  lm_release(w);
  return status;
}

static void *caller(void *unused) {
  (void)unused;
  lm_tensor *w = NULL;
  double first[N];
  if (make_leaf(&w) != LM_OK) wrong++;
  for (int round = 0; round < ROUNDS && !wrong; round++) {
    seen s = {.caller = pthread_self()};
    lm_hook hook = {look, &s, NULL};
    int64_t id = 0;
    if (lm_set_grad(w, NULL) != LM_OK || lm_register_accumulate_hook(w, hook, NULL, &id) != LM_OK ||
        pass(w, hook) != LM_OK) {
      fprintf(stderr, "tsan_devices: %s\n", lm_error());
      wrong++;
      break;
    }
    lm_remove_hook(w, id);
    for (int d = 0; d < DEVICES; d++) lm_release(s.early[d]);
    const double *g = (const double *)lm_grad_of(w)->data;
    if (round == 0) memcpy(first, g, sizeof first);
    if (memcmp(first, g, sizeof first) != 0 || s.calls != DEVICES + 1) {
      fprintf(stderr, "tsan_devices: other bits, or %d calls of hooks\n", s.calls);
      wrong++;
    }
  }
  lm_release(w);
  return NULL;
}

int main(void) {
  pthread_t thread[CALLERS];
  for (int ordered = 0; ordered < 2; ordered++) {
    if (ordered) lm_backward_keep_order(true);
    for (int i = 0; i < CALLERS; i++) {
      if (pthread_create(&thread[i], NULL, caller, NULL) != 0) return 1;
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(thread[i], NULL);
  }
  printf("tsan_devices: %s\n", wrong ? "FAILED" : "the same bits each time");
  return wrong != 0;
}
