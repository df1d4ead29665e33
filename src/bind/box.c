/* Handles: the userdata through which Lua holds tensors. */
#include "bind/bind.h"

lm_box *lm_box_new(lua_State *L) {
  lm_box *b = (lm_box *)lua_newuserdata(L, sizeof *b);
  memset(b, 0, sizeof *b);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_setmetatable(L, -2);
  return b;
}

void lm_box_unlink(lm_box *b) {
  if (!b->pprev) return;
  *b->pprev = b->next;
  if (b->next) b->next->pprev = b->pprev;
  b->pprev = NULL;
  b->next = NULL;
}

void lm_box_drop(lm_box *b, const char *why) {
  lm_box_unlink(b);
  lm_tensor *t = b->t;
  b->t = NULL;
  b->why = why;
  lm_release(t);
}

/* __gc. Never raises but for lack of memory in Lua itself; releasing pushes to free lists. */
int lm_box_gc(lua_State *L) {
  lm_lua *s = LM_STATE(L);
  lm_box *b = lm_to_box(L, s, 1);
  if (!b) return 0;
  if (b->hooked) lm_hooks_orphan(L, s);
  lm_box_drop(b, "was collected");
  return 0;
}
