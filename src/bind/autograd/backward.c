/* Adds backward and grad, with PyTorch's arguments. */
#include "base/mem.h"
#include "base/message.h"
#include "bind/bind.h"

typedef struct pass {
  lm_list roots, grads, inputs; /* retained: hooks may free them */
  lm_backward_args args;
} pass;

static void drop_pass(pass *p) {
  lm_list_free(&p->roots);
  lm_list_free(&p->grads);
  lm_list_free(&p->inputs);
}

/* Reads the roots' gradients (argument `grads`) and flags from `count` values at `first` on; n may be positional. */
static lm_status read_modes(lua_State *L, const lm_lua *s, int first, int count, const char *fn, const char *grads,
                            int n, pass *p) {
  bool only_inputs = true;
  uint32_t given;
  const lm_param params[] = {{grads, LM_ARG_SOME, &p->grads},
                             {"retain_graph", LM_ARG_B, &p->args.retain_graph},
                             {"create_graph", LM_ARG_B, &p->args.create_graph},
                             {"only_inputs", LM_ARG_B, &only_inputs},
                             {"allow_unused", LM_ARG_B, &p->args.allow_unused}};
  NEED(lm_read_call(L, s, first, count, fn, n, n, params, &given));
  if (!only_inputs) return lm_fail_value(fn, "only_inputs", "true", "false");
  if (!(given & 1u << 1)) p->args.retain_graph = p->args.create_graph;
  if ((given & 1) && p->grads.n != p->roots.n)
    return lm_fail_int(fn, lm_text("the number of tensors in %s", grads), lm_text("%d", p->roots.n), p->grads.n);
  p->args.nroots = p->roots.n;
  p->args.roots = p->roots.v;
  p->args.grads = p->grads.v;
  return LM_OK;
}

/* backward(x or list [, gradient] [, retain_graph] [, create_graph] [, options]) */
LM_FUNCTION(backward) {
  static const char fn[] = "backward";
  lm_lua *s = LM_STATE(L);
  int top = lua_gettop(L);
  if (top == 0) lm_need_tensor(L, 1, fn, "x");
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, fn);
  lm_gc_step_hasten(s);
  lm_gc_step_if_due(L, s);
  lm_callbacks_drain(L, s->callbacks);
  lm_note_line(L, s); /* DistributedDataParallel waits for other ranks in it */
  pass p = {0};
  lm_status status;
  s->reads_for_op = true;
  status = lm_read_tensor_or_list(L, s, 1, fn, "x", false, &p.roots);
  if (status == LM_OK) status = read_modes(L, s, 2, top - 1, fn, "gradient", 3, &p);
  s->reads_for_op = false;
  TRY(status);
  TRY(lm_backward_in(L, s, &p.args, NULL));
done:
  drop_pass(&p);
  return status == LM_OK ? 0 : lm_raise(L, status);
}

/* grad(outputs, inputs [, grad_outputs] [, retain_graph] [, create_graph] [, only_inputs] [, allow_unused] [, options])
 * `count` arguments follow inputs; only_inputs must be true, as in PyTorch. `list`: stack index of a list of `handles`
 * empty handles for the results, made before anything is read. */
static lm_status run_grad(lua_State *L, lm_lua *s, pass *p, int count, int list, int handles) {
  static const char fn[] = "grad";
  lm_tensor **out = NULL;
  lm_status status;
  TRY(lm_read_tensor_or_list(L, s, 1, fn, "outputs", false, &p->roots));
  TRY(lm_read_tensor_or_list(L, s, 2, fn, "inputs", false, &p->inputs));
  if (p->inputs.n != handles)
    TRY(lm_fail_int(fn, "the length of inputs", lm_text("%d while they are read", handles), p->inputs.n));
  if (p->inputs.n == 0) TRY(lm_fail_value(fn, "inputs", "a non-empty list of tensors", "{}"));
  TRY(read_modes(L, s, 3, count, fn, "grad_outputs", 5, p));
  out = lm_calloc((size_t)p->inputs.n, sizeof *out);
  if (!out) TRY(LM_E_OOM);
  p->args.ninputs = p->inputs.n;
  p->args.inputs = p->inputs.v;
  TRY(lm_backward_in(L, s, &p->args, out));
  for (int i = 0; i < p->inputs.n; i++) {
    lua_rawgeti(L, list, i + 1);
    lm_tensor_handle *handle = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (out[i]) {
      lm_tensor_handle_fill(s, handle, out[i]);
      lm_gc_step_count(s, out[i]);
    } else { /* no root depends on it */
      lua_pushnil(L);
      lua_rawseti(L, list, i + 1);
    }
  }
done:
  lm_free(out);
  drop_pass(p);
  return status;
}

LM_FUNCTION(grad) {
  lm_lua *s = LM_STATE(L);
  if (lua_gettop(L) < 2) lua_settop(L, 2);
  int list = lua_gettop(L) + 1, n = lua_type(L, 2) == LUA_TTABLE ? (int)lua_objlen(L, 2) : 1;
  luaL_checkstack(L, 20 + LM_HOOK_SLOTS, "grad");
  lm_gc_step_if_due(L, s);
  lm_callbacks_drain(L, s->callbacks);
  lua_createtable(L, n, 0);
  for (int i = 1; i <= n; i++) {
    lm_tensor_handle_new(L);
    lua_rawseti(L, list, i);
  }
  pass p = {0};
  lm_need(L, run_grad(L, s, &p, list - 3, list, n));
  lua_settop(L, list);
  return 1;
}
