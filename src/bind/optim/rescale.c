/* Rescales lists of tensors or gradients, for loss scaling and master weights:
 *
 *   rescale(from, to, factor) -> found    to[i] = from[i] * factor
 *   rescale_grads(from, to, factor) -> found    the same for each from[i] with a .grad; makes to[i].grad, of to[i]'s
 *                                   dtype, if it is nil
 *
 * from, to: lists of tensors; `to` may be `from`, or nil for it. found: a 0-d float32 tensor, 1 if a value was infinite
 * or NaN, else 0. Gradients get no Lua handle, which would keep their memory until it is collected. */
#include "optim/optim.h"

#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

typedef struct rescaling {
  const char *fn;
  bool grads;
  double factor;
  lm_tensor *found;
} rescaling;

/* Replaces the tensors by the gradients of those that have one; made[k]: a new gradient for owner[k], or NULL. */
static lm_status take_grads(const rescaling *r, int *n, lm_tensor **from, lm_tensor **to, lm_tensor **owner,
                            lm_tensor **new_grads) {
  int there = 0;
  for (int i = 0; i < *n; i++) {
    lm_tensor *x = lm_grad_of(from[i]), *y = lm_grad_of(to[i]);
    if (!x) continue;
    if (!lm_same_shape(from[i], to[i])) {
      return lm_fail_shapes(r->fn, lm_text("from[%d]", i + 1), lm_shape_of(from[i]), lm_text("to[%d]", i + 1),
                            lm_shape_of(to[i]));
    }
    owner[there] = to[i];
    if (!y) {
      NEED(lm_tensor_empty_like(x, to[i]->dtype, to[i]->device, &new_grads[there]));
      y = new_grads[there];
    }
    from[there] = x;
    to[there++] = y;
  }
  *n = there;
  return LM_OK;
}

static lm_status run_rescale(lua_State *L, lm_lua *s, void *arg) {
  rescaling *r = arg;
  lm_status status = LM_OK;
  lm_tensor **from = NULL, **to = NULL, **owner = NULL, **new_grads = NULL;
  int n = 0, nto = 0;
  TRY(lm_read_list(L, s, 1, r->fn, "from", false, &n, &from));
  TRY(lm_read_list(L, s, lua_isnil(L, 2) ? 1 : 2, r->fn, "to", false, &nto, &to));
  if (n != nto) TRY(lm_fail_int(r->fn, "the number of tensors in to", lm_text("%d as in from", n), nto));
  owner = lm_calloc(2 * (size_t)n + 1, sizeof *owner);
  if (!owner) TRY(LM_E_OOM);
  new_grads = owner + n;
  if (r->grads) TRY(take_grads(r, &n, from, to, owner, new_grads));
  TRY(lm_rescale(r->fn, n, from, to, r->factor, &r->found));
  for (int i = 0; i < n; i++) {
    if (new_grads[i]) TRY(lm_set_grad(owner[i], new_grads[i]));
  }
done:
  for (int i = 0; owner && i < nto; i++) lm_release(new_grads[i]);
  if (status != LM_OK) {
    lm_release(r->found);
    r->found = NULL;
  }
  lm_free(owner);
  lm_free(from);
  lm_free(to);
  return status;
}

static int return_found(lua_State *L, const char *fn, bool grads, double factor) {
  luaL_checkstack(L, 32, fn);
  lm_tape_note_call(fn);
  rescaling r = {.fn = fn, .grads = grads, .factor = factor};
  return lm_return_tensors(L, 3, 1, run_rescale, &r, &r.found);
}

#define RESCALED (any, from), (any, to), (number, factor)
LM_FUNCTION(rescale, RESCALED) { return return_found(L, "rescale", false, factor); }
LM_FUNCTION(rescale_grads, RESCALED) { return return_found(L, "rescale_grads", true, factor); }
