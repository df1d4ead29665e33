/* backward and grad. */
#include "base/mem.h"
#include "bind/bind.h"

typedef struct pass {
  lm_tensor **roots, **grads, **inputs; /* retained: hooks may free them */
  int nroots, ngrads, ninputs;
  bool retain_given;
  lm_backward_args args;
} pass;

static void drop_list(int n, lm_tensor **list) {
  for (int i = 0; i < n; i++) lm_release(list[i]);
  lm_free(list);
}

static void drop(pass *p) {
  drop_list(p->nroots, p->roots);
  drop_list(p->ngrads, p->grads);
  drop_list(p->ninputs, p->inputs);
}

/* A tensor or a list of them at i. */
static lm_status read_some(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                           lm_tensor ***out) {
  lm_tensor **one = NULL;
  lm_status status;
  if (lm_to_box(L, s, i)) {
    one = lm_malloc(sizeof *one);
    if (!one) return LM_E_OOM;
    TRY(lm_read_tensor(L, s, i, fn, arg, one));
    *n = 1;
    *out = one;
    one = NULL;
  } else {
    TRY(lm_read_list(L, s, i, fn, arg, holes, n, out));
  }
  for (int k = 0; k < *n; k++) lm_retain((*out)[k]);
done:
  lm_free(one);
  return status;
}

static lm_status read_flag(lua_State *L, const lm_lua *s, int options, const char *fn, const char *name, bool *out) {
  if (!lm_field(L, options, name)) return LM_OK;
  lm_status status = lm_read_bool(L, s, lua_gettop(L), fn, name, out);
  lua_pop(L, 1);
  return status;
}

static lm_status read_grads(lua_State *L, const lm_lua *s, int i, const char *fn, const char *name, pass *p) {
  lm_status status = read_some(L, s, i, fn, name, true, &p->ngrads, &p->grads);
  if (status != LM_OK || p->ngrads == p->nroots) return status;
  return lm_fail(LM_E_ARG, "%s: %s: %d gradient%s for %d tensor%s", fn, name, p->ngrads, p->ngrads == 1 ? "" : "s",
                 p->nroots, p->nroots == 1 ? "" : "s");
}

/* backward(x or list, gradient | {gradient, retain_graph, create_graph}): gradient may be both
 * positional and followed by options. */
static lm_status run_backward(lua_State *L, lm_lua *s, pass *p) {
  static const char *const names[] = {"gradient", "retain_graph", "create_graph"};
  const char *fn = "backward";
  lm_status status;
  int options = 0;
  TRY(read_some(L, s, 1, fn, "x", false, &p->nroots, &p->roots));
  bool positional = lm_to_box(L, s, 2) || (lua_type(L, 2) == LUA_TTABLE && lua_objlen(L, 2) > 0);
  if (positional) TRY(read_grads(L, s, 2, fn, "gradient", p));
  options = positional ? 3 : lua_isnoneornil(L, 2) ? 3 : 2;
  if (options == 2 && !lua_isnoneornil(L, 3)) options = 3;
  TRY(lm_check_options(L, options, fn, 3, names));
  if (lua_type(L, options) == LUA_TTABLE) {
    if (lm_field(L, options, "gradient")) {
      if (positional) {
        status = lm_fail(LM_E_ARG, "backward: gradient is given twice, by position and by name");
        goto done;
      }
      TRY(read_grads(L, s, lua_gettop(L), fn, "gradient", p));
    }
    TRY(read_flag(L, s, options, fn, "create_graph", &p->args.create_graph));
    p->args.retain_graph = p->args.create_graph;
    TRY(read_flag(L, s, options, fn, "retain_graph", &p->args.retain_graph));
  }
  p->args.nroots = p->nroots;
  p->args.roots = p->roots;
  p->args.grads = p->grads;
  TRY(lm_backward_in(L, s, &p->args, NULL));
done:
  drop(p);
  return status;
}

static int bind_backward(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 3);
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, "backward");
  lm_pace(L, s);
  if (lm_home_waiting(s->home)) lm_home_drain(L, s->home);
  lm_note_line(L, s); /* DistributedDataParallel waits for other ranks in it */
  pass p = {0};
  lm_status status = run_backward(L, s, &p);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused}). The handles for
 * the results stand in the list at stack index 4 before anything is read. */
static lm_status run_grad(lua_State *L, lm_lua *s, pass *p, int boxes) {
  static const char *const names[] = {"grad_outputs", "retain_graph", "create_graph", "allow_unused"};
  const char *fn = "grad";
  lm_tensor **out = NULL;
  lm_status status;
  TRY(lm_check_options(L, 3, fn, 4, names));
  TRY(read_some(L, s, 1, fn, "outputs", false, &p->nroots, &p->roots));
  TRY(read_some(L, s, 2, fn, "inputs", false, &p->ninputs, &p->inputs));
  if (p->ninputs != boxes) {
    status = lm_fail(LM_E_ARG, "grad: inputs: a list that changes while it is read");
    goto done;
  }
  if (p->ninputs == 0) {
    status = lm_fail(LM_E_ARG, "grad: inputs: at least one tensor expected");
    goto done;
  }
  if (lua_type(L, 3) == LUA_TTABLE) {
    if (lm_field(L, 3, "grad_outputs")) TRY(read_grads(L, s, lua_gettop(L), fn, "grad_outputs", p));
    TRY(read_flag(L, s, 3, fn, "create_graph", &p->args.create_graph));
    p->args.retain_graph = p->args.create_graph;
    TRY(read_flag(L, s, 3, fn, "retain_graph", &p->args.retain_graph));
    TRY(read_flag(L, s, 3, fn, "allow_unused", &p->args.allow_unused));
  }
  out = lm_calloc((size_t)p->ninputs, sizeof *out);
  if (!out) {
    status = LM_E_OOM;
    goto done;
  }
  p->args.nroots = p->nroots;
  p->args.roots = p->roots;
  p->args.grads = p->grads;
  p->args.ninputs = p->ninputs;
  p->args.inputs = p->inputs;
  TRY(lm_backward_in(L, s, &p->args, out));
  for (int i = 0; i < p->ninputs; i++) {
    if (!out[i]) continue;
    lua_rawgeti(L, 4, i + 1);
    lm_box_fill(s, (lm_box *)lua_touserdata(L, -1), out[i]);
    lm_pace_count(s, out[i]);
    lua_pop(L, 1);
  }
done:
  lm_free(out);
  drop(p);
  return status;
}

static int bind_grad(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_settop(L, 3);
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, "grad");
  lm_pace(L, s);
  if (lm_home_waiting(s->home)) lm_home_drain(L, s->home);
  int n = lua_type(L, 2) == LUA_TTABLE ? (int)lua_objlen(L, 2) : 1;
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lm_box_new(L);
    lua_rawseti(L, 4, i);
  }
  pass p = {0};
  lm_status status = run_grad(L, s, &p, n);
  if (status != LM_OK) return lm_raise(L, status);
  lua_settop(L, 4);
  for (int i = 1; i <= n; i++) { /* unused: nil */
    lua_rawgeti(L, 4, i);
    bool unused = !((lm_box *)lua_touserdata(L, -1))->t;
    lua_pop(L, 1);
    if (!unused) continue;
    lua_pushnil(L);
    lua_rawseti(L, 4, i);
  }
  return 1;
}

const luaL_Reg lm_autograd_functions[] = {{"backward", bind_backward}, {"grad", bind_grad}, {NULL, NULL}};
