/* Makes and drops handles, the userdata through which Lua holds tensors. */
#include "base/mem.h"
#include "bind/bind.h"
#include "plan/follow.h"

lm_tensor_handle *lm_tensor_handle_new(lua_State *L) {
  lm_tensor_handle *b = (lm_tensor_handle *)lua_newuserdata(L, sizeof *b);
  *b = (lm_tensor_handle){.state = LM_STATE(L)};
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_setmetatable(L, -2);
  return b;
}

void lm_tensor_handle_unlink(lm_tensor_handle *b) {
  if (!b->pprev) return;
  *b->pprev = b->next;
  if (b->next) b->next->pprev = b->pprev;
  b->pprev = NULL;
  b->next = NULL;
  b->intermediate = false;
}

void lm_release_safely(lm_lua *s, lm_tensor *t) {
  if (s->reader_depth == 0) {
    lm_release(t);
    return;
  }
  if (!lm_list_grow(&s->deferred, &s->deferred_capacity, (size_t)s->ndeferred + 1, sizeof *s->deferred)) {
    return; /* leaked, rather than released too early */
  }
  s->deferred[s->ndeferred++] = t;
  s->step_at = 0; /* the next call runs lm_gc_step, which releases it */
}

void lm_release_deferred(lm_lua *s) {
  while (s->ndeferred > 0 && s->reader_depth == 0) lm_release(s->deferred[--s->ndeferred]);
  if (s->ndeferred > 0) return;
  lm_free(s->deferred);
  s->deferred = NULL;
  s->deferred_capacity = 0;
}

void lm_tensor_handle_drop(lm_lua *s, lm_tensor_handle *b, const char *why) {
  lm_tensor_handle_unlink(b);
  lm_tensor *t = b->t;
  b->t = NULL;
  b->why = why;
  if (t) lm_release_safely(s, t);
}

lm_tensor *lm_settled_tensor(const lm_lua *s, lm_tensor_handle *b) {
  lm_tensor *t = b->t;
  if (!t) return NULL;
  if (s->follows && !s->reads_for_op && lm_settle() != LM_OK) {
    ((lm_lua *)s)->settle_failed = true;
    return NULL;
  }
  if (!b->is_result) return t;
  if (lm_is_lost(t)) {
    lm_tensor_handle_drop((lm_lua *)s, b, "has no values, since the compiled function that made it failed");
    return NULL;
  }
  b->is_result = s->follows;
  return t;
}

/* Finalizes a handle (__gc). Raises only if Lua itself is out of memory; releasing pushes memory to free lists. */
LM_METAMETHOD(__gc) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *b = lm_to_tensor_handle(L, s, 1);
  if (!b) return 0;
  if (b->hooked) lm_hooks_orphan(L, s);
  lm_tensor_handle_drop(s, b, "was collected");
  return 0;
}

void lm_push_sizes(lua_State *L, int n, const int64_t *v) {
  int64_t size[LM_MAX_DIMS]; /* making the table may collect v's tensor */
  memcpy(size, v, sizeof size);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushnumber(L, (double)size[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_rawgeti(L, lua_upvalueindex(2), LM_SIZES);
  lua_setmetatable(L, -2);
}
