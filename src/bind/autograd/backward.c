/* backward and grad. */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

typedef struct pass {
  lm_tensor **roots, **grads, **inputs; /* retained: hooks may free them */
  int nroots, ngrads, ninputs;
  lm_backward_args args;
} pass;

static void drop_list(int n, lm_tensor **list) {
  for (int i = 0; i < n; i++) lm_release(list[i]);
  lm_free(list);
}

static void drop_pass(pass *p) {
  drop_list(p->nroots, p->roots);
  drop_list(p->ngrads, p->grads);
  drop_list(p->ninputs, p->inputs);
}

/* A tensor or a list of them at i. */
static lm_status read_some(lua_State *L, const lm_lua *s, int i, const char *fn, const char *arg, bool holes, int *n,
                           lm_tensor ***out) {
  lm_tensor **one = NULL;
  lm_status status;
  if (lm_to_tensor_handle(L, s, i)) {
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

static lm_status read_grads(lua_State *L, const lm_lua *s, int i, const char *fn, const char *name, pass *p) {
  lm_status status = read_some(L, s, i, fn, name, true, &p->ngrads, &p->grads);
  if (status != LM_OK || p->ngrads == p->nroots) return status;
  return lm_fail_int(fn, lm_text("the number of tensors in %s", name), lm_text("%d", p->nroots), p->ngrads);
}

/* The options at i, but that named `grads`, which the caller reads. */
static lm_status read_modes(lua_State *L, const lm_lua *s, int i, const char *fn, const char *grads,
                            lm_backward_args *a, bool inputs) {
  const lm_option options[] = {{grads, LM_OPTION_OTHER, NULL},
                               {"retain_graph", LM_OPTION_BOOL, &a->retain_graph},
                               {"create_graph", LM_OPTION_BOOL, &a->create_graph},
                               {"allow_unused", LM_OPTION_BOOL, &a->allow_unused}};
  lm_status status = lm_read_options(L, s, i, fn, inputs ? 4 : 3, options);
  if (status != LM_OK || lua_type(L, i) != LUA_TTABLE) return status;
  if (lm_field(L, i, "retain_graph")) {
    lua_pop(L, 1);
  } else {
    a->retain_graph = a->create_graph;
  }
  return LM_OK;
}

/* backward(x or list, gradient | {gradient, retain_graph, create_graph}): gradient may be both
 * positional and followed by options. */
static lm_status run_backward(lua_State *L, lm_lua *s, pass *p) {
  const char *fn = "backward";
  lm_status status;
  int options = 0;
  TRY(read_some(L, s, 1, fn, "x", false, &p->nroots, &p->roots));
  bool positional = lm_to_tensor_handle(L, s, 2) || (lua_type(L, 2) == LUA_TTABLE && lua_objlen(L, 2) > 0);
  if (positional) TRY(read_grads(L, s, 2, fn, "gradient", p));
  options = positional ? 3 : lua_isnoneornil(L, 2) ? 3 : 2;
  if (options == 2 && !lua_isnoneornil(L, 3)) options = 3;
  TRY(read_modes(L, s, options, fn, "gradient", &p->args, false));
  if (lua_type(L, options) == LUA_TTABLE && lm_field(L, options, "gradient")) {
    if (positional) TRY(lm_fail_twice(fn, "gradient"));
    TRY(read_grads(L, s, lua_gettop(L), fn, "gradient", p));
  }
  p->args.nroots = p->nroots;
  p->args.roots = p->roots;
  p->args.grads = p->grads;
  TRY(lm_backward_in(L, s, &p->args, NULL));
done:
  drop_pass(p);
  return status;
}

static int bind_backward(lua_State *L) {
  static const char *const names[] = {"gradient", "retain_graph", "create_graph", NULL};
  lm_lua *s = LM_STATE(L);
  int top = lua_gettop(L);
  if (top == 0) lm_need_tensor(L, 1, "backward", "x");
  if (top > 3 || lua_type(L, 3) == LUA_TBOOLEAN) lm_need(L, lm_fold_options(L, "backward", 2, top - 1, names));
  lua_settop(L, 3);
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, "backward");
  lm_gc_step_if_due(L, s);
  lm_callbacks_drain(L, s->callbacks);
  lm_note_line(L, s); /* DistributedDataParallel waits for other ranks in it */
  pass p = {0};
  lm_status status = run_backward(L, s, &p);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* only_inputs, which PyTorch wants to be true, is taken out of the options. */
static void drop_only_inputs(lua_State *L, int table) {
  if (!lm_field(L, table, "only_inputs")) return;
  if (lua_type(L, -1) == LUA_TBOOLEAN && lua_toboolean(L, -1)) {
    lua_pushnil(L);
    lua_setfield(L, table, "only_inputs");
  }
  lua_pop(L, 1);
}

/* grad(outputs, inputs, {grad_outputs, retain_graph, create_graph, allow_unused}). The handles for
 * the results stand in the list at stack index 4 before anything is read. */
static lm_status run_grad(lua_State *L, lm_lua *s, pass *p, int handles) {
  const char *fn = "grad";
  lm_tensor **out = NULL;
  lm_status status;
  TRY(read_some(L, s, 1, fn, "outputs", false, &p->nroots, &p->roots));
  TRY(read_some(L, s, 2, fn, "inputs", false, &p->ninputs, &p->inputs));
  if (p->ninputs != handles)
    TRY(lm_fail_int(fn, "the length of inputs", lm_text("%d while they are read", handles), p->ninputs));
  if (p->ninputs == 0) TRY(lm_fail_value("grad", "inputs", "a non-empty list of tensors", "{}"));
  TRY(read_modes(L, s, 3, fn, "grad_outputs", &p->args, true));
  if (lua_type(L, 3) == LUA_TTABLE && lm_field(L, 3, "grad_outputs"))
    TRY(read_grads(L, s, lua_gettop(L), fn, "grad_outputs", p));
  out = lm_calloc((size_t)p->ninputs, sizeof *out);
  if (!out) TRY(LM_E_OOM);
  p->args.nroots = p->nroots;
  p->args.roots = p->roots;
  p->args.grads = p->grads;
  p->args.ninputs = p->ninputs;
  p->args.inputs = p->inputs;
  TRY(lm_backward_in(L, s, &p->args, out));
  for (int i = 0; i < p->ninputs; i++) {
    if (!out[i]) continue;
    lua_rawgeti(L, 4, i + 1);
    lm_tensor_handle_fill(s, (lm_tensor_handle *)lua_touserdata(L, -1), out[i]);
    lm_gc_step_count(s, out[i]);
    lua_pop(L, 1);
  }
done:
  lm_free(out);
  drop_pass(p);
  return status;
}

static int bind_grad(lua_State *L) {
  static const char *const names[] = {"grad_outputs", "retain_graph", "create_graph",
                                      "only_inputs",  "allow_unused", NULL};
  lm_lua *s = LM_STATE(L);
  int top = lua_gettop(L);
  if (top > 3 || (top == 3 && (lm_to_tensor_handle(L, s, 3) || (lua_istable(L, 3) && lua_objlen(L, 3) > 0)))) {
    lm_need(L, lm_fold_options(L, "grad", 3, top - 2, names));
    drop_only_inputs(L, 3);
  }
  lua_settop(L, 3);
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, "grad");
  lm_gc_step_if_due(L, s);
  lm_callbacks_drain(L, s->callbacks);
  int n = lua_type(L, 2) == LUA_TTABLE ? (int)lua_objlen(L, 2) : 1;
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lm_tensor_handle_new(L);
    lua_rawseti(L, 4, i);
  }
  pass p = {0};
  lm_need(L, run_grad(L, s, &p, n));
  lua_settop(L, 4);
  for (int i = 1; i <= n; i++) { /* unused: nil */
    lua_rawgeti(L, 4, i);
    bool unused = !((lm_tensor_handle *)lua_touserdata(L, -1))->t;
    lua_pop(L, 1);
    if (!unused) continue;
    lua_pushnil(L);
    lua_rawseti(L, 4, i);
  }
  return 1;
}

const luaL_Reg lm_backward_functions[] = {{"backward", bind_backward}, {"grad", bind_grad}, {NULL, NULL}};
