/* Fuses elementwise ops: fuse(f) returns a function that calls f, a function or a module, and computes successive
 * elementwise ops as one.
 *
 * While it runs, such ops are deferred: their results are handles like others, over memory without values. Any other
 * access to a tensor calls lm_to_tensor_handle, which first computes all values; so does a write, whose tensor may be a
 * deferred op's input. At the end the returned results are computed; intermediate ones are not. */
#include "autograd/autograd.h"
#include "base/mapping_guard.h"
#include "base/message.h"
#include "bind/bind.h"

static const char unreturned[] =
    "was never computed: a function of lm.fuse put it off and did not return it; return it, or pass it to lm.keep";

void lm_fusion_settle(const lm_lua *s) {
  if (!s->fusion->reading || s->reader_depth > 0) lm_chain_run(s->fusion->chain);
}

/* Returns whether an op may be deferred: gradients, autocast and the checks of ported code need its values. */
static bool may_wait(const lm_op *op, const void *args, bool in_place) {
  if (op->kind != LM_POINTWISE || in_place || lm_autocast_get().on || lm_is_porting()) return false;
  for (int k = 0; k < op->ntensor && lm_grad_enabled(); k++) {
    const lm_tensor *t = LM_ARG_TENSOR(args, op->tensor[k]);
    if (t && t->grad) return false;
  }
  return true;
}

void lm_fusion_offer(const lm_lua *s, const lm_op *op, const void *args, bool in_place) {
  if (may_wait(op, args, in_place)) {
    lm_chain_accept(s->fusion->chain);
  } else {
    lm_chain_run(s->fusion->chain);
  }
}

void lm_fusion_note(const lm_lua *s, lm_tensor_handle *b) {
  if (s->fusion->waits) s->fusion->handle[lm_chain_length(s->fusion->chain) - 1] = b;
}

/* Returns whether each value on the stack is a tensor or cannot contain one. */
static bool are_plain(lua_State *L, const lm_lua *s) {
  for (int i = lua_gettop(L); i > 0; i--) {
    int type = lua_type(L, i);
    bool hidden = type == LUA_TTABLE || type == LUA_TFUNCTION || type == LUA_TTHREAD || type > LUA_TTHREAD;
    if (hidden || (type == LUA_TUSERDATA && !lm_peek_tensor_handle(L, s, i))) return false;
  }
  return true;
}

/* Drops the handles of deferred results except those on the stack, which f returned. */
static void drop_others(lua_State *L, lm_lua *s, lm_fusion *f) {
  for (int i = lua_gettop(L); i > 0; i--) {
    const lm_tensor_handle *result = lm_peek_tensor_handle(L, s, i);
    if (result) lm_fusion_forget(s, result);
  }
  for (int i = 0; i < lm_chain_length(f->chain); i++) {
    if (f->handle[i]) lm_tensor_handle_drop(s, f->handle[i], unreturned);
  }
}

/* Calls f, upvalue 3, with ops deferred. */
static int call_fused(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lua_pushvalue(L, lua_upvalueindex(3));
  lua_insert(L, 1);
  if (s->fusion) { /* a nested call defers into the outer chain */
    if (lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET)) return lua_error(L);
    return lua_gettop(L);
  }
  lm_fusion fusion = {0};
  lm_need(L, lm_chain_new(&fusion.chain));
  s->fusion = &fusion;
  int failed = lm_pcall(L, lua_gettop(L) - 1, LUA_MULTRET);
  if (!failed && are_plain(L, s)) drop_others(L, s, &fusion);
  s->fusion = NULL;
  lm_chain_run(fusion.chain);
  lm_chain_free(fusion.chain);
  if (failed) return lua_error(L);
  lm_need(L, lm_truncation_check());
  return lua_gettop(L);
}

LM_FUNCTION(fuse) {
  if (lua_type(L, 1) != LUA_TFUNCTION && !lm_is_module(L, 1)) {
    lm_status status = lm_fail_arg(L, LM_STATE(L), 1, "fuse", "f", "a function or a module");
    lm_raise(L, lm_remedy(status, "write lm.fuse(function(x) … end) or lm.fuse(net)"));
  }
  lua_settop(L, 1);
  for (int i = 1; i <= 2; i++) lua_pushvalue(L, lua_upvalueindex(i));
  lua_pushvalue(L, 1);
  lua_pushcclosure(L, call_fused, 3);
  return 1;
}
