/* Optimizer steps: one call a group. */
#include "optim/optim.h"
#include "base/mem.h"
#include "bind/bind.h"

typedef struct group {
  int n;
  lm_tensor **param, **grad, **state[3];
  lm_optim_step step;
} group;

static void drop(group *g) {
  for (int i = 0; i < g->n && g->grad; i++) lm_release(g->grad[i]);
  lm_free(g->param);
  lm_free(g->grad);
  for (int k = 0; k < 3; k++) lm_free(g->state[k]);
}

static const char fn[] = "optim_step";

/* Entry k of the list at stack index i (0: no list); NULL for nil or false. */
static lm_status entry(lua_State *L, const lm_lua *s, int i, int k, const char *name, lm_tensor **out) {
  lm_status status = LM_OK;
  *out = NULL;
  if (i == 0) return LM_OK;
  lua_rawgeti(L, i, k);
  if (lua_toboolean(L, -1)) status = lm_read_tensor(L, s, lua_gettop(L), fn, name, out);
  lua_pop(L, 1);
  return status;
}

static lm_status list_at(lua_State *L, const char *name, int *out) {
  *out = 0;
  if (!lm_field(L, 1, name)) return LM_OK;
  if (lua_type(L, -1) != LUA_TTABLE) return lm_fail(LM_E_ARG, "%s: %s: a list of tensors expected", fn, name);
  *out = lua_gettop(L);
  return LM_OK;
}

/* Those parameters that have a gradient, with their states. */
static lm_status read_lists(lua_State *L, const lm_lua *s, group *g) {
  static const char *const names[] = {"state0", "state1", "state2"};
  lm_status status;
  int params, grads, states[3];
  TRY(list_at(L, "params", &params));
  TRY(list_at(L, "grads", &grads));
  for (int k = 0; k < 3; k++) TRY(list_at(L, names[k], &states[k]));
  if (params == 0) {
    status = lm_fail(LM_E_ARG, "%s: params: a list of tensors expected", fn);
    goto done;
  }
  size_t count = lua_objlen(L, params);
  g->param = lm_malloc(count * sizeof *g->param);
  g->grad = lm_malloc(count * sizeof *g->grad);
  for (int k = 0; k < 3; k++) g->state[k] = lm_malloc(count * sizeof *g->state[k]);
  if (!g->param || !g->grad || !g->state[0] || !g->state[1] || !g->state[2]) {
    status = LM_E_OOM;
    goto done;
  }
  const lm_optim_step *o = &g->step;
  bool wanted[3] = {o->kind == LM_ADAM || o->momentum != 0, o->kind == LM_ADAM, o->kind == LM_ADAM && o->amsgrad};
  for (size_t i = 0; i < count; i++) {
    lm_tensor *param, *grad;
    int at = g->n, k = (int)i + 1;
    TRY(entry(L, s, params, k, "params", &param));
    if (!param) {
      status = lm_fail(LM_E_ARG, "%s: params[%d]: a tensor expected", fn, k);
      goto done;
    }
    TRY(entry(L, s, grads, k, "grads", &grad));
    if (!grads) grad = lm_grad_of(param);
    if (!grad) continue;
    for (int j = 0; j < 3; j++) {
      TRY(entry(L, s, wanted[j] ? states[j] : 0, k, names[j], &g->state[j][at]));
      if (wanted[j] && !g->state[j][at]) {
        status = lm_fail(LM_E_ARG, "%s: %s[%d]: a tensor expected", fn, names[j], k);
        goto done;
      }
    }
    g->param[at] = param;
    g->grad[at] = lm_retain(grad); /* .grad has no handle that would keep it */
    g->n++;
  }
done:
  return status;
}

static lm_status read_step(lua_State *L, const lm_lua *s, lm_optim_step *o) {
  lm_status status;
  const char *kind = lm_field(L, 1, "kind") ? lm_to_text(L, -1) : NULL;
  if (!kind || (strcmp(kind, "sgd") != 0 && strcmp(kind, "adam") != 0)) {
    return lm_fail(LM_E_ARG, "%s: kind: \"sgd\" or \"adam\" expected", fn);
  }
  *o = (lm_optim_step){.kind = kind[0] == 's' ? LM_SGD : LM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .step = 1};
  TRY(lm_field_number(L, s, 1, fn, "lr", &o->lr));
  TRY(lm_field_number(L, s, 1, fn, "weight_decay", &o->weight_decay));
  TRY(lm_field_bool(L, s, 1, fn, "maximize", &o->maximize));
  if (o->kind == LM_SGD) {
    TRY(lm_field_number(L, s, 1, fn, "momentum", &o->momentum));
    TRY(lm_field_number(L, s, 1, fn, "dampening", &o->dampening));
    TRY(lm_field_bool(L, s, 1, fn, "nesterov", &o->nesterov));
    TRY(lm_field_bool(L, s, 1, fn, "first", &o->first));
  } else {
    TRY(lm_field_number(L, s, 1, fn, "beta1", &o->beta1));
    TRY(lm_field_number(L, s, 1, fn, "beta2", &o->beta2));
    TRY(lm_field_number(L, s, 1, fn, "eps", &o->eps));
    TRY(lm_field_bool(L, s, 1, fn, "amsgrad", &o->amsgrad));
    TRY(lm_field_bool(L, s, 1, fn, "decoupled", &o->decoupled));
    TRY(lm_field_int(L, s, 1, fn, "step", &o->step));
    if (o->step < 1) status = lm_fail(LM_E_ARG, "%s: step: steps count from 1, got %lld", fn, (long long)o->step);
  }
done:
  return status;
}

