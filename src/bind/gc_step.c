/* Lua's collector sees 80 bytes where a tensor holds 80 MB. So calls that make tensors count bytes,
 * and every sixteenth of a budget, but not before 16 MB, drives the collector by a step sized to the Lua heap, such
 * that a whole cycle ends within one budget. (A step takes longer than threads that compute wait awake for more to do:
 * one before each call would cost each call their waking.) Where that takes more than a tenth of the time (a large Lua
 * heap), the budget doubles; where it takes almost none, it shrinks back. On a device of much memory a byte counts
 * for less: even the largest budget is then at most a sixteenth of its memory. */
#include <time.h>

#include "base/mapping_guard.h"
#include "bind/bind.h"
#include "device/driver.h"
#include "device/graph.h"

enum { STEPS = 16 };
static const size_t least_budget = (size_t)64 << 20, most_budget = (size_t)1 << 30, least_step = (size_t)16 << 20;
static const double most_share = 0.1, least_share = 0.02; /* of the time */

int lm_gc_step_scale(lm_lua *s, lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  size_t left, total = 0;
  int scale = 1;
  if (LM_DEVICE_KIND(device) != LM_CPU && driver && driver->memory) {
    if (lm_graph_capturing()) return 1; /* no time to ask */
    if (driver->memory(lm_device_physical(device), &left, &total) != LM_OK) total = 0;
  }
  while (total / STEPS >> scale >= most_budget) scale++;
  return s->scale[LM_DEVICE_KIND(device)] = (uint8_t)scale;
}

/* Of this thread's own work: what else the machine does must not look like collecting. */
static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void adapt(lm_lua *s, double now) {
  double share = s->cycle_collecting / (now - s->cycle_start + 1e-9);
  if (share > most_share && s->budget < most_budget) s->budget *= 2;
  if (share < least_share && s->budget > least_budget) s->budget /= 2;
  s->cycle_start = now;
  s->cycle_collecting = 0;
  s->cycle_steps = 0;
}

static int steps_of(size_t budget) { return budget / STEPS < least_step ? (int)(budget / least_step) : STEPS; }

void lm_gc_step(lua_State *L, lm_lua *s) {
  lm_callbacks_drain(L, s->callbacks);
  if (s->kept) lm_let_go_kept(s);
  if (lm_anomaly()) lm_note_anomaly(L);
  if (s->budget == 0) s->budget = least_budget;
  double before = cpu_seconds();
  if (s->cycle_steps >= steps_of(s->budget)) adapt(s, before);
  size_t steps = (size_t)steps_of(s->budget), quantum = s->budget / steps;
  size_t quanta = s->fresh / quantum; /* one tensor may be worth many */
  if (quanta > steps) quanta = steps;
  s->step_at = s->kept || lm_anomaly() ? 0 : quantum; /* 0: each call comes here */
  if (quanta == 0) return;
  s->fresh = 0;
  s->cycle_steps += (int)quanta;
  /* A step of n KB in lua_gc does about 2n KB of marking and sweeping; a cycle takes about twice the
   * heap of it, and finalizers on top. */
  int heap = lua_gc(L, LUA_GCCOUNT, 0);
  int step = (int)((double)heap * 2 * (double)quanta / (double)steps) + 1;
  lua_gc(L, LUA_GCSTEP, step);
  s->cycle_collecting += cpu_seconds() - before;
}

static lm_status attempt(lua_State *L, lm_lua *s, lm_retried_call f, void *arg) {
  int top = lua_gettop(L);
  lm_status status = f(L, s, arg);
  if (status != LM_E_OOM) return status;
  lua_settop(L, top);
  lua_gc(L, LUA_GCCOLLECT, 0);
  return f(L, s, arg);
}

lm_status lm_retry_after_gc(lua_State *L, lm_lua *s, lm_retried_call f, void *arg) {
  lm_status status = attempt(L, s, f, arg), lost = lm_truncation_check();
  return lost == LM_OK ? status : lost;
}

/* Nobody else has it, or what it lies on. */
static bool is_new(const lm_tensor *t) {
  return atomic_load_explicit(&t->rc, memory_order_relaxed) == 1 &&
         atomic_load_explicit(&t->storage->rc, memory_order_relaxed) == 1;
}

int lm_return_tensors(lua_State *L, int nargs, int n, lm_retried_call f, void *arg, lm_tensor **made) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *handle[LM_MAX_OUTS];
  lua_settop(L, nargs);
  lm_gc_step_if_due(L, s);
  for (int i = 0; i < n; i++) {
    made[i] = NULL;
    handle[i] = lm_tensor_handle_new(L);
  }
  lm_need(L, attempt(L, s, f, arg));
  lm_status status = lm_truncation_check();
  for (int i = 0; status != LM_OK && i < n; i++) lm_release(made[i]);
  lm_need(L, status);
  for (int i = 0; i < n; i++) {
    if (!made[i]) {
      lua_pushnil(L);
      lua_replace(L, nargs + 1 + i);
      continue;
    }
    lm_tensor_handle_fill(s, handle[i], made[i]);
    if (is_new(made[i])) lm_gc_step_count(s, made[i]);
  }
  return n;
}

int lm_return_tensor(lua_State *L, int nargs, lm_retried_call f) {
  lm_tensor *made;
  return lm_return_tensors(L, nargs, 1, f, &made, &made);
}
