/* Paces Lua's collector by the bytes of results, since it sees 80 bytes where a tensor holds 80 MB. Calls that make
 * tensors count bytes, and step the collector so that a whole cycle ends within one budget. A small heap is collected
 * at once, which takes a tenth of the time of steps. A large heap is collected by a step sized to it every sixteenth
 * of the budget, but not before 16 MB. (A step takes longer than idle compute threads spin for work: a step before each
 * call would cost each call their wakeup.) If collecting takes more than a tenth of the time, the budget doubles; if it
 * takes almost none, it shrinks back. If a collection frees almost nothing, since a graph or the script holds the
 * results, the next one comes after twice the bytes, at most those in use. A backward pass begins with one, unless its
 * results may still be in the caches: it then frees what its graph saved, node by node, while gradients come. On a
 * device with much memory a byte counts for less: even the largest budget is then at most a sixteenth of its memory.
 *
 * New results reuse the memory of collected ones. Within a budget that fits the caches, results are written there, not
 * to memory, which saves more time than collecting a small heap takes; the more, the faster the script makes results.
 * Results that no cache holds then count for a quarter: collecting them saves no time. */
#include <time.h>

#include "base/cache_size.h"
#include "base/mapping_guard.h"
#include "bind/bind.h"
#include "device/alloc.h"
#include "device/driver.h"
#include "device/graph.h"

enum { STEPS = 16 };
static const size_t usual_budget = (size_t)64 << 20, most_budget = (size_t)1 << 30, least_step = (size_t)16 << 20;
static const double most_share = 0.1, least_share = 0.02; /* shares of CPU time */
/* Bytes of results for each byte of heap. Collecting 1 MB of heap takes about 130 us; writing 5 MB to memory takes
 * that much longer than writing it in a cache, and more where other processes use the memory as well. Products and the
 * like are slower than memory by themselves: a script that makes fewer bytes of results a second than memory_speed
 * gains a quarter of that. Results of other devices gain nothing; a small budget only keeps their memory small. */
static const size_t worth_of_heap = 5, worth_of_slow_heap = 20, worth_of_heap_elsewhere = 10;
static const double memory_speed = 5e9;
/* A collection that frees less than 1 / WORTHLESS of the budget makes the next one come later. */
enum { WORTHLESS = 8 };

/* Returns the bytes of results that fit the caches beside the ops' inputs. */
static size_t cached_budget(void) {
  size_t half = lm_cache_bytes() / 2;
  return half < usual_budget ? half : usual_budget;
}

int lm_gc_step_scale(lm_lua *s, lm_device device) {
  const lm_driver *driver = lm_driver_of(device);
  size_t left, total = 0;
  int scale = 1;
  if (LM_DEVICE_KIND(device) != LM_CPU && driver && driver->memory) {
    if (lm_graph_capturing()) return 1; /* the driver must not be asked now */
    if (driver->memory(lm_device_physical(device), &left, &total) != LM_OK) total = 0;
  }
  while (total / STEPS >> scale >= most_budget) scale++;
  return s->scale[LM_DEVICE_KIND(device)] = (uint8_t)scale;
}

/* Returns this thread's CPU time in seconds: other work on the machine must not look like collecting. */
static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Returns whether a heap (bytes) is collected in one step, which takes less time than results in the caches save. */
static bool is_small(size_t heap) { return heap <= cached_budget() / worth_of_heap; }

static size_t bytes_in_use(void) { return lm_memory_stats_of(LM_DEVICE(LM_CPU, 0)).allocated; }

/* Returns the next cycle's budget after a cycle that freed little; 0 if another rule decides. */
static size_t budget_of_held(const lm_lua *s, size_t freed) {
  size_t most = lm_min(bytes_in_use(), most_budget);
  if (s->elsewhere || freed >= s->budget / WORTHLESS || most < usual_budget) return 0;
  return lm_max(s->budget, lm_min(2 * s->budget, most));
}

static void adapt(lm_lua *s, double now, size_t heap, size_t freed) {
  double time = now - s->cycle_start + 1e-9, share = s->cycle_collecting / time;
  bool fast = (double)s->budget > memory_speed * (time - s->cycle_collecting);
  size_t of_fast = s->elsewhere ? worth_of_heap_elsewhere : worth_of_heap;
  size_t worth = heap * (fast ? of_fast : worth_of_slow_heap), cached = cached_budget();
  size_t held = s->hastened ? s->budget : budget_of_held(s, freed);
  if (held > 0) {
    s->budget = held;
  } else if (worth <= cached) {
    /* Other processes fill much of the cache: with half of these budgets collecting takes longer than memory. */
    size_t least = share > most_share ? cached / 2 : cached / 4;
    s->budget = worth > least ? worth : least;
  } else if (s->budget < usual_budget) {
    s->budget = usual_budget;
  } else if (share > most_share && s->budget < most_budget) {
    s->budget *= 2;
  } else if (share < least_share && s->budget > usual_budget) {
    s->budget /= 2;
  }
  s->uncached = s->budget <= cached ? lm_cached_result_bytes() : SIZE_MAX;
  s->cycle_start = now;
  s->cycle_collecting = 0;
  s->cycle_steps = 0;
  s->elsewhere = s->hastened = false;
  s->at_once = is_small(heap);
}