static lm_status run(lua_State *L, lm_lua *s, void *arg) {
  static const char *const names[] = {
      "kind",      "params",   "grads", "state0", "state1", "state2", "lr",   "weight_decay", "maximize", "momentum",
      "dampening", "nesterov", "first", "beta1",  "beta2",  "eps",    "step", "amsgrad",      "decoupled"};
  int *stepped = arg;
  group g = {0};
  lm_status status;
  TRY(lm_check_options(L, 1, fn, sizeof names / sizeof *names, names));
  TRY(read_step(L, s, &g.step));
  TRY(read_lists(L, s, &g));
  *stepped = g.n;
  if (g.n == 0) goto done;
  g.step.n = g.n;
  g.step.param = g.param;
  g.step.grad = g.grad;
  bool wanted[3] = {g.step.kind == LM_ADAM || g.step.momentum != 0, g.step.kind == LM_ADAM,
                    g.step.kind == LM_ADAM && g.step.amsgrad};
  if (wanted[0]) g.step.state0 = g.state[0];
  if (wanted[1]) g.step.state1 = g.state[1];
  if (wanted[2]) g.step.state2 = g.state[2];
  TRY(lm_optim_run(&g.step));
done:
  drop(&g);
  return status;
}

static int bind_optim_step(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  if (lua_type(L, 1) != LUA_TTABLE) return lm_raise_text(L, "optim_step: one table expected");
  lua_settop(L, 1);
  luaL_checkstack(L, 32, fn);
  lm_pace(L, s);
  int stepped = 0;
  lm_status status = lm_attempt_twice(L, s, run, &stepped);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushinteger(L, stepped);
  return 1;
}

/* total_norm(list, p, of_grads) -> a tensor; clip_with_norm(params, max_norm, total); clip_value(params, most) */
typedef struct clipping {
  const char *fn;
  double most, p;
  bool of_grads;
  lm_tensor *total;
  lm_status (*work)(struct clipping *c, int n, lm_tensor *const *list);
} clipping;

static lm_status clip(lua_State *L, lm_lua *s, void *arg) {
  clipping *c = arg;
  lm_tensor **list = NULL;
  int n;
  lm_status status;
  TRY(lm_read_list(L, s, 1, c->fn, "list", false, &n, &list));
  if (c->of_grads) {
    int there = 0;
    for (int i = 0; i < n; i++) {
      lm_tensor *grad = lm_grad_of(list[i]);
      if (grad) list[there++] = grad;
    }
    n = there;
  }
  TRY(c->work(c, n, list));
done:
  lm_free(list);
  return status;
}

static lm_status measure(clipping *c, int n, lm_tensor *const *list) {
  return lm_total_norm(n, list, c->of_grads, c->p, &c->total);
}

static int bind_total_norm(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  clipping c = {.fn = "total_norm", .work = measure};
  lua_settop(L, 3);
  lm_box *b = lm_box_new(L);
  lm_status status;
  TRY(lm_read_number(L, s, 2, c.fn, "p", &c.p));
  TRY(lm_read_bool(L, s, 3, c.fn, "of_grads", &c.of_grads));
  TRY(lm_attempt_twice(L, s, clip, &c));
  lm_box_fill(s, b, c.total);
  return 1;
done:
  return lm_raise(L, status);
}

static lm_status scale(clipping *c, int n, lm_tensor *const *grads) {
  return lm_clip_with_norm(n, grads, c->most, c->total);
}

static int bind_clip_with_norm(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  clipping c = {.fn = "clip_with_norm", .of_grads = true, .work = scale};
  lua_settop(L, 3);
  lm_status status;
  TRY(lm_read_number(L, s, 2, c.fn, "max_norm", &c.most));
  TRY(lm_read_tensor(L, s, 3, c.fn, "total", &c.total));
  TRY(lm_attempt_twice(L, s, clip, &c));
done:
  return status == LM_OK ? 0 : lm_raise(L, status);
}

static lm_status limit(clipping *c, int n, lm_tensor *const *grads) { return lm_clip_value(n, grads, c->most); }

static int bind_clip_value(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  clipping c = {.fn = "clip_value", .of_grads = true, .work = limit};
  lua_settop(L, 2);
  lm_status status;
  TRY(lm_read_number(L, s, 2, c.fn, "most", &c.most));
  TRY(lm_attempt_twice(L, s, clip, &c));
done:
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* zero_grad(params, set_to_none = true) */
static lm_status zero(lua_State *L, lm_lua *s, void *arg) {
  const bool *to_none = arg;
  lm_tensor **params = NULL, *out[LM_MAX_OUTS];
  int n = 0;
  bool recording = lm_grad_enabled();
  lm_status status;
  TRY(lm_read_list(L, s, 1, "zero_grad", "params", false, &n, &params));
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

static int bind_zero_grad(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  bool to_none = true;
  lua_settop(L, 2);
  lm_status status;
  if (!lua_isnil(L, 2)) TRY(lm_read_bool(L, s, 2, "zero_grad", "set_to_none", &to_none));
  TRY(lm_attempt_twice(L, s, zero, &to_none));
done:
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* has_grad(param): asked without a value of Lua's, which would lie on the gradient's memory until it is collected. */
static int bind_has_grad(lua_State *L) {
  lm_tensor *param;
  lm_status status = lm_read_tensor(L, LM_STATE(L), 1, "has_grad", "param", &param);
  if (status != LM_OK) return lm_raise(L, status);
  lua_pushboolean(L, lm_grad_of(param) != NULL);
  return 1;
}

const luaL_Reg lm_optim_functions[] = {{"optim_step", bind_optim_step},
                                       {"total_norm", bind_total_norm},
                                       {"clip_with_norm", bind_clip_with_norm},
                                       {"clip_value", bind_clip_value},
                                       {"zero_grad", bind_zero_grad},
                                       {"has_grad", bind_has_grad},
                                       {NULL, NULL}};
