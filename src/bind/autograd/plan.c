/* Prepares recordings of ops (record_ops.c) as plans, and runs them:
 *
 *   plan_new(tape, outputs [, like]) -> plan, or nil and a sentence    outputs: a list of tensors of the recording;
 *                                  like: a plan of the same function for other shapes, with which it shares weights
 *   plan:run(inputs) -> a list of tensors, or nil and a sentence if a result's shape depends on values
 *   plan:is_current() -> boolean        false once a tensor that the plan has read was changed
 *   plan:ops() -> list of the names of its ops */
#include "plan/plan.h"
#include "base/mem.h"
#include "bind/autograd/recording.h"
#include "bind/bind.h"

enum { MAX_RESULTS = 200 };

static lm_plan *self(lua_State *L, const char *fn);

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

static int plan_run(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  running r = {.plan = self(L, "run")};
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

static int plan_is_current(lua_State *L) { return lm_return_bool(L, lm_plan_is_current(self(L, "is_current"))); }

static int plan_ops(lua_State *L) {
  const lm_plan *plan = self(L, "ops");
  lua_newtable(L);
  for (int i = 0; i < lm_plan_nsteps(plan); i++) {
    const char *name = lm_plan_op_name(plan, i);
    if (!name) continue;
    lua_pushstring(L, name);
    lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
  }
  return 1;
}

static const luaL_Reg plan_methods[] = {
    {"run", plan_run}, {"is_current", plan_is_current}, {"ops", plan_ops}, {NULL, NULL}};
LM_HELD_TYPE(plan_type, lm_plan, lm_plan_free, "luminary.plan", "a plan", plan_methods);

static lm_plan *self(lua_State *L, const char *fn) { return lm_need_held(L, 1, &plan_type, fn); }

LM_FUNCTION(plan_new) {
  const lm_tape *tape = lm_need_tape(L, 1, "plan_new");
  int n = 0;
  lm_tensor **outputs = NULL;
  const lm_plan *like = lua_isnoneornil(L, 3) ? NULL : lm_need_held(L, 3, &plan_type, "plan_new");
  lm_plan **plan = lm_object_new(L, &plan_type);
  lm_status status = lm_read_list(L, LM_STATE(L), 2, "plan_new", "outputs", false, &n, &outputs);
  if (status == LM_OK && n > MAX_RESULTS) status = lm_fail(LM_E_STATE, "there are more than %d results", MAX_RESULTS);
  if (status == LM_OK) status = lm_plan_new(tape, n, outputs, like, plan);
  lm_free(outputs);
  return status == LM_E_STATE ? push_refusal(L) : lm_return(L, status, 1);
}