static size_t steps_of(size_t budget, bool at_once) {
  if (at_once || budget < least_step) return 1; /* the heap has grown since the budget was set */
  return budget / STEPS < least_step ? budget / least_step : STEPS;
}

void lm_gc_step_hasten(lm_lua *s) {
  const size_t bytes = s->result_bytes + s->fresh;
  s->result_bytes = 0;
  if (bytes < usual_budget || s->elsewhere || s->collect_at < s->budget || s->fresh >= s->collect_at) return;
  s->fresh = s->collect_at;
  s->hastened = true;
}

void lm_gc_step(lua_State *L, lm_lua *s) {
  lm_callbacks_drain(L, s->callbacks);
  if (s->deferred) lm_release_deferred(s);
  if (lm_wants_lines()) lm_note_line(L, s);
  s->step_at = s->deferred || lm_wants_lines() ? 0 : s->collect_at; /* 0: each call comes here */
  if (s->budget > 0 && s->fresh < s->collect_at) return;
  double before = cpu_seconds();
  int heap = lua_gc(L, LUA_GCCOUNT, 0); /* KB */
  if (s->budget == 0) {
    s->budget = usual_budget;
    s->cycle_start = before; /* treats this cycle as one of a script that makes results fast */
    adapt(s, before, (size_t)heap << 10, SIZE_MAX);
  }
  bool at_once = is_small((size_t)heap << 10);
  size_t steps = steps_of(s->budget, at_once), quanta = s->fresh / (s->budget / steps);
  if (quanta > steps) quanta = steps;         /* a single tensor may count as many quanta */
  if (at_once && !s->at_once) quanta = steps; /* the budget was set for a large heap, now gone */
  if (quanta > 0) {
    if (!s->hastened) s->result_bytes += s->fresh;
    s->fresh = 0;
    s->cycle_steps += (int)quanta;
    /* A step of n KB in lua_gc does about 2n KB of marking and sweeping; a cycle takes about twice the heap of it, and
     * finalizers on top. */
    int step = (int)((double)heap * 2 * (double)quanta / (double)steps) + 1;
    /* Once a cycle has ended it stops, so such a step of twice the heap is a whole collection; LUA_GCCOLLECT sweeps
     * the heap before that too, half as long again. */
    size_t used = bytes_in_use();
    lua_gc(L, LUA_GCSTEP, step);
    size_t left = bytes_in_use(), freed = !at_once ? SIZE_MAX : left < used ? used - left : 0;
    double after = cpu_seconds();
    s->cycle_collecting += after - before;
    if (s->cycle_steps >= (int)steps) adapt(s, after, (size_t)lua_gc(L, LUA_GCCOUNT, 0) << 10, freed);
  }
  s->collect_at = s->budget / steps_of(s->budget, at_once);
  if (s->step_at > 0 || !(s->deferred || lm_wants_lines())) s->step_at = s->collect_at;
}

void lm_collect_all(lua_State *L) { lua_gc(L, LUA_GCCOLLECT, 0); }

static lm_status attempt(lua_State *L, lm_lua *s, lm_retried_call f, void *arg) {
  int top = lua_gettop(L);
  lm_status status = f(L, s, arg);
  if (status != LM_E_OOM) return status;
  lua_settop(L, top);
  lm_collect_all(L);
  return f(L, s, arg);
}

lm_status lm_retry_after_gc(lua_State *L, lm_lua *s, lm_retried_call f, void *arg) {
  lm_status status = attempt(L, s, f, arg), lost = lm_truncation_check();
  return lost == LM_OK ? status : lost;
}

int lm_return_tensors(lua_State *L, int nargs, int n, lm_retried_call f, void *arg, lm_tensor **result) {
  lm_lua *s = LM_STATE(L);
  lm_tensor_handle *handle[LM_MAX_OUTS];
  lua_settop(L, nargs);
  lm_gc_step_if_due(L, s);
  for (int i = 0; i < n; i++) {
    result[i] = NULL;
    handle[i] = lm_tensor_handle_new(L);
  }
  lm_need(L, attempt(L, s, f, arg));
  lm_status status = lm_truncation_check();
  for (int i = 0; status != LM_OK && i < n; i++) lm_release(result[i]);
  lm_need(L, status);
  for (int i = 0; i < n; i++) {
    if (!result[i]) {
      lua_pushnil(L);
      lua_replace(L, nargs + 1 + i);
      continue;
    }
    lm_tensor_handle_fill(s, handle[i], result[i]);
    if (lm_is_only_owner(result[i])) lm_gc_step_count(s, result[i]);
  }
  return n;
}

int lm_return_tensor(lua_State *L, int nargs, lm_retried_call f) {
  lm_tensor *result;
  return lm_return_tensors(L, nargs, 1, f, &result, &result);
}
