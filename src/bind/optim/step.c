/* Runs an optimizer's step, one call for each parameter group; clips and zeroes gradients.
 *
 *   optim_step{kind = an optimizer's name, options = list of its numbers in its entry's order, params = list,
 *              grads = list or nil (each param's .grad; params without one are skipped), states = lists by name
 *              parallel to params, carried = list of the numbers that it keeps, nil at first, step = number, from 1,
 *              first = true if the states were made for this step}
 *              returns the number of parameters stepped, and the numbers to pass as carried to the next step
 *   total_norm(list, p, of_grads)   p-norm of all tensors, or of their gradients: a tensor
 *   clip_with_norm(params, max_norm, total)  clip_value(params, most)   change the gradients in place
 *   zero_grad(params [, set_to_none = true])      for lists of tensors */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"
#include "op_entries.h"
#include "optim/optim.h"

typedef struct group {
  int n;
  lm_tensor **param, **grad, **state[LM_OPTIM_STATES];
  lm_optim_step step;
  unsigned modes;
  double next[LM_OPTIM_CARRIED];
} group;

static void release_group(group *g) {
  for (int i = 0; i < g->n && g->grad; i++) lm_release(g->grad[i]);
  lm_free(g->param);
  lm_free(g->grad);
  for (int k = 0; k < LM_OPTIM_STATES; k++) lm_free(g->state[k]);
}

static const char fn[] = "optim_step";

/* Reads the tensor k of the list at stack index i (0: no list); *out is NULL for nil or false. */
static lm_status list_entry(lua_State *L, const lm_lua *s, int i, int k, const char *name, lm_tensor **out) {
  lm_status status = LM_OK;
  *out = NULL;
  if (i == 0) return LM_OK;
  lua_rawgeti(L, i, k);
  if (lua_toboolean(L, -1)) status = lm_read_tensor(L, s, lua_gettop(L), fn, name, out);
  lua_pop(L, 1);
  return status;
}

/* Pushes the list that the table at index i has as `name`; *out: its stack index, or 0 if there is none. */
static lm_status list_at(lua_State *L, int i, const char *name, int *out) {
  *out = 0;
  if (!lm_field(L, i, name)) return LM_OK;
  if (lua_type(L, -1) != LUA_TTABLE) return lm_fail_value(fn, name, "a list", lm_text("a %s", luaL_typename(L, -1)));
  *out = lua_gettop(L);
  return LM_OK;
}

static lm_status fail_not_a_tensor(const char *name, int k) {
  return lm_fail_value(fn, lm_text("%s[%d]", name, k), "a tensor", "nil");
}

/* Reads the parameters that have a gradient, with their states, into arrays that release_group frees. */
static lm_status read_lists(lua_State *L, const lm_lua *s, group *g) {
  const lm_optimizer *o = g->step.optimizer;
  int params, grads, all, states[LM_OPTIM_STATES] = {0};
  NEED(list_at(L, 1, "params", &params));
  NEED(list_at(L, 1, "grads", &grads));
  NEED(list_at(L, 1, "states", &all));
  for (int k = 0; all && k < o->n_states; k++)
    if (lm_optimizer_has(o, g->modes, k)) NEED(list_at(L, all, o->state[k].name, &states[k]));
  if (params == 0) NEED(lm_fail_value(fn, "params", "a list of tensors", "nil"));
  size_t count = lua_objlen(L, params);
  bool there = (g->param = lm_malloc(count * sizeof *g->param)) && (g->grad = lm_malloc(count * sizeof *g->grad));
  for (int k = 0; there && k < o->n_states; k++) there = (g->state[k] = lm_malloc(count * sizeof *g->state[k])) != NULL;
  if (!there && count > 0) return LM_E_OOM;
  for (size_t i = 0; i < count; i++) {
    lm_tensor *param, *grad;
    int at = g->n, n = (int)i + 1;
    NEED(list_entry(L, s, params, n, "params", &param));
    if (!param) NEED(fail_not_a_tensor("params", n));
    NEED(list_entry(L, s, grads, n, "grads", &grad));
    if (!grads) grad = lm_grad_of(param);
    if (!grad) continue;
    for (int k = 0; k < o->n_states; k++) {
      if (!lm_optimizer_has(o, g->modes, k)) continue;
      NEED(list_entry(L, s, states[k], n, o->state[k].name, &g->state[k][at]));
      if (!g->state[k][at]) NEED(fail_not_a_tensor(o->state[k].name, n));
    }
    g->param[at] = param;
    g->grad[at] = lm_retain(grad); /* .grad has no handle that keeps it alive */
    g->n++;
  }
  return LM_OK;
}

