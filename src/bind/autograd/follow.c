/* Runs functions whose calls of ops are recorded as segments and later run by them (plan/follow.h):
 *
 *   compiled(exact = false) -> a function's recordings, empty. exact: results have the bits of eager ops on a GPU too
 *   compiled:call(f, ...) -> what f(...) returns
 *   compiled:state() -> {recordings, runs, segments, changes, reason, line}
 *   compiled:set_explained()             keeps the steps of segments as they are recorded
 *   compiled:explain(i, is_planned) -> the i-th segment's steps as text, as they run or were recorded, and the script's
 * line at its end; nil after the last segment */
#include "plan/follow.h"
#include "bind/bind.h"

LM_LIST(lm_methods_of_compiled);
LM_HELD_TYPE(compiled, lm_compiled, lm_compiled_free, "luminary.compiled", "a compiled function's recordings",
             LM_METHODS_OF(compiled))

LM_FUNCTION(compiled, (boolean, exact, false)) {
  lm_need(L, lm_compiled_new(exact, lm_object_new(L, &compiled_type)));
  return 1;
}

static void collect_garbage(void *L) { lm_collect_all(L); }

static void collect_small_heap(void *L) {
  enum { SMALL = 32 << 10 }; /* KB that are collected within a few ms */
  if (lua_gc(L, LUA_GCCOUNT, 0) < SMALL) lm_collect_all(L);
}

LM_OBJECT_METHOD(compiled, call, "call") {
  lm_lua *s = LM_STATE(L);
  lm_compiled *c = lm_need_compiled(L, 1, "call", "compiled");
  lm_need_function(L, 2, "call", "");
  if (!lm_compiled_begin(c)) {
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    return lua_gettop(L) - 1;
  }
  s->follows = true;
  lm_compiled_set_collect(c, collect_small_heap, L);
  lm_lines_changed(s);
  const bool failed = lm_pcall(L, lua_gettop(L) - 2, LUA_MULTRET);
  lm_status status = lm_compiled_end(c, failed, collect_garbage, L);
  s->follows = s->settle_failed = s->reads_for_op = false;
  lm_lines_changed(s);
  if (lm_compiled_has_open(c)) {
    lm_saved_error saved;
    lm_error_save(status, &saved);
    lm_collect_all(L);
    status = lm_error_restore(&saved);
    lm_compiled_decide(c);
  }
  if (failed) return lua_error(L);
  return lm_return(L, status, lua_gettop(L) - 1);
}

LM_OBJECT_METHOD(compiled, state, "state", (compiled, compiled)) {
  const lm_compiled_state state = lm_compiled_get_state(compiled);
  lua_createtable(L, 0, 6);
  lm_set_number(L, "recordings", state.recordings);
  lm_set_number(L, "runs", state.runs);
  lm_set_number(L, "segments", state.segments);
  lm_set_number(L, "changes", state.changes);
  lm_set_text(L, "reason", state.reason);
  lm_set_text(L, "line", state.line);
  return 1;
}

LM_OBJECT_METHOD(compiled, set_explained, "set_explained", (compiled, compiled)) {
  lm_compiled_set_explained(compiled);
  return 0;
}

LM_OBJECT_METHOD(compiled, explain, "explain", (compiled, compiled), (int, i), (flag, is_planned)) {
  LM_OWNED_BYTES text = {0};
  const char *line = NULL;
  if (!lm_compiled_explain(compiled, (int)i - 1, is_planned, &text, &line)) return 0;
  if (text.failed) return lm_raise(L, LM_E_OOM);
  lua_pushlstring(L, text.data ? text.data : "", text.n);
  lua_pushstring(L, line);
  return 2;
}
