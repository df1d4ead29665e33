/* Prepares recordings of ops (record_ops.c) as plans, and runs them:
 *
 *   plan_new(tape, outputs [, like]) -> plan, or nil, a sentence, and true if it holds for these inputs only
 *                                  outputs: a list of tensors of the recording; like: a plan of the same function for
 *                                  other shapes, with which it shares weights
 *   plan:run(inputs) -> a list of tensors, or nil and a sentence if a result's shape depends on values
 *   plan:is_current() -> boolean        false once a tensor that the plan has read was changed
 *   plan:ops() -> list of the names of its ops, with "+" before an op that is computed together with the one before
 *   plan_key(...) -> a string that calls with tensors of these devices, dtypes and layouts share, under the same
 *                    defaults; nil for many, or if one is neither a tensor nor nil */
#include "plan/plan.h"
#include "base/mem.h"
#include "bind/autograd/recording.h"
#include "bind/bind.h"
#include "device/driver.h"

enum { MAX_RESULTS = 200 };

LM_LIST(lm_methods_of_plan);
LM_HELD_TYPE(plan, lm_plan, lm_plan_free, "luminary.plan", "a plan", LM_METHODS_OF(plan))

typedef struct running {
  lm_plan *plan;
  lm_tensor *out[MAX_RESULTS];
} running;

static lm_status attempt_run(lua_State *L, lm_lua *s, void *arg) {
  running *r = arg;
  int n = 0;
  lm_tensor **inputs = NULL;
  lm_status status = lm_read_list(L, s, 2, "plan", "inputs", false, &n, &inputs);
  if (status == LM_OK && n != lm_plan_ninputs(r->plan))
    status = lm_fail(LM_E_ARG, "plan: expected %d inputs, got %d", lm_plan_ninputs(r->plan), n);
  if (status == LM_OK) status = lm_plan_run(r->plan, inputs, r->out);
  lm_free(inputs);
  return status;
}

/* Returns to Lua nil and the last message. */
static int push_refusal(lua_State *L) {
  lua_pushnil(L);
  lua_pushstring(L, lm_error());
  return 2;
}

LM_OBJECT_METHOD(plan, run, "run") {
  lm_lua *s = LM_STATE(L);
  running r = {.plan = lm_need_plan(L, 1, "run", "plan")};
  lua_settop(L, 2);
  lm_gc_step_if_due(L, s);
  const int n = lm_plan_noutputs(r.plan);
  luaL_checkstack(L, n + 12, "plan");
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) lm_tensor_handle_new(L);
  lm_status status = lm_retry_after_gc(L, s, attempt_run, &r);
  if (status == LM_E_STATE) return push_refusal(L);
  lm_need(L, status);
  for (int i = 0; i < n; i++) {
    lm_tensor_handle_fill(s, lua_touserdata(L, 4 + i), r.out[i]);
    lm_gc_step_count(s, r.out[i]);
  }
  for (int i = n; i > 0; i--) lua_rawseti(L, 3, i);
  return 1;
}

LM_OBJECT_METHOD(plan, is_current, "is_current", (plan, plan)) { return lm_return_bool(L, lm_plan_is_current(plan)); }

LM_OBJECT_METHOD(plan, ops, "ops", (plan, plan)) {
  bool joins;
  lua_newtable(L);
  for (const char *name; (name = lm_plan_step_name(plan, (int)lua_objlen(L, -1), &joins));) {
    lua_pushfstring(L, "%s%s", joins ? "+" : "", name);
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
  }
  return 1;
}

LM_FUNCTION(plan_new, (recorded, recording), (any, results), (plan, like, NULL)) {
  int n = 0;
  lm_tensor **outputs = NULL;
  lm_plan **plan = lm_object_new(L, &plan_type);
  lm_status status = lm_read_list(L, LM_STATE(L), results, "plan_new", "outputs", false, &n, &outputs);
  if (status == LM_OK && n > MAX_RESULTS) status = lm_fail(LM_E_STATE, "there are more than %d results", MAX_RESULTS);
  if (status == LM_OK) status = lm_plan_new(recording, n, outputs, like, plan);
  lm_free(outputs);
  if (status != LM_E_STATE && status != LM_E_ARG) return lm_return(L, status, 1);
  push_refusal(L);
  lua_pushboolean(L, status == LM_E_ARG);
  return 3;
}

LM_FUNCTION(plan_key) {
  const lm_lua *s = LM_STATE(L);
  const lm_autocast cast = lm_autocast_get();
  int64_t key[512] = {lm_default_dtype(), lm_default_device(), lm_device_current(LM_CUDA), cast.on, cast.keeps};
  const int n = lua_gettop(L), most = (int)(sizeof key / sizeof *key) - 2 * LM_MAX_DIMS - 4;
  int at = 5;
  for (int k = 0; k < LM_DEVICE_KINDS; k++) key[at++] = cast.on >> k & 1 ? cast.dtype[k] : LM_NO_DTYPE;
  for (int i = 1; i <= n; i++) {
    const lm_tensor *t = lm_to_tensor(L, s, i);
    if (at > most || (!t && !lua_isnil(L, i))) return 0;
    key[at++] = t ? t->ndim : -1;
    if (!t) continue;
    key[at++] = t->dtype;
    key[at++] = t->device;
    const bool is_contiguous = lm_is_contiguous(t);
    key[at++] = is_contiguous;
    for (int d = 0; d < t->ndim; d++) key[at++] = t->size[d];
    for (int d = 0; d < t->ndim && !is_contiguous; d++) key[at++] = t->stride[d]; /* views or copies follow from them */
  }
  lua_pushlstring(L, (const char *)key, (size_t)at * sizeof *key);
  return 1;
}