/* Reads number k of the list at index i, or a boolean as 1 or 0; *there: whether it is not nil. */
static lm_status number_at(lua_State *L, const lm_lua *s, int i, int k, const char *name, double *out, bool *there) {
  lm_status status = LM_OK;
  lua_rawgeti(L, i, k);
  *there = !lua_isnil(L, -1);
  if (lua_isboolean(L, -1)) {
    *out = lua_toboolean(L, -1);
  } else if (*there) {
    status = lm_read_number(L, s, lua_gettop(L), fn, name, out);
  }
  lua_pop(L, 1);
  return status;
}

static lm_status read_numbers(lua_State *L, const lm_lua *s, lm_optim_step *step) {
  int options, carried;
  int64_t count = 1;
  bool there;
  const char *kind = NULL;
  NEED(LM_READ_OPTIONS(L, s, 1, fn, {"kind", LM_ARG_TEXT, &kind}, {"step", LM_ARG_I, &count},
                       {"first", LM_ARG_B, &step->numbers.first}, {"options", LM_ARG_OTHER, NULL},
                       {"params", LM_ARG_OTHER, NULL}, {"grads", LM_ARG_OTHER, NULL}, {"states", LM_ARG_OTHER, NULL},
                       {"carried", LM_ARG_OTHER, NULL}));
  const lm_optimizer *o = kind ? lm_optimizer_of(kind) : NULL;
  if (!o)
    return lm_fail_value(fn, "kind", "an optimizer's name such as \"SGD\"", kind ? lm_ellipsize(kind, 60) : "nil");
  step->optimizer = o;
  NEED(list_at(L, 1, "options", &options));
  for (int i = 0; i < o->n_options; i++) {
    double *value = &step->numbers.option[i];
    *value = o->option[i].value;
    if (options && !o->option[i].fixed) NEED(number_at(L, s, options, i + 1, o->option[i].name, value, &there));
  }
  NEED(list_at(L, 1, "carried", &carried));
  step->numbers.carries = carried != 0;
  for (int i = 0; carried && i < o->n_carried; i++) {
    NEED(number_at(L, s, carried, i + 1, o->carried[i], &step->numbers.carried[i], &there));
    if (!there) NEED(lm_fail_value(fn, lm_text("carried.%s", o->carried[i]), "a number", "nil"));
  }
  if (count < 1) NEED(lm_fail_int(fn, "step", "at least 1", count));
  step->numbers.t = (double)count;
  return LM_OK;
}

static lm_status run_step(lua_State *L, lm_lua *s, void *arg) {
  group *g = arg;
  lm_status status;
  *g = (group){0};
  TRY(read_numbers(L, s, &g->step));
  g->modes = lm_optimizer_modes(g->step.optimizer, g->step.numbers.option);
  TRY(read_lists(L, s, g));
  g->step.n = g->n;
  g->step.param = g->param;
  g->step.grad = g->grad;
  for (int k = 0; k < LM_OPTIM_STATES; k++) g->step.state[k] = g->state[k];
  TRY(lm_optim_run(&g->step, g->next));
done:
  release_group(g);
  return status;
}

LM_FUNCTION(optim_step) {
  lm_lua *s = LM_STATE(L);
  lm_need_table(L, 1, fn, "argument 1");
  lua_settop(L, 1);
  luaL_checkstack(L, 32, fn);
  lm_gc_step_if_due(L, s);
  group g = {0};
  lm_tape_note_call(fn);
  lm_need(L, lm_retry_after_gc(L, s, run_step, &g));
  int carried = g.step.optimizer->n_carried;
  lua_pushinteger(L, g.n);
  for (int i = 0; i < carried; i++) lua_pushnumber(L, g.next[i]);
  return 1 + carried;
}

typedef struct clipping {
  const char *fn;
  double most, p;
  bool of_grads;
  lm_tensor *total;
  lm_status (*work)(struct clipping *c, int n, lm_tensor *const *list);
} clipping;

static lm_status run_clipping(lua_State *L, lm_lua *s, void *arg) {
  clipping *c = arg;
  LM_FREED lm_tensor **list = NULL;
  int n;
  lm_tape_note_call(c->fn);
  NEED(lm_read_list(L, s, 1, c->fn, "list", false, &n, &list));
  if (c->of_grads) {
    int there = 0;
    for (int i = 0; i < n; i++) {
      lm_tensor *grad = lm_grad_of(list[i]);
      if (grad) list[there++] = grad;
    }
    n = there;
  }
  return c->work(c, n, list);
}

static lm_status measure(clipping *c, int n, lm_tensor *const *list) {
  return lm_total_norm(n, list, c->of_grads, c->p, &c->total);
}

LM_FUNCTION(total_norm, (any, list), (number, p), (boolean, of_grads)) {
  clipping c = {.fn = "total_norm", .work = measure, .p = p, .of_grads = of_grads};
  return lm_return_tensors(L, 3, 1, run_clipping, &c, &c.total);
}

static lm_status clip_to_norm(clipping *c, int n, lm_tensor *const *grads) {
  return lm_clip_with_norm(n, grads, c->most, c->total);
}

LM_FUNCTION(clip_with_norm, (any, params), (number, max_norm), (tensor, total)) {
  clipping c = {.fn = "clip_with_norm", .of_grads = true, .work = clip_to_norm, .most = max_norm, .total = total};
  return lm_return(L, lm_retry_after_gc(L, LM_STATE(L), run_clipping, &c), 0);
}

static lm_status clip_values(clipping *c, int n, lm_tensor *const *grads) { return lm_clip_value(n, grads, c->most); }

LM_FUNCTION(clip_value, (any, params), (number, most)) {
  clipping c = {.fn = "clip_value", .of_grads = true, .work = clip_values, .most = most};
  return lm_return(L, lm_retry_after_gc(L, LM_STATE(L), run_clipping, &c), 0);
}

static lm_status zero_gradients(lua_State *L, lm_lua *s, void *arg) {
  const bool *to_none = arg;
  lm_tensor **params = NULL, *out[LM_MAX_OUTS];
  int n = 0;
  bool recording = lm_grad_enabled();
  lm_status status;
  s->reads_for_op = true;
  status = lm_read_list(L, s, 1, "zero_grad", "params", false, &n, &params);
  s->reads_for_op = false;
  if (status == LM_OK) status = lm_settle_gradients();
  if (status != LM_OK) goto done;
  lm_set_grad_enabled(false);
  for (int i = 0; i < n; i++) {
    lm_tensor *grad = lm_grad_of(params[i]);
    if (!grad) continue;
    if (*to_none) {
      TRY(lm_set_grad(params[i], NULL));
    } else {
      lm_zero__args a = {.x = grad};
      TRY(lm_call(LM_OP_zero_, &a, out));
      lm_release(out[0]);
    }
  }
done:
  lm_set_grad_enabled(recording);
  lm_free(params);
  return status;
}

LM_FUNCTION(zero_grad, (any, params), (boolean, set_to_none, true)) {
  return lm_return(L, lm_retry_after_gc(L, LM_STATE(L), zero_gradients, &set_to_none), 0);
}

/* Returns true if param.grad is set, without a Lua handle of it, which would keep its memory. */
LM_FUNCTION(has_grad, (shaped, param)) {
  lm_need(L, lm_settle_gradients());
  return lm_return_bool(L, lm_grad_of(param) != NULL);
}
